"""Heads that were kept elsewhere: a journal that was cut off or rewritten is found though all beside it was forged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import msgspec
import pytest
from click.testing import CliRunner

from ledger import schema
from ledger.audit.command import AWAY, CLEAN, UNKNOWN, WRONG, run
from ledger.cli import main
from ledger.core import books
from ledger.embedded import ConnectionUrls, EmbeddedPostgres
from ledger.engine import Engine
from pricing.catalog import load
from tests.support.history import Customer

TABLES = [table.name for table in schema.metadata.sorted_tables]


@pytest.fixture
async def tamperer(postgres: EmbeddedPostgres, filled: ConnectionUrls) -> AsyncIterator[asyncpg.Connection]:
    """The superuser, for whom no trigger and no foreign key counts."""
    connection = await asyncpg.connect(postgres.url("postgres", filled.owner.split("/")[3].split("?")[0]))
    await connection.execute("set session_replication_role = replica; set search_path = ledger")
    yield connection
    await connection.close()


async def _keep(tamperer: asyncpg.Connection) -> None:
    """Keep a copy of all tables."""
    await tamperer.execute("create schema kept")
    for table in TABLES:
        await tamperer.execute(f"create table kept.{table} as table ledger.{table}")


async def _put_back(tamperer: asyncpg.Connection) -> None:
    """Make all tables what they were: what an attacker with time and the superuser's rights could do."""
    for table in TABLES:
        await tamperer.execute(
            f"delete from ledger.{table}; insert into ledger.{table} overriding system value table kept.{table}"
        )


async def _work_on(url: str) -> None:
    """Two more jobs for `plain`, and one for `deep`."""
    async with asyncpg.create_pool(url, min_size=1, max_size=2) as pool:
        engine = Engine(pool, load(), simulated_clock=True)
        await engine.start()
        try:
            for name, jobs in (("plain", 2), ("deep", 1)):
                customer = Customer(engine, name)
                for number in range(jobs):
                    await customer.reserves(f"more-{number}", ("agent_turn", 1))
                    await customer.settles(f"more-{number}", ("agent_turn", 1))
        finally:
            await engine.stop()


async def _sequence(tamperer: asyncpg.Connection, account_id: str) -> int:
    number: int = await tamperer.fetchval(
        "select sequence from balances join accounts using (account) where account_id = $1", account_id
    )
    return number


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _lines(file: Path) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]


async def test_heads_are_the_last_entry_of_every_account(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, tmp_path: Path
) -> None:
    file, one = tmp_path / "heads.jsonl", tmp_path / "one.jsonl"
    assert await run(filled.service, None, heads_file=file) == CLEAN
    rows = await tamperer.fetch("select account, sequence, encode(head, 'hex') as hash from balances order by 1")
    assert _lines(file) == [dict(row) for row in rows]
    assert len(rows) == 4
    assert await run(filled.service, "deep", heads_file=one) == CLEAN
    assert len(_lines(one)) == 1
    assert _lines(one)[0] in _lines(file)
    assert _names(tmp_path) == ["heads.jsonl", "one.jsonl"]


async def test_an_account_without_entries_has_no_head(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, tmp_path: Path
) -> None:
    number = await tamperer.fetchval(
        "insert into accounts (account_id, created_at) values ('new', now()) returning account"
    )
    head = bytes.fromhex(books.GENESIS_HASH)
    await tamperer.execute("insert into balances (account, head, at) values ($1, $2, now())", number, head)
    assert await run(filled.service, None, heads_file=tmp_path / "heads") == CLEAN
    assert len(_lines(tmp_path / "heads")) == 4


async def test_a_tail_that_was_cut_off_with_all_beside_it_is_found_and_named(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "heads.jsonl"
    await _keep(tamperer)
    before = await _sequence(tamperer, "plain")
    await _work_on(filled.service)
    after = await _sequence(tamperer, "plain")
    assert after == before + 4
    assert await run(filled.service, None, heads_file=file) == CLEAN
    assert await run(filled.service, None, against_file=file) == CLEAN
    await _put_back(tamperer)
    capsys.readouterr()
    assert await run(filled.service, None) == CLEAN, "nothing in the database tells of it"
    assert await run(filled.service, None, against_file=file) == WRONG
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "2 discrepancies" in shown
    assert await run(filled.service, "over", against_file=file) == CLEAN
    capsys.readouterr()
    assert await run(filled.service, "plain", against_file=file) == WRONG
    shown = capsys.readouterr().out
    assert "1 discrepancies" in shown
    assert f"entry {before + 1}" in shown
    assert "A5" in shown


async def test_what_is_missing_is_named_exactly(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, tmp_path: Path
) -> None:
    file = tmp_path / "heads.jsonl"
    await _keep(tamperer)
    before, deep = await _sequence(tamperer, "plain"), await _sequence(tamperer, "deep")
    await _work_on(filled.service)
    assert await run(filled.service, None, heads_file=file) == CLEAN
    await _put_back(tamperer)
    found = await _against(filled, file)
    what = "entries {} to {} are missing: {} was the head that was kept, the journal was cut off"
    assert found == {
        ("plain", before + 1, what.format(before + 1, before + 4, before + 4)),
        ("deep", deep + 1, what.format(deep + 1, deep + 2, deep + 2)),
    }


async def _against(filled: ConnectionUrls, file: Path) -> set[tuple[str | int, int | None, str]]:
    from ledger.audit import audit
    from ledger.audit.heads import heads_of

    connection = await asyncpg.connect(filled.service)
    with heads_of(file) as heads:
        report = await audit(connection, against=heads)
    await connection.close()
    assert report.ok == (not report.discrepancies)
    return {(each.account_id, each.sequence, each.what) for each in report.discrepancies if each.rule == "A5"}


async def test_an_account_that_vanished_is_named_by_its_number(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, tmp_path: Path
) -> None:
    file = tmp_path / "heads.jsonl"
    assert await run(filled.service, None, heads_file=file) == CLEAN
    number = await tamperer.fetchval("select account from accounts where account_id = 'over'")
    sequence = await _sequence(tamperer, "over")
    for table in schema.metadata.sorted_tables:
        if "account" in table.c:
            await tamperer.execute(f"delete from {table.name} where account = $1", number)
    assert await run(filled.service, None) == CLEAN
    what = f"entries 1 to {sequence} are missing: {sequence} was the head that was kept, the journal was cut off"
    assert await _against(filled, file) == {(number, 1, what)}


async def test_a_history_that_was_written_anew_is_found(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, tmp_path: Path
) -> None:
    """Of `deep`, an early instant is changed, and every hash after it made to fit."""
    file = tmp_path / "heads.jsonl"
    assert await run(filled.service, None, heads_file=file) == CLEAN
    account = await tamperer.fetchval("select account from accounts where account_id = 'deep'")
    refund = await tamperer.fetchval(
        "select min(sequence) from entries where account = $1 and kind = 'refund'", account
    )
    for table, column, key in (("entries", "at", "sequence"), ("refunds", "created_at", "entry")):
        await tamperer.execute(
            f"update {table} set {column} = {column} + interval '1 microsecond' where account = $1 and {key} = $2",
            account,
            refund,
        )
    later = await tamperer.fetch(
        "select sequence from entries where account = $1 and sequence > $2 and at < (select at from entries"
        " where account = $1 and sequence = $2)",
        account,
        refund,
    )
    await tamperer.execute(
        "update entries set at = at + interval '1 microsecond' where account = $1 and sequence = any($2)",
        account,
        [row["sequence"] for row in later],
    )
    await _forge(tamperer, account)
    last = await _sequence(tamperer, "deep")
    found = await _against(filled, file)
    assert ("deep", last, f"entry {last} is another than the head that was kept") in found
    assert {account_id for account_id, _, _ in found} == {"deep"}


async def _forge(tamperer: asyncpg.Connection, account: int) -> None:
    """Make the chain of an account fit what is there now."""
    head = books.GENESIS_HASH
    for row in await tamperer.fetch("select * from entries where account = $1 order by sequence", account):
        postings = await tamperer.fetch(
            "select debit, credit, credits, operation, quantity from postings"
            " where account = $1 and sequence = $2 order by position",
            account,
            row["sequence"],
        )
        own = tuple(books.Posting(*posting) for posting in postings)
        head = books.new_entry(account, row["sequence"], row["kind"], row["job"], row["at"], own, head).hash
        await tamperer.execute(
            "update entries set hash = decode($3, 'hex') where account = $1 and sequence = $2",
            account,
            row["sequence"],
            head,
        )
    await tamperer.execute("update balances set head = decode($2, 'hex') where account = $1", account, head)


async def test_an_entry_taken_from_the_middle_is_told_of_as_such(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, tmp_path: Path
) -> None:
    file = tmp_path / "heads.jsonl"
    assert await run(filled.service, "plain", heads_file=file) == CLEAN
    last = await _sequence(tamperer, "plain")
    await _work_on(filled.service)
    for table in ("entries", "postings"):
        await tamperer.execute(
            f"delete from {table} where sequence = $1 and account = (select account from accounts"
            " where account_id = 'plain')",
            last,
        )
    found = await _against(filled, file)
    assert ("plain", last, f"entry {last} is missing, which was the head that was kept") in found


async def test_a_deletion_changes_no_head(filled: ConnectionUrls, tamperer: asyncpg.Connection, tmp_path: Path) -> None:
    """R7: entries know only numbers, so heads that were kept before are still good."""
    file = tmp_path / "heads.jsonl"
    assert await run(filled.service, None, heads_file=file) == CLEAN
    await tamperer.execute("update accounts set account_id = null where account_id = 'mixed'")
    assert not any("head" in what for _, _, what in await _against(filled, file))


async def test_heads_of_books_that_do_not_add_up_are_not_kept(
    filled: ConnectionUrls, tamperer: asyncpg.Connection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "heads.jsonl"
    file.write_text("of yesterday")
    await tamperer.execute("update balances set held = held + 1")
    assert await run(filled.service, None, heads_file=file) == WRONG
    assert "was not written" in capsys.readouterr().err.replace("\n", " ")
    assert _names(tmp_path) == ["heads.jsonl"]
    assert file.read_text() == "of yesterday"


async def test_one_file_can_be_checked_and_renewed_at_once(filled: ConnectionUrls, tmp_path: Path) -> None:
    file = tmp_path / "heads.jsonl"
    assert await run(filled.service, None, heads_file=file) == CLEAN
    first = file.read_bytes()
    await _work_on(filled.service)
    assert await run(filled.service, None, heads_file=file, against_file=file) == CLEAN
    assert file.read_bytes() != first
    assert len(_lines(file)) == 4


GOOD = b'{"account":1,"sequence":1,"hash":"' + b"a" * 64 + b'"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no heads in it"),
        (b"\n", "line 1"),
        (GOOD + b"{}\n", "line 2"),
        (GOOD + GOOD[:40], "line 2"),
        (GOOD.replace(b"1,", b"0,", 1), "line 1"),
        (GOOD.replace(b"aaaa", b"AAAA"), "line 1"),
        (b"x" * 100_000, "line 1"),
        (b"\xff\xfe", "line 1"),
    ],
)
async def test_a_file_that_holds_no_heads_is_refused(
    filled: ConnectionUrls, tmp_path: Path, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "heads.jsonl"
    file.write_bytes(content)
    assert await run(filled.service, None, against_file=file) == UNKNOWN
    assert message in capsys.readouterr().err


async def test_files_that_are_not_there_and_a_database_that_is_away(
    filled: ConnectionUrls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(filled.service, None, against_file=tmp_path / "none") == UNKNOWN
    assert "cannot be read" in capsys.readouterr().err
    assert await run(filled.service, None, heads_file=tmp_path / "none" / "heads") == UNKNOWN
    assert "cannot be written" in capsys.readouterr().err
    assert await run("postgresql://u@127.0.0.1:1/d", None, heads_file=tmp_path / "heads") == AWAY
    assert _names(tmp_path) == []


def test_the_command_line_has_both(filled: ConnectionUrls, tmp_path: Path) -> None:
    file = str(tmp_path / "heads.jsonl")
    base = {"LEDGER_DATABASE_URL": filled.service}
    assert CliRunner().invoke(main, ["audit", "--heads", file], env=base).exit_code == CLEAN
    answer = CliRunner().invoke(main, ["audit"], env={**base, "LEDGER_AGAINST": file, "LEDGER_ACCOUNT": "plain"})
    assert answer.exit_code == CLEAN
    assert "1 accounts" in answer.output
