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
    "Commands carried out, by kind and by what came of them: done, put_back, or the refusal's code.",
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
QUEUE_COMMANDS: Final = Gauge("ledger_queue_commands", "Commands that wait for a batch.", registry=REGISTRY)

SWEEP_RUNS: Final = Counter(
    "ledger_sweep_runs",
    "Runs of each sweep, by what came of them: done, failed, or skipped since another replica was at it.",
    ["sweep", "outcome"],
    registry=REGISTRY,
)
SWEEP_ITEMS: Final = Counter(
    "ledger_sweep_items", "What sweeps did, by what they count.", ["sweep", "item"], registry=REGISTRY
)
SWEEP_SECONDS: Final = Gauge(
    "ledger_sweep_last_duration_seconds", "How long the last run of each sweep took here.", ["sweep"], registry=REGISTRY
)
SWEEP_SUCCESS: Final = Gauge(
    "ledger_sweep_last_success_timestamp_seconds",
    "When each sweep last ran to its end, as far as this replica knows.",
    ["sweep"],
    registry=REGISTRY,
)
AUDIT_DISCREPANCIES: Final = Gauge(
    "ledger_audit_discrepancies",
    "What the last audit here found wrong: anything above 0 is an alert.",
    registry=REGISTRY,
)


def exposition() -> bytes:
    """Return every metric in the text format that Prometheus reads."""
    return generate_latest(REGISTRY)
