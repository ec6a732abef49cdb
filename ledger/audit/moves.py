"""How the postings of an entry move credits, by its kind (A7): each move of the contract is one function."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from ledger.audit.chain import Event
from ledger.audit.figures import OVERAGE, OVERDRAFT, Figures, Movement, month_of
from ledger.core.books import Posting

_INSTANT = timedelta(microseconds=1)


class WrongMoveError(ValueError):
    """A posting that no entry of its kind has."""


def move(figures: Figures, movement: Movement, posting: Posting) -> None:
    """Add a posting to the figures, and to what its entry does.

    Raises:
        ValueError: no entry of this kind has such a posting.
    """
    debit, _, debit_key = posting.debit.partition(":")
    credit, _, credit_key = posting.credit.partition(":")
    known = MOVES.get((movement.event.kind, debit, credit))
    if known is None:
        raise WrongMoveError
    known(figures, movement, debit_key, credit_key, posting)


def _issue(figures: Figures, movement: Movement, kind: str, grant: str, posting: Posting) -> None:
    number = int(grant)
    if number != movement.event.sequence:
        raise WrongMoveError
    figures.credit(number, posting.credits)
    movement.granted += posting.credits
    movement.own_grant = kind
    month = figures.months[movement.month]
    month["adjusted" if kind == "adjustment" else "granted"] += posting.credits
    if kind == "adjustment":
        month["adjusted_up"] += posting.credits
    if kind == "welcome":
        figures.welcome(movement.event)


def _take_away(figures: Figures, movement: Movement, grant: str, kind: str, posting: Posting) -> None:
    if kind != "adjustment":
        raise WrongMoveError
    figures.debit(int(grant), posting.credits, movement.event)
    movement.granted -= posting.credits
    movement.own_grant = kind
    figures.months[movement.month]["adjusted"] -= posting.credits


def _hold_grant(figures: Figures, movement: Movement, grant: str, hold: str, posting: Posting) -> None:
    number = int(grant)
    _check_hold(hold, movement.event)
    figures.debit(number, posting.credits, movement.event)
    movement.held += ((number, posting.credits),)


def _hold_overage(figures: Figures, movement: Movement, month: str, hold: str, posting: Posting) -> None:
    _check_hold(hold, movement.event)
    if month != movement.month:
        raise WrongMoveError
    figures.overage[month] += posting.credits
    movement.held += ((OVERAGE, posting.credits),)


def _consume_hold(figures: Figures, movement: Movement, hold: str, operation: str, posting: Posting) -> None:
    _check_hold(hold, movement.event)
    _consume(movement, operation, posting)
    movement.from_hold += posting.credits


def _consume_grant(figures: Figures, movement: Movement, grant: str, operation: str, posting: Posting) -> None:
    number = int(grant)
    _consume(movement, operation, posting)
    figures.debit(number, posting.credits, movement.event)
    movement.direct += ((number, posting.credits),)


def _consume_overage(figures: Figures, movement: Movement, month: str, operation: str, posting: Posting) -> None:
    _consume(movement, operation, posting)
    figures.overage[month] += posting.credits
    movement.direct += ((OVERAGE, posting.credits),)


def _consume_overdraft(figures: Figures, movement: Movement, _: str, operation: str, posting: Posting) -> None:
    _consume(movement, operation, posting)
    figures.overdraft += posting.credits
    movement.direct += ((OVERDRAFT, posting.credits),)


def _consume(movement: Movement, operation: str, posting: Posting) -> None:
    if posting.operation != operation:
        raise WrongMoveError
    movement.consumed += ((operation, posting.credits, posting.quantity or 0),)


def _return_grant(figures: Figures, movement: Movement, hold: str, grant: str, posting: Posting) -> None:
    _check_hold(hold, movement.event)
    number = int(grant)
    figures.credit(number, posting.credits)
    movement.returned += ((number, posting.credits),)


def _return_overage(figures: Figures, movement: Movement, hold: str, month: str, posting: Posting) -> None:
    _check_hold(hold, movement.event)
    figures.overage[month] -= posting.credits
    movement.returned += ((OVERAGE, posting.credits),)


def _refund_grant(figures: Figures, movement: Movement, operation: str, grant: str, posting: Posting) -> None:
    number = int(grant)
    _refund(movement, operation, posting)
    figures.credit(number, posting.credits)
    if number == movement.event.sequence:
        movement.granted += posting.credits
        movement.own_grant = "adjustment"


def _refund_overage(figures: Figures, movement: Movement, operation: str, month: str, posting: Posting) -> None:
    if month != movement.month:
        raise WrongMoveError
    _refund(movement, operation, posting)
    figures.overage[month] -= posting.credits
    movement.to_overage += posting.credits


def _refund_overdraft(figures: Figures, movement: Movement, operation: str, _: str, posting: Posting) -> None:
    _refund(movement, operation, posting)
    figures.overdraft -= posting.credits


def _refund(movement: Movement, operation: str, posting: Posting) -> None:
    if posting.operation != operation:
        raise WrongMoveError
    movement.refunded += ((operation, posting.credits),)


def _expire(figures: Figures, movement: Movement, grant: str, _: str, posting: Posting) -> None:
    """What a grant leaves belongs to the month that ended with it (T4), which its row knows."""
    number, at = int(grant), movement.event.at
    figures.debit(number, posting.credits, movement.event)
    row = figures.grants.get(number)
    end: datetime | None = at if row is None else row["expires_at"]
    if end is None or end > at or (end != at and movement.event.kind == "expire_grant"):
        figures.findings.note(
            "A2",
            "grants.expires_at",
            at,
            end,
            sequence=movement.event.sequence,
            grant=figures.grant_name(number),
        )
    end = end or at
    figures.months[month_of(end - _INSTANT)]["expired"] += posting.credits


def _cover(figures: Figures, movement: Movement, grant: str, _: str, posting: Posting) -> None:
    figures.debit(int(grant), posting.credits, movement.event)
    figures.overdraft -= posting.credits


def _check_hold(name: str, event: Event) -> None:
    """Hold names are those of the entry's own job."""
    if int(name) != event.job:
        raise WrongMoveError


_Move = Callable[[Figures, Movement, str, str, Posting], None]

_BY_ANY_CLOSE: Final[dict[tuple[str, str], _Move]] = {
    ("hold", "grant"): _return_grant,
    ("hold", "overage"): _return_overage,
    ("grant", "expired"): _expire,
    ("grant", "overdraft"): _cover,
}
_BY_KIND: Final[dict[str, dict[tuple[str, str], _Move]]] = {
    "grant": {
        ("issued", "grant"): _issue,
        ("grant", "issued"): _take_away,
        ("grant", "overdraft"): _cover,
    },
    "reserve": {("grant", "hold"): _hold_grant, ("overage", "hold"): _hold_overage},
    "settle": {
        ("hold", "consumed"): _consume_hold,
        ("grant", "consumed"): _consume_grant,
        ("overage", "consumed"): _consume_overage,
        ("overdraft", "consumed"): _consume_overdraft,
        **_BY_ANY_CLOSE,
    },
    "release": _BY_ANY_CLOSE,
    "expire": _BY_ANY_CLOSE,
    "refund": {
        ("consumed", "grant"): _refund_grant,
        ("consumed", "overage"): _refund_overage,
        ("consumed", "overdraft"): _refund_overdraft,
        ("grant", "overdraft"): _cover,
    },
    "expire_grant": {("grant", "expired"): _expire},
}

MOVES: Final = {
    (kind, debit, credit): move for kind, moves in _BY_KIND.items() for (debit, credit), move in moves.items()
}
"""What an entry of each kind may move from where to where (A7)."""
