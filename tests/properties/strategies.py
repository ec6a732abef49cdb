"""Small worlds for the state machine: few names, so that they collide, and quantities around every edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from .model_prices import Json

JOB_IDS = [f"job-{n}" for n in range(1, 17)]
GRANT_IDS = [f"grant-{n}" for n in range(1, 9)]
REFUND_IDS = [f"rf-{n}" for n in range(1, 5)]
CYCLES = [f"2026-0{n}" for n in range(1, 9)]
CYCLE_STATUSES = ["open", "paid_on_time", "paid_on_time", "paid_on_time", "paid_late", "overdue", "returned"]
CREDIT_PRICE = "0.01"
"""One price in almost every world: with it a cap of 20 USD is 2,000 credits, over three minutes of call."""

accounts = st.sampled_from([0, 0, 1])
job_ids = st.sampled_from(JOB_IDS)
grant_ids = st.sampled_from([*GRANT_IDS, *GRANT_IDS, "welcome", "refund-rf-1"])
refund_ids = st.sampled_from(REFUND_IDS)
months_of_cycles = st.one_of(
    st.sampled_from([[month] for month in CYCLES]), st.sampled_from([CYCLES[:3], CYCLES[:6], CYCLES[3:6]])
)
cycle_statuses = st.sampled_from(CYCLE_STATUSES)

seconds_of_call = st.sampled_from([0.5, 1, 59, 60, 60.0, 61, 119.9, 120, 150, 240, 299.5, 301, 600])
seconds_of_audio = st.sampled_from([0.25, 1, 3, 10, 10.2, 11, 60, 61.5, 400, 999])
QUANTITIES: dict[str, st.SearchStrategy[int | float]] = {
    "agent_turn": st.sampled_from([1, 1, 1.0, 2, 5]),
    "image_analysis": st.integers(1, 3),
    "document_analysis": st.integers(1, 3),
    "video_analysis": st.sampled_from([1, 2]),
    "audio_transcription": seconds_of_audio,
    "tts_synthesis": st.sampled_from([1, 7, 60, 500, 2000]),
    "sentiment_analysis": st.integers(1, 3),
    "voice_call_minute": seconds_of_call,
    "voice_transfer_minute": seconds_of_call,
}
ATTACHMENTS = [
    "image_analysis",
    "document_analysis",
    "video_analysis",
    "audio_transcription",
    "sentiment_analysis",
]
large = st.sampled_from([10**5, 10**6, 10**9])
rather_large = st.sampled_from([1000, 5000])


@st.composite
def line(draw: st.DrawFn, operation: str, *, settling: bool = False) -> Json:
    """A line of one operation; when settling the quantity may be 0 or not measurable."""
    choice = draw(st.integers(0, 19))
    quantity: int | float | None = draw(QUANTITIES[operation])
    if choice == 0:
        quantity = draw(rather_large if settling else large)
    elif settling and choice in (1, 2):
        quantity = None
    elif settling and choice in (3, 4):
        quantity = 0
    return {"operation": operation, "quantity": quantity}


@st.composite
def reserved_lines(draw: st.DrawFn) -> list[Json]:
    """The lines of a reservation: a call half of the time, a turn with attachments, or something else."""
    kind = draw(st.sampled_from(["call", "call", "call", "turn", "turn", "other"]))
    if kind == "call":
        extra = draw(st.lists(st.sampled_from(["sentiment_analysis", "audio_transcription"]), max_size=1))
        return [draw(line("voice_call_minute")), *(draw(line(operation)) for operation in extra)]
    if kind == "turn":
        extra = draw(st.lists(st.sampled_from(ATTACHMENTS), max_size=2))
        return [draw(line("agent_turn")), *(draw(line(operation)) for operation in extra)]
    return [draw(line(draw(st.sampled_from(["audio_transcription", "tts_synthesis", "video_analysis"]))))]


@st.composite
def reservations(draw: st.DrawFn) -> Json:
    """The body of a reservation; about one in fifteen has something wrong with it."""
    body: Json = {"environment": draw(st.sampled_from(["live", "live", "live", "live", "test"]))}
    body["lines"] = draw(reserved_lines())
    call = body["lines"][0]["operation"] == "voice_call_minute"
    if call:
        body |= draw(st.sampled_from([{}, {"transferable": True}, {"transferable": False}]))
        body |= draw(st.sampled_from([{}, {"allow_partial": True}]))
    wrong = draw(st.integers(0, 29))
    if wrong == 0:
        body["lines"][-1] = {"operation": "tts_synthesis", "quantity": 1.5}
        if call and len(body["lines"]) == 1:
            body["lines"].insert(0, {"operation": "voice_call_minute", "quantity": 60})
    elif wrong == 1 and not call:
        body[draw(st.sampled_from(["transferable", "allow_partial"]))] = True
    elif wrong == 2 and not call:
        body["lines"].append({"operation": "palm_reading", "quantity": 1})
    body |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "ttl_seconds": st.sampled_from([1, 60, 900, 1200, 86400]),
                "metadata": st.sampled_from([{"loan_id": "L-9"}, {"n": 1}]),
            },
        )
    )
    if draw(st.integers(0, 3)) == 0:
        body["idempotency_key"] = draw(st.sampled_from(["key-1", "key-2", "key-3"]))
    if draw(st.integers(0, 5)) == 0:
        body["fingerprint"] = draw(st.sampled_from(["same-1", "same-2"]))
    return body


@st.composite
def settlements(draw: st.DrawFn, reserved: list[Json]) -> Json:
    """The body of a settlement of a job: as reserved, or less, or more, or with lines nobody reserved."""
    kind = draw(st.sampled_from(["as reserved", "measured", "measured", "transferred", "more lines", "other"]))
    operations = [row["operation"] for row in reserved]
    if kind == "as reserved":
        lines = [{"operation": row["operation"], "quantity": row["quantity"]} for row in reserved]
    elif kind == "transferred":
        lines = [draw(line(name, settling=True)) for name in [*operations, "voice_transfer_minute"]]
    elif kind == "more lines":
        extra = draw(st.lists(st.sampled_from([*ATTACHMENTS, operations[0]]), min_size=1, max_size=2))
        lines = [draw(line(name, settling=True)) for name in [*operations, *extra]]
    elif kind == "other":
        lines = [draw(line(draw(st.sampled_from(sorted(QUANTITIES))), settling=True))]
        lines += draw(st.sampled_from([[], [], [], [{"operation": "palm_reading", "quantity": 1}]]))
    else:
        lines = [draw(line(name, settling=True)) for name in operations]
    body: Json = {"lines": lines}
    body |= draw(st.sampled_from([{"result": {"status": "completed"}}, {"result": None}, {}]))
    body |= draw(st.sampled_from([{}, {}, {"result_stored": True}, {"result_stored": False}]))
    return body


releases = st.fixed_dictionaries(
    {},
    optional={
        "error_code": st.sampled_from(["upstream_unavailable", "upstream_timeout"]),
        "originated": st.booleans(),
    },
)

refunded_parts = st.sampled_from([None, None, 0, -1, 1, 5, 10, 11, 40, 60, 100, 460, 620, 700, 1000])

quotes = st.one_of(
    st.builds(lambda lines: {"lines": lines}, reserved_lines()),
    st.builds(
        lambda quantity: {
            "lines": [{"operation": "voice_call_minute", "quantity": quantity}],
            "transferable": True,
        },
        seconds_of_call,
    ),
    st.sampled_from(
        [
            {"lines": [{"operation": "voice_transfer_minute", "quantity": 150}]},
            {"lines": [{"operation": "audio_transcription", "quantity": 0}]},
            {"lines": [{"operation": "agent_turn", "quantity": 1}], "transferable": True},
            {"lines": [{"operation": "image_analysis", "quantity": 0.5}]},
            {"lines": [{"operation": "palm_reading", "quantity": 1}]},
        ]
    ),
)


@dataclass(frozen=True)
class Ending:
    """When a grant ends, said in a way that can be drawn before the clock is known."""

    name: str


ENDINGS = {
    name: Ending(name)
    for name in (
        "never",
        "in an hour",
        "with the month",
        "with the next deadline",
        "in three days",
        "an hour ago",
    )
}
endings = st.sampled_from(
    [ENDINGS["never"]] * 4
    + [ENDINGS[name] for name in ("in an hour", "with the month", "with the next deadline", "in three days")] * 2
    + [ENDINGS["an hour ago"]]
)


@st.composite
def grants(draw: st.DrawFn) -> tuple[Json, Ending]:
    """The body of a grant without its end, and its end."""
    kind = draw(st.sampled_from(["plan", "purchase", "purchase", "adjustment", "adjustment"]))
    amounts = [1, 11, 40, 60, 100, 460, 620, 1000, 1080, 2480, 5000]
    amount = draw(st.sampled_from(amounts))
    ending = draw(endings)
    if kind == "adjustment" and draw(st.booleans()):
        amount, ending = -draw(st.sampled_from([1, 10, 100, 1000, 10**6])), ENDINGS["never"]
    body: Json = {"kind": kind, "credits": amount}
    body |= draw(st.sampled_from([{}, {"reference": "inv-77"}, {"reference": None}]))
    return body, ending


caps = st.sampled_from([None, "0.50", "2.00", "10.00", "15.005", "50.00", "1000.00"])
quotas = st.fixed_dictionaries(
    {},
    optional={
        "max_requests": st.sampled_from([0, 1, 2, 10, 10]),
        "max_calls": st.sampled_from([0, 1, 2, 5, 5]),
        "period_credits": st.sampled_from([None, None, None, 0, 500, 1100, 2000, 5000, 20000]),
    },
)
overages = st.fixed_dictionaries(
    {},
    optional={
        "enabled": st.booleans(),
        "cap_usd": caps,
        "credit_price_usd": st.sampled_from([CREDIT_PRICE] * 6 + ["0.003", None]),
    },
)
cuts = st.sampled_from(
    [{"module_enabled": False}, {"access": "suspended"}, {"environments": {"live": None, "test": None}}]
)
restored: Json = {"module_enabled": True, "access": "active", "environments": {"live": {}}}
module_and_access = st.one_of(*[st.sampled_from([{}, {"module_enabled": True, "access": "active"}])] * 6, cuts)
other_changes = st.fixed_dictionaries(
    {},
    optional={
        "payment_method_verified": st.sampled_from([True, True, False]),
        "overage": overages,
        "environments": st.fixed_dictionaries(
            {},
            optional={
                "live": quotas,
                "test": st.one_of(quotas, st.none()),
            },
        ),
    },
)
changes = st.builds(lambda one, other: {**other, **one}, module_and_access, other_changes)


@st.composite
def working_accounts(draw: st.DrawFn) -> Json:
    """The first body of an account: it can operate, most of the time with overage."""
    ceiling: Any = draw(st.sampled_from([None, None, None, 2000, 5000]))
    slots: Json = draw(st.sampled_from([{}, {}, {"max_requests": 1}, {"max_requests": 2}]))
    return {
        "module_enabled": True,
        "payment_method_verified": draw(st.sampled_from([True, True, False])),
        "overage": {
            "enabled": draw(st.sampled_from([True, True, False])),
            "cap_usd": draw(caps),
            "credit_price_usd": CREDIT_PRICE,
        },
        "environments": {
            "live": {**slots, "period_credits": ceiling, "max_calls": draw(st.sampled_from([1, 2, 5, 5, 5]))},
            "test": draw(st.sampled_from([{}, {}, {"max_requests": 1}, None])),
        },
    }


account_changes = st.one_of(
    st.tuples(st.just("patch_account"), changes),
    st.tuples(st.just("patch_account"), changes),
    st.tuples(st.just("put_account"), working_accounts()),
    st.tuples(st.just("put_account"), changes),
)

jumps = st.sampled_from(
    [
        "seconds",
        "seconds",
        "next deadline",
        "next deadline",
        "just before it",
        "midnight of the 1st",
        "an hour",
        "a day",
        "days",
        "a month",
    ]
)
