"""What `/metrics` says of a service: all that is defined, in as many series as ever, and the figures of the books."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from ledger import metrics
from ledger.embedded import ConnectionUrls
from tests.support.client import Client, connect
from tests.support.scraping import Scrape, scrape
from tests.support.service import Service

SECOND = timedelta(seconds=1)

ENDPOINT = """
[endpoints.crm]
url = "http://127.0.0.1:9/"
environment = "live"
secrets = ["whsec_0123456789abcdef"]
allow_private = true
"""

MANY_ACCOUNTS = """
with opened as (
    insert into ledger.accounts (account_id, created_at, module_enabled, overage_enabled, credit_price_usd)
    select 'many-' || n, clock_timestamp(), true, true, 1000 from generate_series(1, 10000) n returning account
)
insert into ledger.balances (account, head, at) select account, decode(repeat('00', 32), 'hex'), now() from opened
"""


async def test_every_metric_is_there(
    database: ConnectionUrls, services: Callable[..., Service], tmp_path: Path
) -> None:
    """All of them, with an endpoint for events and without a Redis."""
    webhooks = tmp_path / "endpoints.toml"
    webhooks.write_text(ENDPOINT)
    server = services("--database-url", database.service, "--simulated-clock", "--webhooks", str(webhooks))
    async with connect(server) as client:
        await client.call("POST", "/v1/sweeps/audit")
        text = (await client.get("/metrics")).body.decode()
    shown = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    without_redis = {"ledger_redis_up", "ledger_redis_last_success_timestamp_seconds"}
    assert {definition.name for definition in metrics.DEFINITIONS} - shown == without_redis


def test_names_follow_the_conventions() -> None:
    for definition in metrics.DEFINITIONS:
        assert definition.name.startswith("ledger_")
        assert definition.name.endswith("_total") == (definition.type == "counter")
        assert not {"account", "account_id", "job", "job_id", "path", "token"} & set(definition.labels)
        assert not re.search("_(ms|milliseconds|micro|kb|minutes|hours|days|percent)(_|$)", definition.name)


async def test_neither_accounts_nor_junk_make_series(server: Service, database: ConnectionUrls) -> None:
    """Ten thousand accounts, and names that nobody knows: as many series as after the first of each."""
    async with connect(server) as client:
        await junk(client, 0)
        await scrape(client)
        before = await scrape(client)
        await execute(database, MANY_ACCOUNTS)
        for n in range(1, 20):
            await junk(client, n)
        for page in range(10):
            await batch(client, [turn(f"many-{page * 1000 + n + 1}", "agent_turn", "j") for n in range(1000)])
            await batch(client, [turn(f"many-{page * 1000 + n + 1}", f"op_{page}_{n}", "j") for n in range(1000)])
        after = await scrape(client)
    assert after.value("ledger_refusals_total", operation="other") > 10_000
    assert set(after.values) == set(before.values)
    assert not [labels for _, labels in after.values if re.search("many-|op_[0-9]|junk", str(labels))]


async def junk(client: Client, n: int) -> None:
    """Send one of everything that can be made up."""
    for path in (f"/v1/junk-{n}", f"/v1/accounts/junk-{n}", f"/v1/accounts/junk-{n}/jobs/junk-{n}/junk-{n}"):
        await client.get(path)
    await client.call("GET", f"/v1/accounts/a/jobs/{n}", headers={"Authorization": f"Bearer junk-{n}"})
    for method in ("TRACE", "CONNECT", "LOCK", "REPORT"):
        await client.call(method, f"/v1/junk-{n}")
        await client.call(method, f"/v1/accounts/junk-{n}/jobs/junk-{n}")
    await client.call("DELETE", f"/v1/accounts/junk-{n}/jobs/junk-{n}")
    await client.call("POST", f"/v1/sweeps/junk-{n}")
    await client.reserve(f"junk-{n}", "j", (f"junk_{n}", 1))
    await batch(client, [turn(f"junk-{n}", operation, "j") for operation in (f"junk_{n}", "agent_turn")])


def turn(account_id: str, operation: str, job_id: str) -> dict[str, object]:
    lines = [{"operation": operation, "quantity": 1}]
    return {
        "command": "reserve",
        "account_id": account_id,
        "job_id": job_id,
        "environment": "live",
        "lines": lines,
    }


async def batch(client: Client, commands: list[dict[str, object]]) -> None:
    assert (await client.call("POST", "/v1/batch", {"commands": commands})).status == 200


async def execute(database: ConnectionUrls, sql: str) -> None:
    connection = await asyncpg.connect(database.owner)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


async def test_figures_are_those_of_the_books(server: Service) -> None:
    """Everything that moves credits, once; then what was counted is what usage, statements and balances say."""
    async with connect(server) as client:
        await tenth_of_next_month(client)
        await work_of_one(client)
        await work_of_two(client)
        await pass_time(client, 20)
        for sweep in ("expire_holds", "expire_grants", "audit"):
            assert (await client.call("POST", f"/v1/sweeps/{sweep}")).status == 200
        await client.reserve("one", "open", ("voice_call_minute", 60))
        seen = await scrape(client)
        period = (await now(client)).strftime("%Y-%m")
        usages = [(await client.get(f"/v1/accounts/{a}/usage?period={period}&{GROUPS}")).body for a in ("one", "two")]
        statements = [(await client.get(f"/v1/accounts/{a}/statements/{period}")).body for a in ("one", "two")]
        balances = [await client.balance(a) for a in ("one", "two")]
    assert_counts(seen)
    assert_usage(seen, usages)
    assert_statements(seen, statements)
    assert_state(seen, balances)


GROUPS = "group_by=operation,environment"


async def now(client: Client) -> datetime:
    return datetime.fromisoformat((await client.get("/v1/clock")).body["now"])


async def tenth_of_next_month(client: Client) -> None:
    """Move away from the end of any month."""
    wanted = ((await now(client)).replace(day=1) + timedelta(days=32)).replace(day=10)
    await client.call("PUT", "/v1/clock", {"now": wanted.isoformat()})


async def pass_time(client: Client, seconds: int) -> None:
    await client.call("PUT", "/v1/clock", {"now": (await now(client) + seconds * SECOND).isoformat()})


async def work_of_one(client: Client) -> None:
    await client.open_account("one", 20_000)
    await client.reserve("one", "turn", ("agent_turn", 1), ("image_analysis", 1))
    await client.reserve("one", "turn", ("agent_turn", 1), ("image_analysis", 1))
    await client.settle("one", "turn", ("agent_turn", 1), ("image_analysis", 1))
    await client.reserve("one", "audio", ("audio_transcription", 30), environment="test")
    await client.settle("one", "audio", ("audio_transcription", 10.2))
    await client.reserve("one", "call", ("voice_call_minute", 300), transferable=True)
    await client.settle("one", "call", ("voice_call_minute", 150), ("voice_transfer_minute", 150))
    await client.refund("one", "call", "rf", 500)
    await client.reserve("one", "released")
    await client.release("one", "released")
    await client.reserve("one", "expired", ttl_seconds=10)
    await client.reserve("one", "unpriced", ("junk", 1))
    await client.grant("one", "less", -100, kind="adjustment")
    await client.grant("one", "short", 70, expires_at=(await now(client) + 10 * SECOND).isoformat())
    await client.grant("one", "long", 30_000)
    await client.reserve("one", "partial", ("voice_call_minute", 86_000), allow_partial=True)
    await client.release("one", "partial")


async def work_of_two(client: Client) -> None:
    overage = {"enabled": True, "cap_usd": "1.00", "credit_price_usd": "0.001"}
    await client.open_account("two", payment_method_verified=True, overage=overage)
    await client.reserve("two", "tts", ("tts_synthesis", 3_500))
    await client.settle("two", "tts", ("tts_synthesis", 3_400))
    await client.reserve("two", "more")
    await client.settle("two", "more", ("agent_turn", 1), ("tts_synthesis", 1_000))
    await client.grant("two", "g", 200)


def assert_counts(seen: Scrape) -> None:
    reservations = {
        labels: seen.value("ledger_reservations_total", outcome=labels) for labels in ("reserved", "partial", "refused")
    }
    assert reservations == {"reserved": 8, "partial": 1, "refused": 1}
    assert seen.value("ledger_reservations_total", outcome="repeated", operation="agent_turn", environment="live") == 1
    assert seen.value("ledger_reservations_total", outcome="refused", operation="other") == 1
    assert seen.value("ledger_refusals_total", command="reserve", code="operation_not_priced", operation="other") == 1
    assert seen.value("ledger_settlements_total", outcome="within_hold") == 4
    assert seen.value("ledger_settlements_total", outcome="over_hold", operation="agent_turn") == 1
    assert seen.value("ledger_releases_total", operation="agent_turn") == 1
    assert seen.value("ledger_releases_total", operation="voice_call_minute") == 1
    assert seen.value("ledger_expirations_total") == 1
    assert seen.value("ledger_refunds_total", operation="voice_call_minute", environment="live") == 1
    assert seen.value("ledger_grants_total", kind="purchase") == 4
    assert seen.value("ledger_grants_total", kind="adjustment") == 1
    assert seen.value("ledger_grants_total", kind="welcome") == 1
    assert seen.value("ledger_events_total", type="job.expired") == 1
    assert seen.value("ledger_errors_total", code="operation_not_priced") == 1
    jobs = "/v1/accounts/{account_id}/jobs/{job_id}"
    assert seen.value("ledger_http_requests_total", method="PUT", route=jobs, status="201") == 9
    assert seen.value("ledger_http_request_duration_seconds_count", method="PUT", route=jobs) == 11
    # What had been held for jobs of a call that were settled, and what they came to: 3,560 and 3,240.
    assert seen.value("ledger_settled_hold_credits_total", operation="voice_call_minute") == 5 * 620 + 460
    assert seen.value("ledger_settled_charge_credits_total", operation="voice_call_minute") == 3 * 620 + 3 * 460


def assert_usage(seen: Scrape, usages: list[Any]) -> None:
    """The totals that the interface shows are what was counted, by operation and environment."""
    charged: dict[tuple[str, str], int] = {}
    refunded: dict[tuple[str, str], int] = {}
    for line in (line for usage in usages for line in usage["lines"]):
        key = (line["operation"], line["environment"])
        charged[key] = charged.get(key, 0) + line["credits"]
        refunded[key] = refunded.get(key, 0) + line["refunded_credits"]
    assert len(charged) == 6
    for (operation, environment), credits in charged.items():
        labels = {"operation": operation, "environment": environment}
        assert seen.value("ledger_credits_charged_total", **labels) == credits
        assert seen.value("ledger_credits_refunded_total", **labels) == refunded[operation, environment]
    total = sum(usage["totals"]["credits"] for usage in usages)
    assert seen.value("ledger_credits_charged_total") == seen.value("ledger_credits_funded_total") == total
    assert seen.value("ledger_credits_refunded_total") == 500


def assert_statements(seen: Scrape, statements: list[Any]) -> None:
    granted = seen.value("ledger_credits_granted_total")
    assert granted == sum(statement["granted"] for statement in statements)
    assert -seen.value("ledger_credits_withdrawn_total") == sum(statement["adjusted"] for statement in statements)
    assert seen.value("ledger_credits_expired_total", kind="purchase") == sum(s["expired"] for s in statements) > 0
    assert seen.value("ledger_overage_charged_usd_total") == sum(float(s["overage"]["usd"]) for s in statements) == 1
    assert seen.value("ledger_credits_funded_total", source="overage") == 1_000
    assert seen.value("ledger_credits_funded_total", source="overdraft") == 411
    assert seen.value("ledger_overdraft_paid_credits_total") == 200


def assert_state(seen: Scrape, balances: list[Any]) -> None:
    held = sum(balance["held"] + balance["overage"]["held"] for balance in balances)
    returned, over_hold = seen.value("ledger_credits_returned_total"), seen.value("ledger_credits_over_hold_total")
    charged = seen.value("ledger_credits_charged_total")
    assert seen.value("ledger_credits_held_total") - returned - (charged - over_hold) == held == 620
    assert seen.value("ledger_overdraft_credits") == sum(balance["overdraft"] for balance in balances) == 211
    assert seen.value("ledger_overdraft_accounts") == 1
    assert seen.value("ledger_open_holds") == seen.value("ledger_open_holds", environment="live", slot="call") == 1
    assert seen.value("ledger_overage_month_credits", state="used") == 1_000
    assert seen.value("ledger_overage_month_usd", state="used") == 1
    assert seen.value("ledger_negative_available_accounts") == 0
    assert seen.value("ledger_database_up") == 1
    assert seen.value("ledger_audit_discrepancies") == 0
    assert seen.value("ledger_sweep_last_success_timestamp_seconds", sweep="purge_results") == 0
    assert seen.value("ledger_sweep_last_items", sweep="expire_holds", item="holds_expired") == 1
