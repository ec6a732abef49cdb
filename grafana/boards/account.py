"""Account: everything about one customer, for whoever is asked "why did I get a 402?"."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as models

from grafana.boards.panels import (
    CREDITS,
    POSTGRES,
    AnyPanel,
    Limit,
    Row,
    board,
    chosen_environment,
    chosen_postgres,
    figure,
    graph,
    listing,
    sql,
)

UID: Final = "ledger-account"

THIS: Final = "account_id = ${account:sqlstring}"
"""The account that was chosen, as a literal that no name can break out of."""

HERE: Final = f"{THIS} and environment in ($environment)"

USD: Final = "currencyUSD"


def dashboard_of() -> models.Dashboard:
    """Return the dashboard."""
    return board(
        UID,
        "Gateway Ledger · Account",
        "One customer: balance, what would be refused and why, grants, holds, charges, refusals, months.",
        [chosen_postgres(), _account(), chosen_environment()],
        [
            Row("Balance", _balance()),
            Row("What would be refused now", _standing()),
            Row("Grants and holds", _credits()),
            Row("Charges", _charges()),
            Row("Refusals and failures", _refusals()),
            Row("Months", _months()),
        ],
        since="now-30d",
    )


def _account() -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable("account")
        .label("Account")
        .description("Type the beginning of its id, with % where anything may stand.")
        .datasource(POSTGRES)
        .query("select account_id from reporting.accounts where account_id like '$__searchFilter' order by 1 limit 200")
        .refresh(models.VariableRefresh.ON_DASHBOARD_LOAD)
    )


def _figure(title: str, column: str, text: str, limit: Limit | None = None, unit: str = CREDITS) -> AnyPanel:
    return figure(
        title,
        unit,
        text,
        sql(f"select {column} from reporting.accounts where {THIS}"),
        limit=limit,
        nothing="no such account",
    )


def _balance() -> list[AnyPanel]:
    return [
        _figure(
            "Available",
            "available",
            """What a reservation could take from the balance, as entered: a hold or a grant that just ended may be five
            minutes behind `GET …/balance`. 0: only overage can pay, see *Ceilings*.""",
            Limit(1, low=True),
        ),
        _figure(
            "Held",
            "held",
            """Credits of grants that open jobs hold; they come back or are charged when the jobs end. Much held and
            nothing available: see *Open holds*.""",
        ),
        _figure(
            "Overdraft",
            "overdraft",
            """Charges that no source covered. Above 0 every new reservation is refused with `insufficient_credits`; any
            credit that comes in pays it first.""",
            Limit(1),
        ),
        _figure(
            "Overage used this month",
            "overage_used",
            """Credits beyond the balance this month, to be invoiced. None while the balance is at 0: overage is off, or
            there is no verified payment method (*Policy*).""",
        ),
        _figure(
            "Overage left under the cap",
            "overage_headroom",
            """How many credits of overage the month still admits, less what is held. 0 with overage on: the cap is
            reached; raising it helps up to the ceiling.""",
        ),
        _figure(
            "Cap in effect",
            "effective_cap_usd",
            """The lower of the account's own cap and the ceiling that its payments earned: 20, 100 or 500 USD. To lift
            the ceiling invoices have to be paid on time (*Invoices*).""",
            unit=USD,
        ),
    ]


def _standing() -> list[AnyPanel]:
    return [
        listing(
            "Ceilings",
            """Each environment's ceilings and use, and the code that the smallest request (one credit) or call would be
            refused with now; empty is: not refused. A dearer one may be refused sooner for want of funds. The code is
            explained in the error reference; `gateway_not_enabled` without numbers is a missing quota row.""",
            sql(
                f"""
                select
                    environment,
                    request_refused_with,
                    call_refused_with,
                    open_requests,
                    max_requests,
                    open_calls,
                    max_calls,
                    used,
                    held,
                    remaining,
                    period_credits as ceiling
                from reporting.environments
                where {HERE}
                order by 1
                """
            ),
            width=14,
        ),
        listing(
            "Policy",
            """The switches that decide what is refused. Wrong: the console sets them with `PATCH /v1/accounts/…`;
            `entered_at` is the instant of the last decision on the account.""",
            sql(
                f"""
                select
                    module_enabled,
                    access,
                    payment_method_verified,
                    overage_enabled,
                    cap_usd,
                    credit_price_usd,
                    provider_ceiling_usd,
                    paid_cycles,
                    welcome_granted_at,
                    deletion_status,
                    created_at,
                    entered_at
                from reporting.accounts
                where {THIS}
                """
            ),
            units={"cap_usd": USD, "credit_price_usd": USD, "provider_ceiling_usd": USD},
            width=10,
        ),
    ]


def _credits() -> list[AnyPanel]:
    return [
        listing(
            "Grants with something left",
            """Grants with something left or held, in the order in which they are spent. Missing a payment: it was never
            put (`GET …/grants` lists all), or it paid an overdraft first. `ended`: waits for its sweep.""",
            sql(
                f"""
                select grant_id, kind, granted, remaining, held, expires_at, ended, reference, created_at
                from reporting.grants
                where {THIS} and live
                order by expires_at nulls last, kind <> 'welcome', number
                """
            ),
        ),
        listing(
            "Open holds",
            """Jobs that are reserved and not closed, the next to end first. Many that nobody closes: the gateway lost
            them, and they give back at their deadline. `due`: waits for its sweep.""",
            sql(
                f"""
                select job_id, environment, operation, slot, held_credits, held_overage, created_at, expires_at, due
                from reporting.holds
                where {HERE}
                order by expires_at
                limit 200
                """
            ),
        ),
    ]


def _charges() -> list[AnyPanel]:
    return [
        graph(
            "Credits a day, by operation",
            "short",
            """Credits charged on each day, by operation. A jump: look for its jobs beside; many small ones are a loop,
            a few large ones a measure that is wrong.""",
            sql(
                f"""
                select day::timestamp at time zone 'UTC' as time, operation as metric, sum(credits) as value
                from reporting.usage
                where {HERE} and day between ($__timeFrom())::date and ($__timeTo())::date
                group by 1, 2
                order by 1, 2
                """,
                series=True,
            ),
            bars=True,
            width=10,
        ),
        listing(
            "Last jobs",
            """The last hundred jobs, newest first: what was held, charged and given back. A customer disputes one: `GET
            …/jobs/{job_id}` has its entries in the journal.""",
            sql(
                f"""
                select
                    job_id,
                    environment,
                    operation,
                    status,
                    held_credits as held,
                    charged,
                    charged_overage as of_overage,
                    refunded,
                    over_hold,
                    error_code,
                    created_at,
                    closed_at
                from reporting.jobs
                where {HERE}
                order by number desc
                limit 100
                """
            ),
            width=14,
        ),
    ]


def _refusals() -> list[AnyPanel]:
    return [
        listing(
            "Told of",
            """The events that this account raised in the time shown: thresholds, exhausted, the cap reached, jobs that
            expired. A refusal changes nothing, so single refusals are not in the database: search the service's log for
            the account, where each request has its code.""",
            sql(
                f"""
                select created, type, environment, usage_percent
                from reporting.events
                where {HERE} and $__timeFilter(created)
                order by position desc
                limit 100
                """
            ),
            units={"usage_percent": "percent"},
            width=8,
        ),
        listing(
            "Requests that failed",
            """Jobs closed in the time shown whose request was answered with an error, or that were released or expired:
            work that was not delivered, and not charged. Many of one operation: its upstream was away.""",
            sql(
                f"""
                select closed_at, environment, operation, status, status_code, latency_ms, credits, request_id
                from reporting.records
                where {HERE} and $__timeFilter(closed_at) and (status_code >= 400 or status <> 'settled')
                order by closed_at desc
                limit 100
                """
            ),
            units={"latency_ms": "ms", "status_code": "none"},
            width=16,
        ),
    ]


def _months() -> list[AnyPanel]:
    return [
        listing(
            "Months",
            """What each month did to the balance, as its statement has it; `overage_usd` is what is invoiced. An old
            month without `closed_at`: see *Operations*, months to close.""",
            sql(
                f"""
                select
                    month,
                    granted,
                    adjusted,
                    charged,
                    charged_from_balance,
                    refunded,
                    expired,
                    overage_used,
                    overage_usd,
                    closed_at
                from reporting.months
                where {THIS}
                order by month desc
                limit 36
                """
            ),
            units={"overage_usd": USD},
            width=16,
        ),
        listing(
            "Invoices",
            """How the invoice of each month was paid. Three cycles paid on time lift the ceiling to 100 USD, six to
            500; one that is overdue, returned or paid late starts the count again. Wrong: finance corrects it with `PUT
            …/billing-cycles/{month}`.""",
            sql(
                f"""
                select month, status, updated_at
                from reporting.billing_cycles
                where {THIS}
                order by month desc
                limit 36
                """
            ),
            width=8,
        ),
    ]
