"""Traces, where they are asked for: a request, its wait in the queue, the batch that carries it, its statements.

They take the extra `otel` and OpenTelemetry's own variables, and cost nothing without. A batch is a span of the first
request it carries that is traced, and linked to all of them. No span holds a token, a name from outside, or anything
of a body: statements are shown without what was passed to them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.connection import LoggedQuery
    from asyncpg.pool import PoolConnectionProxy
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
STATEMENT_CHARACTERS_MAX: Final = 1_000

_NOTHING: Final = contextlib.nullcontext()
_SINCE_EPOCH: Final = time.time_ns() - time.perf_counter_ns()
_tracer: Tracer | None = None

log = structlog.get_logger(__name__)


def start(version: str, environment: Mapping[str, str]) -> Callable[[], None]:
    """Begin to trace, if the environment asks for it; return what ends that, which may take seconds."""
    if not _wanted(environment):
        return _do_nothing
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("traces_unavailable", hint="pip install 'gateway-ledger[otel]'")
        return _do_nothing
    attributes = {"service.version": version}
    if not (environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")):
        attributes["service.name"] = "gateway-ledger"
    provider = TracerProvider(resource=Resource.create(attributes))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return trace_to(provider)


def _wanted(environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER")
    return exporter == "otlp" or (not exporter and any(environment.get(name) for name in ENDPOINTS))


def trace_to(provider: TracerProvider) -> Callable[[], None]:
    """Trace to a provider of one's own; return what ends that."""
    global _tracer
    _tracer = provider.get_tracer("gateway-ledger")

    def stop() -> None:
        global _tracer
        _tracer = None
        provider.shutdown()

    return stop


def _do_nothing() -> None:
    """End what was never begun."""


# -- requests ------------------------------------------------------------------------------------------------------


def request(headers: Iterable[tuple[bytes, bytes]]) -> AbstractContextManager[Span | None]:
    """Trace a request while the context is open, as a part of what its `traceparent` says."""
    if _tracer is None:
        return _NOTHING
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    caller = extract({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})
    return _tracer.start_as_current_span(
        "request", context=caller, kind=SpanKind.SERVER, record_exception=False, set_status_on_exception=False
    )


def answered(span: Span, request_id: str, method: str, route: str, status: int) -> None:
    """Say what a request was and what it was answered with: known only at its end."""
    from opentelemetry.trace import StatusCode

    span.update_name(f"{method} {route}")
    span.set_attributes(
        {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "ledger.request_id": request_id,
        }
    )
    if status >= 500:
        span.set_status(StatusCode.ERROR)


def current() -> Span | None:
    """Return the span that is open here and recorded, if there is one."""
    if _tracer is None:
        return None
    from opentelemetry.trace import get_current_span

    span = get_current_span()
    return span if span.is_recording() else None


# -- the queue and the batch ---------------------------------------------------------------------------------------


def waited(span: Span, since: float, until: float) -> None:
    """Tell of a request's time in the queue, in instants of `time.perf_counter`."""
    _tell("queue", span, since, until)


def batch(requests: Sequence[Span | None]) -> AbstractContextManager[Span | None]:
    """Trace a batch while the context is open, if any of the requests it carries is traced."""
    carried = [span for span in requests if span is not None]
    if _tracer is None or not carried:
        return _NOTHING
    from opentelemetry.trace import Link, set_span_in_context

    return _tracer.start_as_current_span(
        "batch",
        context=set_span_in_context(carried[0]),
        links=[Link(span.get_span_context()) for span in carried],
        attributes={"ledger.batch.commands": len(requests)},
        record_exception=False,
    )


def step(name: str, since: float, until: float) -> None:
    """Tell of a step of the batch that is open here, in instants of `time.perf_counter`."""
    span = current()
    if span is not None:
        _tell(name, span, since, until)


def _tell(name: str, parent: Span, since: float, until: float) -> None:
    if _tracer is None:
        return
    from opentelemetry.trace import set_span_in_context

    span = _tracer.start_span(name, context=set_span_in_context(parent), start_time=_instant(since))
    span.end(_instant(until))


def _instant(seconds: float) -> int:
    """Turn an instant of `time.perf_counter` into nanoseconds since the epoch."""
    return int(seconds * 1e9) + _SINCE_EPOCH


def statements(connection: asyncpg.Connection | PoolConnectionProxy) -> AbstractContextManager[None]:
    """Trace every statement of a connection while the context is open, as parts of the span that is."""
    return _NOTHING if current() is None else connection.query_logger(_tell_of_statement)


def _tell_of_statement(query: LoggedQuery) -> None:
    parent = current()
    if _tracer is None or parent is None:
        return
    from opentelemetry.trace import StatusCode, set_span_in_context

    until = time.perf_counter()
    text = " ".join(query.query.split())
    span = _tracer.start_span(
        text.partition(" ")[0].lower() or "statement",
        context=set_span_in_context(parent),
        start_time=_instant(until - query.elapsed),
        attributes={"db.system.name": "postgresql", "db.query.text": text[:STATEMENT_CHARACTERS_MAX]},
    )
    if query.exception is not None:
        span.set_attribute("error.type", type(query.exception).__name__)
        span.set_status(StatusCode.ERROR)
    span.end(_instant(until))
