"""Reading: jobs, accounts and balances, usage, statements, the journal. Nothing here locks or writes.

Every answer comes from one snapshot of the database and shows what time has decided, entered or not (contract T1, T4).
Every statement begins with the account's number, so no history is scanned.
"""

from ledger.queries.paging import InvalidCursor, Page, PageRequest
from ledger.queries.snapshot import DatabaseAway, NotYet, Reading

__all__ = ["DatabaseAway", "InvalidCursor", "NotYet", "Page", "PageRequest", "Reading"]
