"""The audit: an honest history is clean, and whatever is tampered with is found and named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import msgspec
import pytest

from ledger.audit import AccountUnknownError, AuditReport, Discrepancy, audit, findings, reading
from ledger.audit.command import AWAY, CLEAN, UNKNOWN, WRONG, run
from ledger.audit.moves import MOVES
from ledger.core import books
from ledger.embedded import ConnectionUrls, EmbeddedPostgres


@pytest.fixture
async def tamperer(postgres: EmbeddedPostgres, filled: ConnectionUrls) -> AsyncIterator[asyncpg.Connection]:
    """The superuser, for whom no trigger and no foreign key counts."""
    connection = await asyncpg.connect(postgres.url("postgres", filled.owner.split("/")[3].split("?")[0]))
    await connection.execute("set session_replication_role = replica; set search_path = ledger")
    yield connection
    await connection.close()


async def audited(urls: ConnectionUrls, account_id: str | None = None) -> AuditReport:
    connection = await asyncpg.connect(urls.service)
    try:
        return await audit(connection, account_id)
    finally:
        await connection.close()


# -- honest --------------------------------------------------------------------------------------------------


async def test_an_honest_history_is_clean(filled: ConnectionUrls) -> None:
    seen: list[int] = []
    async with asyncpg.create_pool(filled.service, min_size=1, max_size=1) as pool:
        report = await audit(pool, progress=seen.append)
        one = await audit(pool, "plain")
    assert report.discrepancies == []
    assert report.ok
    assert report.checked["accounts"] == 4
    assert report.checked["postings"] == sum(seen) > 70
    assert min(report.checked.values()) > 0
    assert one.ok
    assert one.checked["accounts"] == 1
    assert 0 < one.checked["entries"] < report.checked["entries"]


async def test_the_history_has_every_move_of_the_contract(filled: ConnectionUrls) -> None:
    connection = await asyncpg.connect(filled.service)
    rows = await connection.fetch(
        "select distinct kind, split_part(debit, ':', 1), split_part(credit, ':', 1)"
        " from ledger.entries join ledger.postings using (account, sequence)"
    )
    await connection.close()
    assert {tuple(row) for row in rows} == set(MOVES)


async def test_an_empty_database_is_clean(database: ConnectionUrls) -> None:
    report = await audited(database)
    assert report.ok
    assert set(report.checked.values()) == {0}
    assert msgspec.json.encode(report).endswith(b'"discrepancies":[]}')


async def test_an_account_that_does_not_exist(filled: ConnectionUrls) -> None:
    with pytest.raises(AccountUnknownError, match="nobody"):
        await audited(filled, "nobody")


async def test_a_deleted_account_is_still_audited(filled: ConnectionUrls, tamperer: asyncpg.Connection) -> None:
    """R7: names, jobs, grants and holds are gone; the journal, the months and the usage stay."""
    account = await tamperer.fetchval("select account from accounts where account_id = 'plain'")
    for table in ("jobs", "grants", "refunds"):
        await tamperer.execute(f"delete from {table} where account = $1", account)
    await tamperer.execute("update accounts set account_id = null, welcome_at = null where account = $1", account)
    holds = [
        d
        for d in (await audited(filled)).discrepancies
        if not (d.rule == "A3" and d.what == "holds: the row of an open job is missing")
    ]
    assert holds == []
    await tamperer.execute(
        "update periods set charged = charged + 1 where account = $1 and period = '2026-11'", account
    )
    await tamperer.execute(
        "update usage_totals set jobs = jobs + 1 where account = $1 and operation = 'agent_turn' and jobs > 0",
        account,
    )
    await tamperer.execute("update postings set credits = credits + 1 where account = $1 and sequence = 2", account)
    found = {(d.rule, d.what.split(" of ")[0], d.account_id) for d in (await audited(filled)).discrepancies}
    assert ("A2", "periods.charged", account) in found
    assert ("A4", "usage_totals.jobs", account) in found
    assert any(rule == "A5" and where == account for rule, _, where in found)


# -- tampered ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tamper:
    """What is done to the database, and how the audit must name it.

    The statement returns where it struck: an entry, a job, a grant or a month, as `field` says.
    """

    sql: str
    rule: str
    what: str
    field: str = "sequence"
    account: str = "plain"


THE_ACCOUNT = "account = (select account from accounts where account_id = '{account}')"
FIRST_SETTLEMENT = f"(select min(sequence) from entries where {THE_ACCOUNT} and kind = 'settle')"
JOB = f"{THE_ACCOUNT} and job_id = '{{name}}' returning job_id"
NOVEMBER = f"{THE_ACCOUNT} and period = '2026-11'"

JOURNAL = {
    "changed amount": Tamper(
        f"update postings set credits = credits + 1 where {THE_ACCOUNT} and sequence = 5 returning sequence",
        "A5",
        "the entry is not what was written here",
    ),
    "swapped debit": Tamper(
        f"update postings set debit = 'grant:3' where {THE_ACCOUNT} and sequence = {FIRST_SETTLEMENT} - 1"
        " and position = 1 returning sequence",
        "A5",
        "the entry is not what was written here",
    ),
    "debit and credit exchanged": Tamper(
        f"update postings set debit = credit, credit = debit where {THE_ACCOUNT} and sequence = 2 returning sequence",
        "A7",
        "no grant moves credits so",
    ),
    "changed operation": Tamper(
        "update postings set operation = 'video_analysis', credit = 'consumed:video_analysis'"
        f" where {THE_ACCOUNT} and sequence = {FIRST_SETTLEMENT} and position = 1 returning sequence",
        "A5",
        "the entry is not what was written here",
    ),
    "changed quantity": Tamper(
        f"update postings set quantity = 7 where {THE_ACCOUNT} and sequence = {FIRST_SETTLEMENT} and position = 1"
        " returning sequence",
        "A5",
        "the entry is not what was written here",
    ),
    "changed instant": Tamper(
        f"update entries set at = at - interval '1 microsecond' where {THE_ACCOUNT} and sequence = 3"
        " returning sequence",
        "A5",
        "the entry is not what was written here",
    ),
    "changed kind": Tamper(
        f"update entries set kind = 'expire' where {THE_ACCOUNT} and kind = 'release' and sequence < 20"
        " returning sequence",
        "A5",
        "the entry is not what was written here",
    ),
    "changed hash": Tamper(
        f"update entries set hash = sha256(hash) where {THE_ACCOUNT} and sequence = 3 returning sequence",
        "A5",
        "the entry is not what was written here",
    ),
    "deleted entry": Tamper(
        f"with d as (delete from postings where {THE_ACCOUNT} and sequence = 6)"
        f"delete from entries where {THE_ACCOUNT} and sequence = 6 returning sequence",
        "A5",
        "entry 6 is missing",
    ),
    "deleted entry, its postings left": Tamper(
        f"delete from entries where {THE_ACCOUNT} and sequence = 6 returning sequence",
        "A1",
        "postings without an entry",
    ),
    "deleted first entries": Tamper(
        f"with d as (delete from postings where {THE_ACCOUNT} and sequence < 3),"
        f" e as (delete from entries where {THE_ACCOUNT} and sequence < 3 returning sequence)"
        " select min(sequence) from e",
        "A5",
        "entries 1 to 2 are missing",
    ),
    "deleted posting": Tamper(
        f"delete from postings where {THE_ACCOUNT} and sequence = {FIRST_SETTLEMENT} and position = 2"
        " returning sequence",
        "A1",
        "the number of the entry's postings",
    ),
    "added posting": Tamper(
        "insert into postings select account, sequence, 9, debit, credit, credits, operation, quantity from postings"
        f" where {THE_ACCOUNT} and sequence = 2 returning sequence",
        "A1",
        "the number of the entry's postings",
    ),
    "truncated tail": Tamper(
        f"with t as (select max(sequence) as last from entries where {THE_ACCOUNT}),"
        f" p as (delete from postings using t where {THE_ACCOUNT} and sequence >= t.last - 1),"
        f" e as (delete from entries using t where {THE_ACCOUNT} and sequence >= t.last - 1 returning sequence)"
        " select min(sequence) from e",
        "A5",
        "the journal ends before its last entry",
    ),
    "rolled back sequence": Tamper(
        f"update balances set sequence = sequence - 1 where {THE_ACCOUNT} returning sequence + 1",
        "A5",
        "the journal goes on past its end",
    ),
    "changed head": Tamper(
        f"update balances set head = sha256(head) where {THE_ACCOUNT} returning sequence",
        "A5",
        "balances.head is not the hash of the last entry",
    ),
    "no balances": Tamper(
        f"delete from balances where {THE_ACCOUNT} returning null",
        "A5",
        "the account has no balances",
    ),
}

BALANCES = {
    f"balances.{column}": Tamper(
        f"update balances set {column} = {column} + 1 where {THE_ACCOUNT} returning null",
        "A2",
        f"balances.{column}",
    )
    for column in ("available", "held", "live_requests", "live_calls", "test_requests", "test_calls")
}

GRANTS = {
    f"grants.{column}": Tamper(
        f"update grants set {column} = {change} where {THE_ACCOUNT} and grant_id = 'inv-1' returning grant_id",
        "A2",
        f"grants.{column}",
        "grant_id",
    )
    for column, change in (
        ("remaining", "remaining - 1"),
        ("held", "held + 1"),
        ("granted", "granted + 1"),
        ("kind", "'adjustment'"),
        ("created_at", "created_at + interval '1 s'"),
    )
} | {
    "grants.remaining of all": Tamper(
        f"update grants set remaining = 0, held = 0, live = false where {THE_ACCOUNT} and grant_id = 'inv-1'"
        " returning grant_id",
        "A2",
        "grants.remaining",
        "grant_id",
    ),
    "grants.expires_at": Tamper(
        f"update grants set expires_at = expires_at + interval '1 month' where {THE_ACCOUNT} and grant_id = 'plan-11'"
        " returning grant_id",
        "A2",
        "grants.expires_at",
        "grant_id",
    ),
    "deleted grant": Tamper(
        f"delete from grants where {THE_ACCOUNT} and grant_id = 'inv-1' returning number",
        "A2",
        "grants: its row is missing",
        "grant_id",
    ),
    "invented grant": Tamper(
        "insert into grants select account, 7, 'forged', kind, granted, remaining, held, live, expires_at, reference,"
        f" created_at, request from grants where {THE_ACCOUNT} and grant_id = 'inv-1' returning grant_id",
        "A2",
        "grants: no entry puts it",
        "grant_id",
    ),
    "forgotten welcome": Tamper(
        f"update accounts set welcome_at = null where {THE_ACCOUNT} returning null",
        "A6",
        "accounts.welcome_at",
    ),
}

PERIODS = {
    f"periods.{column}": Tamper(
        f"update periods set {column} = {column} + 1 where {NOVEMBER} returning period",
        "A2",
        f"periods.{column}",
        "period",
    )
    for column in (
        "live_used",
        "live_held",
        "test_used",
        "test_held",
        "overage_used",
        "overage_held",
        "granted",
        "adjusted",
        "charged",
        "refunded",
        "refunded_to_balance",
        "expired",
    )
} | {
    "deleted period": Tamper(
        f"delete from periods where {NOVEMBER} returning period", "A2", "periods.charged", "period"
    ),
}

USAGE = {
    f"usage_totals.{column}": Tamper(
        f"update usage_totals set {column} = {column} + 1 where {NOVEMBER} and operation = 'image_analysis'"
        " returning period",
        "A4",
        f"usage_totals.{column} of image_analysis, live, 2026-11-03",
        "period",
    )
    for column in ("quantity", "credits", "refunded", "jobs", "first_jobs")
} | {
    "deleted usage": Tamper(
        f"delete from usage_totals where {NOVEMBER} and environment = 'test' returning period",
        "A4",
        "usage_totals.credits of audio_transcription, test, 2026-11-03",
        "period",
    ),
    "usage of the other environment": Tamper(
        f"update usage_totals set environment = 'live' where {NOVEMBER} and environment = 'test' returning period",
        "A4",
        "usage_totals.credits of audio_transcription, live, 2026-11-03",
        "period",
    ),
}

JOBS = {
    f"jobs.{column} of {name}": Tamper(
        f"update jobs set {column} = {change} where {JOB.replace('{name}', name)}",
        "A3",
        f"jobs.{column}",
        "job_id",
    )
    for column, name, change in (
        ("charged", "turn", "charged + 1"),
        ("charged", "audio", "charged - 1"),
        ("returned", "turn", "returned + 1"),
        ("over_hold", "turn", "over_hold + 1"),
        ("refunded", "turn", "refunded - 1"),
        ("refunded", "turn", "0"),
        ("refunded", "audio", "1"),
        ("charged_overage", "turn", "1"),
        ("charged_overdraft", "turn", "1"),
        ("closed_at", "failed", "closed_at + interval '1 s'"),
        ("closed_entry", "turn", "closed_entry + 1"),
        ("status", "failed", "'expired'"),
        ("held_credits", "open", "held_credits + 1"),
        ("held_overage", "open", "1"),
        ("period", "open", "'2026-11'"),
        ("sources", "open", "'[]'"),
        ("created_at", "open", "created_at - interval '1 month'"),
        ("expires_at", "lost", "expires_at + interval '1 s'"),
        ("overdraft", "turn", "1"),
    )
} | {
    "jobs.segments": Tamper(
        f"""update jobs set segments = '[["audio_transcription",1,10]]' where {JOB.replace("{name}", "audio")}""",
        "A3",
        "jobs.segments, by source",
        "job_id",
    ),
    "jobs.segments of nothing": Tamper(
        f"""update jobs set segments = '[]' where {JOB.replace("{name}", "audio")}""",
        "A3",
        "jobs.segments, by operation",
        "job_id",
    ),
    "a job marked as closed": Tamper(
        f"update jobs set status = 'released', closed_at = now() where {JOB.replace('{name}', 'open')}",
        "A3",
        "jobs.status",
        "job_id",
    ),
    "deleted job": Tamper(
        f"delete from jobs where {THE_ACCOUNT} and job_id = 'turn' returning number",
        "A3",
        "jobs: its row is missing",
        "job_id",
    ),
    "invented job": Tamper(
        f"update jobs set number = 2 where {JOB.replace('{name}', 'turn')}",
        "A3",
        "jobs: no entry reserves it",
        "job_id",
    ),
    "deleted hold": Tamper(
        f"delete from holds using jobs j where holds.{THE_ACCOUNT} and j.account = holds.account"
        " and j.number = holds.job and j.job_id = 'open' returning j.job_id",
        "A3",
        "holds: the row of an open job is missing",
        "job_id",
    ),
    "invented hold": Tamper(
        f"insert into holds select account, now(), 3, 'live', 'call' from accounts where {THE_ACCOUNT} returning job",
        "A3",
        "holds: a job that is not open",
        "job_id",
    ),
    "changed hold": Tamper(
        "update holds set slot = 'request' from jobs j"
        f" where holds.{THE_ACCOUNT} and holds.slot = 'call' and j.account = holds.account and j.number = holds.job"
        " returning j.job_id",
        "A3",
        "holds.slot",
        "job_id",
    ),
    "deleted refund": Tamper(
        f"delete from refunds where {THE_ACCOUNT} and refund_id = 'rf-2' returning entry",
        "A3",
        "refunds: its row is missing",
    ),
    "changed refund": Tamper(
        f"update refunds set credits = credits + 1 where {THE_ACCOUNT} and refund_id = 'rf-2' returning entry",
        "A3",
        "refunds.credits",
    ),
    "changed refund so far": Tamper(
        f"update refunds set credits_refunded = 1 where {THE_ACCOUNT} and refund_id = 'rf-2' returning entry",
        "A3",
        "refunds.credits_refunded",
    ),
    "overdraft": Tamper(
        f"update balances set available = 0, overdraft = overdraft + 1 where {THE_ACCOUNT} returning null",
        "A2",
        "balances.overdraft",
        account="deep",
    ),
}

TAMPERS = {**JOURNAL, **BALANCES, **GRANTS, **PERIODS, **USAGE, **JOBS}


@pytest.mark.parametrize("tamper", TAMPERS.values(), ids=TAMPERS.keys())
async def test_what_is_tampered_with_is_found_and_named(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, tamper: Tamper
) -> None:
    struck = await tamperer.fetch(tamper.sql.replace("{account}", tamper.account))
    assert len(struck) == 1, "the test tampers with exactly one place"
    report = await audited(filled)
    assert not report.ok
    assert {d.account_id for d in report.discrepancies} == {tamper.account}, "nobody else is accused"
    named = [d for d in report.discrepancies if d.rule == tamper.rule and d.what.startswith(tamper.what)]
    assert named, report.discrepancies
    assert struck[0][0] in [getattr(d, tamper.field) for d in named], named
    assert (await audited(filled, tamper.account)).discrepancies == report.discrepancies
    assert (await audited(filled, "over")).ok


# -- tampered with skill -------------------------------------------------------------------------------------


async def _entries(tamperer: asyncpg.Connection, account: int) -> list[books.Entry]:
    """The journal of an account as it stands, with the hashes that it should have."""
    entries: list[books.Entry] = []
    head = books.GENESIS_HASH
    for row in await tamperer.fetch("select * from entries where account = $1 order by sequence", account):
        postings = await tamperer.fetch(
            "select debit, credit, credits, operation, quantity from postings"
            " where account = $1 and sequence = $2 order by position",
            account,
            row["sequence"],
        )
        own = tuple(books.Posting(*posting) for posting in postings)
        entry = books.new_entry(account, row["sequence"], row["kind"], row["job"], row["at"], own, head)
        entries.append(entry)
        head = entry.hash
    return entries


async def _forge_hashes(tamperer: asyncpg.Connection, account: int) -> None:
    """Make the chain of an account fit what is there now, to its very end."""
    entries = await _entries(tamperer, account)
    await tamperer.executemany(
        "update entries set hash = decode($3, 'hex') where account = $1 and sequence = $2",
        [(account, entry.sequence, entry.hash) for entry in entries],
    )
    await tamperer.execute(
        "update balances set sequence = $2, head = decode($3, 'hex') where account = $1",
        account,
        entries[-1].sequence,
        entries[-1].hash,
    )


async def _append(tamperer: asyncpg.Connection, account: int, kind: str, *postings: tuple[str, str, int]) -> int:
    """Forge one more entry, with hash and head; return its number. `{n}` in a posting is that number."""
    sequence: int = await tamperer.fetchval(
        "insert into entries select account, sequence + 1, $2, null, now(), $3, hash from entries"
        " where account = $1 order by sequence desc limit 1 returning sequence",
        account,
        kind,
        len(postings),
    )
    rows = [
        (account, sequence, i, debit.replace("{n}", str(sequence)), credit.replace("{n}", str(sequence)), credits)
        for i, (debit, credit, credits) in enumerate(postings, start=1)
    ]
    await tamperer.executemany("insert into postings values ($1, $2, $3, $4, $5, $6)", rows)
    await _forge_hashes(tamperer, account)
    return sequence


@pytest.fixture
async def plain(tamperer: asyncpg.Connection) -> int:
    number: int = await tamperer.fetchval("select account from accounts where account_id = 'plain'")
    return number


def _named(report: AuditReport, rule: str, what: str) -> list[Discrepancy]:
    return [d for d in report.discrepancies if d.rule == rule and d.what.startswith(what)]


async def test_swapped_entries_are_found_and_the_first_is_named(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, plain: int
) -> None:
    for table in ("entries", "postings"):
        for one, other in ((5, 500), (6, 5), (500, 6)):
            await tamperer.execute(
                f"update {table} set sequence = $3 where account = $1 and sequence = $2", plain, one, other
            )
    changed = _named(await audited(filled), "A5", "the entry is not what was written here")
    assert [d.sequence for d in changed] == [5, 6, 7]


async def test_an_entry_taken_out_and_the_gap_closed_is_found_and_named(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, plain: int
) -> None:
    for table in ("entries", "postings"):
        await tamperer.execute(f"delete from {table} where account = $1 and sequence = 4", plain)
        await tamperer.execute(
            f"update {table} set sequence = sequence + 1000 where account = $1 and sequence > 4", plain
        )
        await tamperer.execute(
            f"update {table} set sequence = sequence - 1001 where account = $1 and sequence > 1000", plain
        )
    report = await audited(filled)
    assert report.discrepancies[0].rule == "A5"
    assert report.discrepancies[0].sequence == 4
    assert _named(report, "A5", "the journal ends before its last entry")


async def test_a_changed_amount_under_a_forged_chain_is_found_in_the_figures(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, plain: int
) -> None:
    await tamperer.execute("update postings set credits = credits + 1000 where account = $1 and sequence = 3", plain)
    await _forge_hashes(tamperer, plain)
    report = await audited(filled)
    assert not _named(report, "A5", "")
    (granted,) = _named(report, "A2", "grants.granted")
    assert (granted.grant_id, granted.sequence, granted.expected, granted.found) == ("inv-1", 3, 6_000, 5_000)
    assert _named(report, "A2", "balances.available")
    assert _named(report, "A2", "periods.granted")


async def test_a_truncated_tail_under_a_forged_head_is_found_in_the_figures(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, plain: int
) -> None:
    last = await tamperer.fetchval("select sequence from balances where account = $1", plain)
    for table in ("entries", "postings"):
        await tamperer.execute(f"delete from {table} where account = $1 and sequence = $2", plain, last)
    await _forge_hashes(tamperer, plain)
    report = await audited(filled)
    assert not _named(report, "A5", "")
    (job,) = _named(report, "A3", "jobs: no entry reserves it")
    assert job.job_id == "open-call"


async def test_a_second_welcome_is_found(filled: ConnectionUrls, tamperer: asyncpg.Connection, plain: int) -> None:
    sequence = await _append(tamperer, plain, "grant", ("issued:welcome", "grant:{n}", 3_000))
    (found,) = _named(await audited(filled), "A6", "a second welcome")
    assert found.sequence == sequence


async def test_available_credits_while_there_is_an_overdraft_are_found(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, plain: int
) -> None:
    sequence = await _append(
        tamperer, plain, "settle", ("overdraft", "consumed:agent_turn", 11), ("grant:3", "consumed:agent_turn", 11)
    )
    await tamperer.execute(
        "update postings set operation = 'agent_turn' where account = $1 and sequence = $2", plain, sequence
    )
    await _forge_hashes(tamperer, plain)
    report = await audited(filled)
    (found,) = _named(report, "A6", "available credits while there is an overdraft")
    assert found.sequence == sequence
    assert _named(report, "A3", "a settle of a job that is not open")


async def test_a_grant_below_zero_is_found(filled: ConnectionUrls, tamperer: asyncpg.Connection, plain: int) -> None:
    sequence = await _append(tamperer, plain, "expire_grant", ("grant:3", "expired", 1_000_000))
    report = await audited(filled)
    (found,) = _named(report, "A6", "a grant below zero")
    assert (found.sequence, found.grant_id) == (sequence, "inv-1")
    assert _named(report, "A2", "grants.expires_at")


async def test_an_unbalanced_posting_is_found(filled: ConnectionUrls, tamperer: asyncpg.Connection, plain: int) -> None:
    await tamperer.execute("alter table postings drop constraint postings_credits_check")
    await tamperer.execute("update postings set credits = -5 where account = $1 and sequence = 3", plain)
    (found,) = _named(await audited(filled), "A1", "a posting moves a positive amount")
    assert found.sequence == 3


async def test_what_cannot_be_read_is_named_and_not_a_crash(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, plain: int
) -> None:
    for column, value in (
        ("debit", "grant:one"),
        ("debit", "nobody"),
        ("credit", "hold:99999999999999999999999"),
        ("operation", "something"),
    ):
        async with tamperer.transaction():
            await tamperer.execute(
                f"update postings set {column} = $2 where account = $1 and sequence between 6 and 9", plain, value
            )
        report = await audited(filled)
        assert _named(report, "A7", "no "), (column, value)


async def test_the_list_is_bounded_and_the_rest_counted(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, plain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "LISTED_MAX", 7)
    monkeypatch.setattr(findings, "LISTED_OF_ACCOUNT_MAX", 5)
    await tamperer.execute("update entries set hash = sha256(hash)")
    report = await audited(filled)
    assert len(report.discrepancies) == 7
    assert report.discrepancies[4].account_id == "plain"
    assert report.discrepancies[5].account_id == "deep"
    total = report.checked["entries"] + report.checked["accounts"]
    assert len(report.discrepancies) + report.unlisted == total


# -- while traffic runs, and from the command line -----------------------------------------------------------


async def test_it_sees_one_state_and_disturbs_nobody(filled: ConnectionUrls, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed while the audit reads is neither seen in part nor made to wait."""
    monkeypatch.setattr(reading, "CHUNK_ROWS", 1)
    async with asyncpg.create_pool(filled.service, min_size=2, max_size=2) as pool:
        changes: list[asyncio.Task[str]] = []
        done: list[bool] = []

        def change(_: int) -> None:
            if not changes:
                statement = "update ledger.balances set held = held + 1"
                changes.append(asyncio.ensure_future(pool.execute(statement, timeout=5)))
            done.append(changes[0].done())

        assert (await audit(pool, progress=change)).ok
        assert done[-1], "the change was made while the audit was reading"
        await changes[0]
        assert len(_named(await audit(pool), "A2", "balances.held")) == 4


async def test_the_command_says_what_it_found(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, plain: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(filled.service, None) == CLEAN
    assert "Everything adds up." in capsys.readouterr().out
    assert await run(filled.service.replace("postgresql://", "postgresql+asyncpg://"), "plain") == CLEAN
    await tamperer.execute("update balances set held = held + 1 where account = $1", plain)
    capsys.readouterr()
    assert await run(filled.service, None) == WRONG
    shown = capsys.readouterr().out
    assert "A2" in shown
    assert "balances.held" in shown
    assert "1 discrepancies." in shown
    assert await run(filled.service, "deep") == CLEAN
    assert await run(filled.service, "nobody") == UNKNOWN


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/none", "postgresql://[", "postgresql://a@h:x/y"])
async def test_the_command_says_that_the_database_is_away(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(url, None) == AWAY
    assert "the database cannot be read" in capsys.readouterr().err
