"""The benchmarks' own sums: a wrong one would make every figure a lie."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import AsyncIterator

import pytest
from rich.console import Console

from tests.benchmarks import load, report
from tests.benchmarks.figures import Figures, percentile
from tests.benchmarks.flood import Flood, FloodTask
from tests.benchmarks.goals import GOALS, HISTORY_GOALS, Goal
from tests.benchmarks.load import LoadTask, Stream
from tests.benchmarks.wire import Connection, Requests

ANSWER = b'HTTP/1.1 201 Created\r\ncontent-type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}'
STALL_SECONDS = 0.8


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([5.0], 50, 5), ([3, 1, 2], 50, 2), ([4, 1, 3, 2], 50, 2), (range(1, 101), 99, 99), (range(1, 102), 99, 100)],
)
def test_a_percentile_is_the_nearest_rank(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)


def test_a_figure_is_its_median_and_what_must_never_be_its_worst() -> None:
    figures = Figures()
    for value in (1.0, 9.0, 2.0):
        figures.note("rate", value)
        figures.note("wrong", value, worst=True)
    assert figures.values() == {"rate": 2.0, "wrong": 9.0}
    assert figures.value("another") is None


def test_figures_of_two_runs_stand_side_by_side() -> None:
    full, both = Figures(), Figures()
    full.note("rate", 3)
    full.note("wrong", 0, worst=True)
    full.note("wrong", 1, worst=True)
    full.note("wrong", 0, worst=True)
    both.add(full, "full")
    assert both.values() == {"full.rate": 3, "full.wrong": 1}


@pytest.mark.parametrize(
    ("goal", "measured", "met"),
    [
        (Goal("fast", "≥", 2, "floor"), 2.5, True),
        (Goal("fast", "≥", 2.5, "floor"), 2.5, True),
        (Goal("fast", "≥", 2.6, "floor"), 2.5, False),
        (Goal("floor", "≤", 0.4, "fast"), 0.4, True),
        (Goal("floor", "≤", 0.3, "fast"), 0.4, False),
        (Goal("fast", "≤", 250), 250, True),
        (Goal("fast", "≤", 249), 250, False),
    ],
)
def test_a_goal_compares_with_another_figure_or_with_a_limit(goal: Goal, measured: float, met: bool) -> None:
    figures = Figures()
    figures.note("fast", 250)
    figures.note("floor", 100)
    verdict = goal.judge(figures)
    assert verdict is not None
    assert (verdict.measured, verdict.met) == (measured, met)


def test_a_goal_is_not_judged_without_both_figures() -> None:
    figures = Figures()
    figures.note("fast", 250)
    assert Goal("fast", "≥", 2, "floor").judge(figures) is None
    assert Goal("slow", "≥", 2).judge(figures) is None


def test_the_table_says_how_each_goal_stands_and_what_was_not_measured() -> None:
    figures = Figures()
    figures.note("fast", 250)
    figures.note("floor", 100)
    goals = [Goal("fast", "≥", 2, "floor"), Goal("fast", "≥", 3, "floor"), Goal("fast", "≥", 5, "peer")]
    text = io.StringIO()
    report.show(Console(file=text, width=160), "title", figures, goals, {"peer": "not measured: [no] network"})
    met, not_met, unknown = (line for line in text.getvalue().splitlines() if "≥" in line)
    assert re.search(r"fast .* 250 .* floor 100 .* 2\.50 .* ≥ 2 × .* met", met)
    assert re.search(r"floor 100 .* 2\.50 .* ≥ 3 × .* not met", not_met)
    assert re.search(r"peer: not measured .* ≥ 5 ×", unknown)
    assert "met" not in unknown
    assert "not measured: [no] network" in text.getvalue()


@pytest.mark.parametrize("goals", [GOALS, HISTORY_GOALS])
def test_no_goal_is_set_twice(goals: tuple[Goal, ...]) -> None:
    assert len(set(goals)) == len(goals)


class _Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


@pytest.mark.parametrize("size", [1, 10, 50, len(ANSWER)])
def test_an_answer_is_read_whole_in_whatever_pieces_it_comes(size: int) -> None:
    answers: list[tuple[bool, bytes]] = []
    connection = Connection(lambda error: pytest.fail(str(error)))
    connection.connection_made(_Wire())  # type: ignore[arg-type] # it only writes
    for count in (1, 2):
        connection.send(b"", lambda succeeded, answer: answers.append((succeeded, answer)))
        for start in range(0, len(ANSWER), size):
            assert len(answers) == count - 1
            connection.data_received(ANSWER[start : start + size])
        assert answers == [(True, ANSWER)] * count


def test_a_connection_that_ends_before_its_answer_breaks_the_run_off() -> None:
    broken: list[Exception] = []
    connection = Connection(broken.append)
    connection.connection_made(_Wire())  # type: ignore[arg-type] # it only writes
    connection.send(b"", lambda succeeded, answer: None)
    connection.data_received(ANSWER[:20])
    connection.connection_lost(None)
    assert len(broken) == 1


def test_requests_have_the_length_they_say() -> None:
    requests, jobs = Requests("localhost:1", "token"), [(b"acme", b"j1"), (b"acme", b"j2")]
    made = [requests.reserve(jobs[0]), requests.settle(jobs[0]), requests.reserve_all(jobs), requests.settle_all(jobs)]
    for request in made:
        head, body = request.split(b"\r\n\r\n")
        assert re.search(rb"\r\nContent-Length: (\d+)$", head)[1] == b"%d" % len(body)  # type: ignore[index] # there
    assert made[0].startswith(b"PUT /v1/accounts/acme/jobs/j1 HTTP/1.1\r\nHost: localhost:1\r\n")
    assert made[1].startswith(b"POST /v1/accounts/acme/jobs/j1/settle HTTP/1.1\r\n")
    assert made[2].count(b'"command":"reserve"') == made[3].count(b'"command":"settle"') == 2


@pytest.fixture
async def stalling_port() -> AsyncIterator[int]:
    """A service that stalls when it is first asked, and answers at once from then on."""
    stalled = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal stalled
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.rsplit(b":", 1)[1]))
                if not stalled:
                    stalled = True
                    await asyncio.sleep(STALL_SECONDS)
                writer.write(ANSWER)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_an_open_stream_charges_a_stall_to_all_that_was_due_meanwhile(stalling_port: int) -> None:
    stream = Stream("all", ["acme"], connections=1, rate=50)
    task = LoadTask("127.0.0.1", stalling_port, "token", "job", 1.0, [stream], warm_up_seconds=0)
    sent = (await load.generate(task))["all"]
    assert sent.refused == 0
    assert sent.requests >= 72  # 50 reservations, and the settlements of those of the first half second
    assert sent.p99 >= STALL_SECONDS * 1_000 * 0.9
    assert sent.p50 >= 100  # Two of three were due in the stall: they waited, though few of them were on their way.


async def test_a_flood_counts_what_is_due_sent_refused_and_served() -> None:
    """Ten are due, two connections are there: eight are not sent; one is refused, the other served and settled."""
    task = FloodTask("localhost", 1, "token", "job", 0.05, ["acme"], rate=200, connections=2)
    flood = Flood(task)
    wires = [_Wire(), _Wire()]
    connections = [Connection(flood.break_off) for _ in wires]
    for connection, wire in zip(connections, wires, strict=True):
        connection.connection_made(wire)  # type: ignore[arg-type] # it only writes
    refusal = ANSWER.replace(b"201 Created", b"503 No").replace(b"\r\n\r\n", b"\r\nRetry-After: 0\r\n\r\n")
    flood.run(list(connections))
    async with asyncio.timeout(10):
        while not all(wire.written for wire in wires) or flood.report().due < 10:  # noqa: ASYNC110 - a timer sends
            await asyncio.sleep(0.001)
        connections[0].data_received(refusal)
        connections[1].data_received(ANSWER)
        assert b"/settle" in wires[1].written[-1]
        connections[1].data_received(refusal)  # It is repeated when it may be, on whichever connection is free.
        while not any(len(wire.written) > 1 + (wire is wires[1]) for wire in wires):  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.001)
        for connection, wire in zip(connections, wires, strict=True):
            if len(wire.written) > 1 + (wire is wires[1]):
                connection.data_received(ANSWER)
        await flood.over
    report = flood.report()
    assert (report.due, report.not_sent) == (10, 8)
    assert (report.accepted, report.settled, report.refused) == (1, 1, 2)
    assert (report.without_retry_after, report.other) == (0, {})
