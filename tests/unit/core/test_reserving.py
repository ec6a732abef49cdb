"""Reserving: what is held, what is refused and in which order, what was asked before (J2, J8, J10, P10, Q1-Q6, O5)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from ledger.core.account import Quota
from ledger.core.commands import (
    MAX_CREDITS,
    Code,
    Environment,
    Funding,
    Line,
    Outcome,
    Replayed,
    Reservation,
    Reserved,
    ReservedLine,
    Settled,
)
from pricing.catalog import parse
from tests.support.core import (
    ACME,
    NOON,
    World,
    as_change,
    bridged,
    call,
    characters,
    instant,
    line,
    refused,
    said,
    turn,
)

TELEPORT = line("teleport")


# -- what a reservation is -----------------------------------------------------------------------------------------


def test_a_reservation_holds_credits_and_bills_nothing() -> None:
    """J2, J14, P9."""
    world = World()
    world.open_account(10_000)
    reservation = world.reserves("j", [call(300), turn(2)], transferable=True, ttl=1_200, key="k", metadata=b'{"a":1}')
    assert reservation == Reservation(
        job_id="j",
        account_id=ACME,
        environment="live",
        operation="voice_call_minute",
        status="reserved",
        period="2026-11",
        price_version="2026-09-11",
        lines=(
            ReservedLine("voice_call_minute", "minute", 300, 300, 5, 3_100),
            ReservedLine("agent_turn", "request", 2, 2, 2, 22),
        ),
        transfer_allowance=460,
        held_credits=3_582,
        partial=False,
        funding=Funding(balance=3_582, overage=0),
        created_at=NOON,
        expires_at=NOON + timedelta(seconds=1_200),
    )
    assert (world.acme.available, world.acme.held) == (6_418, 3_582)
    assert (world.month().charged, world.month().live_held) == (0, 3_582)
    assert world.postings() == [("grant:1", "hold:2", 3_582)]
    assert world.job("j").metadata == b'{"a":1}'


def test_both_environments_pay_the_same_from_one_balance() -> None:
    """P8, F1: with quotas and slots of their own (Q3, Q4)."""
    world = World()
    world.open_account(30)
    world.reserves("live", turn(), environment="live")
    world.reserves("test", turn(), environment="test")
    assert world.acme.available == 8
    assert (world.month().live_held, world.month().test_held) == (11, 11)
    assert world.acme.open_slots == {("live", "request"): 1, ("test", "request"): 1}


@pytest.mark.parametrize(
    ("what", "balance", "overage", "ask", "from_balance", "from_overage"),
    [
        ("the balance covers it", 100, 50, 100, 100, 0),
        ("one credit of overage", 100, 50, 101, 100, 1),
        ("up to the cap", 100, 50, 150, 100, 50),
        ("overage alone", 0, 50, 50, 0, 50),
    ],
)
def test_overage_is_held_last(
    what: str, balance: int, overage: int, ask: int, from_balance: int, from_overage: int
) -> None:
    """F2, O7."""
    world = World()
    world.open_account(balance, overage=overage)
    assert world.reserves("j", characters(ask)).funding == Funding(from_balance, from_overage), what
    assert world.month().overage_held == from_overage, what


# -- shape ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "lines", "switches", "message"),
    [
        ("half a turn", [turn(1), Line("agent_turn", 1.5)], {}, "lines[1].quantity: agent_turn is measured in"),
        ("a partial turn", [turn()], {"allow_partial": True}, "allow_partial: agent_turn is no call"),
        ("a transferable turn", [turn()], {"transferable": True}, "transferable: agent_turn is no call"),
        ("a turn, with a call as its second line", [turn(), call(60)], {"allow_partial": True}, "allow_partial: "),
    ],
)
def test_a_malformed_reservation(what: str, lines: list[Line], switches: dict[str, bool], message: str) -> None:
    """P10: and the field is named."""
    world = World()
    world.open_account(10_000)
    refusal = refused(world.reserve("j", lines, **switches))  # type: ignore[arg-type] # a row of the table
    assert refusal.code == "validation_error", what
    assert refusal.message.startswith(message), what


def test_the_credits_of_a_job_stay_exact_in_every_reader() -> None:
    """2^53 is too much; just below it, only the funds are missing."""
    world = World()
    world.open_account(10)
    assert said(world.reserve("j", characters(MAX_CREDITS))) == "validation_error"
    assert said(world.reserve("j", characters(MAX_CREDITS - 1))) == "insufficient_credits"


@pytest.mark.parametrize("switches", [{}, {"allow_partial": True}, {"transferable": True}])
def test_of_an_operation_without_a_price_nothing_is_known(switches: dict[str, bool]) -> None:
    """P1: our defect, whatever else was asked."""
    world = World()
    world.open_account(10_000)
    refusal = refused(world.reserve("j", [TELEPORT, turn()], **switches))  # type: ignore[arg-type] # as above
    assert (refusal.code, refusal.details) == ("operation_not_priced", {"operation": "teleport"})


def test_before_the_first_version_nothing_has_a_price() -> None:
    """P1, P9."""
    world = World(instant("2026-09-10T23:59:59.999999"))
    world.open_account(100)
    refusal = refused(world.reserve("j", turn(), allow_partial=True))
    assert (refusal.code, refusal.details) == ("operation_not_priced", {"operation": "agent_turn"})
    world.at("2026-09-11")
    assert said(world.reserve("j", turn())) == "reserved"


# -- the module ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "environment", "expected"),
    [
        ("all is in order", "live", "reserved"),
        ("no module", "live", "gateway_not_enabled"),
        ("access suspended, live", "live", "gateway_not_enabled"),
        ("access suspended, test", "test", "gateway_not_enabled"),
        ("no quota row in live", "live", "gateway_not_enabled"),
        ("no quota row in the other environment", "test", "reserved"),
    ],
)
def test_who_may_work(what: str, environment: Environment, expected: str) -> None:
    """Q1."""
    world = World()
    world.open_account(100)
    if what == "no module":
        world.patches(module_enabled=False)
    elif what.startswith("access suspended"):
        world.patches(access="suspended")
    elif what.startswith("no quota row"):
        world.patches(quotas={"live": None})
    assert said(world.reserve("j", turn(), environment=environment)) == expected, what


def test_an_account_that_does_not_exist_may_not_work() -> None:
    """Q6: after the price, which is judged first."""
    world = World()
    assert said(world.reserve("j", turn())) == "gateway_not_enabled"
    assert said(world.reserve("j", TELEPORT)) == "operation_not_priced"
    assert said(world.reserve("j", Line("agent_turn", 0.5))) == "validation_error"
    assert world.accounts == {}


# -- ceilings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "ceiling", "used", "held", "ask", "expected"),
    [
        ("no ceiling", None, 50, 50, 900, "reserved"),
        ("just an empty period", 100, 0, 0, 100, "reserved"),
        ("more than an empty period", 100, 0, 0, 101, "request_exceeds_period_quota"),
        ("just what is left", 100, 30, 30, 40, "reserved"),
        ("one more than is left", 100, 30, 30, 41, "period_quota_exhausted"),
        ("nothing left", 100, 100, 0, 1, "period_quota_exhausted"),
        ("a ceiling of nothing", 0, 0, 0, 1, "request_exceeds_period_quota"),
    ],
)
def test_the_ceiling_of_the_period(
    what: str, ceiling: int | None, used: int, held: int, ask: int, expected: str
) -> None:
    """Q3: holds count; what would not fit even an empty period is another refusal."""
    world = World()
    world.open_account(10_000)
    if used:
        world.charges("used", characters(used))
    if held:
        world.reserves("held", characters(held))
    world.patches(quotas={"live": as_change(Quota(period_credits=ceiling))})
    assert said(world.reserve("j", characters(ask))) == expected, what
    assert said(world.reserve("elsewhere", characters(ask), environment="test")) == "reserved"


@pytest.mark.parametrize(
    ("asked_at", "retry_after"),
    [("2026-11-30T23:59:29.500000", 31), ("2026-11-30T23:59:59.500000", 1)],
    ids=["a fraction counts as a second", "the last moment of the month"],
)
def test_an_exhausted_period_says_when_the_next_begins(asked_at: str, retry_after: int) -> None:
    """Q3, E2."""
    world = World()
    world.open_account(1_000, live=Quota(period_credits=100))
    world.charges("used", characters(95))
    world.at(asked_at)
    refusal = refused(world.reserve("j", characters(6)))
    assert refusal.retry_after == retry_after
    assert refusal.details == {
        "required_credits": 6,
        "remaining_credits": 5,
        "period_credits": 100,
        "resets_at": instant("2026-12-01"),
        "retry_after": retry_after,
    }
    world.at("2026-12-01")
    assert said(world.reserve("j", characters(100))) == "reserved"


def test_what_settles_above_its_hold_counts_and_leaves_nothing() -> None:
    """Q3: never refused, and what is left is never less than nothing."""
    world = World()
    world.open_account(1_000, live=Quota(period_credits=100))
    world.reserves("j", characters(90))
    world.settles("j", characters(150))
    refusal = refused(world.reserve("next", characters(1)))
    assert (refusal.code, refusal.details["remaining_credits"]) == ("period_quota_exhausted", 0)


def test_what_can_never_fit_is_refused_for_good() -> None:
    """Q3, E2: without Retry-After."""
    world = World()
    world.open_account(1_000, live=Quota(period_credits=100))
    refusal = refused(world.reserve("j", characters(101)))
    assert (refusal.code, refusal.retry_after) == ("request_exceeds_period_quota", None)
    assert refusal.details == {"required_credits": 101, "period_credits": 100}


@pytest.mark.parametrize(
    ("what", "requests", "calls", "ask", "expected", "retry_after"),
    [
        ("a slot is free", 9, 5, turn(), "reserved", None),
        ("all requests are taken", 10, 0, turn(), "concurrency_limit_reached", 1),
        ("all requests are taken, but this is a call", 10, 4, call(60), "reserved", None),
        ("all calls are taken", 0, 5, call(60), "call_concurrency_limit_reached", 20),
        (
            "all calls are taken, and the bridged part alone is a call",
            0,
            5,
            bridged(60),
            "call_concurrency_limit_reached",
            20,
        ),
        ("all calls are taken, but this is a request", 9, 5, turn(), "reserved", None),
    ],
)
def test_simultaneous_work(
    what: str, requests: int, calls: int, ask: Line, expected: str, retry_after: int | None
) -> None:
    """Q4: 10 requests and 5 calls are separate ceilings."""
    world = World()
    world.open_account(100_000)
    for number in range(requests):
        world.reserves(f"request-{number}", turn())
    for number in range(calls):
        world.reserves(f"call-{number}", call(60), ttl=20 + number)
    outcome = world.reserve("j", ask)
    assert said(outcome) == expected, what
    if retry_after is not None:
        refusal = refused(outcome)
        taken = requests if expected == "concurrency_limit_reached" else calls
        assert refusal.retry_after == retry_after
        assert refusal.details == {"limit": taken, "open": taken, "retry_after": retry_after}
    assert said(world.reserve("elsewhere", ask, environment="test")) == "reserved"


@pytest.mark.parametrize(
    ("what", "ttl", "waited", "retry_after"),
    [
        ("long before the first expiry", 900, 0, 30),
        ("half a minute before", 900, 870, 30),
        ("ten seconds before", 900, 890, 10),
        ("a fraction counts as a second", 900, 889.5, 11),
        ("the last moment", 900, 899.9, 1),
    ],
)
def test_when_a_call_slot_may_be_free_again(what: str, ttl: int, waited: float, retry_after: int) -> None:
    """Q4: seconds to the first expiry among the open calls, at most 30."""
    world = World()
    world.open_account(10_000, live=Quota(max_calls=2))
    world.reserves("lasts", call(60), ttl=7_200)
    world.reserves("ends", call(60), ttl=ttl)
    world.wait(seconds=waited)
    assert refused(world.reserve("j", call(60))).retry_after == retry_after, what


def test_with_nothing_open_and_no_slots_at_all_the_wait_is_the_longest() -> None:
    """Q4: with a ceiling of 0: 30; also when the last call of a lowered ceiling has ended."""
    world = World()
    world.open_account(10_000, live=Quota(max_calls=0, max_requests=0))
    assert refused(world.reserve("j", call(60))).retry_after == 30
    assert refused(world.reserve("j", turn())).retry_after == 1
    world.reserves("elsewhere", call(60), environment="test", ttl=10)
    assert refused(world.reserve("j", call(60))).retry_after == 30


def test_open_jobs_take_their_slot_whatever_month_they_were_reserved_in() -> None:
    """Q4: though what they hold counts in the month before (J14)."""
    world = World()
    world.open_account(100, live=Quota(max_requests=1, period_credits=20))
    world.at("2026-11-30T23:59:00")
    world.reserves("j", characters(20))
    world.at("2026-12-01T00:01:00")
    assert said(world.reserve("next", characters(20))) == "concurrency_limit_reached"
    world.releases("j")
    assert said(world.reserve("next", characters(20))) == "reserved"


# -- funds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "balance", "cap", "overage_on", "ask", "expected", "details"),
    [
        ("just the balance", 100, None, False, 100, "reserved", {}),
        (
            "one more than the balance",
            100,
            None,
            False,
            101,
            "insufficient_credits",
            {"required_credits": 101, "available_credits": 100},
        ),
        ("the balance and the cap", 100, 50, True, 150, "reserved", {}),
        (
            "one more than the balance and the cap",
            100,
            50,
            True,
            151,
            "spending_cap_reached",
            {"required_credits": 151, "available_credits": 100, "cap_credits": 50, "overage_credits": 0},
        ),
        (
            "a cap of nothing",
            100,
            0,
            True,
            101,
            "spending_cap_reached",
            {"required_credits": 101, "available_credits": 100, "cap_credits": 0, "overage_credits": 0},
        ),
        (
            "overage with a cap, but switched off",
            100,
            50,
            False,
            101,
            "insufficient_credits",
            {"required_credits": 101, "available_credits": 100},
        ),
    ],
)
def test_funds(
    what: str,
    balance: int,
    cap: int | None,
    overage_on: bool,
    ask: int,
    expected: str,
    details: dict[str, int],
) -> None:
    """F6, O1, O5."""
    world = World()
    world.open_account(balance, overage=cap)
    if not overage_on:
        world.patches(overage_enabled=False)
    outcome = world.reserve("j", characters(ask))
    assert said(outcome) == expected, what
    if expected != "reserved":
        assert (refused(outcome).details, refused(outcome).retry_after) == (details, None), what


def test_the_cap_counts_what_is_used_and_what_is_held_until_it_is_raised() -> None:
    """O5, O7: topping up does not lift a cap, but pays; raising it does."""
    world = World()
    world.open_account(overage=100)
    world.charges("used", characters(60))
    world.reserves("held", characters(30))
    refusal = refused(world.reserve("j", characters(11)))
    assert (refusal.code, refusal.details["overage_credits"]) == ("spending_cap_reached", 90)
    world.patches(cap_usd=101_000)
    assert said(world.reserve("j", characters(11))) == "reserved"


# -- the order of the refusals -------------------------------------------------------------------------------------


def make_suspended(world: World) -> None:
    world.patches(access="suspended")


def make_quota(**quota: int) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.patches(quotas={"live": as_change(Quota(**quota))})

    return change


def make_known(world: World) -> None:
    world.reserves("j", characters(50))


def make_key_known(world: World) -> None:
    world.reserves("other", characters(50), key="k")


def make_nothing_left(world: World) -> None:
    world.reserves("all", characters(world.acme.available))


def make_used_and_full(world: World) -> None:
    """One request open, 60 of 100 used, and one slot."""
    world.reserves("holder", characters(60))
    make_quota(max_requests=1, period_credits=100)(world)


def make_used(world: World) -> None:
    world.charges("used", characters(60))
    make_quota(period_credits=100)(world)
    world.grants("less", -world.acme.available, kind="adjustment")


def both(*steps: Callable[[World], None]) -> Callable[[World], None]:
    def change(world: World) -> None:
        for step in steps:
            step(world)

    return change


@pytest.mark.parametrize(
    ("earlier", "later", "situation", "lines", "winner"),
    [
        (
            "shape",
            "a job already known",
            make_known,
            [Line("tts_synthesis", 1.5)],
            "validation_error",
        ),
        (
            "a job already known",
            "price",
            make_known,
            [TELEPORT],
            "idempotency_key_reused",
        ),
        ("a key already known", "price", make_key_known, [TELEPORT], "idempotency_key_reused"),
        ("a job already known", "module", both(make_known, make_suspended), [characters(50)], "reserved"),
        (
            "a key already known",
            "module",
            both(make_key_known, make_suspended),
            [characters(50)],
            "request_in_flight",
        ),
        ("price", "module", make_suspended, [TELEPORT], "operation_not_priced"),
        (
            "module",
            "a ceiling that can never fit",
            both(make_quota(period_credits=1), make_suspended),
            [characters(50)],
            "gateway_not_enabled",
        ),
        (
            "a ceiling that can never fit",
            "concurrency",
            make_quota(max_requests=0, period_credits=1),
            [characters(50)],
            "request_exceeds_period_quota",
        ),
        (
            "concurrency",
            "the period's ceiling",
            make_used_and_full,
            [characters(50)],
            "concurrency_limit_reached",
        ),
        ("the period's ceiling", "funds", make_used, [characters(50)], "period_quota_exhausted"),
        (
            "a ceiling that can never fit",
            "funds",
            both(make_nothing_left, make_quota(period_credits=1)),
            [characters(50)],
            "request_exceeds_period_quota",
        ),
        (
            "concurrency",
            "funds",
            both(make_nothing_left, make_quota(max_requests=1)),
            [characters(50)],
            "concurrency_limit_reached",
        ),
        ("funds", "nothing else", make_nothing_left, [characters(50)], "insufficient_credits"),
    ],
)
def test_the_first_refusal_is_the_answer(
    earlier: str, later: str, situation: Callable[[World], None], lines: list[Line], winner: str
) -> None:
    """Q6: for each two that stand next to each other, both apply and the earlier one answers; nothing changes."""
    world = World()
    world.open_account(1_000)
    situation(world)
    before = (world.acme.sequence, world.acme.available, dict(world.acme.jobs), dict(world.acme.keys))
    outcome = world.reserve("j", lines, key="k")
    assert said(outcome) == winner, f"{earlier} before {later}"
    after = (world.acme.sequence, world.acme.available, dict(world.acme.jobs), dict(world.acme.keys))
    assert after == before


def test_the_call_ceiling_goes_before_the_periods_and_that_before_the_cap() -> None:
    """Q6, for calls and overage."""
    world = World()
    world.open_account(overage=620, live=Quota(max_calls=1, period_credits=1_000))
    world.reserves("open", call(60))
    assert said(world.reserve("j", call(60))) == "call_concurrency_limit_reached"
    world.patches(quotas={"live": as_change(Quota(max_calls=2, period_credits=1_000))})
    assert said(world.reserve("j", call(60))) == "period_quota_exhausted"
    world.patches(quotas={"live": as_change(Quota(max_calls=2))})
    assert said(world.reserve("j", call(60))) == "spending_cap_reached"


def test_codes_stand_in_the_order_in_which_they_are_judged() -> None:
    """Q6."""
    judged = [
        "validation_error",
        "idempotency_key_reused",
        "operation_not_priced",
        "gateway_not_enabled",
        "request_exceeds_period_quota",
        "concurrency_limit_reached",
        "call_concurrency_limit_reached",
        "period_quota_exhausted",
        "insufficient_credits",
        "spending_cap_reached",
    ]
    assert [str(code) for code in Code if code in judged] == judged


def test_a_refusal_uses_up_no_key_and_no_job_id() -> None:
    """Q6."""
    world = World()
    world.open_account(10)
    assert said(world.reserve("j", characters(11), key="k")) == "insufficient_credits"
    world.grants("inv", 1)
    assert world.reserves("j", characters(11), key="k").held_credits == 11


# -- a call that is covered only in part ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "balance", "cap", "ceiling", "seconds", "transferable", "expected"),
    [
        ("all is covered", 3_100, None, None, 300, False, "300 s for 3100"),
        ("all is covered, to the second asked", 3_100, None, None, 290.5, False, "290.5 s for 3100"),
        ("one credit short: four minutes", 3_099, None, None, 300, False, "240 s for 2480, partial"),
        ("one minute", 620, None, None, 300, False, "60 s for 620, partial"),
        ("less than one minute", 619, None, None, 300, False, "insufficient_credits"),
        ("less than one minute, with overage", 600, 19, None, 300, False, "spending_cap_reached"),
        ("balance and overage together", 600, 640, None, 300, False, "120 s for 1240, partial"),
        ("transferable: four minutes and the allowance", 3_559, None, None, 300, True, "240 s for 2940, partial"),
        ("transferable: less than one minute and the allowance", 1_079, None, None, 300, True, "insufficient_credits"),
        ("the period's ceiling covers three", 9_999, None, 1_860, 300, False, "180 s for 1860, partial"),
        ("the ceiling is scarcer than the balance", 1_860, None, 1_240, 300, False, "120 s for 1240, partial"),
        ("the balance is scarcer than the ceiling", 1_240, None, 1_860, 300, False, "120 s for 1240, partial"),
        ("the ceiling never fits one minute", 9_999, None, 619, 300, False, "request_exceeds_period_quota"),
        ("less than a minute was asked, and a minute is covered", 620, None, None, 5, False, "5 s for 620"),
    ],
)
def test_partial_calls(
    what: str,
    balance: int,
    cap: int | None,
    ceiling: int | None,
    seconds: float,
    transferable: bool,
    expected: str,
) -> None:
    """J8: whole minutes, never less than one; below that it is the refusal of what ran out."""
    world = World()
    world.open_account(balance, overage=cap, live=Quota(period_credits=ceiling))
    outcome = world.reserve("j", call(seconds), transferable=transferable, allow_partial=True)
    if isinstance(outcome, Reserved):
        made = outcome.reservation
        (first,) = made.lines
        assert first.requested_quantity == seconds, what
        partial = ", partial" if made.partial else ""
        assert f"{first.reserved_quantity} s for {made.held_credits}{partial}" == expected, what
    else:
        assert said(outcome) == expected, what


def test_a_partial_call_may_fit_what_is_left_of_a_period_that_never_fits_it_whole() -> None:
    """J8, Q3: its one-minute version is what is judged; what is left counts, too."""
    world = World()
    world.open_account(9_999, live=Quota(period_credits=1_300))
    assert said(world.reserve("whole", call(300))) == "request_exceeds_period_quota"
    assert world.reserves("part", call(300), allow_partial=True).held_credits == 1_240
    refusal = refused(world.reserve("more", call(300), allow_partial=True))
    assert (refusal.code, refusal.details["required_credits"]) == ("period_quota_exhausted", 620)


def test_only_the_call_is_shortened() -> None:
    """J8: other lines of the job are held whole."""
    world = World()
    world.open_account(1_300)
    made = world.reserves("j", [call(300), turn(2)], allow_partial=True)
    assert [(one.reserved_quantity, one.credits) for one in made.lines] == [(120, 1_240), (2, 22)]
    assert made.partial


def test_without_leave_nothing_is_shortened() -> None:
    """J8."""
    world = World()
    world.open_account(3_099)
    refusal = refused(world.reserve("j", call(300)))
    assert (refusal.code, refusal.details["required_credits"]) == ("insufficient_credits", 3_100)


# -- what was asked before -----------------------------------------------------------------------------------------


def settled(world: World, result: bytes | None = b'"done"') -> None:
    world.settles("first", call(60), result=result)


def released(world: World) -> None:
    world.releases("first", error_code="upstream_unavailable")


def never_went_out(world: World) -> None:
    world.releases("first", error_code="upstream_unavailable", originated=False)


def expired(world: World) -> None:
    world.wait(seconds=900)


def nothing(world: World) -> None:
    """The job stays open."""


def settled_long_ago(world: World) -> None:
    settled(world)
    world.wait(hours=24)


def settled_just_now(world: World) -> None:
    settled(world)
    world.wait(hours=23, minutes=59, seconds=59)


def settled_without_result(world: World) -> None:
    settled(world, result=None)


@pytest.mark.parametrize(
    ("what", "then", "same_job", "same_key", "details"),
    [
        ("still open", nothing, "reserved", "request_in_flight", None),
        ("settled, its result kept", settled, "replayed", "replayed", None),
        ("settled, the last second of its 24 h", settled_just_now, "replayed", "replayed", None),
        (
            "settled, past its 24 h",
            settled_long_ago,
            "result_not_replayable",
            "result_not_replayable",
            {"job_id": "first", "status": "settled", "credits_charged": 620},
        ),
        (
            "settled without a result",
            settled_without_result,
            "result_not_replayable",
            "result_not_replayable",
            {"job_id": "first", "status": "settled", "credits_charged": 620},
        ),
        ("failed", released, "replayed", "replayed", None),
        ("never went out: its key is free", never_went_out, "replayed", "reserved", None),
        (
            "expired",
            expired,
            "job_not_completed",
            "job_not_completed",
            {"job_id": "first", "status": "expired", "credits_charged": 0},
        ),
    ],
)
def test_asking_again(
    what: str,
    then: Callable[[World], None],
    same_job: str,
    same_key: str,
    details: dict[str, object] | None,
) -> None:
    """J10: by the same job, or by its key under another job; nothing more is held or charged."""
    world = World()
    world.open_account(10_000)
    world.reserves("first", call(60), key="k")
    then(world)
    world.look()
    before = (world.acme.available, world.acme.held, world.month().charged)
    again, other = world.reserve("first", call(60), key="k"), None
    assert (world.acme.available, world.acme.held, world.month().charged) == before
    other = world.reserve("second", call(60), key="k")
    assert (said(again), said(other)) == (same_job, same_key), what
    for outcome in (again, other):
        if isinstance(outcome, Replayed):
            assert outcome.job_id == "first"
        if details is not None:
            assert refused(outcome).details == details
            assert refused(outcome).retry_after is None
    if same_key != "reserved":
        assert "second" not in world.acme.jobs


def test_the_same_reservation_again_is_the_same_answer() -> None:
    """J1, J10: to the letter, though the key and the metadata are others."""
    world = World()
    world.open_account(10_000)
    first = world.reserve("j", call(60), key="k", metadata=b"{}")
    world.wait(seconds=30)
    again = world.reserve("j", call(60), key="other", ttl=60, metadata=b'{"a":1}')
    assert isinstance(first, Reserved)
    assert isinstance(again, Reserved)
    assert (again.reservation, again.created) == (first.reservation, False)
    assert world.acme.keys == {("live", "k"): world.job("j")}


@pytest.mark.parametrize(("waited", "retry_after"), [(0, 900), (0.5, 900), (899, 1), (899.999, 1)])
def test_a_key_in_flight_says_how_long_it_can_still_last(waited: float, retry_after: int) -> None:
    """J10: the seconds to the deadline."""
    world = World()
    world.open_account(100)
    world.reserves("first", turn(), key="k")
    world.wait(seconds=waited)
    refusal = refused(world.reserve("second", turn(), key="k"))
    assert (refusal.code, refusal.retry_after) == ("request_in_flight", retry_after)
    assert refusal.details == {"retry_after": retry_after}


@pytest.mark.parametrize(
    ("what", "first", "second", "same"),
    [
        ("nothing differs", {}, {}, True),
        ("another operation", {}, {"lines": line("image_analysis")}, False),
        ("another quantity", {}, {"lines": call(61)}, False),
        ("another line more", {}, {"lines": [call(60), turn()]}, False),
        ("transferable", {}, {"transferable": True}, False),
        ("partial", {}, {"allow_partial": True}, False),
        ("another environment", {}, {"environment": "test"}, False),
        ("another time to live", {}, {"ttl": 60}, True),
        ("other metadata", {}, {"metadata": b"{}"}, True),
        ("a fingerprint, where there was none", {}, {"fingerprint": "f"}, False),
        ("the same fingerprint", {"fingerprint": "f"}, {"fingerprint": "f"}, True),
        (
            "the same fingerprint decides, not the lines",
            {"fingerprint": "f"},
            {"fingerprint": "f", "lines": [call(60), turn()], "allow_partial": True},
            True,
        ),
        ("another fingerprint", {"fingerprint": "f"}, {"fingerprint": "g"}, False),
        (
            "the same fingerprint in another environment",
            {"fingerprint": "f"},
            {"fingerprint": "f", "environment": "test"},
            False,
        ),
    ],
)
def test_what_makes_two_requests_the_same(
    what: str, first: dict[str, object], second: dict[str, object], same: bool
) -> None:
    """J10: environment always; else the fingerprint, or lines and switches."""
    world = World()
    world.open_account(10_000)

    def ask(job_id: str, key: str | None, other: dict[str, object]) -> Outcome:
        wanted: dict[str, object] = {"lines": call(60), "key": key} | other
        return world.reserve(job_id, **wanted)  # type: ignore[arg-type] # rows of the table

    assert said(ask("j", "k", first)) == "reserved"
    assert said(ask("j", None, second)) == ("reserved" if same else "idempotency_key_reused"), what
    if second.get("environment") is None:
        expected = "request_in_flight" if same else "idempotency_key_reused"
        refusal = refused(ask("other", "k", second))
        assert refusal.code == expected, what
        assert same or refusal.details == {}
    assert len(world.acme.jobs) == 1


def test_another_request_for_a_closed_job_is_told_what_became_of_it() -> None:
    """J10."""
    world = World()
    world.open_account(10_000)
    world.reserves("j", call(60), key="k")
    world.settles("j", call(30))
    for outcome in (world.reserve("j", call(61)), world.reserve("other", call(61), key="k")):
        refusal = refused(outcome)
        assert refusal.code == "idempotency_key_reused"
        assert refusal.details == {"job_id": "j", "status": "settled", "credits_charged": 620}


def test_keys_belong_to_an_environment() -> None:
    """J10."""
    world = World()
    world.open_account(100)
    world.reserves("live", turn(), key="k")
    assert world.reserves("test", turn(), key="k", environment="test").environment == "test"


def test_of_a_known_job_and_a_known_key_the_job_decides() -> None:
    """J10."""
    world = World()
    world.open_account(100)
    world.reserves("one", turn(), key="k-one")
    world.reserves("two", turn(), key="k-two")
    again = world.reserve("one", turn(), key="k-two")
    assert isinstance(again, Reserved)
    assert (again.reservation.job_id, again.created) == ("one", False)


def test_a_key_that_was_freed_is_taken_by_the_next_job() -> None:
    """J10: and the released job itself stays released."""
    world = World()
    world.open_account(10_000)
    world.reserves("first", call(60), key="k")
    never_went_out(world)
    world.reserves("second", call(60), key="k")
    assert said(world.reserve("third", call(60), key="k")) == "request_in_flight"
    assert world.reserve("first", call(60), key="k") == Replayed("first")
    assert isinstance(world.settle("second", call(60)), Settled)


def test_a_job_keeps_the_prices_it_was_reserved_under() -> None:
    """P9: to its last line, also when a refund or a settlement comes after a change of prices."""
    text = """
[[versions]]
version = "{name}"
effective_from = {begins}
[versions.operations.agent_turn]
unit = "request"
measured_in = "request"
credits = {price}
"""
    old = text.format(name="old", begins="2026-01-01T00:00:00Z", price=11)
    new = text.format(name="new", begins="2026-11-15T12:10:00Z", price=20)
    world = World(catalog=parse((old + new).encode()))
    world.open_account(100)
    assert world.reserves("before", turn()).price_version == "old"
    world.at("2026-11-15T12:10:00")
    made = world.reserves("after", turn())
    assert (made.price_version, made.held_credits) == ("new", 20)
    assert world.settles("before", turn(2)).credits_charged == 22
    assert world.settles("after", turn(2)).credits_charged == 40
