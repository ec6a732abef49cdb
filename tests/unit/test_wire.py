"""Answers leave in one piece, in order, and nothing is lost at the end."""

from __future__ import annotations

import asyncio

from ledger.wire import Corked


class Spy(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def test_what_is_written_in_one_turn_leaves_in_one_piece() -> None:
    spy = Spy()
    corked = Corked(spy, asyncio.get_running_loop())
    corked.write(b"head ")
    corked.write(b"body")
    assert spy.sent == []
    await asyncio.sleep(0)
    assert spy.sent == [b"head body"]
    corked.write(b"next")
    await asyncio.sleep(0)
    assert spy.sent == [b"head body", b"next"]


async def test_closing_sends_what_is_left() -> None:
    spy = Spy()
    corked = Corked(spy, asyncio.get_running_loop())
    corked.write(b"last words")
    corked.close()
    await asyncio.sleep(0)
    assert (spy.sent, spy.closed) == ([b"last words"], True)


async def test_nothing_is_sent_over_a_connection_that_was_lost() -> None:
    spy = Spy()
    corked = Corked(spy, asyncio.get_running_loop())
    corked.write(b"to nobody")
    spy.closed = True
    await asyncio.sleep(0)
    assert spy.sent == []


async def test_the_rest_is_the_transports() -> None:
    assert Corked(Spy(), asyncio.get_running_loop()).get_extra_info("peername") == ("127.0.0.1", 1)
