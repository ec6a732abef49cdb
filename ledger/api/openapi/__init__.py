"""The OpenAPI document: every route, every status it can answer, with examples; made once, at its first request.

`operations` is the table of routes, `errors` that of the error codes, `fields` says what fields mean, `examples` tells
one story through all of them, and `schemas` is what msgspec makes of the structs that bodies are read into and written
from. A new route is a new entry of the table: `tests/unit/test_openapi.py` compares it with the routes that there are.
"""

from __future__ import annotations

import functools
from typing import Final

from litestar import Response, get

from ledger.api.openapi import assembly

document: Final = functools.cache(assembly.encoded)
"""The document as JSON."""


@get("/schema/openapi.json", sync_to_thread=True)
def show_document() -> Response[bytes]:
    """Show the OpenAPI document of this interface."""
    return Response(document(), media_type="application/json")


ROUTES: Final = [show_document]
