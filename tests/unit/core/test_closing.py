"""Closing a job: what is billed, what goes back, and every repetition (J1, J3 to J6, J9, J12, P2 to P7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.core.account import UsageCount, UsageKey
from ledger.core.commands import (
    MAX_CREDITS,
    ChargeFunding,
    Line,
    Record,
    Released,
    Settled,
    SettledLine,
    Usage,
)
from tests.support.core import (
    ACME,
    NOON,
    World,
    bridged,
    call,
    characters,
    instant,
    line,
    refused,
    said,
    turn,
)


def working(credits: int = 10_000) -> World:
    world = World()
    world.open_account(credits)
    return world


# -- settling ------------------------------------------------------------------------------------------------------


def test_a_settlement_bills_what_was_consumed_and_returns_the_rest() -> None:
    """J3, P3, P5: the transferred call of the contract, in one entry."""
    world = working()
    world.reserves("j", call(300), transferable=True)
    settled = world.settles("j", [call(150), bridged(150)], result=b'{"ok":true}')
    assert settled == Settled(
        job_id="j",
        status="settled",
        usage=Usage("voice_call_minute", "minute", 3, 1_860),
        lines=(
            SettledLine("voice_call_minute", "minute", 150, 3, 1_860),
            SettledLine("voice_transfer_minute", "minute", 150, 6, 1_380),
        ),
        credits_charged=3_240,
        credits_returned=320,
        credits_over_hold=0,
        funding=ChargeFunding(balance=3_240, overage=0, overdraft=0),
        settled_at=NOON,
    )
    assert world.postings() == [
        ("hold:2", "consumed:voice_call_minute", 1_860),
        ("hold:2", "consumed:voice_transfer_minute", 1_380),
        ("hold:2", "grant:1", 320),
    ]
    assert (world.acme.available, world.acme.held, world.acme.open_slots["live", "call"]) == (6_760, 0, 0)
    (job,) = world.closed[ACME]
    assert job.closing is not None
    assert (job.number, job.closing.at, job.settled_lines, job.closing.result) == (
        2,
        NOON,
        settled.lines,
        b'{"ok":true}',
    )


@pytest.mark.parametrize(
    ("rule", "held", "consumed", "charged", "returned", "over_hold"),
    [
        ("P2: 3 s of audio bill 10", line("audio_transcription", 60), [line("audio_transcription", 3)], 10, 50, 0),
        ("P2: 10.2 s bill 11", line("audio_transcription", 60), [line("audio_transcription", 10.2)], 11, 49, 0),
        ("P2: 61 s of call bill 2 minutes", call(300), [call(61)], 1_240, 1_860, 0),
        ("P4: what was not measured bills the minimum", call(300), [call(None)], 620, 2_480, 0),
        ("P4: a transfer, one minute of both legs", call(300), [call(60), bridged(None)], 1_080, 2_020, 0),
        ("P6: nobody picked up", call(300), [call(60), bridged(0)], 620, 2_480, 0),
        ("P6: nothing at all", call(300), [call(0)], 0, 3_100, 0),
        ("P7: attachments that were not reserved", turn(), [turn(), line("image_analysis", 2)], 121, 0, 110),
        ("P flat: two videos", line("video_analysis", 2), [line("video_analysis", 2)], 540, 0, 0),
        ("J12: longer than was held", call(60), [call(150)], 1_860, 0, 1_240),
    ],
)
def test_what_a_settlement_charges(
    rule: str, held: Line, consumed: list[Line], charged: int, returned: int, over_hold: int
) -> None:
    world = working()
    world.reserves("j", held)
    settled = world.settles("j", consumed)
    assert (settled.credits_charged, settled.credits_returned, settled.credits_over_hold) == (
        charged,
        returned,
        over_hold,
    ), rule
    assert world.acme.available == 10_000 - charged, rule


@pytest.mark.parametrize(
    ("what", "lines", "usage"),
    [
        ("its own operation, added up", [turn(1), turn(2)], Usage("agent_turn", "request", 3, 33)),
        ("other operations are not its own", [turn(), line("image_analysis")], Usage("agent_turn", "request", 1, 11)),
        ("nothing of its own", [line("image_analysis")], Usage("agent_turn", "request", 0, 0)),
        ("its own, but nothing of it", [turn(0), line("image_analysis")], Usage("agent_turn", "request", 0, 0)),
    ],
)
def test_usage_is_the_jobs_own_operation_as_billed(what: str, lines: list[Line], usage: Usage) -> None:
    """P3."""
    world = working()
    world.reserves("j", turn())
    assert world.settles("j", lines).usage == usage, what


def test_charges_count_in_the_usage_of_each_operation() -> None:
    """A4: a job counts once in each operation and once in all; lines of nothing are left out."""
    world = working()
    world.reserves("j", turn())
    world.settles("j", [turn(1), line("image_analysis", 0), line("video_analysis"), turn(2)])
    assert world.usage[ACME] == {
        UsageKey("2026-11", "2026-11-15", "live", "agent_turn"): UsageCount(
            unit="request", quantity=3, credits=33, jobs=1, first_jobs=1
        ),
        UsageKey("2026-11", "2026-11-15", "live", "video_analysis"): UsageCount(
            unit="video", quantity=1, credits=270, jobs=1, first_jobs=0
        ),
    }


def test_a_job_counts_in_the_month_it_was_reserved_in() -> None:
    """J14: and on the day it settled."""
    world = working()
    world.at("2026-11-30T23:59:00")
    world.reserves("j", characters(10))
    world.at("2026-12-01T00:01:00")
    world.settles("j", characters(10))
    assert list(world.usage[ACME]) == [UsageKey("2026-11", "2026-12-01", "live", "tts_synthesis")]
    assert (world.month("2026-11").charged, world.month("2026-11").live_used) == (10, 10)
    assert world.month("2026-12").charged == 0


@pytest.mark.parametrize("given", [None, Record(request_id="req_1", status_code=200, latency_ms=812)])
def test_the_record_of_the_request_is_kept(given: Record | None) -> None:
    """R3: also where the gateway told nothing of it."""
    world = working()
    world.reserves("settled", turn())
    world.settle("settled", turn(), record=given)
    world.reserves("released", turn())
    world.release("released", record=given)
    kept = [(j.operation, j.status, j.closing.charged, j.closing.record) for j in world.closed[ACME] if j.closing]
    expected = given or Record()
    assert kept == [
        ("agent_turn", "settled", 11, expected),
        ("agent_turn", "released", 0, expected),
    ]


@pytest.mark.parametrize(
    ("what", "waited", "lines_kept"),
    [
        ("at once", {}, True),
        ("within 24 h", {"hours": 23, "minutes": 59}, True),
        ("after 24 h", {"hours": 24}, False),
        ("after a year", {"days": 365}, False),
    ],
)
def test_settling_again_is_the_same_answer(what: str, waited: dict[str, float], lines_kept: bool) -> None:
    """J1, J9, J10, R1: charged once; the charge outlives the breakdown."""
    world = working()
    world.reserves("j", turn())
    first = world.settles("j", turn(2), result=b"1")
    world.wait(**waited)
    again = world.settles("j", turn(2))
    assert world.last.entries == []
    assert (again.lines, again.usage) == ((first.lines, first.usage) if lines_kept else (None, None)), what
    assert (again.credits_charged, again.settled_at) == (22, NOON), what
    assert (again.credits_returned, again.credits_over_hold, again.funding) == (0, 11, first.funding)


def settle_it(world: World) -> None:
    world.settles("j", turn(2))


def release_it(world: World) -> None:
    world.releases("j")


def let_it_expire(world: World) -> None:
    world.wait(seconds=900)


def leave_it(world: World) -> None:
    """The job stays open."""


@pytest.mark.parametrize(
    ("what", "before", "settle_same", "settle_other", "release", "charged"),
    [
        ("open", leave_it, "settled", None, None, 22),
        ("settled", settle_it, "settled", "idempotency_key_reused", "job_already_closed", 22),
        ("released", release_it, "job_already_closed", "job_already_closed", "released", 0),
        ("expired", let_it_expire, "job_not_completed", "job_not_completed", "job_not_completed", 0),
    ],
)
def test_closing_what_is_closed(
    what: str,
    before: Callable[[World], None],
    settle_same: str,
    settle_other: str | None,
    release: str | None,
    charged: int,
) -> None:
    """J1, J6, E3: each job is closed once, and the conflict says how."""
    world = working()
    world.reserves("j", turn())
    before(world)
    for outcome, expected in (
        (world.settle("j", turn(2)), settle_same),
        (world.settle("j", turn(3)), settle_other or "idempotency_key_reused"),
        (world.release("j"), release or "job_already_closed"),
    ):
        assert said(outcome) == expected, what
        if not isinstance(outcome, Settled | Released):
            status = world.job("j").status
            assert refused(outcome).details == {"job_id": "j", "status": status, "credits_charged": charged}
            assert refused(outcome).retry_after is None
    assert world.month().charged == charged


def test_a_close_at_the_deadline_is_too_late_and_a_moment_before_is_not() -> None:
    """J6, T1, T2: [reserved, deadline)."""
    world = working()
    world.reserves("in-time", turn())
    world.reserves("late", turn())
    world.at("2026-11-15T12:14:59.999999")
    assert said(world.settle("in-time", turn())) == "settled"
    world.at("2026-11-15T12:15:00")
    assert said(world.settle("late", turn())) == "job_not_completed"


@pytest.mark.parametrize(
    ("what", "lines", "code", "message"),
    [
        ("half a turn", [turn(), Line("agent_turn", 0.5)], "validation_error", "lines[1].quantity: "),
        ("no price", [turn(), line("teleport")], "operation_not_priced", "operation teleport"),
        ("too many credits", [characters(MAX_CREDITS)], "validation_error", "lines: "),
    ],
)
def test_a_settlement_that_is_refused_changes_nothing(what: str, lines: list[Line], code: str, message: str) -> None:
    """P1, Q6: the job stays open."""
    world = working()
    world.reserves("j", turn())
    refusal = refused(world.settle("j", lines))
    assert (refusal.code, refusal.message.startswith(message)) == (code, True), what
    assert (world.job("j").status, world.last.entries) == ("reserved", [])


def test_an_overdraft_stays_exact_in_every_reader() -> None:
    """2^53 is too much for an account, also job by job."""
    world = working(22)
    world.reserves("j", turn())
    world.reserves("k", turn())
    world.settles("j", characters(MAX_CREDITS - 100))
    assert said(world.settle("k", characters(200))) == "validation_error"
    assert said(world.settle("k", turn())) == "settled"


def test_a_shapeless_settlement_is_refused_before_the_job_is_looked_at() -> None:
    """Q6: shape first, then the job already known."""
    world = working()
    world.reserves("j", turn())
    settle_it(world)
    assert said(world.settle("j", Line("agent_turn", 0.5))) == "validation_error"


# -- releasing -----------------------------------------------------------------------------------------------------


def test_a_release_gives_the_whole_hold_back() -> None:
    """J4: nothing was delivered, nothing is billed."""
    world = working()
    world.reserves("j", call(300), transferable=True)
    world.wait(seconds=10)
    released = world.releases("j", error_code="upstream_unavailable")
    assert released == Released(
        job_id="j",
        status="released",
        credits_charged=0,
        credits_returned=3_560,
        error_code="upstream_unavailable",
        released_at=instant("2026-11-15T12:00:10"),
    )
    assert (world.acme.available, world.acme.held, world.month().live_held) == (10_000, 0, 0)
    assert world.postings() == [("hold:2", "grant:1", 3_560)]
    closing = world.job("j").closing
    assert closing is not None
    assert closing.entry == 3


def test_releasing_again_is_the_same_answer() -> None:
    """J1: whatever the second release says."""
    world = working()
    world.reserves("j", turn(), key="k")
    first = world.releases("j", error_code="upstream_unavailable")
    world.wait(hours=48)
    assert world.releases("j", error_code="other", originated=False) == first
    assert world.last.entries == []
    assert world.acme.keys == {("live", "k"): world.job("j")}


@pytest.mark.parametrize(("originated", "key"), [(True, "k"), (False, None)])
def test_only_a_job_that_never_went_out_frees_its_key(originated: bool, key: str | None) -> None:
    """J10."""
    world = working()
    world.reserves("j", turn(), key="k")
    world.releases("j", originated=originated)
    assert world.job("j").idempotency_key == key
    assert world.last.freed_keys == ([] if originated else [2])


def test_a_job_of_another_account_does_not_exist() -> None:
    """J11."""
    world = working()
    world.open_account(100, account_id="other")
    world.reserves("j", turn(), account_id="other")
    for outcome in (world.settle("j", turn()), world.release("j"), world.refund("j")):
        assert refused(outcome).code == "resource_not_found"
    assert world.job("j", "other").open
