"""The audit: an independent reader of the journal that proves what contract section A promises.

- `reading`: rows in the order of their keys, one snapshot, bounded memory
- `chain`: numbers, hashes and postings of entries as they were written (A1, A5); pure
- `figures`, `moves`: how postings move credits, and what they add up to (A2, A6, A7); pure
- `jobs`, `books`: the books of an account kept a second time, entry by entry (A3); pure
- `comparing`: the figures kept beside the journal against that (A2, A3, A4); pure
- `findings`: what is wrong, where, and how much of it is told
- `auditing`: the audit of an account, and of all
- `heads`: the ends of the chains, kept elsewhere and compared later (A5)
- `command`: `gateway-ledger audit`

It shares with the core only the text that is hashed and the hash (`ledger.core.books`): every figure is
worked out again from the postings, by rules of its own. What time has decided and nobody has entered yet is
no discrepancy.
"""

from ledger.audit.auditing import AccountUnknownError, audit
from ledger.audit.findings import AuditReport, Discrepancy
from ledger.audit.heads import Head, HeadsError

__all__ = ["AccountUnknownError", "AuditReport", "Discrepancy", "Head", "HeadsError", "audit"]
