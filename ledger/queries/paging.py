"""Pages of lists: keyset cursors that survive equal timestamps and whatever is written in between."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import Meta

from ledger.queries.snapshot import AnyRow, AnySelect, Snapshot

LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 500

Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A number in a cursor: one that the database can hold."""

_SEAL_BYTES: Final = 6

K = TypeVar("K", bound=tuple[Any, ...])
T = TypeVar("T")


class InvalidCursor(ValueError):
    """The cursor is not one that this list gave for this account."""


class PageRequest(msgspec.Struct, frozen=True):
    """Which page is asked for: so many rows, after those that the cursor stands behind."""

    limit: int = LIMIT_DEFAULT
    cursor: str | None = None


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list; `next_cursor` is None on the last."""

    data: list[T]
    next_cursor: str | None


class Cursors(Generic[K]):
    """The cursors of one list: base64url of a compact JSON array of list, account and key, behind a short digest.

    The digest tells a garbled cursor from a good one; it keeps no secret and needs none.
    """

    def __init__(self, name: str, key: type[K]) -> None:
        self._name = name
        self._decode = msgspec.json.Decoder(tuple[str, int, key]).decode  # type: ignore[valid-type]

    def write(self, account: int, key: K) -> str:
        """Return the cursor that stands behind a row's key."""
        text = msgspec.json.encode((self._name, account, key))
        return base64.urlsafe_b64encode(_seal(text) + text).decode().rstrip("=")

    def read(self, account: int, cursor: str | None) -> K | None:
        """Return the key that a cursor stands behind, None without a cursor; or raise `InvalidCursor`."""
        if cursor is None:
            return None
        try:
            sealed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            name, owner, key = self._decode(sealed[_SEAL_BYTES:])
        except (ValueError, msgspec.MsgspecError) as error:
            raise InvalidCursor from error
        if sealed[:_SEAL_BYTES] != _seal(sealed[_SEAL_BYTES:]) or (name, owner) != (self._name, account):
            raise InvalidCursor
        return key

    async def page(
        self,
        snapshot: Snapshot,
        account: int,
        statement: AnySelect,
        limit: int,
        key_of: Callable[[AnyRow], K],
    ) -> tuple[Sequence[AnyRow], str | None]:
        """Return at most `limit` rows of an ordered statement, and the cursor of the next page if there is one."""
        rows = await snapshot.rows(statement.limit(limit + 1))
        if len(rows) <= limit:
            return rows, None
        return rows[:limit], self.write(account, key_of(rows[limit - 1]))


def _seal(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()[:_SEAL_BYTES]
