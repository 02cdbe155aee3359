"""The fragmentation of the free space, at the last scoring and over time: the sizes of free extents, and the score."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from btrkeep.catalogue import Catalogue, FreeSpaceScore
from web.same_names import of_row

SHOWN = 60


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Free extents of `least` bytes up to, and without, twice as many: how many, and their bytes."""

    least: int
    extents: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ScoreReading:
    """One scoring of the free space of all data block groups; bytes as files have them. `bad`: block groups that score above
    250.
    """

    taken: datetime
    score: float
    block_groups: int
    bad: int
    fragments: int
    length: int
    used: int
    largest_free: int
    free_in_large: int

    @property
    def free(self) -> int:
        """Returns the bytes allocated to data and unused."""
        return self.length - self.used


@dataclass(frozen=True, slots=True)
class Scores:
    """The last scoring with its sizes, and scorings over time, oldest first, at most SHOWN; all empty if there has been none."""

    newest: ScoreReading | None
    sizes: tuple[SizeClass, ...]
    looks: tuple[ScoreReading, ...]


def scores(catalogue: Catalogue, filesystem: str, now: datetime, days: int) -> Scores:
    """Returns the scorings of so many days; the last one whatever its age."""
    newest = catalogue.newest_score(filesystem)
    if newest is None:
        return Scores(None, (), ())
    since = now - timedelta(days=days)
    found = catalogue.scores(filesystem, since)
    return Scores(
        of_row(ScoreReading, newest),
        tuple(SizeClass(*one) for one in newest.histogram),
        tuple(of_row(ScoreReading, one) for one in _thinned(found, since, timedelta(days=days) / SHOWN)),
    )


def _thinned(found: list[FreeSpaceScore], since: datetime, step: timedelta) -> list[FreeSpaceScore]:
    """Returns the last one of each step."""
    return list({int((one.taken - since) / step): one for one in found}.values())
