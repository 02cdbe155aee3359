"""How many may do something at the same time, and how much of that one user, or one customer's users together, may have."""

import threading
from collections import Counter

from btrkeep.serving.viewer import Viewer

Holder = str | tuple[str, ...]
"""A user by name, or all users together who are limited to the same hosts."""


class NoPlace(Exception):
    """There is none. `own`: because of what this user, or others who are limited to the same hosts, have already."""

    def __init__(self, *, own: bool) -> None:
        super().__init__("no place is free")
        self.own = own


class Places:
    """`at_once` places, of which one user may have `of_one`, and so may all users together who are limited to the same hosts.

    The last one is for those who have none.
    """

    def __init__(self, at_once: int, of_one: int) -> None:
        self.at_once, self.of_one = at_once, of_one
        self._taken: Counter[Holder] = Counter()
        self._total = 0
        self._lock = threading.Lock()

    def take(self, viewer: Viewer) -> None:
        """Takes a place. Raises NoPlace."""
        keys = holders(viewer)
        with self._lock:
            held = max(self._taken[key] for key in keys)
            if held >= self.of_one:
                raise NoPlace(own=True)
            if self._total >= self.at_once - (1 if held else 0):
                raise NoPlace(own=False)
            self._total += 1
            self._taken.update(keys)

    def leave(self, viewer: Viewer) -> None:
        """Gives it back."""
        with self._lock:
            self._total -= 1
            self._taken.subtract(holders(viewer))
            self._taken += Counter()  # without those who have none

    @property
    def total(self) -> int:
        """How many are taken."""
        return self._total


def holders(viewer: Viewer) -> tuple[Holder, ...]:
    """Returns the keys under which is counted what a viewer uses."""
    return (viewer.name,) if viewer.hosts is None else (viewer.name, tuple(sorted(viewer.hosts)))
