"""Periodic work: what time has decided, entered in the ledger (contract section S).

- `sweep`: what a sweep is, and what it works with
- `work`: the commands that sweeps give to the engine, a page of accounts at a time
- `closing`: closing the months of a page of accounts
- `sweeps/`: the sweeps, each its own file
- `runner`: runs one sweep, on one replica at a time, and keeps what came of it
- `scheduler`: runs them all by the clock, inside `serve`
- `command`: `gateway-ledger sweep`
"""
