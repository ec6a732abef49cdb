"""Signed deliveries: which events go to which endpoint, how each attempt went, and how far each endpoint is.

The record of a delivery has no body and no name: it says which event went where, and is kept for ever (contract R5),
also when its account is deleted.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"

TABLES = (
    """
    create table ledger.endpoints (
        name text,
        environment text not null,
        types text[] not null,
        position bigint not null,
        constraint endpoints_pkey primary key (name),
        constraint endpoints_environment_check check (environment in ('live', 'test')),
        constraint endpoints_position_check check (position >= 0)
    )
    """,
    "comment on table ledger.endpoints is 'where events are delivered to, as the service was last configured'",
    "comment on column ledger.endpoints.position is 'the last event that was turned into a delivery, or passed over'",
    """
    create table ledger.deliveries (
        delivery bigint generated always as identity,
        endpoint text not null,
        account bigint not null,
        event_id text not null,
        replay integer not null default 0,
        id text not null,
        type text not null,
        status text not null default 'pending',
        attempts integer not null default 0,
        next_attempt_at timestamptz,
        claimed_until timestamptz,
        status_code integer,
        error text,
        created_at timestamptz not null,
        finished_at timestamptz,
        constraint deliveries_pkey primary key (delivery),
        constraint deliveries_event_key unique (event_id, endpoint, replay),
        constraint deliveries_endpoint_fkey foreign key (endpoint) references ledger.endpoints (name),
        constraint deliveries_id_check check (id = event_id || case replay when 0 then '' else '\\:r' || replay end),
        constraint deliveries_replay_check check (replay >= 0),
        constraint deliveries_status_check
            check (status in ('pending', 'delivered', 'exhausted', 'gone', 'undeliverable')),
        constraint deliveries_finished_check check ((status = 'pending') = (finished_at is null)),
        constraint deliveries_next_check check (status = 'pending' or next_attempt_at is null)
    )
    """,
    "comment on table ledger.deliveries is 'the record of each delivery, without its body (R5)'",
    "comment on column ledger.deliveries.id is 'what the receiver sees: of a replay, another than the event''s'",
    "comment on column ledger.deliveries.next_attempt_at is 'null behind another delivery of the same account'",
    "comment on column ledger.deliveries.claimed_until is 'until when (in real time) somebody may be sending it'",
    """
    create index deliveries_due_idx on ledger.deliveries (endpoint, next_attempt_at)
        where next_attempt_at is not null
    """,
    """
    create index deliveries_waiting_idx on ledger.deliveries (endpoint, account, delivery)
        where status = 'pending' and replay = 0
    """,
    """
    create table ledger.delivery_attempts (
        delivery bigint,
        number integer,
        at timestamptz not null,
        status_code integer,
        error text,
        milliseconds integer not null,
        constraint delivery_attempts_pkey primary key (delivery, number),
        constraint delivery_attempts_delivery_fkey foreign key (delivery) references ledger.deliveries (delivery),
        constraint delivery_attempts_number_check check (number > 0),
        constraint delivery_attempts_milliseconds_check check (milliseconds >= 0)
    )
    """,
)

KEPT = (
    """
    create function ledger.refuse_deletion() returns trigger language plpgsql
        set search_path = pg_catalog, pg_temp as $$
    begin
        raise exception '% is kept for ever', tg_table_name using errcode = 'integrity_constraint_violation';
    end $$
    """,
    """
    create trigger deliveries_kept before delete or truncate on ledger.deliveries
        for each statement execute function ledger.refuse_deletion()
    """,
    """
    create trigger delivery_attempts_append_only before update or delete or truncate on ledger.delivery_attempts
        for each statement execute function ledger.refuse_change()
    """,
)
"""R5: nobody deletes a record of what was delivered, not even the owner by an ordinary statement."""

RIGHTS = (
    "grant select, insert, update on ledger.endpoints to ledger_service",
    "grant select, insert on ledger.deliveries, ledger.delivery_attempts to ledger_service",
    """
    grant update (status, attempts, next_attempt_at, claimed_until, status_code, error, finished_at)
        on ledger.deliveries to ledger_service
    """,
)

EVENTS = "create index events_environment_idx on ledger.events (environment, position)"
"""Whoever is told of one environment's events reads past none of the other's."""


def upgrade() -> None:
    for statement in (*TABLES, *KEPT, *RIGHTS, EVENTS):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("the record of deliveries is kept for ever (R5): it is not dropped by a migration")
