"""Usage records: the requests that jobs served, one by one, within 400 days (contract R3, R6)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from sqlalchemy import BigInteger, ColumnElement, DateTime, literal, select, tuple_

from ledger import schema
from ledger.core.commands import Environment, JobStatus
from ledger.queries.jobs import JobFilter
from ledger.queries.paging import Cursors, Number, Page, PageRequest
from ledger.queries.snapshot import AccountAsked, AnySelect, Reading

KEPT: Final = timedelta(days=400)
"""How long a record is shown, whether or not the sweep has deleted it (R3, T1)."""

Instant = Annotated[datetime, Meta(tz=True)]


class UsageRecordView(msgspec.Struct, frozen=True, kw_only=True):
    """One request: what it was for, what it cost, and what the gateway told of it."""

    job_id: str
    environment: Environment
    operation: str
    status: JobStatus
    credits: int
    request_id: str | None
    status_code: int | None
    latency_ms: int | None
    key_prefix: str | None
    closed_at: datetime


_cursors: Final = Cursors("usage-records", tuple[Instant, Number])


async def records(
    reading: Reading, account_id: str, wanted: JobFilter, page: PageRequest
) -> Page[UsageRecordView] | None:
    """Return a page of an account's usage records, newest first; None where there is no such account.

    `start` and `end` of the filter bound when the job was closed, as [start, end).
    """
    async with reading.snapshot() as snapshot:
        account = await snapshot.account(account_id)
        if account is None:
            return None
        column = schema.usage_records.c
        statement = records_of(account.number).where(*_conditions(account, wanted))
        if (key := _cursors.read(account.number, page.cursor)) is not None:
            behind = tuple_(literal(key[0], DateTime(timezone=True)), literal(key[1], BigInteger))
            statement = statement.where(tuple_(column.closed_at, column.job) < behind)
        statement = statement.order_by(column.closed_at.desc(), column.job.desc())
        rows, following = await _cursors.page(
            snapshot, account.number, statement, page.limit, lambda row: (row.closed_at, row.job)
        )
        shown = [
            UsageRecordView(**{name: getattr(row, name) for name in UsageRecordView.__struct_fields__}) for row in rows
        ]
        return Page(shown, following)


def records_of(account: int) -> AnySelect:
    """Return the statement that reads usage records of an account, to be narrowed."""
    record, job = schema.usage_records, schema.jobs
    job_id = select(job.c.job_id).where(job.c.account == account, job.c.number == record.c.job).scalar_subquery()
    return select(record, job_id.label("job_id")).where(record.c.account == account)


def _conditions(account: AccountAsked, wanted: JobFilter) -> list[ColumnElement[bool]]:
    column = schema.usage_records.c
    conditions = [column.closed_at > account.now - KEPT]
    if wanted.environment is not None:
        conditions.append(column.environment == wanted.environment)
    if wanted.operation is not None:
        conditions.append(column.operation == wanted.operation)
    if wanted.status is not None:
        conditions.append(column.status == wanted.status)
    if wanted.start is not None:
        conditions.append(column.closed_at >= wanted.start)
    if wanted.end is not None:
        conditions.append(column.closed_at < wanted.end)
    return conditions
