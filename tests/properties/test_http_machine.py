"""The state machine on the real service over HTTP: every answer is what the independent model expects."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.service import Service

from .http_system import HttpSystem
from .machine import LedgerMachine, System

EXAMPLES = int(os.environ.get("LEDGER_TEST_EXAMPLES", "15"))
"""How many worlds are played; a long run asks for more."""


def test_the_service_answers_as_the_model_expects(server: Service) -> None:
    class Machine(LedgerMachine):
        def make_system(self) -> System:
            return HttpSystem(server)

        def teardown(self) -> None:
            self.teardown_reports()
            status, report = self.system.call("POST", "/v1/audit", {})  # type: ignore[attr-defined]
            super().teardown()
            assert (status, report["discrepancies"]) == (200, []), report

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        ),
    )
