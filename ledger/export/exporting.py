"""An export: the accounts that are asked for, one after the other, from one snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec
from sqlalchemy import func, select

from ledger import schema
from ledger.core.periods import period_end, period_of
from ledger.export.columns import AccountNamed, Column, Row
from ledger.export.contents import CONTENTS
from ledger.export.writers import NotWritten, Writer
from ledger.queries import NotYet, Reading
from ledger.queries.snapshot import AnySelect, Snapshot

PAGE_ACCOUNTS: Final = 500

Progress = Callable[[float, int, int], None]
"""Told of: accounts done, the share of one that is begun included; accounts in all; rows written."""


class AccountUnknown(LookupError):
    """No account has this name."""


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be exported: of which month, and of which accounts; without any of them, of all."""

    what: str
    period: str
    accounts: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns that it has."""
        return CONTENTS[self.what].columns


async def export(reading: Reading, wanted: Export, writer: Writer, progress: Progress) -> int:
    """Write an export, and return of how many rows.

    All of it is read from one snapshot, page by page: memory does not grow with it, and traffic goes on.

    Raises:
        AccountUnknown: there is no account of a name that was given.
        NotWritten: the file cannot be written, or no further.
        NotYet: the month has not begun.
        DatabaseAway: the database is not there, or went away.
    """
    read = CONTENTS[wanted.what].read
    written = 0
    async with reading.snapshot() as snapshot:
        if wanted.period > period_of(await snapshot.now()):
            raise NotYet("period: the month has not begun")
        accounts = _there(snapshot, wanted)
        total = await _count(snapshot, accounts, wanted)
        done = 0
        async for account in _each(snapshot, accounts):
            async for part in read(snapshot, account, wanted.period):
                _write(writer, part.rows)
                written += len(part.rows)
                progress(done + part.done, total, written)
            done += 1
            progress(done, total, written)
    writer.finish()
    return written


def _write(writer: Writer, rows: Sequence[Row]) -> None:
    try:
        writer.write(rows)
    except OSError as error:
        raise NotWritten(error.strerror or str(error)) from error


def _there(snapshot: Snapshot, wanted: Export) -> AnySelect:
    """Return the statement that reads the accounts that are asked for and were there in the month."""
    accounts = snapshot.accounts().where(schema.accounts.c.created_at < period_end(wanted.period))
    return accounts.where(schema.accounts.c.account_id.in_(wanted.accounts)) if wanted.accounts else accounts


async def _count(snapshot: Snapshot, accounts: AnySelect, wanted: Export) -> int:
    """Return how many accounts there are; raise `AccountUnknown` for a name that there never was."""
    for account_id in wanted.accounts:
        if await snapshot.account(account_id) is None:
            raise AccountUnknown(f"there is no account {account_id}")
    row = await snapshot.first(select(func.count()).select_from(accounts.subquery()))
    assert row is not None
    return int(row[0])


async def _each(snapshot: Snapshot, accounts: AnySelect) -> AsyncIterator[AccountNamed]:
    """Give the accounts in the order of their numbers."""
    column = schema.accounts.c.account
    last = 0
    while rows := await snapshot.rows(accounts.where(column > last).order_by(column).limit(PAGE_ACCOUNTS)):
        for row in rows:
            yield AccountNamed(row.account, row.account_id, row.now)
        last = rows[-1].account
