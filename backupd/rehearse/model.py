"""The data of a rehearsal: how hosts are, how the throwaway pool is made, and what was measured. Sizes are bytes, times seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from btrkeep.config import HostConfig


@dataclass(frozen=True, slots=True)
class HostModel:
    """What one host has, and what changes in a night, on average.

    Sizes of files are log-normal with mean `mean_size` and the spread `sigma` (of the logarithm). `created_size` is the mean of new
    files. Changed files are chosen by size to the power `bias`; of each of them the share `rewritten` is new data. `nightly`: how
    many times the average each known night changed, oldest first. `nights`: how many nights it was learned from; 0: assumed.
    """

    name: str
    files: int
    mean_size: float
    sigma: float
    created: float
    created_size: float
    deleted: float
    changed: float
    bias: float
    rewritten: float
    nightly: tuple[float, ...] = (1.0,)
    nights: int = 0

    @property
    def bytes(self) -> float:
        """The expected size of all files."""
        return self.files * self.mean_size

    @property
    def changed_size(self) -> float:
        """The expected size of a changed file."""
        return self.mean_size * _raised(self.sigma, self.bias)

    @property
    def new_bytes(self) -> float:
        """The expected new data of a night, where a changed file is changed in place."""
        return self.created * self.created_size + self.changed * self.changed_size * self.rewritten

    @property
    def growth(self) -> float:
        """Expected bytes by which the host grows in a night."""
        return self.created * self.created_size - self.deleted * self.mean_size


def _raised(sigma: float, bias: float) -> float:
    """Returns the factor by which the mean of a log-normal distribution grows if values are drawn by value to the power `bias`."""
    from math import exp

    return exp(bias * sigma * sigma)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All hosts. `assumed`: those of which the catalogue knows too little, so that typical numbers were taken."""

    hosts: tuple[HostModel, ...]
    assumed: tuple[str, ...] = ()

    @property
    def bytes(self) -> float:
        """Returns the bytes of all files."""
        return sum(host.bytes for host in self.hosts)

    @property
    def new_bytes(self) -> float:
        """Returns the bytes of new data in a night."""
        return sum(host.new_bytes for host in self.hosts)


@dataclass(frozen=True, slots=True)
class RehearsedBalance:
    """A balance after each night: the order in which block groups are taken, and how much may be moved, as a share of the data."""

    policy: str
    budget: float


@dataclass(frozen=True, slots=True)
class VariantSettings:
    """What a variant may differ in. `allocator`: the mount option at night. `expiry`: that of expiry, "none" to leave it.

    `balance` None: none. `inplace` None: as each host is configured. `retention`: keys that are other than configured.
    """

    allocator: str = "nossd"
    expiry: str = "none"
    balance: RehearsedBalance | None = None
    inplace: str | None = None
    compression: str = "none"
    nodesize: int = 16384
    metadata: str = "dup"
    retention: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings under a name. `changed`: those that are other than configured, as they were written."""

    name: str
    settings: VariantSettings
    changed: str = ""


@dataclass(frozen=True, slots=True)
class RehearsalPlan:
    """A whole rehearsal. `hosts` are the configurations of those in `fleet`; `fraction`: which share of the real data that is.

    `age`: so many nights come first, unmeasured, in which every pool ages in the same way: with the mount option `aged_with` and
    without balance, whatever its variant says.
    """

    fleet: Fleet
    hosts: Mapping[str, HostConfig]
    variants: Sequence[Variant]
    days: int
    seeds: int
    size: int
    fraction: float
    zone: str
    concurrency: int
    max_orphans: int
    age: int = 0
    aged_with: str = "nossd"
    heatmaps: bool = False

    @property
    def nights(self) -> int:
        """Returns the number of all nights. The first, which fills the pool, is counted too."""
        return len(self.variants) * self.seeds * (self.age + self.days + 1)


@dataclass(frozen=True, slots=True)
class NightReading:
    """The pool after a night. Sizes of spaces are as files have them, `size`, `allocated` and `used` bytes of the device.

    `written`: bytes written to the device by the night, by expiry and by balance. `new`: bytes that hosts brought.
    """

    number: int
    size: int
    allocated: int
    used: int
    data_allocated: int
    data_used: int
    metadata_used: int
    score: float
    fragments: int
    new: int
    night_written: int
    expiry_written: int
    balance_written: int
    night_seconds: float
    expiry_seconds: float
    balance_seconds: float
    deleted: int
    moved: int

    @property
    def written(self) -> int:
        """Returns the bytes written by backup, expiry and balance."""
        return self.night_written + self.expiry_written + self.balance_written


@dataclass(frozen=True, slots=True)
class RehearsedRun:
    """All nights of one variant with one seed, the first copy left out. `timelapse`: an animation in WebP, where one was made.

    `full`: the night in which the pool had no room left, after which there is none; None: it had.
    """

    variant: str
    seed: int
    nights: tuple[NightReading, ...]
    timelapse: bytes = b""
    full: int | None = None
