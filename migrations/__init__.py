"""Migrations of the database, run with `gateway-ledger migrate`."""
