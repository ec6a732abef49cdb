"""Logs: the forms of a line, what libraries log, and what never gets into one."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import asyncpg
import msgspec
import pytest
import structlog

from ledger import logs
from ledger.log_lines import WAITING_BYTES_MAX, ByThread


class Stream(io.TextIOWrapper):
    """Standard error, kept."""

    def __init__(self, *, terminal: bool = False) -> None:
        self.raw_bytes = io.BytesIO()
        super().__init__(self.raw_bytes, encoding="utf-8", write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def lines(self) -> list[str]:
        return self.raw_bytes.getvalue().decode().splitlines()


@contextlib.contextmanager
def logging_to(stream: Stream, monkeypatch: pytest.MonkeyPatch, *options: str) -> Iterator[Any]:
    """Log to a stream for as long as the context is open."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr("sys.stderr", stream)
    # Whatever else ran in this process may have disabled it, as logging.config does with loggers that there are.
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "disabled", False)
    try:
        logs.configure_logs(*options)
        yield structlog.get_logger("test")
    finally:
        structlog.reset_defaults()
        root.handlers[:], root.level = handlers, level


def test_json_has_a_line_for_each_event(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    with logging_to(stream, monkeypatch) as log:
        log.info("done", account="a\n{}", counts={"x": 1})
        log.debug("unseen")
        logging.getLogger("uvicorn.error").warning("bad %s", "request")
        logging.getLogger("uvicorn.error").info("unseen")
        log.warning("odd", text="\ud800", value=object)
    done, library, odd = (msgspec.json.decode(line) for line in stream.lines())
    assert list(done)[:3] == ["timestamp", "level", "event"]
    assert (done["account"], done["counts"], done["level"]) == ("a\n{}", {"x": 1}, "info")
    assert (library["event"], library["logger"], library["level"]) == ("bad request", "uvicorn.error", "warning")
    assert (odd["text"], odd["value"]) == ("?", "<class 'object'>")


def test_a_terminal_gets_text_that_cannot_command_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(terminal=True)
    with logging_to(stream, monkeypatch) as log:
        log.info("done", account="a\n\x1b[2Jforged")
    (line,) = stream.lines()
    assert "forged" in line
    assert "\x1b[2J" not in line


@pytest.mark.parametrize(("format", "json"), [("auto", True), ("json", True), ("console", False)])
def test_the_form_follows_the_setting(format: str, json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    with logging_to(stream, monkeypatch, format, "warning") as log:
        log.info("unseen")
        log.warning("seen")
    (line,) = stream.lines()
    assert line.startswith("{") == json


_COMPLAINT = {"C": "23505", "M": "duplicate key", "D": "Key (idempotency_key)=(SECRET) already exists."}


@pytest.mark.parametrize("format", ["json", "console"])
def test_an_exception_says_where_but_not_which_row(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL quotes rows in its complaints, with whatever a caller sent."""
    stream = Stream()

    def fail() -> None:
        try:
            raise asyncpg.UniqueViolationError.new(_COMPLAINT)
        except asyncpg.UniqueViolationError as error:
            raise RuntimeError("not written") from error

    with logging_to(stream, monkeypatch, format) as log:
        for complain in (log.exception, logging.getLogger("library").exception):
            try:
                fail()
            except RuntimeError:
                complain("failed")
    text = "\n".join(stream.lines())
    assert "SECRET" not in text
    assert text.count("duplicate key") == 2
    assert text.count("in fail") == 4


def test_a_line_that_cannot_be_written_is_lost_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    with logging_to(stream, monkeypatch) as log:
        stream.close()
        log.info("lost")


# -- lines that a thread writes ------------------------------------------------------------------------------------

LINE = b"x" * 999


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, BinaryIO]]:
    """Give both ends of a pipe; what is still written when the reader is closed fails, and ends."""
    reader, writer = os.pipe()
    with open(writer, "wb", buffering=0) as stream:  # noqa: PTH123 - it has no path
        try:
            yield reader, stream
        finally:
            os.close(reader)


def read_lines(reader: int, size: int) -> list[bytes]:
    text = b""
    while len(text) < size:
        text += os.read(reader, 65_536)
    return text.splitlines()


def test_a_thread_writes_lines_in_order() -> None:
    with pipe() as (reader, stream):
        lines = ByThread(stream, pytest.fail)
        for number in range(1_000):
            lines.msg(b"%03d" % number)
        assert read_lines(reader, 4_000) == [b"%03d" % number for number in range(1_000)]


def test_nobody_waits_for_a_stream_that_takes_nothing_and_what_is_too_much_is_counted() -> None:
    dropped: list[bool] = []
    with pipe() as (reader, stream):
        lines = ByThread(stream, lambda: dropped.append(True))
        for _ in range(5_000):
            lines.msg(LINE)
        begun = time.monotonic()
        lines.flush(0.2)
        assert time.monotonic() - begun >= 0.2
        kept = 5_000 - len(dropped)
        least = WAITING_BYTES_MAX // (len(LINE) + 1)
        assert least <= kept <= least + 65_536 // len(LINE)  # The pipe may have taken some, if logging took its time.
        assert read_lines(reader, 1_000 * kept) == [LINE] * kept
        lines.flush(30)
        lines.msg(b"after")
        assert read_lines(reader, 6) == [b"after"]


def test_what_is_logged_in_the_middle_of_logging_is_written_too() -> None:
    """As by a finaliser: the garbage collector can come at any moment, also while the lock is held."""
    with pipe() as (reader, stream):
        lines = ByThread(stream, pytest.fail)
        with lines._lock:
            lines.msg(b"inner")
        assert read_lines(reader, 6) == [b"inner"]


def test_a_stream_that_is_made_not_to_wait_gets_every_line() -> None:
    """As the parent's end of a pipe often is; then a write takes what there is room for, or nothing."""
    with pipe() as (reader, stream):
        os.set_blocking(stream.fileno(), False)
        lines = ByThread(stream, pytest.fail)
        for _ in range(1_000):
            lines.msg(LINE)
        lines.flush(0.2)
        assert read_lines(reader, 1_000_000) == [LINE] * 1_000


def test_a_thread_goes_on_behind_lines_that_cannot_be_written() -> None:
    written: list[bytes] = []

    class Failing(io.RawIOBase):
        def write(self, text: Any) -> int:
            if not written and bytes(text) == b"lost\n":
                raise OSError(errno.ENOSPC, "full")
            written.append(bytes(text))
            return len(text)

    lines = ByThread(cast(BinaryIO, Failing()), pytest.fail)
    lines.msg(b"lost")
    lines.flush(30)
    lines.msg(b"kept")
    lines.flush(30)
    assert written == [b"kept\n"]
