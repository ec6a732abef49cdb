"""The commands that wait, by account, and the accounts whose turn it is."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ledger import tracing
from ledger.core.commands import Command, Outcome, Reserve, Settle
from ledger.engine.room import Room

if TYPE_CHECKING:
    from opentelemetry.trace import Span

BUSY_ACCOUNT_SHARE: Final = 4
"""While other accounts wait, one takes at most this part (1/4) of a batch; the last in turn may fill it up."""

BATCH_BYTES: Final = 8 * 1024 * 1024
"""A batch that carries as much takes no further command: what it writes is in memory more than once."""

COMMAND_BYTES: Final = 1_024
"""What a command takes in memory, about, beside the texts that it carries."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A command, and where its caller waits for the outcome."""

    command: Command
    future: asyncio.Future[Outcome]
    since: float = field(default_factory=time.perf_counter)
    """When it was submitted, by `time.perf_counter`."""
    span: Span | None = field(default_factory=tracing.current)
    """The trace of the request that submitted it, if there is one."""

    size: int = field(init=False)
    """How many bytes it takes, about."""

    def __post_init__(self) -> None:
        self.size = size_of(self.command)

    @property
    def account_id(self) -> str:
        """The account it is about."""
        return self.command.account_id

    def answer(self, outcome: Outcome) -> None:
        """Give the caller its outcome, if it still waits."""
        if not self.future.done():
            self.future.set_result(outcome)

    def fail(self, error: Exception) -> None:
        """Tell the caller why there is no outcome, if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)


def size_of(command: Command) -> int:
    """Return how many bytes a command takes, about: results and metadata are what can be large."""
    if isinstance(command, Settle):
        return COMMAND_BYTES + len(command.result or b"")
    if isinstance(command, Reserve):
        return COMMAND_BYTES + len(command.metadata or b"")
    return COMMAND_BYTES


@dataclass(slots=True)
class Queue:
    """Accounts take turns; the commands of one stay in their order, and an account is in one batch at a time.

    It is bounded in commands and in bytes, and no account can fill it alone.
    """

    commands: Room
    bytes: Room
    items: dict[str, deque[Waiting]] = field(default_factory=dict)
    turns: deque[str] = field(default_factory=deque)
    busy: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        """How many commands wait."""
        return self.commands.taken

    def admits(self, item: Waiting) -> bool:
        """Tell whether there is room for a command of its account."""
        return self.commands.admits(item.account_id) and self.bytes.admits(item.account_id, item.size)

    def put(self, item: Waiting) -> None:
        """Let a command wait behind those of its account."""
        waiting = self.items.get(item.account_id)
        if waiting is None:
            waiting = self.items[item.account_id] = deque()
            if item.account_id not in self.busy:
                self.turns.append(item.account_id)
        waiting.append(item)
        self._enter(item)

    def take(self, most: int) -> list[Waiting]:
        """Take a batch: accounts in turn, each with its commands in order, and none that is in another batch."""
        batch: list[Waiting] = []
        size = 0
        while self.turns and len(batch) < most and size < BATCH_BYTES:
            share = most if len(self.turns) == 1 else max(1, most // BUSY_ACCOUNT_SHARE)
            account_id = self.turns.popleft()
            self.busy.add(account_id)
            waiting = self.items[account_id]
            left = min(len(waiting), share, most - len(batch))
            while left and size < BATCH_BYTES:
                item = waiting.popleft()
                self._leave(item)
                batch.append(item)
                size += item.size
                left -= 1
            if not waiting:
                del self.items[account_id]
        return batch

    def give_back(self, items: list[Waiting]) -> None:
        """Put commands that were taken too early back to the front of their accounts, in their order."""
        for item in reversed(items):
            self.items.setdefault(item.account_id, deque()).appendleft(item)
            self._enter(item)

    def done(self, account_ids: set[str]) -> None:
        """Let the accounts of a finished batch take their next turn."""
        self.busy -= account_ids
        self.turns.extend(account_id for account_id in sorted(account_ids) if account_id in self.items)

    def clear(self) -> list[Waiting]:
        """Take everything that waits."""
        items = [item for waiting in self.items.values() for item in waiting]
        self.items.clear()
        self.turns.clear()
        for item in items:
            self._leave(item)
        return items

    def _enter(self, item: Waiting) -> None:
        self.commands.enter(item.account_id)
        self.bytes.enter(item.account_id, item.size)

    def _leave(self, item: Waiting) -> None:
        self.commands.leave(item.account_id)
        self.bytes.leave(item.account_id, item.size)
