"""HTTP beneath the routes: bodies, tokens, replies, errors; for Litestar's handlers and the raw ASGI ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import structlog
from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard, Receive, Scope, Send

from ledger import metrics
from ledger.api.errors import STATUS, ApiError, answer_of, of_exception
from ledger.tokens import Role, TokenTable

BODY_BYTES_MAX: Final = 1024 * 1024
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024

_ALLOWED: Final[Mapping[Role, frozenset[Role]]] = {
    Role.READER: frozenset({Role.READER, Role.GATEWAY, Role.ADMIN}),
    Role.GATEWAY: frozenset({Role.GATEWAY, Role.ADMIN}),
    Role.ADMIN: frozenset({Role.ADMIN}),
}
"""For the least role that a route asks for, the roles that may call it."""

encode = msgspec.json.Encoder().encode
log = structlog.get_logger(__name__)


class Reply(msgspec.Struct, frozen=True):
    """An answer: its status, JSON body and further headers."""

    status: int
    body: bytes
    headers: dict[str, str] = {}


def reply(status: int, body: object) -> Reply:
    """Return a reply with a JSON body."""
    return Reply(status, encode(body))


def request_id_of(scope: Scope) -> str:
    """Return the id of a request."""
    return str(scope["state"]["request_id"])


def header(scope: Scope, name: bytes) -> str | None:
    """Return a request header, or None."""
    for key, value in scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return None


def authenticate(scope: Scope, tokens: TokenTable, least: Role) -> None:
    """Raise `authentication_required` without a valid token, `permission_denied` where its role is too small."""
    scheme, _, token = (header(scope, b"authorization") or "").partition(" ")
    role = tokens.role_of(token.strip()) if scheme.lower() == "bearer" else None
    if role is None:
        raise ApiError(
            "authentication_required",
            "a valid token is needed: Authorization: Bearer <token>",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if role not in _ALLOWED[least]:
        raise ApiError("permission_denied", f"the role {role} may not do this")


def needs(least: Role) -> Guard:
    """Return a Litestar guard that asks for a token of at least this role."""

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        authenticate(connection.scope, connection.app.state.services.settings.tokens, least)

    return guard


def check_content_type(scope: Scope) -> None:
    """Raise `unsupported_media_type` for a body that says it is not JSON; without a type it is read as JSON."""
    given = header(scope, b"content-type")
    if given is not None and given.split(";")[0].strip().lower() not in ("application/json", ""):
        raise ApiError("unsupported_media_type", "the body must be application/json")


async def read_body(scope: Scope, receive: Receive, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return a request's JSON text; raise `payload_too_large` as soon as it is longer than allowed."""
    check_content_type(scope)
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > bytes_max:
        raise _too_large(bytes_max)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        return _checked(message.get("body", b""), bytes_max)
    chunks: list[bytes] = []
    size = 0
    while message["type"] == "http.request":
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > bytes_max:
            raise _too_large(bytes_max)
        if not message.get("more_body"):
            return b"".join(chunks)
        message = await receive()
    raise ApiError("validation_error", "body: the caller went away before its end")


def _checked(body: bytes, bytes_max: int) -> bytes:
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    return body


def _too_large(bytes_max: int) -> ApiError:
    return ApiError("payload_too_large", f"the body is larger than {bytes_max} bytes")


async def send_reply(send: Send, answer: Reply) -> None:
    """Send an answer as JSON."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer.body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


def error_reply(error: Exception, scope: Scope, doc_base: str) -> Reply:
    """Return the answer to anything raised; count it, and log it where it is a defect of ours."""
    known = of_exception(error)
    count_error(known)
    scope["state"]["outcome"] = known.code
    if known.code == "internal_error":
        log.error("internal_error", request_id=request_id_of(scope), exc_info=error)
    headers = known.headers
    if known.retry_after is not None:
        headers = {**headers, "Retry-After": str(known.retry_after)}
    return Reply(known.status, encode(answer_of(known, request_id_of(scope), doc_base)), headers)


_ERRORS: Final = {str(code): metrics.ERRORS.labels(str(code)) for code in STATUS}


def count_error(error: ApiError) -> None:
    """Count an error that is answered."""
    _ERRORS[error.code].inc()


def handle_exception(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's exception handler: the same answers as everywhere."""
    answer = error_reply(error, request.scope, request.app.state.services.settings.doc_base_url)
    return json_response(answer)


def json_response(answer: Reply) -> Response[bytes]:
    """Return a reply as Litestar takes it."""
    return Response(answer.body, status_code=answer.status, headers=answer.headers, media_type="application/json")
