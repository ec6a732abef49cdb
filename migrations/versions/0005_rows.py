"""Types of the rows that a batch writes, and room beside jobs.

One array of rows is cheaper than an array for each of their columns. A type is never altered, since replicas of two
versions may use it at once: what takes other columns gets a new one.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"

TYPES = {
    "freed_key": "account bigint, number bigint",
    "opened_job": """
        account bigint, number bigint, job_id text, environment text, operation text, slot text, period text,
        price_version text, lines json, transfer_allowance bigint, held_credits bigint, held_overage bigint,
        partial bool, sources json, created_at timestamptz, expires_at timestamptz, request bytea,
        idempotency_key text, metadata json, still_open bool
    """,
    "closed_job": """
        account bigint, number bigint, expires_at timestamptz, status text, closed_at timestamptz, closed_entry bigint,
        charged bigint, returned bigint, over_hold bigint, charged_overage bigint, charged_overdraft bigint,
        error_code text, settle_request bytea, result_stored bool, segments json, overdraft bigint, refunded bigint,
        environment text, operation text, lines json, result json, request_id text, status_code int, latency_ms int,
        key_prefix text
    """,
    "resegmented_job": "account bigint, number bigint, segments json, overdraft bigint, refunded bigint",
    "new_grant": """
        account bigint, number bigint, grant_id text, kind text, granted bigint, remaining bigint, held bigint,
        live bool, expires_at timestamptz, reference text, created_at timestamptz, request bytea
    """,
    "changed_grant": "account bigint, number bigint, remaining bigint, held bigint, live bool",
    "period_figures": """
        account bigint, period text, live_used bigint, live_held bigint, test_used bigint, test_held bigint,
        overage_used bigint, overage_held bigint, granted bigint, adjusted bigint, charged bigint, refunded bigint,
        refunded_to_balance bigint, expired bigint, adjusted_up bigint, overage_price bigint, opening bigint,
        threshold_raised int, cap_raised bool, closed_at timestamptz
    """,
    "entry": """
        account bigint, sequence bigint, kind text, job bigint, at timestamptz, postings smallint, hash bytea
    """,
    "posting": """
        account bigint, sequence bigint, position smallint, debit text, credit text, credits bigint, operation text,
        quantity bigint
    """,
    "balance_figures": """
        account bigint, sequence bigint, head bytea, at timestamptz, available bigint, held bigint, overdraft bigint,
        live_requests int, live_calls int, test_requests int, test_calls int, last_grant bigint, exhausted_after bigint
    """,
    "usage": """
        account bigint, period text, day date, environment text, operation text, unit text, quantity bigint,
        credits bigint, refunded bigint, jobs bigint, first_jobs bigint
    """,
    "refund": """
        account bigint, refund_id text, job bigint, entry bigint, credits bigint, credits_refunded bigint,
        to_overage bigint, to_overdraft bigint, reason text, created_at timestamptz
    """,
    "cycle": "account bigint, month text, status text, updated_at timestamptz",
    "policy": """
        account bigint, module_enabled bool, suspended bool, payment_method_verified bool, overage_enabled bool,
        cap_usd bigint, credit_price_usd bigint, paid_cycles int, welcome_at timestamptz, closed_through text,
        deletion_code text, deletion_status text, deletion_requested_at timestamptz, deletion_executes_at timestamptz
    """,
    "quota": "account bigint, environment text, max_requests int, max_calls int, period_credits bigint",
    "closed_statement": "account bigint, period text, statement json, closed_at timestamptz",
    "event": """
        account bigint, id text, once text, type text, environment text, created timestamptz, data json
    """,
    "used_price": "version text, digest text, used_since timestamptz",
}


def upgrade() -> None:
    for name, columns in TYPES.items():
        op.execute(f"create type ledger.{name} as ({columns})")
    # A job is written when it opens and again, longer, when it closes: with less room than that beside it, the second
    # goes to another page, and every index with it.
    op.execute("alter table ledger.jobs set (fillfactor = 40)")


def downgrade() -> None:
    op.execute("alter table ledger.jobs set (fillfactor = 60)")
    for name in TYPES:
        op.execute(f"drop type ledger.{name}")
