"""Granting: credits that come in, adjustments that take them out, and the welcome (F1, F4, F5, A6)."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.core.account import Policy
from ledger.core.commands import MAX_CREDITS, BroughtUp, GrantDone, Granted, GrantKind
from ledger.core.granting import WELCOME_CREDITS, welcome_owed
from tests.support.core import NOON, World, characters, instant, refused, said

END = instant("2026-12-01")


@pytest.mark.parametrize(
    ("what", "kind", "until", "ends"),
    [
        ("a plan ends with the period", "plan", None, END),
        ("a plan may have another end", "plan", "2027-01-01", instant("2027-01-01")),
        ("a purchase does not end", "purchase", None, None),
        ("a purchase may be given an end", "purchase", "2026-12-24", instant("2026-12-24")),
        ("an adjustment does not end", "adjustment", None, None),
        ("an adjustment may be given an end", "adjustment", "2026-12-24", instant("2026-12-24")),
    ],
)
def test_what_a_grant_is(what: str, kind: GrantKind, until: str | None, ends: object) -> None:
    """F1, A7."""
    world = World()
    world.open_account()
    outcome = world.grant("g", 50, kind=kind, until=until, reference="inv-77")
    assert isinstance(outcome, Granted)
    assert outcome.created
    assert outcome.grant.expires_at == ends, what
    assert (outcome.grant.granted, outcome.grant.remaining, outcome.grant.held) == (50, 50, 0)
    assert (outcome.grant.kind, outcome.grant.reference, outcome.grant.created_at) == (kind, "inv-77", NOON)
    assert world.postings() == [(f"issued:{kind}", "grant:1", 50)]
    month = world.month()
    assert (month.granted, month.adjusted) == ((0, 50) if kind == "adjustment" else (50, 0))


def test_a_plan_granted_at_midnight_of_the_first_ends_with_the_new_month() -> None:
    """T2."""
    world = World(instant("2026-12-01"))
    world.open_account()
    assert world.grants("plan", 50, kind="plan").expires_at == instant("2027-01-01")


@pytest.mark.parametrize(
    ("what", "kind", "credits", "until", "reference", "expected"),
    [
        ("the same", "purchase", 50, None, "inv", "granted"),
        ("another kind", "adjustment", 50, None, "inv", "idempotency_key_reused"),
        ("other credits", "purchase", 51, None, "inv", "idempotency_key_reused"),
        ("another end", "purchase", 50, "2026-12-24", "inv", "idempotency_key_reused"),
        ("another reference", "purchase", 50, None, None, "idempotency_key_reused"),
    ],
)
def test_the_same_grant_again(
    what: str, kind: GrantKind, credits: int, until: str | None, reference: str | None, expected: str
) -> None:
    """J1 for grants: it stands as it is by now, and is not put twice."""
    world = World()
    world.open_account()
    world.grant("g", 50, reference="inv")
    world.reserves("j", characters(20))
    outcome = world.grant("g", credits, kind=kind, until=until, reference=reference)
    assert said(outcome) == expected, what
    assert world.last.entries == []
    if isinstance(outcome, Granted):
        assert not outcome.created
        assert (outcome.grant.granted, outcome.grant.remaining, outcome.grant.held) == (50, 30, 20)


def test_a_plan_put_again_in_another_month_is_the_same_plan() -> None:
    """F1: what was left out of the body is left out again; a grant that has ended is still known."""
    world = World()
    world.open_account()
    world.grants("plan", 50, kind="plan")
    world.at("2026-12-15")
    outcome = world.grant("plan", 50, kind="plan")
    assert isinstance(outcome, Granted)
    assert (outcome.created, outcome.grant.expires_at, outcome.grant.remaining) == (False, END, 0)


@pytest.mark.parametrize(
    ("what", "until", "expected"),
    [
        ("an end that has passed", "2026-11-15T11:59:59", "validation_error"),
        ("an end that is now", "2026-11-15T12:00:00", "validation_error"),
        ("the next instant", "2026-11-15T12:00:00.000001", "granted"),
    ],
)
def test_a_grant_cannot_have_ended(what: str, until: str, expected: str) -> None:
    """T1."""
    world = World()
    world.open_account()
    assert said(world.grant("g", 50, until=until)) == expected, what


@pytest.mark.parametrize(
    ("what", "grant_id", "kind", "credits", "message"),
    [
        ("the welcome by hand", "mine", "welcome", 3_000, "kind: the welcome is never granted by hand"),
        ("the welcome's id", "welcome", "purchase", 10, "grant_id: welcome is the service's own"),
        ("a refund's id", "refund-rf-1", "purchase", 10, "grant_id: refund-rf-1 is the service's own"),
        ("a refund's id, to take away", "refund-", "adjustment", -1, "grant_id: refund- is the service's own"),
    ],
)
def test_the_services_own_grants_are_not_put_by_hand(
    what: str, grant_id: str, kind: GrantKind, credits: int, message: str
) -> None:
    """F5."""
    world = World()
    world.open_account(100)
    refusal = refused(world.grant(grant_id, credits, kind=kind))
    assert (refusal.code, refusal.message) == ("validation_error", message), what


@pytest.mark.parametrize(
    ("what", "credits", "expected"),
    [("just below 2^53", MAX_CREDITS - 31, "granted"), ("2^53", MAX_CREDITS - 30, "validation_error")],
)
def test_the_credits_of_an_account_stay_exact_in_every_reader(what: str, credits: int, expected: str) -> None:
    """What is held counts, and what is owed."""
    world = World()
    world.open_account(10)
    world.reserves("held", characters(10))
    world.grants("more", 10)
    world.reserves("debt", characters(10))
    world.settles("debt", characters(30))
    assert (world.acme.available, world.acme.held, world.acme.overdraft) == (0, 10, 20)
    assert said(world.grant("g", credits)) == expected, what


# -- taking away ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "credits", "left"),
    [
        ("a part of what is spent first", -3, {"start": 10, "plan": 2}),
        ("more than that", -8, {"start": 7}),
        ("all that is available", -15, {}),
    ],
)
def test_a_negative_adjustment_takes_in_spending_order(what: str, credits: int, left: dict[str, int]) -> None:
    """F1, F2, A7."""
    world = World()
    world.open_account(10)
    world.grants("plan", 5, kind="plan")
    done = world.grants("less", credits, kind="adjustment")
    assert (done.granted, done.remaining, world.left()) == (credits, 0, left), what
    assert all(credit == "issued:adjustment" for _, credit, _ in world.postings())
    assert (world.month().granted, world.month().adjusted) == (15, credits)


def test_a_negative_adjustment_as_it_is_shown() -> None:
    """F1: it is put like a grant, by an entry of its own, though nothing of it can be spent."""
    world = World()
    world.open_account(10)
    world.wait(seconds=5)
    outcome = world.grant("less", -4, kind="adjustment", until="2026-12-24", reference="cn-3")
    assert outcome == Granted(
        GrantDone(
            grant_id="less",
            kind="adjustment",
            granted=-4,
            remaining=0,
            held=0,
            expires_at=instant("2026-12-24"),
            reference="cn-3",
            created_at=world.now,
        ),
        created=True,
    )
    less = world.acme.grants_by_id["less"]
    assert (less.number, world.last.grants[2]) == (2, less)
    assert [entry.sequence for entry in world.last.entries] == [2]


def test_a_negative_adjustment_takes_no_more_than_is_available() -> None:
    """F1: what is held is not available, and no grant goes below zero (A6)."""
    world = World()
    world.open_account(10)
    world.reserves("j", characters(4))
    refusal = refused(world.grant("less", -7, kind="adjustment"))
    assert refusal.code == "insufficient_credits"
    assert refusal.details == {"required_credits": 7, "available_credits": 6}
    assert (refusal.retry_after, world.last.entries) == (None, [])


def test_a_negative_adjustment_again_takes_nothing_more() -> None:
    world = World()
    world.open_account(10)
    first = world.grants("less", -4, kind="adjustment")
    outcome = world.grant("less", -4, kind="adjustment")
    assert outcome == Granted(first, created=False)
    assert said(world.grant("less", -5, kind="adjustment")) == "idempotency_key_reused"
    assert world.acme.available == 6


# -- the welcome ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "verified", "suspended", "had_it", "owed"),
    [
        (True, True, False, False, True),
        (False, True, False, False, False),
        (True, False, False, False, False),
        (True, True, True, False, False),
        (True, True, False, True, False),
    ],
    ids=["all is met", "no module", "not verified", "cut off", "had it"],
)
def test_when_the_welcome_is_owed(module: bool, verified: bool, suspended: bool, had_it: bool, owed: bool) -> None:
    """F5."""
    world = World()
    account = world.open_account()
    account.policy = Policy(module_enabled=module, payment_method_verified=verified, suspended=suspended)
    account.welcome_at = NOON if had_it else None
    assert welcome_owed(account) is owed


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ({"module_enabled": True}, {"payment_method_verified": True}),
        ({"payment_method_verified": True}, {"module_enabled": True}),
    ],
    ids=["the module, then verified", "verified, then the module"],
)
def test_the_welcome_arrives_when_the_last_of_the_two_is_met(first: dict[str, Any], last: dict[str, Any]) -> None:
    """F5: at once, 3,000 credits, without an end."""
    world = World()
    world.put(**first)
    assert world.acme.available == 0
    world.wait(days=1)
    world.patches(**last)
    assert (world.acme.available, world.acme.welcome_at) == (WELCOME_CREDITS, world.now)
    welcome = world.acme.grants_by_id["welcome"]
    assert (welcome.kind, welcome.granted, welcome.expires_at) == ("welcome", 3_000, None)
    assert world.postings() == [("issued:welcome", "grant:1", 3_000)]
    assert world.month().granted == 3_000


def test_the_welcome_comes_once_in_an_accounts_life() -> None:
    """F5, A6: leaving the module and coming back grants nothing."""
    world = World()
    world.put(module_enabled=True, payment_method_verified=True)
    world.patches(module_enabled=False)
    world.patches(module_enabled=True)
    world.put(module_enabled=True, payment_method_verified=True)
    world.look()
    assert world.acme.available == WELCOME_CREDITS


def test_an_account_that_is_cut_off_gets_the_welcome_when_it_is_active_again() -> None:
    """F5."""
    world = World()
    world.put(module_enabled=True, payment_method_verified=True, access="suspended")
    world.look()
    assert (world.acme.available, world.last_brought_up) == (0, BroughtUp())
    world.patches(access="active")
    assert world.acme.available == WELCOME_CREDITS


def test_a_sweep_catches_a_welcome_that_failed() -> None:
    """F5: and says that it did."""
    world = World()
    world.open_account()
    world.acme.policy = Policy(module_enabled=True, payment_method_verified=True)
    world.look()
    assert (world.acme.available, world.last.policy) == (WELCOME_CREDITS, True)
    assert world.last_brought_up == BroughtUp(welcome_granted=True)
    world.look()
    assert world.last_brought_up == BroughtUp()


def test_a_grant_as_it_is_shown() -> None:
    world = World()
    world.open_account()
    assert world.grants("g", 50) == GrantDone(
        grant_id="g",
        kind="purchase",
        granted=50,
        remaining=50,
        held=0,
        expires_at=None,
        reference=None,
        created_at=NOON,
    )
