"""The figures of an account that are published live, by the core's own words for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from ledger.core.account import Account
from ledger.core.periods import period_end, period_of

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The balance of an account at an instant, in credits, as `GET …/balance` shows it.

    `life` is our number of the account, higher for every account that is opened; `sequence` is its last entry's.
    """

    account_id: str
    life: int
    sequence: int
    at: datetime
    available: int
    held: int
    overdraft: int
    overage_headroom: int
    changes_at: datetime | None
    """When the figures change without anybody's doing: a grant or a hold ends, or the month with its overage."""


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """What is published of an account that was deleted (R7)."""

    account_id: str
    life: int
    sequence: int
    at: datetime
    deleted: bool = True


State = Figures | Gone


def figures_of(account: Account) -> Figures:
    """Return the figures of an account as a batch leaves it. Its open holds are not among what a batch knows."""
    period = period_of(account.at)
    month = account.peek(period)
    ends = [g.expires_at for g in account.grants.values() if g.live and g.expires_at and not g.ended(account.at)]
    if account.overage_usable and month.overage_used + month.overage_held:
        ends.append(period_end(period))
    return Figures(
        account_id=account.account_id,
        life=account.number,
        sequence=account.sequence,
        at=account.at,
        available=account.available,
        held=account.held,
        overdraft=account.overdraft,
        overage_headroom=account.headroom(period),
        changes_at=min(ends, default=None),
    )


def with_hold(figures: Figures, first_hold_ends_at: datetime | None) -> Figures:
    """Return figures that also change when the first hold ends."""
    ends = [end for end in (figures.changes_at, first_hold_ends_at) if end is not None]
    return msgspec.structs.replace(figures, changes_at=min(ends, default=None))


def microseconds(instant: datetime) -> int:
    """Return an instant as a whole number that can be compared."""
    return (instant - EPOCH) // _MICROSECOND
