"""Rating: measured quantity -> billed quantity -> credits; the hold of a job; quotes (contract P2-P10)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from pricing.catalog import CatalogVersion, Price

Quantity = int | float
"""A measured quantity. Floats are exact here: only floor and remainder are taken of them."""


class FractionNotAllowed(ValueError):
    """A quantity with a fraction for an operation that is not measured in seconds."""


class TransferNotPossible(ValueError):
    """A transfer was asked for an operation that has none."""


class RatedLine(msgspec.Struct, frozen=True):
    """One line with its price applied: `quantity` billed units (legs counted) make `credits`."""

    operation: str
    unit: str
    measured: Quantity | None
    quantity: int
    credits: int


class RatedHold(msgspec.Struct, frozen=True):
    """What a reservation must hold, `credits` in all: its lines, and what a transfer could add (P10)."""

    lines: tuple[RatedLine, ...]
    transfer_allowance: int
    credits: int


def check_quantity(price: Price, quantity: Quantity | None) -> None:
    """Raise `FractionNotAllowed` unless the operation can be measured so; seconds may have fractions."""
    if quantity is not None and not price.fractional and quantity != math.floor(quantity):
        raise FractionNotAllowed(f"{price.operation} is measured in whole {price.measured_in}s")


def billed_units(price: Price, quantity: Quantity | None) -> int:
    """Return the billed units, before legs: rounded up, then raised to the minimum (P2).

    A quantity of 0 bills nothing (P6); one that could not be measured bills the minimum (P4).
    """
    if quantity is None:
        return price.minimum
    if quantity == 0:
        return 0
    return max(_ceil_div(quantity, price.per), price.minimum)


def rate(price: Price, quantity: Quantity | None) -> RatedLine:
    """Price one measured line. `quantity` of the answer is what is billed, leg by leg (P3)."""
    return _line(price, quantity, billed_units(price, quantity))


def rate_lines(version: CatalogVersion, lines: Sequence[tuple[str, Quantity | None]]) -> tuple[RatedLine, ...]:
    """Price the lines of one job or quote, each with its own code and rounding (P5, P7).

    Raise `OperationNotPriced` or `FractionNotAllowed`.
    """
    rated = []
    for operation, quantity in lines:
        price = version.price(operation)
        check_quantity(price, quantity)
        rated.append(rate(price, quantity))
    return tuple(rated)


def rate_hold(
    version: CatalogVersion, lines: Sequence[tuple[str, Quantity | None]], *, transferable: bool
) -> RatedHold:
    """Price what must be held for a job whose first line is its own operation (P10).

    Raise `OperationNotPriced`, `FractionNotAllowed`, or `TransferNotPossible` for what is no transferable call.
    """
    rated = rate_lines(version, lines)
    allowance = 0
    if transferable:
        units = billed_units(version.price(lines[0][0]), lines[0][1])
        allowance = transfer_allowance(version, lines[0][0], units)
    return RatedHold(rated, allowance, sum(line.credits for line in rated) + allowance)


def transfer_allowance(version: CatalogVersion, operation: str, units: int) -> int:
    """Return the credits to hold beyond `units` minutes of a call, for the dearest split of its seconds (P10).

    Splitting N minutes in two can add one rounded-up minute, so the dearest split is N of the dearer segment and
    one of the cheaper: with today's prices N x 620 + 460.
    """
    call = version.price(operation)
    if call.slot != "call":
        raise TransferNotPossible(f"{operation} is no call")
    if call.transfer_to is None or not units:
        return 0
    call_credits = _credits(call, 1)
    bridged_credits = _credits(version.price(call.transfer_to), 1)
    dearer, cheaper = max(call_credits, bridged_credits), min(call_credits, bridged_credits)
    return units * dearer + cheaper - units * call_credits


def shortest_hold(
    version: CatalogVersion, lines: Sequence[tuple[str, Quantity | None]], *, transferable: bool
) -> RatedHold:
    """Price the least of a call that can be reserved: its first line cut to the minimum, one minute (J8)."""
    minutes = version.price(lines[0][0]).minimum
    return _hold_of_minutes(version, lines, transferable=transferable, minutes=minutes)


def longest_hold(
    version: CatalogVersion, lines: Sequence[tuple[str, Quantity | None]], *, transferable: bool, credits: int
) -> RatedHold:
    """Price the longest call that `credits` cover, in whole minutes; they cover the shortest at least (J8).

    Only the call itself (the first line) is shortened; what a hold costs grows by the same step for every minute.
    """
    minutes = version.price(lines[0][0]).minimum
    shortest = _hold_of_minutes(version, lines, transferable=transferable, minutes=minutes)
    longer = _hold_of_minutes(version, lines, transferable=transferable, minutes=minutes + 1)
    minutes += (credits - shortest.credits) // (longer.credits - shortest.credits)
    return _hold_of_minutes(version, lines, transferable=transferable, minutes=minutes)


def _hold_of_minutes(
    version: CatalogVersion, lines: Sequence[tuple[str, Quantity | None]], *, transferable: bool, minutes: int
) -> RatedHold:
    operation = lines[0][0]
    measured = minutes * version.price(operation).per
    return rate_hold(version, [(operation, measured), *lines[1:]], transferable=transferable)


def _line(price: Price, measured: Quantity | None, units: int) -> RatedLine:
    return RatedLine(
        operation=price.operation,
        unit=price.unit,
        measured=measured,
        quantity=units * price.legs,
        credits=_credits(price, units),
    )


def _credits(price: Price, units: int) -> int:
    return units * price.legs * price.credits


def _ceil_div(quantity: Quantity, per: int) -> int:
    return int(quantity // per) + (1 if quantity % per else 0)
