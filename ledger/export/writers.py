"""The formats of an export. A writer keeps no more than one group of rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, BinaryIO, Final, Protocol

import msgspec

from ledger.api.tables import csv_cell
from ledger.export.columns import Cell, Column, Kind, Row

GROUP_ROWS: Final = 50_000
"""How many rows one row group of a Parquet file has: what a reader must take into memory at once, too."""


class ParquetMissing(Exception):
    """Parquet needs pyarrow, which is not installed: pip install 'gateway-ledger[parquet]'."""

    def __init__(self) -> None:
        super().__init__(type(self).__doc__)


class NotWritten(Exception):
    """The file could not be written. No OSError, which from within a snapshot would tell of the database."""


class Writer(Protocol):
    """Writes rows into a file, below what names their columns."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write some rows."""

    def finish(self) -> None:
        """Write what is left. The file is complete then, and stays open."""


class CsvWriter:
    """CSV as the HTTP interface has it: UTF-8, a header, instants in UTC with `Z`, nothing for what is missing."""

    def __init__(self, file: BinaryIO, columns: Sequence[Column]) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
        self._csv = csv.writer(self._text)
        self._csv.writerow([column.name for column in columns])

    def write(self, rows: Sequence[Row]) -> None:
        """Write some rows."""
        self._csv.writerows([_text_of(cell) for cell in row] for row in rows)

    def finish(self) -> None:
        """Write what is left."""
        self._text.flush()
        self._text.detach()


def _text_of(cell: Cell) -> Any:
    return msgspec.to_builtins(cell) if isinstance(cell, datetime) else csv_cell(cell)


class ParquetWriter:
    """Parquet: typed columns, instants in microseconds of UTC, compressed by zstd."""

    def __init__(self, file: BinaryIO, columns: Sequence[Column]) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ParquetMissing from error
        kinds: dict[Kind, Any] = {
            "text": pyarrow.string(),
            "integer": pyarrow.int64(),
            "instant": pyarrow.timestamp("us", tz="UTC"),
        }
        self._arrow = pyarrow
        self._schema = pyarrow.schema([(column.name, kinds[column.kind]) for column in columns])
        self._parquet = pyarrow.parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[Row] = []

    def write(self, rows: Sequence[Row]) -> None:
        """Write some rows, once there are enough for a group."""
        self._rows += rows
        while len(self._rows) >= GROUP_ROWS:
            self._write_group(self._rows[:GROUP_ROWS])
            del self._rows[:GROUP_ROWS]

    def finish(self) -> None:
        """Write what is left, and the footer."""
        if self._rows:
            self._write_group(self._rows)
            self._rows = []
        self._parquet.close()

    def _write_group(self, rows: Sequence[Row]) -> None:
        cells = zip(*rows, strict=True)
        arrays = [self._arrow.array(column, field.type) for column, field in zip(cells, self._schema, strict=True)]
        self._parquet.write_batch(self._arrow.record_batch(arrays, schema=self._schema), row_group_size=GROUP_ROWS)


FORMATS: Final[Mapping[str, Callable[[BinaryIO, Sequence[Column]], Writer]]] = {
    "csv": CsvWriter,
    "parquet": ParquetWriter,
}
"""The formats, by the ends of their files' names."""


def writer_of(format: str, file: BinaryIO, columns: Sequence[Column]) -> Writer:
    """Return a writer of a format; raise `ParquetMissing` where it needs what is not installed."""
    return FORMATS[format](file, columns)
