"""The facts that the rules judge: plain data about a filesystem, the storage below it, the machine and the configuration.

Sizes are bytes, times aware UTC. None is unknown: a rule that needs the value reports that it could not look
(`DoctorRule.blind`), and neither finds anything nor counts as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from btrkeep.decisions.findings import Finding, PoolVerdict
from btrkeep.decisions.pool_health import NOTHING_WRONG, CatalogueFacts, HealthLimits, PoolFacts, Redundancy, judge_pool
from btrkeep.decisions.schedule import NOTHING_MISSED, ScheduleVerdict
from btrkeep.pool.model import Room
from btrkeep.procfs import Capabilities
from btrkeep.trusted_path import UntrustedStep


@dataclass(frozen=True, slots=True)
class Layer:
    """One block device of those that a filesystem lies on, the uppermost first.

    `kind`: disk, partition, lvm, lvm raid, dm-cache, crypt, multipath, dm, md, bcache, loop, iscsi, fibre channel, virtio, nvme,
    nvme fabrics, sata, usb, drbd, nbd, rbd, zram. `detail` is the level of an md, the file of a loop device, the mode of a bcache.
    `redundant`: what is below survives the loss of a disk; None: nobody here can know. `rotational` is the kernel's flag.
    """

    name: str
    kind: str
    detail: str = ""
    redundant: bool | None = None
    rotational: bool | None = None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device of the filesystem with all that it lies on; `layers[0]` is the device itself."""

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
        """Returns True if a layer of one of these kinds is among them."""
        return any(layer.kind in kinds for layer in self.layers)


@dataclass(frozen=True, slots=True)
class FilesystemFacts:
    """The filesystem as the kernel has it mounted.

    `mount_options` are as the machine has them, whatever a service sees of them. `profiles`: by type (data, metadata, system,
    mixed) those that have block groups. `unallocated`: by device the bytes that new chunks may take.
    `errors`: by devid the counters that are not zero. `quota`: "", "qgroup" or "squota".
    `reclaim`: by file of sysfs the knobs of the kernel's own reclaim that are on. `features` are those of this filesystem,
    `kernel_features` those that this kernel knows.
    """

    uuid: str
    target: Path
    mount_options: frozenset[str] | None
    options: tuple[str, ...]
    features: frozenset[str]
    kernel_features: frozenset[str]
    free_space_tree: bool
    checksum: str
    checksum_driver: str
    profiles: Mapping[str, tuple[str, ...]]
    devices: tuple[DeviceFacts, ...]
    missing: tuple[int, ...] | None
    errors: Mapping[int, Mapping[str, int]]
    quota: str
    reclaim: Mapping[Path, str]
    exclusive_operation: str | None
    room: Room
    allocated: int
    subvolumes: int | None
    redundancy: Redundancy | None = None
    unallocated: Mapping[int, int] = field(default_factory=dict)

    def option(self, name: str) -> str | None:
        """Returns the value of a mount option; "" if it has none, None if the option is not set."""
        for option in self.options:
            word, _, value = option.partition("=")
            if word == name:
                return value
        return None


@dataclass(frozen=True, slots=True)
class Scrub:
    """The last scrub of each device that is known on this machine, all together.

    `finished`: when the oldest of the devices' last complete scrubs began; None: some device has none. `unfinished`: some device's
    last one was broken off. `running`: it goes on now. `uncorrectable` and `corrected` count its errors. `known`: the file that
    tells of them could be read, or there is none.
    """

    finished: datetime | None = None
    unfinished: bool = False
    running: bool = False
    corrected: int = 0
    uncorrectable: int = 0
    known: bool = True


@dataclass(frozen=True, slots=True)
class Machine:
    """`rsync` as numbers, () if it is not installed. `clock`: synchronised. `cpu`: the flags of the processor. `capabilities`: of
    this process; None if unknown.
    """

    rsync: tuple[int, ...] | None
    clock: bool | None
    cpu: frozenset[str]
    capabilities: Capabilities | None = None
    is_root: bool = True


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file that ssh uses: `mode` is None if it is missing. `empty`: it has no effective line.

    `hidden`: why its state is unknown: it is missing here, but this process does not see the machine's own filesystem.
    """

    path: Path
    mode: int | None
    empty: bool = False
    hidden: str = ""


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """The pool and its configuration. `key` and `known_hosts` are None when no host is reached by ssh.

    `created`: when the pool was. `hosts`: how many are enabled, and `unruled` those of them without any rule of retention.
    `schedule`: the hosts that will not be backed up in time. `own_balance`: something starts btrfs-balancer.
    `mount_option` is that of [expiry], `expiring`: one runs now. `most_backups`: the host that has the most, and how many.
    `unfinished`: on a pool with little room, the host whose unfinished backup takes the most of it. `catalogue`: what is to be said
    of it. `clock_doubt`: why the clock cannot be right, as the next expiry will find. `confine` is that of [backup], and
    `unconfined` the newest backup that came from a host, when its rsync was not confined: "" when it was, or there is none.
    `quotas`: how many hosts have a quota. `quota_since`: `backupd quota` has switched simple quotas on. `programs`: see
    backupd.actions.quota; read where that matters. `copies` and `steps`: what `backupd check` says of
    replicas, and of optional steps.
    `left_devices`: temporary devices of `doctor --fix room` that are still a part of the pool.
    `untrusted_state`: the folder by which users other than root could replace the catalogue.
    """

    limits: HealthLimits
    name: str
    file: Path
    created: datetime | None = None
    hosts: int = 0
    unruled: tuple[str, ...] = ()
    key: KeyFile | None = None
    known_hosts: KeyFile | None = None
    schedule: ScheduleVerdict = NOTHING_MISSED
    own_balance: bool = False
    mount_option: str = "none"
    expiring: bool = False
    most_backups: tuple[str, int] | None = None
    unfinished: str = ""
    catalogue: CatalogueFacts = NOTHING_WRONG
    clock_doubt: str | None = None
    confine: str = "auto"
    unconfined: str = ""
    quotas: int = 0
    quota_since: datetime | None = None
    programs: tuple[str, bool] = ("", True)
    copies: tuple[Finding, ...] = ()
    steps: tuple[Finding, ...] = ()
    left_devices: tuple[str, ...] = ()
    untrusted_state: UntrustedStep | None = None

    @property
    def pool(self) -> Path:
        """Returns the path of the pool."""
        return self.limits.pool


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """All of it, at one moment."""

    now: datetime
    filesystem: FilesystemFacts
    scrub: Scrub
    machine: Machine
    site: SiteFacts

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
