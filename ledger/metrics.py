"""Every metric of the service, in one place: prefix `ledger_`, base units, labels from closed sets only."""

from __future__ import annotations

from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

BUILD: Final = Info("ledger_build", "The version that is running.", registry=REGISTRY)

COMMANDS: Final = Counter(
    "ledger_commands",
    "Commands carried out, by kind and by what came of them: done, repeated, or the refusal's code.",
    ["command", "outcome"],
    registry=REGISTRY,
)
BATCH_COMMANDS: Final = Histogram(
    "ledger_batch_commands",
    "Commands in a batch, which is one transaction.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    registry=REGISTRY,
)
BATCH_SECONDS: Final = Histogram(
    "ledger_batch_seconds",
    "Time from taking a batch to its commit.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
    registry=REGISTRY,
)
BATCH_RETRIES: Final = Counter(
    "ledger_batch_retries",
    "Batches run again: after a deadlock or lock time-out, or because the database was away.",
    ["reason"],
    registry=REGISTRY,
)
QUEUE_COMMANDS: Final = Gauge(
    "ledger_queue_commands", "Commands that wait for a batch, or are in one.", registry=REGISTRY
)


def exposition() -> bytes:
    """Return every metric in the text format that Prometheus reads."""
    return generate_latest(REGISTRY)
