"""Loading: lock the accounts of a batch and read all that its commands can touch (design: prefetch)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import asyncpg
import msgspec

from ledger.core import books
from ledger.core.account import (
    Account,
    Closing,
    Deletion,
    Grant,
    Job,
    Period,
    Policy,
    Quota,
    Segment,
    Source,
    StoredRefund,
)
from ledger.core.commands import (
    ENVIRONMENTS,
    ChargeFunding,
    ClosePeriod,
    Command,
    CycleDone,
    DeleteAccount,
    Environment,
    Funding,
    PutAccount,
    PutCycle,
    PutGrant,
    Refund,
    RefundDone,
    Release,
    Reserve,
    ReservedLine,
    Settle,
    SettledLine,
)
from ledger.core.periods import period_ended_by, period_of
from ledger.store import statements

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Row = asyncpg.Record

C = TypeVar("C")

DUE_HOLDS_MAX = 500
"""How many due holds of one account a batch ends at most; a longer backlog takes several batches."""

CALL_HORIZON = timedelta(seconds=30)
"""How far ahead deadlines of calls matter to anybody (Q4)."""

_decode_lines = msgspec.json.Decoder(tuple[ReservedLine, ...]).decode
_decode_settled = msgspec.json.Decoder(tuple[SettledLine, ...]).decode
_decode_sources = msgspec.json.Decoder(tuple[Source, ...]).decode
_decode_segments = msgspec.json.Decoder(tuple[Segment, ...]).decode


class Batch:
    """What a batch decides on: one instant, and the accounts it found, locked, by their outside name."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.locked_at = 0.0
        """When the locks were held, by `time.perf_counter`: how long was waited for them is worth knowing."""
        self.accounts: dict[str, Account] = {}
        self.backlog: dict[str, datetime] = {}
        """Accounts with more due holds than one batch ends: they can be brought up to this instant only."""


async def load(connection: Connection, commands: Sequence[Command], *, simulated_clock: bool) -> Batch:
    """Lock every account that the commands name, in the order of their numbers, and read what they can touch.

    Must run inside a transaction. The instant is read after the locks are held, once for the whole batch (T3).
    Accounts that `PutAccount` names are opened where they do not exist.
    """
    reader = _Reader(connection, simulated_clock)
    opened = await reader.open_accounts({c.account_id for c in commands if type(c) is PutAccount})
    numbers = await reader.lock({c.account_id for c in commands})
    locked_at = time.perf_counter()
    batch = await reader.accounts(numbers, opened)
    batch.locked_at = locked_at
    known = _Commands(c for c in commands if c.account_id in batch.accounts)
    if batch.accounts:
        await reader.jobs(batch, known)
        await reader.grants(batch, known)
        await reader.periods(batch, known)
        await reader.rarely_needed(batch, known)
    return batch


async def load_one(connection: Connection, account_id: str, *, simulated_clock: bool) -> Batch:
    """Read one account for a look at it: nothing is locked, and every due hold is read. For use in a snapshot."""
    rows = await connection.fetch("select account from ledger.accounts where account_id = $1", account_id)
    return await load_many(connection, [row["account"] for row in rows], simulated_clock=simulated_clock)


async def load_many(connection: Connection, numbers: list[int], *, simulated_clock: bool) -> Batch:
    """Do the same for accounts by their numbers; those without a name are left out."""
    reader = _Reader(connection, simulated_clock, due_max=None)
    batch = await reader.accounts(numbers, set())
    if batch.accounts:
        await reader.jobs(batch, _Commands())
        await reader.grants(batch, _Commands())
        await reader.periods(batch, _Commands())
        await reader.debts(batch)
    return batch


async def has_entries(connection: Connection, entries: Sequence[tuple[int, int, bytes]]) -> bool:
    """Return whether the journal has all of some entries: account, sequence and hash of each."""
    found = await connection.fetchval(statements.COUNT_ENTRIES, *_columns(entries, 3))
    return bool(found == len(entries))


class _Commands:
    """Commands by their kind: each kind needs other rows."""

    def __init__(self, commands: Iterable[Command] = ()) -> None:
        self._by_kind: dict[type, list[Any]] = {}
        for command in commands:
            self._by_kind.setdefault(type(command), []).append(command)

    def of(self, kind: type[C]) -> list[C]:
        """Return those of one kind."""
        return self._by_kind.get(kind, [])


class _Reader:
    """Reads rows into a batch's accounts, one kind of row a method."""

    def __init__(self, connection: Connection, simulated_clock: bool, due_max: int | None = DUE_HOLDS_MAX) -> None:
        self._connection = connection
        self._now = statements.SIMULATED_NOW if simulated_clock else statements.REAL_NOW
        self._due_max = due_max
        self._by_number: dict[int, Account] = {}
        self._jobs: dict[tuple[int, int], Job] = {}

    def _sql(self, statement: str) -> str:
        return statement.replace("{now}", self._now)

    async def open_accounts(self, account_ids: Collection[str]) -> set[int]:
        """Open the accounts that do not exist; return the numbers of those that are new."""
        if not account_ids:
            return set()
        head = bytes.fromhex(books.GENESIS_HASH)
        rows = await self._connection.fetch(self._sql(statements.OPEN_ACCOUNTS), sorted(account_ids), head)
        return {row["account"] for row in rows}

    async def lock(self, account_ids: Collection[str]) -> list[int]:
        """Lock the accounts that exist and return their numbers, ascending: everybody locks in this order."""
        rows = await self._connection.fetch(statements.LOCK_ACCOUNTS, sorted(account_ids))
        return [row["account"] for row in rows]

    async def accounts(self, numbers: list[int], opened: set[int]) -> Batch:
        rows = await self._connection.fetch(self._sql(statements.ACCOUNTS), numbers) if numbers else []
        now = rows[0]["now"] if rows else await self._connection.fetchval(self._sql(statements.CLOCK))
        batch = Batch(now)
        for row in rows:
            account = _account(row)
            account.is_new = account.number in opened
            account.periods = {month: Period(month) for month in (period_of(now), period_of(account.at))}
            batch.accounts[account.account_id] = self._by_number[account.number] = account
            self._take_grants(row["grants"])
            self._take_periods(row["periods"])
        return batch

    async def jobs(self, batch: Batch, commands: _Commands) -> None:
        """Read the jobs that commands name, by job or by key, and those whose deadline has passed."""
        named = _pairs(batch, commands, (Reserve, Settle, Release, Refund), "job_id")
        keyed = [
            (batch.accounts[c.account_id].number, c.environment, c.idempotency_key)
            for c in commands.of(Reserve)
            if c.idempotency_key is not None
        ]
        rows = await self._connection.fetch(
            statements.JOBS,
            *_columns(named, 2),
            *_columns(keyed, 3),
            list(self._by_number),
            batch.now,
            self._due_max,
        )
        for row in rows:
            self._take_job(row, batch)
        self._note_backlogs(batch)
        leaving = {batch.accounts[c.account_id].number for c in commands.of(DeleteAccount)}
        if leaving:
            for row in await self._connection.fetch(statements.OPEN_HOLDS, sorted(leaving), DUE_HOLDS_MAX):
                self._take_job(row, batch)

    def _take_job(self, row: Row, batch: Batch) -> Job:
        key = (row["account"], row["number"])
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _job(row)
        account = self._by_number[key[0]]
        account.jobs[job.job_id] = job
        if job.idempotency_key is not None:
            account.keys[job.environment, job.idempotency_key] = job
        if job.open and job.expires_at <= batch.now:
            account.due[job.number] = job
        return job

    def _note_backlogs(self, batch: Batch) -> None:
        """Note the accounts with more due holds than were read, and the deadline up to which all of them were.

        A job that a command names may be due later than that: it waits for the next batch like the rest.
        """
        if self._due_max is None:
            return
        for account in batch.accounts.values():
            if len(account.due) >= self._due_max:
                deadlines = sorted(job.expires_at for job in account.due.values())
                batch.backlog[account.account_id] = deadlines[self._due_max - 1]

    async def grants(self, batch: Batch, commands: _Commands) -> None:
        """Read grants that are no longer live: those that commands name, and those that paid what is refunded."""
        named = _pairs(batch, commands, (PutGrant,), "grant_id")
        if named:
            self._take_grants(await self._connection.fetch(statements.GRANTS_BY_ID, *_columns(named, 2)))
        sources = {
            (account.number, segment.source)
            for account, job in self._named_jobs(batch, commands, Refund)
            for segment in job.segments
            if segment.source > 0 and segment.source not in account.grants
        }
        if sources:
            rows = await self._connection.fetch(statements.GRANTS_BY_NUMBER, *_columns(sorted(sources), 2))
            self._take_grants(rows)

    def _take_grants(self, rows: Iterable[Row]) -> None:
        """Take rows of an account's number and all that a `Grant` has, in its order."""
        for number, *values in rows:
            account = self._by_number[number]
            grant = Grant(*values)
            if grant.number not in account.grants:
                account.grants[grant.number] = account.grants_by_id[grant.grant_id] = grant

    async def periods(self, batch: Batch, commands: _Commands) -> None:
        """Read every further month that a decision can count in: those of jobs, those ended with a grant."""
        months = {job.period for job in self._jobs.values()}
        months |= {c.period for c in commands.of(ClosePeriod)}
        leaving = [batch.accounts[c.account_id].number for c in commands.of(DeleteAccount)]
        if leaving:
            rows = await self._connection.fetch(statements.UNCLOSED_MONTHS, leaving)
            months |= {row["period"] for row in rows}
        months |= {period_of(job.expires_at) for job in self._jobs.values() if job.open}
        for account in batch.accounts.values():
            months |= {
                period_ended_by(g.expires_at)
                for g in account.grants.values()
                if g.expires_at is not None and g.ended(batch.now)
            }
        missing = [a.number for a in batch.accounts.values() if not months <= a.periods.keys()]
        if missing:
            for number in missing:
                periods = self._by_number[number].periods
                periods.update({month: Period(month) for month in months - periods.keys()})
            self._take_periods(await self._connection.fetch(statements.PERIODS, missing, sorted(months)))

    def _take_periods(self, rows: Iterable[Row]) -> None:
        """Take rows of an account's number and all that a `Period` has, in its order."""
        for number, *values in rows:
            account = self._by_number[number]
            period = Period(*values)
            account.periods[period.period] = period
            account.stored_periods.add(period.period)

    async def rarely_needed(self, batch: Batch, commands: _Commands) -> None:
        """Read what few batches need, each kind only where a command asks for it."""
        await self._settled_lines(batch, commands)
        await self._refunds(batch, commands)
        await self._cycles(batch, commands)
        await self._call_deadlines(batch, commands)
        await self.debts(batch)

    async def _settled_lines(self, batch: Batch, commands: _Commands) -> None:
        wanted = {
            (account.number, job.number): job
            for account, job in self._named_jobs(batch, commands, Settle)
            if job.status == "settled"
        }
        if wanted:
            rows = await self._connection.fetch(statements.RESULT_LINES, *_columns(list(wanted), 2))
            for row in rows:
                wanted[row["account"], row["job"]].settled_lines = _decode_settled(row["lines"])

    def _named_jobs(
        self, batch: Batch, commands: _Commands, kind: type[Settle | Refund]
    ) -> Iterator[tuple[Account, Job]]:
        """Go through the jobs that exist of those that commands of one kind name."""
        for command in commands.of(kind):
            account = batch.accounts[command.account_id]
            job = account.jobs.get(command.job_id)
            if job is not None:
                yield account, job

    async def _refunds(self, batch: Batch, commands: _Commands) -> None:
        named = _pairs(batch, commands, (Refund,), "refund_id")
        if named:
            for row in await self._connection.fetch(statements.REFUNDS, *_columns(named, 2)):
                self._by_number[row["account"]].refunds[row["refund_id"]] = _refund(row)

    async def _cycles(self, batch: Batch, commands: _Commands) -> None:
        numbers = {batch.accounts[c.account_id].number for c in commands.of(PutCycle)}
        if numbers:
            for row in await self._connection.fetch(statements.CYCLES, sorted(numbers)):
                cycle = CycleDone(cycle=row["month"], status=row["status"], updated_at=row["updated_at"])
                self._by_number[row["account"]].cycles[cycle.cycle] = cycle

    async def _call_deadlines(self, batch: Batch, commands: _Commands) -> None:
        """Read when open calls end, where the batch could find all their slots taken (Q4)."""
        reserves: dict[tuple[str, Environment], int] = {}
        for command in commands.of(Reserve):
            key = (command.account_id, command.environment)
            reserves[key] = reserves.get(key, 0) + 1
        numbers = set()
        for (account_id, environment), count in reserves.items():
            account = batch.accounts[account_id]
            quota = account.policy.quotas.get(environment)
            taken = account.open_slots.get((environment, "call"), 0)
            if quota is not None and taken and taken + count > quota.max_calls:
                numbers.add(account.number)
        if numbers:
            rows = await self._connection.fetch(statements.CALL_DEADLINES, sorted(numbers), batch.now + CALL_HORIZON)
            for row in rows:
                account = self._by_number[row["account"]]
                account.call_deadlines.setdefault(row["environment"], {})[row["job"]] = row["expires_at"]

    async def debts(self, batch: Batch) -> None:
        """Read the charges that nobody has paid yet, oldest first, of accounts with an overdraft (J12)."""
        indebted = [account.number for account in batch.accounts.values() if account.overdraft]
        if indebted:
            for row in await self._connection.fetch(statements.DEBTS, indebted):
                job = self._take_job(row, batch)
                self._by_number[row["account"]].debts[job.number] = job


def _pairs(batch: Batch, commands: _Commands, kinds: tuple[type[Any], ...], field: str) -> list[tuple[int, str]]:
    """Return (account number, named thing) for every command of some kinds."""
    return [
        (batch.accounts[command.account_id].number, getattr(command, field))
        for kind in kinds
        for command in commands.of(kind)
    ]


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


# -- rows into the core's words ------------------------------------------------------------------------------------


def _account(row: Row) -> Account:
    return Account(
        number=row["account"],
        account_id=row["account_id"],
        created_at=row["created_at"],
        at=row["at"],
        policy=Policy(
            module_enabled=row["module_enabled"],
            suspended=row["suspended"],
            payment_method_verified=row["payment_method_verified"],
            overage_enabled=row["overage_enabled"],
            cap_usd=row["cap_usd"],
            credit_price_usd=row["credit_price_usd"],
            quotas={e: quota for e in ENVIRONMENTS if (quota := _quota(row, e)) is not None},
        ),
        paid_cycles=row["paid_cycles"],
        welcome_at=row["welcome_at"],
        closed_through=row["closed_through"],
        deletion=_deletion(row),
        last_grant=row["last_grant"],
        exhausted_after=row["exhausted_after"],
        sequence=row["sequence"],
        head=row["head"].hex(),
        available=row["available"],
        held=row["held"],
        overdraft=row["overdraft"],
        open_slots={
            ("live", "request"): row["live_requests"],
            ("live", "call"): row["live_calls"],
            ("test", "request"): row["test_requests"],
            ("test", "call"): row["test_calls"],
        },
    )


def _deletion(row: Row) -> Deletion | None:
    if row["deletion_code"] is None:
        return None
    return Deletion(
        confirmation_code=row["deletion_code"],
        status=row["deletion_status"],
        requested_at=row["deletion_requested_at"],
        executes_at=row["deletion_executes_at"],
    )


def _quota(row: Row, environment: Environment) -> Quota | None:
    if row[f"{environment}_max_requests"] is None:
        return None
    return Quota(
        max_requests=row[f"{environment}_max_requests"],
        max_calls=row[f"{environment}_max_calls"],
        period_credits=row[f"{environment}_period_credits"],
    )


def _job(row: Row) -> Job:
    held, overage = row["held_credits"], row["held_overage"]
    return Job(
        number=row["number"],
        job_id=row["job_id"],
        environment=row["environment"],
        operation=row["operation"],
        slot=row["slot"],
        period=row["period"],
        price_version=row["price_version"],
        lines=_decode_lines(row["lines"]),
        transfer_allowance=row["transfer_allowance"],
        held_credits=held,
        partial=row["partial"],
        funding=Funding(held - overage, overage),
        sources=_decode_sources(row["sources"]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        request=row["request"],
        idempotency_key=row["idempotency_key"],
        metadata=None if row["metadata"] is None else row["metadata"].encode(),
        status=row["status"],
        closing=None if row["closed_at"] is None else _closing(row),
        segments=_decode_segments(row["segments"]) if row["segments"] else (),
        refunded=row["refunded"],
    )


def _closing(row: Row) -> Closing:
    charged, overage, overdraft = row["charged"], row["charged_overage"], row["charged_overdraft"]
    return Closing(
        entry=row["closed_entry"],
        at=row["closed_at"],
        charged=charged,
        returned=row["returned"],
        over_hold=row["over_hold"],
        funding=ChargeFunding(charged - overage - overdraft, overage, overdraft),
        error_code=row["error_code"],
        request=row["settle_request"],
        result_stored=row["result_stored"],
    )


def _refund(row: Row) -> StoredRefund:
    credits, to_overage, to_overdraft = row["credits"], row["to_overage"], row["to_overdraft"]
    done = RefundDone(
        refund_id=row["refund_id"],
        job_id=row["job_id"],
        credits=credits,
        credits_refunded=row["credits_refunded"],
        funding=ChargeFunding(credits - to_overage - to_overdraft, to_overage, to_overdraft),
        created_at=row["created_at"],
    )
    return StoredRefund(number=row["job"], entry=row["entry"], done=done, reason=row["reason"])
