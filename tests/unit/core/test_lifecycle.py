"""The life of an account: months that close, and its deletion (contract V6, R7, section S)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ledger.core.account import ClosedStatement, Event
from ledger.core.commands import (
    AccountDeleted,
    CancelDeletion,
    ClosePeriod,
    DeleteAccount,
    DeletionStands,
    PeriodClosed,
    RequestDeletion,
)
from tests.support.core import ACME, World, characters, refused


@pytest.fixture
def world() -> World:
    return World()


def close(world: World, period: str = "2026-11") -> object:
    return world.do(ClosePeriod(account_id=ACME, period=period, statement=b"{}"))


def request(world: World, code: str = "code-1") -> DeletionStands:
    outcome = world.do(RequestDeletion(account_id=ACME, confirmation_code=code))
    assert isinstance(outcome, DeletionStands)
    return outcome


def test_a_month_closes_once_it_has_ended(world: World) -> None:
    world.open_account(100, overage=1_000)
    world.charges("j", characters(350))
    world.refunds_job("j", 50)
    assert close(world) == PeriodClosed(closed=False, waiting=True)
    world.at("2026-12-01T00:00:00Z")
    assert close(world) == PeriodClosed(closed=True)
    assert close(world) == PeriodClosed(closed=False)
    assert world.month().closed_at == world.now
    assert world.told("period.closed") == [
        {"period": "2026-11", "charged": 350, "refunded": 50, "overage_credits": 200, "overage_usd": "0.20"}
    ]


def test_a_close_keeps_the_statement_and_tells_of_the_month_once(world: World) -> None:
    """V5, V6: the statement as it was handed over, and one event, as of the moment of the close."""
    world.open_account(100)
    world.at("2026-12-03T04:05:06Z")
    world.do(ClosePeriod(account_id=ACME, period="2026-11", statement=b'{"charged_credits": 0}'))
    assert world.last.statements == [ClosedStatement("2026-11", b'{"charged_credits": 0}')]
    assert world.last.policy is True
    (event,) = world.last.events
    assert event == Event(
        type="period.closed", environment="live", at=world.now, once="closed:2026-11", data=event.data
    )


def test_a_month_waits_for_its_open_holds(world: World) -> None:
    world.open_account(100)
    world.at("2026-11-30T23:59:00Z")
    world.reserves("j", characters(50), ttl=600)
    world.at("2026-12-01T00:01:00Z")
    assert close(world) == PeriodClosed(closed=False, waiting=True)
    world.settles("j", characters(20))
    assert close(world) == PeriodClosed(closed=True)
    assert world.told("period.closed")[0]["charged"] == 20


def test_a_month_without_a_price_of_overage(world: World) -> None:
    world.open_account(100)
    world.at("2026-12-01T00:00:00Z")
    close(world)
    assert world.told("period.closed")[0]["overage_usd"] == "0.00"


def test_r7_a_deletion_is_revived_rather_than_asked_for_twice(world: World) -> None:
    world.open_account(100)
    first = request(world)
    assert first.executes_at == first.requested_at + timedelta(days=30)
    world.wait(days=1)
    assert request(world, "another") == first
    cancelled = world.do(CancelDeletion(account_id=ACME))
    assert isinstance(cancelled, DeletionStands)
    assert (cancelled.status, cancelled.confirmation_code) == ("cancelled", "code-1")
    assert (cancelled.requested_at, cancelled.executes_at) == (first.requested_at, first.executes_at)
    assert world.do(CancelDeletion(account_id=ACME)) == cancelled
    world.wait(days=1)
    revived = request(world, "another")
    assert (revived.status, revived.confirmation_code) == ("pending", "code-1")
    assert revived.executes_at == world.now + timedelta(days=30)


def test_r7_a_deletion_is_written_whenever_it_changes(world: World) -> None:
    """And only then: asking or cancelling again writes nothing."""
    world.open_account(100)
    written = []
    ask = RequestDeletion(account_id=ACME, confirmation_code="code-1")
    cancel = CancelDeletion(account_id=ACME)
    for command in (ask, ask, cancel, cancel):
        world.do(command)
        written.append(world.last.policy)
    assert written == [True, False, True, False]


def test_r7_nothing_to_cancel(world: World) -> None:
    world.open_account(100)
    refusal = refused(world.do(CancelDeletion(account_id=ACME)))
    assert (refusal.code, refusal.message) == ("resource_not_found", "a deletion of account acme does not exist")


def test_r7_a_deletion_waits_for_its_grace(world: World) -> None:
    world.open_account(100)
    delete = DeleteAccount(account_id=ACME)
    assert world.do(delete) == AccountDeleted(deleted=False, holds_ended=0)
    request(world)
    world.wait(days=29)
    assert world.do(delete) == AccountDeleted(deleted=False, holds_ended=0)
    world.do(CancelDeletion(account_id=ACME))
    world.wait(days=2)
    assert world.do(delete) == AccountDeleted(deleted=False, holds_ended=0)


def test_r7_open_holds_end_first_and_overage_is_told_of(world: World) -> None:
    world.open_account(100, overage=1_000)
    world.charges("spent", characters(150))
    request(world)
    world.wait(days=30)
    world.reserves("open", characters(10), ttl=86_400)
    world.reserves("open-too", characters(10), ttl=86_400)
    world.charges("late", characters(5))
    assert world.do(DeleteAccount(account_id=ACME)) == AccountDeleted(deleted=True, holds_ended=2)
    for job in (world.job("open"), world.job("open-too")):
        assert job.closing is not None
        assert (job.status, job.closing.error_code) == ("released", "account_deleted")
    assert world.last.anonymised
    assert [event.at for event in world.last.events] == [world.now, world.now]
    assert [data["period"] for data in world.told("period.closed")] == ["2026-11", "2026-12"]
    assert [data["overage_credits"] for data in world.told("period.closed")] == [50, 5]


def test_r7_holds_that_were_not_loaded_are_ended_by_another_round() -> None:
    world = World(audited=False)
    world.open_account(100)
    request(world)
    world.wait(days=30)
    world.reserves("loaded", characters(10), ttl=86_400)
    world.reserves("not-loaded", characters(10), ttl=86_400)
    kept = world.acme.jobs.pop("not-loaded")
    assert world.do(DeleteAccount(account_id=ACME)) == AccountDeleted(deleted=False, holds_ended=1)
    assert not world.last.anonymised
    world.acme.jobs["not-loaded"] = kept
    assert world.do(DeleteAccount(account_id=ACME)) == AccountDeleted(deleted=True, holds_ended=1)


def test_r7_months_that_are_closed_are_not_told_of_again(world: World) -> None:
    world.open_account(100)
    world.charges("j", characters(10))
    request(world)
    world.at("2026-12-10T00:00:00Z")
    world.charges("k", characters(10))
    world.at("2027-01-15T00:00:00Z")
    close(world)
    close(world, "2026-12")
    world.do(DeleteAccount(account_id=ACME))
    assert [data["period"] for data in world.told("period.closed")] == ["2026-11", "2026-12"]
