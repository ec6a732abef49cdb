"""A real Prometheus scrapes the running service while a trace replays: every expression there is finds its data."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from jobs.sweeps import SWEEPS
from ledger.embedded import ConnectionUrls
from tests.acceptance.test_replay import TRACE, replay
from tests.support.client import Client, connect
from tests.support.dashboards import DASHBOARDS, RULES, alerts, expressions
from tests.support.prometheus import Prometheus, running_prometheus
from tests.support.redis import running_redis
from tests.support.service import Service

SECONDS_MAX = 60.0

VARIABLES = {"$instance": ".*", "$environment": "(live|test)", "$__rate_interval": "1m", "$__range": "1m"}
"""What Grafana puts in place of its variables; several chosen values become such a group."""

FIRES = "LedgerDefect"
"""The one alert that is to fire: an operation without a price was asked for."""

EMPTY = {name: "it finds nothing while nothing is wrong" for name in alerts() if name != FIRES}
"""Expressions that may find nothing, and why."""

ENDPOINT = """
[endpoints.crm]
url = "http://127.0.0.1:9/"
environment = "live"
secrets = ["whsec_0123456789abcdef"]
allow_private = true
"""
"""Nobody listens there: events wait, and attempts fail."""


@pytest.fixture(scope="module")
def prometheus(
    module_database: ConnectionUrls, module_services: Callable[..., Service], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus that has seen a service replay a trace, and everything else that a service does."""
    webhooks = tmp_path_factory.mktemp("watched") / "endpoints.toml"
    webhooks.write_text(ENDPOINT)
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        options = ("--database-url", module_database.service, "--redis-url", redis.url, "--webhooks", str(webhooks))
        service = module_services(*options)
        prometheus = stack.enter_context(running_prometheus(service.url.removeprefix("http://"), RULES))
        asyncio.run(_watch(service, prometheus))
        yield prometheus


async def _watch(service: Service, prometheus: Prometheus) -> None:
    """Let everything happen twice, each time until it has been scraped: what rates are made of."""
    await _until(lambda: _value(prometheus, "up") == 1)
    async with connect(service) as client:
        for times, wave in enumerate(("a", "b"), start=1):
            await _everything(client, wave)
            await client.get("/v1/clock")  # Nothing else asks for it, so it says when all of the wave was scraped.
            await _until(partial(_scraped, prometheus, times))
            if wave == "a":
                done = await asyncio.to_thread(replay, service, TRACE)
                assert done.returncode == 0, done.stdout + done.stderr
        await _until(lambda: not _missing(prometheus), lambda: f"without data: {_missing(prometheus)}")


async def _everything(client: Client, wave: str) -> None:
    """Do what a trace leaves out: overage, overdraft, refusals, refunds, negative adjustments, errors, sweeps."""
    name = f"watched-{wave}"
    await client.open_account(
        name, 500, payment_method_verified=True, overage={"enabled": True, "credit_price_usd": "0.001"}
    )
    await client.grant(name, "mistake", -20, kind="adjustment")
    await client.reserve(name, "over", ("tts_synthesis", 5_000))
    await client.settle(name, "over", ("tts_synthesis", 30_000))
    await client.refund(name, "over", "rf-1", 10)
    await client.reserve(name, "refused", ("video_analysis", 1))
    await client.grant(name, "more", 10_000)
    await client.grant(name, "short", 50, kind="adjustment", expires_at="2999-01-01T00:00:00Z")
    await client.reserve(name, "held")
    await client.reserve(name, "held")
    await client.reserve(name, "left")
    await client.release(name, "left")
    await client.reserve(name, "lost", ttl_seconds=1)
    await client.get("/nowhere")
    assert (await client.reserve(name, "odd", ("no_such_operation", 1))).status == 500
    for sweep in SWEEPS:
        assert (await client.call("POST", f"/v1/sweeps/{sweep}")).status == 200


async def _until(condition: Callable[[], bool], missing: Callable[[], str] = lambda: "") -> None:
    """Wait until something is so: what is scraped each second is asked for as often."""
    for _ in range(int(SECONDS_MAX / 0.25)):
        if await asyncio.to_thread(condition):
            return
        await asyncio.sleep(0.25)
    raise AssertionError(missing())


def _value(prometheus: Prometheus, expr: str) -> float | None:
    found = prometheus.query(f"sum({expr})")
    return float(found[0]["value"][1]) if found else None


def _scraped(prometheus: Prometheus, times: int) -> bool:
    return _value(prometheus, 'ledger_http_requests_total{route="/v1/clock"}') == times


def _missing(prometheus: Prometheus) -> list[str]:
    """Return the expressions that find nothing, or nothing that is a number."""
    return [
        name
        for name, expr in expressions().items()
        if name not in EMPTY and not _numbers(prometheus.query(substituted(expr)))
    ]


def _numbers(found: list[dict[str, Any]]) -> list[float]:
    return [value for series in found if not math.isnan(value := float(series["value"][1]))]


def substituted(expr: str) -> str:
    """Return an expression as Grafana sends it."""
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return expr


@pytest.mark.parametrize(("name", "expr"), expressions().items(), ids=expressions())
def test_every_expression_finds_its_data(prometheus: Prometheus, name: str, expr: str) -> None:
    found = prometheus.query(substituted(expr))
    assert _numbers(found) or name in EMPTY


def test_whatever_may_find_nothing_is_there() -> None:
    assert EMPTY.keys() < expressions().keys()


def test_every_rule_is_evaluated_and_only_what_is_wrong_fires(prometheus: Prometheus) -> None:
    evaluated = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert [(rule["name"], rule.get("lastError")) for rule in evaluated if rule["health"] != "ok"] == []
    assert {rule["name"] for rule in evaluated if rule["type"] == "alerting"} == set(alerts())
    assert {rule["name"] for rule in evaluated if rule.get("state") == "firing"} == {FIRES}


def test_every_replica_can_be_chosen(prometheus: Prometheus) -> None:
    (variable,) = (each for each in DASHBOARDS["ledger-operations"]["templating"]["list"] if each["name"] == "instance")
    assert variable["query"] == "label_values(ledger_build_info, instance)"
    assert len({series["metric"]["instance"] for series in prometheus.query("ledger_build_info")}) == 1


def test_figures_are_those_of_the_service(prometheus: Prometheus) -> None:
    (served,) = _numbers(prometheus.query(substituted(expressions()["ledger-operations: Answered without a 5xx A"])))
    assert 0.9 < served < 1, "two requests asked for an operation without a price"
    assert _value(prometheus, "ledger_audit_discrepancies") == 0
    assert _value(prometheus, "ledger_overdraft_credits") == 0
    overdrawn = 2 * (30_000 - 3_000 - 500 + 20 - 20_000)
    assert _value(prometheus, 'ledger_credits_funded_total{source="overdraft"}') == overdrawn
