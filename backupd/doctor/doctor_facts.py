"""The facts that the rules judge, a rule and its result, and the commands that several rules propose.

Facts are plain data about a filesystem, the storage below it, the machine and the configuration. Sizes are bytes, times aware UTC.
None means unknown: a rule that needs the value reports that it could not check (`DoctorRule.blind`), and counts neither as a
finding nor as passed. Commands have the names of this filesystem and pool.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from btrkeep.config.reading import backupd_command
from btrkeep.decisions.findings import ERROR, NOTE, WARNING, Finding, PoolVerdict, Remedy, Step
from btrkeep.decisions.pool_health import NOTHING_WRONG, CatalogueFacts, HealthLimits, PoolFacts, Redundancy, judge_pool
from btrkeep.decisions.schedule import NOTHING_MISSED, ScheduleVerdict
from btrkeep.pool.space_by_profile import Room
from btrkeep.procfs import Capabilities
from btrkeep.trusted_path import UntrustedStep


@dataclass(frozen=True, slots=True)
class Layer:
    """One of the block devices below a filesystem, the uppermost first."""

    name: str
    """The kernel's name."""
    kind: str
    """disk, partition, lvm, lvm raid, dm-cache, crypt, multipath, dm, md, bcache, loop, iscsi, fibre channel, virtio, nvme, nvme
    fabrics, sata, usb, drbd, nbd, rbd, zram."""
    detail: str = ""
    """The level of an md, the file of a loop device, the mode of a bcache; otherwise ""."""
    redundant: bool | None = None
    """True if it survives the loss of a disk; None: unknown."""
    rotational: bool | None = None
    """The kernel's flag; None if it has none."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device of the filesystem and all layers below it; `layers[0]` is the device itself."""

    layers: tuple[Layer, ...]

    @property
    def name(self) -> str:
        """Returns the name in /dev."""
        return self.layers[0].name

    @property
    def rotational(self) -> bool | None:
        """Returns the value that btrfs used when it was mounted."""
        return self.layers[0].rotational

    def has(self, *kinds: str) -> bool:
        """Returns True if one of its layers is of one of these kinds."""
        return any(layer.kind in kinds for layer in self.layers)


@dataclass(frozen=True, slots=True)
class FilesystemFacts:
    """The filesystem as mounted by the kernel."""

    uuid: str
    """The filesystem's UUID."""
    target: Path
    """The mount point."""
    mount_options: frozenset[str] | None
    """The options of the machine's mount, even if a service has a private one; None: unknown."""
    options: tuple[str, ...]
    """The options of the filesystem."""
    features: frozenset[str]
    """Features of this filesystem."""
    kernel_features: frozenset[str]
    """Features that this kernel supports."""
    free_space_tree: bool
    """True if it has a free space tree."""
    checksum: str
    """The checksum algorithm."""
    checksum_driver: str
    """The kernel's driver for the checksum."""
    profiles: Mapping[str, tuple[str, ...]]
    """The profiles that have block groups, by type (data, metadata, system, mixed)."""
    devices: tuple[DeviceFacts, ...]
    """Its devices."""
    missing: tuple[int, ...] | None
    """Numbers of missing devices; None: unknown."""
    errors: Mapping[int, Mapping[str, int]]
    """The error counters that are not zero, by device number."""
    quota: str
    """"", "qgroup" or "squota"."""
    reclaim: Mapping[Path, str]
    """The enabled settings of the kernel's own reclaim, by file of sysfs."""
    exclusive_operation: str | None
    """The running exclusive operation, "none" without one; None: the kernel does not report it."""
    room: Room
    """Size and free space."""
    allocated: int
    """Bytes of the devices that are allocated to block groups."""
    subvolumes: int | None
    """Number of subvolumes; None: unknown."""
    redundancy: Redundancy | None = None
    """The number of good copies of the used bytes; None: not read."""
    unallocated: Mapping[int, int] = field(default_factory=dict)
    """Bytes available for new chunks, by device."""

    def option(self, name: str) -> str | None:
        """Returns the value of a mount option; "" for an option without a value, None if the option is not set."""
        for option in self.options:
            word, _, value = option.partition("=")
            if word == name:
                return value
        return None


@dataclass(frozen=True, slots=True)
class Scrub:
    """The last scrubs of all devices that are recorded on this machine, as one."""

    finished: datetime | None = None
    """When the oldest of the devices' last complete scrubs began; None: a device has none."""
    unfinished: bool = False
    """True if a device's last scrub was interrupted."""
    running: bool = False
    """True if a scrub is running now."""
    corrected: int = 0
    """Number of corrected errors."""
    uncorrectable: int = 0
    """Number of errors that could not be corrected."""
    is_known: bool = True
    """True if the file with the records could be read, or does not exist."""


@dataclass(frozen=True, slots=True)
class Machine:
    """This server."""

    rsync: tuple[int, ...] | None
    """The version as numbers; empty: not installed; None: unknown."""
    clock: bool | None
    """True if the clock is synchronised; None: unknown."""
    cpu: frozenset[str]
    """The flags of the processor."""
    capabilities: Capabilities | None = None
    """Capabilities of this process; None: unknown."""
    is_root: bool = True
    """True if this process is root."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file that ssh uses."""

    path: Path
    """The file."""
    mode: int | None
    """Its permission bits; None if it is missing or could not be read."""
    empty: bool = False
    """True if it has no effective line."""
    hidden: str = ""
    """The reason why its state is unknown: it is missing here, but this process does not see the machine's own filesystem."""


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """The pool and its configuration."""

    limits: HealthLimits
    """The configured limits."""
    name: str
    """The pool's name."""
    file: Path
    """The configuration's main file."""
    created: datetime | None = None
    """When the pool was created; None: unknown."""
    hosts: int = 0
    """Number of enabled hosts."""
    unruled: tuple[str, ...] = ()
    """Enabled hosts without a retention rule."""
    key: KeyFile | None = None
    """The private key of ssh; None if no host is reached by ssh."""
    restore_key: KeyFile | None = None
    """The private key for restores to hosts; None if there is none, or no host is reached by ssh."""
    known_hosts: KeyFile | None = None
    """The known_hosts file of ssh; None if no host is reached by ssh."""
    schedule: ScheduleVerdict = NOTHING_MISSED
    """Whether runs start in time."""
    own_balance: bool = False
    """True if something starts btrfs-balancer."""
    mount_option: str = "none"
    """As in [expiry]."""
    expiring: bool = False
    """True if an expiry is running now."""
    most_backups: tuple[str, int] | None = None
    """The host with the most backups, and their number; None if there is none."""
    unfinished: str = ""
    """On a pool with little free space, the host with the largest unfinished backup; "" if there is none."""
    catalogue: CatalogueFacts = NOTHING_WRONG
    """The state of the catalogue."""
    clock_doubt: str | None = None
    """The reason why the clock must be wrong, as the next expiry will find it; None if it may be right."""
    confine: str = "auto"
    """As in [backup]."""
    unconfined: str = ""
    """A host whose newest backup was made by an unconfined rsync; "" if there is none."""
    quotas: int = 0
    """Number of hosts with a quota."""
    quota_since: datetime | None = None
    """When `backupd quota` enabled simple quotas; None if it did not."""
    programs: tuple[str, bool] = ("", True)
    """See backupd.actions.quota; only read if it matters."""
    copies: tuple[Finding, ...] = ()
    """The findings of `backupd check` about copies."""
    steps: tuple[Finding, ...] = ()
    """The findings of `backupd check` about optional steps."""
    left_devices: tuple[str, ...] = ()
    """Temporary devices of `doctor --fix room` that are still part of the pool."""
    untrusted_state: UntrustedStep | None = None
    """The folder by which users other than root could replace the catalogue; None if there is none."""

    @property
    def pool(self) -> Path:
        """Returns the path of the pool."""
        return self.limits.pool


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """All facts at one moment."""

    now: datetime
    """The moment."""
    filesystem: FilesystemFacts
    """The pool's filesystem."""
    scrub: Scrub
    """Its last scrub."""
    machine: Machine
    """This server."""
    site: SiteFacts
    """The pool and its configuration."""

    @property
    def verdict(self) -> PoolVerdict:
        """Returns the shared verdict about the pool."""
        fs, site = self.filesystem, self.site
        of_mount = None if fs.mount_options is None else "ro" in fs.mount_options
        pool_facts = PoolFacts(
            **site.catalogue._replace(redundancy=fs.redundancy or site.catalogue.redundancy)._asdict(),
            read_only="ro" in fs.options or of_mount,
            missing=fs.missing,
            errors=fs.errors,
            room=fs.room,
            schedule=site.schedule,
            left_devices=site.left_devices,
        )
        return judge_pool(pool_facts, site.limits)


SEVERITIES = (NOTE, WARNING, ERROR)


def diagnosis(
    check: str,
    level: str,
    text: str,
    why: str,
    risk: str,
    commands: tuple[str, ...] = (),
    steps: tuple[Step, ...] = (),
    *,
    unmounted: bool = False,
    hint: str = "",
) -> Finding:
    """Returns a rule's finding with its remedy; `hint` is the remedy in one line, for findings that `check` also shows."""
    return Finding(check, level, text, hint, remedy=Remedy(why, risk, commands, steps, unmounted))


Blind = Callable[[DoctorFacts], str]
"""Returns the reason why a check cannot judge these facts, "" if it can."""


def unless(is_known: Callable[[DoctorFacts], bool], why: str) -> Blind:
    """Returns a `Blind` with the reason `why` for facts that are not known."""
    return lambda facts: "" if is_known(facts) else why


NEVER_BLIND = unless(lambda _: True, "")
BLIND_TO_DEVICES = unless(lambda facts: bool(facts.filesystem.devices), "/sys does not show the devices below the filesystem")


@dataclass(frozen=True, slots=True)
class DoctorRule:
    """A check that turns facts into findings."""

    name: str
    """Its name."""
    severities: tuple[str, ...]
    """The levels that its findings can have."""
    problem: str
    """The problems that it finds, in one phrase, for the documentation."""
    check: Callable[[DoctorFacts], Iterator[Finding]] = field(repr=False)
    """Returns the findings, none if there is no problem."""
    fixable: bool = False
    """True if some of its findings can have steps."""
    blind: Blind = field(default=NEVER_BLIND, repr=False)
    """Returns the reason why it could not check, "" if it could: a check without findings that could not check has not passed."""


@dataclass(frozen=True, slots=True)
class UncheckedRule:
    """A check that could not be made."""

    name: str
    """Its name."""
    why: str
    """Why not."""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The result of all rules."""

    findings: tuple[Finding, ...]
    """The worst first."""
    passed: tuple[str, ...]
    """Names of the checks that found nothing."""
    unchecked: tuple[UncheckedRule, ...]
    """The checks that could not be made."""


_SAFEST = ("raid1c4", "raid1c3", "raid6", "raid10", "raid1", "raid5", "dup", "raid0", "single")


def balance(facts: DoctorFacts, *words: str) -> str:
    """A balance of the pool."""
    return f"btrfs balance start {' '.join(words)} {shlex.quote(str(facts.site.pool))}"


def filters(fs: FilesystemFacts, kind: str, words: str = "") -> str:
    """Returns the filters of a balance for block groups of that kind (data, metadata, system, mixed): "-mconvert=raid1".

    Mixed block groups contain data and metadata. On a filesystem with mixed block groups the kernel requires the same filter for
    both, or fails with EINVAL.
    """
    letters = "dm" if "mixed" in fs.profiles and kind != "system" else kind[0]
    return " ".join(f"-{letter}{words}" for letter in letters)


def safest(profiles: tuple[str, ...]) -> str:
    """Returns the profile that survives the most failures."""
    return min(profiles, key=lambda profile: _SAFEST.index(profile) if profile in _SAFEST else len(_SAFEST))


def backupd(site: SiteFacts, words: str) -> str:
    """Returns a command of backupd for this pool, which may have another name than `main`."""
    return f"{backupd_command(site.name, site.file)} {words}"
