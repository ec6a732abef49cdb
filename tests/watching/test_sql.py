"""Every panel that asks the database, as the role of dashboards: it runs, and its figures are the interface's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from ledger.embedded import ConnectionUrls
from tests.support.client import Client, connect
from tests.support.dashboards import DASHBOARDS, Asked, asked
from tests.support.service import Service

QUERIES = asked("rawSql")
BUSINESS = "ledger-business"
ACCOUNT = "ledger-account"

OF = {"Told of": "owes", "Invoices": "over"}
"""The account that a panel is shown of; the others are of `busy`."""


def substituted(
    text: str, *, account: str = "busy", environments: str = "'live','test'", since: datetime, until: datetime
) -> str:
    """Return SQL as Grafana sends it: its macros and variables replaced as its PostgreSQL source does."""
    begin, end = (f"'{at:%Y-%m-%dT%H:%M:%SZ}'" for at in (since, until))
    text = re.sub(r"\$__timeFilter\(([^)]+)\)", rf"\1 BETWEEN {begin} AND {end}", text)
    text = text.replace("$__timeFrom()", begin).replace("$__timeTo()", end)
    text = text.replace("${account:sqlstring}", "'" + account.replace("'", "''") + "'")
    text = text.replace("$environment", environments)
    assert "$" not in text, text
    return text


def _query(dashboard: str, panel: str) -> Asked:
    (found,) = (query for query in QUERIES if (query.dashboard, query.panel) == (dashboard, panel))
    return found


class Panels:
    """The dashboards of one database at one time, and the interface to compare them with."""

    def __init__(self, connection: asyncpg.Connection, client: Client, now: datetime) -> None:
        self.connection = connection
        self.client = client
        self.now = now
        self.month = f"{now:%Y-%m}"
        self.last_month = f"{now.replace(day=1) - timedelta(days=1):%Y-%m}"

    async def rows(self, query: Asked, **chosen: str) -> list[dict[str, Any]]:
        """Return what a panel shows of the last ninety days."""
        until = self.now + timedelta(seconds=1)  # Grafana sends whole seconds.
        text = substituted(query.text, since=self.now - timedelta(days=90), until=until, **chosen)
        return [dict(row) for row in await self.connection.fetch(text)]

    async def of(self, dashboard: str, panel: str, **chosen: str) -> list[dict[str, Any]]:
        return await self.rows(_query(dashboard, panel), **chosen)

    async def figure(self, dashboard: str, panel: str, **chosen: str) -> Any:
        """Return the one figure of a panel that has one."""
        ((value,),) = (row.values() for row in await self.of(dashboard, panel, **chosen))
        return value

    async def read(self, account: str, path: str = "") -> Any:
        answer = await self.client.get(f"/v1/accounts/{account}{path}")
        assert answer.status == 200, answer
        return answer.body


@pytest.fixture(scope="module")
def months(module_database: ConnectionUrls, module_server: Service) -> tuple[ConnectionUrls, Service]:
    """Two months of a few customers, all that was due entered."""

    async def live() -> None:
        async with connect(module_server) as client:
            now = datetime.fromisoformat((await client.get("/v1/clock")).body["now"])
            await _a_month(client, "1")
            following = (now.replace(day=1) + timedelta(days=32)).replace(day=2, hour=10)
            await client.call("PUT", "/v1/clock", {"now": following.isoformat()})
            for sweep in ("expire_holds", "expire_grants", "close_period", "grant_welcome"):
                assert (await client.call("POST", f"/v1/sweeps/{sweep}")).status == 200
            await _a_month(client, "2")
            await _an_end(client, following)

    asyncio.run(live())
    return module_database, module_server


async def _a_month(client: Client, month: str) -> None:
    """Usage in both environments, overage, refunds, what was not delivered."""
    await client.open_account("busy")
    await client.grant("busy", f"plan-{month}", 5_000, kind="plan")
    await client.open_account(
        "over", payment_method_verified=True, overage={"enabled": True, "credit_price_usd": "0.0015", "cap_usd": "5.00"}
    )
    await client.open_account("owes", 100)
    for number, environment in enumerate(("live", "test", "live")):
        job = f"m{month}-{number}"
        await client.reserve("busy", job, ("tts_synthesis", 300), ("agent_turn", 1), environment=environment)
        await client.settle("busy", job, ("tts_synthesis", 200 + number), ("agent_turn", 1))
    await client.refund("busy", f"m{month}-0", "rf-" + month, 30)
    await client.reserve("busy", f"failed-{month}")
    await client.release(
        "busy", f"failed-{month}", error_code="upstream_unavailable", record={"request_id": "r", "status_code": 503}
    )
    await client.reserve("over", f"m{month}", ("tts_synthesis", 3_050))
    await client.settle("over", f"m{month}", ("tts_synthesis", 3_040))
    await client.call("PUT", f"/v1/accounts/over/billing-cycles/2026-0{month}", {"status": "paid_on_time"})


async def _an_end(client: Client, now: datetime) -> None:
    """What is open, owed, about to end, waiting or leaving as one looks."""
    await client.reserve("over", "held", ("tts_synthesis", 40))
    await client.reserve("busy", "open", ("voice_call_minute", 60), environment="test", ttl_seconds=3_600)
    await client.grant("busy", "short", 70, kind="adjustment", expires_at=(now + timedelta(days=3)).isoformat())
    await client.reserve("owes", "deep", ("agent_turn", 1))
    await client.settle("owes", "deep", ("agent_turn", 20))
    await client.reserve("owes", "refused")
    await client.open_account("new", payment_method_verified=True, access="suspended")
    await client.call("POST", "/v1/accounts/new/deletion")


@pytest.fixture
async def shown(months: tuple[ConnectionUrls, Service]) -> AsyncIterator[Panels]:
    database, service = months
    connection = await asyncpg.connect(database.reader, server_settings={"timezone": "America/Sao_Paulo"})
    async with connect(service) as client:
        now = datetime.fromisoformat((await client.get("/v1/clock")).body["now"]).astimezone(UTC)
        yield Panels(connection, client, now)
    await connection.close()


# -- every panel ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
async def test_a_panel_runs_and_shows_the_columns_it_speaks_of(shown: Panels, query: Asked) -> None:
    rows = await shown.rows(query, account=OF.get(query.panel, "busy"))
    assert rows
    if query.panel_json["type"] == "timeseries":
        assert set(rows[0]) == {"time", "metric", "value"}
        assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
        assert all(row["time"].astimezone(UTC).hour == 0 for row in rows), (
            "days begin in UTC, whatever the session says"
        )
    if query.panel_json["type"] == "stat":
        assert len(rows) == len(rows[0]) == 1
    overrides = query.panel_json["fieldConfig"]["overrides"]
    assert {override["matcher"]["options"] for override in overrides} <= set(rows[0])


@pytest.mark.parametrize("query", [query for query in QUERIES if query.dashboard == ACCOUNT], ids=lambda q: q.name)
async def test_a_name_that_would_break_out_of_its_quotes_is_of_nobody(shown: Panels, query: Asked) -> None:
    for name in ("o'brien", "' or true --", "nobody"):
        assert await shown.rows(query, account=name) == []


async def test_accounts_are_found_by_how_they_begin(shown: Panels) -> None:
    (variable,) = (v for v in DASHBOARDS[ACCOUNT]["templating"]["list"] if v["name"] == "account")
    rows = await shown.connection.fetch(variable["query"].replace("$__searchFilter", "o%"))
    assert [row[0] for row in rows] == ["over", "owes"]


# -- the interface's figures ---------------------------------------------------------------------------------------


async def _usage(shown: Panels, query: str) -> dict[str, Any]:
    return {name: await shown.read(name, f"/usage?{query}") for name in ("busy", "over", "owes")}


async def test_usage_by_operation_and_environment(shown: Panels) -> None:
    since, until = (f"{day:%Y-%m-%d}" for day in (shown.now - timedelta(days=90), shown.now + timedelta(days=1)))
    usage = await _usage(shown, f"from={since}&to={until}&group_by=operation,environment")
    expected: dict[tuple[str, str], list[int]] = {}
    for body in usage.values():
        for line in body["lines"]:
            row = expected.setdefault((line["operation"], line["environment"]), [0, 0, 0, 0])
            for index, field in enumerate(("jobs", "quantity", "credits", "refunded_credits")):
                row[index] += line[field]
    rows = await shown.of(BUSINESS, "By operation and environment")
    assert {
        (row["operation"], row["environment"]): [row["jobs"], row["quantity"], row["credits"], row["refunded"]]
        for row in rows
    } == expected
    top = {row["account"]: row for row in await shown.of(BUSINESS, "Top accounts")}
    for name, body in usage.items():
        totals = body["totals"]
        assert (top[name]["credits"], top[name]["refunded"]) == (totals["credits"], totals["refunded_credits"])
        assert (top[name]["net"], top[name]["jobs"]) == (totals["net_credits"], totals["jobs"])
    test_only = await shown.of(BUSINESS, "By operation and environment", environments="'test'")
    assert {row["environment"] for row in test_only} == {"test"}


async def test_credits_a_day_add_up_by_operation_and_by_environment(shown: Panels) -> None:
    by_day: dict[tuple[str, str], int] = {}
    for month in (shown.month, shown.last_month):
        for body in (await _usage(shown, f"period={month}&group_by=day,operation")).values():
            for line in body["lines"]:
                key = (line["day"], line["operation"])
                by_day[key] = by_day.get(key, 0) + line["credits"]
    rows = await shown.of(BUSINESS, "Credits a day, by operation")
    shows = {(f"{row['time'].astimezone(UTC):%Y-%m-%d}", row["metric"]): row["value"] for row in rows}
    assert {key: value for key, value in shows.items() if value} == by_day
    other = await shown.of(BUSINESS, "Credits a day, by environment")
    assert sum(row["value"] for row in other) == sum(by_day.values())
    busy = await shown.of(ACCOUNT, "Credits a day, by operation")
    usage = await _usage(shown, f"period={shown.month}")
    last = await _usage(shown, f"period={shown.last_month}")
    charged = usage["busy"]["totals"]["credits"] + last["busy"]["totals"]["credits"]
    assert sum(row["value"] for row in busy) == charged


async def test_months_are_those_of_the_statements(shown: Panels) -> None:
    names = ("busy", "over", "owes")
    this = [await shown.read(name, f"/statements/{shown.month}") for name in names]
    last = [await shown.read(name, f"/statements/{shown.last_month}") for name in names]
    assert await shown.figure(BUSINESS, "Charged this month") == sum(s["charged"] for s in this) > 0
    assert await shown.figure(BUSINESS, "Last month") == sum(s["charged"] for s in last) > 0
    assert await shown.figure(BUSINESS, "Refunded this month") == sum(s["refunded"] for s in this) > 0
    for panel, month in (("Overage this month", this), ("Overage last month", last)):
        usd = sum(Decimal(s["overage"]["usd"]) for s in month)
        assert await shown.figure(BUSINESS, panel) == usd
        assert usd > 0
    overage = {f"{r['time'].astimezone(UTC):%Y-%m}": r["value"] for r in await shown.of(BUSINESS, "Overage by month")}
    assert overage[shown.month] == await shown.figure(BUSINESS, "Overage this month")
    for name, statements in zip(names, zip(this, last, strict=True), strict=True):
        rows = {row["month"]: row for row in await shown.of(ACCOUNT, "Months", account=name)}
        for statement in statements:
            row = rows[statement["period"]]
            for field in ("granted", "adjusted", "charged", "charged_from_balance", "refunded", "expired"):
                assert row[field] == statement[field]
            assert row["overage_usd"] == Decimal(statement["overage"]["usd"])
            assert (row["closed_at"] is None) == (statement["status"] == "open")


async def test_the_running_total_ends_at_the_months(shown: Panels) -> None:
    rows = await shown.of(BUSINESS, "Running total of the month")
    ends = {row["metric"]: row["value"] for row in rows}
    assert ends["this month"] == await shown.figure(BUSINESS, "Charged this month")
    assert ends["last month"] == await shown.figure(BUSINESS, "Last month")
    by_now = [row["value"] for row in rows if row["metric"] == "last month" and row["time"] <= shown.now]
    assert await shown.figure(BUSINESS, "Last month by this day") == max(by_now, default=0)


async def test_overage_stands_against_the_caps_of_the_accounts(shown: Panels) -> None:
    (row,) = await shown.of(BUSINESS, "Overage against caps")
    policy, balance = await shown.read("over"), await shown.read("over", "/balance")
    overage = balance["overage"]
    assert row["account"] == "over"
    assert (row["used"], row["held"], row["cap"]) == (overage["used"], overage["held"], overage["cap_credits"])
    assert row["cap_usd"] == Decimal(policy["effective_cap_usd"]) == Decimal("5.00")
    assert row["ceiling_usd"] == Decimal(policy["provider_ceiling_usd"])
    assert row["paid_cycles"] == policy["paid_cycles"] == 2
    assert float(row["of_cap"]) == pytest.approx((overage["used"] + overage["held"]) / overage["cap_credits"])
    assert await shown.figure(BUSINESS, "At four fifths of their cap") == (row["of_cap"] >= Decimal("0.8"))
    assert await shown.figure(BUSINESS, "May use overage") == 1
    (owes,) = await shown.of(BUSINESS, "Accounts with an overdraft")
    assert (owes["account"], owes["overdraft"]) == ("owes", (await shown.read("owes", "/balance"))["overdraft"])


async def test_grants_are_those_of_the_accounts(shown: Panels) -> None:
    held: dict[str, list[int]] = {}
    for name in ("busy", "over", "owes"):
        for grant in (await shown.read(name, "/balance"))["grants"]:
            row = held.setdefault(grant["kind"], [0, 0, 0])
            for index, figure in enumerate((1, grant["remaining"], grant["held"])):
                row[index] += figure
    left = await shown.of(BUSINESS, "Credits left, by kind")
    assert {row["kind"]: [row["grants"], row["credits"], row["held"]] for row in left} == held
    ending = await shown.of(BUSINESS, "Credits that end in the next thirty days")
    day = (shown.now + timedelta(days=3)).date()
    assert [(row["kind"], row["credits"]) for row in ending if row["day"] == day] == [("adjustment", 70)]
    paths = [f"/statements/{month}" for month in (shown.month, shown.last_month)]
    statements = [await shown.read(name, path) for name in ("busy", "over", "owes") for path in paths]
    granted = sum(statement["granted"] for statement in statements)
    by_month = await shown.of(BUSINESS, "In and out of balances, by month")
    assert sum(row["value"] for row in by_month if row["metric"] == "granted") == granted


async def test_accounts_are_counted(shown: Panels) -> None:
    counted = {
        panel: await shown.figure(BUSINESS, panel)
        for panel in ("Accounts", "May work", "Suspended", "Welcomed", "Wait for their welcome", "To be deleted")
    }
    assert counted == {
        "Accounts": 4,
        "May work": 3,
        "Suspended": 1,
        "Welcomed": 1,
        "Wait for their welcome": 0,
        "To be deleted": 1,
    }


@pytest.mark.parametrize("name", ["busy", "over", "owes", "new"])
async def test_an_accounts_balance_is_what_the_interface_says(shown: Panels, name: str) -> None:
    policy, balance = await shown.read(name), await shown.read(name, "/balance")
    overage = balance["overage"]
    for panel, expected in (
        ("Available", balance["available"]),
        ("Held", balance["held"]),
        ("Overdraft", balance["overdraft"]),
        ("Overage used this month", overage["used"]),
        ("Cap in effect", Decimal(policy["effective_cap_usd"])),
    ):
        assert await shown.figure(ACCOUNT, panel, account=name) == expected, panel
    left = (overage["cap_credits"] or 0) - overage["used"] - overage["held"] if overage["usable"] else 0
    assert await shown.figure(ACCOUNT, "Overage left under the cap", account=name) == left
    for row in await shown.of(ACCOUNT, "Ceilings", account=name):
        environment = balance["environments"][row["environment"]]
        for field in ("open_requests", "max_requests", "open_calls", "max_calls", "used", "held", "remaining"):
            assert row[field] == environment[field]
    (policy_row,) = await shown.of(ACCOUNT, "Policy", account=name)
    for field in ("module_enabled", "access", "payment_method_verified", "paid_cycles"):
        assert policy_row[field] == policy[field]
    grants = await shown.of(ACCOUNT, "Grants with something left", account=name)
    assert {(g["grant_id"], g["remaining"], g["held"]) for g in grants} == {
        (g["grant_id"], g["remaining"], g["held"]) for g in balance["grants"]
    }
    holds = await shown.of(ACCOUNT, "Open holds", account=name)
    reserved = (await shown.read(name, "/jobs?status=reserved&limit=500"))["data"]
    assert {(hold["job_id"], hold["held_credits"]) for hold in holds} == {
        (job["job_id"], job["held_credits"]) for job in reserved
    }
    jobs = await shown.of(ACCOUNT, "Last jobs", account=name)
    listed = (await shown.read(name, "/jobs?limit=100"))["data"]
    assert [(job["job_id"], job["status"], job["charged"]) for job in jobs] == [
        (job["job_id"], job["status"], job["credits_charged"]) for job in listed
    ]


async def test_why_an_account_is_refused(shown: Panels) -> None:
    refused = {
        name: {row["request_refused_with"] for row in await shown.of(ACCOUNT, "Ceilings", account=name)}
        for name in ("busy", "owes", "new")
    }
    assert refused == {"busy": {None}, "owes": {"insufficient_credits"}, "new": {"gateway_not_enabled"}}
    told = await shown.of(ACCOUNT, "Told of", account="owes")
    assert "credits.exhausted" in {row["type"] for row in told}
    failed = await shown.of(ACCOUNT, "Requests that failed", account="busy")
    assert {(row["status"], row["status_code"], row["credits"]) for row in failed} == {("released", 503, 0)}
    invoices = await shown.of(ACCOUNT, "Invoices", account="over")
    assert [(row["month"], row["status"]) for row in invoices] == [
        ("2026-02", "paid_on_time"),
        ("2026-01", "paid_on_time"),
    ]
