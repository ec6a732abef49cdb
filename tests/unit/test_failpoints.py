"""What may be told of failpoints, when they act, and that they are not there unless they were asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledger import failpoints
from ledger.failpoints import VARIABLE, FailpointError, FailpointReached, arm


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    before = failpoints.reached
    yield
    failpoints.reached = before


@pytest.mark.parametrize("environment", [{}, {VARIABLE: ""}, {"LEDGER_FAILPOINT": "write=raise"}])
def test_nothing_is_armed_unless_it_was_asked_for(environment: dict[str, str]) -> None:
    before = failpoints.reached
    arm(environment)
    assert failpoints.reached is before
    for point in failpoints.POINTS:
        failpoints.reached(point)


def fails(point: failpoints.Point) -> bool:
    try:
        failpoints.reached(point)
    except FailpointReached:
        return True
    return False


@pytest.mark.parametrize(
    ("when", "expected"),
    [("", [True] * 4), ("#3", [False, False, True, False]), ("@0.0", [False] * 4), ("@1", [True] * 4)],
)
def test_a_point_acts_always_the_so_manieth_time_or_by_chance(when: str, expected: list[bool]) -> None:
    arm({VARIABLE: f"write=raise{when}, decide=sleep:0"})
    assert [fails("write") for _ in range(4)] == expected
    assert not fails("decide")
    assert not fails("commit")


@pytest.mark.parametrize(
    "text", ["write", "write=", "write=die", "wriet=kill", "write=sleep", "write=kill#0", "write=kill@2", "a=b,", ","]
)
def test_what_cannot_be_understood_is_refused(text: str) -> None:
    before = failpoints.reached
    with pytest.raises(FailpointError, match=f"^{VARIABLE}: .*prefetch, decide, write, commit, answer"):
        arm({VARIABLE: text})
    assert failpoints.reached is before


def test_a_point_that_is_named_twice_is_refused() -> None:
    before = failpoints.reached
    with pytest.raises(FailpointError, match=f"^{VARIABLE}: write is named twice"):
        arm({VARIABLE: "write=raise#1, commit=raise, write=kill#2"})
    assert failpoints.reached is before
