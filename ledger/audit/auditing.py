"""The audit of one account, and of all: the journal entry by entry, then what is kept beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

import asyncpg

from ledger.audit import comparing
from ledger.audit.books import Books
from ledger.audit.chain import Chain
from ledger.audit.findings import AuditReport, Findings
from ledger.audit.heads import Head, compare_heads
from ledger.audit.reading import Connection, Reader, Row

TURN_ENTRIES: Final = 500
"""After how many entries others get their turn: some milliseconds' work."""

Progress = Callable[[int], None]
NoteHead = Callable[[Head], None]


class AccountUnknownError(LookupError):
    """No account has this name."""


async def audit(
    database: Connection | asyncpg.Pool,
    account_id: str | None = None,
    *,
    progress: Progress | None = None,
    note_head: NoteHead | None = None,
    against: Iterable[Head] = (),
) -> AuditReport:
    """Check every invariant of the books, of one account or of all (contract A1 to A7).

    Reads one snapshot, takes no lock and writes nothing, so that traffic goes on. The journal is streamed:
    memory is bounded by what one account has open, its grants, its months and its days of usage.

    Args:
        database: a pool, or a connection that is in no transaction.
        account_id: the account to check; None checks all, those that were deleted too.
        progress: called now and then with how many postings were read since the last call.
        note_head: called with the last entry of each account.
        against: entries that earlier audits saw last, in any order; each must still be there. It is read as it goes.

    Raises:
        AccountUnknownError: there is no account with that name.
        HeadsError: what `against` raises of itself.
    """
    async with _snapshot(database) as connection:
        return await _audit(connection, account_id, progress or _nothing, note_head or _nothing, against)


@asynccontextmanager
async def _snapshot(database: Connection | asyncpg.Pool) -> AsyncIterator[Connection]:
    """Give a connection in a transaction that sees one state of the database and can change nothing."""
    if isinstance(database, asyncpg.Pool):
        async with database.acquire() as connection, _snapshot(connection) as snapshot:
            yield snapshot
    else:
        async with database.transaction(isolation="repeatable_read", readonly=True):
            yield database


def _nothing(_: object) -> None:
    """Do nothing with what is told."""


async def _audit(
    connection: Connection,
    account_id: str | None,
    progress: Progress,
    note_head: NoteHead,
    against: Iterable[Head],
) -> AuditReport:
    only = None if account_id is None else await _number_of(connection, account_id)
    reader = await Reader.open(connection, only)
    findings = Findings()
    while (number := await reader.next_account()) is not None:
        rows = await reader.accounts.up_to(number)
        sequence, head = await _audit_account(reader, number, rows[0] if rows else None, findings, progress)
        if head is not None and sequence > 0:
            note_head(Head(number, sequence, head))
    await compare_heads(connection, findings, against, only)
    return AuditReport(
        ok=not findings.discrepancies,
        checked=reader.checked(),
        discrepancies=findings.discrepancies,
        unlisted=findings.unlisted,
    )


async def _number_of(connection: Connection, account_id: str) -> int:
    number: int | None = await connection.fetchval(
        "select account from ledger.accounts where account_id = $1", account_id
    )
    if number is None:
        raise AccountUnknownError(f"there is no account {account_id}")
    return number


async def _audit_account(
    reader: Reader, number: int, row: Row | None, findings: Findings, progress: Progress
) -> tuple[int, str | None]:
    """Audit one account, and return the number and the hash of its last entry."""
    name: str | None = None if row is None else row["account_id"]
    findings.begin(number if name is None else name)
    chain = Chain(findings)
    books = Books(findings, deleted=name is None)
    while entries := await reader.entries.some(number):
        last = entries[-1][1]
        postings = await reader.postings.up_to(number, last)
        books.expect(
            await reader.grants.up_to(number, last),
            await reader.jobs.up_to(number, last),
            await reader.refunds.up_to(number, last),
        )
        for count, event in enumerate(chain.events(entries, postings)):
            books.enter(event)
            if count % TURN_ENTRIES == 0:
                await asyncio.sleep(0)
        books.note_rows_without_entries()
        progress(len(postings))
    leftover = await reader.postings.up_to(number)
    chain.leftover(leftover)
    progress(len(leftover))
    books.expect(await reader.grants.up_to(number), await reader.jobs.up_to(number), await reader.refunds.up_to(number))
    books.note_rows_without_entries()
    books.jobs.end()
    _compare_account(row, chain, books, findings)
    comparing.compare_grants(findings, books)
    comparing.compare_holds(findings, books, await reader.holds.up_to(number))
    comparing.compare_periods(findings, books, await reader.periods.up_to(number))
    comparing.compare_usage(findings, books, await reader.usage.up_to(number))
    return chain.head


def _compare_account(row: Row | None, chain: Chain, books: Books, findings: Findings) -> None:
    """Compare the end of the chain, the balances and the welcome with the account's two rows."""
    if row is None or row["sequence"] is None:
        findings.note("A5", "the account has no balances, so the end of its journal is not known", None, None)
        return
    chain.end(row["sequence"], row["head"].hex())
    comparing.compare_balances(findings, books, row)
    found: datetime | None = row["welcome_at"]
    if found != books.figures.welcome_at and not books.deleted:
        findings.note("A6", "accounts.welcome_at", books.figures.welcome_at, found)
