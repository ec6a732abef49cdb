"""Prices: the catalog in force, and quotes that hold nothing (contract P1-P10)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec
from litestar import Request, Response, get, post

from ledger.api import bodies
from ledger.api.errors import ApiError, invalid, not_found
from ledger.api.http import json_response, needs, read_body, reply
from ledger.api.services import database_now, services_of
from ledger.core.commands import MAX_CREDITS
from ledger.tokens import Role
from pricing.catalog import CatalogVersion, OperationNotPriced, Price, Slot
from pricing.rating import FractionNotAllowed, RatedHold, TransferNotPossible, rate_hold

_read_quote = bodies.decoder(bodies.QuoteBody)

AnyRequest = Request[Any, Any, Any]


class PriceView(msgspec.Struct, frozen=True):
    """One price, as it is published."""

    operation: str
    unit: str
    measured_in: str
    per: int
    credits: int
    legs: int
    minimum: int
    flat: bool
    slot: Slot


class PricesView(msgspec.Struct, frozen=True):
    """One version of the catalog."""

    version: str
    effective_from: datetime
    prices: list[PriceView]


class QuoteLine(msgspec.Struct, frozen=True):
    """One line of a quote, priced."""

    operation: str
    unit: str
    quantity: int
    credits: int


class QuoteView(msgspec.Struct, frozen=True):
    """What a job would cost, and what a transfer could add."""

    lines: list[QuoteLine]
    transfer_allowance: int
    credits: int
    price_version: str


@get("/v1/prices", guards=[needs(Role.READER)])
async def prices(request: AnyRequest) -> Response[bytes]:
    """Show the prices in force now, or `at` an instant."""
    services = services_of(request.scope)
    bodies.known_parameters(request.query_params, "at")
    at = request.query_params.get("at")
    instant = await database_now(services) if at is None else bodies.instant_text("at", at)
    version = services.catalog.at(instant)
    if version is None:
        raise not_found("a price catalog for that instant")
    shown = PricesView(version.version, version.effective_from, [_view(p) for p in version.prices.values()])
    return json_response(reply(200, shown))


@post("/v1/quotes", guards=[needs(Role.READER)], status_code=200)
async def quote(request: AnyRequest) -> Response[bytes]:
    """Price lines without holding anything."""
    services = services_of(request.scope)
    body = _read_quote(await read_body(request.scope, request.receive))
    version = services.catalog.at(await database_now(services))
    if version is None:
        raise not_priced(body.lines[0].operation)
    rated = _rate(version, body)
    shown = QuoteView(
        [QuoteLine(r.operation, r.unit, r.quantity, r.credits) for r in rated.lines],
        rated.transfer_allowance,
        rated.credits,
        version.version,
    )
    return json_response(reply(200, shown))


def not_priced(operation: str) -> ApiError:
    """Return the error of an operation that the catalog in force lacks (P1)."""
    return ApiError("operation_not_priced", f"operation {operation} has no price", {"operation": operation})


def _rate(version: CatalogVersion, body: bodies.QuoteBody) -> RatedHold:
    lines = [(line.operation, line.quantity) for line in body.lines]
    try:
        rated = rate_hold(version, lines, transferable=body.transferable)
    except OperationNotPriced as error:
        raise not_priced(error.operation) from None
    except FractionNotAllowed as error:
        raise invalid(f"lines: {error}") from None
    except TransferNotPossible as error:
        raise invalid(f"transferable: {error}") from None
    if rated.credits >= MAX_CREDITS:
        raise invalid("lines: the credits of one quote stay below 2^53")
    return rated


def _view(price: Price) -> PriceView:
    return PriceView(
        price.operation,
        price.unit,
        price.measured_in,
        price.per,
        price.credits,
        price.legs,
        price.minimum,
        price.flat,
        price.slot,
    )


ROUTES: Final = [prices, quote]
