"""Rating: measured quantity -> billed quantity -> credits, and what a job must hold (P2 to P10, J8)."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pricing.catalog import CatalogVersion, OperationNotPriced, Price, load
from pricing.rating import (
    FractionNotAllowed,
    Quantity,
    TransferNotPossible,
    billed_units,
    check_quantity,
    longest_hold,
    rate,
    rate_hold,
    rate_lines,
    shortest_hold,
)

PRICES = load().version("2026-09-11")
CALL, BRIDGED = "voice_call_minute", "voice_transfer_minute"


@pytest.mark.parametrize(
    ("rule", "operation", "measured", "billed", "credits"),
    [
        ("P", "agent_turn", 1, 1, 11),
        ("P", "agent_turn", 3, 3, 33),
        ("P", "image_analysis", 2, 2, 110),
        ("P", "document_analysis", 1, 1, 40),
        ("P flat: one video", "video_analysis", 1, 1, 270),
        ("P flat: two videos cost twice", "video_analysis", 2, 2, 540),
        ("P", "tts_synthesis", 280, 280, 280),
        ("P", "sentiment_analysis", 1, 1, 1),
        ("P2 raised to the minimum", "audio_transcription", 3, 10, 10),
        ("P2 raised to the minimum", "audio_transcription", 0.1, 10, 10),
        ("P2 just the minimum", "audio_transcription", 10, 10, 10),
        ("P2 rounded up", "audio_transcription", 10.2, 11, 11),
        ("P2 one second", "voice_call_minute", 1, 1, 620),
        ("P2 a full minute", "voice_call_minute", 60, 1, 620),
        ("P2 the second minute begins", "voice_call_minute", 61, 2, 1_240),
        ("P5 the agent's segment", "voice_call_minute", 150, 3, 1_860),
        ("P5 the bridged segment, in leg-minutes", "voice_transfer_minute", 150, 6, 1_380),
        ("P both legs", "voice_transfer_minute", 1, 2, 460),
        ("P2 a whole number written as a float", "agent_turn", 2.0, 2, 22),
        ("P2 a whole number written as a float", "voice_call_minute", 60.0, 1, 620),
        ("P2 a hair above a whole number", "audio_transcription", math.nextafter(20.0, 30.0), 21, 21),
        ("P2 a hair below a whole number", "audio_transcription", math.nextafter(20.0, 10.0), 20, 20),
        ("P2 a hair above a minute", "voice_call_minute", math.nextafter(60.0, 70.0), 2, 1_240),
        ("P2 a hair below a minute", "voice_call_minute", math.nextafter(60.0, 50.0), 1, 620),
        ("P2 0.1 added thrice is above 0.3", "audio_transcription", 0.1 + 0.2 + 12.0, 13, 13),
        ("P2 the smallest float", "voice_call_minute", 5e-324, 1, 620),
        ("P2 the largest quantity", "voice_call_minute", 10**9, 16_666_667, 10_333_333_540),
        ("P2 the largest quantity", "voice_call_minute", 1e9 + 0.5, 16_666_667, 10_333_333_540),
        ("P4 not measured", "agent_turn", None, 1, 11),
        ("P4 not measured", "audio_transcription", None, 10, 10),
        ("P4 not measured", "voice_call_minute", None, 1, 620),
        ("P4 not measured: one minute of both legs", "voice_transfer_minute", None, 2, 460),
        ("P6 nobody picked up", "voice_transfer_minute", 0, 0, 0),
        ("P6 nothing consumed", "audio_transcription", 0, 0, 0),
        ("P6 nothing consumed", "voice_call_minute", 0.0, 0, 0),
    ],
)
def test_what_is_billed(rule: str, operation: str, measured: Quantity | None, billed: int, credits: int) -> None:
    """P2, P3, P4, P6: every operation of the table."""
    line = rate(PRICES.price(operation), measured)
    assert (line.operation, line.unit, line.measured) == (
        operation,
        PRICES.price(operation).unit,
        measured,
    ), rule
    assert (line.quantity, line.credits) == (billed, credits), rule
    assert isinstance(line.quantity, int)


@given(st.one_of(st.integers(0, 10**9), st.floats(0, 1e9)), st.integers(1, 3_600))
def test_rounding_is_exact_for_every_number(measured: Quantity, per: int) -> None:
    """P2: as many units as begun, by exact integer arithmetic."""
    price = Price(unit="unit", measured_in="second", credits=1, per=per)
    top, bottom = measured.as_integer_ratio()
    assert billed_units(price, measured) == -(-top // (bottom * per))


@pytest.mark.parametrize(
    ("operation", "measured", "allowed"),
    [
        ("audio_transcription", 10.2, True),
        ("voice_call_minute", 0.5, True),
        ("voice_transfer_minute", 0.5, True),
        ("agent_turn", 1.5, False),
        ("image_analysis", 0.5, False),
        ("tts_synthesis", 279.9, False),
        ("agent_turn", 2.0, True),
        ("agent_turn", None, True),
        ("agent_turn", 0, True),
    ],
)
def test_only_seconds_have_fractions(operation: str, measured: Quantity | None, allowed: bool) -> None:
    """P: an operation is measured in what the table says."""
    if allowed:
        check_quantity(PRICES.price(operation), measured)
        return
    with pytest.raises(FractionNotAllowed, match=f"{operation} is measured in whole"):
        check_quantity(PRICES.price(operation), measured)


def test_each_line_of_a_job_has_its_own_code_and_rounding() -> None:
    """P5, P7: a transferred call costs 3 x 620 + 3 x 460; attachments are extra lines."""
    lines = rate_lines(PRICES, [(CALL, 150), (BRIDGED, 150)])
    assert [line.credits for line in lines] == [1_860, 1_380]
    lines = rate_lines(PRICES, [("agent_turn", 1), ("image_analysis", 2), ("audio_transcription", 3)])
    assert [(line.unit, line.quantity, line.credits) for line in lines] == [
        ("request", 1, 11),
        ("image", 2, 110),
        ("second", 10, 10),
    ]


def test_a_line_without_a_price_or_with_a_wrong_fraction_is_not_rated() -> None:
    """P1."""
    with pytest.raises(OperationNotPriced):
        rate_lines(PRICES, [("agent_turn", 1), ("teleport", 1)])
    with pytest.raises(FractionNotAllowed):
        rate_lines(PRICES, [("agent_turn", 1), ("agent_turn", 1.5)])


# -- holds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "lines", "transferable", "allowance", "hold"),
    [
        ("a turn", [("agent_turn", 1)], False, 0, 11),
        ("a turn with an image", [("agent_turn", 1), ("image_analysis", 1)], False, 0, 66),
        ("a call that stays", [(CALL, 300)], False, 0, 3_100),
        ("a call that may be transferred: 5 x 620 + 460", [(CALL, 300)], True, 460, 3_560),
        ("a call of one minute that may be transferred", [(CALL, 60)], True, 460, 1_080),
        ("a call of a fraction that may be transferred", [(CALL, 60.5)], True, 460, 1_700),
        ("a call with audio that may be transferred", [(CALL, 60), ("audio_transcription", 3)], True, 460, 1_090),
    ],
)
def test_what_a_job_holds(
    what: str, lines: list[tuple[str, Quantity | None]], transferable: bool, allowance: int, hold: int
) -> None:
    """P10: N x 620 + 460."""
    held = rate_hold(PRICES, lines, transferable=transferable)
    assert (held.transfer_allowance, held.credits) == (allowance, hold), what


def test_what_is_no_call_cannot_be_transferred() -> None:
    """P10."""
    with pytest.raises(TransferNotPossible, match="agent_turn is no call"):
        rate_hold(PRICES, [("agent_turn", 1)], transferable=True)


@pytest.mark.parametrize(("operation", "quantity"), [(BRIDGED, 60), (CALL, 0)])
def test_nothing_is_held_for_a_transfer_that_cannot_split_anything(operation: str, quantity: int) -> None:
    """P10: the bridged part is not bridged again, and no second of a call of nothing can be."""
    assert rate_hold(PRICES, [(operation, quantity)], transferable=True).transfer_allowance == 0


def catalog_of(call: int, bridged: int, legs: int) -> CatalogVersion:
    """A catalog where calls cost something else."""
    return CatalogVersion(
        version="other",
        effective_from=datetime(2026, 1, 1, tzinfo=UTC),
        prices={
            CALL: Price(
                operation=CALL,
                unit="minute",
                measured_in="second",
                per=60,
                credits=call,
                slot="call",
                transfer_to=BRIDGED,
            ),
            BRIDGED: Price(
                operation=BRIDGED,
                unit="minute",
                measured_in="second",
                per=60,
                credits=bridged,
                legs=legs,
                slot="call",
            ),
        },
    )


@settings(deadline=None)
@given(st.integers(1, 900), st.integers(1, 700), st.integers(1, 3), st.integers(1, 400))
def test_the_hold_is_the_dearest_way_a_calls_seconds_can_be_split(
    call: int, bridged: int, legs: int, seconds: int
) -> None:
    """P10: by brute force, also where the bridged minute is the dearer one."""
    prices = catalog_of(call, bridged, legs)
    minutes = -(-seconds // 60)
    splits = [
        sum(line.credits for line in rate_lines(prices, [(CALL, part), (BRIDGED, minutes * 60 - part)]))
        for part in range(minutes * 60 + 1)
    ]
    assert rate_hold(prices, [(CALL, seconds)], transferable=True).credits == max(splits)


@pytest.mark.parametrize(
    ("what", "prices", "seconds", "hold"),
    [
        ("today's prices", PRICES, 300, 5 * 620 + 460),
        ("a dearer bridged minute", catalog_of(620, 700, 1), 300, 5 * 700 + 620),
        ("the same price", catalog_of(620, 310, 2), 300, 6 * 620),
    ],
)
def test_the_dearer_minute_is_held_for_every_minute(what: str, prices: CatalogVersion, seconds: int, hold: int) -> None:
    """P10."""
    assert rate_hold(prices, [(CALL, seconds)], transferable=True).credits == hold, what


@pytest.mark.parametrize(
    ("what", "lines", "transferable", "credits"),
    [
        ("a call", [(CALL, 300)], False, 620),
        ("a call that may be transferred", [(CALL, 300)], True, 1_080),
        ("a call with a turn: the turn is not shortened", [(CALL, 300), ("agent_turn", 2)], False, 642),
        ("the bridged part alone", [(BRIDGED, 300)], False, 460),
    ],
)
def test_the_least_of_a_call_is_one_minute(
    what: str, lines: list[tuple[str, Quantity | None]], transferable: bool, credits: int
) -> None:
    """J8."""
    held = shortest_hold(PRICES, lines, transferable=transferable)
    assert held.credits == credits, what
    assert held.lines[0].measured == 60, what


@pytest.mark.parametrize(
    ("what", "lines", "transferable", "can_spend", "seconds", "credits"),
    [
        ("just one minute", [(CALL, 300)], False, 620, 60, 620),
        ("one credit short of two minutes", [(CALL, 300)], False, 1_239, 60, 620),
        ("two minutes", [(CALL, 300)], False, 1_240, 120, 1_240),
        ("transferable, one credit short of two", [(CALL, 300)], True, 1_699, 60, 1_080),
        ("transferable, two minutes", [(CALL, 300)], True, 1_700, 120, 1_700),
        ("the turn is paid first", [(CALL, 300), ("agent_turn", 1)], False, 1_250, 60, 631),
        ("the turn and two minutes", [(CALL, 300), ("agent_turn", 1)], False, 1_251, 120, 1_251),
        ("the bridged part alone", [(BRIDGED, 300)], False, 1_000, 120, 920),
    ],
)
def test_the_longest_call_that_credits_cover(
    what: str,
    lines: list[tuple[str, Quantity | None]],
    transferable: bool,
    can_spend: int,
    seconds: int,
    credits: int,
) -> None:
    """J8: whole minutes, and the answer says how many."""
    held = longest_hold(PRICES, lines, transferable=transferable, credits=can_spend)
    assert (held.lines[0].measured, held.credits) == (seconds, credits), what


@given(st.integers(1, 900), st.integers(1, 700), st.booleans(), st.integers(0, 10_000))
def test_one_more_minute_than_the_longest_would_cost_too_much(
    call: int, bridged: int, transferable: bool, more: int
) -> None:
    """J8."""
    prices = catalog_of(call, bridged, 2)
    can_spend = shortest_hold(prices, [(CALL, 60)], transferable=transferable).credits + more
    held = longest_hold(prices, [(CALL, 10**6)], transferable=transferable, credits=can_spend)
    assert held.credits <= can_spend
    seconds = held.lines[0].measured
    assert seconds is not None
    assert rate_hold(prices, [(CALL, seconds + 1)], transferable=transferable).credits > can_spend
