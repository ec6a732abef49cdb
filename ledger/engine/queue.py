"""The commands that wait, by account, and the accounts whose turn it is."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ledger import tracing
from ledger.core.commands import Command, Outcome

if TYPE_CHECKING:
    from opentelemetry.trace import Span

BUSY_ACCOUNT_SHARE: Final = 4
"""While other accounts wait, one takes at most this part (1/4) of a batch; the last in turn may fill it up."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A command, and where its caller waits for the outcome."""

    command: Command
    future: asyncio.Future[Outcome]
    since: float = field(default_factory=time.perf_counter)
    """When it was submitted, by `time.perf_counter`."""
    span: Span | None = field(default_factory=tracing.current)
    """The trace of the request that submitted it, if there is one."""

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


@dataclass(slots=True)
class Queue:
    """Accounts take turns; the commands of one stay in their order, and an account is in one batch at a time."""

    items: dict[str, deque[Waiting]] = field(default_factory=dict)
    turns: deque[str] = field(default_factory=deque)
    busy: set[str] = field(default_factory=set)
    size: int = 0

    def put(self, item: Waiting) -> None:
        """Let a command wait behind those of its account."""
        waiting = self.items.get(item.account_id)
        if waiting is None:
            waiting = self.items[item.account_id] = deque()
            if item.account_id not in self.busy:
                self.turns.append(item.account_id)
        waiting.append(item)
        self.size += 1

    def take(self, most: int) -> list[Waiting]:
        """Take a batch: accounts in turn, each with its commands in order, and none that is in another batch."""
        batch: list[Waiting] = []
        while self.turns and len(batch) < most:
            share = most if len(self.turns) == 1 else max(1, most // BUSY_ACCOUNT_SHARE)
            account_id = self.turns.popleft()
            self.busy.add(account_id)
            waiting = self.items[account_id]
            count = min(len(waiting), share, most - len(batch))
            batch.extend(waiting.popleft() for _ in range(count))
            if not waiting:
                del self.items[account_id]
        self.size -= len(batch)
        return batch

    def give_back(self, items: list[Waiting]) -> None:
        """Put commands that were taken too early back to the front of their accounts, in their order."""
        for item in reversed(items):
            self.items.setdefault(item.account_id, deque()).appendleft(item)
        self.size += len(items)

    def done(self, account_ids: set[str]) -> None:
        """Let the accounts of a finished batch take their next turn."""
        self.busy -= account_ids
        self.turns.extend(account_id for account_id in sorted(account_ids) if account_id in self.items)

    def clear(self) -> list[Waiting]:
        """Take everything that waits."""
        items = [item for waiting in self.items.values() for item in waiting]
        self.items.clear()
        self.turns.clear()
        self.size = 0
        return items
