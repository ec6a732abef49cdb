"""The machine tried on the model itself: it finds nothing there, and it does find a fault that is planted."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .comparing import answer_differences, differences
from .machine import Answer, LedgerMachine, World
from .model import Model
from .model_answers import ABSENT, Expected, refusal
from .model_books import Account, Piece
from .model_prices import Json

QUICK = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=True,
    phases=[Phase.generate],
)


class ModelSystem:
    """A second model behind the `System` protocol, with its answers sent through JSON."""

    def begin(self) -> World:
        now = datetime(2026, 11, 15, 12, tzinfo=UTC)
        self.model = Model(now)
        return World(now, ("acct-a", "acct-b"))

    def advance(self, to: datetime) -> None:
        self.model.advance(to)

    def close(self) -> None:
        pass

    def answered(self, expected: Expected) -> Answer:
        body = expected.body or {}
        if "error" in body:
            details = {name: value for name, value in body["error"]["details"].items() if value is not ABSENT}
            body = {"error": {**body["error"], "details": details}}
        sent: Json = json.loads(json.dumps(body))
        return expected.status, sent

    def put_account(self, account_id: str, body: Json) -> Answer:
        return self.answered(self.model.put_account(account_id, body))

    def patch_account(self, account_id: str, body: Json) -> Answer:
        return self.answered(self.model.patch_account(account_id, body))

    def get_account(self, account_id: str) -> Answer:
        return self.answered(self.model.get_account(account_id))

    def put_cycle(self, account_id: str, month: str, status: str) -> Answer:
        return self.answered(self.model.put_cycle(account_id, month, status))

    def put_grant(self, account_id: str, grant_id: str, body: Json) -> Answer:
        return self.answered(self.model.put_grant(account_id, grant_id, body))

    def reserve(self, account_id: str, job_id: str, body: Json) -> Answer:
        return self.answered(self.model.reserve(account_id, job_id, body))

    def settle(self, account_id: str, job_id: str, body: Json) -> Answer:
        return self.answered(self.model.settle(account_id, job_id, body))

    def release(self, account_id: str, job_id: str, body: Json) -> Answer:
        return self.answered(self.model.release(account_id, job_id, body))

    def refund(self, account_id: str, job_id: str, body: Json) -> Answer:
        return self.answered(self.model.refund(account_id, job_id, body))

    def get_job(self, account_id: str, job_id: str, environment: str | None = None) -> Answer:
        return self.answered(self.model.get_job(account_id, job_id, environment))

    def balance(self, account_id: str, at: datetime | None = None) -> Answer:
        return self.answered(self.model.balance(account_id, at))

    def quote(self, body: Json) -> Answer:
        return self.answered(self.model.quote(body))

    def usage(self, account_id: str, period: str) -> Answer:
        return self.answered(self.model.usage(account_id, period))

    def statement(self, account_id: str, period: str) -> Answer:
        return self.answered(self.model.statement(account_id, period))


class MachineOnModel(LedgerMachine):
    """The machine with the model on both sides."""

    def make_system(self) -> ModelSystem:
        return ModelSystem()

    def teardown(self) -> None:
        self.teardown_reports()
        super().teardown()


def test_the_machine_finds_nothing_in_the_model_itself() -> None:
    run_state_machine_as_test(MachineOnModel, settings=QUICK)


class OverdraftNeverPaid(Account):
    """A fault: what comes in never pays an overdraft."""

    def pay_overdraft(self, now: datetime) -> None:
        pass


class OverageFirst(Account):
    """A fault: a hold is used up from the wrong end, so that a settlement keeps the overage (against F3)."""

    def charge_job(self, job: Any, lines: list[tuple[str, int]], now: datetime) -> list[Piece]:
        job.hold.reverse()
        return super().charge_job(job, lines, now)


@pytest.mark.parametrize("fault", [OverdraftNeverPaid, OverageFirst])
def test_the_machine_finds_a_planted_fault(fault: type[Account]) -> None:
    class Faulty(ModelSystem):
        def put_account(self, account_id: str, body: Json) -> Answer:
            answer = super().put_account(account_id, body)
            if answer[0] in (200, 201):
                self.model.accounts[account_id].__class__ = fault
            return answer

    class MachineOnFaulty(LedgerMachine):
        def make_system(self) -> ModelSystem:
            return Faulty()

    finding = settings(QUICK, max_examples=400)
    with pytest.raises(AssertionError, match=r"differences:\n"):
        run_state_machine_as_test(MachineOnFaulty, settings=finding)


@pytest.mark.parametrize(
    ("expected", "actual", "lines"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, []),
        ({"a": 60}, {"a": 60.0}, []),
        ({"a": True}, {"a": 1}, ["a: expected true, got 1"]),
        ({"a": {"b": [1]}}, {"a": {"b": [2]}}, ["a.b[0]: expected 1, got 2"]),
        ({"a": None}, {}, ['a: expected null, got "<absent>"']),
        ({"a": ABSENT}, {"a": 3}, ['a: expected "<absent>", got 3']),
        ({"environments": {"live": None}}, {"environments": {}}, []),
        ({"cap_usd": "20"}, {"cap_usd": "20.00"}, []),
        (
            {
                "charges": [
                    {"operation": "x", "refunded_credits": 1},
                    {"operation": "y", "refunded_credits": 0},
                ]
            },
            {
                "charges": [
                    {"operation": "y", "refunded_credits": 0},
                    {"operation": "x", "refunded_credits": 2},
                ]
            },
            ["charges[x].refunded_credits: expected 1, got 2"],
        ),
    ],
)
def test_differences(expected: Json, actual: Json, lines: list[str]) -> None:
    assert differences(expected, actual) == lines


def test_a_refusal_must_not_say_when_to_come_back_unless_it_is_temporary() -> None:
    expected = refusal("insufficient_credits")
    body = {"error": {"code": "insufficient_credits"}}
    assert answer_differences(expected, 402, body) == []
    late = {"error": {"code": "insufficient_credits", "details": {"retry_after": 3}}}
    assert answer_differences(expected, 402, late) == ['error.details.retry_after: expected "<absent>", got 3']
