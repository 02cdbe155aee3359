"""The data of a rehearsal: models of hosts, the format of the throwaway pool, and the measurements. Sizes are bytes,
times seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any

from btrkeep.config import HostConfig


@dataclass(frozen=True, slots=True)
class HostModel:
    """The files of a host, and its average changes in a night. The sizes of files are log-normal."""

    name: str
    """The host's name."""
    files: int
    """Number of files."""
    mean_size: float
    """Average size of its files in bytes."""
    sigma: float
    """The spread of the logarithm of sizes."""
    created: float
    """Number of new files in a night."""
    created_size: float
    """Their mean size, bytes."""
    deleted: float
    """Number of deleted files in a night."""
    changed: float
    """Number of changed files in a night."""
    bias: float
    """Changed files are chosen with a probability of their size to this power."""
    rewritten: float
    """The share of a changed file that is new data, 0 to 1."""
    nightly: tuple[float, ...] = (1.0,)
    """The changes of each recorded night, as a multiple of the average night; oldest first."""
    nights: int = 0
    """Number of nights whose numbers made the model; 0: it is assumed."""

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
        """The expected new data of a night, if a changed file is changed in place."""
        return self.created * self.created_size + self.changed * self.changed_size * self.rewritten

    @property
    def growth(self) -> float:
        """The expected growth of the host in a night, in bytes."""
        return self.created * self.created_size - self.deleted * self.mean_size


def _raised(sigma: float, bias: float) -> float:
    """Returns the factor by which the mean of a log-normal distribution grows if values are drawn by value to the power `bias`."""
    return exp(bias * sigma * sigma)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All hosts. `assumed`: hosts about which the catalogue has too little, so that typical numbers are used."""

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
    """A balance after each night."""

    policy: str
    """The order in which block groups are chosen."""
    budget: float
    """The maximum amount to be moved, as a share of the data."""


@dataclass(frozen=True, slots=True)
class VariantSettings:
    """The settings in which variants may differ."""

    allocator: str = "nossd"
    """The mount option at night."""
    expiry: str = "none"
    """The mount option during expiry; "none": not changed."""
    balance: RehearsedBalance | None = None
    """None: no balance."""
    inplace: str | None = None
    """None: as each host is configured."""
    compression: str = "none"
    """The mount option."""
    nodesize: int = 16384
    """Bytes of a metadata block."""
    metadata: str = "dup"
    """The profile of metadata."""
    retention: Mapping[str, Any] = field(default_factory=dict)
    """The keys that differ from the configuration."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings with a name."""

    name: str
    """The name."""
    settings: VariantSettings
    """The settings."""
    changed: str = ""
    """The settings that differ from the configuration, as typed."""


@dataclass(frozen=True, slots=True)
class RehearsalPlan:
    """A whole rehearsal."""

    fleet: Fleet
    """The hosts and their files."""
    hosts: Mapping[str, HostConfig]
    """The configurations of the hosts in `fleet`."""
    variants: Sequence[Variant]
    """What is compared."""
    days: int
    """Number of measured nights."""
    seeds: int
    """How many times each variant is run, with other random numbers."""
    size: int
    """Size of each pool in bytes."""
    fraction: float
    """The share of the real data, 0 to 1."""
    zone: str
    """The time zone."""
    concurrency: int
    """How many hosts run at once."""
    max_orphans: int
    """As in [expiry]."""
    age: int = 0
    """Number of unmeasured nights before, in which every pool ages in the same way: with the mount option `aged_with` and without
    balance.
    """
    aged_with: str = "nossd"
    """The mount option of these nights."""
    heatmaps: bool = False
    """True if each night is drawn as a picture."""

    @property
    def nights(self) -> int:
        """Returns the number of all nights, including the first, which fills the pool."""
        return len(self.variants) * self.seeds * (self.age + self.days + 1)


@dataclass(frozen=True, slots=True)
class NightReading:
    """The pool after a night. Sizes of spaces are sizes of files; `size`, `allocated` and `used` are bytes of the device."""

    number: int
    """The number of the night, from 1."""
    size: int
    """Size of the device in bytes."""
    allocated: int
    """Bytes in block groups."""
    used: int
    """Bytes with data or metadata."""
    data_allocated: int
    """Allocated to data."""
    data_used: int
    """Bytes of data."""
    metadata_used: int
    """Bytes of metadata."""
    score: float
    """The score of the free space."""
    fragments: int
    """Number of free extents."""
    new: int
    """Bytes of new data of the hosts."""
    night_written: int
    """Bytes that the backups wrote to the device."""
    expiry_written: int
    """Bytes that expiry wrote to the device."""
    balance_written: int
    """Bytes that the balance wrote to the device."""
    night_seconds: float
    """The duration of the backups."""
    expiry_seconds: float
    """How long expiry took."""
    balance_seconds: float
    """The duration of the balance."""
    deleted: int
    """Number of deleted backups."""
    moved: int
    """Bytes that the balance moved."""

    @property
    def written(self) -> int:
        """Returns the bytes written by backup, expiry and balance."""
        return self.night_written + self.expiry_written + self.balance_written


@dataclass(frozen=True, slots=True)
class RehearsedRun:
    """All nights of one variant with one seed."""

    variant: str
    """The variant's name."""
    seed: int
    """The seed of its random numbers."""
    nights: tuple[NightReading, ...]
    """The measured nights, without the first copy."""
    timelapse: bytes = b""
    """The animation in WebP; b"": none was made."""
    full: int | None = None
    """The night in which the pool became full, which ended the run; None: it did not."""
