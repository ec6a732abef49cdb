"""Jobs, one and many, as time has decided them (contract J5, J9, J11, R1, R8, T1)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import ColumnElement, and_, func, or_, select

from ledger import schema
from ledger.core.account import RESULT_KEPT
from ledger.core.closing import usage_of
from ledger.core.commands import Environment, Funding, JobStatus, Reservation, ReservedLine, SettledLine, Usage
from ledger.queries.journal import EntryView, entries_of, entry_views
from ledger.queries.paging import Cursors, Number, Page, PageRequest
from ledger.queries.snapshot import AccountAsked, AnyRow, AnySelect, Reading, Snapshot

ResultState = Literal["pending", "available", "expired", "not_stored", "unavailable"]

JOB_EXPIRED: Final = "job_not_completed"
"""The error code of a job that outlived its deadline (V2)."""

_decode_lines: Final = msgspec.json.Decoder(tuple[ReservedLine, ...]).decode
_decode_settled: Final = msgspec.json.Decoder(tuple[SettledLine, ...]).decode


class JobView(Reservation, frozen=True, kw_only=True):
    """A job: its reservation, what became of it, and its entries in the journal.

    `usage` and `settled_lines` are None before it settles and 24 hours after (R1); `credits_charged` is None while
    it is open and stays for ever (J9). A list leaves `result` and `entries` out.
    """

    usage: Usage | None
    settled_lines: tuple[SettledLine, ...] | None
    credits_charged: int | None
    credits_refunded: int
    result_state: ResultState
    result: msgspec.Raw | UnsetType | None = UNSET
    error_code: str | None
    metadata: msgspec.Raw | None
    entries: list[EntryView] | UnsetType = UNSET
    settled_at: datetime | UnsetType = UNSET
    released_at: datetime | UnsetType = UNSET
    expired_at: datetime | UnsetType = UNSET
    replayed: bool | UnsetType = UNSET


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs are asked for; `start` and `end` bound when they were reserved, as [start, end)."""

    environment: Environment | None = None
    status: JobStatus | None = None
    operation: str | None = None
    start: datetime | None = None
    end: datetime | None = None


_cursors: Final = Cursors("jobs", tuple[Number])


async def job(reading: Reading, account_id: str, job_id: str, environment: Environment | None = None) -> JobView | None:
    """Return one job, or None where the account has none of that name, or not in that environment (J11)."""
    async with reading.snapshot() as snapshot:
        account = await snapshot.account(account_id)
        if account is None:
            return None
        jobs = schema.jobs
        statement = _jobs_of(account.number).where(jobs.c.job_id == job_id)
        statement = statement.add_columns(_kept(account.number, schema.job_results.c.result))
        statement = statement.add_columns(_refund_entries(account.number))
        row = await snapshot.first(statement)
        if row is None or environment not in (None, row.environment):
            return None
        view = _view(row, account_id, account.now)
        result = row.result if view.result_state == "available" else None
        return msgspec.structs.replace(view, result=_raw(result), entries=await _entries(snapshot, account.number, row))


async def jobs(reading: Reading, account_id: str, wanted: JobFilter, page: PageRequest) -> Page[JobView] | None:
    """Return a page of an account's jobs, newest first; None where there is no such account."""
    async with reading.snapshot() as snapshot:
        account = await snapshot.account(account_id)
        if account is None:
            return None
        statement = _jobs_of(account.number).where(*await _conditions(snapshot, account, wanted))
        if (key := _cursors.read(account.number, page.cursor)) is not None:
            statement = statement.where(schema.jobs.c.number < key[0])
        statement = statement.order_by(schema.jobs.c.number.desc())
        rows, following = await _cursors.page(
            snapshot, account.number, statement, page.limit, lambda row: (row.number,)
        )
        return Page([_view(row, account_id, account.now) for row in rows], following)


async def _conditions(snapshot: Snapshot, account: AccountAsked, wanted: JobFilter) -> list[ColumnElement[bool]]:
    """Return what narrows a list. Jobs are numbered by the entries that reserved them, so instants become numbers."""
    column = schema.jobs.c
    conditions: list[ColumnElement[bool]] = []
    if wanted.environment is not None:
        conditions.append(column.environment == wanted.environment)
    if wanted.operation is not None:
        conditions.append(column.operation == wanted.operation)
    if wanted.status is not None:
        conditions.append(_has_status(account, wanted.status))
    if wanted.start is not None:
        conditions.append(column.number > await snapshot.entries_before(account.number, wanted.start))
    if wanted.end is not None:
        conditions.append(column.number <= await snapshot.entries_before(account.number, wanted.end))
    return conditions


def _has_status(account: AccountAsked, status: JobStatus) -> ColumnElement[bool]:
    """Return the condition of a status as time has decided it (T1). Open jobs are found by their holds."""
    column, hold = schema.jobs.c, schema.holds.c
    if status == "reserved":
        still_open = select(hold.job).where(hold.account == account.number, hold.expires_at > account.now)
        return column.number.in_(still_open)
    if status == "expired":
        return or_(column.status == "expired", and_(column.status == "reserved", column.expires_at <= account.now))
    return column.status == status


def _jobs_of(account: int) -> AnySelect:
    """Return the statement that reads jobs of an account, to be narrowed: each with what is kept of its lines."""
    column = schema.jobs.c
    return select(
        column.number,
        column.job_id,
        column.environment,
        column.operation,
        column.period,
        column.price_version,
        column.lines,
        column.transfer_allowance,
        column.held_credits,
        column.held_overage,
        column.partial,
        column.created_at,
        column.expires_at,
        column.metadata,
        column.status,
        column.closed_at,
        column.closed_entry,
        column.charged,
        column.error_code,
        column.result_stored,
        column.refunded,
        _kept(account, schema.job_results.c.lines, "settled_lines"),
    ).where(column.account == account)


def _kept(account: int, what: ColumnElement[Any], label: str = "result") -> ColumnElement[Any]:
    results = schema.job_results
    return (
        select(what)
        .where(results.c.account == account, results.c.job == schema.jobs.c.number)
        .scalar_subquery()
        .label(label)
    )


def _refund_entries(account: int) -> ColumnElement[Any]:
    refunds = schema.refunds
    return (
        select(func.array_agg(refunds.c.entry))
        .where(refunds.c.account == account, refunds.c.job == schema.jobs.c.number)
        .scalar_subquery()
        .label("refund_entries")
    )


async def _entries(snapshot: Snapshot, account: int, row: AnyRow) -> list[EntryView]:
    """Return a job's entries: the one that reserved it, the one that closed it, its refunds."""
    closed = [] if row.closed_entry is None else [row.closed_entry]
    sequences = [row.number, *closed, *(row.refund_entries or ())]
    sequence = schema.entries.c.sequence
    statement = entries_of(account).where(sequence.in_(sequences)).order_by(sequence)
    return await entry_views(snapshot, account, await snapshot.rows(statement))


def _view(row: AnyRow, account_id: str, now: datetime) -> JobView:
    status, closed_at = _status(row, now)
    settled = status == "settled"
    kept = settled and closed_at is not None and now < closed_at + RESULT_KEPT
    lines = _decode_settled(row.settled_lines) if kept and row.settled_lines is not None else None
    reserved = _decode_lines(row.lines)
    return JobView(
        job_id=row.job_id,
        account_id=account_id,
        environment=row.environment,
        operation=row.operation,
        status=status,
        period=row.period,
        price_version=row.price_version,
        lines=reserved,
        transfer_allowance=row.transfer_allowance,
        held_credits=row.held_credits,
        partial=row.partial,
        funding=Funding(row.held_credits - row.held_overage, row.held_overage),
        created_at=row.created_at,
        expires_at=row.expires_at,
        usage=usage_of(row.operation, reserved[0].unit, lines),
        settled_lines=lines,
        credits_charged=None if closed_at is None else row.charged or 0,
        credits_refunded=row.refunded,
        result_state=_result_state(status, stored=bool(row.result_stored), kept=kept),
        error_code=JOB_EXPIRED if status == "expired" else row.error_code,
        metadata=_raw(row.metadata),
        settled_at=_when(closed_at, settled),
        released_at=_when(closed_at, status == "released"),
        expired_at=_when(closed_at, status == "expired"),
    )


def _status(row: AnyRow, now: datetime) -> tuple[JobStatus, datetime | None]:
    """Return a job's status and when it was closed: an open one whose deadline has passed expired then (T1)."""
    if row.status == "reserved" and row.expires_at <= now:
        return "expired", row.expires_at
    return row.status, row.closed_at


def _result_state(status: JobStatus, *, stored: bool, kept: bool) -> ResultState:
    """Return what became of a job's result (R8, J10)."""
    if status == "reserved":
        return "pending"
    if status != "settled":
        return "unavailable"
    if not stored:
        return "not_stored"
    return "available" if kept else "expired"


def _when(instant: datetime | None, so: bool) -> datetime | UnsetType:
    return instant if so and instant is not None else UNSET


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())
