"""The views for dashboards: they show what the HTTP interface shows, to a role that can see nothing else."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from ledger.core.commands import Environment, Line, PutCycle, QuotaChange, Refused, Reserve
from ledger.core.overage import CycleStatus, cap_credits, effective_cap, provider_ceiling
from ledger.embedded import ConnectionUrls
from ledger.queries.accounts import account, grants
from ledger.queries.balance import balance
from ledger.queries.paging import PageRequest
from ledger.queries.statements import statement
from ledger.queries.usage import GROUPS, UsageFilter, usage
from tests.support.history import DECEMBER, Customer
from tests.support.reading import Ledger, ledger_on, shown

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
HISTORY = ("plain", "deep", "over", "mixed")
MICRO = 1_000_000

VIEWS = {
    "today",
    "accounts",
    "environments",
    "months",
    "usage",
    "grants",
    "holds",
    "jobs",
    "records",
    "events",
    "billing_cycles",
}


@pytest.fixture
async def reader(database: ConnectionUrls) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database.reader)
    yield connection
    await connection.close()


@pytest.fixture
async def ledger(database: ConnectionUrls) -> AsyncIterator[Ledger]:
    async with ledger_on(database, NOON) as ledger:
        yield ledger


@pytest.fixture
async def history(filled: ConnectionUrls) -> AsyncIterator[Ledger]:
    """A November and a December with everything in them, all that is due entered."""
    async with ledger_on(filled, DECEMBER) as ledger:
        for name in HISTORY:
            await Customer(ledger.engine, name).is_brought_up()
        yield ledger


@pytest.fixture
async def seen(filled: ConnectionUrls) -> AsyncIterator[asyncpg.Connection]:
    """What the reader sees of that history."""
    connection = await asyncpg.connect(filled.reader)
    yield connection
    await connection.close()


# -- who may see what ----------------------------------------------------------------------------------------------


async def test_the_reader_reads_every_view_and_nothing_else(
    reader: asyncpg.Connection, database: ConnectionUrls
) -> None:
    names = "select table_name from information_schema.views where table_schema = 'reporting'"
    assert {row[0] for row in await reader.fetch(names)} == VIEWS
    for view in VIEWS:
        await reader.fetch(f"select * from reporting.{view}")
    owner = await asyncpg.connect(database.owner)
    tables = [row[0] for row in await owner.fetch("select tablename from pg_tables where schemaname = 'ledger'")]
    await owner.close()
    assert len(tables) > 20
    for table in (*(f"ledger.{name}" for name in tables), "public.alembic_version"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await reader.fetch(f"select * from {table}")


@pytest.mark.parametrize(
    "statement",
    [
        "create table reporting.mine (one int)",
        "create view reporting.mine as select 1",
        "delete from reporting.billing_cycles",
        "update reporting.accounts set available = 1",
        "insert into reporting.usage (credits) values (1)",
        "set role ledger_service",
        "set role ledger_owner",
    ],
)
async def test_the_reader_changes_nothing(reader: asyncpg.Connection, statement: str) -> None:
    with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError)):
        await reader.execute(statement)


async def test_no_view_reads_the_journal_or_what_customers_sent(database: ConnectionUrls) -> None:
    owner = await asyncpg.connect(database.owner)
    used = await owner.fetch("select distinct table_name from information_schema.view_table_usage")
    columns = await owner.fetch("select table_name, column_name from information_schema.view_column_usage")
    await owner.close()
    tables = {row[0] for row in used}
    assert {"usage_totals", "periods", "balances"} <= tables
    assert not tables & {"entries", "postings", "job_results", "endpoints"}
    private = {"metadata", "request", "settle_request", "idempotency_key", "result", "lines", "key_prefix"}
    assert not {row[1] for row in columns} & private


async def test_an_event_shows_none_of_the_metadata_that_it_carries(ledger: Ledger, reader: asyncpg.Connection) -> None:
    acme = await ledger.customer("acme", 100)
    await acme.does(
        Reserve(
            account_id="acme",
            job_id="lost",
            environment="test",
            lines=(Line("agent_turn", 1),),
            ttl_seconds=1,
            metadata=b'{"usage_percent": "of the customer"}',
        )
    )
    await ledger.at(NOON + timedelta(seconds=1))
    await acme.is_brought_up()
    rows = await reader.fetch("select * from reporting.events where account_id = 'acme'")
    assert [(row["type"], row["environment"], row["usage_percent"]) for row in rows] == [("job.expired", "test", None)]
    assert "customer" not in repr(rows)


# -- the same figures as the interface's ---------------------------------------------------------------------------


async def test_accounts_show_their_policy_balance_and_overage(history: Ledger, seen: asyncpg.Connection) -> None:
    rows = {row["account_id"]: row for row in await seen.fetch("select * from reporting.accounts")}
    assert set(rows) == set(HISTORY)
    for name, row in rows.items():
        policy = await shown(account(history.reading, name))
        now = await shown(balance(history.reading, name))
        same = ("module_enabled", "access", "payment_method_verified", "paid_cycles")
        assert [row[field] for field in same] == [policy[field] for field in same]
        assert row["provider_ceiling_usd"] == Decimal(policy["provider_ceiling_usd"])
        assert row["effective_cap_usd"] == Decimal(policy["effective_cap_usd"]) == Decimal(now["overage"]["cap_usd"])
        assert row["effective_cap_credits"] == policy["effective_cap_credits"] == now["overage"]["cap_credits"]
        assert row["cap_usd"] == _decimal(policy["overage"]["cap_usd"])
        assert row["credit_price_usd"] == _decimal(policy["overage"]["credit_price_usd"])
        assert [row[field] for field in ("available", "held", "overdraft")] == [
            now[field] for field in ("available", "held", "overdraft")
        ]
        overage = now["overage"]
        assert (row["overage_usable"], row["overage_used"], row["overage_held"]) == (
            overage["usable"],
            overage["used"],
            overage["held"],
        )
        this_month = await shown(statement(history.reading, name, now["period"]))
        assert row["overage_used_usd"] == Decimal(this_month["overage"]["usd"])
    assert rows["over"]["overage_usable"]


async def test_overage_counts_against_the_cap_used_or_held(ledger: Ledger, reader: asyncpg.Connection) -> None:
    acme = await ledger.customer("acme", 100)
    await acme.changes(overage_enabled=True, credit_price_usd=1_500)
    figures = "select overage_usable, overage_used, overage_held, overage_used_usd, overage_headroom"
    assert await _row(reader, f"{figures} from reporting.accounts") == (False, 0, 0, 0, 0)
    await acme.changes(payment_method_verified=True)
    for job, credits in (("used", 3_400), ("held", 200)):  # The welcome is spent too.
        await acme.reserves(job, ("tts_synthesis", credits))
    await acme.settles("used", ("tts_synthesis", 3_400))
    cap = cap_credits(effective_cap(None, 0), 1_500)
    assert await _row(reader, f"{figures} from reporting.accounts") == (
        True,
        300,
        200,
        Decimal("0.45"),
        cap - 500,
    )


async def test_environments_show_ceilings_and_use(history: Ledger, seen: asyncpg.Connection) -> None:
    found = 0
    for row in await seen.fetch("select * from reporting.environments where max_requests is not null"):
        shows = (await shown(balance(history.reading, row["account_id"])))["environments"][row["environment"]]
        assert {field: row[field] for field in shows} == shows
        found += 1
    assert found == 2 * len(HISTORY)


async def test_months_are_the_statements(history: Ledger, seen: asyncpg.Connection) -> None:
    rows = await seen.fetch("select * from reporting.months")
    assert {row["month"] for row in rows} == {"2026-11", "2026-12"}
    assert {row["account_id"] for row in rows} == set(HISTORY)
    for row in rows:
        kept = await shown(statement(history.reading, row["account_id"], row["month"]))
        same = ("granted", "adjusted", "charged", "charged_from_balance", "refunded", "refunded_to_balance", "expired")
        assert [row[field] for field in same] == [kept[field] for field in same]
        assert row["overage_used"] == kept["overage"]["credits"]
        assert row["overage_usd"] == Decimal(kept["overage"]["usd"])
    assert sum(row["overage_usd"] for row in rows) > 0


@pytest.mark.parametrize("month", ["2026-11", "2026-12"])
async def test_usage_is_the_usage(history: Ledger, seen: asyncpg.Connection, month: str) -> None:
    by_all = UsageFilter(period=month, group_by=GROUPS)
    for name in HISTORY:
        lines = (await shown(usage(history.reading, name, by_all)))["lines"]
        rows = await seen.fetch(
            "select day::text, environment, operation, unit, quantity, credits, refunded_credits, jobs"
            " from reporting.usage where account_id = $1 and month = $2 and (credits > 0 or refunded_credits > 0)",
            name,
            month,
        )
        assert _sorted(map(dict, rows)) == _sorted(lines)
        totals = (await shown(usage(history.reading, name, by_all)))["totals"]
        row = await _row(
            seen,
            "select coalesce(sum(credits), 0) as credits, coalesce(sum(refunded_credits), 0) as refunded_credits,"
            " coalesce(sum(net_credits), 0) as net_credits, coalesce(sum(first_jobs), 0) as jobs"
            " from reporting.usage where account_id = $1 and month = $2",
            name,
            month,
        )
        assert row == tuple(totals[name] for name in ("credits", "refunded_credits", "net_credits", "jobs"))


async def test_grants_are_the_grants(history: Ledger, seen: asyncpg.Connection) -> None:
    for name in HISTORY:
        page = await grants(history.reading, name, PageRequest(500))
        assert page is not None
        rows = await seen.fetch("select * from reporting.grants where account_id = $1 order by number", name)
        fields = ("grant_id", "kind", "granted", "remaining", "held", "expires_at", "reference", "created_at")
        assert [[row[f] for f in fields] for row in rows] == [[getattr(g, f) for f in fields] for g in page.data]


async def test_jobs_and_records_add_up_to_the_charges(history: Ledger, seen: asyncpg.Connection) -> None:
    for view, column in (("jobs", "charged"), ("records", "credits")):
        added = f"select account_id, sum({column}) from reporting.{view} group by 1 order by 1"
        charged = "select account_id, sum(charged) from reporting.months group by 1 order by 1"
        assert await seen.fetch(added) == await seen.fetch(charged)


async def test_what_is_due_shows_until_it_is_entered(ledger: Ledger, reader: asyncpg.Connection) -> None:
    acme = await ledger.customer("acme")
    await acme.gets("short", "adjustment", 100, NOON + timedelta(hours=1))
    await acme.reserves("lost", ("agent_turn", 1), ttl_seconds=60)
    holds = "select job_id, operation, held_credits, due from reporting.holds"
    ended = "select remaining, ended from reporting.grants"
    assert await _row(reader, holds) == ("lost", "agent_turn", 11, False)
    await ledger.at(NOON + timedelta(hours=1))
    assert await _row(reader, holds) == ("lost", "agent_turn", 11, True)
    assert await _row(reader, ended) == (89, True)
    await acme.is_brought_up()
    assert await _row(reader, holds) is None
    assert await _row(reader, ended) == (0, True)


async def test_today_is_the_ledgers_in_utc_whatever_the_session_says(
    ledger: Ledger, reader: asyncpg.Connection
) -> None:
    await ledger.at(datetime(2027, 1, 1, tzinfo=UTC))
    await reader.execute("set timezone to 'America/Sao_Paulo'")
    today = await _row(
        reader, "select day::text, month, month_start::text, last_month, last_month_start::text from reporting.today"
    )
    assert today == ("2027-01-01", "2027-01", "2027-01-01", "2026-12", "2026-12-01")


async def test_without_a_simulated_clock_now_is_the_databases(
    database: ConnectionUrls, reader: asyncpg.Connection
) -> None:
    before = datetime.now(UTC)
    now = await reader.fetchval("select now from reporting.today")
    assert before <= now <= datetime.now(UTC)


# -- caps and refusals ---------------------------------------------------------------------------------------------


async def test_caps_follow_the_ladder(ledger: Ledger, reader: asyncpg.Connection) -> None:
    await ledger.customer("acme")
    caps = (None, 0, 999_999, 20 * MICRO, 50 * MICRO, 1_000 * MICRO)
    for paid, cap, price in itertools.product((0, 2, 3, 5, 6, 7), caps, (None, 7)):
        await ledger.pool.execute("update ledger.accounts set paid_cycles = $1, cap_usd = $2", paid, cap)
        await ledger.pool.execute("update ledger.accounts set credit_price_usd = $1", price)
        row = await _row(
            reader,
            "select provider_ceiling_usd * 1000000 as ceiling, effective_cap_usd * 1000000 as cap,"
            " effective_cap_credits as credits from reporting.accounts",
        )
        expected = effective_cap(cap, paid)
        whole = None if price is None else cap_credits(expected, price)
        assert row == (provider_ceiling(paid), expected, whole)


async def test_billing_cycles_are_those_that_count(ledger: Ledger, reader: asyncpg.Connection) -> None:
    acme = await ledger.customer("acme")
    paid: tuple[CycleStatus, ...] = ("paid_on_time", "overdue", "paid_on_time", "paid_on_time")
    for number, status in enumerate(paid, start=1):
        await acme.does(PutCycle(account_id="acme", month=f"2026-{number:02}", status=status))
    rows = await reader.fetch("select month, status from reporting.billing_cycles order by month")
    assert [tuple(row) for row in rows] == [(f"2026-{n:02}", status) for n, status in enumerate(paid, start=1)]
    assert await reader.fetchval("select paid_cycles from reporting.accounts") == 2


REFUSALS: dict[str, tuple[dict[str, Any], int]] = {
    "nothing is wrong": ({}, 10),
    "no module": ({"module_enabled": False}, 10),
    "suspended": ({"access": "suspended"}, 10),
    "no quota row": ({"quotas": {"live": None}}, 10),
    "an empty ceiling": ({"quotas": {"live": QuotaChange(period_credits=0)}}, 10),
    "no more requests": ({"quotas": {"live": QuotaChange(max_requests=0)}}, 10),
    "the ceiling is used up": ({"quotas": {"live": QuotaChange(period_credits=11)}}, 10),
    "nothing left": ({}, 0),
    "overage without a payment method": ({"overage_enabled": True, "credit_price_usd": 1_000}, 0),
    "overage": ({"overage_enabled": True, "credit_price_usd": 1_000, "payment_method_verified": True}, 0),
    "a cap of nothing": (
        {"overage_enabled": True, "credit_price_usd": 1_000, "payment_method_verified": True, "cap_usd": 0},
        0,
    ),
}


@pytest.mark.parametrize(("policy", "left"), REFUSALS.values(), ids=REFUSALS)
async def test_what_a_request_would_be_refused_with(
    ledger: Ledger, reader: asyncpg.Connection, policy: dict[str, Any], left: int
) -> None:
    acme = await ledger.customer("acme", 11 + left)
    await acme.reserves("before", ("agent_turn", 1))
    await acme.changes(**policy)
    if left == 0 and policy.get("payment_method_verified"):  # The welcome has arrived: spend it.
        await ledger.pool.execute("update ledger.grants set remaining = 0, live = held > 0")
        await ledger.pool.execute("update ledger.balances set available = 0")
    shows = await reader.fetchval("select request_refused_with from reporting.environments where environment = 'live'")
    command = Reserve(account_id="acme", job_id="next", environment="live", lines=(Line("tts_synthesis", 1),))
    outcome = await acme.engine.execute(command)
    assert shows == (str(outcome.code) if isinstance(outcome, Refused) else None)


async def test_an_overdraft_refuses_whatever_overage_there_is(ledger: Ledger, reader: asyncpg.Connection) -> None:
    acme = await ledger.customer("acme", 11)
    await acme.reserves("deep", ("agent_turn", 1))
    await acme.settles("deep", ("agent_turn", 3))
    shows = await reader.fetch("select request_refused_with, call_refused_with from reporting.environments")
    assert [tuple(row) for row in shows] == [("insufficient_credits", "insufficient_credits")] * 2


@pytest.mark.parametrize("environment", ["live", "test"])
async def test_calls_have_a_ceiling_of_their_own(
    ledger: Ledger, reader: asyncpg.Connection, environment: Environment
) -> None:
    acme = await ledger.customer("acme", 10_000)
    await acme.changes(quotas={environment: QuotaChange(max_calls=1)})
    await acme.reserves("call", ("voice_call_minute", 60), environment=environment)
    rows = await reader.fetch("select environment, request_refused_with, call_refused_with from reporting.environments")
    other = "test" if environment == "live" else "live"
    assert {row[0]: tuple(row)[1:] for row in rows} == {
        environment: (None, "call_concurrency_limit_reached"),
        other: (None, None),
    }


# -- what it costs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "table", "more"),
    [
        ("accounts", "balances", ""),
        ("environments", "quotas", ""),
        ("months", "periods", ""),
        ("usage", "usage_totals", "and month = '2026-11'"),
        ("grants", "grants", ""),
        ("holds", "holds", ""),
        ("jobs", "jobs", "order by number desc limit 50"),
        ("records", "usage_records", "and closed_at >= '2026-11-01'"),
        ("events", "events", "order by position desc limit 50"),
    ],
)
async def test_one_accounts_rows_are_reached_by_its_key(
    history: Ledger, seen: asyncpg.Connection, view: str, table: str, more: str
) -> None:
    plan = await _plan(history, seen, f"select * from reporting.{view} where account_id = 'a' {more}")
    assert "Index Scan using accounts_account_id_key" in plan
    assert f"Seq Scan on {table}" not in plan
    assert "(account = a.account)" in plan or "(a.account = account)" in plan


async def test_a_month_of_all_accounts_is_found_among_years(ledger: Ledger, reader: asyncpg.Connection) -> None:
    await ledger.customer("acme")
    await ledger.pool.execute(
        "insert into ledger.usage_totals"
        " select account, to_char(day, 'YYYY-MM'), day, 'live', 'operation_' || n, 'request', 1, 1, 0, 1, 1"
        " from ledger.accounts, generate_series('2025-01-01'::date, '2026-11-15', '1 day') day,"
        " generate_series(1, 60) n"
    )
    await ledger.pool.execute("analyze ledger.usage_totals")
    rows = await reader.fetch("explain select * from reporting.usage where day >= '2026-11-01'")
    assert "Bitmap Index Scan on usage_totals_day_idx" in "\n".join(row[0] for row in rows)


async def _plan(history: Ledger, seen: asyncpg.Connection, sql: str) -> str:
    """Return how a statement is carried out, where tables this small are not simply read whole."""
    await history.pool.execute("analyze")
    await seen.execute("set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off")
    return "\n".join(row[0] for row in await seen.fetch(f"explain {sql}"))


async def _row(connection: asyncpg.Connection, sql: str, *given: object) -> tuple[Any, ...] | None:
    row = await connection.fetchrow(sql, *given)
    return None if row is None else tuple(row)


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


def _sorted(lines: Any) -> list[dict[str, Any]]:
    return sorted(lines, key=lambda line: (line["day"], line["environment"], line["operation"]))
