"""Events: what the ledger has to tell, read in order (contract V3)."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response, get

from ledger.api.errors import invalid
from ledger.api.http import json_response, needs, reply
from ledger.api.parameters import Parameters
from ledger.api.services import services_of
from ledger.queries import InvalidCursor
from ledger.queries.events import events
from ledger.tokens import Role

AnyRequest = Request[Any, Any, Any]


@get("/v1/events", guards=[needs(Role.READER)])
async def list_events(request: AnyRequest) -> Response[bytes]:
    """List events in the order in which they were committed, behind a cursor."""
    given = Parameters(request, "after", "account_id", "limit")
    try:
        page = await events(services_of(request.scope).reading, given.account_id(), given.page("after"))
    except InvalidCursor:
        raise invalid("after: only a next_cursor of this list is allowed") from None
    return json_response(reply(200, page))


ROUTES: Final = [list_events]
