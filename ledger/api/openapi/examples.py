"""Examples of bodies and answers. They are one story: a call of one account, from its grant to its statement.

Each set maps what an example shows to the example. The journal's hashes are real: they can be recomputed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from ledger.api.openapi.errors import example_of
from ledger.core import books
from ledger.core.books import EntryKind, Posting
from ledger.core.commands import Code

Examples = Mapping[str, Any]
Row = dict[str, Any]

STARTED: Final = "2026-11-14T09:30:00Z"
SETTLED: Final = "2026-11-14T09:35:30Z"
REFUNDED: Final = "2026-11-14T10:00:00Z"


# -- jobs: what is sent --------------------------------------------------------------------------------------------

_TURN: Final = {"operation": "agent_turn", "quantity": 1}
_IMAGES: Final = {"operation": "image_analysis", "quantity": 2}
_CALL: Final = {"operation": "voice_call_minute", "quantity": 150}
_BRIDGED: Final = {"operation": "voice_transfer_minute", "quantity": 150}

RESERVE: Final[Examples] = {
    "a_call_that_may_be_transferred": {
        "environment": "live",
        "lines": [{"operation": "voice_call_minute", "quantity": 300}],
        "transferable": True,
        "allow_partial": True,
        "ttl_seconds": 1200,
        "idempotency_key": "call-4471",
        "fingerprint": "9f2a",
        "metadata": {"loan_id": "L-9"},
    },
    "a_turn_with_two_images": {"environment": "test", "lines": [_TURN, _IMAGES]},
}
SETTLE: Final[Examples] = {
    "a_transferred_call": {
        "lines": [_CALL, _BRIDGED],
        "result": {"status": "completed"},
        "result_stored": True,
        "record": {"request_id": "req_7d1c", "status_code": 200, "latency_ms": 812, "key_prefix": "ak_live_3f"},
    },
    "what_could_not_be_measured": {"lines": [{"operation": "audio_transcription", "quantity": None}]},
}
RELEASE: Final[Examples] = {
    "nothing_was_delivered": {"error_code": "upstream_unavailable"},
    "the_call_never_went_out": {"error_code": "upstream_unavailable", "originated": False},
}
REFUND: Final[Examples] = {
    "a_part": {"refund_id": "rf-1", "credits": 500, "reason": "the line was bad"},
    "all_that_is_left": {"refund_id": "rf-2", "credits": None},
}
BATCH: Final[Examples] = {
    "commands_of_one_account": {
        "commands": [
            {
                "command": "release",
                "account_id": "acme",
                "job_id": "turn-9",
                "error_code": "upstream_unavailable",
            },
            {
                "command": "reserve",
                "account_id": "acme",
                "job_id": "turn-10",
                "environment": "live",
                "lines": [_TURN],
            },
            {"command": "settle", "account_id": "acme", "job_id": "turn-10", "lines": [_TURN], "result": "Hello"},
            {"command": "refund", "account_id": "acme", "job_id": "turn-11", "refund_id": "rf-3", "credits": 11},
        ]
    }
}


# -- the journal ---------------------------------------------------------------------------------------------------

_OUTSIDE: Final = {"grant:1": "grant:inv-77", "hold:2": "hold:call-4471"}
_SPOKEN, _HANDED_ON = "voice_call_minute", "voice_transfer_minute"
_HISTORY: Final[tuple[tuple[EntryKind, int | None, str, tuple[Posting, ...]], ...]] = (
    ("grant", None, STARTED, (Posting("issued:purchase", "grant:1", 3400),)),
    ("reserve", 2, STARTED, (Posting("grant:1", "hold:2", 2940),)),
    (
        "settle",
        2,
        SETTLED,
        (
            Posting("hold:2", f"consumed:{_SPOKEN}", 1860, _SPOKEN, 3),
            Posting("hold:2", f"consumed:{_HANDED_ON}", 1080, _HANDED_ON, 6),
            Posting("grant:1", f"consumed:{_HANDED_ON}", 300, _HANDED_ON),
        ),
    ),
    (
        "refund",
        2,
        REFUNDED,
        (
            Posting(f"consumed:{_HANDED_ON}", "grant:1", 300, _HANDED_ON),
            Posting(f"consumed:{_HANDED_ON}", "grant:1", 200, _HANDED_ON),
        ),
    ),
)


def _journal() -> list[Row]:
    """Return the entries of the story, each with the text that was hashed."""
    entries: list[Row] = []
    previous = books.GENESIS_HASH
    for sequence, (kind, job, at, postings) in enumerate(_HISTORY, 1):
        canonical = books.canonical_text(1, sequence, kind, job, datetime.fromisoformat(at), postings)
        digest = books.chain(previous, canonical)
        entries.append(
            {
                "entry_id": f"1-{sequence}",
                "sequence": sequence,
                "kind": kind,
                "job_id": None if job is None else "call-4471",
                "created_at": at,
                "hash": digest,
                "previous_hash": previous,
                "postings": [_posting(posting) for posting in postings],
                "canonical": canonical.decode(),
            }
        )
        previous = digest
    return entries


def _posting(posting: Posting) -> Row:
    return {
        "debit": _OUTSIDE.get(posting.debit, posting.debit),
        "credit": _OUTSIDE.get(posting.credit, posting.credit),
        "credits": posting.credits,
        "operation": posting.operation,
        "quantity": posting.quantity,
    }


def _without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


_WITH_CANONICAL: Final = _journal()
_ENTRIES: Final = [_without(entry, "canonical") for entry in _WITH_CANONICAL]


# -- jobs: what is answered ----------------------------------------------------------------------------------------

_RESERVATION: Final[Row] = {
    "job_id": "call-4471",
    "account_id": "acme",
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
    "created_at": STARTED,
    "expires_at": "2026-11-14T09:50:00Z",
}
_USAGE: Final = {"operation": "voice_call_minute", "unit": "minute", "quantity": 3, "credits": 1860}
_SETTLED_LINES: Final = [
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
]
_JOB: Final[Row] = {
    **_RESERVATION,
    "status": "settled",
    "usage": _USAGE,
    "settled_lines": _SETTLED_LINES,
    "credits_charged": 3240,
    "credits_refunded": 500,
    "result_state": "available",
    "result": {"status": "completed"},
    "error_code": None,
    "metadata": {"loan_id": "L-9"},
    "entries": _ENTRIES[1:],
    "settled_at": SETTLED,
}
_OPEN_JOB: Final[Row] = {
    **_RESERVATION,
    "usage": None,
    "settled_lines": None,
    "credits_charged": None,
    "credits_refunded": 0,
    "result_state": "pending",
    "result": None,
    "error_code": None,
    "metadata": {"loan_id": "L-9"},
    "entries": _ENTRIES[1:2],
}
_EXPIRED_JOB: Final[Row] = {
    **_OPEN_JOB,
    "status": "expired",
    "credits_charged": 0,
    "result_state": "unavailable",
    "error_code": "job_not_completed",
    "expired_at": "2026-11-14T09:50:00Z",
}

RESERVED: Final[Examples] = {"covered_in_part": _RESERVATION}
RESERVED_BEFORE: Final[Examples] = {
    "the_same_reservation_again": _RESERVATION,
    "served_before": {**_JOB, "replayed": True},
}
SETTLEMENT: Final[Examples] = {
    "a_transferred_call": {
        "job_id": "call-4471",
        "status": "settled",
        "usage": _USAGE,
        "lines": _SETTLED_LINES,
        "credits_charged": 3240,
        "credits_returned": 0,
        "credits_over_hold": 300,
        "funding": {"balance": 3240, "overage": 0, "overdraft": 0},
        "settled_at": SETTLED,
    },
    "again_after_24_hours": {
        "job_id": "call-4471",
        "status": "settled",
        "usage": None,
        "lines": None,
        "credits_charged": 3240,
        "credits_returned": 0,
        "credits_over_hold": 300,
        "funding": {"balance": 3240, "overage": 0, "overdraft": 0},
        "settled_at": SETTLED,
    },
}
RELEASED: Final[Examples] = {
    "the_whole_hold_goes_back": {
        "job_id": "turn-9",
        "status": "released",
        "credits_charged": 0,
        "credits_returned": 121,
        "error_code": "upstream_unavailable",
        "released_at": REFUNDED,
    }
}
REFUND_DONE: Final[Examples] = {
    "a_part": {
        "refund_id": "rf-1",
        "job_id": "call-4471",
        "credits": 500,
        "credits_refunded": 500,
        "funding": {"balance": 500, "overage": 0, "overdraft": 0},
        "created_at": REFUNDED,
    }
}
JOB: Final[Examples] = {"settled": _JOB, "open": _OPEN_JOB, "expired": _EXPIRED_JOB}
JOBS: Final[Examples] = {
    "the_last_page": {"data": [_without(_JOB, "result", "entries")], "next_cursor": None},
}
RESULTS: Final[Examples] = {
    "each_in_its_place": {
        "results": [
            {"status": 200, "body": RELEASED["the_whole_hold_goes_back"]},
            {
                "status": 201,
                "body": {
                    **_RESERVATION,
                    "job_id": "turn-10",
                    "operation": "agent_turn",
                    "lines": [
                        {
                            "operation": "agent_turn",
                            "unit": "request",
                            "requested_quantity": 1,
                            "reserved_quantity": 1,
                            "billable_quantity": 1,
                            "credits": 11,
                        }
                    ],
                    "transfer_allowance": 0,
                    "held_credits": 11,
                    "partial": False,
                    "funding": {"balance": 11, "overage": 0},
                    "created_at": REFUNDED,
                    "expires_at": "2026-11-14T10:15:00Z",
                },
            },
            {
                "status": 200,
                "body": {
                    "job_id": "turn-10",
                    "status": "settled",
                    "usage": {"operation": "agent_turn", "unit": "request", "quantity": 1, "credits": 11},
                    "lines": [
                        {
                            "operation": "agent_turn",
                            "unit": "request",
                            "measured_quantity": 1,
                            "quantity": 1,
                            "credits": 11,
                        }
                    ],
                    "credits_charged": 11,
                    "credits_returned": 0,
                    "credits_over_hold": 0,
                    "funding": {"balance": 11, "overage": 0, "overdraft": 0},
                    "settled_at": REFUNDED,
                },
            },
            {"status": 404, "body": example_of(Code.RESOURCE_NOT_FOUND)["value"]},
        ]
    }
}


# -- prices --------------------------------------------------------------------------------------------------------


def _price(operation: str, unit: str, credits: int, **more: object) -> Row:
    price = {"operation": operation, "unit": unit, "measured_in": unit, "per": 1, "credits": credits}
    return {**price, "legs": 1, "minimum": 1, "flat": False, "slot": "request", **more}


PRICES: Final[Examples] = {
    "some_of_them": {
        "version": "2026-09-11",
        "effective_from": "2026-09-11T00:00:00Z",
        "prices": [
            _price("agent_turn", "request", 11),
            _price("video_analysis", "video", 270, flat=True),
            _price("audio_transcription", "second", 1, minimum=10),
            _price("voice_call_minute", "minute", 620, measured_in="second", per=60, slot="call"),
            _price("voice_transfer_minute", "minute", 230, measured_in="second", per=60, legs=2, slot="call"),
        ],
    }
}
QUOTE: Final[Examples] = {
    "a_call_that_may_be_transferred": {
        "lines": [{"operation": "voice_call_minute", "quantity": 300}],
        "transferable": True,
    }
}
QUOTED: Final[Examples] = {
    "a_call_that_may_be_transferred": {
        "lines": [{"operation": "voice_call_minute", "unit": "minute", "quantity": 5, "credits": 3100}],
        "transfer_allowance": 460,
        "credits": 3560,
        "price_version": "2026-09-11",
    }
}


# -- accounts ------------------------------------------------------------------------------------------------------

_POLICY: Final[Row] = {
    "module_enabled": True,
    "access": "active",
    "payment_method_verified": True,
    "overage": {"enabled": True, "cap_usd": "50.00", "credit_price_usd": "0.001"},
    "environments": {"test": {"max_requests": 10, "max_calls": 5, "period_credits": None}, "live": None},
}
_GRANT: Final[Row] = {
    "grant_id": "inv-77",
    "kind": "purchase",
    "granted": 3400,
    "remaining": 660,
    "held": 0,
    "expires_at": None,
    "reference": "inv-77",
    "created_at": STARTED,
}
_CYCLE: Final[Row] = {"cycle": "2026-10", "status": "paid_on_time", "updated_at": STARTED}

POLICY: Final[Examples] = {"all_of_it": _POLICY, "the_defaults": {}}
POLICY_CHANGE: Final[Examples] = {
    "a_quota_row_of_live": {"environments": {"live": {"period_credits": 100_000}}},
    "no_cap_of_its_own": {"overage": {"cap_usd": None}},
}
ACCOUNT: Final[Examples] = {
    "with_what_follows": {
        **_POLICY,
        "payment_method_verified": False,
        "environments": {
            "test": {"max_requests": 10, "max_calls": 5, "period_credits": None},
            "live": {"max_requests": 10, "max_calls": 5, "period_credits": 100_000},
        },
        "effective_cap_usd": "20.00",
        "effective_cap_credits": 20_000,
        "provider_ceiling_usd": "20.00",
        "paid_cycles": 1,
        "welcome_granted_at": None,
        "deletion": None,
        "created_at": STARTED,
    }
}
GRANT: Final[Examples] = {
    "a_purchase": {"kind": "purchase", "credits": 3400, "expires_at": None, "reference": "inv-77"},
    "a_plan_of_this_month": {"kind": "plan", "credits": 10_000},
    "taken_away": {"kind": "adjustment", "credits": -500, "reference": "granted by mistake"},
}
GRANTED: Final[Examples] = {"a_purchase": {**_GRANT, "remaining": 3400}}
GRANTS: Final[Examples] = {"the_last_page": {"data": [_GRANT], "next_cursor": None}}
CYCLE: Final[Examples] = {"paid_on_time": {"status": "paid_on_time"}}
CYCLE_STORED: Final[Examples] = {"paid_on_time": _CYCLE}
CYCLES: Final[Examples] = {"the_last_page": {"data": [_CYCLE], "next_cursor": None}}
_DELETION: Final[Row] = {
    "confirmation_code": "del_Zk3vQ0p2mW8sYt5nB1xLc7Ha",
    "status": "pending",
    "requested_at": STARTED,
    "executes_at": "2026-12-14T09:30:00Z",
}
DELETION: Final[Examples] = {"while_its_grace_lasts": _DELETION}
DELETION_CANCELLED: Final[Examples] = {"cancelled": {**_DELETION, "status": "cancelled"}}
DELETIONS: Final[Examples] = {
    "while_its_grace_lasts": _DELETION,
    "everything_is_gone": {**_DELETION, "status": "executed"},
}
BALANCE: Final[Examples] = {
    "while_the_call_is_open": {
        "account_id": "acme",
        "at": STARTED,
        "period": "2026-11",
        "period_ends_at": "2026-12-01T00:00:00Z",
        "available": 460,
        "held": 2940,
        "overdraft": 0,
        "grants": [
            {
                "grant_id": "inv-77",
                "kind": "purchase",
                "granted": 3400,
                "remaining": 460,
                "held": 2940,
                "expires_at": None,
            }
        ],
        "overage": {"usable": False, "used": 0, "held": 0, "cap_usd": "20.00", "cap_credits": 20_000},
        "environments": {
            "live": {
                "period_credits": 100_000,
                "used": 0,
                "held": 2940,
                "remaining": 97_060,
                "open_requests": 0,
                "open_calls": 1,
                "max_requests": 10,
                "max_calls": 5,
            },
            "test": {
                "period_credits": None,
                "used": 0,
                "held": 0,
                "remaining": None,
                "open_requests": 0,
                "open_calls": 0,
                "max_requests": 10,
                "max_calls": 5,
            },
        },
    }
}


# -- usage and statements ------------------------------------------------------------------------------------------


def _line(operation: str, unit: str, quantity: int, credits: int, refunded: int, **more: str) -> Row:
    line = {"operation": operation, "unit": unit, "quantity": quantity, "credits": credits}
    return {**line, "refunded_credits": refunded, "jobs": 1, **more}


def _table(rows: Iterable[Row]) -> str:
    """Write rows as CSV, as the service does: CRLF, a header, nothing for null."""
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


_LINES: Final = [_line(_SPOKEN, "minute", 3, 1860, 0), _line(_HANDED_ON, "minute", 6, 1380, 500)]
_TOTALS: Final = {"credits": 3240, "refunded_credits": 500, "net_credits": 2740, "jobs": 1}
_RANGE: Final = {"from": "2026-11-01", "to": "2026-12-01"}
_RECORD: Final[Row] = {
    "job_id": "call-4471",
    "environment": "live",
    "operation": "voice_call_minute",
    "status": "settled",
    "credits": 3240,
    "request_id": "req_7d1c",
    "status_code": 200,
    "latency_ms": 812,
    "key_prefix": "ak_live_3f",
    "closed_at": SETTLED,
}
_FIGURES: Final[Row] = {
    "period": "2026-11",
    "status": "open",
    "opening_balance": 0,
    "granted": 3400,
    "adjusted": 0,
    "charged": 3240,
    "charged_from_balance": 3240,
    "refunded": 500,
    "refunded_to_balance": 500,
    "expired": 0,
    "closing_balance": 660,
    "overdraft": 0,
}

USAGE: Final[Examples] = {
    "by_operation": {**_RANGE, "totals": _TOTALS, "lines": _LINES},
    "by_day_and_environment": {
        **_RANGE,
        "totals": _TOTALS,
        "lines": [
            {"credits": 3240, "refunded_credits": 500, "jobs": 1, "environment": "live", "day": "2026-11-14"},
        ],
    },
}
USAGE_CSV: Final = _table(_LINES)
RECORDS: Final[Examples] = {"the_last_page": {"data": [_RECORD], "next_cursor": None}}
RECORDS_CSV: Final = _table([_RECORD])
STATEMENT: Final[Examples] = {
    "a_month_that_is_open": {**_FIGURES, "overage": {"credits": 0, "usd": "0.00"}, "charges": _LINES}
}
STATEMENT_CSV: Final = _table({**_FIGURES, "overage_credits": 0, "overage_usd": "0.00", **line} for line in _LINES)
ENTRIES: Final[Examples] = {
    "the_last_page": {"data": _ENTRIES, "next_cursor": None},
    "with_the_text_that_was_hashed": {"data": _WITH_CANONICAL, "next_cursor": None},
}
ENTRIES_CSV: Final = _table(
    {**_without(entry, "postings"), **posting} for entry in _ENTRIES for posting in entry["postings"]
)


# -- operation -----------------------------------------------------------------------------------------------------

EVENTS: Final[Examples] = {
    "a_month_that_was_closed": {
        "data": [
            {
                "id": "evt_f935bcaeb42d12ee805a04cfaa0c76ed",
                "type": "period.closed",
                "created": "2026-12-01T03:00:00Z",
                "environment": "live",
                "account_id": "acme",
                "data": {
                    "period": "2026-11",
                    "charged": 3240,
                    "refunded": 500,
                    "overage_credits": 0,
                    "overage_usd": "0.00",
                },
            }
        ],
        "next_cursor": "X3mcATM8WyJldmVudHMiLDAsWzFdXQ",
    },
    "nothing_new": {"data": [], "next_cursor": "X3mcATM8WyJldmVudHMiLDAsWzFdXQ"},
}
_COUNTS: Final = {"accounts": 1, "holds_expired": 1, "credits_returned": 11}
_RUN: Final[Row] = {"started_at": STARTED, "finished_at": STARTED, "counts": _COUNTS}
SWEEPS: Final[Examples] = {
    "one_that_ran_and_one_that_did_not": {
        "data": [
            {
                "name": "expire_holds",
                "every_seconds": 30,
                **_RUN,
                "error": None,
                "next_run_at": "2026-11-14T09:30:30Z",
            },
            {
                "name": "audit",
                "every_seconds": 86_400,
                "started_at": None,
                "finished_at": None,
                "counts": None,
                "error": None,
                "next_run_at": "2026-11-14T09:30:07Z",
            },
        ]
    }
}
SWEEP_RUN: Final[Examples] = {"what_it_did": {"name": "expire_holds", **_RUN}}
AUDIT: Final[Examples] = {"everything": {"account_id": None}, "one_account": {"account_id": "acme"}}
AUDITED: Final[Examples] = {
    "clean": {"ok": True, "checked": {"accounts": 1, "entries": 4, "postings": 7, "jobs": 1}, "discrepancies": []},
    "a_figure_that_is_off": {
        "ok": False,
        "checked": {"accounts": 1, "entries": 4, "postings": 7, "jobs": 1},
        "discrepancies": [
            {"rule": "A2", "account_id": "acme", "what": "balances.available", "expected": 660, "found": 661}
        ],
    },
}
LIVE: Final[Examples] = {"live": {"status": "live"}}
READY: Final[Examples] = {"ready": {"status": "ready"}}
METRICS: Final[Examples] = {
    "some_of_them": "# HELP ledger_build_info 1, with the version that is running.\n"
    "# TYPE ledger_build_info gauge\n"
    'ledger_build_info{version="0.1.0"} 1.0\n'
}
CLOCK: Final[Examples] = {"simulated": {"now": REFUNDED, "simulated": True}}
CLOCK_MOVE: Final[Examples] = {"forwards": {"now": REFUNDED}}
OPENAPI: Final[Examples] = {
    "its_beginning": {"openapi": "3.1.1", "info": {"title": "Gateway Ledger", "version": "0.1.0"}, "paths": {}}
}
