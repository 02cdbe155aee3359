"""Estimates the use of space from random addresses: each belongs to a host or a backup as often as that has bytes there.

The place is drawn evenly from all data block groups, free space included, so no list of extents is needed, and the size of the pool
does not matter: only how many draws there were. The kernel answers with all subvolumes that refer to the extent.
"""

import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

ENOUGH = 20_000
"""Draws that met data, after which more time is not spent: the error is 0.7% of the data at the most."""

Owner = tuple[str, str | None]
"""(host, name of the backup)."""


@dataclass(slots=True)
class DrawTally:
    """How often each set of owners was drawn. `space` is the bytes that were drawn from; `by_*` and `only_*` count draws."""

    space: int
    draws: int = 0
    met: int = 0
    by_host: Counter[str] = field(default_factory=Counter)
    only_host: Counter[str] = field(default_factory=Counter)
    by_backup: Counter[Owner] = field(default_factory=Counter)
    only_backup: Counter[Owner] = field(default_factory=Counter)
    others: int = 0

    def add(self, roots: frozenset[int] | None, owners: Mapping[int, Owner]) -> None:
        """Adds one draw. `roots` None: free space, or data to which nothing refers any more."""
        self.draws += 1
        if roots is None:
            return
        self.met += 1
        known = [owners[root] for root in roots if root in owners]
        hosts = {host for host, _ in known}
        self.by_host.update(hosts)
        self.by_backup.update(known)
        if not known:
            self.others += 1
        elif len(known) == len(roots):
            if len(hosts) == 1:
                self.only_host.update(hosts)
            if len(known) == 1:
                self.only_backup.update(known)


def places(pieces: Sequence[tuple[int, int]], chance: random.Random) -> Iterator[int]:
    """Addresses without end, evenly from these (vaddr, length)."""
    ends = list(accumulate(length for _, length in pieces))
    while ends and ends[-1]:
        drawn = chance.randrange(ends[-1])
        index = bisect_right(ends, drawn)
        vaddr, length = pieces[index]
        yield vaddr + drawn - (ends[index] - length)


def sample(
    pieces: Sequence[tuple[int, int]],
    owners: Mapping[int, Owner],
    ask: Callable[[int], frozenset[int] | None],
    seconds: float,
    chance: random.Random,
    enough: int = ENOUGH,
) -> DrawTally:
    """Draws until so many seconds have passed, or enough data was met. `ask` is `Owners.of`."""
    tally, until = DrawTally(sum(length for _, length in pieces)), time.monotonic() + seconds
    for place in places(pieces, chance):
        tally.add(ask(place), owners)
        if tally.met >= enough or time.monotonic() >= until:
            break
    return tally
