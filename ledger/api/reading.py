"""The reads: jobs, balance, grants, billing cycles, usage, records, statements, entries. JSON, or CSV where asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from litestar import Request, Response, get

from ledger.api import bodies
from ledger.api.errors import invalid, not_found
from ledger.api.http import json_response, needs, reply
from ledger.api.parameters import JOB_FILTER, LIST, Parameters, month
from ledger.api.services import services_of
from ledger.api.tables import ROWS_PER_PAGE, Row, csv_response, one_chunk, pages, row_of, wants_csv
from ledger.queries import InvalidCursor, NotYet, Page, PageRequest, Reading
from ledger.queries import accounts as account_queries
from ledger.queries import jobs as job_queries
from ledger.queries.balance import balance
from ledger.queries.journal import EntryView, JournalFilter, PostingView, entries
from ledger.queries.records import UsageRecordView, records
from ledger.queries.statements import Statement, statement
from ledger.queries.usage import BY_OPERATION, GROUPS, Group, UsageFilter, UsageLine, usage
from ledger.tokens import Role

AnyRequest = Request[Any, Any, Any]
T = TypeVar("T")

ACCOUNT_PATH: Final = "/v1/accounts/{account_id:str}"

_ENTRY_COLUMNS: Final = tuple(f for f in EntryView.__struct_fields__ if f not in ("postings", "canonical"))
_LINE_COLUMNS: Final = UsageLine.__struct_fields__


def _asked(account_id: str, request: AnyRequest) -> tuple[str, Reading]:
    """Return the account that a read is about, and where it is read."""
    return bodies.identifier("account_id", account_id), services_of(request.scope).reading


async def _found(account_id: str, read: Awaitable[T | None]) -> T:
    """Return what a query found, or raise the error that it comes to."""
    try:
        found = await read
    except InvalidCursor:
        raise invalid("cursor: only a next_cursor of this list and account is allowed") from None
    except NotYet as error:
        raise invalid(str(error)) from None
    if found is None:
        raise not_found(f"account {account_id}")
    return found


async def _json(account_id: str, read: Awaitable[object | None]) -> Response[bytes]:
    return json_response(reply(200, await _found(account_id, read)))


@get(ACCOUNT_PATH, guards=[needs(Role.READER)])
async def show_account(account_id: str, request: AnyRequest) -> Response[bytes]:
    """Show an account's policy, and what follows from it and from its payments."""
    account_id, reading = _asked(account_id, request)
    Parameters(request)
    return await _json(account_id, account_queries.account(reading, account_id))


@get(f"{ACCOUNT_PATH}/balance", guards=[needs(Role.READER)])
async def show_balance(account_id: str, request: AnyRequest) -> Response[bytes]:
    """Show the balance now, or as it was `at` an instant."""
    account_id, reading = _asked(account_id, request)
    at = Parameters(request, "at").instant("at")
    return await _json(account_id, balance(reading, account_id, at))


@get(f"{ACCOUNT_PATH}/grants", guards=[needs(Role.READER)])
async def list_grants(account_id: str, request: AnyRequest) -> Response[bytes]:
    """List the grants in the order granted."""
    account_id, reading = _asked(account_id, request)
    page = Parameters(request, *LIST).page()
    return await _json(account_id, account_queries.grants(reading, account_id, page))


@get(f"{ACCOUNT_PATH}/billing-cycles", guards=[needs(Role.READER)])
async def list_cycles(account_id: str, request: AnyRequest) -> Response[bytes]:
    """List the billing cycles in the order of their months."""
    account_id, reading = _asked(account_id, request)
    page = Parameters(request, *LIST).page()
    return await _json(account_id, account_queries.cycles(reading, account_id, page))


@get(f"{ACCOUNT_PATH}/jobs", guards=[needs(Role.READER)])
async def list_jobs(account_id: str, request: AnyRequest) -> Response[bytes]:
    """List the jobs, newest first."""
    account_id, reading = _asked(account_id, request)
    given = Parameters(request, *JOB_FILTER, *LIST)
    return await _json(account_id, job_queries.jobs(reading, account_id, given.job_filter(), given.page()))


# -- JSON, or CSV where asked --------------------------------------------------------------------------------------


@get(f"{ACCOUNT_PATH}/usage", guards=[needs(Role.READER)])
async def show_usage(account_id: str, request: AnyRequest) -> Response[Any]:
    """Show usage added up, of a month or of days."""
    account_id, reading = _asked(account_id, request)
    given = Parameters(request, "period", "from", "to", "environment", "group_by")
    wanted = UsageFilter(
        period=given.month("period"),
        days=given.days(),
        environment=given.environment(),
        group_by=given.choices("group_by", GROUPS, BY_OPERATION),
    )
    if wanted.period is not None and wanted.days is not None:
        raise invalid("period: either period, or from and to")
    shown = await _found(account_id, usage(reading, account_id, wanted))
    if not wants_csv(request):
        return json_response(reply(200, shown))
    return csv_response(_usage_columns(wanted.group_by), one_chunk(map(row_of, shown.lines)))


def _usage_columns(group_by: Iterable[Group]) -> Sequence[str]:
    """Return the columns of usage lines: those of the groups, and a unit and quantity where operations are apart."""
    absent: set[str] = {name for name in GROUPS if name not in group_by}
    if "operation" in absent:
        absent |= {"unit", "quantity"}
    return [column for column in _LINE_COLUMNS if column not in absent]


@get(f"{ACCOUNT_PATH}/usage/records", guards=[needs(Role.READER)])
async def list_records(account_id: str, request: AnyRequest) -> Response[Any]:
    """List usage request by request, newest first."""
    account_id, reading = _asked(account_id, request)
    given = Parameters(request, *JOB_FILTER, *LIST)
    wanted = given.job_filter()

    async def fetch(page: PageRequest) -> Page[UsageRecordView]:
        return await _found(account_id, records(reading, account_id, wanted, page))

    columns = UsageRecordView.__struct_fields__
    return await _list(request, given, fetch, columns, lambda record: [row_of(record)])


@get(f"{ACCOUNT_PATH}/entries", guards=[needs(Role.READER)])
async def list_entries(account_id: str, request: AnyRequest) -> Response[Any]:
    """List the journal, oldest first; as CSV, one row for each posting."""
    account_id, reading = _asked(account_id, request)
    given = Parameters(request, "canonical", "from", "to", *LIST)
    start, end = given.instants()
    wanted = JournalFilter(start=start, end=end, canonical=given.switch("canonical"))

    async def fetch(page: PageRequest) -> Page[EntryView]:
        return await _found(account_id, entries(reading, account_id, wanted, page))

    columns = [*_ENTRY_COLUMNS, *PostingView.__struct_fields__, *(["canonical"] if wanted.canonical else [])]
    return await _list(request, given, fetch, columns, _posting_rows)


def _posting_rows(entry: EntryView) -> list[Row]:
    return [{**row_of(entry), **row_of(posting)} for posting in entry.postings]


async def _list(
    request: AnyRequest,
    given: Parameters,
    fetch: Callable[[PageRequest], Awaitable[Page[T]]],
    columns: Sequence[str],
    rows_of: Callable[[T], Iterable[Row]],
) -> Response[Any]:
    """Answer with a page as JSON or, where a `limit` is given, as CSV; without one, CSV goes on to the end."""
    page = given.page()
    if wants_csv(request) and not given.has("limit"):
        first = await fetch(PageRequest(ROWS_PER_PAGE, page.cursor))
        return csv_response(columns, pages(fetch, first, rows_of))
    shown = await fetch(page)
    if wants_csv(request):
        return csv_response(columns, one_chunk(row for item in shown.data for row in rows_of(item)))
    return json_response(reply(200, shown))


@get(f"{ACCOUNT_PATH}/statements/{{period:str}}", guards=[needs(Role.READER)])
async def show_statement(account_id: str, period: str, request: AnyRequest) -> Response[Any]:
    """Show what a month did to the balance; as CSV, one row for each charge, the month's figures on each."""
    account_id, reading = _asked(account_id, request)
    Parameters(request)
    shown = await _found(account_id, statement(reading, account_id, month("period", period)))
    if not wants_csv(request):
        return json_response(reply(200, shown))
    figures = _statement_row(shown)
    rows: list[Row] = [{**figures, **row_of(line)} for line in shown.charges] or [figures]
    return csv_response([*figures, *_usage_columns(BY_OPERATION)], one_chunk(rows))


def _statement_row(shown: Statement) -> Row:
    row = msgspec.to_builtins(shown)
    del row["charges"]
    overage = row.pop("overage")
    return {**row, "overage_credits": overage["credits"], "overage_usd": overage["usd"]}


ROUTES: Final = [
    show_account,
    show_balance,
    list_grants,
    list_cycles,
    list_jobs,
    show_usage,
    list_records,
    list_entries,
    show_statement,
]
