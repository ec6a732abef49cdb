"""The engine: gathers waiting commands into batches, one durable transaction each (design: "The idea in one breath").

Commands of one account are decided in the order they were submitted in, and an account is in one batch at a time.
An idle engine answers at once: a batch is whatever is waiting when a flusher is free, never a wait for company.
Accounts take turns, so a busy one makes batches longer and not the others late. Each command has one outcome,
whoever waits for it: a caller that goes away changes nothing.
"""

from ledger.engine.engine import Engine
from ledger.engine.errors import CommandFailed, DatabaseAway, QueueFull, Unavailable

__all__ = ["CommandFailed", "DatabaseAway", "Engine", "QueueFull", "Unavailable"]
