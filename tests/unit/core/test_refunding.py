"""Refunding: a charge goes back to where it came from, in reverse order (J13, J14)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.core.account import UsageKey
from ledger.core.commands import ChargeFunding, RefundDone, Refunded
from tests.support.core import ACME, NOON, World, characters, instant, line, refused, said, turn


def mixed() -> World:
    """A charge of 100: 30 from a plan, 20 from a purchase, 40 of overage, 10 that nobody has paid."""
    world = World()
    world.open_account(20, overage=40)
    world.grants("plan", 30, kind="plan")
    world.reserves("j", characters(90))
    world.settles("j", characters(100))
    assert world.paid_by("j") == [("plan", 30), ("start", 20), ("overage", 40), ("overdraft", 10)]
    return world


# -- where it goes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "credits", "overdraft", "overage_used", "left", "to_overage"),
    [
        ("a part of the overdraft", 4, 6, 40, {}, 0),
        ("just the overdraft", 10, 0, 40, {}, 0),
        ("and some overage", 25, 0, 25, {}, 15),
        ("and all overage", 50, 0, 0, {}, 40),
        ("and some of the purchase", 60, 0, 0, {"start": 10}, 40),
        ("and some of the plan", 75, 0, 0, {"start": 20, "plan": 5}, 40),
        ("all that is left", None, 0, 0, {"start": 20, "plan": 30}, 40),
    ],
)
def test_each_part_goes_back_to_its_source_the_last_first(
    what: str, credits: int | None, overdraft: int, overage_used: int, left: dict[str, int], to_overage: int
) -> None:
    """J13, within the month and before the plan's end."""
    world = mixed()
    done = world.refunds_job("j", credits)
    back = 100 if credits is None else credits
    assert done == RefundDone(
        refund_id="rf-1",
        job_id="j",
        credits=back,
        credits_refunded=back,
        funding=ChargeFunding(
            balance=back - to_overage - (10 - overdraft), overage=to_overage, overdraft=10 - overdraft
        ),
        created_at=NOON,
    ), what
    assert (world.acme.overdraft, world.month().overage_used, world.left()) == (overdraft, overage_used, left)
    assert (world.month().refunded, world.month().refunded_to_balance) == (back, back - to_overage)


@pytest.mark.parametrize(
    ("what", "refunded_at", "left", "to_overage", "november_overage", "granted"),
    [
        ("the last moment of the month", "2026-11-30T23:59:59.999999", {"start": 20, "plan": 30}, 40, 0, None),
        ("the month is over", "2026-12-01", {"start": 20, "refund-rf-1": 70}, 0, 40, 70),
    ],
)
def test_what_cannot_go_back_becomes_one_adjustment_without_end(
    what: str,
    refunded_at: str,
    left: dict[str, int],
    to_overage: int,
    november_overage: int,
    granted: int | None,
) -> None:
    """J13: a grant that has ended, overage of a period that is over (it stays used, A7)."""
    world = mixed()
    world.at(refunded_at)
    done = world.refunds_job("j")
    assert done.funding == ChargeFunding(90 - to_overage, to_overage, overdraft=10), what
    assert (world.left(), world.acme.overdraft) == (left, 0), what
    assert world.month("2026-11").overage_used == november_overage, what
    grant = world.acme.grants_by_id.get("refund-rf-1")
    if granted is None:
        assert grant is None
    else:
        assert grant is not None
        assert (grant.kind, grant.granted, grant.expires_at) == ("adjustment", granted, None)
        assert grant.created_at == instant(refunded_at)
        assert grant.number == world.acme.sequence


def test_a_refund_belongs_to_the_month_it_is_made_in() -> None:
    """J14: and gives no quota back (J13)."""
    world = World()
    world.open_account(100)
    world.charges("j", characters(30))
    world.at("2026-12-01T00:00:00")
    world.refunds_job("j", 10)
    november, december = world.month("2026-11"), world.month("2026-12")
    assert (november.charged, november.live_used, november.refunded) == (30, 30, 0)
    assert (december.charged, december.live_used, december.refunded) == (0, 0, 10)
    usage = world.usage[ACME][UsageKey("2026-12", "2026-12-01", "live", "tts_synthesis")]
    assert (usage.unit, usage.refunded, usage.credits, usage.jobs) == ("character", 10, 0, 0)


def test_a_refund_never_edits_the_charge() -> None:
    """J13, J9: what was charged stays what was charged."""
    world = World()
    world.open_account(100)
    world.charges("j", characters(30))
    before = list(world.journal[ACME])
    world.refunds_job("j")
    assert world.journal[ACME][: len(before)] == before
    assert world.settles("j", characters(30)).credits_charged == 30
    closing = world.job("j").closing
    assert closing is not None
    assert closing.charged == 30


def test_of_several_lines_the_last_is_refunded_first() -> None:
    """J13: each with its own operation in the books and in the usage."""
    world = World()
    world.open_account(1_000)
    world.reserves("j", turn())
    world.settles("j", [turn(), line("image_analysis"), line("document_analysis")])
    world.refunds_job("j", 100)
    assert world.postings() == [
        ("consumed:document_analysis", "grant:1", 40),
        ("consumed:image_analysis", "grant:1", 55),
        ("consumed:agent_turn", "grant:1", 5),
    ]
    refunded = {key.operation: count.refunded for key, count in world.usage[ACME].items()}
    assert refunded == {"agent_turn": 5, "image_analysis": 55, "document_analysis": 40}


def test_what_nobody_paid_of_several_lines_is_refunded_from_each() -> None:
    """J12, J13: the parts of the overdraft add up."""
    world = World()
    world.open_account(10)
    world.reserves("j", characters(10))
    world.settles("j", [characters(15), characters(7)])
    assert world.paid_by("j") == [("start", 10), ("overdraft", 5), ("overdraft", 7)]
    done = world.refunds_job("j", 13)
    assert done.funding == ChargeFunding(balance=1, overage=0, overdraft=12)
    assert (world.acme.overdraft, world.left()) == (0, {"start": 1})


def test_what_a_grant_paid_of_an_overdraft_is_refunded_to_that_grant() -> None:
    """J12, J13."""
    world = mixed()
    world.grants("inv", 50)
    world.refunds_job("j", 25)
    assert (world.left(), world.month().overage_used) == ({"inv": 50}, 25)


def test_what_was_refunded_to_a_grant_that_ends_later_ends_with_it() -> None:
    """J13, T4."""
    world = mixed()
    world.refunds_job("j")
    world.at("2026-12-01")
    world.look()
    assert (world.left(), world.month("2026-11").expired) == ({"start": 20}, 30)


def test_a_refund_pays_an_overdraft_of_another_job_first() -> None:
    """J12: that job's charge is then the refunded grant's."""
    world = World()
    world.open_account(30)
    world.charges("paid", characters(20))
    world.reserves("debt", characters(10))
    world.settles("debt", characters(25))
    world.refunds_job("paid")
    assert (world.acme.overdraft, world.acme.available) == (0, 5)
    assert world.paid_by("debt") == [("start", 10), ("start", 15)]
    assert world.postings() == [("consumed:tts_synthesis", "grant:1", 20), ("grant:1", "overdraft", 15)]


def test_a_refund_into_a_new_grant_pays_an_overdraft_too() -> None:
    """J12, J13."""
    world = World()
    world.open_account()
    world.grants("plan", 20, kind="plan")
    world.charges("paid", characters(20))
    world.at("2026-12-01")
    world.grants("inv", 10)
    world.reserves("debt", characters(10))
    world.settles("debt", characters(25))
    world.refunds_job("paid")
    assert world.left() == {"refund-rf-1": 5}
    assert world.paid_by("debt") == [("inv", 10), ("refund-rf-1", 15)]
    assert world.acme.grants_by_id["refund-rf-1"].granted == 20


# -- how much ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "already", "credits", "expected"),
    [
        ("one credit", 0, 1, "refunded"),
        ("all", 0, 100, "refunded"),
        ("all that is left, in words", 0, None, "refunded"),
        ("one more than was charged", 0, 101, "validation_error"),
        ("nothing", 0, 0, "validation_error"),
        ("less than nothing", 0, -1, "validation_error"),
        ("just what is left", 60, 40, "refunded"),
        ("one more than is left", 60, 41, "validation_error"),
        ("nothing is left", 100, None, "validation_error"),
    ],
)
def test_refunds_never_exceed_the_charge(what: str, already: int, credits: int | None, expected: str) -> None:
    """J13."""
    world = World()
    world.open_account(100)
    world.charges("j", characters(100))
    if already:
        world.refunds_job("j", already, refund_id="rf-0")
    outcome = world.refund("j", credits)
    assert said(outcome) == expected, what
    if isinstance(outcome, Refunded):
        assert outcome.refund.credits_refunded == already + (credits or 100), what
    else:
        refusal = refused(outcome)
        assert refusal.details == {"credits_charged": 100, "refundable_credits": 100 - already}
        assert refusal.message == f"credits: {100 - already} credits of the charge are left to refund"


def test_a_charge_of_nothing_has_nothing_to_refund() -> None:
    """J13."""
    world = World()
    world.open_account(100)
    world.reserves("j", characters(10))
    world.settles("j", characters(0))
    assert said(world.refund("j")) == "validation_error"


# -- again, and too early or too late ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "first", "second", "job", "expected"),
    [
        ("the same", 30, 30, "j", "refunded"),
        ("all of it by its number, then in words", 100, None, "j", "refunded"),
        ("a part, then all that is left in words", 30, None, "j", "idempotency_key_reused"),
        ("all of it in words, then the number that it came to", None, 100, "j", "refunded"),
        ("all of it in words, twice", None, None, "j", "refunded"),
        ("another number", 30, 31, "j", "idempotency_key_reused"),
        ("another job", 30, 30, "k", "idempotency_key_reused"),
        ("another job, all of it", 100, None, "k", "idempotency_key_reused"),
    ],
)
def test_the_same_refund_again(what: str, first: int | None, second: int | None, job: str, expected: str) -> None:
    """J1, J13: `refund_id` is unique in the account; `null` and the number it came to are the same refund."""
    world = World()
    world.open_account(200)
    world.charges("j", characters(100))
    world.charges("k", characters(100))
    made = world.refunds_job("j", first)
    before = world.acme.available
    world.wait(days=400)
    outcome = world.refund(job, second)
    assert said(outcome) == expected, what
    assert (world.acme.available, world.last.entries) == (before, [])
    if isinstance(outcome, Refunded):
        assert (outcome.refund, outcome.created) == (made, False)
    else:
        assert refused(outcome).message == "this refund_id was used for another refund"


def leave_open(world: World) -> None:
    world.wait(seconds=100)


def release(world: World) -> None:
    world.releases("j")


def expire(world: World) -> None:
    world.wait(seconds=900)


@pytest.mark.parametrize(
    ("what", "then", "code", "details", "retry_after"),
    [
        ("still open", leave_open, "request_in_flight", {"retry_after": 800}, 800),
        (
            "released",
            release,
            "job_already_closed",
            {"job_id": "j", "status": "released", "credits_charged": 0},
            None,
        ),
        (
            "expired",
            expire,
            "job_not_completed",
            {"job_id": "j", "status": "expired", "credits_charged": 0},
            None,
        ),
    ],
)
def test_what_was_not_charged_cannot_be_refunded(
    what: str,
    then: Callable[[World], None],
    code: str,
    details: dict[str, object],
    retry_after: int | None,
) -> None:
    """J13, E2: waiting helps only while the job is open."""
    world = World()
    world.open_account(100)
    world.reserves("j", characters(10))
    then(world)
    refusal = refused(world.refund("j", 5))
    assert (refusal.code, refusal.details, refusal.retry_after) == (code, details, retry_after), what
    assert world.acme.refunds == {}


def test_a_refund_is_kept_with_its_reason_and_its_entry() -> None:
    world = World()
    world.open_account(100)
    world.charges("j", characters(10))
    world.refund("j", 4, reason="a cough")
    assert world.last.jobs_resegmented == {2: world.job("j")}
    (stored,) = world.refunds[ACME]
    assert (stored.number, stored.entry, stored.reason) == (2, 4, "a cough")
    assert world.acme.refunds == {"rf-1": stored}
