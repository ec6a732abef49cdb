"""`audit`: every invariant of the ledger is checked; a discrepancy is a metric and an alert (contract A, S)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog

from jobs.sweep import Context, Sweep
from ledger.audit import audit

CHECKED: Final = ("accounts", "entries", "postings", "jobs")

log = structlog.get_logger(__name__)


async def run(context: Context) -> None:
    """Audit all accounts in one snapshot, and say how much was checked and how much is wrong."""
    report = await audit(context.connection, progress=context.progress)
    context.counts.update({name: report.checked[name] for name in CHECKED})
    discrepancies = len(report.discrepancies) + report.unlisted
    context.counts["discrepancies"] = discrepancies
    if discrepancies:
        rules = sorted({found.rule for found in report.discrepancies})
        log.error("audit_discrepancies", discrepancies=discrepancies, rules=rules)


SWEEP: Final = Sweep("audit", timedelta(days=1), (*CHECKED, "discrepancies"), run)
