"""Fills a ledger with millions of postings in the shape that the service gives them, by SQL.

A few real jobs are made by the engine, for the form of their rows; the rest are copies under other numbers, names and
instants. Rows are put in the order of time, so that those of one account lie scattered among the others', as they do
where traffic wrote them. Hashes are made up: there is a chain, but no audit would accept it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import asyncpg

from ledger import schema
from ledger.core.commands import Environment, Line, PolicyChange, PutAccount, PutGrant, Record, Reserve, Settle
from ledger.database import batch_pool
from ledger.engine import Engine
from pricing.catalog import load
from tests.support.history import BOTH, Customer

BIG: Final = "big"
BIG_SHARE: Final = 5
"""One posting in so many is the big account's."""
ACCOUNTS: Final = 1_000
SPAN: Final = timedelta(days=60)
POSTINGS_OF_JOB: Final = 2

TEMPLATES: Final = (
    ("agent_turn", 1),
    ("image_analysis", 2),
    ("audio_transcription", 31.5),
    ("tts_synthesis", 240),
    ("document_analysis", 1),
    ("sentiment_analysis", 1),
)

PLAN: Final = """
create unlogged table ledger.filling as
select account, i, (i + account) % {templates} as template, at, at + step / 2 as closed_at
from (
    select p.account, i, p.step, now() - interval '{seconds} s' + i * p.step as at
    from (
        select account, jobs, interval '{seconds} s' / (jobs + 1) as step from ledger.planned
    ) p, lateral generate_series(1, p.jobs) i
) j order by at
"""

ENTRIES: Final = """
insert into ledger.entries (account, sequence, kind, job, at, postings, hash)
select f.account, e.sequence, e.kind, 2 * f.i, e.at, 1, sha256(int8send(f.account * 100000000 + e.sequence))
from ledger.filling f, lateral (values (2 * f.i, 'reserve', f.at), (2 * f.i + 1, 'settle', f.closed_at))
    e (sequence, kind, at)
"""

POSTINGS: Final = """
insert into ledger.postings (account, sequence, position, debit, credit, credits, operation, quantity)
select f.account, p.sequence, 1, p.debit, p.credit, t.charged, p.operation, p.quantity
from ledger.filling f join ledger.templates t on t.template = f.template, lateral (values
    (2 * f.i, 'grant:1', 'hold:' || 2 * f.i, null, null),
    (2 * f.i + 1, 'hold:' || 2 * f.i, 'consumed:' || t.operation, t.operation, t.quantity)
) p (sequence, debit, credit, operation, quantity)
"""

RECORDS: Final = """
insert into ledger.usage_records (account, closed_at, job, environment, operation, status, credits, request_id,
    status_code, latency_ms, key_prefix)
select f.account, f.closed_at, 2 * f.i, t.environment, t.operation, 'settled', t.charged, 'req_' || f.account || f.i,
    200, 812, 'ak_live_3f'
from ledger.filling f join ledger.templates t on t.template = f.template
"""

USAGE: Final = """
insert into ledger.usage_totals (account, period, day, environment, operation, unit, quantity, credits, refunded, jobs,
    first_jobs)
select f.account, to_char(f.at, 'YYYY-MM'), f.closed_at::date, t.environment, t.operation, t.unit, sum(t.quantity),
    sum(t.charged), 0, count(*), count(*)
from ledger.filling f join ledger.templates t on t.template = f.template group by 1, 2, 3, 4, 5, 6
"""

PERIODS: Final = """
insert into ledger.periods (account, period, live_used, test_used, charged, granted)
select account, period, coalesce(sum(credits) filter (where environment = 'live'), 0),
    coalesce(sum(credits) filter (where environment = 'test'), 0), sum(credits),
    case when period = min(period) over (partition by account) then (select max(granted) from ledger.grants) else 0 end
from ledger.usage_totals group by account, period
"""

FIGURES: Final = """
update ledger.grants g set remaining = g.granted - u.credits
from (select account, sum(credits) as credits from ledger.usage_totals group by account) u where u.account = g.account;
update ledger.balances b set available = g.remaining, held = 0, sequence = 2 * p.jobs + 1, at = e.at, head = e.hash
from ledger.planned p, ledger.grants g, ledger.entries e
where p.account = b.account and g.account = b.account and e.account = b.account and e.sequence = 2 * p.jobs + 1;
drop table ledger.filling, ledger.planned, ledger.templates;
"""

COUNTED: Final = """
select (select count(*) from ledger.postings) as postings,
    (select sum(credits) from ledger.usage_totals) as usage,
    (select sum(credits) from ledger.postings where credit like 'consumed:%') as charged
"""


@dataclass(frozen=True)
class Filled:
    """What was filled in: how many postings, how many jobs of the big account, and a whole month among them."""

    postings: int
    big_jobs: int
    accounts: int


async def fill(service_url: str, superuser_url: str, postings: int, told: Callable[[str], None]) -> Filled:
    """Fill an empty ledger; `told` of each step."""
    await _make_templates(service_url)
    connection = await asyncpg.connect(superuser_url)
    try:
        await connection.execute(
            "set session_replication_role = replica; set synchronous_commit = off; set work_mem = '512MB'"
        )
        big_jobs = postings // BIG_SHARE // POSTINGS_OF_JOB
        await _open_accounts(connection, postings, big_jobs)
        for name, sql in _steps().items():
            told(name)
            await connection.execute(sql)
        told("vacuum")
        await connection.execute("vacuum (analyze)")
        counted = await connection.fetchrow(COUNTED)
    finally:
        await connection.close()
    assert counted is not None
    assert counted["usage"] == counted["charged"], counted
    return Filled(counted["postings"], big_jobs, ACCOUNTS)


async def _make_templates(service_url: str) -> None:
    """Make the big account, and one job of each kind, as the service would."""
    async with batch_pool(service_url, 1) as pool:
        engine = Engine(pool, load())
        await engine.start()
        try:
            big = Customer(engine, BIG)
            await big.does(PutAccount(account_id=BIG, change=PolicyChange(module_enabled=True, quotas=BOTH)))
            await big.does(PutGrant(account_id=BIG, grant_id="opening", kind="purchase", credits=10**12))
            for number, (operation, quantity) in enumerate(TEMPLATES):
                environment: Environment = "test" if number % 3 == 2 else "live"
                await _serve_one(big, f"template-{number}", environment, Line(operation, quantity))
        finally:
            await engine.stop()


async def _serve_one(customer: Customer, job_id: str, environment: Environment, line: Line) -> None:
    account_id, lines = customer.account_id, (line,)
    key = f"key-{job_id}"
    await customer.does(
        Reserve(account_id=account_id, job_id=job_id, environment=environment, lines=lines, idempotency_key=key)
    )
    record = Record(request_id="req", status_code=200, latency_ms=812, key_prefix="ak_live_3f")
    await customer.does(Settle(account_id=account_id, job_id=job_id, lines=lines, record=record))


async def _open_accounts(connection: asyncpg.Connection, postings: int, big_jobs: int) -> None:
    """Keep the templates, take their traces away, and copy the big account as it was before them."""
    await connection.execute("""
        create unlogged table ledger.templates as
        select j.number / 2 - 1 as template, j.*, p.quantity, u.unit
        from ledger.jobs j
        join ledger.postings p on p.account = j.account and p.sequence = j.closed_entry
        join ledger.usage_totals u on u.operation = j.operation;
        delete from ledger.entries where sequence > 1;
        delete from ledger.postings where sequence > 1;
        truncate ledger.jobs, ledger.usage_records, ledger.usage_totals, ledger.periods, ledger.job_results;
    """)
    others = (postings - big_jobs * POSTINGS_OF_JOB) // (ACCOUNTS - 1) // POSTINGS_OF_JOB
    await connection.execute(f"""
        create unlogged table ledger.planned as
        select account, {big_jobs} as jobs from ledger.accounts
        union all select n, {others} from generate_series(2, {ACCOUNTS}) n;
        update ledger.accounts set created_at = now() - interval '1 year';
    """)
    for table in (schema.accounts, schema.balances, schema.quotas, schema.grants, schema.entries, schema.postings):
        names = [column.name for column in table.c]
        copied = {"account": "n", "account_id": "'account-' || n"}
        values = ", ".join(copied.get(name, name) for name in names)
        await connection.execute(f"""
            insert into ledger.{table.name} ({", ".join(names)}) overriding system value
            select {values} from ledger.{table.name}, generate_series(2, {ACCOUNTS}) n where account = 1
        """)
    await connection.execute("""
        update ledger.entries set at = now() - interval '90 days';
        select setval(pg_get_serial_sequence('ledger.accounts', 'account'), 1000000);
    """)


def _steps() -> dict[str, str]:
    return {
        "plan": PLAN.format(templates=len(TEMPLATES), seconds=int(SPAN.total_seconds())),
        "jobs": _jobs(),
        "entries": ENTRIES,
        "postings": POSTINGS,
        "records": RECORDS,
        "usage": USAGE,
        "periods": PERIODS,
        "figures": FIGURES,
    }


def _jobs() -> str:
    """Return what copies the templates' jobs: every column as it is, but for what must differ."""
    changed = {
        "account": "f.account",
        "number": "2 * f.i",
        "job_id": "'job-' || f.i",
        "period": "to_char(f.at, 'YYYY-MM')",
        "created_at": "f.at",
        "expires_at": "f.at + interval '15 min'",
        "idempotency_key": "'key-' || f.i",
        "closed_at": "f.closed_at",
        "closed_entry": "2 * f.i + 1",
    }
    names = [column.name for column in schema.jobs.c]
    return f"""
        insert into ledger.jobs ({", ".join(names)})
        select {", ".join(changed.get(name, f"t.{name}") for name in names)}
        from ledger.filling f join ledger.templates t on t.template = f.template
    """


def whole_month(now: datetime) -> str:
    """Return the month before an instant, all of whose days are filled but perhaps its first."""
    first = now.replace(day=1)
    return (first - timedelta(days=1)).strftime("%Y-%m")
