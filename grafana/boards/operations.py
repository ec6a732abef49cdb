"""Operations: is it up, is it fast, does it keep its promises, and where does it hurt.

Counters are each process's own: `instance` chooses among the replicas, and everything is added up over those chosen.
Figures that every replica reads from the database are the same on each, so the largest stands for all.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as models

from grafana.boards.panels import (
    PROMETHEUS,
    AnyPanel,
    Limit,
    Query,
    Row,
    board,
    chosen_environment,
    chosen_prometheus,
    figure,
    graph,
    prom,
)

UID: Final = "ledger-operations"

HERE: Final = 'instance=~"$instance"'
PLACE: Final = f'{HERE}, environment=~"$environment"'
API: Final = f'{HERE}, route=~"/v1/.+"'
COMMANDS: Final = f'{HERE}, route=~"/v1/accounts/.account_id./jobs/.+", method=~"PUT|POST"'
"""The routes that reserve, settle, release and refund: those whose latency is promised."""

RATE: Final = "[$__rate_interval]"


def dashboard_of() -> models.Dashboard:
    """Return the dashboard."""
    return board(
        UID,
        "Gateway Ledger · Operations",
        "Service levels, latency, refusals, the queue, the database, sweeps, deliveries and the audit of the ledger.",
        [chosen_prometheus(), chosen_environment(), _instance()],
        [
            Row("Service level", _service_level()),
            Row("Requests", _requests()),
            Row("What commands came to", _commands()),
            Row("Credits", _credits()),
            Row("Queue and batches", _batches()),
            Row("Database", _database()),
            Row("Holds, months and the audit", _books()),
            Row("Sweeps", _sweeps()),
            Row("Events and deliveries", _outbox()),
            Row("Processes", _processes()),
        ],
        since="now-6h",
        annotations=[_alerts()],
    )


def _instance() -> dashboard.QueryVariable:
    everything = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    return (
        dashboard.QueryVariable("instance")
        .label("Replica")
        .datasource(PROMETHEUS)
        .query("label_values(ledger_build_info, instance)")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(everything)
    )


def _alerts() -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name("Alerts that fire")
        .datasource(PROMETHEUS)
        .enable(True)
        .icon_color("red")
        .expr('ALERTS{alertname=~"Ledger.+", alertstate="firing"}')
    )


def _quantile(share: float, metric: str, labels: str) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate({metric}_bucket{{{labels}}}{RATE})))"


def _quantiles(metric: str, labels: str) -> list[Query]:
    return [prom(_quantile(share, metric, labels), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)]


def _service_level() -> list[AnyPanel]:
    window = "[$__range]"
    served = f"sum(increase(ledger_http_requests_total{{{API}}}{window}))"
    failed = f'(sum(increase(ledger_http_requests_total{{{API}, status=~"5.."}}{window})) or vector(0))'
    quick = f'sum(increase(ledger_http_request_duration_seconds_bucket{{{COMMANDS}, le="0.25"}}{window}))'
    timed = f"sum(increase(ledger_http_request_duration_seconds_count{{{COMMANDS}}}{window}))"
    return [
        figure(
            "Answered without a 5xx",
            "percentunit",
            """Share of API requests in what is shown that were not answered with a 5xx; 99.9 % is promised over 30
            days. `operation_not_priced` is a 5xx by contract and counts: a missing price is our defect. Below: see
            *Errors by code* for which error, then the log of that code.""",
            prom(f"1 - {failed} / {served}", instant=True),
            limit=Limit(0.999, low=True),
            decimals=3,
            nothing="no requests",
            width=4,
        ),
        figure(
            "Commands within 250 ms",
            "percentunit",
            """Share of reservations, settlements, releases and refunds in what is shown that were answered within 250
            ms; 99 % is promised. Below: *Steps of a batch* tells whether the locks, the database's commit or we are
            slow.""",
            prom(f"{quick} / {timed}", instant=True),
            limit=Limit(0.99, low=True),
            decimals=2,
            nothing="no commands",
            width=4,
        ),
        figure(
            "Error budget left, 30 days",
            "percentunit",
            """What is left of the 0.1 % of requests that may fail in 30 days. Below zero: the promise is broken; put
            reliability before features, and look for the days in *Burn rate*.""",
            prom(
                """1 - (sum_over_time(ledger:http_errors:rate5m[30d]) / sum_over_time(ledger:http_requests:rate5m[30d]))
                / 0.001""",
                instant=True,
            ),
            limit=Limit(0, warn=0.25, low=True),
            decimals=1,
            nothing="no requests",
            width=4,
        ),
        graph(
            "Burn rate of the error budget",
            "none",
            """How many times faster than allowed the budget of failed requests is being used, over an hour, six hours
            and three days; 1 uses it up in exactly 30 days. An hour above 14.4, or six above 6, pages: follow *Errors
            by code*. Three days above 1 is a ticket.""",
            prom("ledger:http_errors:ratio_rate1h / 0.001", "1 h"),
            prom("ledger:http_errors:ratio_rate6h / 0.001", "6 h"),
            prom("ledger:http_errors:ratio_rate3d / 0.001", "3 d"),
            limit=Limit(14.4, warn=6),
            width=6,
        ),
        graph(
            "Burn rate of slow commands",
            "none",
            """The same for the 1 % of commands that may take longer than 250 ms. High while nothing fails: the database
            is slow (*Steps of a batch*) or there is more load than one batch at a time can carry (*Queue depth*).""",
            prom("ledger:slow_commands:ratio_rate1h / 0.01", "1 h"),
            prom("ledger:slow_commands:ratio_rate6h / 0.01", "6 h"),
            prom("ledger:slow_commands:ratio_rate3d / 0.01", "3 d"),
            limit=Limit(14.4, warn=6),
            width=6,
        ),
    ]


def _requests() -> list[AnyPanel]:
    by_route = f"sum by (le, route) (rate(ledger_http_request_duration_seconds_bucket{{{API}}}{RATE}))"
    return [
        graph(
            "Requests by route",
            "reqps",
            """API requests a second by route. Nothing at all while the gateway works: it reaches another address, or a
            load balancer has taken every replica out; ask `GET /health/ready`.""",
            prom(f"sum by (method, route) (rate(ledger_http_requests_total{{{API}}}{RATE}))", "{{method}} {{route}}"),
        ),
        graph(
            "Answers by status",
            "reqps",
            """API answers a second by status. 402, 403, 409 and 429 are the business at work (see *Refusals by code*);
            a 401 is a wrong token: compare `LEDGER_TOKEN_HASHES` with what the gateway was given; 5xx is ours.""",
            prom(f"sum by (status) (rate(ledger_http_requests_total{{{API}}}{RATE}))", "{{status}}"),
            bars=True,
        ),
        graph(
            "Errors by code",
            "ops",
            """Errors a second by code, those of commands within a batch included. `internal_error` and
            `operation_not_priced` are defects: search the log for the code and its request id. `upstream_unavailable`:
            the database is away or the queue is full.""",
            prom(f"sum by (code) (rate(ledger_errors_total{{{HERE}}}{RATE}))", "{{code}}"),
        ),
        graph(
            "Latency of commands",
            "s",
            """Time from the first byte of a reserve, settle, release or refund to the last of its answer. p99 above 250
            ms: compare *Wait in the queue* (too much at once) with *Steps of a batch* (the database).""",
            *_quantiles("ledger_http_request_duration_seconds", COMMANDS),
            limit=Limit(0.25),
            width=12,
        ),
        graph(
            "Latency by route, p99",
            "s",
            """The slowest of a hundred requests by route. A single slow route that reads: a report over a long time, or
            a replica of the database that lags; point reads elsewhere with `LEDGER_READ_DATABASE_URL`.""",
            prom(f"histogram_quantile(0.99, {by_route})", "{{route}}"),
            width=12,
        ),
    ]


def _commands() -> list[AnyPanel]:
    settled_charge = f"sum by (operation) (rate(ledger_settled_charge_credits_total{{{PLACE}}}{RATE}))"
    settled_hold = f"sum by (operation) (rate(ledger_settled_hold_credits_total{{{PLACE}}}{RATE}))"
    return [
        graph(
            "Refusals by code",
            "ops",
            """Commands refused a second, by code. A jump in `insufficient_credits` or `spending_cap_reached`: one
            customer ran out (*Business*, top accounts) or grants did not arrive. `gateway_not_enabled`: an account was
            switched off. `idempotency_key_reused`: a caller makes keys badly.""",
            prom(f"sum by (code) (rate(ledger_refusals_total{{{HERE}}}{RATE}))", "{{code}}"),
        ),
        graph(
            "Refusals by operation",
            "ops",
            """The same refusals by the operation asked for; `none` is where no job is known, `other` what the catalog
            lacks. One operation alone: look at its price and at who uses it.""",
            prom(f"sum by (operation) (rate(ledger_refusals_total{{{HERE}}}{RATE}))", "{{operation}}"),
        ),
        graph(
            "Commands by kind",
            "ops",
            """Commands decided a second, by kind and outcome. `put_back` waits for the next batch because an account
            has a backlog of due holds: harmless, unless it lasts (then see *Holds*).""",
            prom(f"sum by (command, outcome) (rate(ledger_commands_total{{{HERE}}}{RATE}))", "{{command}} {{outcome}}"),
        ),
        graph(
            "Reservations by outcome",
            "ops",
            """Reservations a second by outcome. Many `repeated` or `replayed`: the gateway retries; look for time-outs
            on its side. Many `partial`: calls are cut short by what customers have left.""",
            prom(f"sum by (outcome) (rate(ledger_reservations_total{{{PLACE}}}{RATE}))", "{{outcome}}"),
        ),
        graph(
            "How jobs end",
            "ops",
            """Jobs a second that were settled, released, expired or refunded. Many that expire: the gateway reserves
            and does not close; ask it for the jobs of event `job.expired`. Many released: an upstream fails.""",
            prom(f"sum by (outcome) (rate(ledger_settlements_total{{{PLACE}}}{RATE}))", "settled {{outcome}}"),
            prom(f"sum(rate(ledger_releases_total{{{PLACE}}}{RATE}))", "released"),
            prom(f"sum(rate(ledger_expirations_total{{{PLACE}}}{RATE}))", "expired"),
            prom(f"sum(rate(ledger_refunds_total{{{PLACE}}}{RATE}))", "refunded"),
        ),
        graph(
            "Hold-to-settle ratio",
            "percentunit",
            """What settled jobs came to, over what had been held for them, by operation. Far below 100 %: holds are too
            large and keep customers out. Above: they are too small and charges become overage or overdraft; the
            gateway's estimates are to be changed.""",
            prom(f"{settled_charge} / ({settled_hold} > 0)", "{{operation}}"),
            limit=Limit(1),
        ),
    ]


def _credits() -> list[AnyPanel]:
    def credits(metric: str, labels: str, by: str = "") -> str:
        return f"sum {by} (rate({metric}{{{labels}}}{RATE}))"

    return [
        graph(
            "Credits by operation",
            "short",
            """Credits charged a second, by operation. A step without a change of traffic: a price version came into
            force (`GET /v1/prices`). A fall to nothing of one operation: its upstream, or its route, is away.""",
            prom(credits("ledger_credits_charged_total", PLACE, "by (operation)"), "{{operation}}"),
            bars=True,
        ),
        graph(
            "Held, charged, given back",
            "short",
            """Credits a second: held, and what became of holds. Held for long above charged and returned together: jobs
            stay open (*Holds*). `over hold` is what charges took beyond their hold; refunds are by the line's
            operation.""",
            prom(credits("ledger_credits_held_total", PLACE, "by (source)"), "held of {{source}}"),
            prom(credits("ledger_credits_charged_total", PLACE), "charged"),
            prom(credits("ledger_credits_returned_total", PLACE, "by (status)"), "returned, {{status}}"),
            prom(credits("ledger_credits_over_hold_total", PLACE), "charged over hold"),
            prom(credits("ledger_credits_refunded_total", PLACE), "refunded"),
        ),
        graph(
            "What paid for charges",
            "short",
            """Credits charged a second by what paid: the balance, overage, or nobody yet (overdraft). Overdraft that
            does not fall to zero: holds are too small for what is settled; see *Hold-to-settle ratio*.""",
            prom(credits("ledger_credits_funded_total", HERE, "by (source)"), "{{source}}"),
            prom(credits("ledger_overdraft_paid_credits_total", HERE), "overdraft paid back"),
            bars=True,
        ),
        graph(
            "Credits in and out of balances",
            "short",
            """Credits a second that were granted, by kind, withdrawn by negative adjustments, or ended with their
            grant. No plan on the first of a month: whoever grants plans did not run. Many that expire by day: grants
            with an end that customers did not use.""",
            prom(credits("ledger_credits_granted_total", HERE, "by (kind)"), "granted, {{kind}}"),
            prom(credits("ledger_credits_withdrawn_total", HERE), "withdrawn"),
            prom(credits("ledger_credits_expired_total", HERE, "by (kind)"), "expired, {{kind}}"),
            prom(f"sum by (kind) (rate(ledger_grants_total{{{HERE}}}{RATE}))", "grants a second, {{kind}}"),
            bars=True,
        ),
        graph(
            "Overage of the month",
            "currencyUSD",
            """Overage of the current month in USD, at each account's price: used, and held by open jobs; and how fast
            it is charged, a day. It starts again at zero on the 1st. A steep rise: see *Business*, overage against
            caps.""",
            prom("max by (state) (ledger_overage_month_usd)", "{{state}}"),
            prom(f"sum(rate(ledger_overage_charged_usd_total{{{HERE}}}{RATE})) * 86400", "charged, a day at this rate"),
        ),
        graph(
            "Overdraft and overage in credits",
            "short",
            """Charges that nobody has paid yet, how many accounts owe them, and the month's overage in credits.
            Overdraft that grows blocks those accounts' reservations: find them in *Business*, accounts with an
            overdraft.""",
            prom("max(ledger_overdraft_credits)", "overdraft"),
            prom("max(ledger_overdraft_accounts)", "accounts with an overdraft"),
            prom("max by (state) (ledger_overage_month_credits)", "overage {{state}}"),
        ),
    ]


def _batches() -> list[AnyPanel]:
    steps = (
        f"sum by (step) (rate(ledger_batch_step_seconds_sum{{{HERE}}}{RATE}))"
        f" / (sum by (step) (rate(ledger_batch_step_seconds_count{{{HERE}}}{RATE})) > 0)"
    )
    size = (
        f"sum(rate(ledger_batch_commands_sum{{{HERE}}}{RATE}))"
        f" / (sum(rate(ledger_batch_commands_count{{{HERE}}}{RATE})) > 0)"
    )
    return [
        graph(
            "Queue depth",
            "short",
            """Commands that wait for a batch and requests under way, by replica, and how many may. Near a limit: more
            arrives than the database commits; see *Steps of a batch*, and add replicas if the database has room.""",
            prom(f"sum by (instance) (ledger_queue_commands{{{HERE}}})", "commands {{instance}}"),
            prom(f"sum by (instance) (ledger_requests_in_flight{{{HERE}}})", "requests {{instance}}"),
            prom(f"max(ledger_queue_limit_commands{{{HERE}}})", "limit of commands"),
            prom(f"max(ledger_requests_limit{{{HERE}}})", "limit of requests"),
        ),
        graph(
            "Wait in the queue",
            "s",
            """Time from submitting a command to its batch. An idle service waits for nothing; p99 far above the time of
            a batch means that several batches' worth of commands wait.""",
            *_quantiles("ledger_queue_wait_seconds", HERE),
        ),
        graph(
            "Commands in a batch",
            "short",
            """How many commands share a transaction: on average, and in the largest of a hundred. It grows with load,
            which is how it should be; always at `LEDGER_BATCH_SIZE` with a queue that grows: allow larger batches.""",
            prom(size, "average"),
            prom(_quantile(0.99, "ledger_batch_commands", HERE), "p99"),
        ),
        graph(
            "Time of a batch",
            "s",
            """Time from taking a batch to its commit, of the median, and of the slowest. Longer at the same size: the
            database is slower (checkpoints, disk, replication); see *Steps of a batch*.""",
            *_quantiles("ledger_batch_seconds", HERE),
        ),
        graph(
            "Steps of a batch",
            "s",
            """Average time of each step. `lock` high: replicas wait for each other's accounts, or a long transaction
            holds them (`pg_stat_activity`). `commit` high: the disk or a synchronous standby. `connect`: the pool.
            `decide` is our own processor time.""",
            prom(steps, "{{step}}"),
            bars=True,
        ),
        graph(
            "Retries, failures, turned away",
            "ops",
            """Batches run again, by reason, batches given up, commands turned away because the queue was full, and
            requests turned away because too many were under way. Deadlocks now and then are harmless; many mean that
            something else locks the ledger's tables. `defect` is a bug: the log names the command.""",
            prom(f"sum by (reason) (rate(ledger_batch_retries_total{{{HERE}}}{RATE}))", "again: {{reason}}"),
            prom(f"sum by (reason) (rate(ledger_batch_failures_total{{{HERE}}}{RATE}))", "given up: {{reason}}"),
            prom(f"sum(rate(ledger_queue_full_total{{{HERE}}}{RATE}))", "commands turned away"),
            prom(f"sum(rate(ledger_requests_shed_total{{{HERE}}}{RATE}))", "requests turned away"),
        ),
    ]


def _database() -> list[AnyPanel]:
    return [
        figure(
            "Database",
            "none",
            """Whether every chosen replica could read the database for its last scrape. Away: is PostgreSQL up, can the
            service reach and enter it (`GET /health/ready`, the log's `database_away`)? Commands that wait are answered
            when it is back, or with 503.""",
            prom(f"min(ledger_database_up{{{HERE}}})", instant=True),
            limit=Limit(1, low=True),
            words={"0": "away", "1": "there"},
            nothing="no replica",
        ),
        graph(
            "Connections in use",
            "percentunit",
            """Connections in use of those that each pool may have. A pool at 100 % for long makes its callers wait:
            `reading` or `primary` are reports (`LEDGER_READ_POOL_SIZE`), `batches` is always busy under load.""",
            prom(
                f"""sum by (pool) (ledger_database_connections{{{HERE}, state="used"}})
                / sum by (pool) (ledger_database_connections_limit{{{HERE}}})""",
                "{{pool}}",
            ),
            prom(f"sum(ledger_database_connections{{{HERE}}})", "connections in all"),
            width=10,
        ),
        graph(
            "Reading the state",
            "s",
            """How long the figures of this dashboard that come from the database take to read, and how old they are.
            Slow: the tables of open holds or of endpoints have grown, or the database is busy; figures older than a
            minute are not shown.""",
            prom(f"max(ledger_state_read_seconds{{{HERE}}})", "reading"),
            prom(f"max(ledger_state_age_seconds{{{HERE}}})", "age"),
            width=10,
        ),
    ]


def _books() -> list[AnyPanel]:
    return [
        figure(
            "Discrepancies of the last audit",
            "none",
            """What the last audit that came to its end found wrong with the books, until another does. Above 0 it is an
            incident: run `gateway-ledger audit`, which names each, and change nothing before it is understood.""",
            prom("max(ledger_audit_discrepancies)", instant=True),
            limit=Limit(1),
            nothing="no audit yet",
            width=6,
        ),
        figure(
            "Accounts below nothing",
            "none",
            """Accounts with less than nothing available. The database forbids it, so above 0 means that a constraint
            was dropped: run the audit, put the constraint back.""",
            prom("max(ledger_negative_available_accounts)", instant=True),
            limit=Limit(1),
            width=6,
        ),
        figure(
            "Accounts with a month to close",
            "none",
            """Accounts with a month that ended and is not closed. On the 1st that is nearly all, for up to a day.
            Later: an account has an open hold of that month, or `close_period` fails; run it by hand and read what it
            says.""",
            prom("max(ledger_unclosed_accounts)", instant=True),
            width=6,
        ),
        figure(
            "Oldest month not closed, since",
            "s",
            """How long ago the oldest month ended that is not closed; nothing can be invoiced for it before. More than
            two days: see the runbook of LedgerMonthNotClosed.""",
            prom("max(ledger_oldest_unclosed_month_seconds)", instant=True),
            limit=Limit(172_800, warn=86_400),
            width=6,
        ),
        graph(
            "Open holds",
            "short",
            """Jobs that are reserved and not closed. It follows the traffic; if it only grows, the gateway does not
            close its jobs and they end by their deadlines (*How jobs end*).""",
            prom(
                'max by (environment, slot) (ledger_open_holds{environment=~"$environment"})',
                "{{environment}} {{slot}}",
            ),
        ),
        graph(
            "Age of the oldest hold",
            "s",
            """How long ago the oldest job was reserved that is still open; at most a day and a sweep. It is the
            customer's `ttl_seconds` that decides, 15 minutes where none is given.""",
            prom(
                'max by (environment, slot) (ledger_oldest_hold_age_seconds{environment=~"$environment"})',
                "{{environment}} {{slot}}",
            ),
            limit=Limit(86_460),
        ),
        graph(
            "Holds past their deadline, since",
            "s",
            """How long ago the oldest open hold should have ended. Balances know it already; the sweep `expire_holds`
            enters it within 30 seconds. More than a minute: it does not run, or fails; see *Sweeps*.""",
            prom("max(ledger_oldest_hold_overdue_seconds)", "overdue"),
            limit=Limit(60),
        ),
    ]


def _sweeps() -> list[AnyPanel]:
    late = "time() - max by (sweep) (ledger_sweep_last_success_timestamp_seconds > 0)"
    return [
        graph(
            "Lateness of sweeps",
            "none",
            """Time since each sweep last succeeded, in units of how often it is to run: 1 is on time, above 3 is stale.
            Stale: no replica runs sweeps (`LEDGER_NO_SWEEPS`), or it fails; `GET /v1/sweeps` has the error.""",
            prom(f"({late}) / max by (sweep) (ledger_sweep_interval_seconds)", "{{sweep}}"),
            limit=Limit(3),
            width=12,
        ),
        graph(
            "Time of the last run",
            "s",
            """How long the last run of each sweep took. Near its interval: it has more to do than it gets done; run it
            by hand beside, or look at what it counts.""",
            prom("max by (sweep) (ledger_sweep_last_duration_seconds)", "{{sweep}}"),
            width=12,
        ),
        graph(
            "Sweeps that failed",
            "none",
            """1 where the last run of a sweep failed. The error is in `GET /v1/sweeps` and in the log (`sweep_failed`);
            it is run again at its next time, and does nothing twice.""",
            prom("max by (sweep) (ledger_sweep_last_failed)", "{{sweep}}"),
            limit=Limit(1),
        ),
        graph(
            "Runs of sweeps",
            "ops",
            """Runs a second on the chosen replicas, by outcome; `skipped` is where another replica was at it. None at
            all: the scheduler is off (`LEDGER_NO_SWEEPS`) or stuck.""",
            prom(f"sum by (sweep, outcome) (rate(ledger_sweep_runs_total{{{HERE}}}{RATE}))", "{{sweep}} {{outcome}}"),
        ),
        graph(
            "What sweeps did",
            "short",
            """What the last run of each sweep counted, and what sweeps do a second here. Large counts after an outage
            are the backlog. `months_waiting`: accounts whose month cannot be closed while a hold of it is open.""",
            prom("max by (sweep, item) (ledger_sweep_last_items) > 0", "{{sweep}} {{item}}"),
            prom(
                f"sum by (sweep, item) (rate(ledger_sweep_items_total{{{HERE}}}{RATE})) > 0",
                "{{sweep}} {{item}}, a second",
            ),
        ),
    ]


def _outbox() -> list[AnyPanel]:
    return [
        graph(
            "Events raised",
            "ops",
            """Events a second by type. Many `credits.exhausted`: customers run dry. Many `job.expired`: jobs are not
            closed. `period.closed` comes once per account on the 1st.""",
            prom(f"sum by (type) (rate(ledger_events_total{{{HERE}}}{RATE}))", "{{type}}"),
            bars=True,
        ),
        graph(
            "Events to be delivered",
            "short",
            """Events that each endpoint has yet to be given. It grows while the receiver is away and falls by itself;
            growing without end: see *Attempts to deliver*, and ask the receiver.""",
            prom("max by (endpoint) (ledger_outbox_backlog_events)", "{{endpoint}}"),
        ),
        graph(
            "Oldest event to be delivered",
            "s",
            """Age of the oldest event that each endpoint has yet to be given. Above a quarter of an hour the receiver
            refuses or is away; retries go on for about ten hours, then the delivery is `exhausted` and can be
            replayed.""",
            prom("max by (endpoint) (ledger_outbox_oldest_age_seconds)", "{{endpoint}}"),
            limit=Limit(900),
        ),
        graph(
            "Attempts to deliver",
            "ops",
            """Attempts a second by endpoint and outcome. `failed` is tried again; `gone` is a receiver that answered
            410 and gets nothing more; `undeliverable` is an event whose content is gone.""",
            prom(
                f"sum by (endpoint, outcome) (rate(ledger_delivery_attempts_total{{{HERE}}}{RATE}))",
                "{{endpoint}} {{outcome}}",
            ),
            width=12,
        ),
        figure(
            "Redis",
            "none",
            """Whether Redis did what every chosen replica asked of it last; nothing where none is configured. Away, or
            it refuses: the ledger works on without it, and what would have been published is caught up later.""",
            prom(f"min(ledger_redis_up{{{HERE}}})", instant=True),
            limit=Limit(1, low=True),
            words={"0": "away", "1": "there"},
            nothing="not configured",
        ),
        graph(
            "Published in Redis",
            "ops",
            """What was published in Redis a second, and how often that failed. Failures: the address in
            `LEDGER_REDIS_URL`, its memory (`maxmemory`), its rights.""",
            prom(f"sum by (what) (rate(ledger_redis_published_total{{{HERE}}}{RATE}))", "{{what}}"),
            prom(f"sum(rate(ledger_redis_failures_total{{{HERE}}}{RATE}))", "failed"),
        ),
        graph(
            "How far Redis is behind",
            "s",
            """Time since everything there was to publish had been, at the replica that is worst off: events in streams,
            balances of what it committed. A second or two is usual. More: see *Redis*, and the log for `redis_away` and
            `redis_put_off`.""",
            prom(
                f"""time() - min by (work)
                (ledger_redis_last_success_timestamp_seconds{{{HERE}, work=~"streams|balances"}})""",
                "{{work}}",
            ),
            limit=Limit(300),
        ),
        graph(
            "Balances that wait for Redis",
            "short",
            """Accounts whose balances have yet to be published, of each replica. It falls to 0 again and again; if it
            only grows, Redis refuses or is away. Past 50,000 they are dropped, and a walk through all accounts makes up
            for them.""",
            prom(f"ledger_redis_waiting_balances{{{HERE}}}", "{{instance}}"),
        ),
    ]


def _processes() -> list[AnyPanel]:
    return [
        graph(
            "Processor",
            "percentunit",
            """Processor time of each replica, where 100 % is one core. A replica decides on one core: near 100 % it is
            the bottleneck; add a replica.""",
            prom(
                f"rate(process_cpu_seconds_total{{{HERE}}}{RATE}) and on (instance) ledger_build_info{{{HERE}}}",
                "{{instance}}",
            ),
            width=6,
        ),
        graph(
            "Memory",
            "bytes",
            """Resident memory of each replica. It grows with the queue and with large results, then stays. A steady
            climb over days: restart one replica and compare.""",
            prom(
                f"process_resident_memory_bytes{{{HERE}}} and on (instance) ledger_build_info{{{HERE}}}", "{{instance}}"
            ),
            width=6,
        ),
        graph(
            "Version and uptime",
            "s",
            """Time since each replica started, with its version. Two versions for long: a deployment got stuck. Uptime
            that falls again and again: it crashes; see the log's last lines before each start.""",
            prom(
                f"""(time() - process_start_time_seconds{{{HERE}}})
                * on (instance) group_left (version) ledger_build_info{{{HERE}}}""",
                "{{instance}} {{version}}",
            ),
            width=6,
        ),
        graph(
            "Lines of the log dropped",
            "ops",
            """Lines a second that were logged and dropped, since whatever reads standard error took none. The service
            does not wait for it; what happened meanwhile is in no log. Look at the log collector, and its disk.""",
            prom(f"sum by (instance) (rate(ledger_log_lines_dropped_total{{{HERE}}}{RATE}))", "{{instance}}"),
            width=6,
        ),
    ]
