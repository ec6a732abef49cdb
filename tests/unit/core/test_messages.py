"""Refusals in words: what a caller reads beside the code, for every reason there is (E1, E3, Q6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ledger.core.account import Quota
from ledger.core.commands import MAX_CREDITS, Code, Line, Outcome
from tests.support.core import World, as_change, call, characters, line, refused, turn


@pytest.fixture
def world() -> World:
    """An account with 1,000 credits, one job in each state, and a grant without a reference."""
    world = World()
    world.open_account(1_000)
    world.reserves("settled", turn())
    world.settles("settled", turn(), result=b"1")
    world.reserves("no-result", turn())
    world.settles("no-result", turn())
    world.reserves("released", turn())
    world.releases("released")
    world.reserves("expired", turn(), ttl=60)
    world.wait(seconds=60)
    world.reserves("open", turn(), key="k", ttl=600)
    world.grants("inv", 1)
    return world


def a_day_later(world: World) -> Outcome:
    world.wait(hours=24)
    return world.reserve("settled", turn())


def overdrawn(world: World) -> Outcome:
    world.settles("open", characters(5_000))
    return world.reserve("new", turn())


def overdrawn_without_bound(world: World) -> Outcome:
    return world.settle("open", characters(MAX_CREDITS))


def with_overage(world: World) -> Outcome:
    """The welcome comes with the verified payment method; the cap is of 100 credits."""
    world.patches(payment_method_verified=True, overage_enabled=True, cap_usd=100_000)
    return world.reserve("new", characters(5_000))


def with_policy(**change: Any) -> Callable[[World], Outcome]:
    """A request for one turn under a changed policy."""

    def ask(world: World) -> Outcome:
        world.patches(**change)
        return world.reserve("new", turn())

    return ask


def with_ceilings(asked: Line, **ceilings: int) -> Callable[[World], Outcome]:
    """A request under other ceilings, 22 credits of the month being used and 11 held."""

    def ask(world: World) -> Outcome:
        world.patches(quotas={"live": as_change(Quota(**ceilings))})
        return world.reserve("new", asked)

    return ask


REFUSALS: list[tuple[str, Callable[[World], Outcome], str]] = [
    # the shape of a request
    (
        "validation_error",
        lambda w: w.reserve("new", [turn(), Line("agent_turn", 0.5)]),
        "lines[1].quantity: agent_turn is measured in whole requests",
    ),
    (
        "validation_error",
        lambda w: w.reserve("new", turn(), allow_partial=True),
        "allow_partial: agent_turn is no call",
    ),
    (
        "validation_error",
        lambda w: w.reserve("new", turn(), transferable=True),
        "transferable: agent_turn is no call",
    ),
    (
        "validation_error",
        lambda w: w.reserve("new", characters(MAX_CREDITS)),
        "lines: the credits of one job stay below 2^53",
    ),
    ("validation_error", overdrawn_without_bound, "lines: the credits of one account stay below 2^53"),
    (
        "validation_error",
        lambda w: w.grant("new", MAX_CREDITS),
        "credits: the credits of one account stay below 2^53",
    ),
    (
        "validation_error",
        lambda w: w.grant("new", 1, until="2026-11-15T12:00:00"),
        "expires_at: it has passed",
    ),
    (
        "validation_error",
        lambda w: w.refund("settled", 12),
        "credits: 11 credits of the charge are left to refund",
    ),
    (
        "validation_error",
        lambda w: w.patch(overage_enabled=True, credit_price_usd=None),
        "overage.credit_price_usd: overage cannot be enabled without it",
    ),
    # what does not exist
    ("resource_not_found", lambda w: w.settle("nobody's", turn()), "job nobody's does not exist"),
    ("resource_not_found", lambda w: w.release("nobody's"), "job nobody's does not exist"),
    ("resource_not_found", lambda w: w.refund("nobody's"), "job nobody's does not exist"),
    ("resource_not_found", lambda w: w.grant("new", 1, account_id="nobody"), "account nobody does not exist"),
    # what was asked before, and differently
    (
        "idempotency_key_reused",
        lambda w: w.reserve("open", turn(2)),
        "this job_id was used for another request",
    ),
    (
        "idempotency_key_reused",
        lambda w: w.reserve("new", turn(2), key="k"),
        "this idempotency_key was used for another request",
    ),
    ("idempotency_key_reused", lambda w: w.settle("settled", turn(2)), "the job was settled with other lines"),
    ("idempotency_key_reused", lambda w: w.grant("inv", 2), "this grant_id was used for another grant"),
    # what was asked before, and is not there to be answered
    ("request_in_flight", lambda w: w.reserve("new", turn(), key="k"), "the job is still open"),
    ("request_in_flight", lambda w: w.refund("open"), "the job is still open"),
    ("result_not_replayable", lambda w: w.reserve("no-result", turn()), "the job keeps no result"),
    ("result_not_replayable", a_day_later, "the result's 24 hours are over"),
    (
        "job_not_completed",
        lambda w: w.reserve("expired", turn()),
        "the job's deadline passed without a close",
    ),
    ("job_not_completed", lambda w: w.settle("expired", turn()), "the job's deadline passed without a close"),
    ("job_already_closed", lambda w: w.settle("released", turn()), "the job is already released"),
    ("job_already_closed", lambda w: w.release("settled"), "the job is already settled"),
    # prices, and the module
    ("operation_not_priced", lambda w: w.reserve("new", line("teleport")), "operation teleport has no price"),
    ("operation_not_priced", lambda w: w.settle("open", line("teleport")), "operation teleport has no price"),
    (
        "gateway_not_enabled",
        lambda w: w.reserve("new", turn(), account_id="nobody"),
        "the gateway is not enabled: the account does not exist",
    ),
    (
        "gateway_not_enabled",
        with_policy(module_enabled=False),
        "the gateway is not enabled: the account does not have the module",
    ),
    (
        "gateway_not_enabled",
        with_policy(access="suspended"),
        "the gateway is not enabled: the account's access is suspended",
    ),
    (
        "gateway_not_enabled",
        with_policy(quotas={"live": None}),
        "the gateway is not enabled: the account has no quota in live",
    ),
    # ceilings
    (
        "request_exceeds_period_quota",
        with_ceilings(turn(), period_credits=10),
        "the request does not fit the period's ceiling even when it is unused",
    ),
    (
        "concurrency_limit_reached",
        with_ceilings(turn(), max_requests=1),
        "all 1 simultaneous requests are taken",
    ),
    (
        "call_concurrency_limit_reached",
        with_ceilings(call(60), max_calls=0),
        "all 0 simultaneous calls are taken",
    ),
    (
        "period_quota_exhausted",
        with_ceilings(turn(), period_credits=40),
        "what is left of the period's ceiling does not cover it",
    ),
    # funds
    ("insufficient_credits", overdrawn, "the account has an overdraft"),
    (
        "insufficient_credits",
        lambda w: w.reserve("new", characters(5_000)),
        "the balance does not cover it and overage is not usable",
    ),
    (
        "insufficient_credits",
        lambda w: w.grant("less", -5_000, kind="adjustment"),
        "an adjustment takes no more than is available",
    ),
    ("spending_cap_reached", with_overage, "the spending cap does not admit it"),
]


@pytest.mark.parametrize(("code", "ask", "message"), REFUSALS)
def test_a_refusal_says_why(world: World, code: str, ask: Callable[[World], Outcome], message: str) -> None:
    refusal = refused(ask(world))
    assert (refusal.code, refusal.message) == (code, message)


def test_every_code_has_its_words() -> None:
    """A code that is new has to be put into the table above."""
    assert {code for code, _, _ in REFUSALS} == {str(code) for code in Code}
