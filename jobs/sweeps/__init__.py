"""The sweeps of contract section S, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jobs.sweep import Sweep
from jobs.sweeps import (
    audit,
    close_period,
    delete_accounts,
    expire_grants,
    expire_holds,
    grant_welcome,
    purge_results,
    purge_usage_records,
)

SWEEPS: Final[Mapping[str, Sweep]] = {
    module.SWEEP.name: module.SWEEP
    for module in (
        expire_holds,
        grant_welcome,
        expire_grants,
        purge_results,
        purge_usage_records,
        close_period,
        delete_accounts,
        audit,
    )
}
"""Every sweep by its name."""
