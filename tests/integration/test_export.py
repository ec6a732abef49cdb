"""`gateway-ledger export`: the rows are those of the reads, whole or not at all, as CSV and as Parquet."""

from __future__ import annotations

import asyncio
import csv
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from ledger.cli import main
from ledger.database import read_engine
from ledger.embedded import ConnectionUrls, EmbeddedPostgres
from ledger.export import CONTENTS, Export, Writer, command, contents, exporting, writers
from ledger.export.columns import Row
from ledger.export.command import AWAY, DONE, FAILED, STOPPED, UNKNOWN, run
from ledger.queries import PageRequest, Reading
from ledger.queries.jobs import JobFilter
from ledger.queries.journal import JournalFilter, entries
from ledger.queries.records import records
from ledger.queries.statements import statement
from ledger.queries.usage import UsageFilter, usage
from ledger.store.statements import ANONYMISE
from tests.support.reading import shown

NOVEMBER, DECEMBER = "2026-11", "2026-12"
ALL = PageRequest(500)
NAMES = ("plain", "deep", "over", "mixed")
MONTHS = {
    NOVEMBER: (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)),
    DECEMBER: (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
}


@pytest.fixture
async def reading(filled: ConnectionUrls) -> AsyncIterator[Reading]:
    engine = read_engine(filled.service, 2)
    yield Reading(engine, simulated_clock=True)
    await engine.dispose()


@pytest.fixture
async def superuser(postgres: EmbeddedPostgres, filled: ConnectionUrls) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres.url("postgres", filled.owner.split("/")[3].split("?")[0]))
    await connection.execute("set session_replication_role = replica; set search_path = ledger")
    yield connection
    await connection.close()


async def exported(
    urls: ConnectionUrls, folder: Path, what: str, period: str, *accounts: str, format: str = "csv"
) -> list[dict[str, Any]]:
    """Export, and read what was written; of Parquet as it is typed."""
    file = folder / f"{what}.{format}"
    wanted = Export(what=what, period=period, accounts=accounts)
    assert await run(urls.service, wanted, file, format, simulated_clock=True) == DONE
    if format == "csv":
        with file.open(encoding="utf-8", newline="") as lines:
            return list(csv.DictReader(lines))
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
    return rows


def _cells(row: dict[str, Any]) -> dict[str, str]:
    """A row of JSON as CSV has it."""
    return {name: "" if value is None else str(value) for name, value in msgspec.to_builtins(row).items()}


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- usage, in the columns of FOCUS --------------------------------------------------------------------------------


@pytest.mark.parametrize("period", [NOVEMBER, DECEMBER])
async def test_usage_adds_up_to_what_the_ledger_charged_and_refunded(
    filled: ConnectionUrls, reading: Reading, tmp_path: Path, period: str
) -> None:
    rows = await exported(filled, tmp_path, "usage", period)
    found = Counter[tuple[str, str]]()
    quantities = Counter[tuple[str, str]]()
    for row in rows:
        found[row["BillingAccountId"], row["ChargeCategory"]] += int(row["PricingCurrencyEffectiveCost"])
        quantities[row["BillingAccountId"], row["SkuId"]] += int(row["PricingQuantity"] or 0)
    jobs = Counter[str]()
    for row in rows:
        jobs[row["BillingAccountId"]] += int(row["x_JobsOnce"] or 0)
    for name in NAMES:
        view = await shown(usage(reading, name, UsageFilter(period=period)))
        totals = view["totals"]
        assert (found[name, "Usage"], -found[name, "Credit"]) == (totals["credits"], totals["refunded_credits"]), name
        assert jobs[name] == totals["jobs"]
        for line in view["lines"]:
            assert quantities[name, line["operation"]] == line["quantity"]
    assert {row["BillingAccountId"] for row in rows} <= set(NAMES)
    assert {row["ChargeCategory"] for row in rows} == ({"Usage", "Credit"} if period == NOVEMBER else {"Credit"})


async def test_usage_has_the_columns_of_focus_first_and_ours_after_them(filled: ConnectionUrls, tmp_path: Path) -> None:
    rows = await exported(filled, tmp_path, "usage", NOVEMBER, "plain")
    names = list(rows[0])
    own = [name for name in names if name.startswith("x_")]
    assert names[-len(own) :] == own == ["x_Jobs", "x_JobsOnce"]
    assert names[: -len(own)] == sorted(name for name in names if not name.startswith("x_"))
    assert all(name.isalnum() and name[0].isupper() for name in names[: -len(own)])
    audio = next(row for row in rows if row["SkuId"] == "audio_transcription")
    assert audio == {
        "BillingAccountId": "plain",
        "BillingPeriodEnd": "2026-12-01T00:00:00Z",
        "BillingPeriodStart": "2026-11-01T00:00:00Z",
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": "2026-11-04T00:00:00Z",
        "ChargePeriodStart": "2026-11-03T00:00:00Z",
        "PricingCurrency": "Credits",
        "PricingCurrencyEffectiveCost": "10",
        "PricingQuantity": "10",
        "PricingUnit": "second",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "Gateway",
        "SkuId": "audio_transcription",
        "SubAccountId": "test",
        "SubAccountType": "Environment",
        "x_Jobs": "1",
        "x_JobsOnce": "1",
    }
    refund = next(row for row in rows if row["ChargeCategory"] == "Credit")
    assert (refund["PricingCurrencyEffectiveCost"], refund["PricingQuantity"], refund["x_Jobs"]) == ("-20", "", "")
    assert refund["ChargeFrequency"] == "One-Time"


async def test_a_job_counts_in_the_month_that_it_was_reserved_in(filled: ConnectionUrls, tmp_path: Path) -> None:
    """J14: of `over`, a job of the 30th of November settled on the 1st of December."""
    rows = await exported(filled, tmp_path, "usage", NOVEMBER, "over")
    late = [row for row in rows if row["ChargePeriodStart"] == "2026-12-01T00:00:00Z"]
    assert [(row["SkuId"], row["PricingCurrencyEffectiveCost"]) for row in late] == [("document_analysis", "360")]
    assert late[0]["BillingPeriodEnd"] == "2026-12-01T00:00:00Z"


# -- records, entries, statements ----------------------------------------------------------------------------------


@pytest.mark.parametrize("period", MONTHS)
async def test_records_are_those_of_the_interface_oldest_first(
    filled: ConnectionUrls, reading: Reading, tmp_path: Path, period: str
) -> None:
    start, end = MONTHS[period]
    expected: list[dict[str, str]] = []
    for name in NAMES:
        page = await shown(records(reading, name, JobFilter(start=start, end=end), ALL))
        expected += [{"account_id": name, **_cells(row)} for row in reversed(page["data"])]
    assert await exported(filled, tmp_path, "records", period) == expected
    assert expected


async def test_records_end_after_400_days(
    filled: ConnectionUrls, superuser: asyncpg.Connection, tmp_path: Path
) -> None:
    kept = await exported(filled, tmp_path, "records", NOVEMBER, "plain")
    await superuser.execute("update clock set now = '2026-11-03T10:00Z'::timestamptz + interval '400 days'")
    left = await exported(filled, tmp_path, "records", NOVEMBER, "plain")
    assert 0 < len(left) < len(kept)


@pytest.mark.parametrize("period", MONTHS)
async def test_entries_are_the_journal_a_row_for_each_posting(
    filled: ConnectionUrls, reading: Reading, tmp_path: Path, period: str
) -> None:
    start, end = MONTHS[period]
    expected: list[dict[str, str]] = []
    for name in NAMES:
        page = await shown(entries(reading, name, JournalFilter(start=start, end=end), ALL))
        for entry in page["data"]:
            postings = entry.pop("postings")
            expected += [{"account_id": name, **_cells(entry), **_cells(posting)} for posting in postings]
    assert await exported(filled, tmp_path, "entries", period) == expected
    assert expected


@pytest.mark.parametrize("period", MONTHS)
async def test_statements_are_those_of_the_interface_a_row_for_each_account(
    filled: ConnectionUrls, reading: Reading, tmp_path: Path, period: str
) -> None:
    expected = []
    for name in NAMES:
        row = await shown(statement(reading, name, period))
        del row["charges"]
        overage = row.pop("overage")
        expected.append(
            {"account_id": name, **_cells(row), **_cells({f"overage_{key}": value for key, value in overage.items()})}
        )
    assert await exported(filled, tmp_path, "statements", period) == expected


async def test_an_account_that_was_not_there_yet_has_no_rows(filled: ConnectionUrls, tmp_path: Path) -> None:
    for what in CONTENTS:
        assert await exported(filled, tmp_path, what, "2026-10") == []
        assert await exported(filled, tmp_path, what, "2026-10", "plain") == []
        assert len((tmp_path / f"{what}.csv").read_text().splitlines()) == 1


async def test_accounts_are_chosen_once_each(filled: ConnectionUrls, tmp_path: Path) -> None:
    rows = await exported(filled, tmp_path, "statements", NOVEMBER, "over", "deep", "over")
    assert sorted(row["account_id"] for row in rows) == ["deep", "over"]


async def test_a_deleted_account_stays_in_the_books_under_its_number(
    filled: ConnectionUrls, superuser: asyncpg.Connection, tmp_path: Path
) -> None:
    """R4, R7: what it was charged is still there, and no name of its own."""
    before = {what: await exported(filled, tmp_path, what, NOVEMBER) for what in CONTENTS}
    number = await superuser.fetchval("select account from accounts where account_id = 'over'")
    for sql in ANONYMISE:
        await superuser.execute(sql, [number])
    for table in ("holds", "job_results", "usage_records", "refunds", "jobs"):
        await superuser.execute(f"delete from {table} where account = $1", number)
    after = {what: await exported(filled, tmp_path, what, NOVEMBER) for what in CONTENTS}
    assert [row["PricingCurrencyEffectiveCost"] for row in after["usage"]] == [
        row["PricingCurrencyEffectiveCost"] for row in before["usage"]
    ]
    for row in before["statements"]:
        row["account_id"] = f"#{number}" if row["account_id"] == "over" else row["account_id"]
    assert after["statements"] == before["statements"]
    gone = [row for row in after["entries"] if row["account_id"] == f"#{number}"]
    assert {row["job_id"] for row in gone} == {""}
    assert [row["hash"] for row in after["entries"]] == [row["hash"] for row in before["entries"]]
    assert not any(row["account_id"] == f"#{number}" for row in after["records"])
    text = "".join((tmp_path / f"{what}.csv").read_text() for what in CONTENTS)
    assert "over," not in text
    assert await _run(filled, tmp_path, "usage", NOVEMBER, "over") == UNKNOWN


async def test_a_closed_statement_is_the_one_that_was_kept(
    filled: ConnectionUrls, superuser: asyncpg.Connection, reading: Reading, tmp_path: Path
) -> None:
    kept = await statement(reading, "deep", NOVEMBER)
    assert kept is not None
    closed = msgspec.structs.replace(kept, status="closed", granted=123_456)
    await superuser.execute(
        "insert into statements select account, $1, $2::json, now() from accounts where account_id = 'deep'",
        NOVEMBER,
        msgspec.json.encode(closed).decode(),
    )
    (row,) = await exported(filled, tmp_path, "statements", NOVEMBER, "deep")
    assert (row["status"], row["granted"]) == ("closed", "123456")
    await superuser.execute("update accounts set account_id = null where account_id = 'deep'")
    assert [row["granted"] for row in await exported(filled, tmp_path, "statements", NOVEMBER)].count("123456") == 1


async def test_small_pages_change_nothing(
    filled: ConnectionUrls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {what: await exported(filled, tmp_path, what, NOVEMBER) for what in CONTENTS}
    monkeypatch.setattr(contents, "PAGE_ROWS", 3)
    monkeypatch.setattr(exporting, "PAGE_ACCOUNTS", 1)
    monkeypatch.setattr(writers, "GROUP_ROWS", 2)
    assert {what: await exported(filled, tmp_path, what, NOVEMBER) for what in CONTENTS} == whole
    for what in CONTENTS:
        rows = await exported(filled, tmp_path, what, NOVEMBER, format="parquet")
        assert [_as_csv(row) for row in rows] == whole[what]
        file = pyarrow.parquet.ParquetFile(tmp_path / f"{what}.parquet")
        assert file.metadata.num_row_groups == -(-len(rows) // 2)


# -- formats -------------------------------------------------------------------------------------------------------


def _as_csv(row: dict[str, Any]) -> dict[str, str]:
    return {
        name: "" if value is None else msgspec.to_builtins(value) if isinstance(value, datetime) else str(value)
        for name, value in row.items()
    }


async def test_parquet_has_the_same_rows_with_types(filled: ConnectionUrls, tmp_path: Path) -> None:
    for what in CONTENTS:
        rows = await exported(filled, tmp_path, what, NOVEMBER)
        typed = await exported(filled, tmp_path, what, NOVEMBER, format="parquet")
        assert [_as_csv(row) for row in typed] == rows
        assert rows
    fields = {field.name: field.type for field in pyarrow.parquet.read_schema(tmp_path / "usage.parquet")}
    assert fields["ChargePeriodStart"] == pyarrow.timestamp("us", tz="UTC")
    assert fields["PricingCurrencyEffectiveCost"] == pyarrow.int64()
    assert fields["SkuId"] == pyarrow.string()
    fields = {field.name: field.type for field in pyarrow.parquet.read_schema(tmp_path / "records.parquet")}
    assert (fields["status_code"], fields["closed_at"]) == (pyarrow.int64(), pyarrow.timestamp("us", tz="UTC"))


async def test_an_empty_parquet_file_has_its_columns(filled: ConnectionUrls, tmp_path: Path) -> None:
    assert await exported(filled, tmp_path, "entries", "2026-01", format="parquet") == []
    names = pyarrow.parquet.read_schema(tmp_path / "entries.parquet").names
    assert names == [column.name for column in CONTENTS["entries"].columns]


async def test_a_spreadsheet_runs_nothing(
    filled: ConnectionUrls, superuser: asyncpg.Connection, tmp_path: Path
) -> None:
    odd = ["=1+1", 'say "hi",\nthen; leave', "@x", "é – 語"]
    await superuser.execute(
        "update usage_records r set request_id = o.text from (select account, job, row_number() over () as number"
        " from usage_records where account = (select account from accounts where account_id = 'mixed')) u"
        " join unnest($1::text[]) with ordinality o (text, number) on o.number = u.number"
        " where r.account = u.account and r.job = u.job",
        odd,
    )
    rows = await exported(filled, tmp_path, "records", NOVEMBER, "mixed")
    assert {row["request_id"] for row in rows} >= {"'=1+1", odd[1], "'@x", odd[3]}
    typed = await exported(filled, tmp_path, "records", NOVEMBER, "mixed", format="parquet")
    assert {row["request_id"] for row in typed} >= set(odd)


# -- whole or not at all -------------------------------------------------------------------------------------------


async def _run(urls: ConnectionUrls, folder: Path, what: str, period: str, *accounts: str, format: str = "csv") -> int:
    wanted = Export(what=what, period=period, accounts=accounts)
    return await run(urls.service, wanted, folder / f"out.{format}", format)


async def test_what_cannot_be_exported_leaves_nothing_behind(
    filled: ConnectionUrls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await _run(filled, tmp_path, "usage", NOVEMBER, "plain", "nobody") == UNKNOWN
    assert "there is no account nobody" in capsys.readouterr().err
    for what in ("usage", "records", "entries", "statements"):
        assert await _run(filled, tmp_path, what, "2027-01") == UNKNOWN
        assert "the month has not begun" in capsys.readouterr().err
    assert await _run(filled, tmp_path / "none", "usage", NOVEMBER) == FAILED
    assert "cannot be written: No such file or directory" in capsys.readouterr().err.replace("\n", " ")
    assert _names(tmp_path) == []


@pytest.mark.parametrize("url", ["postgresql://u@127.0.0.1:1/d", "postgresql://u@/d?host=/nonexistent"])
async def test_a_database_that_is_away(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(url, Export(what="usage", period=NOVEMBER), tmp_path / "x.csv", "csv") == AWAY
    assert "the database cannot be read" in capsys.readouterr().err
    assert _names(tmp_path) == []


async def test_a_database_that_goes_away_meanwhile(
    filled: ConnectionUrls, superuser: asyncpg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()
    write = writers.CsvWriter.write

    def write_and_tell(writer: writers.CsvWriter, rows: Sequence[Row]) -> None:
        write(writer, rows)
        begun.set()

    monkeypatch.setattr(writers.CsvWriter, "write", write_and_tell)
    monkeypatch.setattr(contents, "PAGE_ROWS", 1)
    (tmp_path / "out.csv").write_text("of yesterday")
    running = asyncio.create_task(_run(filled, tmp_path, "entries", NOVEMBER))
    await begun.wait()
    await superuser.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    assert await running == AWAY
    assert _names(tmp_path) == ["out.csv"]
    assert (tmp_path / "out.csv").read_text() == "of yesterday"


async def test_a_disk_that_is_full_is_not_the_databases_fault(
    filled: ConnectionUrls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: object, __: Sequence[Row]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writers.CsvWriter, "write", full)
    assert await _run(filled, tmp_path, "usage", NOVEMBER) == FAILED
    assert "cannot be written: No space left on device" in capsys.readouterr().err.replace("\n", " ")
    assert _names(tmp_path) == []


async def test_a_sigterm_leaves_nothing_behind(
    filled: ConnectionUrls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopped(_: Reading, __: Export, writer: Writer, ___: object) -> int:
        writer.write([])
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)
        return 0

    monkeypatch.setattr(command, "export", stopped)
    (tmp_path / "out.csv").write_text("of yesterday")
    assert await _run(filled, tmp_path, "usage", NOVEMBER) == STOPPED
    assert _names(tmp_path) == ["out.csv"]
    assert (tmp_path / "out.csv").read_text() == "of yesterday"


async def test_parquet_without_pyarrow_says_what_to_install(
    filled: ConnectionUrls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert await _run(filled, tmp_path, "usage", NOVEMBER, format="parquet") == FAILED
    assert "pip install 'gateway-ledger[parquet]'" in capsys.readouterr().err.replace("\n", " ")
    assert _names(tmp_path) == []


async def test_all_is_of_one_moment(
    filled: ConnectionUrls, superuser: asyncpg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await exported(filled, tmp_path, "entries", NOVEMBER)
    rows = CONTENTS["entries"].read
    deleted: list[str] = []

    async def read(snapshot: Any, account: Any, period: str) -> AsyncIterator[Any]:
        async for part in rows(snapshot, account, period):
            if not deleted:
                deleted.append(await superuser.execute("delete from entries"))
            yield part

    monkeypatch.setitem(CONTENTS, "entries", msgspec.structs.replace(CONTENTS["entries"], read=read))
    assert await exported(filled, tmp_path, "entries", NOVEMBER) == whole
    assert deleted


# -- the command line ----------------------------------------------------------------------------------------------


def test_every_option_is_also_a_variable(
    filled: ConnectionUrls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = {"LEDGER_SIMULATED_CLOCK": "true", "LEDGER_READ_DATABASE_URL": filled.service}
    answer = CliRunner().invoke(main, ["export", "usage", "--period", NOVEMBER], env=base)
    assert answer.exit_code == DONE, answer.output
    assert "rows to usage-2026-11.csv" in answer.output
    chosen = {
        "LEDGER_PERIOD": NOVEMBER,
        "LEDGER_ACCOUNT": "plain deep",
        "LEDGER_FORMAT": "parquet",
        "LEDGER_OUTPUT": "chosen.parquet",
    }
    answer = CliRunner().invoke(main, ["export", "statements"], env={**base, **chosen})
    assert answer.output == "Wrote 2 rows to chosen.parquet\n"
    arguments = ["export", "statements", "--account", "over", "--period", NOVEMBER]
    assert CliRunner().invoke(main, arguments, env=base).output == "Wrote 1 rows to statements-2026-11.csv\n"
    answer = CliRunner().invoke(main, ["export", "entries", "--all", "--period", NOVEMBER, "--format", "csv"], env=base)
    assert answer.exit_code == DONE
    assert _names(tmp_path) == ["chosen.parquet", "entries-2026-11.csv", "statements-2026-11.csv", "usage-2026-11.csv"]
