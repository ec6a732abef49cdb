"""The state of one account: what it answers, and what it collects of a change (A5, J14, O1, O7)."""

from __future__ import annotations

import pytest

from ledger.core.account import Account, Period, Policy, Quota, UsageKey
from ledger.core.books import Posting
from ledger.core.commands import Environment, Line
from ledger.core.overage import MICRO_USD
from tests.support.core import NOON, World, call, characters, instant, turn


def account() -> Account:
    return Account(number=1, account_id="acme", created_at=NOON, at=NOON)


def test_an_account_starts_with_the_published_quotas() -> None:
    """Q5: 10 requests and 5 calls at a time, and no ceiling of the period."""
    assert Quota() == Quota(max_requests=10, max_calls=5, period_credits=None)


@pytest.mark.parametrize(
    ("what", "enabled", "verified", "price", "usable", "headroom"),
    [
        ("switched on and verified", True, True, 1_000, True, 20_000),
        ("switched off", False, True, 1_000, False, 0),
        ("not verified", True, False, 1_000, False, 0),
        ("without the price of a credit", True, True, None, True, 0),
    ],
)
def test_when_overage_counts(
    what: str, enabled: bool, verified: bool, price: int | None, usable: bool, headroom: int
) -> None:
    """O1, O7."""
    one = account()
    one.periods["2026-11"] = Period("2026-11")
    one.policy = Policy(overage_enabled=enabled, payment_method_verified=verified, credit_price_usd=price)
    assert (one.overage_usable, one.headroom("2026-11")) == (usable, headroom), what
    assert one.effective_cap == 20 * MICRO_USD
    assert one.cap_credits == (None if price is None else 20_000)


@pytest.mark.parametrize(
    ("what", "used", "held", "headroom"),
    [
        ("nothing used", 0, 0, 20_000),
        ("used and held count alike", 5_000, 10_000, 5_000),
        ("just reached", 5_000, 15_000, 0),
        ("the cap was lowered under what is used", 30_000, 0, 0),
    ],
)
def test_what_is_left_of_the_cap(what: str, used: int, held: int, headroom: int) -> None:
    """O7."""
    one = account()
    one.policy = Policy(overage_enabled=True, payment_method_verified=True, credit_price_usd=1_000)
    one.periods["2026-11"] = Period("2026-11", overage_used=used, overage_held=held)
    assert one.headroom("2026-11") == headroom, what


@pytest.mark.parametrize(("environment", "used", "held"), [("live", 7, 3), ("test", 70, 30)])
def test_a_month_counts_each_environment_apart(environment: Environment, used: int, held: int) -> None:
    """Q3, J14."""
    month = Period("2026-11", live_used=1, live_held=1, test_used=10, test_held=10)
    month.add_used(environment, used - month.used(environment))
    month.add_held(environment, held - month.held(environment))
    assert (month.used(environment), month.held(environment)) == (used, held)
    other: Environment = "test" if environment == "live" else "live"
    assert month.used(other) == month.held(other) == (10 if other == "test" else 1)


@pytest.mark.parametrize(
    ("what", "used", "price", "micro_usd"),
    [
        ("250 credits at 0.001 USD", 250, 1_000, 250_000),
        ("no overage", 0, 1_000, 0),
        ("no price was ever set: nothing is invoiced", 250, None, 0),
    ],
)
def test_what_the_overage_of_a_month_comes_to(what: str, used: int, price: int | None, micro_usd: int) -> None:
    """O7, V6."""
    assert Period("2026-11", overage_used=used, overage_price=price).overage_micro_usd == micro_usd, what


def test_a_month_that_was_not_loaded_is_a_defect() -> None:
    with pytest.raises(KeyError):
        account().peek("2026-11")


def test_only_months_that_change_are_written() -> None:
    one = account()
    one.periods = {"2026-10": Period("2026-10"), "2026-11": Period("2026-11")}
    one.peek("2026-10")
    one.period("2026-11")
    assert one.changes.periods == {"2026-11"}


def test_entries_are_numbered_and_chained() -> None:
    """A5."""
    one = account()
    postings = [Posting("issued:plan", "grant:1", 1)]
    later = instant("2026-11-15T12:00:01")
    first, second = one.enter("grant", NOON, postings), one.enter("grant", later, postings, job=7)
    assert (first.sequence, second.sequence, one.sequence, one.next_sequence) == (1, 2, 2, 3)
    assert (second.previous_hash, one.head, second.job) == (first.hash, second.hash, 7)
    assert one.changes.entries == [first, second]
    assert one.entered_at == later


def test_an_account_without_entries_counts_from_its_opening() -> None:
    """A5: unless it was loaded, with the instant of its last entry."""
    later = instant("2026-11-15T12:00:01")
    assert account().entered_at == NOON
    assert Account(number=1, account_id="acme", created_at=NOON, at=NOON, entered_at=later).entered_at == later


def test_only_grants_that_change_are_written() -> None:
    """F2: here the plan, which is spent first."""
    world = World()
    world.open_account(10)
    world.grants("plan", 10, kind="plan")
    world.charges("j", characters(5))
    assert world.last.grants == {2: world.acme.grants_by_id["plan"]}


def test_a_usage_total_is_begun_once() -> None:
    """A4."""
    one = account()
    key = UsageKey("2026-11", "2026-11-15", "live", "agent_turn")
    one.count_usage(key, "request").credits += 11
    one.count_usage(key, "request").credits += 11
    assert one.changes.usage[key].credits == 22


@pytest.mark.parametrize(
    ("until", "at", "ended"),
    [
        (None, "2999-01-01", False),
        ("2026-12-01", "2026-11-30T23:59:59.999999", False),
        ("2026-12-01", "2026-12-01", True),
    ],
    ids=["without an end", "just before its end", "at its end"],
)
def test_a_grant_is_over_from_its_end_on(until: str | None, at: str, ended: bool) -> None:
    """T1."""
    world = World()
    world.open_account()
    world.grants("g", 10, until=until)
    assert world.acme.grants_by_id["g"].ended(instant(at)) is ended


def test_a_grant_is_live_while_something_is_free_or_held() -> None:
    """F2: be it a single credit."""
    world = World()
    world.open_account(1)
    grant = world.acme.grants_by_id["start"]
    assert (grant.remaining, grant.held, grant.live) == (1, 0, True)
    world.reserves("j", characters(1))
    assert (grant.remaining, grant.held, grant.live) == (0, 1, True)
    world.settles("j", characters(1))
    assert (grant.remaining, grant.held, grant.live) == (0, 0, False)


def test_a_jobs_breakdown_is_kept_24_hours_from_its_close() -> None:
    """R1, T1."""
    world = World()
    world.open_account(10)
    world.reserves("j", characters(10))
    assert not world.job("j").kept(world.now)
    world.settles("j", characters(10))
    assert world.job("j").kept(instant("2026-11-16T11:59:59.999999"))
    assert not world.job("j").kept(instant("2026-11-16T12:00:00"))


def test_a_key_can_be_freed_only_where_there_is_one() -> None:
    """J10."""
    world = World()
    world.open_account(10_000)
    world.reserves("named", call(60), key="k")
    world.reserves("plain", call(60))
    named, plain = world.job("named"), world.job("plain")
    world.acme.free_key(plain)
    assert (world.acme.changes.freed_keys, world.acme.keys) == ([], {("live", "k"): named})
    world.acme.free_key(named)
    assert (world.acme.changes.freed_keys, world.acme.keys) == ([named.number], {})
    assert named.idempotency_key is None


@pytest.mark.parametrize("operation", [call(60), turn()], ids=["a call", "a request"])
def test_a_job_is_closed_by_what_was_loaded_of_it(operation: Line) -> None:
    """J1, Q4: a batch knows deadlines of calls, and due jobs, only as far as it needed them."""
    world = World()
    world.open_account(10_000)
    world.reserves("j", operation)
    world.acme.due.clear()
    world.acme.call_deadlines.clear()
    world.releases("j")
    assert set(world.acme.open_slots.values()) == {0}
    assert (world.acme.due, world.acme.call_deadlines) == ({}, {})


def test_a_key_that_was_not_loaded_is_freed_all_the_same() -> None:
    """J10: a release loads its job, not its key."""
    world = World()
    world.open_account(100)
    world.reserves("j", turn(), key="k")
    world.acme.keys.clear()
    world.releases("j", originated=False)
    assert (world.job("j").idempotency_key, world.last.freed_keys) == (None, [2])
