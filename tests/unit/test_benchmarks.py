"""The benchmarks' own sums: a wrong one would make every figure a lie."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from rich.console import Console

from ledger.replay.trace import Close, Row, plan_job, read_trace
from tests.benchmarks import aging, load, report, steady
from tests.benchmarks.aging import IN_PLACE, Relation, Sample, Window, figures_of
from tests.benchmarks.figures import Figures, percentile
from tests.benchmarks.flood import Flood, FloodTask
from tests.benchmarks.goals import GOALS, HISTORY_GOALS, Goal
from tests.benchmarks.load import LoadTask, Stream
from tests.benchmarks.server import BenchmarkError
from tests.benchmarks.soak import TRACE
from tests.benchmarks.steady import Latency, SteadyTask, Traffic
from tests.benchmarks.wire import Connection, Requests
from tests.benchmarks.worker import read_lines

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


@pytest.mark.parametrize("goals", [GOALS, HISTORY_GOALS, aging.GOALS])
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


Handler = Callable[[asyncio.StreamReader], AsyncIterator[bytes]]


@contextlib.asynccontextmanager
async def _serving(answers: Handler) -> AsyncIterator[int]:
    """Run a service that hangs up when it has no more answers, until all callers have; give its port."""
    callers: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(asyncio.current_task())
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError):
            async for answer in answers(reader):
                writer.write(answer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*(caller for caller in callers if caller is not None))


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.rsplit(b":", 1)[1]))
    return head


@pytest.fixture
async def stalling_port() -> AsyncIterator[int]:
    """A service that stalls when it is first asked, and answers at once from then on."""
    stalled = False

    async def answers(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        nonlocal stalled
        while True:
            await _read_request(reader)
            if not stalled:
                stalled = True
                await asyncio.sleep(STALL_SECONDS)
            yield ANSWER

    async with _serving(answers) as port:
        yield port


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


def _window(number: int, *, p99: float = 10, rss: int = 100, refused: int = 0, holds: int = 500) -> Window:
    """One of 60 s with 100 pairs, each of which left 2,000 bytes."""
    tables = dict.fromkeys(IN_PLACE, Relation(10, 0, 10_000)) | {"jobs": Relation(0, 0, 200_000 * number)}
    tables["holds"] = Relation(10, 0, holds)
    latency = Latency(p99 / 2, p99, 2 * p99)
    traffic = Traffic(200, refused, "", 100, 5, latency, {}, {})
    at = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(minutes=number)
    sample = Sample(at, 0.5, rss * 2**20, number * 1.0, 40, 50, 1, 7, 30 * 2**20, tables)
    return Window(traffic, sample)


def test_the_last_quarter_of_a_soak_stands_beside_the_first() -> None:
    """Nine windows: one to measure growth from, and two in each quarter; those between count for nothing."""
    between = [_window(number, p99=1_000, refused=3, holds=9_000) for number in range(3, 7)]
    first = [_window(0, p99=500), _window(1, p99=10, rss=100), _window(2, p99=20, rss=110)]
    last = [_window(7, p99=30, rss=120, holds=1_000), _window(8, p99=50, rss=140, holds=1_000)]
    figures = figures_of([*first, *between, *last])
    assert (figures.value("first.p99_ms"), figures.value("last.p99_ms")) == (15, 40)
    assert (figures.value("first.p50_ms"), figures.value("last.p50_ms")) == (7.5, 20)
    assert (figures.value("first.rss_mib"), figures.value("last.rss_mib")) == (105, 130)
    assert (figures.value("first.holds.bytes_per_row"), figures.value("last.holds.bytes_per_row")) == (50, 100)
    assert figures.value("first.bytes_per_pair") == figures.value("last.bytes_per_pair") == 2_000
    assert figures.value("last.cpu_ms_per_pair") == 10
    assert figures.value("last.pairs_per_second") == pytest.approx(100 / 60)
    assert figures.value("refused") == 3


def test_every_goal_of_a_soak_but_the_audits_is_judged_by_its_windows() -> None:
    figures = figures_of([_window(number) for number in range(5)])
    verdicts = {goal.figure: goal.judge(figures) for goal in aging.GOALS}
    assert verdicts.pop("audit.discrepancies") is None
    assert all(verdict is not None and verdict.met for verdict in verdicts.values())


def test_a_soak_of_too_few_windows_is_not_compared() -> None:
    with pytest.raises(ValueError, match="fewer than five"):
        figures_of([_window(number) for number in range(4)])


def test_a_soak_sends_the_jobs_of_the_trace_over_and_over_to_all_accounts() -> None:
    rows = read_trace(TRACE).rows
    plans = list(islice(steady.plan_jobs(rows, 40), 4 * len(rows)))
    assert len({plan.job_id for plan in plans}) == len(plans)
    jobs = Counter(plan.account_id for plan in plans)
    assert jobs.pop(steady.BUSY) == len(plans) / 2
    assert set(jobs) == set(steady.account_ids(40)[1:])
    assert set(jobs.values()) == {len(plans) / 2 / 40}
    tokens = [plan.row.generated_tokens for plan in plans]
    assert tokens == 4 * [row.generated_tokens for row in rows]
    assert {plan.close for plan in plans} == set(Close)
    assert {plan.environment for plan in plans} == {"live", "test"}
    assert max(plan.reserve_times for plan in plans) == max(plan.settle_times for plan in plans) == 2


def test_only_a_job_that_was_charged_is_refunded() -> None:
    """A multiple of 89 that is one of 50 as well is released, one of 103 is not closed; an image is left alone."""
    numbers = {89: True, 90: False, 89 * 50: False, 89 * 103: False}
    plans = {number: plan_job("soak", Row(number, 0, 20, 1)) for number in numbers}
    assert {number: steady.is_refunded(plan) for number, plan in plans.items()} == numbers
    assert not steady.is_refunded(plan_job("soak", Row(89, 0, 17, 1)))


def _steady_task(port: int, windows: int) -> SteadyTask:
    return SteadyTask("127.0.0.1", port, "token", str(TRACE), 10, 50, 1.0, windows, connections=1)


async def test_steady_traffic_charges_a_stall_to_all_that_was_due_meanwhile(stalling_port: int) -> None:
    first, second = [traffic async for traffic in steady.send(_steady_task(stalling_port, 2))]
    assert first.refused == second.refused == 0
    assert first.all.p99 >= STALL_SECONDS * 1_000 * 0.9
    assert first.all.p50 >= 100  # Most of what was answered in it was due in the stall.
    assert first.counts["reserve"] + second.counts["reserve"] >= 90
    assert second.pairs == second.counts["settle"] + second.counts.get("release", 0) > 0


async def test_steady_traffic_counts_what_is_refused_and_does_not_close_it() -> None:
    async def refusals(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        while True:
            head = await _read_request(reader)
            assert head.startswith(b"PUT ")
            yield ANSWER.replace(b"201 Created", b"402 No")

    async with _serving(refusals) as port:
        (traffic,) = [each async for each in steady.send(_steady_task(port, 1))]
    assert traffic.refused == traffic.requests > 0
    assert traffic.refusal.startswith("HTTP/1.1 402 No")
    assert (traffic.pairs, traffic.counts) == (0, {})


async def test_steady_traffic_ends_where_the_service_goes_away() -> None:
    async def no_answer(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        await _read_request(reader)
        for answer in list[bytes]():
            yield answer

    async with _serving(no_answer) as port:
        windows = steady.send(_steady_task(port, 100))
        with pytest.raises(ConnectionError):
            await anext(windows)


async def test_a_process_that_fails_is_told_of(capfd: pytest.CaptureFixture[str]) -> None:
    lines = read_lines("tests.benchmarks.steady", {"not": "a task"}, Traffic)
    with pytest.raises(BenchmarkError, match=r"tests\.benchmarks\.steady failed"):
        await anext(lines)
    assert "ValidationError" in capfd.readouterr().err
