"""A little history with everything in it: each way in which credits come, are held, are spent, end and come back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg

from ledger.core import commands
from ledger.core.commands import BringUp, Command, Environment, Line, Outcome, PolicyChange, QuotaChange, Refused
from ledger.database import batch_pool
from ledger.engine import Engine
from pricing.catalog import load

START = datetime(2026, 11, 3, 10, 0, tzinfo=UTC)
LATE = datetime(2026, 11, 30, 23, 0, tzinfo=UTC)
DECEMBER = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)

BOTH: dict[Environment, QuotaChange | None] = {"live": QuotaChange(), "test": QuotaChange()}


class Customer:
    """One account of an engine; every command must be carried out."""

    def __init__(self, engine: Engine, account_id: str) -> None:
        self.engine = engine
        self.account_id = account_id

    async def does(self, command: Command) -> Outcome:
        outcome = await self.engine.execute(command)
        assert not isinstance(outcome, Refused), (command, outcome)
        return outcome

    async def opens(self) -> None:
        change = PolicyChange(module_enabled=True, payment_method_verified=True, quotas=BOTH)
        await self.does(commands.PutAccount(account_id=self.account_id, change=change))

    async def changes(self, **change: object) -> None:
        policy = PolicyChange(**change)  # type: ignore[arg-type] # names of its fields
        await self.does(commands.PatchAccount(account_id=self.account_id, change=policy))

    async def gets(
        self, grant_id: str, kind: commands.GrantKind, credits: int, expires_at: datetime | None = None
    ) -> None:
        await self.does(
            commands.PutGrant(
                account_id=self.account_id,
                grant_id=grant_id,
                kind=kind,
                credits=credits,
                expires_at=expires_at,
            )
        )

    async def reserves(
        self,
        job_id: str,
        *lines: tuple[str, float],
        environment: Environment = "live",
        ttl_seconds: int = 900,
        partial: bool = False,
        transferable: bool = False,
    ) -> None:
        await self.does(
            commands.Reserve(
                account_id=self.account_id,
                job_id=job_id,
                environment=environment,
                lines=_lines(lines),
                ttl_seconds=ttl_seconds,
                allow_partial=partial,
                transferable=transferable,
                idempotency_key=f"key-{job_id}",
            )
        )

    async def settles(self, job_id: str, *lines: tuple[str, float]) -> None:
        await self.does(commands.Settle(account_id=self.account_id, job_id=job_id, lines=_lines(lines), result=b"{}"))

    async def releases(self, job_id: str) -> None:
        await self.does(commands.Release(account_id=self.account_id, job_id=job_id))

    async def is_refunded(self, job_id: str, refund_id: str, credits: int | None = None) -> None:
        await self.does(
            commands.Refund(account_id=self.account_id, job_id=job_id, refund_id=refund_id, credits=credits)
        )

    async def is_brought_up(self) -> None:
        await self.does(BringUp(account_id=self.account_id))


def _lines(lines: tuple[tuple[str, float], ...]) -> tuple[Line, ...]:
    return tuple(Line(operation, quantity) for operation, quantity in lines)


async def set_clock(pool: asyncpg.Pool, now: datetime) -> None:
    await pool.execute(
        "insert into ledger.clock (now) values ($1) on conflict (one) do update set now = excluded.now", now
    )


async def write_history(url: str) -> None:
    """Fill a fresh database, as the service would, from November 2026 into December."""
    async with batch_pool(url, 3) as pool:
        await set_clock(pool, START)
        engine = Engine(pool, load(), simulated_clock=True)
        await engine.start()
        try:
            names = ("plain", "deep", "over", "mixed")
            plain, deep, over, mixed = (Customer(engine, name) for name in names)
            await _plain_november(plain)
            await _deep_november(deep)
            await _over_november(over)
            await _mixed_november(mixed, pool)
            await set_clock(pool, LATE)
            await plain.is_brought_up()
            await plain.reserves("midnight", ("agent_turn", 4), ttl_seconds=7_200)
            await plain.reserves("late", ("agent_turn", 3), environment="test", ttl_seconds=86_400)
            await over.reserves("midnight", ("document_analysis", 10), ttl_seconds=7_200)
            await set_clock(pool, LATE.replace(hour=23, minute=59))
            await plain.settles("midnight", ("agent_turn", 1))
            await set_clock(pool, DECEMBER.replace(day=1, hour=0, minute=30))
            await plain.is_brought_up()
            await plain.releases("late")
            await over.settles("midnight", ("document_analysis", 9))
            await set_clock(pool, DECEMBER)
            await _december(plain, deep, over)
        finally:
            await engine.stop()


async def _plain_november(plain: Customer) -> None:
    """A plan that will end, a purchase, both environments, a release, an expiry to come, adjustments."""
    await plain.opens()
    await plain.gets("plan-11", "plan", 1_000)
    await plain.gets("inv-1", "purchase", 5_000)
    await plain.gets("gift", "adjustment", 70, START.replace(day=20))
    await plain.gets("mistake", "adjustment", -50)
    await plain.reserves("turn", ("agent_turn", 1), ("image_analysis", 2))
    await plain.settles("turn", ("agent_turn", 1), ("image_analysis", 1), ("image_analysis", 1))
    await plain.reserves("audio", ("audio_transcription", 120.5), environment="test")
    await plain.settles("audio", ("audio_transcription", 3.2))
    await plain.reserves("nothing", ("tts_synthesis", 200))
    await plain.settles("nothing", ("tts_synthesis", 0))
    await plain.reserves("failed", ("video_analysis", 1))
    await plain.releases("failed")
    await plain.reserves("lost", ("video_analysis", 2), ttl_seconds=60)
    await plain.is_refunded("turn", "rf-1", 20)


async def _deep_november(deep: Customer) -> None:
    """A call held for what there is, settled above it into overdraft, which a purchase then covers."""
    await deep.opens()
    await deep.reserves("call", ("voice_call_minute", 600), partial=True, transferable=True)
    await deep.settles("call", ("voice_call_minute", 150), ("voice_transfer_minute", 150))
    await deep.is_refunded("call", "rf-1", 100)
    await deep.gets("inv-1", "purchase", 60)
    await deep.gets("inv-2", "purchase", 2_000)
    await deep.reserves("second", ("voice_call_minute", 60))
    await deep.settles("second", ("voice_call_minute", 60), ("document_analysis", 60))
    await deep.gets("inv-3", "purchase", 900)


async def _over_november(over: Customer) -> None:
    """Consumption beyond the balance, held and used, and some of it refunded within the month."""
    await over.opens()
    await over.changes(overage_enabled=True, credit_price_usd=1_000)
    await over.reserves("big", ("tts_synthesis", 3_500))
    await over.settles("big", ("tts_synthesis", 3_200))
    await over.reserves("more", ("video_analysis", 2), environment="test")
    await over.settles("more", ("video_analysis", 3), ("image_analysis", 1))
    await over.is_refunded("more", "rf-1", 100)
    await over.reserves("unused", ("image_analysis", 1))
    await over.releases("unused")
    await over.reserves("lost", ("image_analysis", 2), ttl_seconds=60)


async def _mixed_november(mixed: Customer, pool: asyncpg.Pool) -> None:
    """Holds of a grant that ends meanwhile, and whatever comes back while there is an overdraft."""
    await mixed.opens()
    await mixed.gets("hour", "adjustment", 300, START + timedelta(hours=1))
    await mixed.reserves("forgotten", ("tts_synthesis", 100), ttl_seconds=7_000)
    await mixed.reserves("long", ("tts_synthesis", 1_000), ttl_seconds=86_400)
    await mixed.reserves("half", ("tts_synthesis", 1_000), ttl_seconds=86_400)
    await mixed.reserves("short", ("tts_synthesis", 100), ttl_seconds=60)
    await mixed.reserves("none", ("tts_synthesis", 50))
    await mixed.reserves("deep", ("tts_synthesis", 500), ("agent_turn", 1))
    await mixed.settles("deep", ("tts_synthesis", 2_500), ("agent_turn", 1), ("document_analysis", 1))
    await mixed.releases("none")
    await set_clock(pool, START + timedelta(minutes=2))
    await mixed.settles("half", ("tts_synthesis", 900))
    await mixed.is_refunded("half", "rf-1", 200)
    await set_clock(pool, START + timedelta(hours=2))
    await mixed.settles("long", ("tts_synthesis", 50))


async def _december(plain: Customer, deep: Customer, over: Customer) -> None:
    """Refunds of what has ended, and jobs that stay open."""
    await plain.is_refunded("turn", "rf-2")
    await plain.is_refunded("midnight", "rf-3")
    await plain.gets("plan-12", "plan", 1_000)
    await plain.reserves("open", ("sentiment_analysis", 5), ttl_seconds=86_400)
    await plain.reserves("open-call", ("voice_call_minute", 90), environment="test", ttl_seconds=86_400)
    await deep.is_refunded("second", "rf-2", 500)
    await deep.reserves("open", ("agent_turn", 1))
    await over.is_refunded("more", "rf-2")
    await over.is_refunded("big", "rf-3", 150)
    await over.reserves("open", ("document_analysis", 20), ttl_seconds=86_400)
