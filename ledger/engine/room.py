"""A bounded room that nobody can fill alone."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Room:
    """So many places, of which nobody gets more than are left for all the others.

    Who is alone can take half of them, two who want everything get a third each: however many push, there is a place
    left for one who has none. Nobody is looked up but who asks, so it costs the same when it is full.
    """

    places: int
    taken: int = 0
    by: dict[str, int] = field(default_factory=dict)
    """What each has taken, of those who have taken anything."""

    def admits(self, who: str, count: int = 1) -> bool:
        """Tell whether somebody may take so many more places; who has none, whether they are there."""
        has = self.by.get(who, 0)
        left = self.places - self.taken - count
        return left >= (has + count if has else 0)

    def enter(self, who: str, count: int = 1) -> None:
        """Take places, whether they are there or not: what comes back to its place is not turned away."""
        self.by[who] = self.by.get(who, 0) + count
        self.taken += count

    def leave(self, who: str, count: int = 1) -> None:
        """Give places back."""
        left = self.by[who] - count
        if left:
            self.by[who] = left
        else:
            del self.by[who]
        self.taken -= count
