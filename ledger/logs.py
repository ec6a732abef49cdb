"""Logs: a line each on standard error, JSON or for a terminal's reader; what libraries log goes the same way.

A line of JSON costs a few microseconds, so that there can be one for each request. A line that cannot be written is
lost, and nothing else with it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from datetime import UTC, datetime
from typing import Any, Final

import asyncpg
import msgspec
import structlog
from structlog.types import EventDict, Processor, WrappedLogger

from ledger.log_lines import AtOnce, Lines

_QUIET: Final = ("alembic", "apscheduler", "uvicorn", "litestar")
"""Libraries of whose doings nobody needs to hear unless they go wrong."""


def configure_logs(format: str = "auto", level: str = "info", *, lines: Lines | None = None) -> None:
    """Sets up `structlog` and the standard library's logging, once, before anything is logged.

    Args:
        format: `json`, `console`, or `auto`: for a reader where standard error is a terminal, else JSON.
        level: the least level that is shown.
        lines: where lines go; without it, to standard error at once.
    """
    lines = lines or AtOnce(sys.stderr.buffer)
    console = format == "console" or (format == "auto" and sys.stderr.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        _Clock(),
        _exception_text,
    ]
    render = _console_renderer() if console else _json_line
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    handler = _Handler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render, _decoded],
        )
    )
    logging.basicConfig(handlers=[handler], level=number, force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


class _Clock:
    """Puts the instant into an event, in ISO 8601. What changes once a second is written out once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = ""

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        now = time.time()
        second = int(now)
        if second != self._second:
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._second = second
        event["timestamp"] = f"{self._text}.{int((now - second) * 1_000_000):06d}Z"
        return event


class _Handler(logging.Handler):
    """Passes on what libraries log."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.msg(self.format(record).encode())
        except Exception:  # noqa: BLE001 - the standard library's way: whoever logs does not fail
            self.handleError(record)


_encode: Final = msgspec.json.Encoder(enc_hook=repr).encode


def _json_line(_: WrappedLogger, __: str, event: EventDict) -> bytes:
    line = {"timestamp": event.pop("timestamp"), "level": event.pop("level"), "event": event.pop("event"), **event}
    try:
        return _encode(line)
    except (TypeError, ValueError):  # Text that UTF-8 cannot hold, or keys that are no text.
        return json.dumps(line, default=repr, skipkeys=True, ensure_ascii=False).encode(errors="replace")


def _console_renderer() -> Processor:
    render = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )

    def line(logger: WrappedLogger, name: str, event: EventDict) -> bytes:
        shown = {key: _one_line(value) for key, value in event.items() if key != "exception"}
        if "exception" in event:
            shown["exception"] = event["exception"]
        return render(logger, name, shown).encode(errors="backslashreplace")

    return line


def _one_line(value: Any) -> Any:
    """Return text that stays on its line and sends a terminal no commands, whoever it came from."""
    if isinstance(value, str) and not value.isprintable():
        return value.encode("unicode_escape").decode()
    return value


def _decoded(_: WrappedLogger, __: str, line: Any) -> str:
    assert isinstance(line, bytes)
    return line.decode(errors="backslashreplace")


def _exception_text(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Put the text of an exception in its place, without the rows that a database's complaint quotes."""
    given = event.pop("exc_info", None)
    if given:
        error = (
            given if isinstance(given, BaseException) else (given if isinstance(given, tuple) else sys.exc_info())[1]
        )
        if isinstance(error, BaseException):
            _forget_details(error)
            event["exception"] = "".join(traceback.format_exception(error)).rstrip()
    return event


def _forget_details(error: BaseException) -> None:
    """Take out of a database's errors what they quote of rows, which can be anything that a caller sent."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        if isinstance(following, asyncpg.PostgresError):
            following.detail = None
            if type(following) is asyncpg.DataError:  # asyncpg's own: it quotes the row.
                following.args = ("a value could not be encoded",)
        following = following.__cause__ or following.__context__
