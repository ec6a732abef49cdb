"""Why a command has no outcome."""

from __future__ import annotations


class Unavailable(Exception):
    """The command was not carried out, or nobody knows yet; trying again after `retry_after` seconds is safe."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(Unavailable):
    """More commands are waiting than the engine promises to serve, or it is stopping."""


class DatabaseAway(Unavailable):
    """The database did not carry the batch out."""


class CommandFailed(Exception):
    """A defect of ours: deciding or writing this command failed, and nothing of it was written."""
