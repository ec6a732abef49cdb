"""The state machine on the pure core: every decision is what the independent model expects."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .core_system import CoreSystem
from .machine import LedgerMachine, System

EXAMPLES = int(os.environ.get("LEDGER_TEST_EXAMPLES", "150"))
"""How many worlds are played; a long run asks for more."""


class CoreMachine(LedgerMachine):
    def make_system(self) -> System:
        return CoreSystem()

    def teardown(self) -> None:
        self.teardown_reports()
        assert isinstance(self.system, CoreSystem)
        for account_id in self.system.core.accounts:
            self.system.core.audit(account_id)
        super().teardown()


def test_the_core_decides_as_the_model_expects() -> None:
    run_state_machine_as_test(
        CoreMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        ),
    )
