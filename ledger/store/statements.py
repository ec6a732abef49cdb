"""The statements of the hot path, together. Each takes arrays, reaches its rows by their keys, and runs once a batch.

`{now}` is the instant of the database's clock, or of the simulated one (contract T3).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

REAL_NOW: Final = "clock_timestamp()"
SIMULATED_NOW: Final = "(select now from ledger.clock)"

# -- load ----------------------------------------------------------------------------------------------------------

OPEN_ACCOUNTS: Final = """
with opened as (
    insert into ledger.accounts (account_id, created_at)
    select account_id, {now} from unnest($1::text[]) account_id order by account_id
    on conflict (account_id) do nothing
    returning account, created_at
)
insert into ledger.balances (account, head, at)
select account, $2, created_at from opened returning account
"""

LOCK_ACCOUNTS: Final = """
select b.account from ledger.accounts a join ledger.balances b on b.account = a.account
where a.account_id = any($1::text[])
order by b.account for update of b
"""

# The columns of a grant and of a month, in the order in which `Grant` and `Period` have them.
_GRANT: Final = (
    "g.account, g.number, g.grant_id, g.kind, g.granted, g.remaining, g.held, g.expires_at, g.reference,"
    " g.created_at, g.request"
)
_PERIOD: Final = (
    "p.account, p.period, p.live_used, p.live_held, p.test_used, p.test_held, p.overage_used, p.overage_held,"
    " p.granted, p.adjusted, p.charged, p.refunded, p.refunded_to_balance, p.expired, p.adjusted_up, p.overage_price,"
    " p.opening, p.threshold_raised, p.cap_raised, p.closed_at"
)

# A statement of its own, after the locks: what it sees is what the last holder of each lock committed. With each
# account come its live grants and the months that nearly every decision counts in: the current one, and the last one's.
ACCOUNTS: Final = f"""
with clock as materialized (select {{now}} as now)
select clock.now, a.account, a.account_id, a.created_at,
    a.module_enabled, a.suspended, a.payment_method_verified, a.overage_enabled, a.cap_usd, a.credit_price_usd,
    a.paid_cycles, a.welcome_at, a.closed_through, a.deletion_code, a.deletion_status, a.deletion_requested_at,
    a.deletion_executes_at, b.last_grant, b.exhausted_after,
    b.sequence, b.head, b.at, b.available, b.held, b.overdraft,
    b.live_requests, b.live_calls, b.test_requests, b.test_calls,
    l.max_requests as live_max_requests, l.max_calls as live_max_calls, l.period_credits as live_period_credits,
    t.max_requests as test_max_requests, t.max_calls as test_max_calls, t.period_credits as test_period_credits,
    array(select row({_GRANT}) from ledger.grants g where g.account = a.account and g.live) as grants,
    array(
        select row({_PERIOD}) from ledger.periods p where p.account = a.account and p.period = any(array[
            to_char(clock.now at time zone 'UTC', 'YYYY-MM'), to_char(b.at at time zone 'UTC', 'YYYY-MM')
        ])
    ) as periods
from clock cross join ledger.accounts a
join ledger.balances b on b.account = a.account
left join ledger.quotas l on l.account = a.account and l.environment = 'live'
left join ledger.quotas t on t.account = a.account and t.environment = 'test'
where a.account = any($1::bigint[]) and a.account_id is not null
"""

CLOCK: Final = "select {now}"

_JOB: Final = """
select j.account, j.number, j.job_id, j.environment, j.operation, j.slot, j.period, j.price_version, j.lines,
    j.transfer_allowance, j.held_credits, j.held_overage, j.partial, j.sources, j.created_at, j.expires_at, j.request,
    j.idempotency_key, j.metadata, j.status, j.closed_at, j.closed_entry, j.charged, j.returned, j.over_hold,
    j.charged_overage, j.charged_overdraft, j.error_code, j.settle_request, j.result_stored, j.segments, j.refunded
"""

JOBS: Final = f"""
{_JOB} from unnest($1::bigint[], $2::text[]) w (account, job_id)
join ledger.jobs j on j.account = w.account and j.job_id = w.job_id
union all
{_JOB} from unnest($3::bigint[], $4::text[], $5::text[]) w (account, environment, idempotency_key)
join ledger.jobs j on j.account = w.account and j.environment = w.environment
    and j.idempotency_key = w.idempotency_key
union all
{_JOB} from unnest($6::bigint[]) w (account)
cross join lateral (
    select h.account, h.job from ledger.holds h
    where h.account = w.account and h.expires_at <= $7
    order by h.expires_at, h.job limit $8
) due
join ledger.jobs j on j.account = due.account and j.number = due.job
"""

DEBTS: Final = f"""
{_JOB} from ledger.jobs j where j.account = any($1::bigint[]) and j.overdraft > 0
order by j.account, j.closed_entry
"""

GRANTS_BY_ID: Final = f"""
select {_GRANT} from unnest($1::bigint[], $2::text[]) w (account, grant_id)
join ledger.grants g on g.account = w.account and g.grant_id = w.grant_id
"""

GRANTS_BY_NUMBER: Final = f"""
select {_GRANT} from unnest($1::bigint[], $2::bigint[]) w (account, number)
join ledger.grants g on g.account = w.account and g.number = w.number
"""

PERIODS: Final = f"""
select {_PERIOD} from ledger.periods p where p.account = any($1::bigint[]) and p.period = any($2::text[])
"""

RESULT_LINES: Final = """
select r.account, r.job, r.lines from unnest($1::bigint[], $2::bigint[]) w (account, job)
join ledger.job_results r on r.account = w.account and r.job = w.job
"""

REFUNDS: Final = """
select r.account, r.refund_id, r.job, j.job_id, r.entry, r.credits, r.credits_refunded, r.to_overage, r.to_overdraft,
    r.reason, r.created_at
from unnest($1::bigint[], $2::text[]) w (account, refund_id)
join ledger.refunds r on r.account = w.account and r.refund_id = w.refund_id
join ledger.jobs j on j.account = r.account and j.number = r.job
"""

CYCLES: Final = "select account, month, status, updated_at from ledger.billing_cycles where account = any($1::bigint[])"

CALL_DEADLINES: Final = """
select account, environment, job, expires_at from ledger.holds
where account = any($1::bigint[]) and slot = 'call' and expires_at < $2
"""

UNCLOSED_MONTHS: Final = """
select distinct p.period from ledger.periods p join ledger.accounts a on a.account = p.account
where p.account = any($1::bigint[]) and (a.closed_through is null or p.period > a.closed_through)
"""

COUNT_ENTRIES: Final = """
select count(*) from unnest($1::bigint[], $2::bigint[], $3::bytea[]) w (account, sequence, hash)
join ledger.entries e on e.account = w.account and e.sequence = w.sequence and e.hash = w.hash
"""

# -- write ---------------------------------------------------------------------------------------------------------

# Rows come as one array of a composite type, a row each: encoding and decoding them costs a third of what an array for
# each column does. The types are those of migration 0005. A type never changes, since other replicas use it: what takes
# other columns gets a new one.

# A batch is written by one statement, put together of the parts that it has rows for: `together` makes it.


@lru_cache(maxsize=256)
def together(parts: tuple[str, ...]) -> str:
    """Return the statement that does what some parts do; its parameters are the rows of each.

    No part sees what another one does, so they must not touch the same row.
    """
    return "with" + ",".join(part.format(rows=f"${number}") for number, part in enumerate(parts, 1)) + "select"


ENTER: Final = """
entered as (
    insert into ledger.entries (account, sequence, kind, job, at, postings, hash)
    select * from unnest({rows}::ledger.entry[])
)
"""

POST: Final = """
posted as (
    insert into ledger.postings (account, sequence, position, debit, credit, credits, operation, quantity)
    select * from unnest({rows}::ledger.posting[])
)
"""

WRITE_BALANCES: Final = """
balanced as (
    update ledger.balances b set sequence = w.sequence, head = w.head, at = w.at, available = w.available,
        held = w.held, overdraft = w.overdraft, live_requests = w.live_requests, live_calls = w.live_calls,
        test_requests = w.test_requests, test_calls = w.test_calls, last_grant = w.last_grant,
        exhausted_after = w.exhausted_after
    from unnest({rows}::ledger.balance_figures[]) w
    where b.account = w.account
)
"""

CHANGE_GRANTS: Final = """
granted as (
    update ledger.grants g set remaining = w.remaining, held = w.held, live = w.live
    from unnest({rows}::ledger.changed_grant[]) w
    where g.account = w.account and g.number = w.number
)
"""

CHANGE_PERIODS: Final = """
counted as (
    update ledger.periods p set live_used = w.live_used, live_held = w.live_held, test_used = w.test_used,
        test_held = w.test_held, overage_used = w.overage_used, overage_held = w.overage_held, granted = w.granted,
        adjusted = w.adjusted, charged = w.charged, refunded = w.refunded,
        refunded_to_balance = w.refunded_to_balance, expired = w.expired, adjusted_up = w.adjusted_up,
        overage_price = w.overage_price, opening = w.opening, threshold_raised = w.threshold_raised,
        cap_raised = w.cap_raised, closed_at = w.closed_at
    from unnest({rows}::ledger.period_figures[]) w
    where p.account = w.account and p.period = w.period
)
"""

BEGIN_PERIODS: Final = """
begun as (
    insert into ledger.periods (account, period, live_used, live_held, test_used, test_held, overage_used, overage_held,
        granted, adjusted, charged, refunded, refunded_to_balance, expired, adjusted_up, overage_price, opening,
        threshold_raised, cap_raised, closed_at)
    select * from unnest({rows}::ledger.period_figures[])
)
"""

ADD_GRANTS: Final = """
put as (
    insert into ledger.grants (account, number, grant_id, kind, granted, remaining, held, live, expires_at, reference,
        created_at, request)
    select * from unnest({rows}::ledger.new_grant[])
)
"""

FREE_KEYS: Final = """
update ledger.jobs j set idempotency_key = null
from unnest($1::ledger.freed_key[]) w
where j.account = w.account and j.number = w.number
"""

OPEN_JOBS: Final = """
opened as materialized (
    select * from unnest({rows}::ledger.opened_job[])
), held as (
    insert into ledger.holds (account, expires_at, job, environment, slot)
    select account, expires_at, number, environment, slot from opened where still_open
), opened_jobs as (
    insert into ledger.jobs (account, number, job_id, environment, operation, slot, period, price_version, lines,
        transfer_allowance, held_credits, held_overage, partial, sources, created_at, expires_at, request,
        idempotency_key, metadata)
    select account, number, job_id, environment, operation, slot, period, price_version, lines, transfer_allowance,
        held_credits, held_overage, partial, sources, created_at, expires_at, request, idempotency_key, metadata
    from opened
)
"""

# All that a closed job leaves behind: its own row, its result and its usage record.
CLOSE_JOBS: Final = """
closed as materialized (
    select * from unnest({rows}::ledger.closed_job[])
), ended as (
    delete from ledger.holds h using closed c
    where h.account = c.account and h.expires_at = c.expires_at and h.job = c.number
), results as (
    insert into ledger.job_results (account, job, closed_at, lines, result)
    select account, number, closed_at, lines, result from closed where lines is not null
), records as (
    insert into ledger.usage_records (account, closed_at, job, environment, operation, status, credits, request_id,
        status_code, latency_ms, key_prefix)
    select account, closed_at, number, environment, operation, status, charged, request_id, status_code, latency_ms,
        key_prefix from closed
), closed_jobs as (
    update ledger.jobs j set status = c.status, closed_at = c.closed_at, closed_entry = c.closed_entry,
        charged = c.charged, returned = c.returned, over_hold = c.over_hold, charged_overage = c.charged_overage,
        charged_overdraft = c.charged_overdraft, error_code = c.error_code, settle_request = c.settle_request,
        result_stored = c.result_stored, segments = c.segments, overdraft = c.overdraft, refunded = c.refunded
    from closed c where j.account = c.account and j.number = c.number
)
"""

ADD_USAGE: Final = """
used as (
    insert into ledger.usage_totals as u (account, period, day, environment, operation, unit, quantity, credits,
        refunded, jobs, first_jobs)
    select * from unnest({rows}::ledger.usage[])
    on conflict (account, period, day, environment, operation) do update set unit = excluded.unit,
        quantity = u.quantity + excluded.quantity, credits = u.credits + excluded.credits,
        refunded = u.refunded + excluded.refunded, jobs = u.jobs + excluded.jobs,
        first_jobs = u.first_jobs + excluded.first_jobs
)
"""

RESEGMENT_JOBS: Final = """
resegmented as (
    update ledger.jobs j set segments = w.segments, overdraft = w.overdraft, refunded = w.refunded
    from unnest({rows}::ledger.resegmented_job[]) w
    where j.account = w.account and j.number = w.number
)
"""

ADD_REFUNDS: Final = """
refunded as (
    insert into ledger.refunds (account, refund_id, job, entry, credits, credits_refunded, to_overage, to_overdraft,
        reason, created_at)
    select * from unnest({rows}::ledger.refund[])
)
"""

WRITE_POLICIES: Final = """
governed as (
    update ledger.accounts a set module_enabled = w.module_enabled, suspended = w.suspended,
        payment_method_verified = w.payment_method_verified, overage_enabled = w.overage_enabled, cap_usd = w.cap_usd,
        credit_price_usd = w.credit_price_usd, paid_cycles = w.paid_cycles, welcome_at = w.welcome_at,
        closed_through = w.closed_through, deletion_code = w.deletion_code, deletion_status = w.deletion_status,
        deletion_requested_at = w.deletion_requested_at, deletion_executes_at = w.deletion_executes_at
    from unnest({rows}::ledger.policy[]) w
    where a.account = w.account
)
"""

DROP_QUOTAS: Final = "delete from ledger.quotas where account = any($1::bigint[])"

WRITE_QUOTAS: Final = """
insert into ledger.quotas (account, environment, max_requests, max_calls, period_credits)
select * from unnest($1::ledger.quota[])
"""

WRITE_CYCLES: Final = """
cycled as (
    insert into ledger.billing_cycles (account, month, status, updated_at)
    select * from unnest({rows}::ledger.cycle[])
    on conflict (account, month) do update set status = excluded.status, updated_at = excluded.updated_at
)
"""

USE_PRICES: Final = """
insert into ledger.price_versions (version, digest, used_since)
select * from unnest($1::ledger.used_price[]) on conflict (version) do nothing
"""

DIFFERENT_PRICES: Final = """
select p.version from unnest($1::ledger.used_price[]) w
join ledger.price_versions p on p.version = w.version where p.digest <> w.digest
"""

ADD_STATEMENTS: Final = """
stated as (
    insert into ledger.statements (account, period, statement, closed_at)
    select * from unnest({rows}::ledger.closed_statement[])
)
"""

# Taken last, and held until the commit: whoever reads events in order of position misses none that commits later.
LOCK_EVENTS: Final = "select pg_advisory_xact_lock(7235409131)"

ADD_EVENTS: Final = """
insert into ledger.events (account, id, once, type, environment, created, data)
select account, id, once, type, environment, created, data
from unnest($1::ledger.event[]) with ordinality
    w (account, id, once, type, environment, created, data, number)
order by number
"""

# A deleted account keeps its row, without a name and without policy. What is long (its jobs and their records, its
# grants, its events) is removed afterwards in bounded batches.
ANONYMISE: Final = (
    "update ledger.accounts set account_id = null, deletion_status = 'deleting' where account = any($1::bigint[])",
    "delete from ledger.quotas where account = any($1::bigint[])",
    "delete from ledger.billing_cycles where account = any($1::bigint[])",
)

OPEN_HOLDS: Final = f"""
{_JOB} from unnest($1::bigint[]) w (account)
cross join lateral (
    select h.account, h.job from ledger.holds h where h.account = w.account order by h.expires_at, h.job limit $2
) held
join ledger.jobs j on j.account = held.account and j.number = held.job
"""
