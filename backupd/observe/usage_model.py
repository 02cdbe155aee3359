"""The result of measuring a pool's use of space. Sizes are bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import sqrt

METHODS = ("written", "sampled", "extents")
_Z = 1.96  # 95 of 100 intervals hold the true value


@dataclass(frozen=True, slots=True)
class Amount:
    """A measured size: with 95% certainty it is between `low` and `high`; both are `bytes` where it is exact."""

    bytes: int
    low: int
    high: int

    @property
    def exact(self) -> bool:
        """True if nothing of it is estimated."""
        return self.low == self.high


def exactly(size: int) -> Amount:
    """Returns a counted size."""
    return Amount(size, size, size)


def estimated(hits: int, draws: int, space: int) -> Amount:
    """The size of what `hits` of `draws` random places in `space` bytes fell upon. Wilson's interval (JASA 22, 1927).

    Without a hit it is zero, and at most some 3.8 draws' worth.
    """
    if not draws:
        return Amount(0, 0, space)
    share, weight = hits / draws, _Z * _Z / draws
    middle = (share + weight / 2) / (1 + weight)
    half = _Z * sqrt(share * (1 - share) / draws + weight / (4 * draws)) / (1 + weight)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Amount(round(share * space), round(low * space) if hits else 0, round(high * space))


@dataclass(frozen=True, slots=True)
class MeasuredUsage:
    """`exclusive`: what would be free if it were gone. `referenced`: all that it refers to, that which others do too included."""

    exclusive: Amount
    referenced: Amount

    @property
    def shared(self) -> int:
        """Returns the bytes that others refer to as well."""
        return max(0, self.referenced.bytes - self.exclusive.bytes)


@dataclass(frozen=True, slots=True)
class BackupUse:
    """One backup. `size`: its files, as the host has them. `written`: what rsync wrote for it. `measured` is None where nothing was
    measured: not asked for, not reached in time, not readable."""

    host: str
    name: str | None
    state: str
    started: datetime
    subvolume_id: int | None
    path: str
    size: int | None
    written: int | None
    measured: MeasuredUsage | None = None


@dataclass(frozen=True, slots=True)
class HostUse:
    """All backups of a host together. `exclusive` of `measured` is what no other host and nothing else refers to."""

    host: str
    backups: int
    size: int | None
    written: int | None
    measured: MeasuredUsage | None = None


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The answer. `others`: data that no backup refers to. `draws`: random places that were asked. `complete`: nothing was left
    out for want of time."""

    method: str
    hosts: tuple[HostUse, ...]
    backups: tuple[BackupUse, ...] = ()
    others: Amount | None = None
    draws: int = 0
    seconds: float = 0.0
    complete: bool = True
    unread: Mapping[str, str] = field(default_factory=dict)
    """Backups that could not be read, by path, and why."""
