from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import asyncpg
import msgspec
import pytest
from sqlalchemy import event

from ledger import database as database_module
from ledger.core import commands
from ledger.core.commands import Line
from ledger.core.periods import next_period
from ledger.database import read_engine
from ledger.embedded import ConnectionUrls
from ledger.export import CONTENTS, Export, export
from ledger.export.columns import Row
from ledger.queries import DatabaseAway, InvalidCursor, NotYet, PageRequest, Reading
from ledger.queries.accounts import account, cycles, grants
from ledger.queries.balance import balance
from ledger.queries.events import events_behind, position_but, still_named
from ledger.queries.jobs import JobFilter, job, jobs
from ledger.queries.journal import JournalFilter, entries
from ledger.queries.live import first_ends, page_of_accounts
from ledger.queries.records import records
from ledger.queries.statements import statement
from ledger.queries.usage import GROUPS, UsageFilter, usage
from tests.support.history import write_history
from tests.support.reading import Ledger, ledger_on, shown, walked

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOVEMBER, DECEMBER, JANUARY = "2026-11", "2026-12", "2027-01"
ALL = PageRequest(500)
HISTORY = ("plain", "deep", "over", "mixed")


@pytest.fixture
async def ledger(database: ConnectionUrls) -> AsyncIterator[Ledger]:
    async with ledger_on(database, NOON) as ledger:
        yield ledger


@pytest.fixture
async def history(database: ConnectionUrls) -> AsyncIterator[Reading]:
    """A November and a December with everything in them, and what is still open on the 2nd of December."""
    await write_history(database.service)
    engine = read_engine(database.service, 2)
    yield Reading(engine, simulated_clock=True)
    await engine.dispose()


# -- time decides (T1, T4) -----------------------------------------------------------------------------------------


async def test_a_hold_past_its_deadline_is_expired_though_nobody_entered_it(ledger: Ledger) -> None:
    acme = await ledger.customer("acme", 1_000)
    await acme.reserves("lost", ("tts_synthesis", 300), ttl_seconds=60)
    deadline = NOON + timedelta(seconds=60)
    await ledger.at(deadline - timedelta(microseconds=1))
    before = await shown(job(ledger.reading, "acme", "lost"))
    assert (before["status"], before["credits_charged"], before["result_state"]) == ("reserved", None, "pending")
    assert "expired_at" not in before
    await ledger.at(deadline)
    seen = await shown(job(ledger.reading, "acme", "lost"))
    assert (seen["status"], seen["credits_charged"], seen["credits_refunded"]) == ("expired", 0, 0)
    assert (seen["result_state"], seen["error_code"]) == ("unavailable", "job_not_completed")
    assert seen["expired_at"] == seen["expires_at"] == "2026-11-15T12:01:00Z"
    assert [entry["kind"] for entry in seen["entries"]] == ["reserve"]
    for status, found in (("expired", ["lost"]), ("reserved", []), ("settled", [])):
        page = await jobs(ledger.reading, "acme", JobFilter(status=status), ALL)  # type: ignore[arg-type]
        assert page is not None
        assert [item.job_id for item in page.data] == found, status
    balance_seen = await shown(balance(ledger.reading, "acme"))
    assert (balance_seen["available"], balance_seen["held"]) == (1_000, 0)
    assert balance_seen["environments"]["live"]["open_requests"] == 0
    await acme.is_brought_up()
    entered = await shown(job(ledger.reading, "acme", "lost"))
    assert [entry["kind"] for entry in entered.pop("entries")] == ["reserve", "expire"]
    assert {**seen, "entries": None} == {**entered, "entries": None}
    assert await shown(balance(ledger.reading, "acme")) == balance_seen


async def test_a_grant_past_its_end_is_gone_and_belongs_to_the_month_that_ended_with_it(ledger: Ledger) -> None:
    acme = await ledger.customer("acme")
    await acme.gets("plan-11", "plan", 500)
    await acme.reserves("long", ("tts_synthesis", 200), ttl_seconds=86_400)
    await ledger.at(datetime(2026, 11, 30, 23, 59, tzinfo=UTC))
    await acme.is_brought_up()
    await acme.reserves("late", ("tts_synthesis", 150), ttl_seconds=600)
    await ledger.at(datetime(2026, 12, 1, tzinfo=UTC))

    async def seen() -> list[Any]:
        reading = ledger.reading
        return [
            await shown(balance(reading, "acme")),
            await shown(grants(reading, "acme", ALL)),
            await shown(statement(reading, "acme", NOVEMBER)),
            await shown(statement(reading, "acme", DECEMBER)),
        ]

    projected = await seen()
    now, listed, november, december = projected
    assert (now["period"], now["available"], now["held"]) == (DECEMBER, 0, 150)
    assert now["grants"] == [
        {
            "grant_id": "plan-11",
            "kind": "plan",
            "granted": 500,
            "remaining": 0,
            "held": 150,
            "expires_at": "2026-12-01T00:00:00Z",
        }
    ]
    assert [(grant["remaining"], grant["held"]) for grant in listed["data"]] == [(0, 150)]
    assert (november["granted"], november["expired"], november["closing_balance"]) == (500, 350, 150)
    assert (december["opening_balance"], december["expired"], december["closing_balance"]) == (150, 0, 150)
    await acme.is_brought_up()
    assert await seen() == projected
    await ledger.at(datetime(2026, 12, 1, 0, 9, tzinfo=UTC))  # the hold ends: what comes back is November's too
    projected = await seen()
    assert projected[2]["expired"] == 500
    assert projected[2]["closing_balance"] == projected[3]["opening_balance"] == 0
    await acme.is_brought_up()
    assert await seen() == projected


async def test_a_result_is_gone_24_hours_after_the_close(ledger: Ledger) -> None:
    acme = await ledger.customer("acme", 1_000)
    for job_id, result in (("kept", b'{"a": [1, null]}'), ("none", None)):
        await acme.reserves(job_id, ("agent_turn", 1), ("image_analysis", 1))
        lines = (Line("agent_turn", 1), Line("image_analysis", 2))
        await acme.does(commands.Settle(account_id="acme", job_id=job_id, lines=lines, result=result))
    await ledger.at(NOON + DAY - timedelta(microseconds=1))
    kept, none = [await shown(job(ledger.reading, "acme", name)) for name in ("kept", "none")]
    assert (kept["result_state"], kept["result"]) == ("available", {"a": [1, None]})
    assert (none["result_state"], none["result"]) == ("not_stored", None)
    usage_of_turn = {"operation": "agent_turn", "unit": "request", "quantity": 1, "credits": 11}
    assert kept["usage"] == none["usage"] == usage_of_turn
    assert [line["credits"] for line in kept["settled_lines"]] == [11, 110]
    assert kept["settled_at"] == "2026-11-15T12:00:00Z"
    await ledger.at(NOON + DAY)
    kept, none = [await shown(job(ledger.reading, "acme", name)) for name in ("kept", "none")]
    assert (kept["result_state"], none["result_state"]) == ("expired", "not_stored")
    for old in (kept, none):
        assert (old["usage"], old["settled_lines"], old["result"], old["credits_charged"]) == (None, None, None, 121)


# -- jobs ----------------------------------------------------------------------------------------------------------


async def test_a_job_shows_its_reservation_metadata_and_entries(ledger: Ledger) -> None:
    acme = await ledger.customer("acme", 1_000)
    reserved = await acme.does(
        commands.Reserve(
            account_id="acme",
            job_id="j-1",
            environment="live",
            lines=(Line("audio_transcription", 10.2),),
            metadata=b'{"b": 1, "a": {"x": 2.50}}',
        )
    )
    assert isinstance(reserved, commands.Reserved)
    await acme.settles("j-1", ("audio_transcription", 10.2))
    await acme.is_refunded("j-1", "rf-1", 4)
    found = await job(ledger.reading, "acme", "j-1")
    assert found is not None
    for name in commands.Reservation.__struct_fields__:
        if name != "status":
            assert getattr(found, name) == getattr(reserved.reservation, name), name
    seen = await shown(job(ledger.reading, "acme", "j-1"))
    assert bytes(found.metadata or b"") == b'{"b": 1, "a": {"x": 2.50}}'
    assert [entry["kind"] for entry in seen["entries"]] == ["reserve", "settle", "refund"]
    assert {entry["job_id"] for entry in seen["entries"]} == {"j-1"}
    assert seen["entries"][0]["postings"] == [
        {"debit": "grant:opening", "credit": "hold:j-1", "credits": 11, "operation": None, "quantity": None}
    ]
    assert (seen["credits_charged"], seen["credits_refunded"], seen["error_code"]) == (11, 4, None)
    assert "replayed" not in seen


async def test_a_job_of_another_account_or_environment_does_not_exist(ledger: Ledger) -> None:
    acme = await ledger.customer("acme", 1_000)
    await ledger.customer("other")
    await acme.reserves("j-1", ("agent_turn", 1))
    assert await job(ledger.reading, "acme", "j-1", "live") is not None
    assert await job(ledger.reading, "acme", "j-1", "test") is None
    assert await job(ledger.reading, "other", "j-1") is None
    assert await job(ledger.reading, "nobody", "j-1") is None


async def test_jobs_are_listed_newest_first_and_filtered(ledger: Ledger) -> None:
    acme = await ledger.customer("acme", 1_000)
    for hour, (job_id, operation, environment) in enumerate(
        [("a", "agent_turn", "live"), ("b", "agent_turn", "test"), ("c", "tts_synthesis", "live")]
    ):
        await ledger.at(NOON + hour * HOUR)
        await acme.reserves(job_id, (operation, 1), environment=environment, ttl_seconds=86_400)  # type: ignore[arg-type]
    await acme.settles("a", ("agent_turn", 1))
    await acme.releases("b")

    async def listed(**wanted: Any) -> str:
        page = await jobs(ledger.reading, "acme", JobFilter(**wanted), ALL)
        assert page is not None
        return "".join(item.job_id for item in page.data)

    assert await listed() == "cba"
    assert await listed(environment="live") == "ca"
    assert await listed(operation="agent_turn") == "ba"
    assert [await listed(status=s) for s in ("reserved", "settled", "released", "expired")] == ["c", "a", "b", ""]
    assert await listed(start=NOON + HOUR) == "cb"
    assert await listed(end=NOON + HOUR) == "a"
    assert await listed(start=NOON + HOUR, end=NOON + 2 * HOUR) == "b"
    assert await listed(start=datetime(1, 1, 1, tzinfo=UTC), end=datetime(9999, 12, 31, tzinfo=UTC)) == "cba"
    page = await shown(jobs(ledger.reading, "acme", JobFilter(), ALL))
    assert all("result" not in item and "entries" not in item for item in page["data"])


# -- balance -------------------------------------------------------------------------------------------------------


async def test_the_balance_at_every_instant_is_what_it_was_then(ledger: Ledger) -> None:
    acme = await ledger.customer("acme", 700)
    await acme.changes(payment_method_verified=True, overage_enabled=True, credit_price_usd=1_000)
    remembered: dict[datetime, Any] = {}
    now = NOON

    async def later(**step: int) -> None:
        nonlocal now
        remembered[now] = await shown(balance(ledger.reading, "acme"))
        now += timedelta(**step)
        await ledger.at(now)

    await later(hours=1)
    await acme.gets("plan-11", "plan", 400)
    await acme.gets("week", "adjustment", 90, now + 7 * DAY)
    await later(hours=1)
    await acme.reserves("call", ("voice_call_minute", 300), transferable=True, ttl_seconds=7_200)
    await acme.reserves("speech", ("tts_synthesis", 500), environment="test", ttl_seconds=600)
    await acme.reserves("over", ("tts_synthesis", 3_000), ttl_seconds=86_400)
    await later(minutes=5)
    await later(minutes=5)  # `speech` has expired and nobody entered it
    await later(minutes=5)
    await acme.settles("call", ("voice_call_minute", 150), ("voice_transfer_minute", 150))
    await later(hours=1)
    await acme.settles("over", ("tts_synthesis", 1_500))
    await later(hours=1)
    await acme.is_refunded("over", "rf-1", 700)
    await later(days=8)  # `week` is over
    await later(minutes=1)
    await acme.changes(overage_enabled=False)
    await acme.gets("inv-2", "purchase", 200)
    await acme.reserves("small", ("tts_synthesis", 100), ttl_seconds=86_400)
    await acme.settles("small", ("tts_synthesis", 9_000))  # into overdraft
    await later(days=8)  # December
    await acme.gets("inv-3", "purchase", 10_000)
    await acme.reserves("december", ("image_analysis", 2), ttl_seconds=60)
    await later(hours=1)
    await acme.changes(overage_enabled=True)
    for at, then in remembered.items():
        seen = await shown(balance(ledger.reading, "acme", at))
        for figures in (seen, then):
            figures["overage"].pop("usable")
        assert seen == then, at
    assert [then["overdraft"] for then in remembered.values()][-2:] != [0, 0]
    with pytest.raises(NotYet):
        await balance(ledger.reading, "acme", now + timedelta(microseconds=1))
    before = await shown(balance(ledger.reading, "acme", datetime(1, 1, 1, tzinfo=UTC)))
    assert (before["available"], before["held"], before["overdraft"], before["grants"]) == (0, 0, 0, [])


async def test_the_balance_names_figures_of_quotas_and_caps(ledger: Ledger) -> None:
    acme = await ledger.customer("acme", 1_000)
    quotas: dict[commands.Environment, Any] = {"live": commands.QuotaChange(period_credits=100), "test": None}
    await acme.changes(quotas=quotas, overage_enabled=True, credit_price_usd=3_000, cap_usd=50_000_000)
    await acme.reserves("j-1", ("agent_turn", 2))
    seen = await shown(balance(ledger.reading, "acme"))
    assert seen["environments"] == {
        "live": {
            "period_credits": 100,
            "used": 0,
            "held": 22,
            "remaining": 78,
            "open_requests": 1,
            "open_calls": 0,
            "max_requests": 10,
            "max_calls": 5,
        },
    }
    assert seen["overage"] == {"usable": False, "used": 0, "held": 0, "cap_usd": "20.00", "cap_credits": 6_666}
    assert (seen["period"], seen["period_ends_at"]) == (NOVEMBER, "2026-12-01T00:00:00Z")


async def test_an_account_shows_its_policy_and_what_follows_from_it(ledger: Ledger) -> None:
    acme = await ledger.customer("acme")
    await acme.changes(access="suspended", cap_usd=30_000_000, credit_price_usd=1_500)
    for month in ("2026-08", "2026-09", "2026-10"):
        await acme.does(commands.PutCycle(account_id="acme", month=month, status="paid_on_time"))
    assert await shown(account(ledger.reading, "acme")) == {
        "module_enabled": True,
        "access": "suspended",
        "payment_method_verified": False,
        "overage": {"enabled": False, "cap_usd": "30.00", "credit_price_usd": "0.0015"},
        "environments": {
            "test": {"max_requests": 10, "max_calls": 5, "period_credits": None},
            "live": {"max_requests": 10, "max_calls": 5, "period_credits": None},
        },
        "effective_cap_usd": "30.00",
        "effective_cap_credits": 20_000,
        "provider_ceiling_usd": "100.00",
        "paid_cycles": 3,
        "welcome_granted_at": None,
        "deletion": None,
        "created_at": "2026-11-15T12:00:00Z",
    }
    pages = await walked(partial(cycles, ledger.reading, "acme"), 2)
    assert [[cycle.cycle for cycle in page] for page in pages] == [["2026-08", "2026-09"], ["2026-10"]]


# -- usage and statements ------------------------------------------------------------------------------------------


async def _charged(reading: Reading, account_id: str) -> int:
    """What the journal charged, less what it gave back."""
    page = await entries(reading, account_id, JournalFilter(), ALL)
    assert page is not None
    moves = [posting for entry in page.data for posting in entry.postings]
    charged = sum(p.credits for p in moves if p.credit.startswith("consumed:"))
    return charged - sum(p.credits for p in moves if p.debit.startswith("consumed:"))


@pytest.mark.parametrize("account_id", HISTORY)
async def test_usage_is_what_the_ledger_charged_however_it_is_grouped(history: Reading, account_id: str) -> None:
    always = (date(2026, 1, 1), date(2027, 1, 1))
    by_date = await usage(history, account_id, UsageFilter(days=always))
    months = [await usage(history, account_id, UsageFilter(period=period)) for period in (NOVEMBER, DECEMBER)]
    assert by_date is not None
    assert by_date.totals.net_credits == await _charged(history, account_id)
    for figure in ("credits", "refunded_credits", "net_credits", "jobs"):
        assert sum(getattr(month.totals, figure) for month in months if month) == getattr(by_date.totals, figure)
    for groups in (("operation",), ("environment",), ("day",), ("day", "environment"), GROUPS):
        seen = await usage(history, account_id, UsageFilter(days=always, group_by=groups))
        assert seen is not None
        assert seen.totals == by_date.totals
        assert sum(line.credits for line in seen.lines) == seen.totals.credits
        assert sum(line.refunded_credits for line in seen.lines) == seen.totals.refunded_credits
        if "operation" not in groups:
            assert sum(line.jobs for line in seen.lines) == seen.totals.jobs


async def test_usage_counts_by_the_month_of_the_job_or_the_day_it_settled(history: Reading) -> None:
    november = await shown(usage(history, "over", UsageFilter(period=NOVEMBER)))
    assert (november["from"], november["to"]) == ("2026-11-01", "2026-12-01")
    documents = next(line for line in november["lines"] if line["operation"] == "document_analysis")
    assert documents == {
        "operation": "document_analysis",
        "unit": "document",
        "quantity": 9,
        "credits": 360,
        "refunded_credits": 0,
        "jobs": 1,
    }
    days = (date(2026, 12, 1), date(2026, 12, 2))
    first = await shown(usage(history, "over", UsageFilter(days=days, group_by=("day", "environment"))))
    line = {"credits": 360, "refunded_credits": 0, "jobs": 1, "environment": "live", "day": "2026-12-01"}
    assert first["lines"] == [line]
    nothing = await shown(usage(history, "over", UsageFilter(days=days, environment="test")))
    assert nothing["totals"] == {"credits": 0, "refunded_credits": 0, "net_credits": 0, "jobs": 0}
    assert nothing["lines"] == []
    assert (await shown(usage(history, "over", UsageFilter())))["from"] == "2026-12-01"


async def _assert_statements_add_up(reading: Reading, account_id: str, months: list[str]) -> None:
    closing = None
    for period in months:
        seen = await statement(reading, account_id, period)
        assert seen is not None
        came = seen.granted + seen.adjusted + seen.refunded_to_balance
        went = seen.charged_from_balance + seen.expired
        assert seen.opening_balance + came - went == seen.closing_balance
        assert closing in (None, seen.opening_balance)
        closing = seen.closing_balance
        used = await usage(reading, account_id, UsageFilter(period=period))
        assert used is not None
        assert (seen.charges, seen.charged, seen.refunded) == (
            used.lines,
            used.totals.credits,
            used.totals.refunded_credits,
        )
        assert (
            seen.overage.credits == seen.charged - seen.charged_from_balance - seen.refunded + seen.refunded_to_balance
        )
    now = await balance(reading, account_id)
    assert now is not None
    assert closing == now.available + now.held - now.overdraft


@pytest.mark.parametrize("account_id", HISTORY)
async def test_the_statements_of_a_history_add_up(history: Reading, account_id: str) -> None:
    await _assert_statements_add_up(history, account_id, ["2026-10", NOVEMBER, DECEMBER])


async def test_three_months_of_overdraft_refunds_overage_and_a_plan_that_ends(ledger: Ledger) -> None:
    acme = await ledger.customer("acme")
    await acme.changes(payment_method_verified=True)  # the welcome: 3,000
    period, month_start = NOVEMBER, NOON
    for number in range(3):
        await ledger.at(month_start)
        await acme.gets(f"plan-{period}", "plan", 1_000)
        await acme.changes(overage_enabled=True, credit_price_usd=2_000)
        await acme.reserves(f"a-{number}", ("tts_synthesis", 2_500))
        await acme.settles(f"a-{number}", ("tts_synthesis", 2_200))
        await acme.changes(overage_enabled=False)
        if number == 0:
            await acme.reserves("b-0", ("agent_turn", 2))
            await acme.settles("b-0", ("video_analysis", 10))  # 2,700: 1,800 of the welcome, the rest is overdraft
        await acme.is_refunded(f"a-{number}", f"rf-{number}", 600)
        period = next_period(period)
        month_start = datetime(int(period[:4]), int(period[5:]), 15, 12, tzinfo=UTC)
        if number == 1:
            await acme.is_refunded("a-0", "rf-late", 500)
            await acme.gets("inv", "purchase", 800)
    await _assert_statements_add_up(ledger.reading, "acme", [NOVEMBER, DECEMBER, JANUARY])
    november = await shown(statement(ledger.reading, "acme", NOVEMBER))
    assert november["overdraft"] == (await balance_at_the_end(ledger, "acme", NOVEMBER))["overdraft"] == 300
    december = await shown(statement(ledger.reading, "acme", DECEMBER))
    assert december["overage"]["usd"] == f"{december['overage']['credits'] * 2 / 1000:.2f}"
    assert december["status"] == "open"
    with pytest.raises(NotYet):
        await statement(ledger.reading, "acme", "2027-02")


async def balance_at_the_end(ledger: Ledger, account_id: str, period: str) -> Any:
    year, month = map(int, next_period(period).split("-"))
    return await shown(
        balance(ledger.reading, account_id, datetime(year, month, 1, tzinfo=UTC) - timedelta(microseconds=1))
    )


async def test_the_price_of_a_credit_makes_the_usd_of_a_statement(ledger: Ledger) -> None:
    acme = await ledger.customer("acme", 10)
    assert (await shown(statement(ledger.reading, "acme", NOVEMBER)))["overage"] == {"credits": 0, "usd": "0.00"}
    await acme.changes(payment_method_verified=True, overage_enabled=True, credit_price_usd=1_500)
    await acme.reserves("big", ("tts_synthesis", 3_110))
    await acme.settles("big", ("tts_synthesis", 3_110))
    assert (await shown(statement(ledger.reading, "acme", NOVEMBER)))["overage"] == {"credits": 100, "usd": "0.15"}
    for change in ({"credit_price_usd": 9_000}, {"overage_enabled": False, "credit_price_usd": None}):
        await acme.changes(**change)  # what was held at one price is not invoiced at another
        assert (await shown(statement(ledger.reading, "acme", NOVEMBER)))["overage"] == {"credits": 100, "usd": "0.15"}


# -- pages ---------------------------------------------------------------------------------------------------------


async def test_pages_survive_equal_timestamps_and_what_is_written_in_between(ledger: Ledger) -> None:
    acme = await ledger.customer("acme", 10_000)
    for number in range(11):
        await acme.reserves(f"j-{number:02}", ("agent_turn", 1))
        await acme.settles(f"j-{number:02}", ("agent_turn", 1))
    added = iter(range(100, 200))

    async def read(query: Any, wanted: Any, page: PageRequest) -> Any:
        found = await query(ledger.reading, "acme", wanted, page)
        name = f"new-{next(added)}"
        await acme.reserves(name, ("agent_turn", 1))
        await acme.settles(name, ("agent_turn", 1))
        return found

    names = [f"j-{number:02}" for number in reversed(range(11))]
    for query in (jobs, records):
        pages = await walked(partial(read, query, JobFilter()), 3)
        seen = [item.job_id for page in pages for item in page]
        assert [name for name in seen if name in names] == names
        assert len(seen) == len(set(seen))
        assert all(len(page) == 3 for page in pages[:-1])
    pages = await walked(partial(entries, ledger.reading, "acme", JournalFilter()), 7)
    assert [e.sequence for page in pages for e in page] == list(range(1, 2 + sum(map(len, pages)) - 1))
    whole = [page for page in await walked(partial(entries, ledger.reading, "acme", JournalFilter()), 500) if page]
    assert [e for page in pages for e in page] == [e for page in whole for e in page]


async def test_a_cursor_is_good_for_its_own_list_and_account(ledger: Ledger) -> None:
    acme = await ledger.customer("acme", 1_000)
    other = await ledger.customer("other", 1_000)
    for customer in (acme, other):
        for number in range(3):
            await customer.reserves(f"j-{number}", ("agent_turn", 1))
            await customer.settles(f"j-{number}", ("agent_turn", 1))
    reading = ledger.reading
    page = await jobs(reading, "acme", JobFilter(), PageRequest(1))
    assert page is not None
    good = page.next_cursor
    assert good is not None
    foreign = [(records, "acme"), (jobs, "other")]
    for query, account_id in foreign:
        with pytest.raises(InvalidCursor):
            await query(reading, account_id, JobFilter(), PageRequest(1, good))
    garbled = [good[:-2], good[1:], good + "AAAA", good.swapcase(), "", "x", "não", "\0", "%%%", "e30", "A" * 5_000]
    for cursor in garbled:
        with pytest.raises(InvalidCursor):
            await jobs(reading, "acme", JobFilter(), PageRequest(1, cursor))


async def test_the_journal_is_named_from_outside_and_can_be_checked(history: Reading) -> None:
    page = await shown(entries(history, "mixed", JournalFilter(canonical=True), ALL))
    names = {p[side] for entry in page["data"] for p in entry["postings"] for side in ("debit", "credit")}
    assert {"grant:welcome", "grant:hour", "hold:short", "overdraft", "issued:welcome", "expired"} <= names
    assert "consumed:tts_synthesis" in names
    previous = "0" * 64
    for number, entry in enumerate(page["data"], start=1):
        assert (entry["sequence"], entry["previous_hash"]) == (number, previous)
        previous = entry["hash"]
        assert _sha256(entry["previous_hash"] + entry["canonical"]) == entry["hash"]
    window = JournalFilter(start=datetime(2026, 11, 3, 10, 2, tzinfo=UTC), end=datetime(2026, 11, 3, 12, tzinfo=UTC))
    part = await shown(entries(history, "mixed", window, ALL))
    assert {entry["created_at"] for entry in part["data"]} < {entry["created_at"] for entry in page["data"]}
    assert all("2026-11-03T10:02" <= entry["created_at"] < "2026-11-03T12" for entry in part["data"])
    assert part["data"]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def test_a_name_that_is_gone_is_shown_by_its_number(history: Reading, database: ConnectionUrls) -> None:
    before = await shown(entries(history, "deep", JournalFilter(), ALL))
    owner = await asyncpg.connect(database.owner)
    for table in ("grants", "jobs"):
        await owner.execute(f"delete from ledger.{table} t using ledger.accounts a where a.account = t.account")
    await owner.close()
    after = await shown(entries(history, "deep", JournalFilter(), ALL))
    assert [entry["hash"] for entry in after["data"]] == [entry["hash"] for entry in before["data"]]
    assert after["data"][0]["postings"][0]["credit"] == "grant:1"
    assert after["data"][1]["postings"][0] == {
        **before["data"][1]["postings"][0],
        "debit": "grant:1",
        "credit": "hold:2",
    }
    assert {entry["job_id"] for entry in after["data"]} == {None}


# -- the database --------------------------------------------------------------------------------------------------


async def test_without_the_account_there_is_nothing(ledger: Ledger) -> None:
    reading = ledger.reading
    assert await account(reading, "nobody") is None
    assert await balance(reading, "nobody") is None
    assert await statement(reading, "nobody", NOVEMBER) is None
    assert await usage(reading, "nobody", UsageFilter()) is None
    assert await jobs(reading, "nobody", JobFilter(), ALL) is None
    assert await records(reading, "nobody", JobFilter(), ALL) is None
    assert await entries(reading, "nobody", JournalFilter(), ALL) is None
    assert await grants(reading, "nobody", ALL) is None
    assert await cycles(reading, "nobody", ALL) is None


async def test_a_new_account_has_empty_lists_and_zeros(ledger: Ledger) -> None:
    await ledger.customer("new")
    reading = ledger.reading
    empty: dict[str, Any] = {"data": [], "next_cursor": None}
    reads: list[Awaitable[Any]] = [
        jobs(reading, "new", JobFilter(), ALL),
        records(reading, "new", JobFilter(), ALL),
        entries(reading, "new", JournalFilter(), ALL),
        grants(reading, "new", ALL),
        cycles(reading, "new", ALL),
    ]
    for read in reads:
        assert await shown(read) == empty
    seen = await shown(statement(reading, "new", "2025-01"))
    assert (seen["opening_balance"], seen["closing_balance"], seen["overdraft"], seen["charges"]) == (0, 0, 0, [])


async def test_records_are_shown_for_400_days_whether_or_not_they_were_deleted(ledger: Ledger) -> None:
    acme = await ledger.customer("acme", 100)
    await acme.reserves("old", ("agent_turn", 1))
    record = commands.Record(request_id="req_1", status_code=200, latency_ms=812, key_prefix="ak_live_3f")
    await acme.does(commands.Settle(account_id="acme", job_id="old", lines=(Line("agent_turn", 1),), record=record))
    await ledger.at(NOON + 400 * DAY - timedelta(microseconds=1))
    assert (await shown(records(ledger.reading, "acme", JobFilter(), ALL)))["data"] == [
        {
            "job_id": "old",
            "environment": "live",
            "operation": "agent_turn",
            "status": "settled",
            "credits": 11,
            "request_id": "req_1",
            "status_code": 200,
            "latency_ms": 812,
            "key_prefix": "ak_live_3f",
            "closed_at": "2026-11-15T12:00:00Z",
        }
    ]
    await ledger.at(NOON + 400 * DAY)
    assert (await shown(records(ledger.reading, "acme", JobFilter(), ALL)))["data"] == []


async def test_a_real_clock_is_the_databases(database: ConnectionUrls) -> None:
    async with ledger_on(database, NOON) as ledger:
        await ledger.customer("acme", 100)
    engine = read_engine(database.service, 1)
    seen = await balance(Reading(engine), "acme")
    await engine.dispose()
    assert seen is not None
    assert abs(seen.at - datetime.now(UTC)) < HOUR or seen.at == NOON


async def test_a_database_that_is_away_is_said_so(database: ConnectionUrls) -> None:
    engine = read_engine(database.service.replace("/test_", "/gone_"), 1)
    with pytest.raises(DatabaseAway):
        await balance(Reading(engine), "acme")
    await engine.dispose()


@pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
@pytest.mark.parametrize("table", ["accounts", "grants"])  # Read by SQLAlchemy, and by the driver itself.
async def test_a_read_that_has_to_wait_too_long_is_to_be_asked_for_again(
    database: ConnectionUrls, table: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger_on(database, NOON) as ledger:
        await ledger.customer("acme", 100)
    monkeypatch.setitem(database_module._SESSION, limit, "200ms")
    engine = read_engine(database.service, 1)
    owner = await asyncpg.connect(database.owner)
    try:
        async with owner.transaction():
            await owner.execute(f"lock table ledger.{table} in access exclusive mode")
            with pytest.raises(DatabaseAway):
                await balance(Reading(engine), "acme")
        seen = await balance(Reading(engine), "acme")
    finally:
        await owner.close()
        await engine.dispose()
    assert seen is not None
    assert seen.available == 100


HISTORY_TABLES = {"entries", "postings", "jobs", "usage_records", "events"}
SEQUENTIAL = {"Seq Scan", "Parallel Seq Scan"}


async def test_no_plan_scans_a_history_table(database: ConnectionUrls) -> None:
    run: list[tuple[str, tuple[Any, ...]]] = []
    async with ledger_on(database, NOON) as ledger:
        await _fill(ledger)
        await ledger.pool.execute("analyze")
        engine = read_engine(database.service, 1)

        @event.listens_for(engine.sync_engine, "connect")
        def listen(connection: Any, _: Any) -> None:
            connection.driver_connection.add_query_logger(lambda logged: run.append((logged.query, logged.args)))

        @event.listens_for(engine.sync_engine, "before_cursor_execute")
        def note(_: Any, __: Any, statement: str, parameters: tuple[Any, ...], *___: Any) -> None:
            run.append((statement, parameters))

        await _read_everything(Reading(engine, simulated_clock=True))
        await _export_everything(Reading(engine, simulated_clock=True))
        await engine.dispose()
        assert len(run) > 40
        scans: dict[str, set[str]] = {}
        reached: set[str] = set()
        for query, args in run:
            if query.lstrip().lower().startswith(("select", "with")):
                plan = await ledger.pool.fetchval(f"explain (format json) {query}", *(args or ()))
                tables = _tables(plan)
                reached |= {table for table, _ in tables}
                found = {table for table, way in tables if way in SEQUENTIAL} & HISTORY_TABLES
                if found:
                    scans[query] = found
        assert scans == {}
        assert reached >= HISTORY_TABLES


def _tables(plan: str) -> set[tuple[str, str]]:
    """The tables that a plan reads, and how."""
    pending: list[Any] = [msgspec.json.decode(plan)[0]["Plan"]]
    tables: set[tuple[str, str]] = set()
    while pending:
        node = pending.pop()
        if "Relation Name" in node:
            tables.add((node["Relation Name"], node["Node Type"]))
        pending += node.get("Plans", [])
    return tables


async def _fill(ledger: Ledger) -> None:
    """Ten accounts of some hundreds of entries each, over some days."""
    for number in range(10):
        customer = await ledger.customer(f"acme-{number}", 1_000_000)
        await customer.changes(quotas={"live": commands.QuotaChange(max_requests=1_000)})
        for hour in range(10):
            await ledger.at(NOON + hour * 6 * HOUR)
            names = [f"j-{hour}-{n}" for n in range(25)]
            await _all(names, lambda name, who=customer: who.reserves(name, ("agent_turn", 1), ttl_seconds=60))
            await _all(names[::3], lambda name, who=customer: who.settles(name, ("agent_turn", 1)))
        await ledger.at(NOON)
    await ledger.at(NOON + 10 * 6 * HOUR)


async def _all(names: list[str], act: Any) -> None:
    await asyncio.gather(*(act(name) for name in names))


async def _read_everything(reading: Reading) -> None:
    account_id = "acme-1"
    middle = NOON + 29 * HOUR
    await account(reading, account_id)
    for at in (None, NOON, middle, NOON + 53 * HOUR):
        await balance(reading, account_id, at)
    for period in ("2026-10", NOVEMBER):
        await statement(reading, account_id, period)
    for limit in (50, 500):
        request = PageRequest(limit)
        await grants(reading, account_id, request)
        await cycles(reading, account_id, request)
        for wanted in (JobFilter(), JobFilter(start=NOON, end=middle), JobFilter(environment="live", operation="x")):
            for query in (jobs, records):
                page = await query(reading, account_id, wanted, request)
                assert page is not None
                await query(reading, account_id, wanted, PageRequest(limit, page.next_cursor))
        for status in ("reserved", "settled", "released", "expired"):
            await jobs(reading, account_id, JobFilter(status=status), request)
        for journal in (JournalFilter(), JournalFilter(start=NOON, end=middle)):
            page_of_entries = await entries(reading, account_id, journal, request)
            assert page_of_entries is not None
            await entries(reading, account_id, journal, PageRequest(limit, page_of_entries.next_cursor))
    await job(reading, account_id, "j-3-5")
    for days in (None, (date(2026, 11, 1), date(2026, 11, 17))):
        await usage(reading, account_id, UsageFilter(days=days, group_by=GROUPS))
    told = await events_behind(reading, "live", await position_but(reading, "live", 300), 500)
    assert len(told) == 300
    few = [position for position, _ in told[:10]]
    assert await still_named(reading, few) == set(few)
    live, ends = await page_of_accounts(reading, 0, 100)
    assert len(live) == 10
    assert await first_ends(reading, [each.number for each in live], NOON + 30 * DAY) == ends == {}


async def _export_everything(reading: Reading) -> None:
    for what in CONTENTS:
        for accounts in ((), ("acme-1",)):
            wanted = Export(what=what, period=NOVEMBER, accounts=accounts)
            assert await export(reading, wanted, Nowhere(), lambda *_: None) > 0


class Nowhere:
    """Where an export is written that nobody reads."""

    def write(self, rows: Sequence[Row]) -> None:
        assert all(len(row) == len(rows[0]) for row in rows)

    def finish(self) -> None:
        pass
