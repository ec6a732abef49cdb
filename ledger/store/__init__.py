"""The store: rows <-> core, in a handful of set-based statements. The only writer of the hot path.

One batch is `load` (lock the accounts in a fixed order, read all that its commands can touch), decisions that happen
elsewhere, and `write` (what they changed), inside one transaction of the caller's.
"""

from ledger.store.loading import Batch, Connection, has_entries, load
from ledger.store.writing import write

__all__ = ["Batch", "Connection", "has_entries", "load", "write"]
