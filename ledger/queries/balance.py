"""The balance of an account: now, as time has left it, and as it was at an instant (contract A7, T1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, func, or_, select, union_all

from ledger import schema
from ledger.core import books
from ledger.core.account import FROM_OVERAGE, Account, Grant, Quota, Source
from ledger.core.books import Posting
from ledger.core.commands import ENVIRONMENTS, Environment, GrantKind
from ledger.core.overage import usd_text
from ledger.core.periods import period_end, period_of, period_start
from ledger.queries.accounts import stored_grant
from ledger.queries.snapshot import AnySelect, NotYet, Reading, Snapshot
from pricing.catalog import Slot

HOLD_MAX: Final = timedelta(days=1)
"""How long a hold can last (`ttl_seconds`): what was open at an instant was reserved within this time before."""

INSTANT: Final = timedelta(microseconds=1)
"""The smallest step of time."""

_GRANT: Final = books.grant_account(0).removesuffix("0")
_decode_sources: Final = msgspec.json.Decoder(tuple[Source, ...]).decode


class GrantBalance(msgspec.Struct, frozen=True):
    """What is left of a grant, and what is held of it."""

    grant_id: str
    kind: GrantKind
    granted: int
    remaining: int
    held: int
    expires_at: datetime | None


class OverageBalance(msgspec.Struct, frozen=True):
    """The overage of the month: what is used and held of the cap, in credits."""

    usable: bool
    used: int
    held: int
    cap_usd: str
    cap_credits: int | None


class EnvironmentBalance(msgspec.Struct, frozen=True):
    """What an environment has used and holds of its ceilings (Q3, Q4)."""

    period_credits: int | None
    used: int
    held: int
    remaining: int | None
    open_requests: int
    open_calls: int
    max_requests: int
    max_calls: int


class BalanceView(msgspec.Struct, frozen=True):
    """The balance of an account at an instant."""

    account_id: str
    at: datetime
    period: str
    period_ends_at: datetime
    available: int
    held: int
    overdraft: int
    grants: list[GrantBalance]
    overage: OverageBalance
    environments: dict[Environment, EnvironmentBalance]
    """Those with a quota row; without one an environment cannot be used (Q1)."""


class _Totals(msgspec.Struct):
    """The figures of a balance, however they were come by. `used` and `held_in` are by environment, of the month."""

    grants: list[Grant]
    overdraft: int = 0
    overage_used: int = 0
    overage_held: int = 0
    used: Counter[Environment] = msgspec.field(default_factory=Counter)
    held_in: Counter[Environment] = msgspec.field(default_factory=Counter)
    open_slots: Counter[tuple[Environment, Slot]] = msgspec.field(default_factory=Counter)


async def balance(reading: Reading, account_id: str, at: datetime | None = None) -> BalanceView | None:
    """Return an account's balance now, or as it was when instant `at` was over; None where there is no such account.

    What was is added up from the journal; policy and ceilings are today's, since their past is not kept. Raise
    `NotYet` where `at` is in the future.
    """
    async with reading.snapshot() as snapshot:
        account = await snapshot.brought_up(account_id)
        if account is None:
            return None
        if at is None:
            return _view(account, account.at, _totals_now(account))
        if at > account.at:
            raise NotYet("at: the instant is in the future")
        return _view(account, at, await _totals_at(snapshot, account, at))


def _view(account: Account, at: datetime, totals: _Totals) -> BalanceView:
    period = period_of(at)
    live = sorted((g for g in totals.grants if g.live), key=lambda g: g.number)
    return BalanceView(
        account_id=account.account_id,
        at=at,
        period=period,
        period_ends_at=period_end(period),
        available=sum(g.remaining for g in live),
        held=sum(g.held for g in live),
        overdraft=totals.overdraft,
        grants=[GrantBalance(g.grant_id, g.kind, g.granted, g.remaining, g.held, g.expires_at) for g in live],
        overage=OverageBalance(
            account.overage_usable,
            totals.overage_used,
            totals.overage_held,
            usd_text(account.effective_cap),
            account.cap_credits,
        ),
        environments={
            environment: _environment(quota, totals, environment)
            for environment in ENVIRONMENTS
            if (quota := account.policy.quotas.get(environment)) is not None
        },
    )


def _environment(quota: Quota, totals: _Totals, environment: Environment) -> EnvironmentBalance:
    used, held = totals.used[environment], totals.held_in[environment]
    ceiling = quota.period_credits
    return EnvironmentBalance(
        period_credits=ceiling,
        used=used,
        held=held,
        remaining=None if ceiling is None else max(0, ceiling - used - held),
        open_requests=totals.open_slots[environment, "request"],
        open_calls=totals.open_slots[environment, "call"],
        max_requests=quota.max_requests,
        max_calls=quota.max_calls,
    )


def _totals_now(account: Account) -> _Totals:
    month = account.peek(period_of(account.at))
    return _Totals(
        grants=list(account.grants.values()),
        overdraft=account.overdraft,
        overage_used=month.overage_used,
        overage_held=month.overage_held,
        used=Counter({e: month.used(e) for e in ENVIRONMENTS}),
        held_in=Counter({e: month.held(e) for e in ENVIRONMENTS}),
        open_slots=Counter(account.open_slots),
    )


# -- as it was -----------------------------------------------------------------------------------------------------


async def _totals_at(snapshot: Snapshot, account: Account, at: datetime) -> _Totals:
    """Add a past balance up: grants and overdraft from the postings, what was held and used from the jobs."""
    upto = await snapshot.entries_before(account.number, at + INSTANT)
    period = period_of(at)
    month_start = await snapshot.entries_before(account.number, period_start(period))
    left = await books_at(snapshot, account, at)
    totals = _Totals(grants=[], overdraft=-left.pop(books.OVERDRAFT, 0))
    held: Counter[int] = Counter()
    day_before = await snapshot.entries_before(account.number, at - HOLD_MAX) if upto else 0
    for row in await snapshot.rows(_open_at(account.number, at, day_before, upto)):
        totals.open_slots[row.environment, row.slot] += 1
        held.update(dict(_decode_sources(row.sources)))
        if row.period == period:
            totals.held_in[row.environment] += row.held_credits
            totals.overage_held += row.held_overage
    for row in await snapshot.rows(_used_at(account.number, month_start, upto)):
        totals.used[row.environment] = int(row.charged)
        totals.overage_used += int(row.overage)
    refunded = await snapshot.first(_refunded_to_overage(account.number, month_start, upto))
    totals.overage_used -= int(refunded[0]) if refunded else 0
    held.pop(FROM_OVERAGE, None)
    remaining = {int(name.removeprefix(_GRANT)): credits for name, credits in left.items()}
    wanted = sorted({number for number, credits in (remaining | held).items() if credits})
    for row in await snapshot.rows(_grants(account.number, wanted)):
        grant = stored_grant(row)
        grant.remaining, grant.held = remaining.get(grant.number, 0), held[grant.number]
        totals.grants.append(grant)
    return totals


async def books_at(snapshot: Snapshot, account: Account, at: datetime) -> Counter[str]:
    """Return what stood on the grants and the overdraft when instant `at` was over.

    Added up from the first entry on, or taken back from now, whichever way is shorter. Entries that time has decided
    and nobody made yet count as of their own instants (T1).
    """
    upto = await snapshot.entries_before(account.number, at + INSTANT)
    undecided = account.changes.entries
    last = account.sequence - len(undecided)
    if upto <= last // 2:
        moved = await _moved(snapshot, account.number, 0, upto)
        moved.update(_moves(e.postings for e in undecided if e.at <= at))
        return moved
    left = Counter({books.grant_account(g.number): g.remaining for g in account.grants.values()})
    left[books.OVERDRAFT] = -account.overdraft
    left.subtract(await _moved(snapshot, account.number, upto, last))
    left.subtract(_moves(e.postings for e in undecided if e.at > at))
    return left


def _moves(entries: Iterable[Iterable[Posting]]) -> Counter[str]:
    """Add up what entries moved to (above 0) and from (below 0) the grants and the overdraft."""
    moved: Counter[str] = Counter()
    for postings in entries:
        for posting in postings:
            moved[posting.credit] += posting.credits
            moved[posting.debit] -= posting.credits
    kept = {n: credits for n, credits in moved.items() if n.startswith(_GRANT) or n == books.OVERDRAFT}
    return Counter(kept)


async def _moved(snapshot: Snapshot, account: int, after: int, upto: int) -> Counter[str]:
    """Do the same for the entries of the database that come after one and up to another."""
    rows = await snapshot.rows(_movements(account, after, upto)) if after < upto else ()
    return Counter({name: int(credits) for name, credits in rows})


def _movements(account: int, after: int, upto: int) -> AnySelect:
    column = schema.postings.c

    def side(name: ColumnElement[str], credits: ColumnElement[int]) -> AnySelect:
        return select(name.label("name"), credits.label("credits")).where(
            column.account == account,
            column.sequence > after,
            column.sequence <= upto,
            or_(name == books.OVERDRAFT, name.startswith(_GRANT)),
        )

    moved = union_all(side(column.credit, column.credits), side(column.debit, -column.credits)).subquery()
    return select(moved.c.name, func.sum(moved.c.credits)).group_by(moved.c.name)


def _open_at(account: int, at: datetime, after: int, upto: int) -> AnySelect:
    """Read the jobs that were open: reserved, and neither closed nor past their deadline."""
    job = schema.jobs.c
    return select(job.environment, job.slot, job.period, job.held_credits, job.held_overage, job.sources).where(
        job.account == account,
        job.number > after,
        job.number <= upto,
        job.expires_at > at,
        or_(job.closed_at.is_(None), job.closed_at > at),
    )


def _used_at(account: int, month_start: int, upto: int) -> AnySelect:
    """Add up what jobs of a month, which are those reserved in it, were charged by then."""
    job = schema.jobs.c
    return (
        select(
            job.environment,
            func.sum(job.charged).label("charged"),
            func.sum(job.charged_overage).label("overage"),
        )
        .where(
            job.account == account,
            job.number > month_start,
            job.number <= upto,
            job.status == "settled",
            job.closed_entry <= upto,
        )
        .group_by(job.environment)
    )


def _refunded_to_overage(account: int, month_start: int, upto: int) -> AnySelect:
    """Add up what refunds gave back to the overage of a month: only those made within it do (J13)."""
    refund = schema.refunds.c
    return select(func.coalesce(func.sum(refund.to_overage), 0)).where(
        refund.account == account, refund.job > month_start, refund.job <= upto, refund.entry <= upto
    )


def _grants(account: int, numbers: list[int]) -> AnySelect:
    grant = schema.grants.c
    return select(schema.grants).where(grant.account == account, grant.number.in_(numbers))
