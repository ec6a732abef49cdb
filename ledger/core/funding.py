"""Which credits pay: grants in spending order, overage, overdraft, and the way back (contract F2-F4, J12, J13)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from ledger.core import books
from ledger.core.account import FROM_OVERAGE, FROM_OVERDRAFT, Account, Grant, Job, Segment, Source
from ledger.core.books import Posting
from ledger.core.commands import ChargeFunding, Funding
from ledger.core.periods import period_ended_by
from pricing.rating import RatedLine

_NO_END = datetime.max.replace(tzinfo=UTC)


def spending_order(account: Account) -> list[Grant]:
    """Return the grants that have something to spend, in the order in which they are spent (F2).

    What ends first goes first; of what does not end, the welcome, then the others in the order granted.
    """
    return sorted((g for g in account.grants.values() if g.remaining > 0), key=_spending_key)


def _spending_key(grant: Grant) -> tuple[datetime, bool, int]:
    return (grant.expires_at or _NO_END, grant.kind != "welcome", grant.number)


# -- holding -------------------------------------------------------------------------------------------------------


def hold(account: Account, credits: int, period: str) -> tuple[Source, ...]:
    """Move credits into a hold, from the balance and then from overage; the caller has checked that they are there.

    Return the sources in the order taken, which is how a settlement uses them up (F3).
    """
    sources = spend(account, min(credits, account.available))
    for number, taken in sources:
        account.grants[number].held += taken
        account.held += taken
        credits -= taken
    if credits:
        month = account.period(period)
        month.overage_held += credits
        month.overage_price = account.policy.credit_price_usd
        sources.append((FROM_OVERAGE, credits))
    return tuple(sources)


def spend(account: Account, credits: int) -> list[Source]:
    """Take credits straight from the balance in spending order; the caller has checked that they are there."""
    sources: list[Source] = []
    for grant in spending_order(account):
        if credits == 0:
            break
        taken = min(grant.remaining, credits)
        account.touch_grant(grant.number).remaining -= taken
        account.available -= taken
        credits -= taken
        sources.append((grant.number, taken))
    return sources


def hold_funding(sources: tuple[Source, ...]) -> Funding:
    """Add up a hold's sources."""
    overage = sum(credits for source, credits in sources if source == FROM_OVERAGE)
    return Funding(sum(credits for _, credits in sources) - overage, overage)


def source_account(source: int, period: str) -> str:
    """Name the account of the books that a source is."""
    if source == FROM_OVERAGE:
        return books.overage_account(period)
    if source == FROM_OVERDRAFT:
        return books.OVERDRAFT
    return books.grant_account(source)


# -- charging ------------------------------------------------------------------------------------------------------


class Charge(NamedTuple):
    """What a settlement does: its postings, who paid which part, and what goes back of the hold."""

    postings: list[Posting]
    segments: list[Segment]
    leftover: list[Source]


def charge(account: Account, job: Job, lines: tuple[RatedLine, ...]) -> Charge:
    """Pay the lines of a settlement: from the hold in spending order (F3), and what exceeds it as J12 says."""
    held = [list(source) for source in job.sources]
    postings: list[Posting] = []
    segments: list[Segment] = []
    for line in lines:
        quantity: int | None = line.quantity
        rest = line.credits
        from_hold = _draw(account, job, held, line, segments)
        if from_hold:
            rest -= from_hold
            consumed = books.consumed_account(line.operation)
            hold_name = books.hold_account(job.number)
            postings.append(Posting(hold_name, consumed, from_hold, line.operation, quantity))
            quantity = None
        if rest:
            for source, credits in _overrun(account, job.period, rest):
                segments.append(Segment(line.operation, source, credits))
                postings.append(_consume(source, job.period, line.operation, credits, quantity))
                quantity = None
    return Charge(postings, segments, [(source, credits) for source, credits in held if credits])


def charge_funding(segments: list[Segment]) -> ChargeFunding:
    """Add up what paid a charge."""
    overage = sum(s.credits for s in segments if s.source == FROM_OVERAGE)
    overdraft = sum(s.credits for s in segments if s.source == FROM_OVERDRAFT)
    return ChargeFunding(sum(s.credits for s in segments) - overage - overdraft, overage, overdraft)


def _draw(account: Account, job: Job, held: list[list[int]], line: RatedLine, segments: list[Segment]) -> int:
    """Use up the hold for one line; return how much of the line it covered."""
    covered = 0
    for part in held:
        source, left = part
        taken = min(left, line.credits - covered)
        if taken:
            part[1] -= taken
            covered += taken
            _end_hold(account, job.period, source, taken)
            if source == FROM_OVERAGE:
                account.period(job.period).overage_used += taken
            segments.append(Segment(line.operation, source, taken))
    return covered


def _overrun(account: Account, period: str, credits: int) -> list[Source]:
    """Take what exceeds a hold: from the balance, from usable overage of the job's month, then as overdraft (J12)."""
    sources = spend(account, min(credits, account.available))
    credits -= sum(taken for _, taken in sources)
    from_overage = min(credits, account.headroom(period))
    if from_overage:
        month = account.period(period)
        month.overage_used += from_overage
        month.overage_price = account.policy.credit_price_usd
        credits -= from_overage
        sources.append((FROM_OVERAGE, from_overage))
    if credits:
        account.overdraft += credits
        sources.append((FROM_OVERDRAFT, credits))
    return sources


def _consume(source: int, period: str, operation: str, credits: int, quantity: int | None) -> Posting:
    return Posting(source_account(source, period), books.consumed_account(operation), credits, operation, quantity)


# -- giving back ---------------------------------------------------------------------------------------------------


def _end_hold(account: Account, period: str, source: int, credits: int) -> None:
    """Take credits out of what is held of a source."""
    if source == FROM_OVERAGE:
        account.period(period).overage_held -= credits
    else:
        account.touch_grant(source).held -= credits
        account.held -= credits


def give_back(account: Account, job: Job, sources: Sequence[Source], now: datetime) -> list[Posting]:
    """Return what is left of a hold, the last source first (F3), and cover an overdraft with it (J12).

    What a grant gets after its end is gone (F2).
    """
    postings: list[Posting] = []
    hold_name = books.hold_account(job.number)
    for source, credits in reversed(sources):
        _end_hold(account, job.period, source, credits)
        postings.append(Posting(hold_name, source_account(source, job.period), credits))
        if source != FROM_OVERAGE:
            postings += restore(account, source, credits, now)
    return postings + cover_overdraft(account)


def restore(account: Account, number: int, credits: int, now: datetime) -> list[Posting]:
    """Put credits back into a grant; if its time is over they expire in the month that ended with it (T4)."""
    grant = account.touch_grant(number)
    grant.remaining += credits
    account.available += credits
    return expire(account, grant) if grant.ended(now) else []


def expire(account: Account, grant: Grant) -> list[Posting]:
    """Take what is left of an ended grant out of the balance."""
    assert grant.expires_at is not None
    credits = grant.remaining
    account.touch_grant(grant.number).remaining = 0
    account.available -= credits
    account.period(period_ended_by(grant.expires_at)).expired += credits
    return [Posting(books.grant_account(grant.number), books.EXPIRED, credits)]


def cover_overdraft(account: Account) -> list[Posting]:
    """Pay an overdraft with whatever came in or came back; that part of the charge is then the grant's (J12, F4)."""
    postings: list[Posting] = []
    if not account.overdraft:
        return postings
    for grant in spending_order(account):
        paid = min(grant.remaining, account.overdraft)
        if paid:
            account.touch_grant(grant.number).remaining -= paid
            account.available -= paid
            account.overdraft -= paid
            _take_over_debts(account, grant.number, paid)
            postings.append(Posting(books.grant_account(grant.number), books.OVERDRAFT, paid))
    return postings


def _take_over_debts(account: Account, grant: int, credits: int) -> None:
    """Make a grant the source of the oldest unpaid parts of charges."""
    while credits:
        number, job = next(iter(account.debts.items()))
        taken = min(credits, job.overdraft)
        job.segments = _taken_over(job.segments, grant, taken)
        account.changes.jobs_resegmented[number] = job
        credits -= taken
        if not job.overdraft:
            del account.debts[number]


def _taken_over(segments: tuple[Segment, ...], grant: int, credits: int) -> tuple[Segment, ...]:
    result: list[Segment] = []
    for segment in segments:
        if segment.source != FROM_OVERDRAFT or not credits:
            result.append(segment)
            continue
        taken = min(segment.credits, credits)
        credits -= taken
        result.append(Segment(segment.operation, grant, taken))
        if segment.credits > taken:
            result.append(Segment(segment.operation, FROM_OVERDRAFT, segment.credits - taken))
    return tuple(result)


def take_back(segments: tuple[Segment, ...], credits: int) -> tuple[tuple[Segment, ...], list[Segment]]:
    """Split a charge into what stays and what a refund takes, from the end backwards (J13)."""
    kept = list(segments)
    taken: list[Segment] = []
    while credits:
        last = kept.pop()
        part = min(last.credits, credits)
        credits -= part
        taken.append(Segment(last.operation, last.source, part))
        if last.credits > part:
            kept.append(Segment(last.operation, last.source, last.credits - part))
    return tuple(kept), taken
