"""What holds whatever is done, and in whatever order (A1 to A6, J1, J3, J12, J13, Q6, T1).

The worlds here are audited: after each command their figures are added up again from the postings alone
(`tests/support/sums.py`), and the chain of hashes is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import msgspec
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ledger.core.account import Quota
from ledger.core.commands import (
    Command,
    GrantKind,
    Line,
    PatchAccount,
    PolicyChange,
    PutCycle,
    PutGrant,
    QuotaChange,
    Refund,
    Refunded,
    Refused,
    Release,
    Reserve,
    Reserved,
    Settle,
    Settled,
)
from ledger.core.periods import period_end, period_of
from tests.support.core import ACME, World, instant, said
from tests.support.sums import FIGURES

SWEPT_AFTER = (0.5, 1, 30, 60, 90, 900, 1_800, 1_801, 3_600, 7_200)
LATE_IN_THE_MONTH = instant("2026-11-30T23:30:00")


@dataclass(frozen=True)
class Wait:
    """The clock moves on by so much, or (None) to the first instant of the next month."""

    duration: timedelta | None


Step = Command | Wait

job_ids = st.sampled_from(["a", "b", "c"])
keys = st.sampled_from([None, None, "k", "l"])


@st.composite
def reservations(draw: st.DrawFn) -> Reserve:
    """Most of them well-formed: a call with its switches, or something else without, and now and then two lines."""
    first = draw(st.one_of(calls, others))
    is_call = first.operation == "voice_call_minute"
    return Reserve(
        account_id=ACME,
        job_id=draw(job_ids),
        environment=draw(st.sampled_from(["live", "live", "test"])),
        lines=(first, *draw(st.lists(others, max_size=1))),
        transferable=is_call and draw(st.booleans()),
        allow_partial=is_call and draw(st.booleans()),
        ttl_seconds=draw(st.sampled_from([60, 1_800, 7_200])),
        idempotency_key=draw(keys),
    )


calls = st.builds(Line, st.just("voice_call_minute"), st.sampled_from([1, 60, 61.5, 150]))
others = st.one_of(
    st.builds(Line, st.just("tts_synthesis"), st.integers(1, 700)),
    st.builds(Line, st.just("agent_turn"), st.sampled_from([1, 2])),
)
consumed = st.one_of(
    calls,
    others,
    st.builds(
        Line,
        st.sampled_from(["voice_transfer_minute", "voice_call_minute", "audio_transcription"]),
        st.sampled_from([None, 0, 0.5, 60, 61]),
    ),
    st.just(Line("unpriced", 1)),
)
settlements = st.builds(
    Settle,
    account_id=st.just(ACME),
    job_id=job_ids,
    lines=st.lists(consumed, min_size=1, max_size=3).map(tuple),
    result=st.sampled_from([None, b"1"]),
)
releases = st.builds(Release, account_id=st.just(ACME), job_id=job_ids, originated=st.booleans())
refunds = st.builds(
    Refund,
    account_id=st.just(ACME),
    job_id=job_ids,
    refund_id=st.sampled_from(["r", "s", "t", "u"]),
    credits=st.one_of(st.none(), st.integers(-1, 700)),
)


@st.composite
def grants(draw: st.DrawFn) -> PutGrant:
    kinds: list[GrantKind] = ["plan", "purchase", "adjustment"]
    kind = draw(st.sampled_from(kinds))
    least = -500 if kind == "adjustment" else 1
    ends = ["2026-11-30T23:31:00", "2026-12-01T00:00:00", "2026-12-01T00:15:00"]
    end = draw(st.sampled_from([None, *map(instant, ends)]))
    return PutGrant(
        account_id=ACME,
        grant_id=draw(st.sampled_from(["g", "h", "i", "j"])),
        kind=kind,
        credits=draw(st.integers(least, 1_500).filter(bool)),
        expires_at=end,
    )


changes = st.builds(
    PatchAccount,
    account_id=st.just(ACME),
    change=st.one_of(
        st.builds(PolicyChange, overage_enabled=st.booleans()),
        st.builds(PolicyChange, cap_usd=st.sampled_from([0, 100_000, 1_000_000, None])),
        st.builds(PolicyChange, access=st.sampled_from(["active", "suspended"])),
        st.builds(
            PolicyChange,
            quotas=st.fixed_dictionaries(
                {"live": st.builds(QuotaChange, period_credits=st.sampled_from([None, 700, 2_000]))}
            ),
        ),
    ),
)
cycles = st.builds(
    PutCycle,
    account_id=st.just(ACME),
    month=st.sampled_from(["2026-08", "2026-09", "2026-10"]),
    status=st.sampled_from(["paid_on_time", "overdue"]),
)
waits = st.builds(Wait, st.sampled_from([timedelta(seconds=s) for s in (1, 60, 1_800, 90_000)] + [None]))
steps = st.lists(
    st.one_of(
        *[reservations()] * 4, *[settlements] * 3, releases, *[refunds] * 2, grants(), changes, cycles, *[waits] * 2
    ),
    min_size=8,
    max_size=30,
)


def aimed(world: World, step: Command) -> Command:
    """The command with a job that it can mostly be about: one that is open, or for a refund one that is settled."""
    if isinstance(step, Settle | Release | Refund) and step.job_id not in world.acme.jobs:
        status = "settled" if isinstance(step, Refund) else "reserved"
        fitting = [job.job_id for job in world.acme.jobs.values() if job.status == status]
        if fitting:
            return msgspec.structs.replace(step, job_id=fitting[0])
    return step


def begin(credits: int, overage: int | None) -> World:
    """Late in November, so that months, grants and holds end under the steps."""
    world = World(LATE_IN_THE_MONTH)
    world.open_account(credits, overage=overage, live=Quota(max_requests=3, max_calls=2), test=Quota())
    return world


def wait(world: World, step: Wait) -> None:
    world.now = period_end(period_of(world.now)) if step.duration is None else world.now + step.duration


def figures(world: World) -> tuple[object, ...]:
    """All that a command could change."""
    account = world.acme
    return (
        account.sequence,
        account.available,
        account.held,
        account.overdraft,
        account.policy,
        account.paid_cycles,
        {name: counted for name, m in account.periods.items() if any(counted := [getattr(m, f) for f in FIGURES])},
        {number: msgspec.structs.astuple(grant) for number, grant in account.grants.items()},
        {name: (job.status, job.segments, job.refunded) for name, job in account.jobs.items()},
        {key: job.job_id for key, job in account.keys.items()},
        dict(account.refunds),
    )


def check_outcome(world: World, command: Command, spendable: int) -> None:
    """Do a command and check what must be true of its outcome."""
    before = figures(world)
    outcome = world.do(command)
    match outcome:
        case Refused():
            assert figures(world) == before, "a refusal changes nothing (Q6)"
            assert world.last.entries == []
            assert (outcome.retry_after is None) == ("retry_after" not in outcome.details)
        case Reserved(reservation=made, created=True):
            assert made.held_credits <= spendable, "nobody holds what is not there (J2)"
            assert made.held_credits == made.funding.balance + made.funding.overage
        case Settled():
            held = world.job(outcome.job_id).held_credits
            assert outcome.credits_charged + outcome.credits_returned == held + outcome.credits_over_hold
            assert min(outcome.credits_returned, outcome.credits_over_hold) == 0, "not both (J3)"
        case Refunded():
            closing = world.job(outcome.refund.job_id).closing
            assert closing is not None
            assert outcome.refund.credits <= outcome.refund.credits_refunded <= closing.charged, "J13"
    again = figures(world)
    event(f"{type(command).__name__}: {said(outcome)}")
    repeated = world.do(command)
    assert figures(world) == again, "the second time changes nothing (J1)"
    assert world.last.entries == []
    assert isinstance(repeated, type(outcome))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([0, 700, 3_000]), st.sampled_from([None, 0, 900]), steps)
def test_the_books_always_add_up(credits: int, overage: int | None, story: list[Step]) -> None:
    """A1 to A6 after each command; J1: each command twice is the command once; Q6: a refusal changes nothing."""
    world = begin(credits, overage)
    for step in story:
        if isinstance(step, Wait):
            wait(world, step)
        else:
            account = world.look()
            event("in overdraft" if account.overdraft else "nothing owed")
            spendable = account.available + account.headroom(period_of(world.now))
            check_outcome(world, aimed(world, step), spendable)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([700, 3_000]), st.sampled_from([None, 900]), steps)
def test_it_makes_no_difference_whether_anybody_looks(credits: int, overage: int | None, story: list[Step]) -> None:
    """T1: time decides, not the sweeper. With many sweeps, or none, the books are the same."""
    watched, unwatched = begin(credits, overage), begin(credits, overage)
    for step in story:
        if isinstance(step, Wait):
            began = watched.now
            wait(unwatched, step)
            for seconds in SWEPT_AFTER:
                watched.now = min(began + timedelta(seconds=seconds), unwatched.now)
                watched.look()
            watched.now = unwatched.now
        else:
            command = aimed(unwatched, step)
            assert watched.do(command) == unwatched.do(command)
    watched.look()
    unwatched.look()
    assert watched.journal == unwatched.journal
    assert figures(watched) == figures(unwatched)
