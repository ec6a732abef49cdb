"""A1: no statement that the service's role can send changes history, or writes half of it; nor does the owner's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from ledger.embedded import ConnectionUrls

HASH = "sha256('x')"
ENTRY = f"insert into ledger.entries values (1, 1000, 'grant', null, now(), 1, {HASH})"
POSTING = "insert into ledger.postings values (1, {sequence}, {position}, 'issued:purchase', 'grant:9', {credits})"
WHOLE = f"with e as ({ENTRY}) {POSTING.format(sequence=1000, position=1, credits=5)}"

NOT_ALLOWED = "42501"
NOT_WHOLE = "23000"
APPEND_ONLY = "23000"

Snapshot = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
async def service(filled: ConnectionUrls) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(filled.service)
    yield connection
    await connection.close()


@pytest.fixture
async def owner(filled: ConnectionUrls) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(filled.owner)
    yield connection
    await connection.close()


async def _journal(connection: asyncpg.Connection) -> Snapshot:
    return {
        table: [tuple(row) for row in await connection.fetch(f"select * from ledger.{table} order by 1, 2, 3")]
        for table in ("entries", "postings")
    }


async def _refused(connection: asyncpg.Connection, statement: str) -> asyncpg.PostgresError:
    """Send a statement that must be refused; the error, after seeing that the journal is as it was."""
    before = await _journal(connection)
    with pytest.raises(asyncpg.PostgresError) as raised:
        await connection.execute(statement)
    assert await _journal(connection) == before
    return raised.value


CHANGES = (
    "update ledger.entries set kind = kind",
    "update ledger.entries set hash = sha256(hash) where account = 1 and sequence = 1",
    "update ledger.entries set at = now() where false",
    "update ledger.postings set credits = credits + 1",
    "update ledger.postings set debit = credit, credit = debit where account = 1",
    "delete from ledger.entries",
    "delete from ledger.entries where account = 1 and sequence = 1",
    "delete from ledger.postings where account = 1",
    "truncate ledger.entries",
    "truncate ledger.postings, ledger.entries",
    (
        "insert into ledger.entries select * from ledger.entries where sequence = 1"
        " on conflict (account, sequence) do update set kind = 'settle'"
    ),
    "merge into ledger.postings p using (select 1) one on p.account = 1 when matched then delete",
    "merge into ledger.entries e using (select 1) one on e.account = 1 when matched then update set kind = 'settle'",
    "with gone as (delete from ledger.postings returning *) select count(*) from gone",
    "copy (delete from ledger.entries returning *) to stdout",
)

PROTECTION = (
    "alter table ledger.entries disable trigger all",
    "alter table ledger.entries disable trigger entries_append_only",
    "alter table ledger.postings disable trigger user",
    "alter table ledger.postings drop constraint postings_credits_check",
    "alter table ledger.postings alter column credits type numeric",
    "alter table ledger.entries add column note text",
    "alter table ledger.entries rename to old_entries",
    "alter table ledger.entries owner to ledger_service",
    "drop table ledger.postings",
    "drop trigger entries_append_only on ledger.entries",
    "drop trigger postings_whole on ledger.postings",
    "drop function ledger.refuse_change() cascade",
    (
        "create or replace function ledger.refuse_change() returns trigger language plpgsql as"
        " $$ begin return null; end $$"
    ),
    (
        "create or replace function ledger.check_entries() returns trigger language plpgsql as"
        " $$ begin return null; end $$"
    ),
    "create trigger away before insert on ledger.entries for each row execute function ledger.refuse_change()",
    "create rule away as on insert to ledger.entries do instead nothing",
    "create table ledger.mine (one int)",
    "create index mine on ledger.entries (kind)",
    "drop schema ledger cascade",
    "alter schema ledger rename to other",
    "set session_replication_role = replica",
    "select set_config('session_replication_role', 'replica', false)",
    "set role ledger_owner",
    "set role postgres",
    "set session authorization postgres",
    "grant ledger_owner to ledger_service",
    "alter role ledger_service superuser",
    "alter role ledger_service set session_replication_role = replica",
    "alter system set session_replication_role = replica",
    "copy ledger.postings from program 'true'",
    "copy ledger.postings from '/etc/hostname'",
    "do $$ begin execute 'delete from ledger.entries'; end $$",
    "select lo_import('/etc/hostname')",
)

HALVES = {
    "an entry without a posting": (ENTRY, NOT_WHOLE),
    "a posting without an entry": (POSTING.format(sequence=1000, position=1, credits=5), NOT_WHOLE),
    "a posting added to an old entry": (POSTING.format(sequence=1, position=9, credits=5), NOT_WHOLE),
    "the next posting of an old entry": (POSTING.format(sequence=1, position=2, credits=5), NOT_WHOLE),
    "a posting beyond those of its entry": (
        WHOLE.replace("values (1, 1000, 1, 'issued", "values (1, 1000, 2, 'issued"),
        NOT_WHOLE,
    ),
    "an entry with fewer postings than it says": (WHOLE.replace("now(), 1,", "now(), 2,"), NOT_WHOLE),
    "an entry with more postings than it says": (
        f"{WHOLE}, (1, 1000, 2, 'issued:purchase', 'grant:9', 7)",
        NOT_WHOLE,
    ),
    "an entry in one statement and its posting in the next": (
        f"{ENTRY}; {POSTING.format(sequence=1000, position=1, credits=5)}",
        NOT_WHOLE,
    ),
    "a posting in one statement and its entry in the next": (
        f"{POSTING.format(sequence=1000, position=1, credits=5)}; {ENTRY}",
        NOT_WHOLE,
    ),
    "one of two entries without postings": (
        (
            f"with e as ({ENTRY}, (1, 1001, 'grant', null, now(), 1, {HASH}))"
            f" {POSTING.format(sequence=1000, position=1, credits=5)}"
        ),
        NOT_WHOLE,
    ),
    "an entry of no postings": (ENTRY.replace("now(), 1,", "now(), 0,"), "23514"),
    "a posting of nothing": (WHOLE.replace("'grant:9', 5)", "'grant:9', 0)"), "23514"),
    "a negative posting": (WHOLE.replace("'grant:9', 5)", "'grant:9', -5)"), "23514"),
    "a posting without an amount": (WHOLE.replace("'grant:9', 5)", "'grant:9', null)"), "23502"),
    "a posting to where it came from": (WHOLE.replace("'grant:9'", "'issued:purchase'"), "23514"),
    "a posting to nowhere": (WHOLE.replace("'grant:9'", "null"), "23502"),
    "a posting from nowhere": (WHOLE.replace("'issued:purchase'", "null"), "23502"),
    "a posting too large": (WHOLE.replace("'grant:9', 5)", "'grant:9', 9223372036854775808)"), "22003"),
    "a second entry of a number": (WHOLE.replace("1000", "1"), "23505"),
    "an entry of no kind": (WHOLE.replace("'grant', null", "'gift', null"), "23514"),
    "an entry numbered zero": (WHOLE.replace("1000", "0"), "23514"),
    "an entry without a hash": (WHOLE.replace(HASH, "null"), "23502"),
    "an entry with half a hash": (WHOLE.replace(HASH, "substr(sha256('x'), 1, 16)"), "23514"),
}


async def test_the_service_writes_what_is_whole(service: asyncpg.Connection) -> None:
    """So that what is refused below is not refused for another reason."""
    await service.execute(WHOLE)
    assert await service.fetchval("select credits from ledger.postings where sequence = 1000") == 5


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES.keys())
async def test_the_service_cannot_write_half_an_entry(service: asyncpg.Connection, half: tuple[str, str]) -> None:
    statement, code = half
    assert (await _refused(service, statement)).sqlstate == code


async def test_the_service_cannot_copy_half_an_entry(service: asyncpg.Connection) -> None:
    before = await _journal(service)
    with pytest.raises(asyncpg.PostgresError, match="together with its entry"):
        await service.copy_records_to_table(
            "postings",
            schema_name="ledger",
            columns=["account", "sequence", "position", "debit", "credit", "credits"],
            records=[(1, 1, 9, "issued:purchase", "grant:9", 5)],
        )
    with pytest.raises(asyncpg.PostgresError, match="together with all its postings"):
        await service.copy_records_to_table(
            "entries",
            schema_name="ledger",
            columns=["account", "sequence", "kind", "at", "postings", "hash"],
            records=[(1, 1000, "grant", await service.fetchval("select now()"), 1, bytes(32))],
        )
    assert await _journal(service) == before


@pytest.mark.parametrize("statement", CHANGES)
async def test_the_service_cannot_change_history(service: asyncpg.Connection, statement: str) -> None:
    error = await _refused(service, statement)
    assert error.sqlstate in (NOT_ALLOWED, "0A000"), "it has no right to; or there is no such statement"


@pytest.mark.parametrize("statement", PROTECTION)
async def test_the_service_cannot_take_the_protection_away(
    service: asyncpg.Connection, owner: asyncpg.Connection, statement: str
) -> None:
    triggers = "select tgname, tgenabled from pg_trigger where not tgisinternal order by 1"
    before = await owner.fetch(triggers)
    error = await _refused(service, statement)
    assert error.sqlstate in (NOT_ALLOWED, "42809", "0LP01")
    assert await owner.fetch(triggers) == before
    assert await service.fetchval("show session_replication_role") == "origin"


@pytest.mark.parametrize("statement", [change for change in CHANGES if not change.startswith(("copy", "insert"))])
async def test_a_trigger_refuses_the_owner(owner: asyncpg.Connection, statement: str) -> None:
    error = await _refused(owner, statement)
    assert error.sqlstate == APPEND_ONLY
    assert "append-only" in str(error)


async def test_a_trigger_refuses_the_owner_to_replace_an_entry(owner: asyncpg.Connection) -> None:
    error = await _refused(
        owner,
        "insert into ledger.entries select * from ledger.entries where sequence = 1"
        " on conflict (account, sequence) do update set kind = 'settle'",
    )
    assert "append-only" in str(error)


async def test_the_service_cannot_give_itself_a_right(service: asyncpg.Connection) -> None:
    """PostgreSQL warns and does nothing, where a role has other rights to the table."""
    await service.execute("grant update, delete, truncate, trigger on ledger.entries to ledger_service")
    await _refused(service, "update ledger.entries set kind = kind")


async def test_the_service_has_no_rights_that_it_does_not_need(service: asyncpg.Connection) -> None:
    rights = await service.fetch(
        "select c.relname, p from pg_class c,"
        " unnest(array['UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p"
        " where c.relnamespace = 'ledger'::regnamespace and c.relname in ('entries', 'postings', 'price_versions')"
        " and c.relkind = 'r' and has_table_privilege(c.oid, p)"
    )
    assert rights == []
    facts = await service.fetchrow(
        "select rolsuper, rolcreaterole, rolbypassrls, rolreplication, rolcreatedb from pg_roles"
        " where rolname = current_user"
    )
    assert facts is not None
    assert not any(facts)
    assert not await service.fetchval("select has_schema_privilege('ledger', 'create')")


async def test_operators_of_the_services_own_do_not_fool_the_triggers(
    owner: asyncpg.Connection, service: asyncpg.Connection
) -> None:
    """A1: with a schema of its own, the service could put other operators before PostgreSQL's; triggers do not look."""
    await owner.execute("create schema s; grant create, usage on schema s to ledger_service")
    await service.execute(
        "create function s.never(smallint, bigint) returns boolean language sql as 'select false';"
        "create operator s.<> (leftarg = smallint, rightarg = bigint, function = s.never);"
        "set search_path = s, pg_catalog"
    )
    await _refused(
        service,
        "insert into ledger.entries (account, sequence, kind, at, postings, hash)"
        " values (1, 999999, 'grant', now(), 1, decode(repeat('00', 32), 'hex'))",
    )
