"""`gateway-ledger events replay` and `events deliveries`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

import asyncpg
from rich.console import Console
from rich.table import Table

from ledger.database import NotMigratedError, check_migrated, is_away, operator_pool
from ledger.events.replays import Delivery, NotReplayed, deliveries, replay, shown

COLUMNS: Final = ("created", "endpoint", "id", "type", "status", "attempts", "last answer", "finished", "next attempt")

WIDTH: Final = 240
"""Characters: enough for any line, so that no id is cut off; a narrower terminal wraps them."""


class NotDone(Exception):
    """The command could not be carried out, and changed nothing; the message says why."""


async def replay_event(url: str, event_id: str, endpoint: str | None) -> None:
    """Deliver an event once more and say under which id; raise `NotDone`."""
    async with _connected(url) as pool:
        made = await replay(pool, event_id, endpoint)
    for each in made:
        Console().print(f"{each.endpoint}: {each.id}", highlight=False, soft_wrap=True, markup=False)


async def show_deliveries(url: str, endpoint: str | None, event_id: str | None, most: int) -> None:
    """Print the newest deliveries of the record; raise `NotDone`."""
    async with _connected(url) as pool:
        found = await deliveries(pool, endpoint=endpoint, event_id=event_id, most=most)
    table = Table(box=None, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, no_wrap=True)
    for each in found:
        table.add_row(
            shown(each.created_at),
            each.endpoint,
            each.id,
            each.type,
            each.status,
            str(each.attempts),
            _answer(each),
            shown(each.finished_at),
            shown(each.next_attempt_at),
        )
    Console(highlight=False, width=max(Console().width, WIDTH)).print(table)


def _answer(delivery: Delivery) -> str:
    return delivery.error or ("" if delivery.status_code is None else str(delivery.status_code))


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Pool]:
    try:
        await check_migrated(url)
        async with operator_pool(url, 1) as pool:
            yield pool
    except (NotMigratedError, NotReplayed) as error:
        raise NotDone(str(error)) from error
    except Exception as error:
        if not is_away(error):
            raise
        raise NotDone(f"the database cannot be used: {str(error) or type(error).__name__}") from error
