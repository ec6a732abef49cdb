"""What a row of a trace stands for, and which files are refused."""

from decimal import Decimal
from pathlib import Path

import pytest

from ledger.replay.bodies import reservation, settlement, ttl_seconds
from ledger.replay.prices import Price, PriceList
from ledger.replay.tally import percentile
from ledger.replay.trace import (
    Close,
    JobPlan,
    Line,
    Row,
    TraceError,
    plan_job,
    read_trace,
    schedule,
)

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
TIME = "2023-11-16 18:15:46.6805900"


def job(number: int = 1, context: int = 0, generated: int = 0, at_ns: int = 0) -> JobPlan:
    return plan_job("t", Row(number, at_ns, context, generated))


def lines(planned: tuple[Line, ...]) -> str:
    return " + ".join(f"{each.operation} {each.quantity:f}" for each in planned)


@pytest.mark.parametrize(
    ("context", "generated", "reserved", "settled"),
    [
        # ContextTokens % 20 says what kind of job it is.
        (0, 0, "agent_turn 1", "agent_turn 1"),
        (371, 44, "agent_turn 1", "agent_turn 1"),
        (371, 400, "agent_turn 1", "agent_turn 1"),
        (
            371,
            401,
            "agent_turn 1 + audio_transcription 12",
            "agent_turn 1 + audio_transcription 7.42",
        ),
        (0, 401, "agent_turn 1 + audio_transcription 1", "agent_turn 1 + audio_transcription 0"),
        (372, 109, "tts_synthesis 654", "tts_synthesis 436"),
        (374, 0, "tts_synthesis 1", "tts_synthesis 0"),
        (375, 7, "audio_transcription 57", "audio_transcription 37.5"),
        (376, 7, "audio_transcription 57", "audio_transcription 37.6"),
        (377, 7, "image_analysis 1", "image_analysis 1"),
        (378, 8, "document_analysis 1", "document_analysis 1"),
        (378, 9, "video_analysis 1", "video_analysis 1"),
        (379, 7, "voice_call_minute 300", "voice_call_minute 7"),
        (
            379,
            650,
            "voice_call_minute 300",
            "voice_call_minute 650 + voice_transfer_minute 18.95",
        ),
    ],
)
def test_kind_of_job(context: int, generated: int, reserved: str, settled: str) -> None:
    plan = job(context=context, generated=generated)
    assert lines(plan.reserved) == reserved
    assert lines(plan.settled) == settled


@pytest.mark.parametrize(
    ("number", "account", "environment"),
    [
        (1, "acct-1", "live"),
        (2, "acct-0", "live"),
        (5, "acct-5", "test"),
        (10, "acct-0", "test"),
        (49, "acct-49", "live"),
        (50, "acct-0", "test"),
        (51, "acct-1", "live"),
        (55, "acct-5", "test"),
    ],
)
def test_account_and_environment(number: int, account: str, environment: str) -> None:
    plan = job(number)
    assert (plan.account_id, plan.environment) == (account, environment)
    assert plan.job_id == f"job-t-{number}"


@pytest.mark.parametrize(
    ("number", "close", "reserve_times", "settle_times"),
    [
        (1, Close.SETTLE, 1, 1),
        (50, Close.RELEASE, 1, 1),
        (97, Close.SETTLE, 2, 1),
        (101, Close.SETTLE, 1, 2),
        (103, Close.EXPIRE, 1, 1),
        (97 * 101, Close.SETTLE, 2, 2),
        (97 * 103, Close.EXPIRE, 2, 1),
        (97 * 50, Close.RELEASE, 2, 1),
        (101 * 50, Close.RELEASE, 1, 1),
        (103 * 50, Close.EXPIRE, 1, 1),
    ],
)
def test_what_is_sent(number: int, close: Close, reserve_times: int, settle_times: int) -> None:
    plan = job(number)
    assert (plan.close, plan.reserve_times, plan.settle_times) == (close, reserve_times, settle_times)


def test_steps_come_in_the_order_in_which_they_are_due() -> None:
    second = 10**9
    plans = [
        job(1, context=19, generated=3),  # a call of 3 s
        job(2, context=0, generated=50, at_ns=second),  # closed at 1.5 s
        job(3, context=0, generated=0, at_ns=2 * second),  # closed at once
        job(103, context=0, generated=1, at_ns=2 * second),  # never closed
        job(5, context=0, generated=1, at_ns=3 * second),  # reserved when the call ends
    ]
    steps = [(step.plan.row.number, step.closing, step.at_ns / second) for step in schedule(plans)]
    assert steps == [
        (1, False, 0),
        (2, False, 1),
        (2, True, 1.5),
        (3, False, 2),
        (3, True, 2),
        (103, False, 2),
        (1, True, 3),
        (5, False, 3),
        (5, True, 3.01),
    ]


def test_a_row_always_gives_the_same_bodies() -> None:
    plan = job(9, context=379, generated=650)
    assert reservation(plan, "t", 0) == reservation(job(9, context=379, generated=650), "t", 1)
    assert reservation(plan, "t", 0) == (
        b'{"environment":"live","lines":[{"operation":"voice_call_minute","quantity":300}],"ttl_seconds":1568,'
        b'"metadata":{"trace":"t","row":"9","context_tokens":"379","generated_tokens":"650"},'
        b'"transferable":true,"allow_partial":true,"idempotency_key":"job-t-9"}'
    )
    assert settlement(plan, "t") == (
        b'{"lines":[{"operation":"voice_call_minute","quantity":650},'
        b'{"operation":"voice_transfer_minute","quantity":18.95}],'
        b'"record":{"request_id":"req_t_9","status_code":200,"latency_ms":6500,"key_prefix":"ak_live_9"},'
        b'"result":{"status":"completed","generated_tokens":650}}'
    )


@pytest.mark.parametrize(
    ("number", "generated", "speed", "seconds"),
    [
        (1, 300, 0, 1200),
        (1, 300, 1, 1200),
        (1, 300, 4, 1200),
        (1, 300, 0.5, 1500),
        (1, 300, 0.001, 86_400),
        (103, 300, 0.5, 900),
    ],
)
def test_a_hold_outlives_its_close(number: int, generated: int, speed: float, seconds: int) -> None:
    plan = job(number, context=19, generated=generated)
    own = sum(line.quantity for line in plan.settled) - generated  # a bridged part of 0.95 s
    assert ttl_seconds(plan, speed) == pytest.approx(seconds, abs=float(own) * 2)


@pytest.mark.parametrize(
    ("price", "quantity", "cost"),
    [
        (Price("audio_transcription", 1, Decimal(1), 1, Decimal(10)), "3", 10),
        (Price("audio_transcription", 1, Decimal(1), 1, Decimal(10)), "10.2", 11),
        (Price("audio_transcription", 1, Decimal(1), 1, Decimal(10)), "0", 0),
        (Price("voice_call_minute", 620, Decimal(60), 1, Decimal(1)), "61", 1240),
        (Price("voice_transfer_minute", 230, Decimal(60), 2, Decimal(1)), "0.5", 460),
        (Price("voice_transfer_minute", 230, Decimal(60), 2, Decimal(1)), "150", 1380),
        (Price("agent_turn", 11), "1", 11),
    ],
)
def test_what_a_line_costs(price: Price, quantity: str, cost: int) -> None:
    line = Line(price.operation, Decimal(quantity))
    assert PriceList("v1", (price,)).cost([line]) == cost


def test_percentiles_are_exact() -> None:
    hundred = [float(n) for n in range(1, 101)]
    assert [percentile(hundred, p) for p in (0, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert percentile([7.0], 50) == 7.0


def test_a_trace_is_read_whole_and_in_order(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    rows = f"2023-11-16 18:15:47.1805901,396,109\r\n{TIME},374,44\r\n2023-11-16 18:15:47+00:00,1,2\r\n\r\n"
    file.write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\r\n{rows}".encode())
    trace = read_trace(file)
    assert trace.stem == "t"
    assert trace.rows == (
        Row(2, 0, 374, 44),
        Row(3, 319_410_000, 1, 2),
        Row(1, 500_000_100, 396, 109),
    )
    assert trace.accounts() == ["acct-0", "acct-1", "acct-3"]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"", 1, "the file is empty"),
        (HEADER.encode(), 2, "the trace is empty"),
        (b"TIMESTAMP,ContextTokens\n", 1, "the header should be"),
        (b"2023-11-16 18:15:46.6805900,374,44\n", 1, "the header should be"),
        (f"{HEADER}\n{TIME},374,44\n{TIME},374\n".encode(), 3, "a row has 3 columns, this one has 2"),
        (f"{HEADER}\n{TIME},374,44\n\n{TIME},374,4\n".encode(), 3, "the line is blank"),
        (f"{HEADER}\n{TIME},374,-44\n".encode(), 2, "GeneratedTokens '-44' is not a whole number"),
        (f"{HEADER}\n{TIME},374.5,44\n".encode(), 2, "ContextTokens '374.5' is not a whole number"),
        (f"{HEADER}\n{TIME},NaN,44\n".encode(), 2, "ContextTokens 'NaN'"),
        (f"{HEADER}\n{TIME},٣,44\n".encode(), 2, "ContextTokens '٣'"),
        (f"{HEADER}\n{TIME},100000001,44\n".encode(), 2, "ContextTokens '100000001'"),
        (f"{HEADER}\n{TIME},{'9' * 10_000},44\n".encode(), 2, "ContextTokens '999"),
        (f"{HEADER}\n{TIME},,44\n".encode(), 2, "ContextTokens ''"),
        (f"{HEADER}\n16/11/2023 18:15,374,44\n".encode(), 2, "TIMESTAMP '16/11/2023 18:15'"),
        (f"{HEADER}\n2023-13-16 18:15:46,374,44\n".encode(), 2, "TIMESTAMP '2023-13-16"),
        (f'{HEADER}\n{TIME},374,"44\n'.encode(), 2, "this is not CSV"),
        (f"{HEADER}\n{TIME},\xff,44\n".encode("latin-1"), None, "it is not UTF-8"),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path: Path, content: bytes, line: int | None, reason: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_trace(file)
    assert caught.value.line == line
    assert str(file) in str(caught.value)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(file))


@pytest.mark.parametrize("name", ["a b.csv", "ñ.csv", "x" * 120 + ".csv"])
def test_a_name_that_makes_no_job_id_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(f"{HEADER}\n{TIME},374,44\n")
    with pytest.raises(TraceError, match="its name becomes part of the jobs' ids"):
        read_trace(file)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="it cannot be read"):
        read_trace(tmp_path)
