"""The document: the table of operations, with what they share, as OpenAPI 3.1 writes it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

import msgspec

from ledger.api.errors import ErrorAnswer
from ledger.api.openapi import errors
from ledger.api.openapi.examples import Examples
from ledger.api.openapi.operations import OPERATIONS, TAGS, Answer, Operation
from ledger.api.openapi.parameters import HEADERS, PARAMETERS, names_in
from ledger.api.openapi.schemas import Schema, schemas_of
from ledger.api.tables import CSV

OPENAPI: Final = "3.1.1"
REQUEST_ID: Final = "X-Request-Id"

_DESCRIPTION: Final = """\
The double-entry credit ledger behind an API gateway. Everything is counted in **credits**, whole numbers; rule names
such as `J10` are the billing contract's.

- Bodies are JSON in `snake_case`; unknown fields are refused, and so are unknown query parameters. A body without
  `Content-Type` is read as JSON. A whole number may be written `2.0`.
- Instants are ISO-8601 in UTC with `Z`. In a request, another offset is converted, and an instant without one is
  refused. USD amounts are decimal strings.
- Every error has one shape (E1); its `code` is the contract. Temporary refusals carry `Retry-After` in seconds, the
  others never do (E2). Sending the same request again is always safe.
- Each token has one role: `reader` reads, `gateway` also works with jobs, `admin` may do everything.
"""


def document() -> Schema:
    """Return the OpenAPI document."""
    kinds: list[Any] = [ErrorAnswer]
    for operation in OPERATIONS:
        kinds += [operation.body.kind] if operation.body else []
        kinds += [kind for answer in operation.answers for kind in answer.kinds]
    schemas, components = schemas_of(kinds)
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, schemas)
    return {
        "openapi": OPENAPI,
        "info": {"title": "Gateway Ledger", "version": version("gateway-ledger"), "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": description} for name, description in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": _responses(),
            "parameters": dict(PARAMETERS),
            "examples": {code: errors.example_of(code) for code in errors.EXPLAINED},
            "headers": dict(HEADERS),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer <token>`"}
            },
        },
    }


def _responses() -> Schema:
    """Return the responses of every group of codes that some operation answers with one status."""
    groups = {codes for operation in OPERATIONS for codes in errors.by_status(operation.all_codes).values()}
    return {errors.name_of(codes): errors.response_of(codes) for codes in sorted(groups)}


def _operation(operation: Operation, schemas: dict[type, Schema]) -> Schema:
    names = [*names_in(operation.path), *operation.query, REQUEST_ID]
    role = "no token" if operation.least is None else f"a token of role `{operation.least}` at least"
    shown: Schema = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": f"{operation.description}\n\nNeeds {role}.",
        "security": [] if operation.least is None else [{"bearer": [str(operation.least)]}],
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in names],
    }
    if operation.body is not None:
        content = _content(schemas[operation.body.kind], operation.body.examples)
        shown["requestBody"] = {"required": operation.body.required, "content": {"application/json": content}}
    shown["responses"] = {
        **{str(answer.status): _success(answer, schemas) for answer in operation.answers},
        **{
            str(status.value): {"$ref": f"#/components/responses/{errors.name_of(codes)}"}
            for status, codes in errors.by_status(operation.all_codes).items()
        },
    }
    return shown


def _success(answer: Answer, schemas: dict[type, Schema]) -> Schema:
    content = {answer.media_type: _content(_any_of([schemas[kind] for kind in answer.kinds]), answer.examples)}
    if answer.csv is not None:
        content[CSV] = _content({"type": "string"}, {"the_same_rows": answer.csv})
    return {
        "description": answer.description,
        "headers": {REQUEST_ID: {"$ref": f"#/components/headers/{REQUEST_ID}"}},
        "content": content,
    }


def _any_of(options: Sequence[Schema]) -> Schema:
    return options[0] if len(options) == 1 else {"anyOf": list(options)}


def _content(schema: Schema, examples: Examples) -> Schema:
    shown = {name: {"summary": name.replace("_", " "), "value": value} for name, value in examples.items()}
    return {"schema": schema, "examples": shown}


def encoded() -> bytes:
    """Return the document as JSON."""
    return msgspec.json.encode(document())
