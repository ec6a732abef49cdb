"""The sweeps: what the last runs did, and a run by hand (contract S)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from litestar import Request, Response, get, post

from ledger.api.errors import ApiError, not_found
from ledger.api.http import json_response, needs, reply
from ledger.api.parameters import Parameters
from ledger.api.services import SweepsBusy, SweepView, services_of
from ledger.tokens import Role

BUSY_RETRY_SECONDS: Final = 60

AnyRequest = Request[Any, Any, Any]


class SweepList(msgspec.Struct, frozen=True):
    """Every sweep."""

    data: Sequence[SweepView]


@get("/v1/sweeps", guards=[needs(Role.READER)])
async def list_sweeps(request: AnyRequest) -> Response[bytes]:
    """List every sweep with its last run and its next."""
    Parameters(request)
    return json_response(reply(200, SweepList(await services_of(request.scope).sweeps.show())))


@post("/v1/sweeps/{sweep:str}", guards=[needs(Role.ADMIN)], status_code=200)
async def run_sweep(sweep: str, request: AnyRequest) -> Response[bytes]:
    """Run a sweep now, and say what it did; where it runs already, after that."""
    try:
        run = await services_of(request.scope).sweeps.run(sweep)
    except SweepsBusy as busy:
        raise ApiError("upstream_unavailable", str(busy), retry_after=BUSY_RETRY_SECONDS) from None
    if run is None:
        raise not_found("a sweep of this name")
    return json_response(reply(200, run))


ROUTES: Final = [list_sweeps, run_sweep]
