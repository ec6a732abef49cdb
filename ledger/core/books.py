"""The books: their accounts, entries and postings, and the hash that chains the entries (contract A1, A5, A7).

Accounts of the books are named by what they are and by our own numbers, never by a customer's names: `grant:7` is the
grant that entry 7 put, `hold:9` the job that entry 9 reserved. The journal shows the outside names by joining (R7).
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Literal

import msgspec

EntryKind = Literal["grant", "reserve", "settle", "release", "expire", "refund", "expire_grant"]

OVERDRAFT = "overdraft"
EXPIRED = "expired"
GENESIS_HASH = "0" * 64
"""What the first entry of an account names as its predecessor."""


def grant_account(number: int) -> str:
    """Name the account of a grant by the number of the entry that put it."""
    return f"grant:{number}"


def hold_account(job: int) -> str:
    """Name the account of a job's hold by the number of the entry that reserved it."""
    return f"hold:{job}"


def overage_account(period: str) -> str:
    """Name the overage account of a month."""
    return f"overage:{period}"


def issued_account(kind: str) -> str:
    """Name the account that grants of a kind come from."""
    return f"issued:{kind}"


def consumed_account(operation: str) -> str:
    """Name the account that what an operation consumed goes to."""
    return f"consumed:{operation}"


class Posting(msgspec.Struct, frozen=True, array_like=True):
    """One movement of `credits` (above 0) from `debit` to `credit`: it cannot be out of balance (A1).

    `operation` and the billed `quantity` stand on movements to and from `consumed`; a line that several sources pay
    carries its quantity once, on the first (A7).
    """

    debit: str
    credit: str
    credits: int
    operation: str | None = None
    quantity: int | None = None


class Entry(msgspec.Struct, frozen=True):
    """One business event of one account: numbered without gaps, chained by hash, with at least one posting (A5).

    `at` is when it took effect, which for what time decided is the deadline and not when it was noticed (T1). `job` is
    the number of the job it concerns.
    """

    account: int
    sequence: int
    kind: EntryKind
    job: int | None
    at: datetime
    postings: tuple[Posting, ...]
    previous_hash: str
    hash: str


_encode = msgspec.json.Encoder().encode


def canonical_text(
    account: int, sequence: int, kind: str, job: int | None, at: datetime, postings: tuple[Posting, ...]
) -> bytes:
    """Return the exact text that is hashed after the predecessor's hash: a compact JSON array of all that stays."""
    return _encode((account, sequence, kind, job, at, postings))


def chain(previous_hash: str, canonical: bytes) -> str:
    """Return an entry's hash: SHA-256 over its predecessor's hash (as hexadecimal text) and its canonical text."""
    return hashlib.sha256(previous_hash.encode() + canonical).hexdigest()


def new_entry(
    account: int,
    sequence: int,
    kind: EntryKind,
    job: int | None,
    at: datetime,
    postings: tuple[Posting, ...],
    previous_hash: str,
) -> Entry:
    """Build an entry and its hash."""
    digest = chain(previous_hash, canonical_text(account, sequence, kind, job, at, postings))
    return Entry(account, sequence, kind, job, at, postings, previous_hash, digest)
