"""Accounts as operators set them up: policy, grants, billing cycles. The reads are in `reading`."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response, patch, put

from ledger.api import bodies
from ledger.api.errors import invalid, not_found, of_refusal
from ledger.api.http import json_response, needs, read_body, reply
from ledger.api.services import Services, services_of
from ledger.core.commands import (
    AccountStored,
    CycleStored,
    Granted,
    PatchAccount,
    PutAccount,
    PutCycle,
    Refused,
)
from ledger.core.policies import NO_PRICE
from ledger.queries import accounts as account_queries
from ledger.tokens import Role

_read_account = bodies.decoder(bodies.AccountBody)
_read_grant = bodies.decoder(bodies.GrantBody)
_read_cycle = bodies.decoder(bodies.CycleBody)

AnyRequest = Request[Any, Any, Any]


@put("/v1/accounts/{account_id:str}", guards=[needs(Role.ADMIN)])
async def put_account(account_id: str, request: AnyRequest) -> Response[bytes]:
    """Open an account, or replace its policy."""
    services = services_of(request.scope)
    change = bodies.policy_change(_read_account(await read_body(request.scope, request.receive)))
    if change.overage_enabled is True and not isinstance(change.credit_price_usd, int):
        raise invalid(NO_PRICE)  # Before the account's row is made: bad input changes nothing.
    command = PutAccount(account_id=bodies.identifier("account_id", account_id), change=change)
    return await _store(services, command)


@patch("/v1/accounts/{account_id:str}", guards=[needs(Role.ADMIN)])
async def patch_account(account_id: str, request: AnyRequest) -> Response[bytes]:
    """Change what the body names of an account's policy."""
    services = services_of(request.scope)
    change = bodies.policy_change(_read_account(await read_body(request.scope, request.receive)))
    command = PatchAccount(account_id=bodies.identifier("account_id", account_id), change=change)
    return await _store(services, command)


async def _store(services: Services, command: PutAccount | PatchAccount) -> Response[bytes]:
    outcome = await services.engine.submit(command)
    if isinstance(outcome, Refused):
        raise of_refusal(outcome)
    assert isinstance(outcome, AccountStored)
    account = await account_queries.account(services.primary, command.account_id)
    if account is None:
        raise not_found(f"account {command.account_id}")
    return json_response(reply(201 if outcome.created else 200, account))


@put("/v1/accounts/{account_id:str}/grants/{grant_id:str}", guards=[needs(Role.ADMIN)])
async def put_grant(account_id: str, grant_id: str, request: AnyRequest) -> Response[bytes]:
    """Grant credits, or take them away by a negative adjustment."""
    services = services_of(request.scope)
    body = _read_grant(await read_body(request.scope, request.receive))
    command = bodies.grant_command(
        bodies.identifier("account_id", account_id), bodies.identifier("grant_id", grant_id), body
    )
    outcome = await services.engine.submit(command)
    if isinstance(outcome, Refused):
        raise of_refusal(outcome)
    assert isinstance(outcome, Granted)
    return json_response(reply(201 if outcome.created else 200, outcome.grant))


@put("/v1/accounts/{account_id:str}/billing-cycles/{month:str}", guards=[needs(Role.ADMIN)])
async def put_cycle(account_id: str, month: str, request: AnyRequest) -> Response[bytes]:
    """Record how the invoice of a month was paid."""
    services = services_of(request.scope)
    body = _read_cycle(await read_body(request.scope, request.receive))
    command = PutCycle(
        account_id=bodies.identifier("account_id", account_id),
        month=bodies.month("month", month),
        status=body.status,
    )
    outcome = await services.engine.submit(command)
    if isinstance(outcome, Refused):
        raise of_refusal(outcome)
    assert isinstance(outcome, CycleStored)
    return json_response(reply(201 if outcome.created else 200, outcome.cycle))


ROUTES: Final = [put_account, patch_account, put_grant, put_cycle]
