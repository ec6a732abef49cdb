"""The reads over HTTP: what each answers, CSV beside JSON, and what bad parameters get (contract E1, R3, R6, J14)."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ledger.tokens import Role
from tests.support.client import Client, connect
from tests.support.service import Service

A = "/v1/accounts/a"
READS = (
    "",
    "/balance",
    "/grants",
    "/billing-cycles",
    "/jobs",
    "/usage",
    "/usage/records",
    "/entries",
    "/statements/2026-11",
)
CSV = {"Accept": "text/csv"}
ODD = 'say "hi",\nthen; leave'


@pytest.fixture
async def client(server: Service) -> AsyncIterator[Client]:
    async with connect(server) as opened:
        await opened.open_account("a", 10_000)
        record = {"request_id": ODD, "status_code": 200, "latency_ms": 812, "key_prefix": "ak_live_3f"}
        turn, speech = (("agent_turn", 1), ("image_analysis", 2)), ("audio_transcription", 61.5)
        for answer in (
            await opened.reserve("a", "turn", *turn, metadata={"loan_id": "L-9"}),
            await opened.settle("a", "turn", *turn, record=record, result={"ok": True}),
            await opened.reserve("a", "audio", speech, environment="test"),
            await opened.settle("a", "audio", speech, record={"request_id": "=1+1"}),
            await opened.refund("a", "turn", "rf-1", 60),
            await opened.reserve("a", "open", ("tts_synthesis", 100)),
        ):
            assert answer.status in (200, 201), answer
        yield opened


async def rows_of(client: Client, path: str) -> list[dict[str, str]]:
    answer = await client.call("GET", path, headers=CSV)
    assert answer.status == 200, answer
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(answer.body.decode(), newline="")))


def as_cells(row: dict[str, Any]) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in row.items()}


async def test_every_read_is_for_readers_of_accounts_that_exist(client: Client, server: Service) -> None:
    period = (await client.balance("a"))["period"]
    async with connect(server, Role.READER) as reader:
        for path in (*READS, f"/statements/{period}"):
            assert (await reader.get(A + path)).status == 200, path
            missing = await reader.get("/v1/accounts/nobody" + path)
            assert (missing.status, missing.code) == (404, "resource_not_found"), path
            nameless = await reader.get("/v1/accounts/-x" + path)
            assert (nameless.status, nameless.code) == (400, "validation_error"), path
            unknown = await reader.get(A + path + "?colour=red")
            assert (unknown.status, unknown.code) == (400, "validation_error"), path
            assert unknown.body["error"]["message"].startswith("colour: "), path
            nobody = await reader.call("GET", A + path, headers={"Authorization": "Bearer no"})
            assert nobody.status == 401, path


BAD = [
    # the read, and the parameter that the message names; %00 and friends reach no database
    ("/jobs?limit=0", "limit"),
    ("/jobs?limit=501", "limit"),
    ("/jobs?limit=-1", "limit"),
    ("/jobs?limit=ten", "limit"),
    ("/jobs?limit=", "limit"),
    ("/jobs?limit=99999999999999999999", "limit"),
    ("/jobs?limit=1&limit=2", "limit"),
    ("/jobs?cursor=zzz", "cursor"),
    ("/jobs?cursor=", "cursor"),
    ("/jobs?cursor=%00", "cursor"),
    ("/jobs?cursor=%F0%9F%98%80", "cursor"),
    ("/grants?cursor=W10", "cursor"),
    ("/billing-cycles?cursor=W10", "cursor"),
    ("/entries?cursor=W10", "cursor"),
    ("/usage/records?cursor=W10", "cursor"),
    ("/jobs?environment=prod", "environment"),
    ("/jobs?status=failed", "status"),
    ("/jobs?operation=Agent%20Turn", "operation"),
    ("/jobs?operation=%00", "operation"),
    ("/jobs?from=2026-11-01", "from"),
    ("/jobs?from=2026-11-01T00:00:00", "from"),
    ("/jobs?to=yesterday", "to"),
    ("/jobs?from=2026-11-02T00:00:00Z&to=2026-11-01T00:00:00Z", "from"),
    ("/usage/records?from=2026-11-02T00:00:00Z&to=2026-11-01T00:00:00Z", "from"),
    ("/usage/records?to=0001-01-01T00:00:00%2B05:00", "to"),
    ("/entries?canonical=yes", "canonical"),
    ("/entries?from=%00", "from"),
    ("/balance?at=2026-11-31T00:00:00Z", "at"),
    ("/balance?at=9999-12-31T23:59:59Z", "at"),
    ("/balance?at=", "at"),
    ("/usage?period=2026-13", "period"),
    ("/usage?period=9999-12", "period"),
    ("/usage?period=2026-11%0A", "period"),
    ("/usage?period=2026-11&from=2026-11-01&to=2026-11-02", "period"),
    ("/usage?from=2026-11-01", "to"),
    ("/usage?to=2026-11-01", "from"),
    ("/usage?from=2026-11-02&to=2026-11-01", "from"),
    ("/usage?from=2026-11-31&to=2026-12-01", "from"),
    ("/usage?from=20261101&to=2026-12-01", "from"),
    ("/usage?from=2026-11-01T00:00:00Z&to=2026-12-01", "from"),
    ("/usage?group_by=colour", "group_by"),
    ("/usage?group_by=", "group_by"),
    ("/usage?group_by=day,,operation", "group_by"),
    ("/usage?environment=", "environment"),
    ("/statements/2026-1", "period"),
    ("/statements/9999-12", "period"),
    ("/statements/9000-01", "period"),
    ("/statements/now", "period"),
]


async def test_bad_parameters_are_named(client: Client) -> None:
    for path, field in BAD:
        for headers in ({}, CSV):
            answer = await client.call("GET", A + path, headers=headers)
            assert (answer.status, answer.code) == (400, "validation_error"), path
            assert answer.body["error"]["message"].startswith(f"{field}: "), (path, answer.body)


async def test_wide_ranges_are_no_error(client: Client) -> None:
    for path in (
        "/usage?from=0001-01-01&to=9999-12-31&group_by=operation,environment,day",
        "/usage?from=2026-11-01&to=2026-11-01",
        "/usage?period=0001-01",
        "/usage?period=9999-11",
        "/statements/0001-01",
        "/jobs?from=0001-01-01T00:00:00Z&to=9999-12-31T23:59:59Z",
        "/usage/records?from=0001-01-01T00:00:00Z&to=9999-12-31T23:59:59Z",
        "/entries?from=0001-01-01T00:00:00Z&to=9999-12-31T23:59:59Z",
        "/balance?at=0001-01-01T00:00:00Z",
    ):
        answer = await client.get(A + path)
        assert answer.status == 200, (path, answer.body)


async def test_usage_as_csv_is_the_lines_as_json(client: Client) -> None:
    for groups in ("operation", "environment", "day", "day,environment", "operation,environment,day"):
        path = f"{A}/usage?group_by={groups}"
        lines = (await client.get(path)).body["lines"]
        assert len(lines) >= 1
        rows = await rows_of(client, path)
        assert rows == [as_cells(line) for line in lines], groups
        assert {name for row in rows for name in row} >= {*groups.split(","), "credits", "refunded_credits", "jobs"}
    totals = (await client.get(f"{A}/usage")).body["totals"]
    assert totals == {"credits": 183, "refunded_credits": 60, "net_credits": 123, "jobs": 2}


async def test_records_as_csv_are_the_records_as_json_quoted_and_disarmed(client: Client) -> None:
    data = (await client.get(f"{A}/usage/records")).body["data"]
    assert [record["job_id"] for record in data] == ["audio", "turn"]
    assert data[1]["request_id"] == ODD
    expected = [as_cells(record) for record in data]
    expected[0]["request_id"] = "'=1+1"
    assert await rows_of(client, f"{A}/usage/records") == expected
    assert await rows_of(client, f"{A}/usage/records?environment=live") == expected[1:]
    assert await rows_of(client, f"{A}/usage/records?status=released") == []


async def test_entries_as_csv_are_one_row_for_each_posting(client: Client) -> None:
    for query, more in (("", set()), ("?canonical=true", {"canonical"})):
        data = (await client.get(f"{A}/entries{query}")).body["data"]
        expected = []
        for entry in data:
            postings = entry.pop("postings")
            expected += [as_cells({**entry, **posting}) for posting in postings]
        assert await rows_of(client, f"{A}/entries{query}") == expected
        assert set(expected[0]) & {"canonical"} == more


async def test_a_statement_as_csv_is_its_charges_with_the_figures_of_the_month(client: Client) -> None:
    period = (await client.balance("a"))["period"]
    shown = (await client.get(f"{A}/statements/{period}")).body
    assert (shown["charged"], shown["closing_balance"]) == (183, 10_000 - 183 + 60)
    charges, overage = shown.pop("charges"), shown.pop("overage")
    figures = {**shown, "overage_credits": overage["credits"], "overage_usd": overage["usd"]}
    rows = await rows_of(client, f"{A}/statements/{period}")
    assert rows == [as_cells({**figures, **line}) for line in charges]
    await client.open_account("b")
    (row,) = await rows_of(client, f"/v1/accounts/b/statements/{period}")
    assert (row["closing_balance"], row["operation"]) == ("0", "")


async def test_csv_goes_on_over_all_pages_and_json_page_by_page(client: Client) -> None:
    await client.open_account("many", 100_000)
    for first in range(0, 1_200, 400):
        names = [f"j-{number}" for number in range(first, first + 400)]
        commands = [
            command
            for name in names
            for command in (
                {
                    "command": "reserve",
                    "account_id": "many",
                    "job_id": name,
                    "environment": "live",
                    "lines": [{"operation": "agent_turn", "quantity": 1}],
                },
                {
                    "command": "settle",
                    "account_id": "many",
                    "job_id": name,
                    "lines": [{"operation": "agent_turn", "quantity": 1}],
                },
            )
        ]
        answer = await client.call("POST", "/v1/batch", {"commands": commands})
        assert {result["status"] for result in answer.body["results"]} == {200, 201}
    path = "/v1/accounts/many/usage/records"
    rows = await rows_of(client, path)
    assert len(rows) == len({row["job_id"] for row in rows}) == 1_200
    assert len(await rows_of(client, f"{path}?limit=7")) == 7
    assert len({row["sequence"] for row in await rows_of(client, "/v1/accounts/many/entries")}) == 2_401
    seen: list[str] = []
    cursor = ""
    while True:
        page = (await client.get(f"{path}?limit=500{cursor}")).body
        seen += [record["job_id"] for record in page["data"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [row["job_id"] for row in rows]


async def test_what_the_caller_accepts_decides(client: Client) -> None:
    for accept, expected in (
        ("*/*", "application/json"),
        ("application/json, text/csv;q=0.5", "application/json"),
        ("text/csv, application/json;q=0.5", "text/csv; charset=utf-8"),
        ("text/html", "application/json"),
    ):
        answer = await client.call("GET", f"{A}/usage", headers={"Accept": accept})
        assert answer.headers["Content-Type"] == expected, accept
    answer = await client.call("GET", "/v1/accounts/nobody/usage", headers=CSV)
    assert (answer.status, answer.code) == (404, "resource_not_found")
