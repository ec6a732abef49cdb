"""Traces: a request, its wait, the batch that carries it and its statements hang together, and show no secret."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import pytest
from litestar.types import ASGIApp
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ledger import tracing
from ledger.app import running_app
from ledger.embedded import ConnectionUrls
from ledger.settings import Settings
from ledger.tokens import Role, TokenTable

TOKEN: Final = "glt_admin_SECRET"
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT: Final = f"00-{TRACE}-{CALLER}-01"
pytestmark = pytest.mark.filterwarnings("ignore::litestar.exceptions.LitestarDeprecationWarning")

JOB: Final = "/v1/accounts/{account_id}/jobs/{job_id}"


@pytest.fixture
async def app(database: ConnectionUrls) -> AsyncIterator[ASGIApp]:
    tokens = TokenTable.of_tokens({TOKEN: Role.ADMIN})
    settings = Settings(database_url=database.service, simulated_clock=True, tokens=tokens)
    async with running_app(settings) as running:
        await ask(running, "PUT", "/v1/accounts/a", {"module_enabled": True, "environments": {"live": {}}})
        await ask(running, "PUT", "/v1/accounts/a/grants/g", {"kind": "purchase", "credits": 1_000})
        yield running


@pytest.fixture
async def exporter(app: ASGIApp) -> AsyncIterator[InMemorySpanExporter]:
    """Where spans go, from when the application runs."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    stop = tracing.trace_to(provider)
    yield kept
    stop()


async def ask(app: ASGIApp, method: str, path: str, body: object, **headers: str) -> int:
    """Ask the application, with no server between; return the status."""
    given = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json", **headers}
    scope: Any = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": msgspec.json.encode(body), "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    return statuses[0]


async def reserve(app: ASGIApp, job_id: str, operation: str = "agent_turn", **headers: str) -> int:
    lines = [{"operation": operation, "quantity": 1}]
    body = {"environment": "live", "lines": lines, "idempotency_key": f"SECRET-{job_id}", "metadata": {"k": "SECRET"}}
    return await ask(app, "PUT", f"/v1/accounts/a/jobs/{job_id}", body, **headers)


def named(spans: tuple[ReadableSpan, ...], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def is_within(inner: ReadableSpan, outer: ReadableSpan) -> bool:
    assert inner.start_time
    assert inner.end_time
    assert outer.start_time
    assert outer.end_time
    return outer.start_time - 10**6 <= inner.start_time <= inner.end_time <= outer.end_time + 10**6


async def test_a_request_is_traced_to_its_statements(app: ASGIApp, exporter: InMemorySpanExporter) -> None:
    """What the caller's `traceparent` says is the beginning."""
    assert await reserve(app, "j", traceparent=PARENT) == 201
    await asyncio.sleep(0)  # The last statement is told of in the loop's next turn.
    spans = exporter.get_finished_spans()
    (request,), (batch,), (queue,) = (named(spans, name) for name in (f"PUT {JOB}", "batch", "queue"))
    assert request.parent is not None
    assert (f"{request.parent.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, CALLER)
    assert request.kind is SpanKind.SERVER
    assert request.attributes is not None
    assert request.attributes["http.route"] == JOB
    assert request.attributes["http.response.status_code"] == 201
    for child in (batch, queue):
        assert child.parent == request.context
        assert is_within(child, request)
    assert [link.context for link in batch.links] == [request.context]
    children = [span for span in spans if span.parent == batch.context]
    steps = [span.name for span in children if not span.attributes]
    assert steps == ["connect", "lock", "prefetch", "decide", "write", "commit"]
    texts = [str((span.attributes or {}).get("db.query.text", "")) for span in children]
    for table in ("accounts", "balances", "jobs", "periods"):
        assert any(f"ledger.{table}" in text for text in texts), table
    assert all(is_within(child, batch) for child in children)


async def test_a_batch_is_linked_to_each_request_it_carries(app: ASGIApp, exporter: InMemorySpanExporter) -> None:
    done = await asyncio.gather(*(reserve(app, f"j{n}") for n in range(8)))
    assert done == [201] * 8
    spans = exporter.get_finished_spans()
    requests = [span.context.span_id for span in named(spans, f"PUT {JOB}")]
    linked = [link.context.span_id for batch in named(spans, "batch") for link in batch.links]
    assert len(requests) == 8
    assert sorted(linked) == sorted(requests)
    assert len(named(spans, "batch")) < 8


async def test_a_defect_of_ours_is_an_error(app: ASGIApp, exporter: InMemorySpanExporter) -> None:
    assert await reserve(app, "j", "not_priced") == 500
    assert await reserve(app, "k") == 201
    broken, fine = named(exporter.get_finished_spans(), f"PUT {JOB}")
    assert (broken.status.status_code, fine.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)


async def test_spans_hold_no_secret(app: ASGIApp, exporter: InMemorySpanExporter) -> None:
    assert await reserve(app, "SECRET") == 201
    assert await reserve(app, "SECRET", "image_analysis") == 409
    assert exporter.get_finished_spans()
    assert not [span for span in exporter.get_finished_spans() if "SECRET" in span.to_json()]


async def test_nothing_is_traced_unless_it_is_asked_for(app: ASGIApp) -> None:
    assert await reserve(app, "j", traceparent=PARENT) == 201
    assert tracing.current() is None
    with tracing.request([(b"traceparent", PARENT.encode())]) as span:
        assert span is None


@pytest.mark.parametrize(
    ("environment", "traced"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, False),
    ],
)
def test_the_standard_variables_ask_for_traces(
    environment: dict[str, str], traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_exporter, "OTLPSpanExporter", InMemorySpanExporter)
    stop = tracing.start("1", environment)
    with tracing.request([]) as span:
        assert (span is not None) == traced
        assert tracing.current() is span
    stop()
    assert tracing.current() is None


def test_without_the_extra_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that is told to trace and cannot says so, and serves."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    stop = tracing.start("1", {"OTEL_TRACES_EXPORTER": "otlp"})
    with tracing.request([]) as span:
        assert span is None
    stop()


def test_without_being_asked_for_nothing_of_it_is_imported() -> None:
    code = (
        "import sys; import ledger.api.edge; from ledger import tracing; tracing.start('1', {});"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
