"""What an export is made of: typed columns, and rows that are read account by account."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Final, Literal

import msgspec

from ledger.queries.snapshot import Snapshot

Kind = Literal["text", "integer", "instant"]
Cell = str | int | datetime | None
Row = tuple[Cell, ...]

PAGE_ROWS: Final = 2_000
"""How many rows of one table are read at once."""


class Column(msgspec.Struct, frozen=True):
    """A column: its name, and of what kind its values are. Any of them may be missing."""

    name: str
    kind: Kind = "text"


class AccountNamed(msgspec.Struct, frozen=True):
    """An account as an export names it: a deleted one, whose name is gone, by `#` and our number for it (R7)."""

    number: int
    account_id: str | None
    now: datetime
    """The instant that the export is as of (T1)."""

    @property
    def shown(self) -> str:
        """What stands in the export. No account can have a name that begins so."""
        return f"#{self.number}" if self.account_id is None else self.account_id


class Part(msgspec.Struct, frozen=True):
    """Some rows of an account, and which share of the account is read once they are written."""

    rows: list[Row]
    done: float = 1.0


class Content(msgspec.Struct, frozen=True):
    """What can be exported: its columns, and how its rows are read of an account and a month."""

    columns: tuple[Column, ...]
    read: Callable[[Snapshot, AccountNamed, str], AsyncIterator[Part]]
