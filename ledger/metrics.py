"""Every metric of the service, in one place: prefix `ledger_`, base units, labels from closed sets only.

No label ever holds a name from outside (an account, a job, a path, an operation that the catalog lacks): what is not
known is `other` or `unmatched`, so the number of series is bounded by the routes, the catalog and this file.

Counters are of this process alone and are added up over replicas. What `_read` defines is read from the database, is
the same on every replica, and is absent, rather than stale, while it cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# When a series began would be another series each, which nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""The buckets of every duration."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a metric is, for whoever lists them."""

    name: str
    type: str
    labels: tuple[str, ...]
    text: str


DEFINITIONS: Final[list[Definition]] = []
"""Every metric defined here, in order."""


def _counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
    DEFINITIONS.append(Definition(name, "counter", tuple(labels), text))
    return Counter(name, text, labels, registry=REGISTRY)


def _gauge(name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
    DEFINITIONS.append(Definition(name, "gauge", tuple(labels), text))
    return Gauge(name, text, labels, registry=REGISTRY)


def _histogram(name: str, text: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS) -> Histogram:
    DEFINITIONS.append(Definition(name, "histogram", tuple(labels), text))
    return Histogram(name, text, labels, buckets=buckets, registry=REGISTRY)


Values = Mapping[tuple[str, ...], float]
"""Values by those of the labels, in the order of their names; `{(): value}` where there are none."""


class ReadGauge(Collector):
    """A gauge of what was read elsewhere: it shows what it was last told, and nothing once that is forgotten."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self.name = name
        self._text = text
        self._labels = tuple(labels)
        self._values: Values = {}
        REGISTRY.register(self)

    def show(self, values: Values) -> None:
        """Show these values, and no others."""
        self._values = values

    def forget(self) -> None:
        """Show nothing."""
        self._values = {}

    def describe(self) -> Iterable[Metric]:
        """Return the metric without values, as a registry asks for it."""
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        """Return the metric, if there is anything to show."""
        if self._values:
            family = self._family()
            for labels, value in self._values.items():
                family.add_metric(labels, value)
            yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self.name, self._text, labels=self._labels)


READ: Final[list[ReadGauge]] = []
"""The gauges of what is read from the database."""


def _read(name: str, text: str, labels: Sequence[str] = ()) -> ReadGauge:
    DEFINITIONS.append(Definition(name, "gauge", tuple(labels), text))
    READ.append(ReadGauge(name, text, labels))
    return READ[-1]


BUILD: Final = _gauge("ledger_build_info", "1, with the version that is running.", ["version"])
LOG_LINES_DROPPED: Final = _counter(
    "ledger_log_lines_dropped_total", "Lines of the log that were dropped, since nobody took those before them."
)

# -- HTTP ----------------------------------------------------------------------------------------------------------

HTTP_REQUESTS: Final = _counter(
    "ledger_http_requests_total",
    "Requests answered, by the template of their route (`unmatched`: there is none) and by status.",
    ["method", "route", "status"],
)
HTTP_SECONDS: Final = _histogram(
    "ledger_http_request_duration_seconds",
    "Time from a request's first byte to the last of its answer.",
    ["method", "route"],
)
ERRORS: Final = _counter(
    "ledger_errors_total",
    "Errors answered, by code, those of commands within a batch included.",
    ["code"],
)

# -- what commands came to -----------------------------------------------------------------------------------------

COMMANDS: Final = _counter(
    "ledger_commands_total",
    "Commands decided and committed, by kind and by what came of them: done, refused, or put_back to wait.",
    ["command", "outcome"],
)
REFUSALS: Final = _counter(
    "ledger_refusals_total",
    "Commands refused, by the code; operation is the job's own, `none` where no job is known.",
    ["command", "operation", "code"],
)
RESERVATIONS: Final = _counter(
    "ledger_reservations_total",
    "Reservations: reserved, partial (for less than was asked), repeated, replayed (served before), refused.",
    ["operation", "environment", "outcome"],
)
SETTLEMENTS: Final = _counter(
    "ledger_settlements_total",
    "Jobs settled: within_hold, or over_hold where the charge was more than was held.",
    ["operation", "environment", "outcome"],
)
RELEASES: Final = _counter("ledger_releases_total", "Jobs released.", ["operation", "environment"])
EXPIRATIONS: Final = _counter(
    "ledger_expirations_total", "Jobs whose hold expired before they were closed.", ["operation", "environment"]
)
REFUNDS: Final = _counter("ledger_refunds_total", "Refunds made.", ["operation", "environment"])
GRANTS: Final = _counter("ledger_grants_total", "Grants put, negative adjustments included.", ["kind"])
EVENTS: Final = _counter("ledger_events_total", "Events raised.", ["type"])
DELIVERY_ATTEMPTS: Final = _counter(
    "ledger_delivery_attempts_total",
    "Attempts to deliver events: delivered, failed (tried again), exhausted, gone, undeliverable (nothing was sent), or"
    " lost (another process has it). Endpoints are those of the configuration.",
    ["endpoint", "outcome"],
)

# -- credits, committed --------------------------------------------------------------------------------------------

CREDITS_HELD: Final = _counter(
    "ledger_credits_held_total",
    "Credits held by reservations, by the job's operation and by where they were taken: balance or overage.",
    ["operation", "environment", "source"],
)
CREDITS_CHARGED: Final = _counter(
    "ledger_credits_charged_total",
    "Credits charged, by the operation of the line: the `credits` of usage.",
    ["operation", "environment"],
)
CREDITS_REFUNDED: Final = _counter(
    "ledger_credits_refunded_total",
    "Credits refunded, by the operation of the line: the `refunded_credits` of usage.",
    ["operation", "environment"],
)
CREDITS_RETURNED: Final = _counter(
    "ledger_credits_returned_total",
    "Held credits given back, by the job's operation and by how the job ended: settled, released or expired.",
    ["operation", "environment", "status"],
)
CREDITS_OVER_HOLD: Final = _counter(
    "ledger_credits_over_hold_total",
    "Credits charged beyond what was held, by the job's operation.",
    ["operation", "environment"],
)
SETTLED_HOLD_CREDITS: Final = _counter(
    "ledger_settled_hold_credits_total",
    "What had been held for the jobs that were settled, by the job's operation.",
    ["operation", "environment"],
)
SETTLED_CHARGE_CREDITS: Final = _counter(
    "ledger_settled_charge_credits_total",
    "What the jobs that were settled came to, by the job's operation; over what had been held: hold-to-settle ratio.",
    ["operation", "environment"],
)
CREDITS_FUNDED: Final = _counter(
    "ledger_credits_funded_total",
    "Credits charged, by what paid as they were settled: balance, overage or overdraft.",
    ["source"],
)
OVERAGE_USD: Final = _counter(
    "ledger_overage_charged_usd_total", "Overage charged, in USD at each account's own price of a credit."
)
OVERDRAFT_PAID: Final = _counter(
    "ledger_overdraft_paid_credits_total", "Overdraft covered by credits that came in or came back."
)
CREDITS_GRANTED: Final = _counter("ledger_credits_granted_total", "Credits that came in by grants.", ["kind"])
CREDITS_WITHDRAWN: Final = _counter(
    "ledger_credits_withdrawn_total", "Credits that negative adjustments took out of balances."
)
CREDITS_EXPIRED: Final = _counter("ledger_credits_expired_total", "Credits that ended with their grant.", ["kind"])

# -- the batcher and the database ----------------------------------------------------------------------------------

QUEUE_COMMANDS: Final = _gauge("ledger_queue_commands", "Commands that wait for a batch.")
QUEUE_LIMIT: Final = _gauge("ledger_queue_limit_commands", "How many commands may wait: past that, 503.")
QUEUE_FULL: Final = _counter("ledger_queue_full_total", "Commands turned away because too many waited.")
REQUESTS_IN_FLIGHT: Final = _gauge("ledger_requests_in_flight", "Requests under way.")
REQUESTS_LIMIT: Final = _gauge("ledger_requests_limit", "How many requests may be under way: past that, 503.")
REQUESTS_SHED: Final = _counter("ledger_requests_shed_total", "Requests turned away because too many were under way.")
QUEUE_SECONDS: Final = _histogram("ledger_queue_wait_seconds", "Time from submitting a command to its batch.")
BATCH_COMMANDS: Final = _histogram(
    "ledger_batch_commands",
    "Commands in a batch, which is one transaction.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
)
BATCH_SECONDS: Final = _histogram("ledger_batch_seconds", "Time from taking a batch to its commit.")
STEP_SECONDS: Final = _histogram(
    "ledger_batch_step_seconds",
    "Time of each step of a batch: connect, lock (waiting for the accounts' locks), prefetch, decide, write, commit.",
    ["step"],
)
BATCH_RETRIES: Final = _counter(
    "ledger_batch_retries_total",
    "Batches to be run again: deadlock, lock_timeout, serialization, no_connection, connection_lost, commit_lost,"
    " stale_types.",
    ["reason"],
)
BATCH_FAILURES: Final = _counter(
    "ledger_batch_failures_total",
    "Batches given up: away (the database), or defect (ours: the batch is halved until the command is alone).",
    ["reason"],
)
CONNECTIONS: Final = _gauge(
    "ledger_database_connections", "Connections of each pool, used and idle.", ["pool", "state"]
)
CONNECTIONS_LIMIT: Final = _gauge(
    "ledger_database_connections_limit", "How many connections each pool may have.", ["pool"]
)

# -- sweeps, as this process ran them ------------------------------------------------------------------------------

SWEEP_RUNS: Final = _counter(
    "ledger_sweep_runs_total",
    "Runs of each sweep here: done, failed, or skipped since another replica was at it.",
    ["sweep", "outcome"],
)
SWEEP_ITEMS: Final = _counter(
    "ledger_sweep_items_total", "What sweeps did here, by what they count.", ["sweep", "item"]
)
SWEEP_INTERVAL: Final = _gauge("ledger_sweep_interval_seconds", "How often each sweep is to run.", ["sweep"])

# -- what the database says, the same on every replica -------------------------------------------------------------

DATABASE_UP: Final = _gauge("ledger_database_up", "1 if the figures below could be read for this scrape, else 0.")
STATE_SECONDS: Final = _read("ledger_state_read_seconds", "How long reading the figures below took.")
STATE_AGE: Final = _read("ledger_state_age_seconds", "How long ago the figures below were read.")

OPEN_HOLDS: Final = _read("ledger_open_holds", "Open holds.", ["environment", "slot"])
OLDEST_HOLD: Final = _read("ledger_oldest_hold_age_seconds", "Age of the oldest open hold.", ["environment", "slot"])
HOLD_OVERDUE: Final = _read(
    "ledger_oldest_hold_overdue_seconds",
    "How long ago the oldest open hold should have expired; 0 if none is due.",
)
OVERDRAFT_CREDITS: Final = _read("ledger_overdraft_credits", "Charges that nobody has paid yet.")
OVERDRAFT_ACCOUNTS: Final = _read("ledger_overdraft_accounts", "Accounts with an overdraft.")
NEGATIVE_AVAILABLE: Final = _read(
    "ledger_negative_available_accounts", "Accounts with less than nothing available: must be 0."
)
OVERAGE_MONTH_USD: Final = _read(
    "ledger_overage_month_usd", "Overage of the current month, in USD: used, and held by open jobs.", ["state"]
)
OVERAGE_MONTH_CREDITS: Final = _read(
    "ledger_overage_month_credits", "Overage of the current month: used, and held by open jobs.", ["state"]
)
UNCLOSED_ACCOUNTS: Final = _read("ledger_unclosed_accounts", "Accounts with a month that ended and is not closed.")
UNCLOSED_SECONDS: Final = _read(
    "ledger_oldest_unclosed_month_seconds", "How long ago the oldest month ended that is not closed; 0 if none."
)
OUTBOX_EVENTS: Final = _read(
    "ledger_outbox_backlog_events", "Events that an endpoint has yet to be given.", ["endpoint"]
)
OUTBOX_AGE: Final = _read(
    "ledger_outbox_oldest_age_seconds",
    "Age of the oldest event that an endpoint has yet to be given; 0 if none.",
    ["endpoint"],
)
SWEEP_SUCCESS: Final = _read(
    "ledger_sweep_last_success_timestamp_seconds",
    "When each sweep last ran to its end, on whichever replica; 0 if it never did.",
    ["sweep"],
)
SWEEP_SECONDS: Final = _read(
    "ledger_sweep_last_duration_seconds", "How long the last run of each sweep that ended took.", ["sweep"]
)
SWEEP_FAILED: Final = _read("ledger_sweep_last_failed", "1 if the last run of a sweep that ended failed.", ["sweep"])
SWEEP_COUNTS: Final = _read(
    "ledger_sweep_last_items", "What the last run of each sweep did, by what it counts.", ["sweep", "item"]
)
AUDIT_DISCREPANCIES: Final = _read(
    "ledger_audit_discrepancies",
    "What the last audit that came to its end found wrong, whatever became of later ones: above 0 is an alert.",
)

# -- Redis, where there is one -------------------------------------------------------------------------------------


def _shown(name: str, text: str, labels: Sequence[str]) -> ReadGauge:
    DEFINITIONS.append(Definition(name, "gauge", tuple(labels), text))
    return ReadGauge(name, text, labels)


REDIS_UP: Final = _shown(
    "ledger_redis_up",
    "1 if Redis did what each work (streams, balances, walk, deleted) last asked, else 0; absent without one.",
    ["work"],
)
REDIS_SUCCESS: Final = _shown(
    "ledger_redis_last_success_timestamp_seconds",
    "When each work in Redis began that last came to its end: nothing of before is left to publish; 0 if none did.",
    ["work"],
)
REDIS_WAITING: Final = _gauge(
    "ledger_redis_waiting_balances", "Accounts whose balances this process has yet to publish in Redis."
)
REDIS_PUBLISHED: Final = _counter(
    "ledger_redis_published_total", "What this process published in Redis: an event or a balance.", ["what"]
)
REDIS_FAILURES: Final = _counter(
    "ledger_redis_failures_total", "Times that Redis was away or refused, each tried again later."
)


def exposition() -> bytes:
    """Return every metric in the text format that Prometheus reads."""
    return generate_latest(REGISTRY)
