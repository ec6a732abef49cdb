"""Prices: what an operation costs, and nothing else. Pure: no database, no clock, no framework."""
