"""The ledger: accounts and their balances, grants, jobs and holds, the journal, and the totals kept beside it.

Every key begins with the account, our own number for it, so nothing is shared between customers and the tables can be
sharded. The names that customers give (`account_id`, `job_id`, `grant_id`, `refund_id`) stand in one table each, which
a deletion empties; entries and postings know only numbers (contract R7).
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None

ROLE = """
do $$ begin
    if not exists (select from pg_roles where rolname = 'ledger_service') then
        create role ledger_service nologin;
        execute format('grant ledger_service to %I', current_user);
    end if;
end $$;
create schema ledger;
grant usage on schema ledger to ledger_service;
grant select on alembic_version to ledger_service;
"""

ACCOUNTS = """
create table ledger.accounts (
    account bigint generated always as identity,
    account_id text,
    created_at timestamptz not null,
    module_enabled boolean not null default false,
    suspended boolean not null default false,
    payment_method_verified boolean not null default false,
    overage_enabled boolean not null default false,
    cap_usd bigint,
    credit_price_usd bigint,
    paid_cycles integer not null default 0,
    welcome_at timestamptz,
    closed_through text,
    deletion_code text,
    deletion_status text,
    deletion_requested_at timestamptz,
    deletion_executes_at timestamptz,
    constraint accounts_pkey primary key (account),
    constraint accounts_account_id_key unique (account_id),
    constraint accounts_deletion_code_key unique (deletion_code),
    constraint accounts_deletion_status_check
        check (deletion_status in ('pending', 'cancelled', 'deleting', 'executed')),
    constraint accounts_cap_usd_check check (cap_usd >= 0),
    constraint accounts_credit_price_usd_check check (credit_price_usd > 0),
    constraint accounts_overage_needs_price check (credit_price_usd is not null or not overage_enabled)
);
comment on column ledger.accounts.cap_usd is 'micro-dollars; null means the provider''s ceiling (O2)';
comment on column ledger.accounts.closed_through is 'the last month whose statement is closed (V6)';
create index accounts_welcome_idx on ledger.accounts (account)
    where welcome_at is null and module_enabled and payment_method_verified and not suspended;
create index accounts_deletion_idx on ledger.accounts (account) where deletion_status in ('pending', 'deleting');
comment on column ledger.accounts.credit_price_usd is 'micro-dollars for one credit (O7)';

-- One narrow row an account: its lock is the account's, and its sequence numbers the entries. Nothing that changes is
-- indexed and half of each page is left free, so that updates stay in place.
create table ledger.balances (
    account bigint,
    sequence bigint not null default 0,
    head bytea not null,
    at timestamptz not null,
    available bigint not null default 0,
    held bigint not null default 0,
    overdraft bigint not null default 0,
    live_requests integer not null default 0,
    live_calls integer not null default 0,
    test_requests integer not null default 0,
    test_calls integer not null default 0,
    last_grant bigint not null default 0,
    exhausted_after bigint,
    constraint balances_pkey primary key (account),
    constraint balances_account_fkey foreign key (account) references ledger.accounts (account),
    constraint balances_available_check check (available >= 0),
    constraint balances_held_check check (held >= 0),
    constraint balances_overdraft_check check (overdraft >= 0),
    constraint balances_overdraft_is_last check (available = 0 or overdraft = 0),
    constraint balances_open_check
        check (live_requests >= 0 and live_calls >= 0 and test_requests >= 0 and test_calls >= 0)
) with (fillfactor = 50);

create table ledger.quotas (
    account bigint,
    environment text,
    max_requests integer not null,
    max_calls integer not null,
    period_credits bigint,
    constraint quotas_pkey primary key (account, environment),
    constraint quotas_account_fkey foreign key (account) references ledger.accounts (account),
    constraint quotas_environment_check check (environment in ('live', 'test')),
    constraint quotas_ceilings_check check (max_requests >= 0 and max_calls >= 0 and period_credits >= 0)
);

create table ledger.billing_cycles (
    account bigint,
    month text,
    status text not null,
    updated_at timestamptz not null,
    constraint billing_cycles_pkey primary key (account, month),
    constraint billing_cycles_account_fkey foreign key (account) references ledger.accounts (account),
    constraint billing_cycles_month_check check (month ~ '^[0-9]{4}-(0[1-9]|1[0-2])$'),
    constraint billing_cycles_status_check
        check (status in ('open', 'paid_on_time', 'paid_late', 'overdue', 'returned'))
);
"""

GRANTS = """
create table ledger.grants (
    account bigint,
    number bigint,
    grant_id text not null,
    kind text not null,
    granted bigint not null,
    remaining bigint not null,
    held bigint not null,
    live boolean not null,
    expires_at timestamptz,
    reference text,
    created_at timestamptz not null,
    request bytea not null,
    constraint grants_pkey primary key (account, number),
    constraint grants_grant_id_key unique (account, grant_id),
    constraint grants_kind_check check (kind in ('plan', 'purchase', 'welcome', 'adjustment')),
    constraint grants_remaining_check check (remaining >= 0),
    constraint grants_held_check check (held >= 0),
    constraint grants_live_check check (live = (remaining > 0 or held > 0)),
    constraint grants_welcome_check check ((kind = 'welcome') = (grant_id = 'welcome'))
) with (fillfactor = 70);
comment on column ledger.grants.number is 'the entry that put it';
create index grants_live_idx on ledger.grants (account) where live;
create index grants_ending_idx on ledger.grants (expires_at) where live and expires_at is not null;
"""

JOBS = """
create table ledger.jobs (
    account bigint,
    number bigint,
    job_id text not null,
    environment text not null,
    operation text not null,
    slot text not null,
    period text not null,
    price_version text not null,
    lines json not null,
    transfer_allowance bigint not null,
    held_credits bigint not null,
    held_overage bigint not null,
    partial boolean not null,
    sources json not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    request bytea not null,
    idempotency_key text,
    metadata json,
    status text not null default 'reserved',
    closed_at timestamptz,
    closed_entry bigint,
    charged bigint,
    returned bigint,
    over_hold bigint,
    charged_overage bigint,
    charged_overdraft bigint,
    error_code text,
    settle_request bytea,
    result_stored boolean,
    segments json,
    overdraft bigint not null default 0,
    refunded bigint not null default 0,
    constraint jobs_pkey primary key (account, number),
    constraint jobs_job_id_key unique (account, job_id),
    constraint jobs_environment_check check (environment in ('live', 'test')),
    constraint jobs_slot_check check (slot in ('request', 'call')),
    constraint jobs_status_check check (status in ('reserved', 'settled', 'released', 'expired')),
    constraint jobs_held_check check (held_credits > 0 and held_overage between 0 and held_credits),
    constraint jobs_closed_check check ((status = 'reserved') = (closed_at is null)),
    constraint jobs_charged_once check (status = 'settled' or coalesce(charged, 0) = 0),
    constraint jobs_refunded_check check (refunded between 0 and coalesce(charged, 0)),
    constraint jobs_overdraft_check check (overdraft >= 0)
) with (fillfactor = 60);
comment on column ledger.jobs.number is 'the entry that reserved it';
create unique index jobs_idempotency_key_key on ledger.jobs (account, environment, idempotency_key)
    where idempotency_key is not null;
create index jobs_overdraft_idx on ledger.jobs (account, number) where overdraft > 0;

-- The open jobs, and nothing else: small however long the history.
create table ledger.holds (
    account bigint,
    expires_at timestamptz,
    job bigint,
    environment text not null,
    slot text not null,
    constraint holds_pkey primary key (account, expires_at, job)
);
create index holds_expires_at_idx on ledger.holds (expires_at);

create table ledger.job_results (
    account bigint,
    job bigint,
    closed_at timestamptz not null,
    lines json not null,
    result json,
    constraint job_results_pkey primary key (account, job)
);
create index job_results_closed_at_idx on ledger.job_results (closed_at);

create table ledger.refunds (
    account bigint,
    refund_id text,
    job bigint not null,
    entry bigint not null,
    credits bigint not null,
    credits_refunded bigint not null,
    to_overage bigint not null,
    to_overdraft bigint not null,
    reason text,
    created_at timestamptz not null,
    constraint refunds_pkey primary key (account, refund_id),
    constraint refunds_credits_check check (credits > 0)
);
create index refunds_job_idx on ledger.refunds (account, job);
"""

JOURNAL = """
create table ledger.entries (
    account bigint,
    sequence bigint,
    kind text not null,
    job bigint,
    at timestamptz not null,
    postings smallint not null,
    hash bytea not null,
    constraint entries_pkey primary key (account, sequence),
    constraint entries_sequence_check check (sequence > 0),
    constraint entries_kind_check check
        (kind in ('grant', 'reserve', 'settle', 'release', 'expire', 'refund', 'expire_grant')),
    constraint entries_postings_check check (postings > 0),
    constraint entries_hash_check check (octet_length(hash) = 32)
);
comment on column ledger.entries.postings is 'how many postings it has: none can be added later (A1)';

create table ledger.postings (
    account bigint,
    sequence bigint,
    position smallint,
    debit text not null,
    credit text not null,
    credits bigint not null,
    operation text,
    quantity bigint,
    constraint postings_pkey primary key (account, sequence, position),
    constraint postings_position_check check (position > 0),
    constraint postings_credits_check check (credits > 0),
    constraint postings_movement_check check (debit <> credit)
);

-- A1: an entry is written whole, with its postings, or not at all ...
create function ledger.check_entries() returns trigger language plpgsql
    set search_path = pg_catalog, pg_temp as $$
begin
    if exists (
        select from written w where w.postings <> (
            select count(*) from ledger.postings p where p.account = w.account and p.sequence = w.sequence
        )
    ) then
        raise exception 'an entry is written together with all its postings'
            using errcode = 'integrity_constraint_violation';
    end if;
    return null;
end $$;
create function ledger.check_postings() returns trigger language plpgsql
    set search_path = pg_catalog, pg_temp as $$
begin
    if exists (
        select from (select account, sequence from written group by account, sequence) w
        left join ledger.entries e on e.account = w.account and e.sequence = w.sequence
        where e.postings is distinct from (
            select count(*) from ledger.postings p where p.account = w.account and p.sequence = w.sequence
        )
    ) then
        raise exception 'a posting is written together with its entry' using errcode = 'integrity_constraint_violation';
    end if;
    return null;
end $$;
create trigger entries_whole after insert on ledger.entries
    referencing new table as written for each statement execute function ledger.check_entries();
create trigger postings_whole after insert on ledger.postings
    referencing new table as written for each statement execute function ledger.check_postings();

-- ... and nobody changes or deletes it, not even the owner by an ordinary statement.
create function ledger.refuse_change() returns trigger language plpgsql
    set search_path = pg_catalog, pg_temp as $$
begin
    raise exception '% is append-only', tg_table_name using errcode = 'integrity_constraint_violation';
end $$;
create trigger entries_append_only before update or delete or truncate on ledger.entries
    for each statement execute function ledger.refuse_change();
create trigger postings_append_only before update or delete or truncate on ledger.postings
    for each statement execute function ledger.refuse_change();
"""

TOTALS = """
create table ledger.periods (
    account bigint,
    period text,
    live_used bigint not null default 0,
    live_held bigint not null default 0,
    test_used bigint not null default 0,
    test_held bigint not null default 0,
    overage_used bigint not null default 0,
    overage_held bigint not null default 0,
    granted bigint not null default 0,
    adjusted bigint not null default 0,
    charged bigint not null default 0,
    refunded bigint not null default 0,
    refunded_to_balance bigint not null default 0,
    expired bigint not null default 0,
    adjusted_up bigint not null default 0,
    overage_price bigint,
    opening bigint,
    threshold_raised integer not null default 0,
    cap_raised boolean not null default false,
    closed_at timestamptz,
    constraint periods_pkey primary key (account, period),
    constraint periods_period_check check (period ~ '^[0-9]{4}-(0[1-9]|1[0-2])$'),
    constraint periods_figures_check check
        (least(live_used, live_held, test_used, test_held, overage_used, overage_held, granted, charged,
               refunded, refunded_to_balance, expired) >= 0)
) with (fillfactor = 50);

create table ledger.statements (
    account bigint,
    period text,
    statement json not null,
    closed_at timestamptz not null,
    constraint statements_pkey primary key (account, period)
);
comment on table ledger.statements is 'the statements of closed months, as they stay';

create table ledger.usage_totals (
    account bigint,
    period text,
    day date,
    environment text,
    operation text,
    unit text not null,
    quantity bigint not null,
    credits bigint not null,
    refunded bigint not null,
    jobs bigint not null,
    first_jobs bigint not null,
    constraint usage_totals_pkey primary key (account, period, day, environment, operation)
) with (fillfactor = 50);
comment on column ledger.usage_totals.first_jobs is 'jobs whose first charged line this is: counts each job once';

create table ledger.usage_records (
    account bigint,
    closed_at timestamptz,
    job bigint,
    environment text not null,
    operation text not null,
    status text not null,
    credits bigint not null,
    request_id text,
    status_code integer,
    latency_ms integer,
    key_prefix text,
    constraint usage_records_pkey primary key (account, closed_at, job)
);

create index usage_records_closed_at_idx on ledger.usage_records using brin (closed_at);

-- The outbox: what is to be told, written with what it tells of (V5), in the order in which it was committed.
create table ledger.events (
    position bigint generated always as identity,
    account bigint not null,
    id text not null,
    once text not null,
    type text not null,
    environment text not null,
    created timestamptz not null,
    data json not null,
    constraint events_pkey primary key (position),
    constraint events_id_key unique (id),
    constraint events_once_key unique (account, once),
    constraint events_environment_check check (environment in ('live', 'test'))
);
comment on column ledger.events.once is 'what is never told a second time';
create index events_account_idx on ledger.events (account, position);

create table ledger.sweeps (
    name text,
    started_at timestamptz not null,
    finished_at timestamptz,
    succeeded_at timestamptz,
    counts json,
    error text,
    constraint sweeps_pkey primary key (name)
);
comment on table ledger.sweeps is 'the last run of each sweep';

create table ledger.price_versions (
    version text,
    digest text not null,
    used_since timestamptz not null,
    constraint price_versions_pkey primary key (version)
);
comment on table ledger.price_versions is 'the catalog versions that reservations have used (P9)';

create table ledger.clock (
    one boolean default true,
    now timestamptz not null,
    constraint clock_pkey primary key (one),
    constraint clock_one_check check (one)
);
comment on table ledger.clock is 'the simulated clock; empty where time is real';
"""

RIGHTS = """
grant select, insert on ledger.entries, ledger.postings, ledger.price_versions to ledger_service;
grant select, insert, update, delete on
    ledger.accounts, ledger.balances, ledger.quotas, ledger.billing_cycles, ledger.grants, ledger.jobs, ledger.holds,
    ledger.job_results, ledger.refunds, ledger.periods, ledger.statements, ledger.usage_totals, ledger.usage_records,
    ledger.events, ledger.sweeps, ledger.clock
    to ledger_service;
"""


def upgrade() -> None:
    for part in (ROLE, ACCOUNTS, GRANTS, JOBS, JOURNAL, TOTALS, RIGHTS):
        for statement in _statements(part):
            op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("the ledger is not dropped by a migration: drop the database")


def _statements(script: str) -> list[str]:
    """Splits a script where a line ends with a semicolon outside of a $$ body: asyncpg takes one at a time."""
    statements: list[str] = []
    current: list[str] = []
    in_body = False
    for line in script.strip().splitlines():
        current.append(line)
        in_body ^= line.count("$$") % 2 == 1
        if line.endswith(";") and not in_body:
            statements.append("\n".join(current))
            current = []
    return statements
