"""What a trace should cost, worked out anew from the prices that the service publishes. Pure.

Deliberately not the service's own arithmetic: a second opinion is worth nothing if it is the first one again.
"""

from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal

import msgspec

from ledger.replay.trace import Line

__all__ = ["Price", "PriceList"]


class Price(msgspec.Struct, frozen=True):
    """The price of an operation: `credits` per billed unit and leg; a unit is `per` measured ones."""

    operation: str
    credits: int
    per: Decimal | None = None
    legs: int | None = None
    minimum: Decimal | None = None

    def cost(self, quantity: Decimal) -> int:
        """The credits of a measured `quantity`: rounded up, raised to the minimum (P2); 0 is free (P6)."""
        if quantity == 0:
            return 0
        units = (quantity / (self.per or 1)).to_integral_value(ROUND_CEILING)
        return int(max(units, self.minimum or Decimal(1))) * (self.legs or 1) * self.credits


class PriceList(msgspec.Struct, frozen=True):
    """One version of the catalog, as ``GET /v1/prices`` answers it."""

    version: str
    prices: tuple[Price, ...]

    def cost(self, lines: Iterable[Line]) -> int:
        """The credits of a job's lines. Raises `KeyError`, naming the operation, where there is no price."""
        by_operation = {price.operation: price for price in self.prices}
        return sum(by_operation[line.operation].cost(line.quantity) for line in lines)
