"""The model against the examples of the contract and the interface, and against scenarios done by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from .model import Model
from .model_answers import Expected
from .model_prices import Json, billed

A = "acct-1"
NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 12, 1, tzinfo=UTC)
UNLIMITED: Json = {"live": {"max_requests": 1000, "max_calls": 1000}}


def opened(now: datetime = NOW, **policy: Any) -> Model:
    """A model with one account that can operate and has nothing."""
    model = Model(now)
    body = {"module_enabled": True, "environments": UNLIMITED, **policy}
    assert model.put_account(A, body).status == 201
    return model


def with_overage(cap: str | None, now: datetime = NOW) -> Model:
    """An account with overage at a credit for a cent, the welcome already spent."""
    overage = {"enabled": True, "cap_usd": cap, "credit_price_usd": "0.01"}
    model = opened(now, payment_method_verified=True, overage=overage)
    assert model.put_grant(A, "away", {"kind": "adjustment", "credits": -3000}).status == 201
    return model


def grant(model: Model, grant_id: str, amount: int, kind: str = "purchase", ends: datetime | None = None) -> None:
    expires = None if ends is None else ends.isoformat()
    body = {"kind": kind, "credits": amount, "expires_at": expires}
    assert model.put_grant(A, grant_id, body).status == 201


def reserve(model: Model, job_id: str, *lines: tuple[str, float], **more: Any) -> Expected:
    rows = [{"operation": operation, "quantity": quantity} for operation, quantity in lines]
    return model.reserve(A, job_id, {"environment": "live", "lines": rows, **more})


def settle(model: Model, job_id: str, *lines: tuple[str, float | None], **more: Any) -> Json:
    rows = [{"operation": operation, "quantity": quantity} for operation, quantity in lines]
    answer = model.settle(A, job_id, {"lines": rows, **more})
    assert answer.status == 200, answer
    model.check_invariants()
    assert answer.body is not None
    return answer.body


def refund(model: Model, job_id: str, refund_id: str, amount: int | None) -> Expected:
    answer = model.refund(A, job_id, {"refund_id": refund_id, "credits": amount})
    model.check_invariants()
    return answer


def balance(model: Model) -> Json:
    body = model.balance(A).body
    assert body is not None
    return body


def remaining(model: Model) -> dict[str, int]:
    return {row["grant_id"]: row["remaining"] for row in balance(model)["grants"]}


def totals(model: Model) -> tuple[int, int, int]:
    body = balance(model)
    return body["available"], body["held"], body["overdraft"]


def body_of(answer: Expected) -> Json:
    assert answer.body is not None
    return answer.body


def details(answer: Expected) -> Json:
    found: Json = body_of(answer)["error"]["details"]
    return found


# Prices.


@pytest.mark.parametrize(
    ("operation", "quantity", "units", "cost"),
    [
        ("audio_transcription", 3, 10, 10),  # P2
        ("audio_transcription", 10.2, 11, 11),  # P2
        ("audio_transcription", None, 10, 10),  # P4
        ("voice_call_minute", 61, 2, 1240),  # P2
        ("voice_call_minute", 60.0, 1, 620),
        ("voice_call_minute", None, 1, 620),  # P4
        ("voice_transfer_minute", None, 2, 460),  # P4
        ("voice_transfer_minute", 0, 0, 0),  # P6
        ("voice_transfer_minute", 150, 6, 1380),
        ("video_analysis", 2, 2, 540),
        ("agent_turn", 1, 1, 11),
        ("tts_synthesis", 10**9, 10**9, 10**9),
    ],
)
def test_billed(operation: str, quantity: float | None, units: int, cost: int) -> None:
    assert billed(operation, quantity) == (units, cost)


def test_p10_a_quote_of_a_call_that_may_be_transferred() -> None:
    body: Json = {"lines": [{"operation": "voice_call_minute", "quantity": 300}], "transferable": True}
    quoted = body_of(Model(NOW).quote(body))
    assert (quoted["credits"], quoted["transfer_allowance"]) == (5 * 620 + 460, 460)
    body["lines"][0]["operation"] = "agent_turn"
    assert Model(NOW).quote(body).code == "validation_error"
    body["lines"][0]["operation"] = "palm_reading"
    assert Model(NOW).quote({"lines": body["lines"]}).code == "operation_not_priced"


# The examples of the interface.


def test_the_call_of_the_interface_is_held_in_part_and_settled_above_its_hold() -> None:
    model = opened(payment_method_verified=True)
    reserved = reserve(
        model,
        "job",
        ("voice_call_minute", 300),
        transferable=True,
        allow_partial=True,
        ttl_seconds=1200,
    )
    assert reserved.status == 201
    assert reserved.body == {
        "job_id": "job",
        "account_id": A,
        "environment": "live",
        "operation": "voice_call_minute",
        "status": "reserved",
        "period": "2026-11",
        "price_version": "2026-09-11",
        "lines": [
            {
                "operation": "voice_call_minute",
                "unit": "minute",
                "requested_quantity": 300,
                "reserved_quantity": 240,
                "billable_quantity": 4,
                "credits": 2480,
            }
        ],
        "transfer_allowance": 460,
        "held_credits": 2940,
        "partial": True,
        "funding": {"balance": 2940, "overage": 0},
        "created_at": "2026-11-15T12:00:00Z",
        "expires_at": "2026-11-15T12:20:00Z",
    }
    grant(model, "inv-77", 5000)
    settled = settle(model, "job", ("voice_call_minute", 150), ("voice_transfer_minute", 150))
    assert settled == {
        "job_id": "job",
        "status": "settled",
        "usage": {"operation": "voice_call_minute", "unit": "minute", "quantity": 3, "credits": 1860},
        "lines": [
            {
                "operation": "voice_call_minute",
                "unit": "minute",
                "measured_quantity": 150,
                "quantity": 3,
                "credits": 1860,
            },
            {
                "operation": "voice_transfer_minute",
                "unit": "minute",
                "measured_quantity": 150,
                "quantity": 6,
                "credits": 1380,
            },
        ],
        "credits_charged": 3240,
        "credits_returned": 0,
        "credits_over_hold": 300,
        "funding": {"balance": 3240, "overage": 0, "overdraft": 0},
        "settled_at": "2026-11-15T12:00:00Z",
    }
    assert remaining(model) == {"inv-77": 4760}


def test_the_balance_of_the_interface() -> None:
    overage = {"enabled": True, "cap_usd": "50.00", "credit_price_usd": "0.001"}
    model = opened(payment_method_verified=True, overage=overage, environments={"live": {}})
    grant(model, "inv-77", 5000)
    reserve(model, "job", ("audio_transcription", 120))
    assert balance(model) == {
        "account_id": A,
        "at": "2026-11-15T12:00:00Z",
        "period": "2026-11",
        "period_ends_at": "2026-12-01T00:00:00Z",
        "available": 7880,
        "held": 120,
        "overdraft": 0,
        "grants": [
            {
                "grant_id": "welcome",
                "kind": "welcome",
                "granted": 3000,
                "remaining": 2880,
                "held": 120,
                "expires_at": None,
            },
            {
                "grant_id": "inv-77",
                "kind": "purchase",
                "granted": 5000,
                "remaining": 5000,
                "held": 0,
                "expires_at": None,
            },
        ],
        "overage": {"usable": True, "used": 0, "held": 0, "cap_usd": "20", "cap_credits": 20000},
        "environments": {
            "live": {
                "period_credits": None,
                "used": 0,
                "held": 120,
                "remaining": None,
                "open_requests": 1,
                "open_calls": 0,
                "max_requests": 10,
                "max_calls": 5,
            },
            "test": None,
        },
    }


# Where the credits come from.


def test_f3_the_hold_is_used_up_in_spending_order_and_overage_goes_back_first() -> None:
    model = with_overage("20.00")
    grant(model, "plan", 60, "plan")
    reserved = reserve(model, "job", ("tts_synthesis", 100))
    assert body_of(reserved)["funding"] == {"balance": 60, "overage": 40}
    settled = settle(model, "job", ("tts_synthesis", 70))
    assert settled["funding"] == {"balance": 60, "overage": 10, "overdraft": 0}
    assert settled["credits_returned"] == 30
    overage = balance(model)["overage"]
    assert (overage["used"], overage["held"]) == (10, 0)


def test_f2_what_ends_first_goes_first_then_the_welcome_then_as_granted() -> None:
    model = opened()
    grant(model, "bought", 10)
    grant(model, "adjusted", 10, "adjustment")
    model.patch_account(A, {"payment_method_verified": True})
    grant(model, "late", 10, ends=NOW + timedelta(days=9))
    grant(model, "soon", 10, "plan", ends=NOW + timedelta(days=1))
    order = ["soon", "late", "welcome", "bought", "adjusted"]
    assert [row.grant_id for row in model.accounts[A].spending_order(NOW)] == order
    reserve(model, "job", ("tts_synthesis", 3025))
    assert remaining(model) == {"bought": 5, "adjusted": 10, "late": 0, "soon": 0, "welcome": 0}


def test_f2_what_comes_back_after_the_end_is_gone_and_pays_nothing() -> None:
    model = opened()
    ends = NOW + timedelta(minutes=10)
    grant(model, "short", 100, ends=ends)
    reserve(model, "held", ("tts_synthesis", 60))
    reserve(model, "over", ("tts_synthesis", 40))
    settle(model, "over", ("tts_synthesis", 50))
    assert totals(model) == (0, 60, 10)
    model.advance(ends)
    assert settle(model, "held", ("tts_synthesis", 20))["funding"]["balance"] == 20
    assert totals(model) == (0, 0, 10)
    statement = body_of(model.statement(A, "2026-11"))
    assert (statement["expired"], statement["closing_balance"]) == (40, -10)


def test_f5_the_welcome_comes_once_and_not_while_cut_off() -> None:
    model = opened(access="suspended", payment_method_verified=True)
    assert totals(model) == (0, 0, 0)
    model.advance(NOW + timedelta(hours=1))
    changed = body_of(model.patch_account(A, {"access": "active"}))
    assert changed["welcome_granted_at"] == "2026-11-15T13:00:00Z"
    model.patch_account(A, {"module_enabled": False})
    model.patch_account(A, {"module_enabled": True})
    assert totals(model) == (3000, 0, 0)


def test_a_negative_adjustment_takes_in_spending_order_and_never_more_than_there_is() -> None:
    model = opened()
    grant(model, "bought", 10)
    grant(model, "plan", 10, "plan")
    answer = model.put_grant(A, "down", {"kind": "adjustment", "credits": -21})
    assert (answer.status, answer.code) == (402, "insufficient_credits")
    assert model.put_grant(A, "down", {"kind": "adjustment", "credits": -15}).status == 201
    assert remaining(model) == {"bought": 5}
    assert model.put_grant(A, "down", {"kind": "adjustment", "credits": -15}).status == 200
    assert model.put_grant(A, "down", {"kind": "adjustment", "credits": -16}).code == "idempotency_key_reused"
    model.check_invariants()


def test_grants_that_cannot_be() -> None:
    model = opened()
    past = {"kind": "purchase", "credits": 1, "expires_at": "2026-11-15T12:00:00Z"}
    assert model.put_grant(A, "g", past).code == "validation_error"
    for name in ("welcome", "refund-x"):
        assert model.put_grant(A, name, {"kind": "purchase", "credits": 1}).code == "validation_error"
    assert model.put_grant("nobody", "g", {"kind": "purchase", "credits": 1}).code == "resource_not_found"


# Overage.


def test_o3_o4_the_ladder() -> None:
    model = opened(overage={"enabled": True, "cap_usd": None, "credit_price_usd": "0.03"})

    def cap_after(*statuses: str) -> tuple[int, str, int]:
        for month, status in enumerate(statuses, start=1):
            model.put_cycle(A, f"2026-0{month}", status)
        body = body_of(model.get_account(A))
        return body["paid_cycles"], body["effective_cap_usd"], body["effective_cap_credits"]

    assert cap_after("paid_on_time", "paid_on_time") == (2, "20", 666)
    assert cap_after(*["paid_on_time"] * 3) == (3, "100", 3333)
    assert cap_after(*["paid_on_time"] * 6) == (6, "500", 16666)
    assert cap_after("paid_on_time", "open", "paid_late") == (3, "100", 3333)
    assert cap_after("paid_on_time", "open", "open") == (4, "100", 3333)
    assert cap_after(*["paid_on_time"] * 5, "returned") == (0, "20", 666)


def test_o5_f6_which_refusal_it_is() -> None:
    model = with_overage("1.00")
    assert reserve(model, "a", ("tts_synthesis", 60)).status == 201
    refused = reserve(model, "b", ("tts_synthesis", 41))
    assert refused.code == "spending_cap_reached"
    assert details(refused)["cap_credits"] == 100
    model.patch_account(A, {"payment_method_verified": False})
    assert reserve(model, "b", ("tts_synthesis", 40)).code == "insufficient_credits"
    assert balance(model)["overage"]["held"] == 60
    settled = settle(model, "a", ("tts_synthesis", 70))
    assert settled["funding"] == {"balance": 0, "overage": 60, "overdraft": 10}


# Settling above the hold, and refunds.


def test_j12_an_overrun_takes_what_there_is_then_overage_then_overdraft() -> None:
    model = with_overage("1.00")
    grant(model, "bought", 50)
    reserve(model, "job", ("tts_synthesis", 20))
    settled = settle(model, "job", ("tts_synthesis", 200))
    assert settled["funding"] == {"balance": 50, "overage": 100, "overdraft": 50}
    assert settled["credits_over_hold"] == 180
    assert totals(model) == (0, 0, 50)
    model.patch_account(A, {"overage": {"cap_usd": "20.00"}})
    assert reserve(model, "next", ("sentiment_analysis", 1)).code == "insufficient_credits"
    grant(model, "new", 30)
    assert totals(model) == (0, 0, 20)
    grant(model, "newer", 30)
    assert (totals(model), remaining(model)) == ((10, 0, 0), {"newer": 10})
    assert settle(model, "job", ("tts_synthesis", 200)) == settled

    answer = refund(model, "job", "r1", 25)
    assert body_of(answer)["funding"] == {"balance": 25, "overage": 0, "overdraft": 0}
    assert remaining(model) == {"new": 5, "newer": 30}
    answer = refund(model, "job", "r2", None)
    assert (body_of(answer)["credits"], body_of(answer)["credits_refunded"]) == (175, 200)
    assert body_of(answer)["funding"] == {"balance": 75, "overage": 100, "overdraft": 0}
    assert balance(model)["overage"]["used"] == 0
    assert remaining(model) == {"bought": 50, "new": 30, "newer": 30}


def test_j12_what_comes_back_pays_an_overdraft_first() -> None:
    model = opened()
    grant(model, "bought", 100)
    reserve(model, "open", ("tts_synthesis", 70), ttl_seconds=60)
    reserve(model, "over", ("tts_synthesis", 30))
    settle(model, "over", ("tts_synthesis", 80))
    assert totals(model) == (0, 70, 50)
    model.advance(NOW + timedelta(seconds=60))
    assert totals(model) == (20, 0, 0)
    model.check_invariants()


def test_j13_a_refund_of_an_overdraft_lowers_it_and_nothing_else() -> None:
    model = opened()
    grant(model, "bought", 30)
    reserve(model, "job", ("tts_synthesis", 30))
    settle(model, "job", ("tts_synthesis", 80))
    answer = refund(model, "job", "r", 60)
    assert body_of(answer)["funding"] == {"balance": 10, "overage": 0, "overdraft": 50}
    assert totals(model) == (10, 0, 0)


def test_j13_the_last_line_is_refunded_first() -> None:
    model = opened()
    grant(model, "bought", 100)
    reserve(model, "job", ("agent_turn", 1), ("image_analysis", 1))
    settle(model, "job", ("agent_turn", 1), ("image_analysis", 1))
    refund(model, "job", "r", 60)
    usage = body_of(model.usage(A, "2026-11"))
    assert [(row["operation"], row["refunded_credits"]) for row in usage["lines"]] == [
        ("agent_turn", 5),
        ("image_analysis", 55),
    ]
    assert usage["totals"] == {"credits": 66, "refunded_credits": 60, "net_credits": 6, "jobs": 1}


def test_j13_ended_grants_and_overage_of_a_period_that_is_over_become_one_grant() -> None:
    model = with_overage("1.00")
    grant(model, "plan", 60, "plan")
    grant(model, "bought", 10)
    reserve(model, "job", ("tts_synthesis", 100))
    settle(model, "job", ("tts_synthesis", 100))
    model.advance(MIDNIGHT)
    answer = refund(model, "job", "r", None)
    assert body_of(answer)["funding"] == {"balance": 100, "overage": 0, "overdraft": 0}
    assert remaining(model) == {"bought": 10, "refund-r": 90}
    november, december = (body_of(model.statement(A, month)) for month in ("2026-11", "2026-12"))
    assert (november["overage"]["credits"], november["charged"], november["refunded"]) == (30, 100, 0)
    assert (december["refunded"], december["refunded_to_balance"], december["adjusted"]) == (100, 100, 0)
    assert november["closing_balance"] == december["opening_balance"] == 0
    assert december["closing_balance"] == 100
    usage = body_of(model.usage(A, "2026-12"))
    assert usage["lines"] == [
        {
            "operation": "tts_synthesis",
            "unit": "character",
            "quantity": 0,
            "credits": 0,
            "refunded_credits": 100,
            "jobs": 0,
        }
    ]


def test_refunds_that_cannot_be_and_refunds_that_were() -> None:
    model = opened()
    grant(model, "bought", 1000)
    reserve(model, "job", ("tts_synthesis", 100))
    assert (refund(model, "job", "r", 1).code, details(refund(model, "job", "r", 1))["retry_after"]) == (
        "request_in_flight",
        900,
    )
    settle(model, "job", ("tts_synthesis", 100))
    assert [refund(model, "job", "r", part).code for part in (0, -1, 101)] == ["validation_error"] * 3
    first = refund(model, "job", "r", 40)
    assert (first.status, refund(model, "job", "r", 40).status) == (201, 200)
    assert refund(model, "job", "r", 40).body == first.body
    assert refund(model, "job", "r", 41).code == "idempotency_key_reused"
    rest = refund(model, "job", "rest", None)
    assert (rest.status, body_of(rest)["credits"]) == (201, 60)
    assert refund(model, "job", "rest", 60) == refund(model, "job", "rest", None)
    assert refund(model, "job", "more", None).code == "validation_error"
    reserve(model, "free", ("agent_turn", 1))
    model.release(A, "free", {})
    assert refund(model, "free", "f", 1).code == "job_already_closed"
    assert refund(model, "nothing", "f", 1).code == "resource_not_found"


# Periods and time.


def test_j14_a_job_belongs_to_the_month_it_was_reserved_in() -> None:
    model = opened(MIDNIGHT - timedelta(minutes=1), environments={"live": {"period_credits": 1000}})
    grant(model, "bought", 5000)
    reserve(model, "old", ("tts_synthesis", 700))
    refused = reserve(model, "new", ("tts_synthesis", 301))
    assert (refused.code, details(refused)["retry_after"]) == ("period_quota_exhausted", 60)
    assert details(refused)["resets_at"] == "2026-12-01T00:00:00Z"
    model.advance(MIDNIGHT)
    live = balance(model)["environments"]["live"]
    assert (live["used"], live["held"], live["remaining"], live["open_requests"]) == (0, 0, 1000, 1)
    assert body_of(reserve(model, "new", ("tts_synthesis", 1000)))["period"] == "2026-12"
    settle(model, "old", ("tts_synthesis", 1200))
    november, december = (body_of(model.statement(A, month)) for month in ("2026-11", "2026-12"))
    assert (november["charged"], december["charged"]) == (1200, 0)
    assert november["closing_balance"] == december["opening_balance"] == december["closing_balance"] == 3800
    assert balance(model)["environments"]["live"]["held"] == 1000


def test_t1_t4_what_ends_at_midnight_belongs_to_the_month_that_ended() -> None:
    model = opened(MIDNIGHT - timedelta(hours=1))
    grant(model, "plan", 100, "plan")
    reserve(model, "job", ("tts_synthesis", 30), ttl_seconds=7200)
    model.advance(MIDNIGHT - timedelta(microseconds=1))
    assert totals(model) == (70, 30, 0)
    assert balance(model)["at"] == "2026-11-30T23:59:59.999999Z"
    model.advance(MIDNIGHT)
    assert totals(model) == (0, 30, 0)
    model.advance(MIDNIGHT + timedelta(hours=5))
    assert totals(model) == (0, 0, 0)
    job = body_of(model.get_job(A, "job"))
    assert (job["status"], job["expired_at"], job["credits_charged"]) == (
        "expired",
        "2026-12-01T01:00:00Z",
        0,
    )
    november, december = (body_of(model.statement(A, month)) for month in ("2026-11", "2026-12"))
    assert (november["granted"], november["expired"], november["closing_balance"]) == (100, 100, 0)
    assert (december["opening_balance"], december["expired"]) == (0, 0)
    past = {at: body_of(model.balance(A, MIDNIGHT + timedelta(hours=at)))["held"] for at in (0, 1)}
    assert past == {0: 30, 1: 0}
    model.check_invariants()


def test_j6_a_late_settlement_bills_nothing() -> None:
    model = opened()
    grant(model, "bought", 100)
    reserve(model, "job", ("tts_synthesis", 30), ttl_seconds=10)
    model.advance(NOW + timedelta(seconds=10))
    answer = model.settle(A, "job", {"lines": [{"operation": "tts_synthesis", "quantity": 30}]})
    assert answer.code == "job_not_completed"
    known = {"job_id": "job", "status": "expired", "credits_charged": 0}
    assert details(answer).items() >= known.items()
    assert model.release(A, "job", {}).code == "job_not_completed"
    assert totals(model) == (100, 0, 0)


# Quotas, and the order of the checks.


def test_q3_what_can_never_fit_and_what_only_has_to_wait() -> None:
    model = opened(environments={"live": {"period_credits": 2000}})
    grant(model, "bought", 100_000)
    assert reserve(model, "a", ("voice_call_minute", 240)).code == "request_exceeds_period_quota"
    answer = reserve(model, "a", ("voice_call_minute", 240), allow_partial=True)
    assert body_of(answer)["held_credits"] == 1860
    answer = reserve(model, "b", ("voice_call_minute", 240), allow_partial=True)
    assert answer.code == "period_quota_exhausted"
    model.patch_account(A, {"environments": {"live": {"period_credits": 600}}})
    answer = reserve(model, "b", ("voice_call_minute", 240), allow_partial=True)
    assert answer.code == "request_exceeds_period_quota"


def test_q4_slots() -> None:
    model = opened(environments={"live": {"max_requests": 1, "max_calls": 1}, "test": {"max_calls": 0}})
    grant(model, "bought", 100_000)
    call = ("voice_call_minute", 60)
    assert reserve(model, "call", call, ttl_seconds=12).status == 201
    refused = reserve(model, "call-2", call)
    assert (refused.code, details(refused)["retry_after"]) == ("call_concurrency_limit_reached", 12)
    assert reserve(model, "turn", ("agent_turn", 1)).status == 201
    refused = reserve(model, "turn-2", ("agent_turn", 1))
    assert (refused.code, details(refused)["retry_after"]) == ("concurrency_limit_reached", 1)
    refused = reserve(model, "call-3", call, environment="test")
    assert (refused.code, details(refused)["retry_after"]) == ("call_concurrency_limit_reached", 30)


def test_q6_the_first_refusal_is_the_answer() -> None:
    model = Model(NOW)
    turn = ("agent_turn", 1)
    assert reserve(model, "j", ("agent_turn", 0.5), turn).code == "validation_error"
    assert reserve(model, "j", turn, transferable=True).code == "validation_error"
    assert reserve(model, "j", turn, ("palm_reading", 1)).code == "operation_not_priced"
    assert reserve(model, "j", turn).code == "gateway_not_enabled"
    model.put_account(A, {"module_enabled": True, "environments": {"live": {"period_credits": 10}}})
    assert reserve(model, "j", turn, environment="test").code == "gateway_not_enabled"
    assert reserve(model, "j", turn).code == "request_exceeds_period_quota"
    model.patch_account(A, {"environments": {"live": {"period_credits": 15, "max_requests": 0}}})
    assert reserve(model, "j", turn).code == "concurrency_limit_reached"
    model.patch_account(A, {"environments": {"live": {"max_requests": 10}}})
    assert reserve(model, "j", turn).code == "insufficient_credits"
    grant(model, "g", 11)
    assert reserve(model, "j", turn).status == 201
    assert reserve(model, "k", turn).code == "period_quota_exhausted"
    model.patch_account(A, {"access": "suspended"})
    assert reserve(model, "k", turn).code == "gateway_not_enabled"
    assert reserve(model, "j", turn).status == 200
    assert settle(model, "j", turn)["credits_charged"] == 11


# Repeating.


def test_j10_a_key_repeated_case_by_case() -> None:
    model = opened()
    grant(model, "bought", 100_000)
    turn, key = ("agent_turn", 1), {"idempotency_key": "k"}
    first = reserve(model, "j1", turn, **key)
    assert reserve(model, "j1", turn, ttl_seconds=5, metadata={"x": 1}).body == first.body
    assert reserve(model, "j1", ("agent_turn", 2), **key).code == "idempotency_key_reused"
    assert reserve(model, "j1", turn, environment="test").code == "idempotency_key_reused"
    answer = reserve(model, "j2", turn, **key)
    assert (answer.code, details(answer)["retry_after"]) == ("request_in_flight", 900)
    assert reserve(model, "j2", turn, turn, **key).code == "idempotency_key_reused"
    settle(model, "j1", turn, result={"text": "hello"})
    again = body_of(reserve(model, "j2", turn, **key))
    assert (again["replayed"], again["job_id"], again["result"]) == (True, "j1", {"text": "hello"})
    assert model.get_job(A, "j2").code == "resource_not_found"
    model.advance(NOW + timedelta(hours=24))
    answer = reserve(model, "j2", turn, **key)
    assert answer.code == "result_not_replayable"
    assert details(answer).items() >= {"job_id": "j1", "status": "settled", "credits_charged": 11}.items()
    replay = settle(model, "j1", ("agent_turn", 1.0))
    assert (replay["credits_charged"], replay["usage"], replay["lines"]) == (11, None, None)
    other = model.settle(A, "j1", {"lines": [{"operation": "agent_turn", "quantity": 2}]})
    assert other.code == "idempotency_key_reused"
    job = body_of(model.get_job(A, "j1", "live"))
    assert (job["result_state"], job["result"], job["credits_charged"]) == ("expired", None, 11)
    assert model.get_job(A, "j1", "test").code == "resource_not_found"


def test_j10_a_released_job_fails_the_same_way_again_unless_it_never_went_out() -> None:
    model = opened()
    grant(model, "bought", 100_000)
    call = ("voice_call_minute", 60)
    reserve(model, "j1", call, idempotency_key="k")
    released = model.release(A, "j1", {"error_code": "upstream_unavailable"})
    assert body_of(released)["credits_returned"] == 620
    assert model.release(A, "j1", {"error_code": "other"}) == released
    again = body_of(reserve(model, "j2", call, idempotency_key="k"))
    assert (again["job_id"], again["status"], again["error_code"]) == (
        "j1",
        "released",
        "upstream_unavailable",
    )
    reserve(model, "j3", call, idempotency_key="k3")
    model.release(A, "j3", {"originated": False})
    assert reserve(model, "j4", call, idempotency_key="k3").status == 201
    assert body_of(reserve(model, "j3", call, idempotency_key="k3"))["status"] == "released"
    model.advance(NOW + timedelta(seconds=900))
    assert reserve(model, "j5", call, idempotency_key="k3").code == "job_not_completed"


def test_j10_a_fingerprint_says_what_is_the_same() -> None:
    model = opened(environments={"live": {}, "test": {}})
    grant(model, "bought", 100_000)
    reserve(model, "j1", ("agent_turn", 1), fingerprint="f")
    assert reserve(model, "j1", ("image_analysis", 1), fingerprint="f").status == 200
    assert reserve(model, "j1", ("agent_turn", 1)).code == "idempotency_key_reused"
    assert reserve(model, "j1", ("agent_turn", 1), fingerprint="f", environment="test").status == 409


def test_a_job_settled_without_a_result_keeps_none() -> None:
    model = opened()
    grant(model, "bought", 100)
    without: list[Json] = [{}, {"result": None}, {"result": 1, "result_stored": False}]
    for number, more in enumerate(without):
        reserve(model, f"j{number}", ("agent_turn", 1))
        settle(model, f"j{number}", ("agent_turn", 1), **more)
        assert body_of(model.get_job(A, f"j{number}"))["result_state"] == "not_stored"
        assert reserve(model, f"j{number}", ("agent_turn", 1)).code == "result_not_replayable"


# Accounts.


def test_put_replaces_and_patch_merges() -> None:
    model = opened(overage={"enabled": True, "credit_price_usd": "0.01"})
    assert model.put_account(A, {"overage": {"enabled": True}}).code == "validation_error"
    assert model.patch_account(A, {"overage": {"credit_price_usd": None}}).code == "validation_error"
    patched = body_of(model.patch_account(A, {"environments": {"live": {"max_calls": 2}, "test": {}}}))
    assert patched["environments"]["live"] == {"max_requests": 1000, "max_calls": 2, "period_credits": None}
    assert patched["environments"]["test"] == {"max_requests": 10, "max_calls": 5, "period_credits": None}
    replaced = body_of(model.put_account(A, {}))
    assert replaced["environments"] == {"live": None, "test": None}
    assert (replaced["module_enabled"], replaced["overage"]["enabled"]) == (False, False)
    assert replaced["created_at"] == "2026-11-15T12:00:00Z"
    assert model.patch_account("nobody", {}).code == "resource_not_found"
