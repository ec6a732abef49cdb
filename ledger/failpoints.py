"""Named points at which a test makes the service die, fail or stall: between the steps of a batch, and of publishing.

They are armed by the environment variable `LEDGER_FAILPOINTS`, when `serve` starts and never later, by no option and no
request. It is a list of `POINT=ACTION`, separated by commas; an action may say when:

    write=kill              the process dies as by `kill -9`, the first time that a batch has been written
    commit=kill#3           the third time
    decide=raise@0.01       a defect, one time in a hundred
    prefetch=sleep:2@0.1    nothing at all happens in the process for two seconds, one time in ten

Not armed, a point is a call that does nothing: some tens of nanoseconds for a batch, which takes milliseconds.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, get_args

import structlog

VARIABLE: Final = "LEDGER_FAILPOINTS"

BatchPoint = Literal["prefetch", "decide", "write", "commit", "answer"]
"""The step of a batch behind which the point is.

Up to `write` nothing is committed: whoever dies there has done nothing, and after a defect the batch is halved and run
again. At `commit` all of it is committed and nobody knows. A defect there is taken for one that undid the batch: its
halves are run again and find everything done; a command that is alone is answered `500`, although it was carried out.
At `answer` the outcomes are handed to those who wait for them, none of whom has had its turn: no byte of an answer was
sent. A process that dies there leaves all callers without one, and a defect changes nothing for them.
"""

PublishingPoint = Literal["deliver", "publish"]
"""A step outside, which the process that dies here has not noted.

`deliver`: a receiver has answered, or failed to, and the delivery has no record of it yet: after a defect too, it is
sent again when its lease ends. `publish`: a page of events is in its Redis stream, and the publisher has not yet taken
note of that.
"""

Point = BatchPoint | PublishingPoint

BATCH_POINTS: Final[tuple[BatchPoint, ...]] = get_args(BatchPoint)
POINTS: Final[tuple[Point, ...]] = (*BATCH_POINTS, *get_args(PublishingPoint))

_SPECIFICATION: Final = re.compile(
    r"(?P<point>\w+)=(?P<action>kill|raise|sleep:(?P<seconds>\d+(\.\d+)?))"
    r"(#(?P<turn>[1-9]\d*)|@(?P<chance>0?\.\d+|1(\.0*)?))?"
)

log = structlog.get_logger(__name__)


class FailpointError(ValueError):
    """What is to happen at which point cannot be understood; the message names the variable."""


class FailpointReached(Exception):
    """The defect that the action `raise` stands for."""


@dataclass
class Failpoint:
    """What happens at one point, and when: always, the so-manieth time, or by chance."""

    action: Callable[[], None]
    turn: int | None = None
    chance: float | None = None
    reached: int = 0

    def reach(self) -> None:
        """Act, if it is time to."""
        self.reached += 1
        if self.turn is not None and self.reached != self.turn:
            return
        if self.chance is not None and random.random() >= self.chance:  # noqa: S311 - no secret
            return
        self.action()


def _nothing(point: Point) -> None:
    """Do nothing: no point is armed."""


reached: Callable[[Point], None] = _nothing
"""Say that a point was reached. Call it by the module's name, `failpoints.reached`, so that it can be armed."""


def arm(environment: Mapping[str, str]) -> None:
    """Let things happen at the points that the environment names, for as long as the process lives.

    Raises:
        FailpointError: it names an unknown point, an action that there is not, or a point twice.
    """
    global reached
    specifications = environment.get(VARIABLE)
    if not specifications:
        return
    armed: dict[str, Failpoint] = {}
    for point, failpoint in map(_failpoint, specifications.split(",")):
        if point in armed:
            raise FailpointError(f"{VARIABLE}: {point} is named twice, and only one thing can happen there")
        armed[point] = failpoint
    log.warning("failpoints_armed", points=specifications, meaning="this process is made to fail: it is for tests only")
    reached = partial(_reach, armed)


def _reach(armed: Mapping[str, Failpoint], point: Point) -> None:
    failpoint = armed.get(point)
    if failpoint is not None:
        failpoint.reach()


def _failpoint(specification: str) -> tuple[str, Failpoint]:
    found = _SPECIFICATION.fullmatch(specification.strip())
    if found is None or found["point"] not in POINTS:
        raise FailpointError(
            f"{VARIABLE}: expected POINT=ACTION with one of {', '.join(POINTS)} and one of kill, raise, sleep:SECONDS, "
            "optionally with #TURN or @CHANCE"
        )
    turn = int(found["turn"]) if found["turn"] else None
    chance = float(found["chance"]) if found["chance"] else None
    return found["point"], Failpoint(_action(found["action"], found["point"]), turn, chance)


def _action(name: str, point: str) -> Callable[[], None]:
    if name == "kill":
        return partial(os.kill, os.getpid(), signal.SIGKILL)
    if name == "raise":
        return partial(_fail, point)
    return partial(time.sleep, float(name.removeprefix("sleep:")))


def _fail(point: str) -> None:
    raise FailpointReached(f"the failpoint {point} was reached")
