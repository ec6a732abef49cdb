"""Properties of the whole ledger: an independent model, and the machine that compares a system with it."""
