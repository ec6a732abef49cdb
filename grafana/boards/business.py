"""Business: what is consumed, by whom, and what will be invoiced. Figures are the ledger's own, from its views.

Days are those of settlement and months those that a job counts in, both in UTC, as everywhere in the ledger.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models import dashboard as models

from grafana.boards.panels import (
    CREDITS,
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

UID: Final = "ledger-business"

ACCOUNT: Final = {"account": "/d/ledger-account?var-account=${__value.raw}"}
"""From an account's name to its dashboard."""

SHOWN: Final = "day between ($__timeFrom())::date and ($__timeTo())::date and environment in ($environment)"
"""The days that are shown, and the environments."""

USD: Final = "currencyUSD"


def dashboard_of() -> models.Dashboard:
    """Return the dashboard."""
    return board(
        UID,
        "Gateway Ledger · Business",
        "Credits by operation and environment, the largest accounts, overage against caps, grants and what expires.",
        [chosen_postgres(), chosen_environment()],
        [
            Row("This month against the last", _months()),
            Row("Credits", _credits()),
            Row("Overage and overdraft", _overage()),
            Row("Grants and expirations", _grants()),
            Row("Accounts and the welcome", _accounts()),
        ],
        since="now/M",
        until="now/M",
        refresh="5m",
    )


def _months() -> list[AnyPanel]:
    of_month = "from reporting.months join reporting.today on months.month = today.{}"
    return [
        figure(
            "Charged this month",
            CREDITS,
            """Credits charged to jobs of this month, both environments, refunds not taken off. It should follow the
            line in *Running total*; nothing on a working day: no traffic, see *Operations*.""",
            sql(f"select coalesce(sum(charged), 0) as credits {of_month.format('month')}"),
        ),
        figure(
            "Last month by this day",
            CREDITS,
            """Credits charged last month up to the same day, that day included: what this month is to be compared with.
            Today is not over, so this month looks a little smaller.""",
            sql(
                """
                select coalesce(sum(credits), 0) as credits
                from reporting.usage u join reporting.today t on u.month = t.last_month
                where u.day >= t.last_month_start and u.day - t.last_month_start <= t.day - t.month_start
                """
            ),
        ),
        figure(
            "Last month",
            CREDITS,
            "Credits charged to all jobs of last month. It moves on the 1st, while calls of the last evening settle.",
            sql(f"select coalesce(sum(charged), 0) as credits {of_month.format('last_month')}"),
        ),
        figure(
            "Refunded this month",
            CREDITS,
            """Credits given back by refunds this month, of jobs of any month. Much more than usual: somebody mends an
            incident; ask support for the reason they gave.""",
            sql(f"select coalesce(sum(refunded), 0) as credits {of_month.format('month')}"),
        ),
        figure(
            "Overage this month",
            USD,
            """Overage of this month at each account's price, less what was refunded of it: what would be invoiced if
            the month ended now. See *Overage against caps* for whose it is.""",
            sql(f"select coalesce(sum(overage_usd), 0) as usd {of_month.format('month')}"),
            decimals=2,
        ),
        figure(
            "Overage last month",
            USD,
            """Overage of last month at each account's price: what is invoiced for it. It changes until the month is
            closed (*Operations*, months to close), and not after.""",
            sql(f"select coalesce(sum(overage_usd), 0) as usd {of_month.format('last_month')}"),
            decimals=2,
        ),
        graph(
            "Running total of the month",
            "short",
            """Credits charged from the first day of the month on, this month and last, day by day (show this month to
            see both whole). The lines part: compare *Credits a day* for the operation that did it.""",
            sql(
                """
                with days as (
                    select
                        case u.month when t.month then 'this month' else 'last month' end as metric,
                        case u.month when t.month then u.day
                            else t.month_start + (u.day - t.last_month_start) end as day,
                        sum(u.credits) as credits
                    from reporting.usage u
                    join reporting.today t on u.month in (t.month, t.last_month) and u.day >= t.last_month_start
                    where u.environment in ($environment)
                    group by 1, 2
                )
                select
                    day::timestamp at time zone 'UTC' as time,
                    metric,
                    sum(credits) over (partition by metric order by day) as value
                from days
                order by 1
                """,
                series=True,
            ),
            width=24,
        ),
    ]


def _credits() -> list[AnyPanel]:
    return [
        graph(
            "Credits a day, by operation",
            "short",
            """Credits charged on each day, by operation. One operation doubles without more customers: its callers
            retry or its measure changed; compare quantity with jobs in *By operation and environment*.""",
            sql(
                f"""
                select day::timestamp at time zone 'UTC' as time, operation as metric, sum(credits) as value
                from reporting.usage
                where {SHOWN}
                group by 1, 2
                order by 1, 2
                """,
                series=True,
            ),
            bars=True,
            width=12,
        ),
        graph(
            "Credits a day, by environment",
            "short",
            """The same credits by environment; both pay the same prices. Much in `test`: a customer runs production
            there, or a test suite without an end.""",
            sql(
                f"""
                select day::timestamp at time zone 'UTC' as time, environment as metric, sum(credits) as value
                from reporting.usage
                where {SHOWN}
                group by 1, 2
                order by 1, 2
                """,
                series=True,
            ),
            bars=True,
            width=12,
        ),
        listing(
            "By operation and environment",
            """Usage of the days shown, added up: what was billed, charged, refunded. It equals `GET …/usage` of all
            accounts together; if not, run the audit (A4).""",
            sql(
                f"""
                select
                    operation,
                    environment,
                    unit,
                    sum(jobs) as jobs,
                    sum(quantity) as quantity,
                    sum(credits) as credits,
                    sum(refunded_credits) as refunded,
                    sum(net_credits) as net
                from reporting.usage
                where {SHOWN}
                group by 1, 2, 3
                order by net desc
                """
            ),
        ),
        listing(
            "Top accounts",
            """The twenty accounts that were charged most in the days shown; follow one for its balance and jobs. A new
            name at the top: a customer that grows, or a runaway loop; ask before it meets its cap.""",
            sql(
                f"""
                select
                    coalesce(account_id, '(deleted)') as account,
                    sum(first_jobs) as jobs,
                    sum(credits) as credits,
                    sum(refunded_credits) as refunded,
                    sum(net_credits) as net
                from reporting.usage
                where {SHOWN}
                group by 1
                order by net desc, 1
                limit 20
                """
            ),
            links=ACCOUNT,
        ),
    ]


def _overage() -> list[AnyPanel]:
    return [
        listing(
            "Overage against caps",
            """Accounts with overage this month, used or held, nearest to their cap first. At 100 % their requests are
            refused with `spending_cap_reached`: raising `cap_usd` helps up to the ceiling, which follows their
            payments; topping up does not lift a cap.""",
            sql(
                """
                select
                    account_id as account,
                    (overage_used + overage_held)::numeric / nullif(effective_cap_credits, 0) as of_cap,
                    overage_used as used,
                    overage_held as held,
                    effective_cap_credits as cap,
                    overage_used_usd as used_usd,
                    effective_cap_usd as cap_usd,
                    provider_ceiling_usd as ceiling_usd,
                    paid_cycles
                from reporting.accounts
                where overage_used + overage_held > 0
                order by of_cap desc nulls last, account
                limit 50
                """
            ),
            units={"of_cap": "percentunit", "used_usd": USD, "cap_usd": USD, "ceiling_usd": USD},
            links=ACCOUNT,
            width=14,
        ),
        figure(
            "At four fifths of their cap",
            "none",
            """Accounts whose overage, used and held, is at 80 % of their cap or more: tell them before they are
            refused. The list beside has their names.""",
            sql(
                """
                select count(*) as accounts
                from reporting.accounts
                where overage_usable and overage_used + overage_held >= 0.8 * effective_cap_credits
                """
            ),
            limit=Limit(10, warn=1),
            width=5,
        ),
        figure(
            "May use overage",
            "none",
            """Accounts that have overage switched on and a verified payment method. A fall: payment methods ran out;
            those accounts are refused with `insufficient_credits` once their balance is used up.""",
            sql("select count(*) as accounts from reporting.accounts where overage_usable"),
            width=5,
        ),
        listing(
            "Accounts with an overdraft",
            """Accounts that owe credits which no source covered; every new reservation of theirs is refused until they
            are granted that much. Grant, or raise their cap; larger holds keep it from coming back.""",
            sql(
                """
                select account_id as account, overdraft, held, overage_usable, access
                from reporting.accounts
                where overdraft > 0
                order by overdraft desc, account
                limit 50
                """
            ),
            links=ACCOUNT,
            width=10,
        ),
        graph(
            "Overage by month",
            USD,
            """Overage of each month in USD, as invoiced or to be invoiced. Show a year to see it. A month that changes
            after it was closed is a discrepancy: run the audit.""",
            sql(
                """
                select month_start::timestamp at time zone 'UTC' as time, 'overage' as metric, sum(overage_usd) as value
                from reporting.months
                where month_start between date_trunc('month', ($__timeFrom())::date) and ($__timeTo())::date
                group by 1
                order by 1
                """,
                series=True,
            ),
            bars=True,
            width=14,
        ),
    ]


def _grants() -> list[AnyPanel]:
    return [
        graph(
            "Credits granted a day, by kind",
            "short",
            """Credits of the grants put on each day, by kind. No `plan` on the 1st: whoever grants plans did not run.
            Many adjustments: somebody mends something; their reference says what.""",
            sql(
                """
                select
                    date_trunc('day', created_at at time zone 'UTC') at time zone 'UTC' as time,
                    kind as metric,
                    sum(granted) as value
                from reporting.grants
                where $__timeFilter(created_at) and granted > 0
                group by 1, 2
                order by 1, 2
                """,
                series=True,
            ),
            bars=True,
            width=12,
        ),
        graph(
            "In and out of balances, by month",
            "short",
            """What each month did to all balances: granted, adjusted, refunded, charged, and expired unused. Show a
            year to see it. Much expired against granted: plans are larger than what customers use.""",
            sql(
                """
                select m.month_start::timestamp at time zone 'UTC' as time, f.metric, sum(f.value) as value
                from reporting.months m
                cross join lateral (
                    values
                        ('granted', m.granted),
                        ('adjusted', m.adjusted),
                        ('refunded', m.refunded_to_balance),
                        ('charged', -m.charged_from_balance),
                        ('expired', -m.expired)
                ) f (metric, value)
                where m.month_start between date_trunc('month', ($__timeFrom())::date) and ($__timeTo())::date
                group by 1, 2
                order by 1, 2
                """,
                series=True,
            ),
            bars=True,
            width=12,
        ),
        listing(
            "Credits that end in the next thirty days",
            """What is left of grants that end soon, by day and kind: it expires if it is not used. A large adjustment
            that ends tomorrow: tell the customer, or grant it anew.""",
            sql(
                """
                select
                    (g.expires_at at time zone 'UTC')::date as day,
                    g.kind,
                    count(*) as grants,
                    sum(g.remaining) as credits
                from reporting.grants g
                join reporting.today t on g.expires_at between t.now and t.now + interval '30 days'
                where g.live and g.remaining > 0
                group by 1, 2
                order by 1, 2
                """
            ),
        ),
        listing(
            "Credits left, by kind",
            """What all customers together have left, and what is held of it, by kind of grant: what is owed to them in
            work. `ended` waits for the sweep `expire_grants`, five minutes at most.""",
            sql(
                """
                select kind, ended, count(*) as grants, sum(remaining) as credits, sum(held) as held
                from reporting.grants
                where live
                group by 1, 2
                order by 1, 2
                """
            ),
        ),
    ]


def _accounts() -> list[AnyPanel]:
    return [
        figure(
            "Accounts",
            "none",
            "Accounts there are. Fewer than the console has: one that is missing here gets `gateway_not_enabled`.",
            sql("select count(*) as accounts from reporting.accounts"),
        ),
        figure(
            "May work",
            "none",
            """Accounts with the module and active access. A fall: a billing run suspended many; ask finance whether it
            was meant.""",
            sql("select count(*) as accounts from reporting.accounts where module_enabled and access = 'active'"),
        ),
        figure(
            "Suspended",
            "none",
            "Accounts cut off for non-payment; what they hold still settles, nothing new is taken on.",
            sql("select count(*) as accounts from reporting.accounts where access = 'suspended'"),
        ),
        figure(
            "Welcomed",
            "none",
            """Accounts that were given the welcome in the time shown: 3,000 credits each, once in their life. None for
            days while accounts are opened: payment methods are not being verified.""",
            sql("select count(*) as accounts from reporting.accounts where $__timeFilter(welcome_granted_at)"),
        ),
        figure(
            "Wait for their welcome",
            "none",
            """Accounts that have all it takes for the welcome and do not have it. It comes at once, or by
            `grant_welcome` within 15 minutes; longer than that: see *Operations*, sweeps.""",
            sql("select count(*) as accounts from reporting.accounts where waits_for_welcome"),
            limit=Limit(1),
        ),
        figure(
            "To be deleted",
            "none",
            """Accounts in their 30 days of grace. One that is overdue: `delete_accounts` waits, or fails, see
            *Operations*, sweeps.""",
            sql("select count(*) as accounts from reporting.accounts where deletion_status = 'pending'"),
        ),
        graph(
            "Accounts opened and welcomed",
            "none",
            """Accounts opened a day, and those given the welcome. Openings without welcomes: nobody verifies a payment
            method.""",
            sql(
                """
                select
                    date_trunc('day', f.at at time zone 'UTC') at time zone 'UTC' as time,
                    f.metric,
                    count(*) as value
                from reporting.accounts a
                cross join lateral (values ('opened', a.created_at), ('welcomed', a.welcome_granted_at)) f (metric, at)
                where $__timeFilter(f.at)
                group by 1, 2
                order by 1, 2
                """,
                series=True,
            ),
            bars=True,
            width=24,
        ),
    ]
