"""Which credits pay, and where they go back (F2, F3, F4, J12, J13)."""

from __future__ import annotations

import pytest

from ledger.core.account import FROM_OVERAGE, FROM_OVERDRAFT, Segment
from ledger.core.commands import Funding
from ledger.core.funding import hold_funding, source_account, spending_order, take_back
from tests.support.core import World, characters, refused, said

END = "2026-12-01"


# -- the order of spending -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "grants", "order"),
    [
        (
            "what ends first goes first, whatever its kind",
            [("late", "plan", "2026-12-31"), ("soon", "purchase", END), ("sooner", "adjustment", "2026-11-20")],
            ["sooner", "soon", "late"],
        ),
        (
            "what ends goes before what does not",
            [("bought", "purchase", None), ("plan", "plan", END)],
            ["plan", "bought"],
        ),
        (
            "without an end: in the order granted, purchases and adjustments alike",
            [("one", "purchase", None), ("two", "adjustment", None), ("three", "purchase", None)],
            ["one", "two", "three"],
        ),
        (
            "with the same end: in the order granted",
            [("one", "purchase", END), ("two", "plan", None), ("three", "adjustment", END)],
            ["one", "two", "three"],
        ),
    ],
)
def test_spending_order(what: str, grants: list[tuple[str, str, str | None]], order: list[str]) -> None:
    """F2."""
    world = World()
    world.open_account()
    for name, kind, until in grants:
        world.grants(name, 10, kind=kind, until=until)  # type: ignore[arg-type] # a row of text
    assert [grant.grant_id for grant in spending_order(world.acme)] == order, what


def test_the_welcome_goes_before_purchases_however_late_it_comes() -> None:
    """F2: of what does not end, the welcome first."""
    world = World()
    world.open_account(10)
    world.patches(payment_method_verified=True)
    world.grants("plan", 10, kind="plan")
    assert [grant.grant_id for grant in spending_order(world.acme)] == ["plan", "welcome", "start"]


def test_a_used_up_grant_is_not_in_the_order() -> None:
    world = World()
    world.open_account(10)
    world.charges("j", characters(10))
    assert spending_order(world.acme) == []


# -- holds and charges ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "charge", "returned", "paid_by", "left", "overage"),
    [
        ("nothing", 0, 100, [], {"plan": 60}, 0),
        ("a part of the plan", 50, 50, [("plan", 50)], {"plan": 10}, 0),
        ("just the plan", 60, 40, [("plan", 60)], {}, 0),
        ("F3's example: 60 + 10, and 30 of overage go back", 70, 30, [("plan", 60), ("overage", 10)], {}, 10),
        ("all of it", 100, 0, [("plan", 60), ("overage", 40)], {}, 40),
    ],
)
def test_a_settlement_uses_up_its_hold_in_order_and_returns_from_the_other_end(
    what: str, charge: int, returned: int, paid_by: list[tuple[str, int]], left: dict[str, int], overage: int
) -> None:
    """F3: a hold of 60 from a plan and 40 of overage."""
    world = World()
    world.open_account(overage=100)
    world.grants("plan", 60, kind="plan")
    reservation = world.reserves("j", characters(100))
    assert reservation.funding == Funding(balance=60, overage=40)
    assert (world.month().overage_held, world.acme.held) == (40, 60)
    settled = world.settles("j", characters(charge))
    assert (settled.credits_charged, settled.credits_returned) == (charge, returned), what
    assert (world.paid_by("j"), world.left()) == (paid_by, left), what
    assert (world.month().overage_used, world.month().overage_held) == (overage, 0), what


def test_a_hold_takes_from_several_grants_and_a_release_puts_each_back() -> None:
    """F2, J4."""
    world = World()
    world.open_account(10)
    world.grants("plan", 5, kind="plan")
    world.reserves("j", characters(12))
    assert world.postings() == [("grant:2", "hold:3", 5), ("grant:1", "hold:3", 7)]
    assert world.left() == {"start": 3}
    world.releases("j")
    assert world.postings() == [("hold:3", "grant:1", 7), ("hold:3", "grant:2", 5)]
    assert world.left() == {"start": 10, "plan": 5}


def test_a_line_paid_from_several_sources_carries_its_quantity_once() -> None:
    """A7: on the first of its postings."""
    world = World()
    world.open_account(50)
    world.reserves("j", characters(20))
    world.settles("j", [characters(30), characters(40)])
    consumed = [(p.debit, p.credits, p.quantity) for entry in world.last.entries for p in entry.postings]
    assert consumed == [
        ("hold:2", 20, 30),
        ("grant:1", 10, None),
        ("grant:1", 20, 40),
        ("overdraft", 20, None),
    ]


@pytest.mark.parametrize(
    ("what", "balance", "cap", "overage_on", "charge", "balance_part", "overage_part", "overdraft_part"),
    [
        ("within the hold", 10, 100, True, 10, 10, 0, 0),
        ("the rest of the balance covers it", 30, 100, True, 25, 25, 0, 0),
        ("then overage", 30, 100, True, 50, 30, 20, 0),
        ("overage up to the cap, then overdraft", 30, 15, True, 50, 30, 15, 5),
        ("overage switched off meanwhile", 30, 100, False, 50, 30, 0, 20),
        ("no overage at all", 10, None, True, 11, 10, 0, 1),
    ],
)
def test_what_pays_more_than_was_held(
    what: str,
    balance: int,
    cap: int | None,
    overage_on: bool,
    charge: int,
    balance_part: int,
    overage_part: int,
    overdraft_part: int,
) -> None:
    """J12: everything available, then usable overage within the cap, then overdraft; settling never fails."""
    world = World()
    world.open_account(balance, overage=cap)
    world.reserves("j", characters(10))
    if not overage_on:
        world.patches(overage_enabled=False)
    settled = world.settles("j", characters(charge))
    assert settled.credits_charged == charge, what
    assert settled.credits_over_hold == charge - 10, what
    assert (settled.funding.balance, settled.funding.overage) == (balance_part, overage_part), what
    assert settled.funding.overdraft == world.acme.overdraft == overdraft_part, what


def test_overage_that_was_not_held_has_its_price_too() -> None:
    """O7, J12: a month whose first overage is what exceeds a hold is invoiced at the price of that day."""
    world = World()
    world.open_account(10, overage=100)
    world.reserves("j", characters(10))
    assert world.month().overage_price is None
    world.settles("j", characters(60))
    assert (world.month().overage_used, world.month().overage_price) == (50, 1_000)
    assert world.month().overage_micro_usd == 50_000


def test_overage_of_several_jobs_adds_up() -> None:
    """O7, J14: what was held, and what exceeded a hold."""
    world = World()
    world.open_account(overage=100)
    for number, (held, charged) in enumerate([(10, 10), (20, 25), (30, 10)]):
        world.reserves(f"j{number}", characters(held))
        world.settles(f"j{number}", characters(charged))
    assert (world.month().overage_used, world.month().overage_held) == (10 + 25 + 10, 0)


def test_overage_for_more_than_was_held_is_the_jobs_own_months() -> None:
    """J12, J14: the cap of November, though it is December."""
    world = World()
    world.at("2026-11-30T23:59:00")
    world.open_account(overage=100)
    world.reserves("j", characters(80))
    world.at("2026-12-01T00:01:00")
    settled = world.settles("j", characters(130))
    assert (settled.funding.overage, settled.funding.overdraft) == (100, 30)
    assert world.month("2026-11").overage_used == 100
    assert world.month("2026-12").overage_used == 0


# -- overdraft -----------------------------------------------------------------------------------------------------


def overdrawn(by: int = 50) -> World:
    """An account that owes: its job `debt` was charged that much more than there was."""
    world = World()
    world.open_account(10)
    world.reserves("debt", characters(10))
    world.settles("debt", characters(10 + by))
    assert world.acme.overdraft == by
    return world


@pytest.mark.parametrize(
    ("what", "grant", "overdraft", "available", "paid_by"),
    [
        ("a part", 20, 30, 0, [("start", 10), ("inv", 20), ("overdraft", 30)]),
        ("all, just", 50, 0, 0, [("start", 10), ("inv", 50)]),
        ("all, and more", 70, 0, 20, [("start", 10), ("inv", 50)]),
    ],
)
def test_a_grant_pays_an_overdraft_first(
    what: str, grant: int, overdraft: int, available: int, paid_by: list[tuple[str, int]]
) -> None:
    """F4, J12: and that part of the charge is then the grant's."""
    world = overdrawn()
    done = world.grants("inv", grant)
    assert (world.acme.overdraft, world.acme.available) == (overdraft, available), what
    assert world.last.jobs_resegmented == {2: world.job("debt")}, what
    assert (done.granted, done.remaining) == (grant, available), what
    assert world.paid_by("debt") == paid_by, what


def test_the_welcome_pays_an_overdraft_too() -> None:
    """F5, J12."""
    world = overdrawn()
    world.patches(payment_method_verified=True)
    assert (world.acme.overdraft, world.left()) == (0, {"welcome": 2_950})
    assert world.paid_by("debt") == [("start", 10), ("welcome", 50)]


@pytest.mark.parametrize(
    ("how", "left_to_pay", "owner"),
    [("release", 10, "other"), ("expiry", 10, "other"), ("settlement", 20, "other"), ("refund", 10, "early")],
)
def test_whatever_comes_back_pays_an_overdraft(how: str, left_to_pay: int, owner: str) -> None:
    """J12: a release, an expiry, the rest of a settlement's hold, a refund."""
    world = World()
    world.open_account()
    world.grants("early", 40)
    world.charges("paid", characters(40))
    world.grants("other", 50)
    world.reserves("open", characters(40), ttl=60)
    world.reserves("debt", characters(10))
    world.settles("debt", characters(60))
    assert (world.acme.overdraft, world.acme.available) == (50, 0)
    if how == "release":
        world.releases("open")
    elif how == "settlement":
        world.settles("open", characters(10))
    elif how == "expiry":
        world.wait(seconds=60)
        world.look()
    else:
        world.refunds_job("paid")
    assert (world.acme.overdraft, world.acme.available) == (left_to_pay, 0)
    assert world.paid_by("debt") == [("other", 10), (owner, 50 - left_to_pay), ("overdraft", left_to_pay)]
    assert said(world.reserve("next", characters(1))) == "insufficient_credits"


def test_what_comes_back_to_a_grant_that_has_ended_pays_nothing() -> None:
    """F2, J12: it is gone."""
    world = World()
    world.open_account()
    world.grants("plan", 40, kind="plan")
    world.at("2026-11-30T23:59:00")
    world.reserves("open", characters(40), ttl=600)
    world.at("2026-12-01")
    world.grants("inv", 10)
    world.reserves("debt", characters(10))
    world.settles("debt", characters(30))
    world.releases("open")
    assert (world.acme.overdraft, world.acme.available) == (20, 0)
    assert world.month("2026-11").expired == 40


def test_the_oldest_debt_is_paid_first_across_jobs_and_lines() -> None:
    """J12."""
    world = World()
    world.open_account(20)
    world.reserves("first", characters(10))
    world.reserves("second", characters(10))
    world.settles("second", [characters(15), characters(5)])
    world.settles("first", characters(15))
    assert (list(world.acme.debts), world.acme.overdraft) == ([3, 2], 15)
    world.grants("inv-1", 7)
    assert world.paid_by("second") == [("start", 10), ("inv-1", 5), ("inv-1", 2), ("overdraft", 3)]
    assert world.paid_by("first") == [("start", 10), ("overdraft", 5)]
    world.grants("inv-2", 5)
    assert world.paid_by("second") == [("start", 10), ("inv-1", 5), ("inv-1", 2), ("inv-2", 3)]
    assert world.paid_by("first") == [("start", 10), ("inv-2", 2), ("overdraft", 3)]
    world.grants("inv-3", 3)
    assert world.acme.debts == {}
    assert world.paid_by("first") == [("start", 10), ("inv-2", 2), ("inv-3", 3)]


def test_what_comes_back_to_several_grants_covers_in_spending_order() -> None:
    """J12, F2."""
    world = World()
    world.open_account()
    world.grants("bought", 10)
    world.grants("plan", 10, kind="plan")
    world.reserves("open", characters(18))
    world.reserves("debt", characters(1))
    world.settles("debt", characters(17))
    world.releases("open")
    assert world.paid_by("debt") == [("bought", 1), ("bought", 1), ("plan", 10), ("bought", 5)]
    assert world.left() == {"bought": 3}


def test_a_small_overdraft_is_paid_by_the_first_grant_alone() -> None:
    """J12, F2: the others keep what came back to them."""
    world = World()
    world.open_account()
    world.grants("bought", 10)
    world.grants("plan", 10, kind="plan")
    world.reserves("open", characters(18))
    world.reserves("debt", characters(1))
    world.settles("debt", characters(6))
    assert world.acme.overdraft == 4
    world.releases("open")
    assert world.left() == {"bought": 8, "plan": 6}
    assert world.paid_by("debt") == [("bought", 1), ("bought", 1), ("plan", 4)]


def test_a_refund_of_the_part_nobody_paid_lowers_the_overdraft() -> None:
    """J13: it goes back where it came from."""
    world = overdrawn(by=50)
    world.refunds_job("debt", 20)
    assert world.postings() == [("consumed:tts_synthesis", "overdraft", 20)]
    assert (world.acme.overdraft, world.acme.available) == (30, 0)
    world.refunds_job("debt", 35, refund_id="rf-2")
    assert (world.acme.overdraft, world.acme.available) == (0, 5)
    assert world.acme.debts == {}


def test_overdraft_blocks_every_new_reservation_until_it_is_covered() -> None:
    """J12: even with overage to spare, and in either environment."""
    world = World()
    world.open_account(overage=10)
    world.reserves("debt", characters(10))
    world.settles("debt", characters(11))
    world.patches(cap_usd=None)
    for environment in ("live", "test"):
        refusal = refused(world.reserve("next", characters(1), environment=environment))
        assert refusal.code == "insufficient_credits"
        assert refusal.details == {
            "required_credits": 1,
            "available_credits": 0,
            "overdraft_credits": 1,
        }
    world.grants("inv", 1)
    assert said(world.reserve("next", characters(1))) == "reserved"


# -- refunds take a charge back ------------------------------------------------------------------------------------

CHARGE = (Segment("turn", 1, 10), Segment("turn", FROM_OVERAGE, 5), Segment("image", FROM_OVERDRAFT, 7))


@pytest.mark.parametrize(
    ("what", "credits", "kept", "taken"),
    [
        ("nothing", 0, CHARGE, []),
        (
            "a part of the last",
            3,
            (*CHARGE[:2], Segment("image", FROM_OVERDRAFT, 4)),
            [Segment("image", FROM_OVERDRAFT, 3)],
        ),
        ("just the last", 7, CHARGE[:2], [CHARGE[2]]),
        (
            "into the second",
            8,
            (CHARGE[0], Segment("turn", FROM_OVERAGE, 4)),
            [CHARGE[2], Segment("turn", FROM_OVERAGE, 1)],
        ),
        ("all of it", 22, (), [CHARGE[2], CHARGE[1], CHARGE[0]]),
    ],
)
def test_a_refund_takes_from_the_end_of_a_charge(
    what: str, credits: int, kept: tuple[Segment, ...], taken: list[Segment]
) -> None:
    """J13: sources in reverse order, the last line first."""
    assert take_back(CHARGE, credits) == (kept, taken), what


@pytest.mark.parametrize(
    ("source", "name"), [(7, "grant:7"), (FROM_OVERAGE, "overage:2026-11"), (FROM_OVERDRAFT, "overdraft")]
)
def test_each_source_is_an_account_of_the_books(source: int, name: str) -> None:
    """A7."""
    assert source_account(source, "2026-11") == name


def test_what_a_hold_is_made_of() -> None:
    assert hold_funding(((3, 60), (7, 5), (FROM_OVERAGE, 40))) == Funding(balance=65, overage=40)
