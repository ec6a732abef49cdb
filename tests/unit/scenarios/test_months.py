"""Two months of an account, and the lines of their statements (J13, J14, T2, T4, F2)."""

from __future__ import annotations

import pytest

from tests.support.core import World
from tests.support.stories import play

STORY = """
    15 Nov 12:00:00 | grant bought 500              | granted 500 |  500 |   0 |  0 |  0
    15 Nov 12:00:00 | grant plan 200 plan           | granted 200 |  700 |   0 |  0 |  0
    15 Nov 12:00:00 | grant gift 50 adjustment      | granted 50  |  750 |   0 |  0 |  0
    15 Nov 12:00:01 | grant error -30 adjustment    | granted -30 |  720 |   0 |  0 |  0
    20 Nov 12:00:00 | reserve a characters:100      | held 100    |  620 | 100 |  0 |  0
    20 Nov 12:01:00 | settle a characters:90        | charged 90  |  630 |   0 |  0 |  0
    30 Nov 23:50:00 | reserve b characters:60 1200 s | held 60    |  570 |  60 |  0 |  0
    30 Nov 23:59:59 | look                          | done        |  570 |  60 |  0 |  0
    01 Dec 00:00:00 | look                          | done        |  550 |  60 |  0 |  0
    01 Dec 00:05:00 | settle b characters:40        | charged 40  |  550 |   0 |  0 |  0
    01 Dec 00:06:00 | grant plan-12 100 plan        | granted 100 |  650 |   0 |  0 |  0
    02 Dec 12:00:00 | refund a 50 as r1             | refunded 50 |  700 |   0 |  0 |  0
    03 Dec 12:00:00 | reserve c characters:740      | held 740    |    0 | 700 | 40 |  0
    03 Dec 12:01:00 | settle c characters:770       | charged 770 |    0 |   0 | 50 | 20
    04 Dec 12:00:00 | refund c 15 as r2             | refunded 15 |    0 |   0 | 50 |  5
    05 Dec 12:00:00 | refund c 20 as r3             | refunded 20 |    0 |   0 | 35 |  0
    06 Dec 12:00:00 | grant more 25                 | granted 25  |   25 |   0 | 35 |  0
"""


@pytest.fixture(scope="module")
def world() -> World:
    """The account after both months, with 50 credits of overage a month."""
    return play(STORY, overage=50)


@pytest.mark.parametrize(
    ("line", "november", "december"),
    [
        ("granted, by the day it was granted", 3_000 + 700, 100 + 25),
        ("adjusted, the welcome that the builder took away included", -3_000 + 20, 0),
        ("charged, by the month of the reservation", 90 + 40, 770),
        ("refunded, by the month it was made in", 0, 50 + 15 + 20),
        ("refunded to the balance, the overdraft included", 0, 50 + 15 + 5),
        ("expired, in the month that ended with the grant", 20 + 20, 0),
        ("overage, less what was refunded within the month", 0, 50 - 15),
    ],
)
def test_the_lines_of_two_statements(world: World, line: str, november: int, december: int) -> None:
    """J13, J14, T4."""
    field = {
        "granted": "granted",
        "adjusted": "adjusted",
        "charged": "charged",
        "refunded to the balance": "refunded_to_balance",
        "refunded": "refunded",
        "expired": "expired",
        "overage": "overage_used",
    }[line.split(",")[0]]
    assert (getattr(world.month("2026-11"), field), getattr(world.month("2026-12"), field)) == (november, december)


def test_the_statements_lead_from_nothing_to_the_balance(world: World) -> None:
    """opening + granted + adjusted + refunded to the balance - charged from the balance - expired = closing."""
    closing = 0
    for name in ("2026-11", "2026-12"):
        month = world.month(name)
        overage = sum(
            job.closing.funding.overage
            for job in world.acme.jobs.values()
            if job.closing is not None and job.period == name
        )
        closing += month.granted + month.adjusted + month.refunded_to_balance
        closing -= month.charged - overage + month.expired
    assert closing == world.acme.available + world.acme.held - world.acme.overdraft == 25


def test_a_plan_that_is_held_over_midnight_pays_and_its_rest_is_gone(world: World) -> None:
    """F2, T4: of 200, 30 were taken back and 90 + 40 spent; 20 free and 20 that came back too late expired."""
    plan = world.acme.grants_by_id["plan"]
    assert (plan.granted, plan.remaining, plan.held) == (200, 0, 0)
    assert world.month("2026-11").expired == 200 - 30 - 90 - 40


def test_what_the_plan_of_a_past_month_had_paid_came_back_without_an_end(world: World) -> None:
    """J13."""
    grant = world.acme.grants_by_id["refund-r1"]
    assert (grant.kind, grant.granted, grant.expires_at) == ("adjustment", 50, None)
