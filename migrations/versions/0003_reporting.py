"""Read-only views for dashboards, in a schema of their own, and the role that may read them and nothing else.

They show what is entered in the ledger: a hold or a grant whose time is over is in them until the next sweep enters it,
while the HTTP interface shows it ended at once (contract T1). None of them adds up the journal: each reads a total that
is kept, or reaches its rows by the account's key. They hold no result, no metadata, no fingerprint and no key.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"

SCHEMA = (
    "create schema reporting",
    "comment on schema reporting is 'read-only views for dashboards; ledger_reader reads them and nothing else'",
)

INDEX = "create index usage_totals_day_idx on ledger.usage_totals using brin (day)"
"""Days are written in their order, so the little that it costs finds those of a month among those of years."""

TODAY = """
create view reporting.today as
select
    now,
    (now at time zone 'UTC')::date as day,
    to_char(now at time zone 'UTC', 'YYYY-MM') as month,
    date_trunc('month', now at time zone 'UTC')::date as month_start,
    to_char(date_trunc('month', now at time zone 'UTC') - interval '1 day', 'YYYY-MM') as last_month,
    (date_trunc('month', now at time zone 'UTC') - interval '1 month')::date as last_month_start
from (select coalesce((select now from ledger.clock), current_timestamp) as now) clock
"""

ACCOUNTS = """
create view reporting.accounts as
select
    a.account_id,
    a.created_at,
    a.module_enabled,
    case when a.suspended then 'suspended' else 'active' end as access,
    a.payment_method_verified,
    a.welcome_at as welcome_granted_at,
    a.welcome_at is null and a.module_enabled and a.payment_method_verified and not a.suspended as waits_for_welcome,
    case a.deletion_status when 'deleting' then 'pending' else a.deletion_status end as deletion_status,
    a.deletion_executes_at,
    a.closed_through,
    b.at as entered_at,
    b.available,
    b.held,
    b.overdraft,
    a.overage_enabled,
    a.overage_enabled and a.payment_method_verified as overage_usable,
    a.credit_price_usd::numeric / 1000000 as credit_price_usd,
    a.cap_usd::numeric / 1000000 as cap_usd,
    a.paid_cycles,
    cap.ceiling::numeric / 1000000 as provider_ceiling_usd,
    cap.effective::numeric / 1000000 as effective_cap_usd,
    cap.effective / a.credit_price_usd as effective_cap_credits,
    coalesce(p.overage_used, 0) as overage_used,
    coalesce(p.overage_held, 0) as overage_held,
    coalesce(p.overage_used, 0)::numeric * coalesce(p.overage_price, 0) / 1000000 as overage_used_usd,
    case when a.overage_enabled and a.payment_method_verified
        then greatest(
            0, cap.effective / a.credit_price_usd - coalesce(p.overage_used, 0) - coalesce(p.overage_held, 0)
        )
        else 0
    end as overage_headroom
from ledger.accounts a
join ledger.balances b on b.account = a.account
cross join reporting.today t
cross join lateral (
    select ceiling, least(a.cap_usd, ceiling) as effective
    from (
        select case when a.paid_cycles >= 6 then 500 when a.paid_cycles >= 3 then 100 else 20 end * 1000000::bigint
            as ceiling
    ) ladder
) cap
left join ledger.periods p on p.account = a.account and p.period = t.month
where a.account_id is not null
"""

ENVIRONMENTS = """
create view reporting.environments as
select
    account_id,
    environment,
    max_requests,
    max_calls,
    period_credits,
    used,
    held,
    case when period_credits is not null then greatest(0, period_credits - used - held) end as remaining,
    open_requests,
    open_calls,
    case when open_requests >= max_requests and shut is null then 'concurrency_limit_reached'
        else coalesce(shut, short) end as request_refused_with,
    case when open_calls >= max_calls and shut is null then 'call_concurrency_limit_reached'
        else coalesce(shut, short) end as call_refused_with
from (
    select
        a.account_id,
        e.environment,
        q.max_requests,
        q.max_calls,
        q.period_credits,
        coalesce(case e.environment when 'live' then p.live_used else p.test_used end, 0) as used,
        coalesce(case e.environment when 'live' then p.live_held else p.test_held end, 0) as held,
        case e.environment when 'live' then b.live_requests else b.test_requests end as open_requests,
        case e.environment when 'live' then b.live_calls else b.test_calls end as open_calls,
        case
            when not a.module_enabled or a.suspended or q.account is null then 'gateway_not_enabled'
            when q.period_credits = 0 then 'request_exceeds_period_quota'
        end as shut,
        case
            when q.period_credits <= coalesce(
                case e.environment when 'live' then p.live_used + p.live_held else p.test_used + p.test_held end, 0
            ) then 'period_quota_exhausted'
            when b.overdraft > 0 then 'insufficient_credits'
            when b.available > 0 then null
            when not (a.overage_enabled and a.payment_method_verified) then 'insufficient_credits'
            when r.overage_headroom = 0 then 'spending_cap_reached'
        end as short
    from ledger.accounts a
    join reporting.accounts r on r.account_id = a.account_id
    join ledger.balances b on b.account = a.account
    cross join (values ('live'), ('test')) e (environment)
    cross join reporting.today t
    left join ledger.quotas q on q.account = a.account and q.environment = e.environment
    left join ledger.periods p on p.account = a.account and p.period = t.month
) standing
"""

MONTHS = """
create view reporting.months as
select
    a.account_id,
    p.period as month,
    (p.period || '-01')::date as month_start,
    p.closed_at,
    p.granted,
    p.adjusted,
    p.charged,
    p.charged - p.overage_used - (p.refunded - p.refunded_to_balance) as charged_from_balance,
    p.refunded,
    p.refunded_to_balance,
    p.charged - p.refunded as net,
    p.expired,
    p.overage_used,
    p.overage_held,
    p.overage_used::numeric * coalesce(p.overage_price, 0) / 1000000 as overage_usd,
    p.live_used,
    p.live_held,
    p.test_used,
    p.test_held
from ledger.periods p
join ledger.accounts a on a.account = p.account
"""

USAGE = """
create view reporting.usage as
select
    a.account_id,
    u.period as month,
    u.day,
    u.environment,
    u.operation,
    u.unit,
    u.quantity,
    u.credits,
    u.refunded as refunded_credits,
    u.credits - u.refunded as net_credits,
    u.jobs,
    u.first_jobs
from ledger.usage_totals u
join ledger.accounts a on a.account = u.account
"""

GRANTS = """
create view reporting.grants as
select
    a.account_id,
    g.number,
    g.grant_id,
    g.kind,
    g.granted,
    g.remaining,
    g.held,
    g.live,
    g.expires_at,
    coalesce(g.expires_at <= t.now, false) as ended,
    g.reference,
    g.created_at
from ledger.grants g
join ledger.accounts a on a.account = g.account
cross join reporting.today t
"""

HOLDS = """
create view reporting.holds as
select
    a.account_id,
    j.job_id,
    h.environment,
    j.operation,
    h.slot,
    j.held_credits,
    j.held_overage,
    j.created_at,
    h.expires_at,
    h.expires_at <= t.now as due
from ledger.holds h
join ledger.accounts a on a.account = h.account
join ledger.jobs j on j.account = h.account and j.number = h.job
cross join reporting.today t
"""

JOBS = """
create view reporting.jobs as
select
    a.account_id,
    j.number,
    j.job_id,
    j.environment,
    j.operation,
    j.period as month,
    j.status,
    j.held_credits,
    j.held_overage,
    j.charged,
    j.charged_overage,
    j.charged_overdraft,
    j.overdraft as unpaid,
    j.refunded,
    j.over_hold,
    j.error_code,
    j.created_at,
    j.expires_at,
    j.closed_at
from ledger.jobs j
join ledger.accounts a on a.account = j.account
"""

RECORDS = """
create view reporting.records as
select
    a.account_id,
    r.closed_at,
    r.environment,
    r.operation,
    r.status,
    r.credits,
    r.request_id,
    r.status_code,
    r.latency_ms
from ledger.usage_records r
join ledger.accounts a on a.account = r.account
"""

EVENTS = """
create view reporting.events as
select
    a.account_id,
    e.position,
    e.created,
    e.type,
    e.environment,
    case when e.type <> 'job.expired' then (e.data ->> 'usage_percent')::numeric end as usage_percent
from ledger.events e
join ledger.accounts a on a.account = e.account
"""

CYCLES = """
create view reporting.billing_cycles as
select a.account_id, c.month, c.status, c.updated_at
from ledger.billing_cycles c
join ledger.accounts a on a.account = c.account
"""

VIEWS = (TODAY, ACCOUNTS, ENVIRONMENTS, MONTHS, USAGE, GRANTS, HOLDS, JOBS, RECORDS, EVENTS, CYCLES)

COMMENTS = (
    "comment on view reporting.today is 'now by the ledger''s clock, and the months in UTC that go with it'",
    "comment on view reporting.accounts is 'an account with a name: policy, caps, balance, overage of the month'",
    """
    comment on view reporting.environments is
        'the ceilings of an account in an environment, and what a request of one credit would be refused with now'
    """,
    "comment on view reporting.months is 'the figures of a month; those of deleted accounts have no name'",
    "comment on view reporting.usage is 'usage by month, day of settlement, environment and operation'",
    "comment on view reporting.grants is 'grants; one that ended and has something left waits for its sweep'",
    "comment on view reporting.holds is 'open holds; one that is due waits for its sweep'",
    "comment on view reporting.jobs is 'jobs without results and metadata: ask for those of one account'",
    "comment on view reporting.records is 'the usage records of 400 days (R3): ask for those of one account'",
    "comment on view reporting.events is 'what was told of, without its data: ask for those of one account'",
    "comment on view reporting.billing_cycles is 'how the invoice of a month was paid'",
)


READER = """
do $$ begin
    if not exists (select from pg_roles where rolname = 'ledger_reader')
            and (select rolsuper or rolcreaterole from pg_roles where rolname = current_user) then
        create role ledger_reader nologin;
    end if;
    if exists (select from pg_roles where rolname = 'ledger_reader') then
        grant usage on schema reporting to ledger_reader;
        grant select on all tables in schema reporting to ledger_reader;
    end if;
end $$
"""
"""An owner that may not create roles goes without: `grafana/README.md` says how the reader is made later."""


def upgrade() -> None:
    for statement in (*SCHEMA, INDEX, *VIEWS, *COMMENTS, READER):
        op.execute(statement)


def downgrade() -> None:
    """The role stays: it is the whole server's, and others may have been granted it."""
    op.execute("drop schema reporting cascade")
    op.execute("drop index ledger.usage_totals_day_idx")
