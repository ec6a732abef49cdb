"""Stories that a finance person can read: a table of what was done, what was answered, and what the account then has.

Each row of a story is `day and time | what is done | what is answered | available | held | overage | owed`. Days are
those of 2026, `overage` is what the month of the row has used and holds of it, `owed` is the overdraft.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ledger.core.commands import (
    Granted,
    Line,
    Outcome,
    PatchAccount,
    PolicyChange,
    QuotaChange,
    Refunded,
    Refused,
    Released,
    Reserved,
    Settled,
)
from tests.support.core import ACME, CREDIT_PRICE, World

OPERATIONS = {
    "turn": "agent_turn",
    "image": "image_analysis",
    "document": "document_analysis",
    "video": "video_analysis",
    "audio": "audio_transcription",
    "characters": "tts_synthesis",
    "call": "voice_call_minute",
    "bridged": "voice_transfer_minute",
}


def play(story: str, *, overage: int | None = None) -> World:
    """Do what a story says, and fail at the first row that is answered or leaves the account otherwise.

    The account is opened on 15 November with nothing; with `overage`, that is its cap in credits.
    """
    world = World(datetime(2026, 11, 15, tzinfo=UTC))
    world.open_account(overage=overage)
    for row in filter(None, map(str.strip, story.strip().splitlines())):
        when, what, *expected = (cell.strip() for cell in row.split("|"))
        world.at(datetime.strptime(f"{when} 2026", "%d %b %H:%M:%S %Y").replace(tzinfo=UTC))
        answer = do(world, *what.split())
        account, month = world.acme, world.acme.periods[f"{world.now:%Y-%m}"]
        figures = (
            account.available,
            account.held,
            month.overage_used + month.overage_held,
            account.overdraft,
        )
        assert [answer, *map(str, figures)] == expected, row
    return world


def do(world: World, verb: str, *words: str) -> str:
    """Do what one row says, and return what was answered in words."""
    return _answered(_VERBS[verb](world, list(words)))


def _answered(outcome: Outcome | None) -> str:
    match outcome:
        case Refused():
            return str(outcome.code)
        case Reserved():
            return f"held {outcome.reservation.held_credits}"
        case Settled():
            return f"charged {outcome.credits_charged}"
        case Released():
            return f"back {outcome.credits_returned}"
        case Refunded():
            return f"refunded {outcome.refund.credits}"
        case Granted():
            return f"granted {outcome.grant.granted}"
        case _:
            return "done"


def _lines(text: str) -> list[Line]:
    """Read `call:150,bridged:150`; a `?` is a quantity that could not be measured."""
    parts = [part.split(":") for part in text.split(",")]
    return [
        Line(OPERATIONS[name], None if quantity == "?" else float(quantity) if "." in quantity else int(quantity))
        for name, quantity in parts
    ]


def _grant(world: World, words: list[str]) -> Outcome:
    """`grant NAME CREDITS [plan | adjustment]`."""
    name, credits, *kind = words
    return world.grant(name, int(credits), kind=kind[0] if kind else "purchase")  # type: ignore[arg-type] # a word


def _reserve(world: World, words: list[str]) -> Outcome:
    """`reserve JOB LINES [transferable] [partial] [test] [SECONDS s]`."""
    job, lines, *rest = words
    return world.reserve(
        job,
        _lines(lines),
        transferable="transferable" in rest,
        allow_partial="partial" in rest,
        environment="test" if "test" in rest else "live",
        ttl=int(rest[rest.index("s") - 1]) if "s" in rest else 900,
    )


def _refund(world: World, words: list[str]) -> Outcome:
    """`refund JOB CREDITS | all as NAME`."""
    job, credits, _, name = words
    return world.refund(job, None if credits == "all" else int(credits), refund_id=name)


def _patch(world: World, **change: Any) -> Outcome:
    return world.do(PatchAccount(account_id=ACME, change=PolicyChange(**change)))


def _quota(world: World, words: list[str]) -> Outcome:
    """`quota CREDITS`: the live ceiling of the period."""
    return _patch(world, quotas={"live": QuotaChange(period_credits=int(words[0]))})


def _look(world: World, _: list[str]) -> None:
    world.look()


_VERBS: dict[str, Callable[[World, list[str]], Outcome | None]] = {
    "look": _look,
    "grant": _grant,
    "reserve": _reserve,
    "settle": lambda world, words: world.settle(words[0], _lines(words[1])),
    "release": lambda world, words: world.release(words[0]),
    "refund": _refund,
    "overage": lambda world, words: _patch(world, overage_enabled=words == ["on"]),
    "cap": lambda world, words: _patch(world, cap_usd=int(words[0]) * CREDIT_PRICE),
    "ceiling": lambda world, _: _patch(world, cap_usd=None),
    "verify": lambda world, _: _patch(world, payment_method_verified=True),
    "suspend": lambda world, _: _patch(world, access="suspended"),
    "activate": lambda world, _: _patch(world, access="active"),
    "invoice": lambda world, words: world.put_cycle(words[0], words[1]),  # type: ignore[arg-type] # a word
    "quota": _quota,
}
