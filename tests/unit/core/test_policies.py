"""What operators set: PUT replaces, PATCH merges, `null` is a value where it may be (O1 to O4, Q1, Q5, F4)."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.core.account import Policy, Quota
from ledger.core.commands import AccountStored, CycleDone, CycleStored, QuotaChange
from tests.support.core import ACME, NOON, World, characters, refused, said

FULL: dict[str, Any] = {
    "module_enabled": True,
    "access": "suspended",
    "payment_method_verified": True,
    "overage_enabled": True,
    "cap_usd": 5_000_000,
    "credit_price_usd": 1_000,
    "quotas": {"live": QuotaChange(max_requests=1, max_calls=2, period_credits=3), "test": QuotaChange()},
}
FULL_POLICY = Policy(
    module_enabled=True,
    suspended=True,
    payment_method_verified=True,
    overage_enabled=True,
    cap_usd=5_000_000,
    credit_price_usd=1_000,
    quotas={"live": Quota(max_requests=1, max_calls=2, period_credits=3), "test": Quota()},
)


def changed(**fields: Any) -> Policy:
    """The full policy with some fields changed."""
    values = {name: getattr(FULL_POLICY, name) for name in Policy.__struct_fields__}
    return Policy(**(values | fields))


def test_an_account_starts_with_nothing_switched_on() -> None:
    """The defaults: module off, active, not verified, overage off, no environments."""
    world = World()
    assert world.put() == AccountStored(created=True)
    assert world.acme.policy == Policy(
        module_enabled=False,
        suspended=False,
        payment_method_verified=False,
        overage_enabled=False,
        cap_usd=None,
        credit_price_usd=None,
        quotas={},
    )
    assert world.acme.created_at == NOON


def test_put_sets_everything_and_put_again_replaces_everything() -> None:
    world = World()
    assert world.put(**FULL) == AccountStored(created=True)
    assert world.acme.policy == FULL_POLICY
    assert world.put(module_enabled=True) == AccountStored(created=False)
    assert world.acme.policy == Policy(module_enabled=True)


@pytest.mark.parametrize(
    ("what", "change", "expected"),
    [
        ("nothing", {}, FULL_POLICY),
        ("the module", {"module_enabled": False}, changed(module_enabled=False)),
        ("access", {"access": "active"}, changed(suspended=False)),
        ("verification", {"payment_method_verified": False}, changed(payment_method_verified=False)),
        ("overage off", {"overage_enabled": False}, changed(overage_enabled=False)),
        ("the cap", {"cap_usd": 1}, changed(cap_usd=1)),
        ("the cap of nothing", {"cap_usd": 0}, changed(cap_usd=0)),
        ("no cap", {"cap_usd": None}, changed(cap_usd=None)),
        ("the price", {"credit_price_usd": 2}, changed(credit_price_usd=2)),
        (
            "no price, with overage off",
            {"overage_enabled": False, "credit_price_usd": None},
            changed(overage_enabled=False, credit_price_usd=None),
        ),
        (
            "one number of one environment",
            {"quotas": {"live": QuotaChange(max_calls=9)}},
            changed(quotas={"live": Quota(max_requests=1, max_calls=9, period_credits=3), "test": Quota()}),
        ),
        (
            "no ceiling of the period",
            {"quotas": {"live": QuotaChange(period_credits=None)}},
            changed(quotas={"live": Quota(max_requests=1, max_calls=2), "test": Quota()}),
        ),
        (
            "no quota row",
            {"quotas": {"live": None}},
            changed(quotas={"test": Quota()}),
        ),
        (
            "a ceiling of 0 is not the default",
            {"quotas": {"test": QuotaChange(max_requests=0, max_calls=0, period_credits=0)}},
            changed(
                quotas={
                    "live": Quota(max_requests=1, max_calls=2, period_credits=3),
                    "test": Quota(max_requests=0, max_calls=0, period_credits=0),
                }
            ),
        ),
    ],
)
def test_patch_changes_what_it_names(what: str, change: dict[str, Any], expected: Policy) -> None:
    """And keeps the rest."""
    world = World()
    world.put(**FULL)
    assert world.patch(**change) == AccountStored(created=False)
    assert world.acme.policy == expected, what
    assert world.last.policy


@pytest.mark.parametrize(
    ("what", "quotas", "expected"),
    [
        ("a row that was not there starts with the published numbers", {"live": QuotaChange()}, {"live": Quota()}),
        ("what is named of it", {"live": QuotaChange(max_calls=7)}, {"live": Quota(max_calls=7)}),
        ("removing a row that is not there", {"live": None}, {}),
    ],
)
def test_a_quota_row_begins_with_what_an_account_starts_with(
    what: str, quotas: dict[str, Any], expected: dict[str, Quota]
) -> None:
    """Q1, Q5."""
    world = World()
    world.put()
    world.patches(quotas=quotas)
    assert world.acme.policy.quotas == expected, what


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("overage without a price", {"overage_enabled": True}),
        ("overage and no price", {"overage_enabled": True, "credit_price_usd": None}),
    ],
)
def test_overage_cannot_be_enabled_without_the_price_of_a_credit(what: str, change: dict[str, Any]) -> None:
    """O7: and the refusal changes nothing, nor opens the account."""
    world = World()
    refusal = refused(world.put(**change))
    assert refusal.code == "validation_error", what
    assert refusal.message.startswith("overage.credit_price_usd: ")
    assert world.accounts == {}
    assert world.put() == AccountStored(created=True)
    assert said(world.patch(module_enabled=True, **change)) == "validation_error"
    assert (world.acme.policy, world.last.policy) == (Policy(), False)


def test_the_price_of_a_credit_cannot_be_taken_from_overage() -> None:
    """O7."""
    world = World()
    world.put(**FULL)
    assert said(world.patch(credit_price_usd=None)) == "validation_error"
    assert world.acme.policy == FULL_POLICY


@pytest.mark.parametrize(
    ("what", "change", "next_one"),
    [
        ("overage off", {"overage_enabled": False}, "insufficient_credits"),
        ("not verified any more", {"payment_method_verified": False}, "insufficient_credits"),
        ("the cap lowered under what is held", {"cap_usd": 10_000}, "spending_cap_reached"),
        ("access suspended", {"access": "suspended"}, "gateway_not_enabled"),
        ("the module left", {"module_enabled": False}, "gateway_not_enabled"),
        ("no quota row", {"quotas": {"live": None}}, "gateway_not_enabled"),
        ("no slots", {"quotas": {"live": QuotaChange(max_requests=0)}}, "concurrency_limit_reached"),
    ],
)
def test_a_changed_switch_undoes_nothing(what: str, change: dict[str, Any], next_one: str) -> None:
    """F4: what is held stays held and can settle; what is new is judged by the new switch."""
    world = World()
    world.open_account(overage=100)
    world.reserves("j", characters(60))
    world.patches(**change)
    assert world.month().overage_held == 60
    assert said(world.reserve("next", characters(1))) == next_one, what
    settled = world.settles("j", characters(60))
    assert (settled.funding.overage, settled.funding.overdraft) == (60, 0), what
    assert world.month().overage_used == 60


# -- billing cycles ------------------------------------------------------------------------------------------------


def test_the_ceiling_follows_the_invoices() -> None:
    """O3, O4: and a correction counts as if it had always been so."""
    world = World()
    world.open_account(overage=100)
    world.patches(cap_usd=None)
    assert world.acme.cap_credits == 20_000
    for month in ("2026-03", "2026-01", "2026-02"):
        world.puts_cycle(month, "paid_on_time")
    assert (world.acme.paid_cycles, world.acme.cap_credits) == (3, 100_000)
    world.puts_cycle("2026-02", "returned")
    assert (world.acme.paid_cycles, world.acme.cap_credits) == (1, 20_000)
    world.puts_cycle("2026-02", "paid_on_time")
    assert (world.acme.paid_cycles, world.acme.cap_credits) == (3, 100_000)


def test_a_cycle_is_created_changed_and_left_alone() -> None:
    world = World()
    world.put()
    assert world.put_cycle("2026-10", "open") == CycleStored(
        CycleDone(cycle="2026-10", status="open", updated_at=NOON), created=True
    )
    assert list(world.last.cycles) == ["2026-10"]
    assert world.last.policy
    world.wait(days=1)
    assert world.put_cycle("2026-10", "open") == CycleStored(
        CycleDone(cycle="2026-10", status="open", updated_at=NOON), created=False
    )
    assert (world.last.cycles, world.last.policy) == ({}, False)
    later = CycleDone(cycle="2026-10", status="paid_on_time", updated_at=world.now)
    assert world.put_cycle("2026-10", "paid_on_time") == CycleStored(later, created=False)
    assert world.accounts[ACME].cycles == {"2026-10": later}
