"""Stories of an account, row by row: the figures in the last columns are what the contract promises.

The columns are explained in `tests/support/stories.py`. One character of speech costs one credit.
"""

from __future__ import annotations

import pytest

from tests.support.stories import play

STORIES: dict[str, tuple[str, int | None]] = {
    "F2 F3: a plan, a purchase and overage, spent and returned in order": (
        """
        15 Nov 12:00:00 | grant bought 50              | granted 50  |  50 |   0 |  0 | 0
        15 Nov 12:00:00 | grant plan 60 plan           | granted 60  | 110 |   0 |  0 | 0
        15 Nov 12:01:00 | reserve a characters:150     | held 150    |   0 | 110 | 40 | 0
        15 Nov 12:02:00 | settle a characters:70       | charged 70  |  40 |   0 |  0 | 0
        15 Nov 12:03:00 | reserve b characters:80      | held 80     |   0 |  40 | 40 | 0
        15 Nov 12:04:00 | settle b characters:80       | charged 80  |   0 |   0 | 40 | 0
        15 Nov 12:05:00 | reserve c characters:61      | spending_cap_reached | 0 | 0 | 40 | 0
        15 Nov 12:06:00 | refund b 50 as r1            | refunded 50 |  10 |   0 |  0 | 0
        """,
        100,
    ),
    "F3: a hold of 60 from a plan and 40 of overage, charged 70": (
        """
        15 Nov 12:00:00 | grant plan 60 plan           | granted 60  |  60 |   0 |  0 | 0
        15 Nov 12:01:00 | reserve a characters:100     | held 100    |   0 |  60 | 40 | 0
        15 Nov 12:02:00 | settle a characters:70       | charged 70  |   0 |   0 | 10 | 0
        """,
        40,
    ),
    "J12 F4: work is done, the money is not there, the next top-up pays": (
        """
        15 Nov 12:00:00 | grant bought 20              | granted 20  |  20 |   0 |  0 | 0
        15 Nov 12:01:00 | reserve a characters:20      | held 20     |   0 |  20 |  0 | 0
        15 Nov 12:02:00 | settle a characters:50       | charged 50  |   0 |   0 |  0 | 30
        15 Nov 12:03:00 | reserve b characters:1       | insufficient_credits | 0 | 0 | 0 | 30
        15 Nov 12:04:00 | grant more 10                | granted 10  |   0 |   0 |  0 | 20
        15 Nov 12:05:00 | reserve b characters:1       | insufficient_credits | 0 | 0 | 0 | 20
        15 Nov 12:06:00 | grant rest 25                | granted 25  |   5 |   0 |  0 | 0
        15 Nov 12:07:00 | reserve b characters:1       | held 1      |   4 |   1 |  0 | 0
        15 Nov 12:08:00 | refund a 35 as r1            | refunded 35 |  39 |   1 |  0 | 0
        """,
        None,
    ),
    "F4: overage is switched off while it is held": (
        """
        15 Nov 12:00:00 | reserve a characters:30      | held 30     |   0 |   0 | 30 | 0
        15 Nov 12:01:00 | overage off                  | done        |   0 |   0 | 30 | 0
        15 Nov 12:02:00 | reserve b characters:1       | insufficient_credits | 0 | 0 | 30 | 0
        15 Nov 12:03:00 | settle a characters:40       | charged 40  |   0 |   0 | 30 | 10
        15 Nov 12:04:00 | overage on                   | done        |   0 |   0 | 30 | 10
        15 Nov 12:05:00 | reserve b characters:1       | insufficient_credits | 0 | 0 | 30 | 10
        15 Nov 12:06:00 | grant more 10                | granted 10  |   0 |   0 | 30 | 0
        15 Nov 12:07:00 | reserve b characters:1       | held 1      |   0 |   0 | 31 | 0
        """,
        100,
    ),
    "O3 O4 O5: the ladder lifts the cap, a returned invoice lowers it under what is used": (
        """
        15 Nov 12:00:00 | ceiling                          | done         |  0 | 0 |     0 | 0
        15 Nov 12:01:00 | reserve a characters:20001       | spending_cap_reached | 0 | 0 | 0 | 0
        15 Nov 12:02:00 | invoice 2026-08 paid_on_time     | done         |  0 | 0 |     0 | 0
        15 Nov 12:02:00 | invoice 2026-09 paid_on_time     | done         |  0 | 0 |     0 | 0
        15 Nov 12:02:00 | invoice 2026-10 paid_on_time     | done         |  0 | 0 |     0 | 0
        15 Nov 12:03:00 | reserve a characters:100000      | held 100000  |  0 | 0 | 100000 | 0
        15 Nov 12:04:00 | invoice 2026-10 returned         | done         |  0 | 0 | 100000 | 0
        15 Nov 12:05:00 | reserve b characters:1           | spending_cap_reached | 0 | 0 | 100000 | 0
        15 Nov 12:06:00 | settle a characters:100000       | charged 100000 | 0 | 0 | 100000 | 0
        15 Nov 12:07:00 | grant more 5                     | granted 5    |  5 | 0 | 100000 | 0
        15 Nov 12:08:00 | reserve b characters:6           | spending_cap_reached | 5 | 0 | 100000 | 0
        15 Nov 12:09:00 | reserve b characters:5           | held 5       |  0 | 5 | 100000 | 0
        01 Dec 00:00:00 | reserve c characters:20000       | held 20000   |  0 | 5 |  19995 | 0
        """,
        100,
    ),
    "P5 P10 J12: a transferred call, and one that lasted longer than was held": (
        """
        15 Nov 12:00:00 | grant bought 10000               | granted 10000 | 10000 |    0 | 0 | 0
        15 Nov 12:01:00 | reserve a call:300 transferable  | held 3560     |  6440 | 3560 | 0 | 0
        15 Nov 12:06:00 | settle a call:150,bridged:150    | charged 3240  |  6760 |    0 | 0 | 0
        15 Nov 12:07:00 | reserve b call:60                | held 620      |  6140 |  620 | 0 | 0
        15 Nov 12:09:00 | settle b call:61                 | charged 1240  |  5520 |    0 | 0 | 0
        15 Nov 12:10:00 | reserve c call:60 transferable   | held 1080     |  4440 | 1080 | 0 | 0
        15 Nov 12:11:00 | settle c call:59.5,bridged:0     | charged 620   |  4900 |    0 | 0 | 0
        15 Nov 12:12:00 | reserve d call:60 transferable   | held 1080     |  3820 | 1080 | 0 | 0
        15 Nov 12:13:00 | settle d call:?,bridged:?        | charged 1080  |  3820 |    0 | 0 | 0
        15 Nov 12:14:00 | reserve e call:600 partial       | held 3720     |   100 | 3720 | 0 | 0
        15 Nov 12:15:00 | reserve f call:600 partial       | insufficient_credits | 100 | 3720 | 0 | 0
        15 Nov 12:16:00 | release e                        | back 3720     |  3820 |    0 | 0 | 0
        """,
        None,
    ),
    "P2 P7: a turn with attachments": (
        """
        15 Nov 12:00:00 | grant bought 1000                | granted 1000 | 1000 |   0 | 0 | 0
        15 Nov 12:01:00 | reserve a turn:1,image:1         | held 66      |  934 |  66 | 0 | 0
        15 Nov 12:02:00 | settle a turn:1,image:2,audio:3  | charged 131  |  869 |   0 | 0 | 0
        15 Nov 12:03:00 | reserve b video:2                | held 540     |  329 | 540 | 0 | 0
        15 Nov 12:04:00 | settle b video:2                 | charged 540  |  329 |   0 | 0 | 0
        15 Nov 12:05:00 | reserve c audio:10.2             | held 11      |  318 |  11 | 0 | 0
        15 Nov 12:06:00 | settle c audio:10                | charged 10   |  319 |   0 | 0 | 0
        """,
        None,
    ),
    "J5 J6: a job that nobody closes costs nothing": (
        """
        15 Nov 12:00:00 | grant bought 100                 | granted 100 | 100 |  0 | 0 | 0
        15 Nov 12:00:00 | reserve a characters:60 60 s     | held 60     |  40 | 60 | 0 | 0
        15 Nov 12:00:59 | look                             | done        |  40 | 60 | 0 | 0
        15 Nov 12:01:00 | look                             | done        | 100 |  0 | 0 | 0
        15 Nov 12:01:01 | settle a characters:60           | job_not_completed  | 100 | 0 | 0 | 0
        15 Nov 12:01:02 | release a                        | job_not_completed  | 100 | 0 | 0 | 0
        15 Nov 12:01:03 | refund a 1 as r1                 | job_not_completed  | 100 | 0 | 0 | 0
        """,
        None,
    ),
    "J1: everything twice is everything once": (
        """
        15 Nov 12:00:00 | grant bought 100                 | granted 100 | 100 |  0 | 0 | 0
        15 Nov 12:00:01 | grant bought 100                 | granted 100 | 100 |  0 | 0 | 0
        15 Nov 12:00:02 | reserve a characters:60          | held 60     |  40 | 60 | 0 | 0
        15 Nov 12:00:03 | reserve a characters:60          | held 60     |  40 | 60 | 0 | 0
        15 Nov 12:00:04 | settle a characters:50           | charged 50  |  50 |  0 | 0 | 0
        15 Nov 12:00:05 | settle a characters:50           | charged 50  |  50 |  0 | 0 | 0
        15 Nov 12:00:06 | refund a 20 as r1                | refunded 20 |  70 |  0 | 0 | 0
        15 Nov 12:00:07 | refund a 20 as r1                | refunded 20 |  70 |  0 | 0 | 0
        15 Nov 12:00:08 | refund a all as r2               | refunded 30 | 100 |  0 | 0 | 0
        15 Nov 12:00:09 | refund a all as r3               | validation_error | 100 | 0 | 0 | 0
        """,
        None,
    ),
    "Q3: the ceiling of the period, which refunds do not give back": (
        """
        15 Nov 12:00:00 | grant bought 1000                | granted 1000 | 1000 |  0 | 0 | 0
        15 Nov 12:00:01 | quota 100                        | done         | 1000 |  0 | 0 | 0
        15 Nov 12:00:02 | reserve a characters:101         | request_exceeds_period_quota | 1000 | 0 | 0 | 0
        15 Nov 12:00:03 | reserve a characters:60          | held 60      |  940 | 60 | 0 | 0
        15 Nov 12:00:04 | reserve b characters:41          | period_quota_exhausted | 940 | 60 | 0 | 0
        15 Nov 12:00:05 | settle a characters:60           | charged 60   |  940 |  0 | 0 | 0
        15 Nov 12:00:06 | refund a all as r1               | refunded 60  | 1000 |  0 | 0 | 0
        15 Nov 12:00:07 | reserve b characters:41          | period_quota_exhausted | 1000 | 0 | 0 | 0
        15 Nov 12:00:08 | reserve b characters:41 test     | held 41      |  959 | 41 | 0 | 0
        01 Dec 00:00:00 | reserve c characters:100         | held 100     |  900 | 100 | 0 | 0
        """,
        None,
    ),
    "F5 F4: the welcome, held back while access is suspended": (
        """
        15 Nov 12:00:00 | suspend                          | done         |    0 |  0 | 0 | 0
        15 Nov 12:00:01 | verify                           | done         |    0 |  0 | 0 | 0
        15 Nov 12:15:00 | look                             | done         |    0 |  0 | 0 | 0
        16 Nov 09:00:00 | activate                         | done         | 3000 |  0 | 0 | 0
        16 Nov 09:00:01 | suspend                          | done         | 3000 |  0 | 0 | 0
        16 Nov 09:00:02 | activate                         | done         | 3000 |  0 | 0 | 0
        """,
        None,
    ),
    "J14 T2 T4: the month ends while a job is open": (
        """
        30 Nov 23:50:00 | grant plan 100 plan              | granted 100 | 100 |   0 |  0 | 0
        30 Nov 23:50:00 | reserve a characters:120 1200 s  | held 120    |   0 | 100 | 20 | 0
        30 Nov 23:59:59 | reserve b characters:31          | spending_cap_reached | 0 | 100 | 20 | 0
        01 Dec 00:00:00 | reserve b characters:31          | held 31     |   0 | 100 | 31 | 0
        01 Dec 00:05:00 | settle a characters:70           | charged 70  |   0 |   0 | 31 | 0
        01 Dec 00:06:00 | refund a 30 as r1                | refunded 30 |  30 |   0 | 31 | 0
        01 Dec 00:07:00 | settle b characters:31           | charged 31  |  30 |   0 | 31 | 0
        """,
        50,
    ),
}


@pytest.mark.parametrize(("story", "overage"), STORIES.values(), ids=STORIES.keys())
def test_story(story: str, overage: int | None) -> None:
    play(story, overage=overage)
