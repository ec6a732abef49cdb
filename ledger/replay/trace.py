"""A request trace and the work it stands for: a CSV row -> the plan of one job. Pure.

The columns are those of the *Azure LLM Inference Trace 2023*: ``TIMESTAMP`` (UTC), ``ContextTokens`` and
``GeneratedTokens``. Rows are numbered from 1, the first row of data.

How a row becomes a job (``r`` its number, ``n = r % 50``, ``C`` and ``G`` its two counts of tokens):

- every second row (``r`` even) belongs to ``acct-0``, the others to ``acct-<n>``; the environment is ``test``
  when ``n`` is divisible by 5, else ``live``, so that the busy account uses both;
- the kind of job is ``C % 20``, see `KINDS`;
- audio and speech are reserved for 1.5 times what will be settled, rounded up (and never for nothing);
- it is reserved at its time and closed ``10 ms × G`` later, a call after its seconds;
- ``r`` divisible by 97 sends its reservation twice, by 101 its settlement twice; by 50 is released instead of
  settled; by 103 is not closed at all (that rule wins), so its hold expires.
"""

import calendar
import csv
import enum
import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Close",
    "JobPlan",
    "Line",
    "Row",
    "Step",
    "Trace",
    "TraceError",
    "account_of",
    "plan_job",
    "read_trace",
    "schedule",
]

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
TOKENS_MAX = 100_000_000
"""More tokens than this in one row is a damaged file; it also keeps every quantity below 10^9."""

ACCOUNTS = 50
CALL_RESERVED_SECONDS = 300
LONG_TURN_TOKENS = 400
"""A turn that generates more than this had an audio attachment."""

NS_PER_SECOND = 1_000_000_000
NS_PER_TOKEN = 10_000_000
JOB_ID_LENGTH_MAX = 120
"""Identifiers have at most 128 characters; the rest is for what is derived from a job's."""

KINDS = (
    ("agent_turn",) * 12
    + ("tts_synthesis",) * 3
    + ("audio_transcription",) * 2
    + ("image_analysis", "document_or_video", "voice_call_minute")
)
"""The kind of job by ``ContextTokens % 20``."""

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?", re.ASCII)
_STEM = re.compile(r"[A-Za-z0-9._:-]+", re.ASCII)


class TraceError(Exception):
    """The trace cannot be replayed: its message names the file, and the line where there is one."""

    def __init__(self, file: Path, line: int | None, reason: str) -> None:
        super().__init__(f"{file}: {reason}" if line is None else f"{file}, line {line}: {reason}")
        self.line = line


class Row(NamedTuple):
    """One request of a trace; `number` counts from 1, `at_ns` from the trace's first instant."""

    number: int
    at_ns: int
    context_tokens: int
    generated_tokens: int


class Line(NamedTuple):
    """A quantity of an operation, in what the operation is measured in (requests, characters, seconds …)."""

    operation: str
    quantity: Decimal


class Close(enum.Enum):
    """What ends a job: its settlement, its release, or nothing (its hold expires)."""

    SETTLE = "settle"
    RELEASE = "release"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """All that will be asked for one row. Times are nanoseconds from the start of the trace."""

    row: Row
    job_id: str
    account_id: str
    environment: str
    reserved: tuple[Line, ...]
    settled: tuple[Line, ...]
    close: Close
    close_after_ns: int
    reserve_times: int
    settle_times: int

    @property
    def operation(self) -> str:
        """The job's own operation, that of its first line."""
        return self.reserved[0].operation

    @property
    def is_call(self) -> bool:
        """Whether the job is a call: transferable, and content with part of what it asks for."""
        return self.operation == "voice_call_minute"


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace, valid and in the order of time; `stem` is the file's name without its ending."""

    stem: str
    rows: tuple[Row, ...]

    def plans(self) -> Iterator[JobPlan]:
        """The jobs of the trace, one a row, in the order in which they are reserved."""
        return (plan_job(self.stem, row) for row in self.rows)

    def accounts(self) -> list[str]:
        """The accounts that the trace uses, by number."""
        return [f"acct-{n}" for n in sorted({account_of(row.number) for row in self.rows})]


class Step(NamedTuple):
    """One thing to do: at `at_ns`, reserve the job (`closing` false) or close it."""

    at_ns: int
    closing: bool
    plan: JobPlan


def account_of(number: int) -> int:
    """The number of the account that row `number` belongs to: one busy customer has every second row."""
    return 0 if number % 2 == 0 else number % ACCOUNTS


def plan_job(stem: str, row: Row) -> JobPlan:
    """The job that `row` of the trace `stem` stands for. The same row always gives the same job."""
    number = row.number
    settled = _settled_lines(row)
    close = _close_of(number)
    return JobPlan(
        row=row,
        job_id=f"job-{stem}-{number}",
        account_id=f"acct-{account_of(number)}",
        environment="test" if number % ACCOUNTS % 5 == 0 else "live",
        reserved=_reserved_lines(settled),
        settled=settled,
        close=close,
        close_after_ns=_duration_ns(row, settled),
        reserve_times=2 if number % 97 == 0 else 1,
        settle_times=2 if close is Close.SETTLE and number % 101 == 0 else 1,
    )


def _close_of(number: int) -> Close:
    if number % 103 == 0:
        return Close.EXPIRE
    return Close.RELEASE if number % 50 == 0 else Close.SETTLE


def _settled_lines(row: Row) -> tuple[Line, ...]:
    """What was consumed: the lines of the settlement."""
    context, generated = Decimal(row.context_tokens), Decimal(row.generated_tokens)
    even = row.generated_tokens % 2 == 0
    match KINDS[row.context_tokens % len(KINDS)]:
        case "agent_turn":
            turn = Line("agent_turn", Decimal(1))
            long = row.generated_tokens > LONG_TURN_TOKENS
            return (turn, Line("audio_transcription", context / 50)) if long else (turn,)
        case "tts_synthesis":
            return (Line("tts_synthesis", 4 * generated),)
        case "audio_transcription":
            return (Line("audio_transcription", context / 10),)
        case "document_or_video":
            return (Line("document_analysis" if even else "video_analysis", Decimal(1)),)
        case "voice_call_minute":
            call = Line("voice_call_minute", generated)
            return (call, Line("voice_transfer_minute", context / 20)) if even else (call,)
        case operation:
            return (Line(operation, Decimal(1)),)


def _reserved_lines(settled: tuple[Line, ...]) -> tuple[Line, ...]:
    """What is asked for before the work; a transfer has no line, it is allowed for by the call."""
    if settled[0].operation == "voice_call_minute":
        return (Line("voice_call_minute", Decimal(CALL_RESERVED_SECONDS)),)
    return tuple(Line(operation, _margin(operation, quantity)) for operation, quantity in settled)


def _margin(operation: str, quantity: Decimal) -> Decimal:
    if operation not in ("audio_transcription", "tts_synthesis"):
        return quantity
    return max(Decimal(1), (quantity * 3 / 2).to_integral_value(ROUND_CEILING))


def _duration_ns(row: Row, settled: tuple[Line, ...]) -> int:
    if settled[0].operation != "voice_call_minute":
        return row.generated_tokens * NS_PER_TOKEN
    return int(sum(line.quantity for line in settled) * NS_PER_SECOND)


def schedule(plans: Iterable[JobPlan]) -> Iterator[Step]:
    """Every reservation and every close, in the order in which they are due.

    `plans` come in the order of their reservations. Only the jobs that are open at a time are kept in memory.
    A job's close never comes before its reservation; of two things due at once the close goes first.
    """
    waiting: list[tuple[int, int, JobPlan]] = []
    for plan in plans:
        while waiting and waiting[0][0] <= plan.row.at_ns:
            at_ns, _, due = heapq.heappop(waiting)
            yield Step(at_ns, True, due)
        yield Step(plan.row.at_ns, False, plan)
        if plan.close is not Close.EXPIRE:
            heapq.heappush(waiting, (plan.row.at_ns + plan.close_after_ns, plan.row.number, plan))
    while waiting:
        at_ns, _, due = heapq.heappop(waiting)
        yield Step(at_ns, True, due)


def read_trace(file: Path) -> Trace:
    """Read and check a whole trace, before anything is done with it.

    Raises `TraceError`, naming file and line, for a file that is missing, unreadable, empty or not UTF-8, a
    wrong header, a row with a column too few or too many, a bad time, a count that is not a whole number from
    0 to `TOKENS_MAX`, or a name that cannot be part of a job's identifier.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = _read_rows(file, csv.reader(lines, strict=True))
    except FileNotFoundError:
        raise TraceError(file, None, "there is no such file") from None
    except OSError as error:
        raise TraceError(file, None, f"it cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        raise TraceError(file, None, "it is not UTF-8 text") from None
    if not rows:
        raise TraceError(file, 2, "the trace is empty: there is a header and no row")
    _check_stem(file, rows[-1].number)
    start_ns = min(row.at_ns for row in rows)
    rows.sort(key=lambda row: row.at_ns)
    return Trace(file.stem, tuple(row._replace(at_ns=row.at_ns - start_ns) for row in rows))


def _check_stem(file: Path, rows: int) -> None:
    if not _STEM.fullmatch(file.stem):
        raise TraceError(file, None, "its name becomes part of the jobs' ids: use only letters, digits and . _ : -")
    if len(f"job-{file.stem}-{rows}") > JOB_ID_LENGTH_MAX:
        raise TraceError(file, None, "its name becomes part of the jobs' ids, and is too long for that")


class _Lines:
    """The rows of a CSV file with the line each begins at, and its syntax errors as `TraceError`."""

    def __init__(self, file: Path, reader: Iterator[list[str]]) -> None:
        self.file, self.reader, self.line = file, reader, 0

    def __iter__(self) -> Iterator[list[str]]:
        while True:
            self.line += 1
            try:
                fields = next(self.reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise self.error(f"this is not CSV ({error})") from error
            yield fields

    def error(self, reason: str) -> TraceError:
        return TraceError(self.file, self.line, reason)


def _read_rows(file: Path, reader: Iterator[list[str]]) -> list[Row]:
    lines = _Lines(file, reader)
    rows: list[Row] = []
    blank_line: int | None = None
    header = False
    for fields in lines:
        if not header:
            _check_header(lines, fields)
            header = True
        elif not fields:
            blank_line = blank_line or lines.line
        elif blank_line is not None:
            raise TraceError(file, blank_line, "the line is blank, in the middle of the trace")
        else:
            rows.append(_read_row(lines, len(rows) + 1, fields))
    if not header:
        raise TraceError(file, 1, f"the file is empty; it should begin with {','.join(HEADER)}")
    return rows


def _check_header(lines: _Lines, fields: list[str]) -> None:
    if tuple(fields) != HEADER:
        raise lines.error(f"the header should be {','.join(HEADER)}, not {_shown(','.join(fields))}")


def _read_row(lines: _Lines, number: int, fields: list[str]) -> Row:
    if len(fields) != len(HEADER):
        raise lines.error(f"a row has {len(HEADER)} columns, this one has {len(fields)}")
    return Row(
        number,
        _read_time(lines, fields[0]),
        _read_tokens(lines, HEADER[1], fields[1]),
        _read_tokens(lines, HEADER[2], fields[2]),
    )


def _read_time(lines: _Lines, text: str) -> int:
    """Nanoseconds since 1970."""
    wrong = f"TIMESTAMP {_shown(text)} is not a time in UTC such as 2023-11-16 18:15:46.6805900"
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise lines.error(wrong)
    try:
        moment = datetime.fromisoformat(match[1])
    except ValueError:
        raise lines.error(wrong) from None
    return calendar.timegm(moment.timetuple()) * NS_PER_SECOND + int((match[2] or "0").ljust(9, "0"))


def _read_tokens(lines: _Lines, column: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= len(str(TOKENS_MAX)) and int(text) <= TOKENS_MAX:
        return int(text)
    raise lines.error(f"{column} {_shown(text)} is not a whole number from 0 to {TOKENS_MAX:,}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
