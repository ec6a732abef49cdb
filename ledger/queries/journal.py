"""The journal: entries with their postings, under the names that customers know (contract A5, A7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import BigInteger, func, literal, select
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from ledger import schema
from ledger.core import books
from ledger.core.books import EntryKind, Posting
from ledger.queries.paging import Cursors, Number, Page, PageRequest
from ledger.queries.snapshot import AnyRow, AnySelect, Reading, Snapshot

_decode_postings: Final = msgspec.json.Decoder(tuple[Posting, ...]).decode
_GRANT: Final = books.grant_account(0).removesuffix("0")
_HOLD: Final = books.hold_account(0).removesuffix("0")


class PostingView(msgspec.Struct, frozen=True):
    """One movement of credits, from the account debited to the account credited."""

    debit: str
    credit: str
    credits: int
    operation: str | None
    quantity: int | None


class EntryView(msgspec.Struct, frozen=True):
    """One entry of the journal; `canonical` is the exact text that was hashed after `previous_hash`."""

    entry_id: str
    sequence: int
    kind: EntryKind
    job_id: str | None
    created_at: datetime
    hash: str
    previous_hash: str
    postings: list[PostingView]
    canonical: str | UnsetType = UNSET


class JournalFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries are asked for: those of [start, end), and whether with the text that was hashed."""

    start: datetime | None = None
    end: datetime | None = None
    canonical: bool = False


_cursors: Final = Cursors("entries", tuple[Number])


async def entries(
    reading: Reading, account_id: str, wanted: JournalFilter, page: PageRequest
) -> Page[EntryView] | None:
    """Return a page of an account's journal, oldest first; None where there is no such account."""
    async with reading.snapshot() as snapshot:
        account = await snapshot.account(account_id)
        if account is None:
            return None
        statement = entries_of(account.number).order_by(schema.entries.c.sequence)
        if (key := _cursors.read(account.number, page.cursor)) is not None:
            statement = statement.where(schema.entries.c.sequence > key[0])
        if wanted.start is not None:
            first = await snapshot.entries_before(account.number, wanted.start)
            statement = statement.where(schema.entries.c.sequence > first)
        if wanted.end is not None:
            last = await snapshot.entries_before(account.number, wanted.end)
            statement = statement.where(schema.entries.c.sequence <= last)
        rows, following = await _cursors.page(
            snapshot, account.number, statement, page.limit, lambda row: (row.sequence,)
        )
        shown = await entry_views(snapshot, account.number, rows, canonical=wanted.canonical)
        return Page(shown, following)


def entries_of(account: int) -> AnySelect:
    """Return the statement that reads entries of an account, to be narrowed: each with its postings, as JSON.

    What belongs to an entry is read by its key, entry by entry, so the plan never depends on how many there are.
    """
    entry, posting = schema.entries, schema.postings
    before = schema.entries.alias("before")
    movement = func.json_build_array(
        posting.c.debit, posting.c.credit, posting.c.credits, posting.c.operation, posting.c.quantity
    )
    return select(
        entry.c.sequence,
        entry.c.kind,
        entry.c.job,
        entry.c.at,
        entry.c.hash,
        select(before.c.hash)
        .where(before.c.account == account, before.c.sequence == entry.c.sequence - 1)
        .scalar_subquery()
        .label("previous_hash"),
        select(schema.jobs.c.job_id)
        .where(schema.jobs.c.account == account, schema.jobs.c.number == entry.c.job)
        .scalar_subquery()
        .label("job_id"),
        select(func.json_agg(aggregate_order_by(movement, posting.c.position)))
        .where(posting.c.account == account, posting.c.sequence == entry.c.sequence)
        .scalar_subquery()
        .label("postings"),
    ).where(entry.c.account == account)


async def entry_views(
    snapshot: Snapshot, account: int, rows: Sequence[AnyRow], *, canonical: bool = False
) -> list[EntryView]:
    """Return entries as they are published, with the names that grants and holds have outside."""
    moved = [(row, _decode_postings(row.postings)) for row in rows]
    names = await _names(snapshot, account, moved)
    return [_view(account, row, postings, names, canonical=canonical) for row, postings in moved]


def _view(
    account: int, row: AnyRow, postings: tuple[Posting, ...], names: dict[str, str], *, canonical: bool
) -> EntryView:
    text: str | UnsetType = UNSET
    if canonical:
        at = row.at
        text = books.canonical_text(account, row.sequence, row.kind, row.job, at, postings).decode()
    return EntryView(
        entry_id=f"{account}-{row.sequence}",
        sequence=row.sequence,
        kind=row.kind,
        job_id=row.job_id,
        created_at=row.at,
        hash=row.hash.hex(),
        previous_hash=books.GENESIS_HASH if row.previous_hash is None else row.previous_hash.hex(),
        postings=[
            PostingView(names.get(p.debit, p.debit), names.get(p.credit, p.credit), p.credits, p.operation, p.quantity)
            for p in postings
        ],
        canonical=text,
    )


async def _names(
    snapshot: Snapshot, account: int, moved: Iterable[tuple[AnyRow, tuple[Posting, ...]]]
) -> dict[str, str]:
    """Return the outside names of the grants and holds that entries move credits of, by their inside ones.

    A hold is only ever moved by entries of its own job. A name that a deletion took is missing: its number is shown.
    """
    names: dict[str, str] = {}
    numbers: set[int] = set()
    for row, postings in moved:
        if row.job_id is not None:
            names[books.hold_account(row.job)] = _HOLD + row.job_id
        for posting in postings:
            for name in (posting.debit, posting.credit):
                if name.startswith(_GRANT):
                    numbers.add(int(name.removeprefix(_GRANT)))
    if numbers:
        for number, grant_id in await snapshot.rows(_grant_ids(account, sorted(numbers))):
            if grant_id is not None:
                names[books.grant_account(number)] = _GRANT + grant_id
    return names


def _grant_ids(account: int, numbers: list[int]) -> AnySelect:
    number = func.unnest(literal(numbers, ARRAY(BigInteger))).column_valued("wanted")
    grant_id = (
        select(schema.grants.c.grant_id)
        .where(schema.grants.c.account == account, schema.grants.c.number == number)
        .scalar_subquery()
    )
    return select(number, grant_id)
