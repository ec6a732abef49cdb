"""Who is let in where there is little room, and how a batch is put together."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

import pytest

from ledger.core.commands import Command, Line, Reserve, Settle
from ledger.engine.queue import BATCH_BYTES, COMMAND_BYTES, Queue, Waiting, size_of
from ledger.engine.room import Room

LINES = (Line("agent_turn", 1),)


def settle(account_id: str, job_id: str = "j", result: bytes | None = None) -> Settle:
    return Settle(account_id=account_id, job_id=job_id, lines=LINES, result=result)


def waiting(command: Command) -> Waiting:
    return Waiting(command, cast("asyncio.Future[object]", None))  # type: ignore[arg-type] # nobody answers here


def queue(commands: int = 100, size: int = 10**9) -> Queue:
    return Queue(Room(commands), Room(size))


def fill(room: Room, who: str) -> int:
    """Let somebody in for as long as they are admitted."""
    count = 0
    while room.admits(who):
        room.enter(who)
        count += 1
    return count


def test_alone_one_gets_half_and_two_a_third_each() -> None:
    room = Room(90)
    assert fill(room, "a") == 45
    assert fill(room, "b") == 22
    for _ in range(30):  # As places come free, both get the same.
        room.leave("a")
        while room.admits("b"):
            room.enter("b")
    assert room.by["b"] in (30, 37)
    assert room.admits("c")


def test_whoever_has_none_is_let_in_until_all_is_taken() -> None:
    room = Room(10)
    assert fill(room, "noisy") == 5
    assert [fill(room, f"quiet-{n}") for n in range(6)] == [2, 1, 1, 1, 0, 0]
    assert room.taken == 10
    room.leave("noisy")
    assert room.admits("another")
    assert not room.admits("noisy")


def test_what_was_left_is_forgotten() -> None:
    room = Room(10)
    room.enter("a", 3)
    room.leave("a", 3)
    assert (room.taken, room.by) == (0, {})


def test_what_comes_back_is_never_turned_away() -> None:
    full = queue(2)
    item = waiting(settle("a"))
    full.put(item)
    assert full.take(10) == [item]
    full.put(waiting(settle("b")))
    full.put(waiting(settle("c")))
    full.give_back([item])
    assert full.size == 3
    assert not full.admits(waiting(settle("d")))


@pytest.mark.parametrize(
    ("command", "size"),
    [
        (settle("a"), COMMAND_BYTES),
        (settle("a", result=b"x" * 9_000), COMMAND_BYTES + 9_000),
        (Reserve(account_id="a", job_id="j", environment="live", lines=LINES, metadata=b"{}"), COMMAND_BYTES + 2),
    ],
)
def test_a_command_weighs_what_it_carries(command: Command, size: int) -> None:
    assert size_of(command) == size
    assert waiting(command).size == size


def test_it_is_bounded_in_bytes() -> None:
    narrow = queue(size=10 * COMMAND_BYTES)
    large = waiting(settle("a", result=b"x" * 6 * COMMAND_BYTES))
    assert narrow.admits(large)
    narrow.put(large)
    assert not narrow.admits(waiting(settle("b", result=b"x" * 6 * COMMAND_BYTES)))
    assert narrow.admits(waiting(settle("b")))
    narrow.take(10)
    assert narrow.admits(large)


def test_a_batch_is_bounded_in_bytes_and_leaves_the_rest_in_order() -> None:
    heavy = queue(size=10**10)
    result = b"x" * (BATCH_BYTES // 4)
    items = [waiting(settle("a", f"j{n}", result)) for n in range(10)] + [waiting(settle("b"))]
    for item in items:
        heavy.put(item)
    seen: list[Waiting] = []
    while batch := heavy.take(256):
        assert sum(item.size for item in batch) <= BATCH_BYTES + items[0].size
        seen += batch
        heavy.done({item.account_id for item in batch})
    assert [item for item in seen if item.account_id == "a"] == items[:-1]
    assert Counter(seen) == Counter(items)
    assert (heavy.size, heavy.bytes.taken) == (0, 0)


def test_what_is_cleared_leaves_no_trace() -> None:
    some = queue()
    for n in range(5):
        some.put(waiting(settle("a", f"j{n}")))
    assert len(some.clear()) == 5
    assert (some.size, some.bytes.taken, some.take(10)) == (0, 0, [])
