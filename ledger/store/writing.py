"""Writing: everything that the decisions of a batch changed, in a handful of set-based statements (design: write)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import date
from typing import Any

import msgspec

from ledger.core.account import Account, Deletion, Event, Grant, Job
from ledger.store import statements
from ledger.store.loading import Connection

Rows = list[tuple[Any, ...]]


async def write(connection: Connection, accounts: Iterable[Account], prices: dict[str, str]) -> None:
    """Write what changed in the accounts of a batch, inside the transaction that holds their locks.

    `prices` are digests of catalog versions, by name, that the batch's reservations were the first to use (P9).
    The order matters: a key is freed before another job takes it (J10), a job is opened before it is closed, a name
    goes after what is found by it, and events are written last. Everything else is one statement.
    """
    changed = list(accounts)
    await _use_prices(connection, _prices(changed, prices))
    await _run(connection, statements.FREE_KEYS, _freed_keys(changed))
    opened = _opened_jobs(changed)
    if any(a.changes.jobs_opened.keys() & a.changes.jobs_closed.keys() for a in changed):
        await _run_together(connection, (statements.OPEN_JOBS, opened))
        opened = []
    await _run_together(
        connection,
        (statements.OPEN_JOBS, opened),
        (statements.CLOSE_JOBS, _closed_jobs(changed)),
        (statements.RESEGMENT_JOBS, _resegmented_jobs(changed)),
        (statements.ADD_GRANTS, _new_grants(changed)),
        (statements.CHANGE_GRANTS, _changed_grants(changed)),
        (statements.BEGIN_PERIODS, _new_periods(changed)),
        (statements.CHANGE_PERIODS, _changed_periods(changed)),
        (statements.ENTER, _entries(changed)),
        (statements.POST, _postings(changed)),
        (statements.WRITE_BALANCES, _balances(changed)),
        (statements.ADD_USAGE, _usage(changed)),
        (statements.ADD_REFUNDS, _refunds(changed)),
        (statements.WRITE_CYCLES, _cycles(changed)),
        (statements.WRITE_POLICIES, _policies(changed)),
        (statements.ADD_STATEMENTS, _statements(changed)),
    )
    await _write_quotas(connection, changed)
    await _for_each(connection, statements.ANONYMISE, [a.number for a in changed if a.changes.anonymised])
    await _write_events(connection, changed)


async def _run(connection: Connection, statement: str, rows: Rows) -> None:
    """Run a statement for some rows, unless there are none."""
    if rows:
        await connection.execute(statement, rows)


async def _run_together(connection: Connection, *parts: tuple[str, Rows]) -> None:
    """Run the parts that there are rows for, in one round trip."""
    needed = [(part, rows) for part, rows in parts if rows]
    if needed:
        statement = statements.together(tuple(part for part, _ in needed))
        await connection.execute(statement, *(rows for _, rows in needed))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _entries(accounts: list[Account]) -> Rows:
    return [
        (e.account, e.sequence, e.kind, e.job, e.at, len(e.postings), bytes.fromhex(e.hash))
        for a in accounts
        for e in a.changes.entries
    ]


def _postings(accounts: list[Account]) -> Rows:
    return [
        (e.account, e.sequence, position, p.debit, p.credit, p.credits, p.operation, p.quantity)
        for a in accounts
        for e in a.changes.entries
        for position, p in enumerate(e.postings, start=1)
    ]


class PricesDiffer(RuntimeError):
    """A catalog version was used by another replica with other prices (P9)."""


async def _use_prices(connection: Connection, rows: Rows) -> None:
    """Note the catalog versions that are used for the first time; raise `PricesDiffer` if they were not the same."""
    if rows:
        await connection.execute(statements.USE_PRICES, rows)
        for row in await connection.fetch(statements.DIFFERENT_PRICES, rows):
            raise PricesDiffer(f"version {row['version']} was used with other prices")


async def _for_each(connection: Connection, commands: tuple[str, ...], numbers: list[int]) -> None:
    if numbers:
        for command in commands:
            await connection.execute(command, numbers)


async def _write_events(connection: Connection, accounts: list[Account]) -> None:
    """Write what is to be told, last of all: events are in the order in which they are committed."""
    rows: Rows = [
        (a.number, _event_id(a.number, e), e.once, e.type, e.environment, e.at, _json(e.data))
        for a in accounts
        for e in a.changes.events
        if not (a.changes.anonymised and e.type == "job.expired")
    ]
    if rows:
        await connection.execute(statements.LOCK_EVENTS)
        await _run(connection, statements.ADD_EVENTS, rows)


def _event_id(account: int, event: Event) -> str:
    """Return an event's id, which says nothing and follows from all that the event says.

    So the same thing told twice has one id, and a ledger that was restored to an earlier instant, where our numbers
    come again for other things, never gives two events the same (V3).
    """
    told = (account, event.once, event.type, event.environment, event.at, event.data)
    return "evt_" + hashlib.sha256(_json(told).encode()).hexdigest()[:32]


async def _write_quotas(connection: Connection, accounts: list[Account]) -> None:
    changed = [a for a in accounts if a.changes.policy]
    if not changed:
        return
    await connection.execute(statements.DROP_QUOTAS, [a.number for a in changed])
    rows: Rows = [
        (a.number, environment, quota.max_requests, quota.max_calls, quota.period_credits)
        for a in changed
        for environment, quota in a.policy.quotas.items()
    ]
    await _run(connection, statements.WRITE_QUOTAS, rows)


def _prices(accounts: list[Account], prices: dict[str, str]) -> Rows:
    opened = [job for a in accounts for job in a.changes.jobs_opened.values() if job.price_version in prices]
    first: dict[str, Job] = {}
    for job in opened:
        first.setdefault(job.price_version, job)
    return [(version, prices[version], job.created_at) for version, job in first.items()]


def _freed_keys(accounts: list[Account]) -> Rows:
    return [(a.number, job) for a in accounts for job in a.changes.freed_keys]


def _opened_jobs(accounts: list[Account]) -> Rows:
    return [
        (
            a.number,
            job.number,
            job.job_id,
            job.environment,
            job.operation,
            job.slot,
            job.period,
            job.price_version,
            _json(job.lines),
            job.transfer_allowance,
            job.held_credits,
            job.funding.overage,
            job.partial,
            _json(job.sources),
            job.created_at,
            job.expires_at,
            job.request,
            job.idempotency_key,
            _text(job.metadata),
            job.open,
        )
        for a in accounts
        for job in a.changes.jobs_opened.values()
    ]


def _closed_jobs(accounts: list[Account]) -> Rows:
    rows: Rows = []
    for a in accounts:
        for job in a.changes.jobs_closed.values():
            closing = job.closing
            assert closing is not None
            rows.append(
                (
                    a.number,
                    job.number,
                    job.expires_at,
                    job.status,
                    closing.at,
                    closing.entry,
                    closing.charged,
                    closing.returned,
                    closing.over_hold,
                    closing.funding.overage,
                    closing.funding.overdraft,
                    closing.error_code,
                    closing.request,
                    closing.result_stored,
                    _json(job.segments),
                    job.overdraft,
                    job.refunded,
                    job.environment,
                    job.operation,
                    None if job.settled_lines is None else _json(job.settled_lines),
                    _text(closing.result),
                    *msgspec.structs.astuple(closing.record),
                )
            )
    return rows


def _resegmented_jobs(accounts: list[Account]) -> Rows:
    return [
        (a.number, number, _json(job.segments), job.overdraft, job.refunded)
        for a in accounts
        for number, job in a.changes.jobs_resegmented.items()
        if number not in a.changes.jobs_closed
    ]


def _is_new(account: Account, grant: Grant) -> bool:
    """Whether this batch put the grant: its number is that of one of the batch's own entries."""
    return bool(account.changes.entries) and grant.number >= account.changes.entries[0].sequence


def _new_grants(accounts: list[Account]) -> Rows:
    return [
        (
            a.number,
            g.number,
            g.grant_id,
            g.kind,
            g.granted,
            g.remaining,
            g.held,
            g.live,
            g.expires_at,
            g.reference,
            g.created_at,
            g.request,
        )
        for a in accounts
        for g in a.changes.grants.values()
        if _is_new(a, g)
    ]


def _changed_grants(accounts: list[Account]) -> Rows:
    return [
        (a.number, g.number, g.remaining, g.held, g.live)
        for a in accounts
        for g in a.changes.grants.values()
        if not _is_new(a, g)
    ]


def _balances(accounts: list[Account]) -> Rows:
    return [
        (
            a.number,
            a.sequence,
            bytes.fromhex(a.head),
            a.entered_at,
            a.available,
            a.held,
            a.overdraft,
            a.open_slots.get(("live", "request"), 0),
            a.open_slots.get(("live", "call"), 0),
            a.open_slots.get(("test", "request"), 0),
            a.open_slots.get(("test", "call"), 0),
            a.last_grant,
            a.exhausted_after,
        )
        for a in accounts
        if a.changes.entries or a.changes.balance
    ]


def _changed_periods(accounts: list[Account]) -> Rows:
    return [_period(a, period) for a in accounts for period in a.changes.periods if period in a.stored_periods]


def _new_periods(accounts: list[Account]) -> Rows:
    return [_period(a, period) for a in accounts for period in a.changes.periods if period not in a.stored_periods]


def _period(account: Account, period: str) -> tuple[Any, ...]:
    return (account.number, *msgspec.structs.astuple(account.peek(period)))


def _usage(accounts: list[Account]) -> Rows:
    return [
        (
            a.number,
            key.period,
            date.fromisoformat(key.day),
            key.environment,
            key.operation,
            *msgspec.structs.astuple(count),
        )
        for a in accounts
        for key, count in a.changes.usage.items()
    ]


def _refunds(accounts: list[Account]) -> Rows:
    return [
        (
            a.number,
            r.done.refund_id,
            r.number,
            r.entry,
            r.done.credits,
            r.done.credits_refunded,
            r.done.funding.overage,
            r.done.funding.overdraft,
            r.reason,
            r.done.created_at,
        )
        for a in accounts
        for r in a.changes.refunds
    ]


def _cycles(accounts: list[Account]) -> Rows:
    return [(a.number, c.cycle, c.status, c.updated_at) for a in accounts for c in a.changes.cycles.values()]


def _statements(accounts: list[Account]) -> Rows:
    return [
        (a.number, s.period, s.text.decode(), a.peek(s.period).closed_at)
        for a in accounts
        for s in a.changes.statements
    ]


def _deletion(deletion: Deletion) -> tuple[Any, ...]:
    return (deletion.confirmation_code, deletion.status, deletion.requested_at, deletion.executes_at)


def _policies(accounts: list[Account]) -> Rows:
    return [
        (
            a.number,
            a.policy.module_enabled,
            a.policy.suspended,
            a.policy.payment_method_verified,
            a.policy.overage_enabled,
            a.policy.cap_usd,
            a.policy.credit_price_usd,
            a.paid_cycles,
            a.welcome_at,
            a.closed_through,
            *(_deletion(a.deletion) if a.deletion else (None, None, None, None)),
        )
        for a in accounts
        if a.changes.policy
    ]
