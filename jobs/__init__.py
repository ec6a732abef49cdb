"""Periodic work: what time has decided, entered in the ledger."""
