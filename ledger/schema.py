"""The tables, as SQLAlchemy Core knows them: what the migrations make, every constraint and index by its name.

The migrations are the truth; `tests/migration/test_schema.py` sees to it that this says the same. What only the
database itself can enforce (triggers, rights) is there alone.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.types import TypeEngine

SCHEMA: Final = "ledger"

metadata: Final = MetaData(schema=SCHEMA)

_PERIOD_PATTERN: Final = "'^[0-9]{4}-(0[1-9]|1[0-2])$'"
_ENVIRONMENTS: Final = "environment in ('live', 'test')"


def _key(name: str, kind: type[TypeEngine[Any]] = BigInteger, **options: Any) -> Column[Any]:
    return Column(name, kind(), nullable=False, autoincrement=False, **options)


def _needed(name: str, kind: TypeEngine[Any] | type[TypeEngine[Any]], **options: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **options)


def _count(name: str, kind: type[TypeEngine[Any]] = BigInteger) -> Column[Any]:
    return Column(name, kind(), nullable=False, server_default=text("0"))


def _instant(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def _switch(name: str) -> Column[Any]:
    return Column(name, Boolean, nullable=False, server_default=false())


# -- accounts ------------------------------------------------------------------------------------------------------

accounts: Final = Table(
    "accounts",
    metadata,
    Column("account", BigInteger, Identity(always=True), nullable=False),
    Column("account_id", Text),
    _instant("created_at"),
    _switch("module_enabled"),
    _switch("suspended"),
    _switch("payment_method_verified"),
    _switch("overage_enabled"),
    Column("cap_usd", BigInteger, comment="micro-dollars; null means the provider's ceiling (O2)"),
    Column("credit_price_usd", BigInteger, comment="micro-dollars for one credit (O7)"),
    _count("paid_cycles", Integer),
    _instant("welcome_at", nullable=True),
    Column("closed_through", Text, comment="the last month whose statement is closed (V6)"),
    Column("deletion_code", Text),
    Column("deletion_status", Text),
    _instant("deletion_requested_at", nullable=True),
    _instant("deletion_executes_at", nullable=True),
    PrimaryKeyConstraint("account", name="accounts_pkey"),
    UniqueConstraint("account_id", name="accounts_account_id_key"),
    UniqueConstraint("deletion_code", name="accounts_deletion_code_key"),
    CheckConstraint(
        "deletion_status in ('pending', 'cancelled', 'deleting', 'executed')", name="accounts_deletion_status_check"
    ),
    Index(
        "accounts_welcome_idx",
        "account",
        postgresql_where=text("welcome_at is null and module_enabled and payment_method_verified and not suspended"),
    ),
    Index("accounts_deletion_idx", "account", postgresql_where=text("deletion_status in ('pending', 'deleting')")),
    Index("accounts_unclosed_idx", "closed_through", "created_at", postgresql_where=text("account_id is not null")),
    CheckConstraint("cap_usd >= 0", name="accounts_cap_usd_check"),
    CheckConstraint("credit_price_usd > 0", name="accounts_credit_price_usd_check"),
    CheckConstraint("credit_price_usd is not null or not overage_enabled", name="accounts_overage_needs_price"),
)

balances: Final = Table(
    "balances",
    metadata,
    _key("account"),
    _count("sequence"),
    _needed("head", LargeBinary),
    _instant("at"),
    _count("available"),
    _count("held"),
    _count("overdraft"),
    _count("live_requests", Integer),
    _count("live_calls", Integer),
    _count("test_requests", Integer),
    _count("test_calls", Integer),
    _count("last_grant"),
    Column("exhausted_after", BigInteger),
    PrimaryKeyConstraint("account", name="balances_pkey"),
    ForeignKeyConstraint(["account"], [accounts.c.account], name="balances_account_fkey"),
    CheckConstraint("available >= 0", name="balances_available_check"),
    CheckConstraint("held >= 0", name="balances_held_check"),
    CheckConstraint("overdraft >= 0", name="balances_overdraft_check"),
    CheckConstraint("available = 0 or overdraft = 0", name="balances_overdraft_is_last"),
    CheckConstraint(
        "live_requests >= 0 and live_calls >= 0 and test_requests >= 0 and test_calls >= 0",
        name="balances_open_check",
    ),
    postgresql_with={"fillfactor": 50},
)

quotas: Final = Table(
    "quotas",
    metadata,
    _key("account"),
    _key("environment", Text),
    _needed("max_requests", Integer),
    _needed("max_calls", Integer),
    Column("period_credits", BigInteger),
    PrimaryKeyConstraint("account", "environment", name="quotas_pkey"),
    ForeignKeyConstraint(["account"], [accounts.c.account], name="quotas_account_fkey"),
    CheckConstraint(_ENVIRONMENTS, name="quotas_environment_check"),
    CheckConstraint("max_requests >= 0 and max_calls >= 0 and period_credits >= 0", name="quotas_ceilings_check"),
)

billing_cycles: Final = Table(
    "billing_cycles",
    metadata,
    _key("account"),
    _key("month", Text),
    _needed("status", Text),
    _instant("updated_at"),
    PrimaryKeyConstraint("account", "month", name="billing_cycles_pkey"),
    ForeignKeyConstraint(["account"], [accounts.c.account], name="billing_cycles_account_fkey"),
    CheckConstraint(f"month ~ {_PERIOD_PATTERN}", name="billing_cycles_month_check"),
    CheckConstraint(
        "status in ('open', 'paid_on_time', 'paid_late', 'overdue', 'returned')",
        name="billing_cycles_status_check",
    ),
)

grants: Final = Table(
    "grants",
    metadata,
    _key("account"),
    _key("number", BigInteger, comment="the entry that put it"),
    _needed("grant_id", Text),
    _needed("kind", Text),
    _needed("granted", BigInteger),
    _needed("remaining", BigInteger),
    _needed("held", BigInteger),
    _needed("live", Boolean),
    _instant("expires_at", nullable=True),
    Column("reference", Text),
    _instant("created_at"),
    _needed("request", LargeBinary),
    PrimaryKeyConstraint("account", "number", name="grants_pkey"),
    UniqueConstraint("account", "grant_id", name="grants_grant_id_key"),
    CheckConstraint("kind in ('plan', 'purchase', 'welcome', 'adjustment')", name="grants_kind_check"),
    CheckConstraint("remaining >= 0", name="grants_remaining_check"),
    CheckConstraint("held >= 0", name="grants_held_check"),
    CheckConstraint("live = (remaining > 0 or held > 0)", name="grants_live_check"),
    CheckConstraint("(kind = 'welcome') = (grant_id = 'welcome')", name="grants_welcome_check"),
    Index("grants_live_idx", "account", postgresql_where=text("live")),
    Index("grants_ending_idx", "expires_at", postgresql_where=text("live and expires_at is not null")),
    postgresql_with={"fillfactor": 70},
)

# -- jobs ----------------------------------------------------------------------------------------------------------

jobs: Final = Table(
    "jobs",
    metadata,
    _key("account"),
    _key("number", BigInteger, comment="the entry that reserved it"),
    _needed("job_id", Text),
    _needed("environment", Text),
    _needed("operation", Text),
    _needed("slot", Text),
    _needed("period", Text),
    _needed("price_version", Text),
    _needed("lines", JSON),
    _needed("transfer_allowance", BigInteger),
    _needed("held_credits", BigInteger),
    _needed("held_overage", BigInteger),
    _needed("partial", Boolean),
    _needed("sources", JSON),
    _instant("created_at"),
    _instant("expires_at"),
    _needed("request", LargeBinary),
    Column("idempotency_key", Text),
    Column("metadata", JSON),
    _needed("status", Text, server_default=text("'reserved'")),
    _instant("closed_at", nullable=True),
    Column("closed_entry", BigInteger),
    Column("charged", BigInteger),
    Column("returned", BigInteger),
    Column("over_hold", BigInteger),
    Column("charged_overage", BigInteger),
    Column("charged_overdraft", BigInteger),
    Column("error_code", Text),
    Column("settle_request", LargeBinary),
    Column("result_stored", Boolean),
    Column("segments", JSON),
    _count("overdraft"),
    _count("refunded"),
    PrimaryKeyConstraint("account", "number", name="jobs_pkey"),
    UniqueConstraint("account", "job_id", name="jobs_job_id_key"),
    CheckConstraint(_ENVIRONMENTS, name="jobs_environment_check"),
    CheckConstraint("slot in ('request', 'call')", name="jobs_slot_check"),
    CheckConstraint("status in ('reserved', 'settled', 'released', 'expired')", name="jobs_status_check"),
    CheckConstraint("held_credits > 0 and held_overage between 0 and held_credits", name="jobs_held_check"),
    CheckConstraint("(status = 'reserved') = (closed_at is null)", name="jobs_closed_check"),
    CheckConstraint("status = 'settled' or coalesce(charged, 0) = 0", name="jobs_charged_once"),
    CheckConstraint("refunded between 0 and coalesce(charged, 0)", name="jobs_refunded_check"),
    CheckConstraint("overdraft >= 0", name="jobs_overdraft_check"),
    Index(
        "jobs_idempotency_key_key",
        "account",
        "environment",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key is not null"),
    ),
    Index("jobs_overdraft_idx", "account", "number", postgresql_where=text("overdraft > 0")),
    postgresql_with={"fillfactor": 40},
)

holds: Final = Table(
    "holds",
    metadata,
    _key("account"),
    _instant("expires_at"),
    _key("job"),
    _needed("environment", Text),
    _needed("slot", Text),
    PrimaryKeyConstraint("account", "expires_at", "job", name="holds_pkey"),
    Index("holds_expires_at_idx", "expires_at"),
)

job_results: Final = Table(
    "job_results",
    metadata,
    _key("account"),
    _key("job"),
    _instant("closed_at"),
    _needed("lines", JSON),
    Column("result", JSON),
    PrimaryKeyConstraint("account", "job", name="job_results_pkey"),
    Index("job_results_closed_at_idx", "closed_at"),
)

refunds: Final = Table(
    "refunds",
    metadata,
    _key("account"),
    _key("refund_id", Text),
    _needed("job", BigInteger),
    _needed("entry", BigInteger),
    _needed("credits", BigInteger),
    _needed("credits_refunded", BigInteger),
    _needed("to_overage", BigInteger),
    _needed("to_overdraft", BigInteger),
    Column("reason", Text),
    _instant("created_at"),
    PrimaryKeyConstraint("account", "refund_id", name="refunds_pkey"),
    CheckConstraint("credits > 0", name="refunds_credits_check"),
    Index("refunds_job_idx", "account", "job"),
)

# -- the journal ---------------------------------------------------------------------------------------------------

entries: Final = Table(
    "entries",
    metadata,
    _key("account"),
    _key("sequence"),
    _needed("kind", Text),
    Column("job", BigInteger),
    _instant("at"),
    _needed("postings", SmallInteger, comment="how many postings it has: none can be added later (A1)"),
    _needed("hash", LargeBinary),
    PrimaryKeyConstraint("account", "sequence", name="entries_pkey"),
    CheckConstraint("sequence > 0", name="entries_sequence_check"),
    CheckConstraint(
        "kind in ('grant', 'reserve', 'settle', 'release', 'expire', 'refund', 'expire_grant')",
        name="entries_kind_check",
    ),
    CheckConstraint("postings > 0", name="entries_postings_check"),
    CheckConstraint("octet_length(hash) = 32", name="entries_hash_check"),
)

postings: Final = Table(
    "postings",
    metadata,
    _key("account"),
    _key("sequence"),
    _key("position", SmallInteger),
    _needed("debit", Text),
    _needed("credit", Text),
    _needed("credits", BigInteger),
    Column("operation", Text),
    Column("quantity", BigInteger),
    PrimaryKeyConstraint("account", "sequence", "position", name="postings_pkey"),
    CheckConstraint("position > 0", name="postings_position_check"),
    CheckConstraint("credits > 0", name="postings_credits_check"),
    CheckConstraint("debit <> credit", name="postings_movement_check"),
)

# -- totals --------------------------------------------------------------------------------------------------------

periods: Final = Table(
    "periods",
    metadata,
    _key("account"),
    _key("period", Text),
    _count("live_used"),
    _count("live_held"),
    _count("test_used"),
    _count("test_held"),
    _count("overage_used"),
    _count("overage_held"),
    _count("granted"),
    _count("adjusted"),
    _count("charged"),
    _count("refunded"),
    _count("refunded_to_balance"),
    _count("expired"),
    _count("adjusted_up"),
    Column("overage_price", BigInteger),
    Column("opening", BigInteger),
    _count("threshold_raised", Integer),
    _switch("cap_raised"),
    _instant("closed_at", nullable=True),
    PrimaryKeyConstraint("account", "period", name="periods_pkey"),
    CheckConstraint(f"period ~ {_PERIOD_PATTERN}", name="periods_period_check"),
    CheckConstraint(
        "least(live_used, live_held, test_used, test_held, overage_used, overage_held, granted, charged,"
        " refunded, refunded_to_balance, expired) >= 0",
        name="periods_figures_check",
    ),
    Index("periods_overage_idx", "period", postgresql_where=text("overage_price is not null")),
    postgresql_with={"fillfactor": 50},
)

statements: Final = Table(
    "statements",
    metadata,
    _key("account"),
    _key("period", Text),
    _needed("statement", JSON),
    _instant("closed_at"),
    PrimaryKeyConstraint("account", "period", name="statements_pkey"),
    comment="the statements of closed months, as they stay",
)

usage_totals: Final = Table(
    "usage_totals",
    metadata,
    _key("account"),
    _key("period", Text),
    _key("day", Date),
    _key("environment", Text),
    _key("operation", Text),
    _needed("unit", Text),
    _needed("quantity", BigInteger),
    _needed("credits", BigInteger),
    _needed("refunded", BigInteger),
    _needed("jobs", BigInteger),
    _needed("first_jobs", BigInteger, comment="jobs whose first charged line this is: counts each job once"),
    PrimaryKeyConstraint("account", "period", "day", "environment", "operation", name="usage_totals_pkey"),
    Index("usage_totals_day_idx", "day", postgresql_using="brin"),
    postgresql_with={"fillfactor": 50},
)

usage_records: Final = Table(
    "usage_records",
    metadata,
    _key("account"),
    _instant("closed_at"),
    _key("job"),
    _needed("environment", Text),
    _needed("operation", Text),
    _needed("status", Text),
    _needed("credits", BigInteger),
    Column("request_id", Text),
    Column("status_code", Integer),
    Column("latency_ms", Integer),
    Column("key_prefix", Text),
    PrimaryKeyConstraint("account", "closed_at", "job", name="usage_records_pkey"),
    Index("usage_records_closed_at_idx", "closed_at", postgresql_using="brin"),
)

# -- prices and time -----------------------------------------------------------------------------------------------

events: Final = Table(
    "events",
    metadata,
    Column("position", BigInteger, Identity(always=True), nullable=False),
    _needed("account", BigInteger),
    _needed("id", Text),
    _needed("once", Text, comment="what is never told a second time"),
    _needed("type", Text),
    _needed("environment", Text),
    _instant("created"),
    _needed("data", JSON),
    PrimaryKeyConstraint("position", name="events_pkey"),
    UniqueConstraint("id", name="events_id_key"),
    UniqueConstraint("account", "once", name="events_once_key"),
    CheckConstraint(_ENVIRONMENTS, name="events_environment_check"),
    Index("events_account_idx", "account", "position"),
    Index("events_environment_idx", "environment", "position"),
)

endpoints: Final = Table(
    "endpoints",
    metadata,
    _key("name", Text),
    _needed("environment", Text),
    _needed("types", ARRAY(Text)),
    _needed("position", BigInteger, comment="the last event that was turned into a delivery, or passed over"),
    PrimaryKeyConstraint("name", name="endpoints_pkey"),
    CheckConstraint(_ENVIRONMENTS, name="endpoints_environment_check"),
    CheckConstraint("position >= 0", name="endpoints_position_check"),
    comment="where events are delivered to, as the service was last configured",
)

deliveries: Final = Table(
    "deliveries",
    metadata,
    Column("delivery", BigInteger, Identity(always=True), nullable=False),
    _needed("endpoint", Text),
    _needed("account", BigInteger),
    _needed("event_id", Text),
    _count("replay", Integer),
    _needed("id", Text, comment="what the receiver sees: of a replay, another than the event's"),
    _needed("type", Text),
    _needed("status", Text, server_default=text("'pending'")),
    _count("attempts", Integer),
    Column("next_attempt_at", DateTime(timezone=True), comment="null behind another delivery of the same account"),
    Column("claimed_until", DateTime(timezone=True), comment="until when (in real time) somebody may be sending it"),
    Column("status_code", Integer),
    Column("error", Text),
    _instant("created_at"),
    _instant("finished_at", nullable=True),
    PrimaryKeyConstraint("delivery", name="deliveries_pkey"),
    UniqueConstraint("event_id", "endpoint", "replay", name="deliveries_event_key"),
    ForeignKeyConstraint(["endpoint"], [endpoints.c.name], name="deliveries_endpoint_fkey"),
    CheckConstraint(
        "id = event_id || case replay when 0 then '' else '\\:r' || replay end", name="deliveries_id_check"
    ),
    CheckConstraint("replay >= 0", name="deliveries_replay_check"),
    CheckConstraint(
        "status in ('pending', 'delivered', 'exhausted', 'gone', 'undeliverable')", name="deliveries_status_check"
    ),
    CheckConstraint("(status = 'pending') = (finished_at is null)", name="deliveries_finished_check"),
    CheckConstraint("status = 'pending' or next_attempt_at is null", name="deliveries_next_check"),
    Index("deliveries_due_idx", "endpoint", "next_attempt_at", postgresql_where=text("next_attempt_at is not null")),
    Index(
        "deliveries_waiting_idx",
        "endpoint",
        "account",
        "delivery",
        postgresql_where=text("status = 'pending' and replay = 0"),
    ),
    comment="the record of each delivery, without its body (R5)",
)

delivery_attempts: Final = Table(
    "delivery_attempts",
    metadata,
    _key("delivery"),
    _key("number", Integer),
    _instant("at"),
    Column("status_code", Integer),
    Column("error", Text),
    _needed("milliseconds", Integer),
    PrimaryKeyConstraint("delivery", "number", name="delivery_attempts_pkey"),
    ForeignKeyConstraint(["delivery"], [deliveries.c.delivery], name="delivery_attempts_delivery_fkey"),
    CheckConstraint("number > 0", name="delivery_attempts_number_check"),
    CheckConstraint("milliseconds >= 0", name="delivery_attempts_milliseconds_check"),
)

sweeps: Final = Table(
    "sweeps",
    metadata,
    _key("name", Text),
    _instant("started_at"),
    _instant("finished_at", nullable=True),
    _instant("succeeded_at", nullable=True),
    Column("counts", JSON),
    Column("error", Text),
    Column("succeeded_counts", JSON, comment="what the run did that succeeded last"),
    PrimaryKeyConstraint("name", name="sweeps_pkey"),
    comment="the last run of each sweep",
)

price_versions: Final = Table(
    "price_versions",
    metadata,
    _key("version", Text),
    _needed("digest", Text),
    _instant("used_since"),
    PrimaryKeyConstraint("version", name="price_versions_pkey"),
    comment="the catalog versions that reservations have used (P9)",
)

clock: Final = Table(
    "clock",
    metadata,
    _key("one", Boolean, server_default=true()),
    _instant("now"),
    PrimaryKeyConstraint("one", name="clock_pkey"),
    CheckConstraint("one", name="clock_one_check"),
    comment="the simulated clock; empty where time is real",
)
