"""Events: what is told, how often, and with which figures (contract V1, V2, V5, O6)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.support.core import World, bridged, call, characters, instant, line

THRESHOLD, EXHAUSTED, CAP = "credits.threshold_reached", "credits.exhausted", "credits.spending_cap_reached"


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("charges", "told"),
    [
        # charges of a month that had 1,000 credits, the shares that events told of
        ([799], []),
        ([800], [80.0]),
        ([799, 1], [80.0]),
        ([800, 149], [80.0]),
        ([800, 150], [80.0, 95.0]),
        ([950], [95.0]),
        ([960, 20], [96.0]),
        ([400, 400, 100, 60], [80.0, 96.0]),
    ],
)
def test_v1_each_threshold_is_told_once_on_the_settlement_that_crosses_it(
    world: World, charges: list[int], told: list[float]
) -> None:
    world.open_account(1_000)
    for number, credits in enumerate(charges):
        world.charges(f"j{number}", characters(credits))
    assert [data["usage_percent"] for data in world.told(THRESHOLD)] == told


@pytest.mark.parametrize(
    ("granted", "charged", "percent"),
    [
        (1_000, 850, 85.0),
        (900, 775, 86.11),
        (1, 1, 100.0),
    ],
    ids=["a whole share", "two decimals", "a month of a single credit"],
)
def test_v1_the_figures(world: World, granted: int, charged: int, percent: float) -> None:
    world.open_account(granted)
    world.charges("j", characters(charged))
    (told,) = world.told(THRESHOLD)
    assert told == {"used_credits": charged, "total_available": granted, "usage_percent": percent}


def test_v1_of_a_month_without_credits_there_is_no_share(world: World) -> None:
    """All of it is overage: no threshold is crossed, and no percentage shown."""
    world.open_account(overage=100)
    world.at("2026-12-01T00:00:00Z")
    world.charges("j", characters(100))
    assert world.told(THRESHOLD) == []
    (told,) = world.told(CAP)
    assert told == {
        "used_credits": 0,
        "total_available": 0,
        "overage_credits": 100,
        "overage_spending_cap": 0.1,
    }


def use_most(world: World) -> None:
    world.open_account(1_000)
    world.reserves("j", characters(800), environment="test")
    world.wait(seconds=30)
    world.settles("j", characters(800))


def use_all(world: World) -> None:
    world.open_account(1_000)
    world.reserves("j", characters(1_000), environment="test")
    world.wait(seconds=30)
    world.settles("j", characters(1_000))


def ask_too_much(world: World) -> None:
    world.open_account(10)
    world.wait(seconds=30)
    world.reserve("j", characters(11), environment="test")


def hold_all_overage(world: World) -> None:
    world.open_account(overage=100)
    world.wait(seconds=30)
    world.reserves("j", characters(100), environment="test")


def ask_more_than_the_cap(world: World) -> None:
    world.open_account(overage=100)
    world.wait(seconds=30)
    world.reserve("j", characters(101), environment="test")


def use_more_than_was_held(world: World) -> None:
    world.open_account(10, overage=100)
    world.reserves("j", characters(10), environment="test")
    world.wait(seconds=30)
    world.settles("j", characters(110))


def outlive_the_deadline(world: World) -> None:
    world.open_account(100)
    world.reserves("j", characters(10), environment="test", ttl=30)
    world.wait(hours=1)
    world.look()


@pytest.mark.parametrize(
    ("what", "happens", "kind", "once"),
    [
        ("a threshold", use_most, THRESHOLD, "threshold:2026-11:80"),
        ("all is used", use_all, EXHAUSTED, "exhausted:1"),
        ("a refusal for want of credits", ask_too_much, EXHAUSTED, "exhausted:1"),
        ("the last overage is held", hold_all_overage, CAP, "cap:2026-11"),
        ("the last overage is used", use_more_than_was_held, CAP, "cap:2026-11"),
        ("a refusal for the cap", ask_more_than_the_cap, CAP, "cap:2026-11"),
        ("an expiry", outlive_the_deadline, "job.expired", "expired:2"),
    ],
)
def test_v5_an_event_names_its_environment_its_instant_and_what_is_told_once(
    world: World, what: str, happens: Callable[[World], None], kind: str, once: str
) -> None:
    """V5: all of these happen in the test environment, 30 seconds past noon."""
    happens(world)
    (event,) = [event for event in world.events if event.type == kind]
    assert (event.environment, event.at, event.once) == ("test", instant("2026-11-15T12:00:30"), once), what


def test_v1_figures_of_overage_are_there_where_it_is_switched_on(world: World) -> None:
    world.open_account(1_000, overage=500)
    world.charges("j", characters(1_500))
    (told,) = world.told(CAP)
    assert told == {
        "used_credits": 0,
        "total_available": 4_000,  # the welcome was granted too; taking it away does not change the share
        "usage_percent": 0.0,
        "overage_credits": 500,
        "overage_spending_cap": 0.5,
    }


def test_v1_refunds_and_negative_adjustments_do_not_change_the_share(world: World) -> None:
    world.open_account(1_000)
    world.charges("j", characters(700))
    world.refunds_job("j", 700)
    world.grants("away", -900, kind="adjustment")
    world.charges("k", characters(100))
    assert [data["usage_percent"] for data in world.told(THRESHOLD)] == [80.0]


def test_v1_positive_adjustments_count_as_granted(world: World) -> None:
    world.open_account(500)
    world.grants("more", 200, kind="adjustment")
    world.grants("and-more", 300, kind="adjustment")
    world.charges("j", characters(800))
    assert world.told(THRESHOLD) == [{"used_credits": 800, "total_available": 1_000, "usage_percent": 80.0}]


def test_v1_the_month_begins_with_what_was_left(world: World) -> None:
    """What is held counts, an overdraft is taken off, what ended with the old month is not in it."""
    world.open_account(500)
    world.grants("plan", 300, kind="plan")
    world.at("2026-11-30T23:55:00Z")
    world.reserves("held", characters(100))
    world.at("2026-12-01T00:01:00Z")
    world.look()
    assert world.month("2026-12").opening == 500
    world.charges("j", characters(400))
    assert world.told(THRESHOLD) == [{"used_credits": 400, "total_available": 500, "usage_percent": 80.0}]


def test_v1_an_overdraft_makes_the_opening_smaller(world: World) -> None:
    world.open_account(620)
    world.reserves("call", call(60))
    world.settles("call", [call(60), bridged(60)])
    world.at("2026-12-02T00:00:00Z")
    world.look()
    assert world.month("2026-12").opening == -460
    world.grants("top-up", 1_000)
    world.charges("j", characters(540))
    assert world.told(THRESHOLD)[-1] == {"used_credits": 540, "total_available": 540, "usage_percent": 100.0}


def test_v1_exhausted_by_a_settlement_once_until_something_is_granted(world: World) -> None:
    world.open_account(100)
    world.charges("j", characters(100))
    assert world.told(EXHAUSTED) == [{"used_credits": 100, "total_available": 100, "usage_percent": 100.0}]
    world.reserve("k", characters(1))
    assert len(world.told(EXHAUSTED)) == 1
    world.grants("more", 10)
    world.reserve("l", characters(11))
    assert len(world.told(EXHAUSTED)) == 2


def test_v1_exhausted_by_a_refusal(world: World) -> None:
    """That it was told is written with the balance, though nothing else changes."""
    world.open_account(10)
    world.reserve("j", characters(11))
    written = [world.last.balance]
    world.reserve("j", characters(11))
    written.append(world.last.balance)
    assert written == [True, False]
    assert world.told(EXHAUSTED) == [{"used_credits": 0, "total_available": 10, "usage_percent": 0.0}]


def test_v1_not_exhausted_while_overage_is_usable(world: World) -> None:
    world.open_account(100, overage=500)
    world.charges("j", characters(100))
    assert world.told(EXHAUSTED) == []


def test_v1_a_settlement_repeated_tells_nothing(world: World) -> None:
    world.open_account(100)
    world.charges("j", characters(90))
    told = len(world.events)
    world.settles("j", characters(90))
    world.settle("j", characters(91))
    world.settle("nobody", characters(91))
    assert len(world.events) == told


def test_v1_a_settlement_repeated_when_the_next_credits_are_held_tells_nothing(world: World) -> None:
    """The balance is 0 again, but no settlement made it so."""
    world.open_account(100)
    world.charges("j", characters(100))
    world.grants("more", 10)
    world.reserves("k", characters(10))
    world.settles("j", characters(100))
    assert len(world.told(EXHAUSTED)) == 1


def test_v1_a_settlement_that_is_refused_tells_nothing(world: World) -> None:
    world.open_account(100)
    world.reserves("j", characters(100))
    world.settle("j", line("unpriced"))
    assert world.events == []


def test_o6_the_cap_is_told_once_a_month(world: World) -> None:
    """Overage used and held reaches it, or a reservation is refused for it."""
    world.open_account(0, overage=100)
    world.reserves("j", characters(60))
    assert world.told(CAP) == []
    world.reserve("k", characters(41))
    world.reserves("l", characters(40))
    assert len(world.told(CAP)) == 1
    world.at("2026-12-01T00:00:00Z")
    world.reserves("m", characters(100))
    assert len(world.told(CAP)) == 2


def test_o6_held_overage_reaches_the_cap(world: World) -> None:
    world.open_account(0, overage=100)
    world.reserves("j", characters(100))
    (told,) = world.told(CAP)
    assert told["overage_credits"] == 100


def test_o6_work_that_takes_no_overage_does_not_reach_a_cap(world: World) -> None:
    world.open_account(100, overage=0)
    world.charges("j", characters(100))
    assert world.told(CAP) == []


def test_v2_a_job_that_expired(world: World) -> None:
    world.open_account(100)
    world.reserves("j", characters(50), ttl=60, metadata=b'{"loan_id": "L-9"}')
    world.reserves("k", characters(50), ttl=60)
    deadline = world.job("j").expires_at
    world.wait(hours=1)
    world.look()
    first, second = world.told("job.expired")
    assert msgspec.json.decode(msgspec.json.encode(first)) == {
        "job_id": "j",
        "operation": "tts_synthesis",
        "status": "expired",
        "credits_charged": 0,
        "error_code": "job_not_completed",
        "metadata": {"loan_id": "L-9"},
    }
    assert "metadata" not in second
    assert [event.at for event in world.events] == [deadline, deadline]
    assert len({event.once for event in world.events}) == 2
