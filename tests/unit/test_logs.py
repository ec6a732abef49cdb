"""Logs: the forms of a line, what libraries log, and what never gets into one."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

import asyncpg
import msgspec
import pytest
import structlog

from ledger import logs


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
