"""Usage equals the ledger, to the credit, always, including while traffic runs (contract A4, J14; `api.md`, usage)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import msgspec
from sqlalchemy import text

from ledger.core import commands
from ledger.core.commands import Command, Environment, Line
from ledger.core.periods import period_of
from ledger.embedded import ConnectionUrls
from ledger.queries import PageRequest, Reading
from ledger.queries.journal import JournalFilter, entries
from ledger.queries.snapshot import Snapshot
from ledger.queries.statements import statement
from ledger.queries.usage import GROUPS, UsageFilter, usage
from tests.support.history import Customer
from tests.support.reading import Ledger, ledger_on, shown

BEFORE_MIDNIGHT = datetime(2026, 11, 30, 23, 50, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MONTHS = ("2026-11", "2026-12")
NAMES = ("rich", "poor", "over")
READS_MIN = 40
OPERATIONS = ("agent_turn", "image_analysis", "audio_transcription", "tts_synthesis", "document_analysis")

# What the journal makes of usage: charges by the month of their job, refunds by the month that they are made in.
CHARGED = text("""
select p.operation, j.environment, (e.at at time zone 'UTC')::date as day, sum(p.credits) as credits,
    coalesce(sum(p.quantity), 0) as quantity
from ledger.postings p
join ledger.entries e on e.account = p.account and e.sequence = p.sequence
join ledger.jobs j on j.account = p.account and j.number = e.job
where p.account = :account and p.credit like 'consumed:%' and j.period = :period group by 1, 2, 3
""")
REFUNDED = text("""
select p.operation, j.environment, (e.at at time zone 'UTC')::date as day, sum(p.credits) as credits
from ledger.postings p
join ledger.entries e on e.account = p.account and e.sequence = p.sequence
join ledger.jobs j on j.account = p.account and j.number = e.job
where p.account = :account and p.debit like 'consumed:%' and to_char(e.at at time zone 'UTC', 'YYYY-MM') = :period
group by 1, 2, 3
""")

# The tables have just grown, so the planner believes them to be empty, and a loop in a loop to be cheap.
NESTED = text("select set_config('enable_nestloop', :allowed, true)")


class OneSnapshot(Reading):
    """Reads everything from a snapshot that is open."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        yield self._snapshot


async def test_usage_equals_the_journal_while_traffic_runs(database: ConnectionUrls) -> None:
    async with ledger_on(database, BEFORE_MIDNIGHT) as ledger:
        customers = [
            await ledger.customer(name, credits) for name, credits in zip(NAMES, (10**6, 900, 50), strict=True)
        ]
        for customer in customers:
            wide = commands.QuotaChange(max_requests=1_000, max_calls=1_000)
            await customer.changes(quotas={"live": wide, "test": wide})
        await customers[2].changes(payment_method_verified=True, overage_enabled=True, credit_price_usd=1_000)
        over = asyncio.Event()
        numbers = count()
        traffic = [
            asyncio.create_task(_work(customer, random.Random(seed), numbers, over))  # noqa: S311 (of a test)
            for seed, customer in enumerate(customers * 4)
        ]
        seen: list[int] = []
        try:
            for number in range(READS_MIN):
                if number % 2 == 0:
                    await ledger.at(BEFORE_MIDNIGHT + number * MINUTE)  # over midnight, at 23:59 and a half
                seen.append(await _compare_all(ledger))
        finally:
            over.set()
            await asyncio.gather(*traffic)
        await _compare_all(ledger)
        assert len(set(seen)) > READS_MIN / 2, "traffic ran between the reads"
        last = await _total(ledger, MONTHS[1])
        assert min(last["credits"], last["refunded_credits"], (await _total(ledger, MONTHS[0]))["credits"]) > 0


async def _total(ledger: Ledger, period: str) -> Any:
    return (await shown(usage(ledger.reading, "rich", UsageFilter(period=period))))["totals"]


# -- traffic -------------------------------------------------------------------------------------------------------


async def _work(customer: Customer, chance: random.Random, numbers: Iterator[int], over: asyncio.Event) -> None:
    """Reserve, settle, release and refund at random, as fast as it goes; refusals are part of it."""
    open_jobs: list[str] = []
    settled: list[str] = []
    while not over.is_set():
        job_id = f"job-{next(numbers)}"
        if len(open_jobs) < 3 or chance.random() < 0.5:
            outcome = await customer.engine.execute(_reservation(customer.account_id, job_id, chance))
            if not isinstance(outcome, commands.Refused):
                open_jobs.append(job_id)
                continue
        await customer.engine.execute(_next_step(customer.account_id, chance, open_jobs, settled))


def _reservation(account_id: str, job_id: str, chance: random.Random) -> Command:
    environment: Environment = chance.choice(("live", "test"))
    ttl = chance.choice((60, 300, 3_600))
    return commands.Reserve(
        account_id=account_id, job_id=job_id, environment=environment, lines=_lines(chance), ttl_seconds=ttl
    )


def _next_step(account_id: str, chance: random.Random, open_jobs: list[str], settled: list[str]) -> Command:
    what = chance.random()
    if open_jobs and what < 0.7:
        job_id = open_jobs.pop(chance.randrange(len(open_jobs)))
        if what < 0.1:
            return commands.Release(account_id=account_id, job_id=job_id)
        settled.append(job_id)
        return commands.Settle(account_id=account_id, job_id=job_id, lines=_lines(chance))
    if settled:
        job_id = chance.choice(settled)
        some = chance.choice((1, 5, None))
        return commands.Refund(account_id=account_id, job_id=job_id, refund_id=f"rf-{what}", credits=some)
    return commands.BringUp(account_id=account_id)


def _lines(chance: random.Random) -> tuple[Line, ...]:
    return tuple(Line(chance.choice(OPERATIONS), chance.randint(1, 20)) for _ in range(chance.randint(1, 3)))


# -- what must be equal --------------------------------------------------------------------------------------------


async def _compare_all(ledger: Ledger) -> int:
    """Compare every account and month within one snapshot; return how many entries there were."""
    seen = 0
    async with ledger.reading.snapshot() as snapshot:
        reading = OneSnapshot(snapshot)
        for name in NAMES:
            account = await snapshot.account(name)
            assert account is not None
            for month in MONTHS:
                if month <= period_of(account.now):
                    await _compare_month(reading, snapshot, name, account.number, month)
            seen += await _compare_journal(reading, name)
    return seen


async def _compare_month(reading: Reading, snapshot: Snapshot, name: str, account: int, month: str) -> None:
    asked = {"account": account, "period": month}
    expected: dict[tuple[str, str, str], list[int]] = {}
    await snapshot.run(NESTED, {"allowed": "off"})
    for row in await snapshot.run(CHARGED, asked):
        figures = expected.setdefault((row.operation, row.environment, row.day.isoformat()), [0, 0, 0])
        figures[0], figures[1] = int(row.credits), int(row.quantity)
    for row in await snapshot.run(REFUNDED, asked):
        expected.setdefault((row.operation, row.environment, row.day.isoformat()), [0, 0, 0])[2] = int(row.credits)
    await snapshot.run(NESTED, {"allowed": "on"})
    finest = await shown(usage(reading, name, UsageFilter(period=month, group_by=GROUPS)))
    found = {
        (line["operation"], line["environment"], line["day"]): [
            line["credits"],
            line["quantity"],
            line["refunded_credits"],
        ]
        for line in finest["lines"]
    }
    assert found == expected, (name, month)
    charged, _, refunded = (sum(column) for column in zip((0, 0, 0), *expected.values(), strict=True))
    assert (finest["totals"]["credits"], finest["totals"]["refunded_credits"]) == (charged, refunded)
    assert finest["totals"]["net_credits"] == charged - refunded
    coarse = await shown(usage(reading, name, UsageFilter(period=month)))
    shown_statement = await shown(statement(reading, name, month))
    assert shown_statement["charges"] == coarse["lines"]
    assert (shown_statement["charged"], shown_statement["refunded"]) == (charged, refunded)
    _assert_adds_up(shown_statement)


def _assert_adds_up(month: dict[str, Any]) -> None:
    came = month["opening_balance"] + month["granted"] + month["adjusted"] + month["refunded_to_balance"]
    assert came - month["charged_from_balance"] - month["expired"] == month["closing_balance"]


async def _compare_journal(reading: Reading, name: str) -> int:
    """Compare all usage there is with the postings as the journal publishes them, page by page."""
    net, seen, cursor = 0, 0, None
    while True:
        page = await entries(reading, name, JournalFilter(), PageRequest(500, cursor))
        assert page is not None
        for entry in page.data:
            for posting in entry.postings:
                net += posting.credits * (
                    posting.credit.startswith("consumed:") - posting.debit.startswith("consumed:")
                )
        seen += len(page.data)
        cursor = page.next_cursor
        if cursor is None:
            break
    totals = [await usage(reading, name, UsageFilter(period=month)) for month in MONTHS]
    assert net == sum(msgspec.to_builtins(view)["totals"]["net_credits"] for view in totals)
    return seen
