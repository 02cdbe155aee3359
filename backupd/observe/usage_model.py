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
    """One backup."""

    host: str
    """The host's name."""
    name: str | None
    """The backup's name; None: it is not final."""
    state: str
    """Its state."""
    started: datetime
    """When its run began."""
    subvolume_id: int | None
    """The number of its subvolume; None: not known."""
    path: str
    """Relative to the pool."""
    size: int | None
    """The size of its files on the host; None: not known."""
    written: int | None
    """Bytes that rsync wrote for it; None: not known."""
    measured: MeasuredUsage | None = None
    """None: not requested, not reached in time, or not readable."""


@dataclass(frozen=True, slots=True)
class HostUse:
    """All backups of a host together."""

    host: str
    """The host's name."""
    backups: int
    """Number of backups."""
    size: int | None
    """The size of their files on the host; None: not known."""
    written: int | None
    """Bytes that rsync wrote for them; None: not known."""
    measured: MeasuredUsage | None = None
    """Its `exclusive` is data that no other host and nothing else refers to; None: not measured."""


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The answer."""

    method: str
    """How it was measured."""
    hosts: tuple[HostUse, ...]
    """Each host."""
    backups: tuple[BackupUse, ...] = ()
    """Each backup; empty: not requested."""
    others: Amount | None = None
    """Data that no backup refers to; None: not measured."""
    draws: int = 0
    """Number of random places that were checked."""
    seconds: float = 0.0
    """How long it took."""
    complete: bool = True
    """False if the time limit left something out."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why a backup could not be read, by path."""
