"""Accounts as operators set them up: policy and ceilings, grants, billing cycles (contract F1, O2, O3)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import select

from ledger import schema
from ledger.core.account import Account, Grant
from ledger.core.commands import ENVIRONMENTS, CycleDone, DeletionStands, Environment, GrantDone
from ledger.core.granting import grant_of
from ledger.core.overage import cap_credits, effective_cap, provider_ceiling, usd_text
from ledger.queries.paging import Cursors, Number, Page, PageRequest
from ledger.queries.snapshot import AnyRow, AnySelect, Reading

Month = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}\Z")]


class OverageView(msgspec.Struct, frozen=True):
    """The overage switch, the account's own cap, and the price of a credit."""

    enabled: bool
    cap_usd: str | None
    credit_price_usd: str | None


class QuotaView(msgspec.Struct, frozen=True):
    """The ceilings of one environment."""

    max_requests: int
    max_calls: int
    period_credits: int | None


class AccountView(msgspec.Struct, frozen=True, kw_only=True):
    """An account's policy, and what follows from it and from its payments."""

    module_enabled: bool
    access: Literal["active", "suspended"]
    payment_method_verified: bool
    overage: OverageView
    environments: dict[Environment, QuotaView | None]
    effective_cap_usd: str
    effective_cap_credits: int | None
    provider_ceiling_usd: str
    paid_cycles: int
    welcome_granted_at: datetime | None
    deletion: DeletionStands | None
    created_at: datetime


_grant_cursors: Final = Cursors("grants", tuple[Number])
_cycle_cursors: Final = Cursors("billing-cycles", tuple[Month])


async def account(reading: Reading, account_id: str) -> AccountView | None:
    """Return an account, or None."""
    async with reading.snapshot() as snapshot:
        row = await snapshot.first(_account(account_id))
        if row is None:
            return None
        quotas = {q.environment: q for q in await snapshot.rows(_quotas(row.account))}
        return _view(row, quotas)


def _account(account_id: str) -> AnySelect:
    return select(schema.accounts).where(schema.accounts.c.account_id == account_id)


def _quotas(account: int) -> AnySelect:
    return select(schema.quotas).where(schema.quotas.c.account == account)


def _view(row: AnyRow, quotas: dict[str, AnyRow]) -> AccountView:
    price = row.credit_price_usd
    cap = effective_cap(row.cap_usd, row.paid_cycles)
    return AccountView(
        module_enabled=row.module_enabled,
        access="suspended" if row.suspended else "active",
        payment_method_verified=row.payment_method_verified,
        overage=OverageView(
            row.overage_enabled,
            None if row.cap_usd is None else usd_text(row.cap_usd),
            None if price is None else usd_text(price),
        ),
        environments={e: _quota(quotas.get(e)) for e in reversed(ENVIRONMENTS)},
        effective_cap_usd=usd_text(cap),
        effective_cap_credits=None if price is None else cap_credits(cap, price),
        provider_ceiling_usd=usd_text(provider_ceiling(row.paid_cycles)),
        paid_cycles=row.paid_cycles,
        welcome_granted_at=row.welcome_at,
        deletion=_deletion(row),
        created_at=row.created_at,
    )


def _deletion(row: AnyRow) -> DeletionStands | None:
    """Return the request to delete an account; it is pending until everything is gone."""
    if row.deletion_code is None:
        return None
    return DeletionStands(
        confirmation_code=row.deletion_code,
        status="pending" if row.deletion_status == "deleting" else row.deletion_status,
        requested_at=row.deletion_requested_at,
        executes_at=row.deletion_executes_at,
    )


async def deletion(reading: Reading, confirmation_code: str) -> DeletionStands | None:
    """Return the request with a confirmation code, also once the account is gone; or None."""
    async with reading.snapshot() as snapshot:
        row = await snapshot.first(select(schema.accounts).where(schema.accounts.c.deletion_code == confirmation_code))
        return None if row is None else _deletion(row)


def _quota(row: AnyRow | None) -> QuotaView | None:
    return None if row is None else QuotaView(row.max_requests, row.max_calls, row.period_credits)


async def grants(reading: Reading, account_id: str, page: PageRequest) -> Page[GrantDone] | None:
    """Return a page of an account's grants in the order granted, as time has left them; None without the account."""
    async with reading.snapshot() as snapshot:
        account = await snapshot.brought_up(account_id)
        if account is None:
            return None
        column = schema.grants.c
        statement = select(schema.grants).where(column.account == account.number).order_by(column.number)
        if (key := _grant_cursors.read(account.number, page.cursor)) is not None:
            statement = statement.where(column.number > key[0])
        rows, following = await _grant_cursors.page(
            snapshot, account.number, statement, page.limit, lambda row: (row.number,)
        )
        return Page([_grant(row, account) for row in rows], following)


def _grant(row: AnyRow, account: Account) -> GrantDone:
    """Return a grant as it stands: those that have something left or held are in the account brought up to now."""
    return grant_of(account.grants.get(row.number) or stored_grant(row))


def stored_grant(row: AnyRow) -> Grant:
    """Return a grant as its row has it."""
    return Grant(**{name: getattr(row, name) for name in Grant.__struct_fields__})


async def cycles(reading: Reading, account_id: str, page: PageRequest) -> Page[CycleDone] | None:
    """Return a page of an account's billing cycles in the order of their months; None without the account."""
    async with reading.snapshot() as snapshot:
        account = await snapshot.account(account_id)
        if account is None:
            return None
        column = schema.billing_cycles.c
        statement = select(column.month, column.status, column.updated_at)
        statement = statement.where(column.account == account.number).order_by(column.month)
        if (key := _cycle_cursors.read(account.number, page.cursor)) is not None:
            statement = statement.where(column.month > key[0])
        rows, following = await _cycle_cursors.page(
            snapshot, account.number, statement, page.limit, lambda row: (row.month,)
        )
        done = [CycleDone(cycle=r.month, status=r.status, updated_at=r.updated_at) for r in rows]
        return Page(done, following)
