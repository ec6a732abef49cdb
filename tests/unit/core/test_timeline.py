"""Time decides, at its own instants, whoever looks and whenever (T1, T2, T4, J5, F2)."""

from __future__ import annotations

import pytest

from ledger.core.commands import BroughtUp
from ledger.core.timeline import bring_up_to
from tests.support.core import ACME, World, call, characters, instant


def kinds(world: World) -> list[tuple[str, str]]:
    """The entries of the last command: what happened, and as of when."""
    return [(entry.kind, f"{entry.at:%d %H:%M:%S}") for entry in world.last.entries]


@pytest.mark.parametrize(
    ("looked_at", "status"),
    [
        ("2026-11-15T12:14:59.999999", "reserved"),
        ("2026-11-15T12:15:00", "expired"),
        ("2026-11-20T00:00:00", "expired"),
    ],
    ids=["a microsecond before the deadline", "at the deadline", "days later"],
)
def test_a_hold_is_over_at_its_deadline(looked_at: str, status: str) -> None:
    """J5, T1: `expired_at` is the deadline, not the moment it was noticed; the charge is 0."""
    world = World()
    world.open_account(100)
    world.reserves("j", characters(30))
    world.at(looked_at)
    world.look()
    job = world.job("j")
    assert job.status == status
    assert world.acme.available == (100 if status == "expired" else 70)
    if status == "expired":
        assert job.closing is not None
        assert (job.closing.at, job.closing.charged) == (instant("2026-11-15T12:15:00"), 0)
        assert job.closing.returned == 30
        assert job.closing.entry == world.acme.sequence
        assert world.last_brought_up == BroughtUp(holds_expired=1, credits_returned=30)


@pytest.mark.parametrize(
    ("looked_at", "left"),
    [("2026-11-30T23:59:59.999999", {"plan": 50}), ("2026-12-01T00:00:00", {}), ("2027-03-01T00:00:00", {})],
    ids=["a microsecond before its end", "at its end", "months later"],
)
def test_a_grant_is_over_at_its_end(looked_at: str, left: dict[str, int]) -> None:
    """T1, T4: what it leaves belongs to the month that ended with it."""
    world = World()
    world.open_account()
    world.grants("plan", 50, kind="plan")
    world.at(looked_at)
    world.look()
    assert world.left() == left
    assert world.month("2026-11").expired == (0 if left else 50)
    assert world.month(looked_at[:7]).expired == (0 if looked_at[:7] != "2026-11" or left else 50)
    if not left:
        assert kinds(world) == [("expire_grant", "01 00:00:00")]
        assert world.last_brought_up == BroughtUp(grants_expired=1, credits_expired=50)


def test_what_is_due_is_entered_once() -> None:
    """J1, T1."""
    world = World()
    world.open_account()
    world.grants("plan", 50, kind="plan")
    world.reserves("j", characters(30), ttl=60)
    world.at("2026-12-24")
    world.look()
    assert len(world.last.entries) == 2
    world.look()
    assert (world.last.entries, world.last_brought_up) == ([], BroughtUp())


def test_what_was_brought_up_is_added_up() -> None:
    """T1, F2: two holds, of which 10 credits outlive their grant, and the ends of two grants, all at one look."""
    world = World()
    world.open_account()
    world.grants("short", 10, until="2026-11-15T12:01:00")
    world.grants("longer", 20, until="2026-11-15T12:03:00")
    world.grants("longest", 3, until="2026-11-15T12:04:00")
    world.reserves("one", characters(5), ttl=120)
    world.reserves("two", characters(7), ttl=130)
    world.wait(hours=1)
    world.look()
    assert kinds(world) == [
        ("expire", "15 12:02:00"),
        ("expire", "15 12:02:10"),
        ("expire_grant", "15 12:03:00"),
        ("expire_grant", "15 12:04:00"),
    ]
    assert world.last_brought_up == BroughtUp(
        holds_expired=2, grants_expired=2, credits_returned=12, credits_expired=10 + 20 + 3
    )


def test_everything_due_is_entered_in_the_order_of_its_instants() -> None:
    """T1: whatever the order in which it was reserved or granted."""
    world = World()
    world.open_account(100)
    world.grants("later", 10, until="2026-11-15T12:04:00")
    world.grants("sooner", 10, until="2026-11-15T12:02:00")
    world.reserves("third", characters(90), ttl=180)
    world.reserves("first", characters(1), ttl=60)
    world.wait(hours=1)
    world.look()
    assert kinds(world) == [
        ("expire", "15 12:01:00"),
        ("expire", "15 12:03:00"),
        ("expire_grant", "15 12:04:00"),
    ]


def test_a_hold_that_ends_with_its_grant_goes_first_and_expires_with_it() -> None:
    """F2: of what ends at one instant, the hold; what comes back is gone."""
    world = World()
    world.open_account(5)
    world.grants("plan", 50, until="2026-11-15T12:15:00")
    world.reserves("j", characters(30))
    world.wait(hours=1)
    world.look()
    assert kinds(world)[0] == ("expire", "15 12:15:00")
    assert (world.left(), world.month().expired) == ({"start": 5}, 50)
    assert world.job("j").status == "expired"


def test_what_a_hold_gives_back_before_its_grants_end_expires_with_the_grant() -> None:
    """T1: both unseen, each at its own instant."""
    world = World()
    world.open_account()
    world.grants("plan", 50, until="2026-11-15T12:20:00")
    world.reserves("j", characters(50))
    world.wait(hours=1)
    world.look()
    assert kinds(world) == [("expire", "15 12:15:00"), ("expire_grant", "15 12:20:00")]
    assert world.month().expired == 50


def test_a_grant_that_ends_while_held_still_settles() -> None:
    """F2: the hold keeps what it took; what comes back after the end is gone, and belongs to the old month (T4)."""
    world = World()
    world.open_account()
    world.grants("plan", 50, kind="plan")
    world.at("2026-11-30T23:55:00")
    world.reserves("j", characters(40))
    world.at("2026-12-01T00:05:00")
    settled = world.settles("j", characters(25))
    assert (settled.credits_charged, settled.credits_returned) == (25, 15)
    assert world.left() == {}
    assert world.month("2026-11").expired == 10 + 15
    assert world.postings()[-2:] == [("hold:2", "grant:1", 15), ("grant:1", "expired", 15)]


def test_a_grant_wholly_held_at_its_end_leaves_nothing_to_enter() -> None:
    """A1: an entry has at least one posting."""
    world = World()
    world.open_account()
    world.grants("plan", 50, kind="plan")
    world.at("2026-11-30T23:55:00")
    world.reserves("j", characters(50))
    world.at("2026-12-01")
    world.look()
    assert (world.last.entries, world.last_brought_up) == ([], BroughtUp())
    assert world.acme.held == 50


def test_a_hold_expires_in_the_month_it_was_reserved_in() -> None:
    """J14: and its slot is free (Q4)."""
    world = World()
    world.open_account(10_000)
    world.at("2026-11-30T23:55:00")
    world.reserves("j", call(60))
    world.at("2026-12-01T00:09:59")
    world.look()
    assert (world.month("2026-11").live_held, world.acme.open_slots["live", "call"]) == (620, 1)
    world.at("2026-12-01T00:10:00")
    world.look()
    assert (world.month("2026-11").live_held, world.acme.open_slots["live", "call"]) == (0, 0)
    assert world.acme.call_deadlines == {"live": {}}


def test_a_long_backlog_is_brought_up_in_parts() -> None:
    """T1: as far as its horizon each time; what is due behind it waits, grants too."""
    world = World()
    world.open_account(100)
    for minute in (1, 2, 3):
        world.reserves(f"j{minute}", characters(10), ttl=60 * minute)
    world.grants("ends", 10, until="2026-11-15T12:02:30")
    world.wait(hours=1)
    account = world.acme
    bring_up_to(account, instant("2026-11-15T12:02:00"))
    assert [job.status for job in account.jobs.values()] == ["expired", "expired", "reserved"]
    assert [entry.kind for entry in account.changes.entries] == ["expire", "expire"]
    assert (account.at, account.available) == (instant("2026-11-15T12:02:00"), 100)
    bring_up_to(account, world.now)
    assert [entry.kind for entry in account.changes.entries] == [
        "expire",
        "expire",
        "expire_grant",
        "expire",
    ]
    assert (account.at, account.due) == (world.now, {})


def test_an_account_is_never_brought_back() -> None:
    """T3."""
    world = World()
    world.open_account(10)
    bring_up_to(world.acme, instant("2026-11-15T11:00:00"))
    assert world.acme.at == instant("2026-11-15T12:00:00")


def test_a_due_list_may_hold_jobs_that_are_closed() -> None:
    """J1: a job that another command of the batch has closed does not expire too."""
    world = World()
    world.open_account(10)
    world.reserves("j", characters(10))
    world.releases("j")
    job = world.job("j")
    world.accounts[ACME].due[job.number] = job
    world.wait(hours=1)
    world.look()
    assert (job.status, world.last.entries) == ("released", [])
