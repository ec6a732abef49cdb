"""Deleting an account: asking for it, cancelling, and how it stands (contract R7)."""

from __future__ import annotations

import secrets
from typing import Any, Final

from litestar import Request, Response, delete, get, post

from ledger.api import bodies
from ledger.api.errors import not_found, of_refusal
from ledger.api.http import json_response, needs, reply
from ledger.api.parameters import Parameters
from ledger.api.services import services_of
from ledger.core.commands import CancelDeletion, DeletionStands, Refused, RequestDeletion
from ledger.queries.accounts import deletion
from ledger.tokens import Role

CODE_BYTES: Final = 18

AnyRequest = Request[Any, Any, Any]


@post("/v1/accounts/{account_id:str}/deletion", guards=[needs(Role.ADMIN)], status_code=202)
async def request_deletion(account_id: str, request: AnyRequest) -> Response[bytes]:
    """Ask for the deletion of an account, or revive the request."""
    command = RequestDeletion(
        account_id=bodies.identifier("account_id", account_id),
        confirmation_code=f"del_{secrets.token_urlsafe(CODE_BYTES)}",
    )
    return await _answer(request, command, 202)


@delete("/v1/accounts/{account_id:str}/deletion", guards=[needs(Role.ADMIN)], status_code=200)
async def cancel_deletion(account_id: str, request: AnyRequest) -> Response[bytes]:
    """Cancel the deletion of an account while its grace lasts."""
    return await _answer(request, CancelDeletion(account_id=bodies.identifier("account_id", account_id)), 200)


async def _answer(request: AnyRequest, command: RequestDeletion | CancelDeletion, status: int) -> Response[bytes]:
    outcome = await services_of(request.scope).engine.submit(command)
    if isinstance(outcome, Refused):
        raise of_refusal(outcome)
    assert isinstance(outcome, DeletionStands)
    return json_response(reply(status, outcome))


@get("/v1/deletions/{confirmation_code:str}", guards=[needs(Role.READER)])
async def show_deletion(confirmation_code: str, request: AnyRequest) -> Response[bytes]:
    """Show how a deletion stands."""
    Parameters(request)
    # Text that the database cannot hold was never given as a code.
    readable = confirmation_code.isascii() and confirmation_code.isprintable()
    found = await deletion(services_of(request.scope).primary, confirmation_code) if readable else None
    if found is None:
        raise not_found("a deletion with this code")
    return json_response(reply(200, found))


ROUTES: Final = [request_deletion, cancel_deletion, show_deletion]
