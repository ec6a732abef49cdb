"""Deciding: which account, and at which instant (T3, Q6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.core.account import Account, Period
from ledger.core.commands import (
    AccountStored,
    BringUp,
    Command,
    Outcome,
    PatchAccount,
    PolicyChange,
    PutAccount,
    PutCycle,
    PutGrant,
    Refund,
    Refused,
    Release,
    Reserve,
    Settle,
)
from ledger.core.decide import decide
from pricing.catalog import load
from tests.support.core import ACME, NOON, World, instant, said, turn

COMMANDS: list[Command] = [
    Reserve(account_id=ACME, job_id="j", environment="live", lines=(turn(),)),
    Settle(account_id=ACME, job_id="j", lines=(turn(),)),
    Release(account_id=ACME, job_id="j"),
    Refund(account_id=ACME, job_id="j", refund_id="rf-1"),
    PutGrant(account_id=ACME, grant_id="g", kind="purchase", credits=10),
    PatchAccount(account_id=ACME, change=PolicyChange(module_enabled=True)),
    PutCycle(account_id=ACME, month="2026-10", status="open"),
    BringUp(account_id=ACME),
]


def opened_for_a_put() -> Account:
    """An account whose row the store has opened, for a `PutAccount` that has not been decided yet."""
    account = Account(number=1, account_id=ACME, created_at=NOON, at=NOON)
    account.is_new = True
    account.periods["2026-11"] = Period("2026-11")
    return account


@pytest.mark.parametrize("account", [lambda: None, opened_for_a_put], ids=["no row", "opened, but not put"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_of_an_account_that_does_not_exist(account: Callable[[], Account | None], command: Command) -> None:
    """Q6: a reservation is `gateway_not_enabled`, everything else 404, also ahead of the put of its own batch."""
    there = account()
    outcome = decide(there, command, NOON, load())
    expected = "gateway_not_enabled" if isinstance(command, Reserve) else "resource_not_found"
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.details) == (expected, {})
    if there is not None:
        put: Outcome = decide(there, PutAccount(account_id=ACME, change=PolicyChange()), NOON, load())
        assert put == AccountStored(created=True)
        assert (there.sequence, there.grants, there.cycles) == (0, {}, {})


def test_an_account_exists_once_it_is_put() -> None:
    world = World()
    world.put()
    assert [said(world.do(command)) for command in COMMANDS] == [
        "gateway_not_enabled",
        "resource_not_found",
        "resource_not_found",
        "resource_not_found",
        "granted",
        "accountstored",
        "cyclestored",
        "broughtup",
    ]


def test_the_clock_never_goes_back_for_an_account() -> None:
    """T3: its own latest instant counts where the clock is behind it."""
    world = World(instant("2026-11-15T12:00:00"))
    world.open_account(100)
    world.now = instant("2026-11-15T11:00:00")
    made = world.reserves("j", turn(), ttl=60)
    assert (made.created_at, made.expires_at) == (NOON, instant("2026-11-15T12:01:00"))
    assert world.acme.at == NOON
