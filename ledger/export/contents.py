"""What can be exported. Rows are those of the HTTP interface, with the account before them; usage is in `focus`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from typing import Final, get_type_hints

import msgspec
from sqlalchemy import BigInteger, DateTime, literal, tuple_

from ledger import schema
from ledger.core.periods import period_end, period_start
from ledger.export import focus
from ledger.export.columns import PAGE_ROWS, AccountNamed, Column, Content, Kind, Part, Row
from ledger.queries.closing import statement_of_deleted
from ledger.queries.journal import EntryView, PostingView, entries_of, entry_views
from ledger.queries.records import KEPT, UsageRecordView, records_of
from ledger.queries.snapshot import Snapshot
from ledger.queries.statements import Statement, statement_in

ACCOUNT: Final = Column("account_id")


def _columns(view: type[msgspec.Struct], *left_out: str) -> tuple[Column, ...]:
    """Return the columns of a view's flat fields, by the types that they have."""
    hints = get_type_hints(view)
    names = (name for name in view.__struct_fields__ if name not in left_out)
    return tuple(Column(name, _kind(hints[name])) for name in names)


def _kind(hint: object) -> Kind:
    if hint is int or hint == int | None:
        return "integer"
    return "instant" if hint is datetime else "text"


# -- usage records -------------------------------------------------------------------------------------------------

_RECORD: Final = _columns(UsageRecordView)


async def _records(snapshot: Snapshot, account: AccountNamed, period: str) -> AsyncIterator[Part]:
    """Give the requests whose jobs closed in the month, oldest first, within 400 days (R3)."""
    start, end = period_start(period), period_end(period)
    column = schema.usage_records.c
    wanted = records_of(account.number).where(
        column.closed_at >= start, column.closed_at < end, column.closed_at > account.now - KEPT
    )
    page = wanted.order_by(column.closed_at, column.job).limit(PAGE_ROWS)
    rows = await snapshot.rows(page)
    while rows:
        last = rows[-1]
        done = (last.closed_at - start) / (end - start)
        yield Part([(account.shown, *(getattr(row, each.name) for each in _RECORD)) for row in rows], done)
        behind = tuple_(literal(last.closed_at, DateTime(timezone=True)), literal(last.job, BigInteger))
        rows = await snapshot.rows(page.where(tuple_(column.closed_at, column.job) > behind))


# -- the journal ---------------------------------------------------------------------------------------------------

_ENTRY: Final = _columns(EntryView, "postings", "canonical")
_POSTING: Final = _columns(PostingView)


async def _entries(snapshot: Snapshot, account: AccountNamed, period: str) -> AsyncIterator[Part]:
    """Give the entries of the month, oldest first, a row for each posting."""
    column = schema.entries.c
    first = await snapshot.entries_before(account.number, period_start(period))
    last = await snapshot.entries_before(account.number, period_end(period))
    after = first
    while after < last:
        upto = min(after + PAGE_ROWS, last)
        page = entries_of(account.number).where(column.sequence > after, column.sequence <= upto)
        rows = await snapshot.rows(page.order_by(column.sequence))
        views = await entry_views(snapshot, account.number, rows)
        after = upto
        yield Part([row for view in views for row in _postings(account, view)], (after - first) / (last - first))


def _postings(account: AccountNamed, view: EntryView) -> Iterator[Row]:
    entry = (account.shown, *(getattr(view, each.name) for each in _ENTRY))
    for posting in view.postings:
        yield (*entry, *(getattr(posting, each.name) for each in _POSTING))


# -- statements ----------------------------------------------------------------------------------------------------

_STATEMENT: Final = _columns(Statement, "overage", "overdraft", "charges")
_OVERAGE: Final = (Column("overage_credits", "integer"), Column("overage_usd"), Column("overdraft", "integer"))


async def _statements(snapshot: Snapshot, account: AccountNamed, period: str) -> AsyncIterator[Part]:
    """Give the statement of the month: one row. What it charged, by operation, is in the usage of the month."""
    if account.account_id is None:
        shown: Statement | None = await statement_of_deleted(snapshot, account.number, period)
    else:
        shown = await statement_in(snapshot, account.account_id, period)
    assert shown is not None, "the account is in the snapshot"
    figures = (getattr(shown, each.name) for each in _STATEMENT)
    yield Part([(account.shown, *figures, shown.overage.credits, shown.overage.usd, shown.overdraft)])


CONTENTS: Final[Mapping[str, Content]] = {
    "usage": focus.USAGE,
    "records": Content((ACCOUNT, *_RECORD), _records),
    "entries": Content((ACCOUNT, *_ENTRY, *_POSTING), _entries),
    "statements": Content((ACCOUNT, *_STATEMENT, *_OVERAGE), _statements),
}
"""What can be exported, by its name."""
