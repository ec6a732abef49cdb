"""`purge_results`: results and usage breakdowns are deleted 24 hours after the close (contract R1).

`credits_charged` and all else about the job stays.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from jobs.sweep import Context, Sweep
from jobs.work import BEGINNING
from ledger.core.account import RESULT_KEPT

BATCH_ROWS: Final = 1_000

# $2 is how far earlier batches came: what they deleted is not waded through again before vacuum has been there.
PURGE: Final = """
with doomed as (
    select account, job, closed_at from ledger.job_results
    where closed_at <= $1 and closed_at >= $2 order by closed_at limit $3
), gone as (
    delete from ledger.job_results r using doomed d where r.account = d.account and r.job = d.job
)
select count(*) as deleted, max(closed_at) as reached from doomed
"""


async def run(context: Context) -> None:
    """Delete what was closed 24 hours ago or earlier, oldest first, each batch a transaction of its own."""
    until = await context.now() - RESULT_KEPT
    reached, deleted = BEGINNING, BATCH_ROWS
    while deleted == BATCH_ROWS:
        row = await context.connection.fetchrow(PURGE, until, reached, BATCH_ROWS)
        assert row is not None
        deleted, reached = row["deleted"], row["reached"]
        context.counts["results_deleted"] += deleted
        context.progress(deleted)


SWEEP: Final = Sweep("purge_results", timedelta(hours=1), ("results_deleted",), run)
