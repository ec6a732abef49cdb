"""The one table from refusals to HTTP (contract E1-E3), and the shape of every error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

from ledger.core.commands import Code, Refused
from ledger.database import is_away
from ledger.engine import CommandFailed, Unavailable
from ledger.queries import DatabaseAway

STATUS: Final[Mapping[str, int]] = {
    Code.VALIDATION_ERROR: 400,
    "authentication_required": 401,
    Code.INSUFFICIENT_CREDITS: 402,
    Code.SPENDING_CAP_REACHED: 402,
    "permission_denied": 403,
    Code.GATEWAY_NOT_ENABLED: 403,
    Code.RESOURCE_NOT_FOUND: 404,
    "method_not_allowed": 405,
    Code.IDEMPOTENCY_KEY_REUSED: 409,
    Code.REQUEST_IN_FLIGHT: 409,
    Code.RESULT_NOT_REPLAYABLE: 409,
    Code.JOB_NOT_COMPLETED: 409,
    Code.JOB_ALREADY_CLOSED: 409,
    Code.REQUEST_EXCEEDS_PERIOD_QUOTA: 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    Code.PERIOD_QUOTA_EXHAUSTED: 429,
    Code.CONCURRENCY_LIMIT_REACHED: 429,
    Code.CALL_CONCURRENCY_LIMIT_REACHED: 429,
    Code.OPERATION_NOT_PRICED: 500,
    "internal_error": 500,
    "upstream_unavailable": 503,
}
"""Every error code, and its HTTP status."""


RETRY_SECONDS: Final = 1
"""When a caller may try again while the database is away."""


class ApiError(Exception):
    """An error to answer: its code decides the status; `retry_after` (seconds) goes into header and details."""

    def __init__(
        self,
        code: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        *,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = str(code)
        self.message = message
        self.details = dict(details or {})
        self.retry_after = retry_after
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.details["retry_after"] = retry_after

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return STATUS[self.code]


def invalid(message: str) -> ApiError:
    """Return a `validation_error`; its message begins with the name of the field."""
    return ApiError(Code.VALIDATION_ERROR, message)


def not_found(what: str) -> ApiError:
    """Return a `resource_not_found` for something named."""
    return ApiError(Code.RESOURCE_NOT_FOUND, f"{what} does not exist")


def of_refusal(refused: Refused) -> ApiError:
    """Return the error that a refused command is answered with."""
    return ApiError(refused.code, refused.message, refused.details, retry_after=refused.retry_after)


def away() -> ApiError:
    """Return the error that is answered while the database is away."""
    return ApiError("upstream_unavailable", "the database is away", retry_after=RETRY_SECONDS)


def of_exception(error: Exception) -> ApiError:
    """Return the error that anything raised is answered with; what nobody foresaw is an `internal_error`."""
    match error:
        case ApiError():
            return error
        case Unavailable():
            return ApiError("upstream_unavailable", str(error), retry_after=error.retry_after)
        case CommandFailed():
            return ApiError("internal_error", str(error))
        case DatabaseAway():
            return away()
        case NotFoundException():
            return ApiError(Code.RESOURCE_NOT_FOUND, "the route does not exist")
        case MethodNotAllowedException():
            return ApiError("method_not_allowed", "the route has no such method", headers=error.headers or {})
        case HTTPException(status_code=413):
            return ApiError("payload_too_large", "the body is too large")
        case HTTPException() if error.status_code < 500:
            return ApiError(Code.VALIDATION_ERROR, error.detail)
        case _ if is_away(error):
            return away()
        case _:
            return ApiError("internal_error", "an unforeseen error; quote the request_id")


class ErrorBody(msgspec.Struct, frozen=True):
    """The inside of every error answer (E1). `details` are figures."""

    code: str
    message: str
    request_id: str
    doc_url: str
    details: dict[str, Any]


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Every error answer."""

    error: ErrorBody


def answer_of(error: ApiError, request_id: str, doc_base: str) -> ErrorAnswer:
    """Return the body of an error."""
    return ErrorAnswer(ErrorBody(error.code, error.message, request_id, f"{doc_base}#{error.code}", error.details))
