"""The price table and the rounding rules of the contract (P1 to P10), written out once more.

Nothing here is shared with the service on purpose: a price that is wrong there must not be wrong here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

Json = dict[str, Any]

PRICE_VERSION = "2026-09-11"


@dataclass(frozen=True)
class Price:
    """One row of the table in section P; `per` is how much of what is measured makes one billed unit."""

    credits: int
    unit: str
    per: int = 1
    legs: int = 1
    minimum: int = 1
    in_seconds: bool = False
    slot: str = "request"

    @property
    def credits_per_step(self) -> int:
        """The least that one more billed unit costs: for a transfer, one minute of both legs."""
        return self.credits * self.legs


PRICES: dict[str, Price] = {
    "agent_turn": Price(11, "request"),
    "image_analysis": Price(55, "image"),
    "document_analysis": Price(40, "document"),
    "video_analysis": Price(270, "video"),
    "audio_transcription": Price(1, "second", minimum=10, in_seconds=True),
    "tts_synthesis": Price(1, "character"),
    "sentiment_analysis": Price(1, "request"),
    "voice_call_minute": Price(620, "minute", per=60, in_seconds=True, slot="call"),
    "voice_transfer_minute": Price(230, "minute", per=60, legs=2, in_seconds=True, slot="call"),
}

TRANSFER_ALLOWANCE = PRICES["voice_transfer_minute"].credits_per_step
"""What splitting a call in two segments can add (P10): one rounded-up minute of both legs, once a job."""


def exactly(quantity: int | float) -> Fraction:
    """The number that was written in the request: 10.2 is 102/10, not the double next to it."""
    return Fraction(Decimal(str(quantity)))


def billed(operation: str, quantity: int | float | None) -> tuple[int, int]:
    """The billed quantity and its credits (P2, P4, P6); for a transfer the quantity counts leg-minutes."""
    price = PRICES[operation]
    if quantity is None:
        units = price.minimum
    elif quantity == 0:
        units = 0
    else:
        measured = exactly(quantity) / price.per
        units = max(-(-measured.numerator // measured.denominator), price.minimum)
    return units * price.legs, units * price.legs * price.credits


def is_call(lines: list[Json]) -> bool:
    """Whether a job is a call: the operation of a job is that of its first line."""
    price = PRICES.get(lines[0]["operation"])
    return price is not None and price.slot == "call"


def lines_identity(lines: list[Json]) -> tuple[tuple[str, Fraction | None], ...]:
    """Lines as they are compared: 2 and 2.0 are the same quantity, the order counts."""
    return tuple((line["operation"], None if line["quantity"] is None else exactly(line["quantity"])) for line in lines)


def unpriced(lines: list[Json]) -> bool:
    """Whether any operation is missing from the catalog (P1)."""
    return any(line["operation"] not in PRICES for line in lines)


def wrong_fraction(lines: list[Json]) -> bool:
    """Whether a line has a fraction of something that is not measured in seconds."""
    for line in lines:
        price, quantity = PRICES.get(line["operation"]), line["quantity"]
        if price and not price.in_seconds and quantity is not None and exactly(quantity).denominator != 1:
            return True
    return False


def wrong_switches(lines: list[Json], switched_on: bool) -> bool:
    """Whether a switch that only calls have is on for a job that is no call (P10).

    Of an operation that nobody priced nothing is known, so it is left to the price check.
    """
    known = lines[0]["operation"] in PRICES
    return known and switched_on and not is_call(lines)
