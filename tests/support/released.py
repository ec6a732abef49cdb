"""The statements of the versions before 0005, which took an array for each column, made of those there are now.

They run on every version of the tables, in the middle of an upgrade too. They are today's but for how rows are given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from ledger.database import BatchConnection

ROWS: Final = re.compile(r"unnest\(\$(\d+)::ledger\.(\w+)\[\]\)(?P<named> with ordinality)?(?: w\b)?")
TYPES: Final[dict[str, str]] = import_module("migrations.versions.0005_rows").TYPES


class ReleasedConnection(BatchConnection):
    """A connection for batches that writes as released versions did."""

    async def _execute(self, query: str, args: Sequence[Any], *rest: Any, **options: Any) -> Any:
        """Run a statement with arguments: asyncpg does so here, whichever method was called."""
        columns: list[Sequence[Any]] = []

        def arrays(found: re.Match[str]) -> str:
            names, types = zip(*(column.split() for column in TYPES[found[2]].split(",")), strict=True)
            first = len(columns) + 1
            rows = args[int(found[1]) - 1]
            columns.extend(zip(*rows, strict=True) if rows else [()] * len(names))
            unnested = ", ".join(f"${number}::{type}[]" for number, type in enumerate(types, first))
            return f"unnest({unnested})" + (found["named"] or f" w ({', '.join(names)})")

        if ROWS.search(query):
            query, args = ROWS.sub(arrays, query), columns
        return await super()._execute(query, args, *rest, **options)  # type: ignore[misc] # The stubs lack it.
