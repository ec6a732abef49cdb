"""Tables: the rows of a read as CSV, streamed page by page in constant memory."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from litestar import Request, Response
from litestar.response import Stream

from ledger.queries import Page, PageRequest

CSV: Final = "text/csv"
JSON: Final = "application/json"
ROWS_PER_PAGE: Final = 1_000

Row = Mapping[str, Any]
Rows = Callable[[Any], Iterable[Row]]
T = TypeVar("T")

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What spreadsheets take for the beginning of a formula. Nothing that we write ourselves begins so."""


def wants_csv(request: Request[Any, Any, Any]) -> bool:
    """Return whether the caller would rather have CSV than JSON."""
    return request.accept.best_match([JSON, CSV], default=JSON) == CSV


def row_of(view: Any) -> Row:
    """Return a row of a flat view: its fields, with instants and dates written as in JSON."""
    row: Row = msgspec.to_builtins(view)
    return row


def csv_response(columns: Sequence[str], rows: AsyncIterator[Iterable[Row]]) -> Response[Any]:
    """Return an answer that streams rows, chunk by chunk, below a header."""
    return Stream(_text(columns, rows), media_type=CSV)


async def _text(columns: Sequence[str], chunks: AsyncIterator[Iterable[Row]]) -> AsyncIterator[bytes]:
    yield _lines(columns, [dict(zip(columns, columns, strict=True))])
    async for rows in chunks:
        yield _lines(columns, rows)


def _lines(columns: Sequence[str], rows: Iterable[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([csv_cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue().encode()


def csv_cell(value: Any) -> Any:
    """Return a cell. Text that a spreadsheet would run as a formula is disarmed by an apostrophe before it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


async def one_chunk(rows: Iterable[Row]) -> AsyncIterator[Iterable[Row]]:
    """Return rows that are all there, as a stream."""
    yield rows


async def pages(
    fetch: Callable[[PageRequest], Awaitable[Page[T]]], first: Page[T], rows_of: Callable[[T], Iterable[Row]]
) -> AsyncIterator[Iterable[Row]]:
    """Return the rows of a list from its first page on, fetching one page at a time; nothing is held in between."""
    page = first
    while True:
        yield [row for item in page.data for row in rows_of(item)]
        if page.next_cursor is None:
            return
        page = await fetch(PageRequest(ROWS_PER_PAGE, page.next_cursor))
