"""Request bodies: their shapes, checked by msgspec, and the commands they become. Every message names the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ledger.api.errors import ApiError, invalid
from ledger.core.commands import (
    MAX_CREDITS,
    Environment,
    GrantKind,
    Line,
    PolicyChange,
    PutGrant,
    QuotaChange,
    Record,
    Refund,
    Release,
    Reserve,
    Settle,
)
from ledger.core.overage import MICRO_USD, CycleStatus

# `(?![\s\S])` is an end that a trailing newline does not pass, in Python and in JSON Schema alike.
IDENTIFIER: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}(?![\s\S])"
OPERATION: Final = r"^[a-z][a-z0-9_]{0,63}(?![\s\S])"
USD: Final = r"^[0-9]{1,11}(\.[0-9]{1,6})?(?![\s\S])"
MONTH: Final = r"^(?!0000|9999-12)[0-9]{4}-(0[1-9]|1[0-2])(?![\s\S])"

RESULT_BYTES_MAX: Final = 256 * 1024
METADATA_BYTES_MAX: Final = 4 * 1024
METADATA_KEYS_MAX: Final = 20
QUANTITY_MAX: Final = 10**9
COUNT_MAX: Final = 2**31 - 1
REFUND_ID_LENGTH_MAX: Final = 120

Identifier = Annotated[str, Meta(pattern=IDENTIFIER)]
Operation = Annotated[str, Meta(pattern=OPERATION)]
Quantity = Annotated[int, Meta(ge=0, le=QUANTITY_MAX)] | Annotated[float, Meta(ge=0, le=QUANTITY_MAX)]
Credits = (
    Annotated[int, Meta(gt=-MAX_CREDITS, lt=MAX_CREDITS)] | Annotated[float, Meta(gt=-MAX_CREDITS, lt=MAX_CREDITS)]
)
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)] | Annotated[float, Meta(ge=0, le=COUNT_MAX)]
Usd = Annotated[str, Meta(pattern=USD)]
Text = Annotated[str, Meta(max_length=1000)]
Instant = Annotated[datetime, Meta(tz=True)]

NULL: Final = msgspec.Raw(b"null")
"""What is not sent; msgspec knows no optional `Raw`, which takes `null` like any other JSON."""

T = TypeVar("T")


class LineBody(Struct, forbid_unknown_fields=True):
    """A measured quantity of one operation."""

    operation: Operation
    quantity: Quantity


class MeasuredLineBody(Struct, forbid_unknown_fields=True):
    """The same, where `null` says that it could not be measured (P4)."""

    operation: Operation
    quantity: Quantity | None


class RecordBody(Struct, forbid_unknown_fields=True):
    """What the gateway tells of the request, for the usage record (R3)."""

    request_id: Text | None = None
    status_code: Annotated[int, Meta(ge=100, le=599)] | None = None
    latency_ms: Count | None = None
    key_prefix: Annotated[str, Meta(max_length=64)] | None = None


class ReserveBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`PUT …/jobs/{job_id}`."""

    environment: Environment
    lines: Annotated[list[LineBody], Meta(min_length=1, max_length=20)]
    transferable: bool = False
    allow_partial: bool = False
    ttl_seconds: Annotated[int, Meta(ge=1, le=86_400)] | Annotated[float, Meta(ge=1, le=86_400)] = 900
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    fingerprint: Annotated[str, Meta(max_length=128)] | None = None
    metadata: msgspec.Raw = NULL


class SettleBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST …/jobs/{job_id}/settle`."""

    lines: Annotated[list[MeasuredLineBody], Meta(min_length=1, max_length=20)]
    result: msgspec.Raw = NULL
    result_stored: bool = True
    record: RecordBody | None = None


class ReleaseBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST …/jobs/{job_id}/release`."""

    error_code: Annotated[str, Meta(max_length=128)] | None = None
    originated: bool = True
    record: RecordBody | None = None


class RefundBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST …/jobs/{job_id}/refunds`."""

    refund_id: Annotated[str, Meta(pattern=IDENTIFIER, max_length=REFUND_ID_LENGTH_MAX)]
    credits: Credits | None = None
    reason: Text | None = None


class QuotaBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The ceilings of one environment."""

    max_requests: Count | UnsetType = UNSET
    max_calls: Count | UnsetType = UNSET
    period_credits: (
        Annotated[int, Meta(ge=0, lt=MAX_CREDITS)] | Annotated[float, Meta(ge=0, lt=MAX_CREDITS)] | UnsetType | None
    ) = UNSET


class OverageBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The overage switch, its cap and the price of a credit."""

    enabled: bool | UnsetType = UNSET
    cap_usd: Usd | UnsetType | None = UNSET
    credit_price_usd: Usd | UnsetType | None = UNSET


class EnvironmentsBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The quota rows; `null` is none (Q1)."""

    live: QuotaBody | UnsetType | None = UNSET
    test: QuotaBody | UnsetType | None = UNSET


class AccountBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`PUT` and `PATCH /v1/accounts/{account_id}`."""

    module_enabled: bool | UnsetType = UNSET
    access: Literal["active", "suspended"] | UnsetType = UNSET
    payment_method_verified: bool | UnsetType = UNSET
    overage: OverageBody | UnsetType = UNSET
    environments: EnvironmentsBody | UnsetType = UNSET


class GrantBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`PUT …/grants/{grant_id}`."""

    kind: GrantKind
    credits: Credits
    expires_at: Instant | None = None
    reference: Text | None = None


class CycleBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`PUT …/billing-cycles/{YYYY-MM}`."""

    status: CycleStatus


class QuoteBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/quotes`."""

    lines: Annotated[list[LineBody], Meta(min_length=1, max_length=20)]
    transferable: bool = False


class ClockBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`PUT /v1/clock`."""

    now: Instant


class AuditBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/audit`."""

    account_id: Identifier | None = None


# -- decoding ------------------------------------------------------------------------------------------------------


def decoder(kind: type[T], *, refuse_nul: bool = True) -> Callable[[bytes], T]:
    """Return a function that reads a JSON body of one shape, or raises `validation_error` naming the field."""
    decode = msgspec.json.Decoder(kind).decode

    def read(body: bytes) -> T:
        try:
            value = decode(body)
        except msgspec.ValidationError as error:
            raise invalid(_named(str(error))) from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise invalid(f"body: {_malformed(body, error)}") from None
        if refuse_nul and b"\\u0000" in body:
            _refuse_nul(body)
        return value

    return read


def _named(message: str) -> str:
    """Put the field first: "Expected `int` - at `$.lines[0].quantity`" -> "lines[0].quantity: Expected `int`"."""
    text, found, path = message.partition(" - at `")
    if not found:
        return f"body: {text}" if "field" not in text else text
    field = path.rstrip("`").removeprefix("$").removeprefix(".")
    return f"{field or 'body'}: {text}"


def _malformed(body: bytes, error: Exception) -> str:
    if not body:
        return "a JSON object is expected"
    if isinstance(error, RecursionError):
        return "the JSON is nested too deeply"
    if "truncated" in str(error) and rb"\ud" in body.lower():
        return "the JSON is cut short or has a lone surrogate"
    return str(error)


def _refuse_nul(body: bytes) -> None:
    """Refuse text that PostgreSQL cannot hold, wherever it is, naming the field."""
    pending: list[tuple[str, Any]] = [("", msgspec.json.decode(body))]
    while pending:
        path, value = pending.pop()
        if isinstance(value, str) and "\0" in value:
            raise invalid(f"{path.removeprefix('.') or 'body'}: text with a NUL character cannot be kept")
        if isinstance(value, dict):
            pending += [(path, key) for key in value]
            pending += [(f"{path}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, list):
            pending += [(f"{path}[{index}]", inner) for index, inner in enumerate(value)]


def identifier(name: str, value: str, length_max: int = 128) -> str:
    """Return an identifier of the path, or raise `validation_error`."""
    if len(value) > length_max or not _IDENTIFIER.match(value):
        raise invalid(f"{name}: 1 to {length_max} characters of A-Z a-z 0-9 . _ : -, the first a letter or digit")
    return value


_IDENTIFIER: Final = re.compile(IDENTIFIER)
_MONTH: Final = re.compile(MONTH)


def month(name: str, value: str) -> str:
    """Return a calendar month of the path or query, or raise `validation_error`."""
    if not _MONTH.match(value):
        raise invalid(f"{name}: a month written YYYY-MM is expected")
    return value


def whole(name: str, value: int | float) -> int:
    """Return a whole number, which may have been written `2.0`, or raise `validation_error`."""
    if isinstance(value, int):
        return value
    if not value.is_integer():
        raise invalid(f"{name}: a whole number is expected")
    return int(value)


def instant(name: str, value: datetime) -> datetime:
    """Return an instant in UTC, or raise `validation_error` where UTC has no name for it."""
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise invalid(f"{name}: the instant is out of range") from None


_decode_instant = msgspec.json.Decoder(Instant).decode


def instant_text(name: str, text: str) -> datetime:
    """Return the instant that a query parameter names, in UTC, or raise `validation_error`."""
    try:
        value = _decode_instant(msgspec.json.encode(text))
    except msgspec.MsgspecError:
        raise invalid(f"{name}: an ISO-8601 instant with Z or an offset is expected") from None
    return instant(name, value)


def known_parameters(given: Iterable[str], *allowed: str) -> None:
    """Raise `validation_error` for a query parameter that the route does not have."""
    for name in given:
        if name not in allowed:
            raise invalid(f"{name}: unknown parameter; allowed: {', '.join(allowed) or 'none'}")


def micro_usd(text: str) -> int:
    """Return an amount of USD, at most six decimals, in micro-dollars."""
    return int(Decimal(text) * MICRO_USD)


def _quantity(value: int | float) -> int | float:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _size(value: Any) -> int:
    """Return the bytes of a JSON value at its shortest: how a sender escapes and indents makes it no larger."""
    return len(msgspec.json.encode(value))


def _any_json(name: str, raw: msgspec.Raw) -> tuple[bytes, Any]:
    """Return JSON text as it was sent, and its value; raise where any of it is not JSON."""
    text = bytes(raw).strip()
    try:
        return text, msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"{name}: {_malformed(text, error)}") from None


# -- bodies into commands ------------------------------------------------------------------------------------------


def reserve_command(account_id: str, job_id: str, body: ReserveBody) -> Reserve:
    """Return the command of a reservation; raise `validation_error` for what the shapes cannot say."""
    lines = []
    for index, line in enumerate(body.lines):
        if not line.quantity:
            raise invalid(f"lines[{index}].quantity: a quantity above 0 is expected")
        lines.append(Line(line.operation, _quantity(line.quantity)))
    return Reserve(
        account_id=account_id,
        job_id=job_id,
        environment=body.environment,
        lines=tuple(lines),
        transferable=body.transferable,
        allow_partial=body.allow_partial,
        ttl_seconds=whole("ttl_seconds", body.ttl_seconds),
        idempotency_key=body.idempotency_key,
        fingerprint=body.fingerprint,
        metadata=_metadata(body.metadata),
    )


def _metadata(raw: msgspec.Raw) -> bytes | None:
    text, value = _any_json("metadata", raw)
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > METADATA_KEYS_MAX or _size(value) > METADATA_BYTES_MAX:
        raise invalid(f"metadata: an object of at most {METADATA_KEYS_MAX} keys and 4 KB is expected")
    return text


def settle_command(account_id: str, job_id: str, body: SettleBody) -> Settle:
    """Return the command of a settlement; raise `payload_too_large` for a result of more than 256 KB."""
    result = _result(body.result)
    return Settle(
        account_id=account_id,
        job_id=job_id,
        lines=tuple(
            Line(line.operation, None if line.quantity is None else _quantity(line.quantity)) for line in body.lines
        ),
        result=result if body.result_stored else None,
        record=_record(body.record),
    )


def _result(raw: msgspec.Raw) -> bytes | None:
    text, value = _any_json("result", raw)
    if _size(value) > RESULT_BYTES_MAX:
        raise ApiError("payload_too_large", f"result: more than {RESULT_BYTES_MAX} bytes")
    return None if value is None else text


def _record(body: RecordBody | None) -> Record | None:
    if body is None:
        return None
    latency = None if body.latency_ms is None else whole("record.latency_ms", body.latency_ms)
    return Record(body.request_id, body.status_code, latency, body.key_prefix)


def release_command(account_id: str, job_id: str, body: ReleaseBody) -> Release:
    """Return the command of a release."""
    return Release(
        account_id=account_id,
        job_id=job_id,
        error_code=body.error_code,
        originated=body.originated,
        record=_record(body.record),
    )


def refund_command(account_id: str, job_id: str, body: RefundBody) -> Refund:
    """Return the command of a refund."""
    credits = None if body.credits is None else whole("credits", body.credits)
    if credits is not None and credits < 1:
        raise invalid("credits: a number above 0 is expected, or null for all that is left")
    return Refund(account_id=account_id, job_id=job_id, refund_id=body.refund_id, credits=credits, reason=body.reason)


def grant_command(account_id: str, grant_id: str, body: GrantBody) -> PutGrant:
    """Return the command of a grant."""
    credits = whole("credits", body.credits)
    if credits == 0 or (credits < 0 and body.kind != "adjustment"):
        raise invalid("credits: a number above 0 is expected; only an adjustment may be negative")
    expires_at = None if body.expires_at is None else instant("expires_at", body.expires_at)
    if credits < 0 and expires_at is not None:
        raise invalid("expires_at: a negative adjustment has no end")
    return PutGrant(
        account_id=account_id,
        grant_id=grant_id,
        kind=body.kind,
        credits=credits,
        expires_at=expires_at,
        reference=body.reference,
    )


def policy_change(body: AccountBody) -> PolicyChange:
    """Return what an account body changes."""
    overage = OverageBody() if body.overage is UNSET else body.overage
    environments = EnvironmentsBody() if body.environments is UNSET else body.environments
    quotas: dict[Environment, QuotaChange | None] = {}
    if environments.live is not UNSET:
        quotas["live"] = _quota("environments.live", environments.live)
    if environments.test is not UNSET:
        quotas["test"] = _quota("environments.test", environments.test)
    price = _usd(overage.credit_price_usd)
    if price == 0:
        raise invalid("overage.credit_price_usd: an amount above 0 is expected")
    return PolicyChange(
        module_enabled=body.module_enabled,
        access=body.access,
        payment_method_verified=body.payment_method_verified,
        overage_enabled=overage.enabled,
        cap_usd=_usd(overage.cap_usd),
        credit_price_usd=price,
        quotas=quotas,
    )


def _quota(name: str, body: QuotaBody | None) -> QuotaChange | None:
    if body is None:
        return None

    def number(field: str, value: int | float | UnsetType) -> int | UnsetType:
        return UNSET if value is UNSET else whole(f"{name}.{field}", value)

    credits = body.period_credits
    return QuotaChange(
        max_requests=number("max_requests", body.max_requests),
        max_calls=number("max_calls", body.max_calls),
        period_credits=None if credits is None else number("period_credits", credits),
    )


def _usd(value: str | UnsetType | None) -> int | UnsetType | None:
    return micro_usd(value) if isinstance(value, str) else value
