"""Gathers all facts about a pool at one moment: its filesystem, its configuration, and the machine.

The last scrub of a filesystem is read from a file that btrfs-progs keeps: /var/lib/btrfs/scrub.status.UUID. It has a line for each
device: UUID:DEVID|name:number|... (scrub_read_file in cmds/scrub.c). Scrubs that another machine did are not there.

The facts of btrfs are in mountinfo, in /sys/fs/btrfs, and in the ioctls that btrkeep.pool has. The layers below are in sysfs:
partitions, device-mapper, md, bcache, loop devices, and how the disks are attached. Device-mapper shows who made a device by the
prefix of its uuid (LVM-, CRYPT-, mpath-); LVM names what is below a cached or a raid volume by the end of the name (_cdata,
_rimage_0). lvm2's lib/uuid and lib/metadata have these names; Documentation/ABI/ of the kernel has the rest.
"""

import errno
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from backupd.actions.discard import all_unfinished
from backupd.doctor.doctor_facts import DeviceFacts, DoctorFacts, FilesystemFacts, Layer, Machine, Scrub
from backupd.doctor.site_facts import read_site
from backupd.expire.trust import clock_synchronised
from backupd.health.pool_facts import device_errors, read_redundancy
from backupd.rsync.command import rsync_version
from btrkeep.config import Config
from btrkeep.decisions.findings import ROOM, UNALLOCATED, USED
from btrkeep.errors import PoolUnusable
from btrkeep.pool import qgroups
from btrkeep.pool.activity import read_activity
from btrkeep.pool.allocation import Allocation, read_allocation, read_room
from btrkeep.pool.balance_ioctl import exclusive_operation, missing_devices
from btrkeep.pool.marker import Pool, filesystem_uuid
from btrkeep.pool.mounts import machine_mount, mount_of
from btrkeep.pool.subvolume import opened
from btrkeep.process.proc import is_own_service
from btrkeep.process.programs import ProgramFailed
from btrkeep.procfs import privilege_hint, read_capabilities, sysfs_text
from btrkeep.treescan.block_groups import count_subvolumes

FOLDER = Path("/var/lib/btrfs")
_CORRECTED, _UNCORRECTABLE = "corrected_errors", "uncorrectable_errors"


def read_scrub(uuid: str, devids: frozenset[int], *, running: bool, folder: Path = FOLDER) -> Scrub:
    """Reads the scrubs of these devices. Without a file, no scrub ever ran on this machine."""
    try:
        text = (folder / f"scrub.status.{uuid}").read_text(errors="replace")
    except FileNotFoundError:
        return Scrub(running=running)
    except OSError:
        return Scrub(running=running, is_known=False)
    return scrub_of_devices(
        {devid: fields for devid, fields in parse(text, uuid).items() if devid in devids}, devids, running=running
    )


def parse(text: str, uuid: str) -> Mapping[int, Mapping[str, int]]:
    """Returns the numbers by devid; lines of other filesystems, other formats and other files are skipped."""
    by_devid = {}
    for line in text.splitlines():
        head, *fields = line.split("|")
        name, _, devid = head.partition(":")
        if name == uuid and devid.isdigit():
            pairs = (field.partition(":") for field in fields)
            by_devid[int(devid)] = {key: int(value) for key, _, value in pairs if value.isdigit()}
    return by_devid


def scrub_of_devices(by_devid: Mapping[int, Mapping[str, int]], devids: frozenset[int], *, running: bool) -> Scrub:
    """Returns the scrubs of all devices as one, which is as old as the oldest of them."""
    complete = {devid: fields for devid, fields in by_devid.items() if fields.get("finished") and not fields.get("canceled")}
    all_complete = bool(devids) and devids <= set(complete)
    return Scrub(
        finished=datetime.fromtimestamp(min(fields.get("t_start", 0) for fields in complete.values()), UTC)
        if all_complete
        else None,
        unfinished=not running and bool(set(by_devid) - set(complete)),
        running=running,
        corrected=sum(fields.get(_CORRECTED, 0) for fields in by_devid.values()),
        uncorrectable=sum(fields.get(_UNCORRECTABLE, 0) for fields in by_devid.values()),
    )


def gather(config: Config, pool: Pool, now: datetime) -> DoctorFacts:
    """Returns all facts about a pool. Raises PoolUnusable."""
    try:
        filesystem = read_filesystem(pool.path)
        facts = DoctorFacts(now, filesystem, _scrub(pool, filesystem.uuid), _machine(), read_site(config, pool, now))
    except OSError as error:
        is_privilege = error.errno in (errno.EPERM, errno.EACCES)
        hint = privilege_hint() if is_privilege else "check the kernel's messages (dmesg)"
        raise PoolUnusable(f"{pool.path}: {error.strerror}", hint) from error
    if any(facts.verdict.of(check) for check in (ROOM, UNALLOCATED, USED)) and (unfinished := all_unfinished(pool)):
        return replace(facts, site=replace(facts.site, unfinished=unfinished[0].host))
    return facts


def _scrub(pool: Pool, uuid: str) -> Scrub:
    devids = [device.devid for device in read_allocation(pool.path).devices]
    present = frozenset(devids).difference(missing_devices(pool.path) or ())  # a missing device cannot be read
    return read_scrub(uuid, present, running="scrub" in read_activity(pool.path, devids))


def _machine() -> Machine:
    try:
        numbers: tuple[int, ...] | None = rsync_version().numbers or None  # the version has no number
    except ProgramFailed:
        numbers = ()
    # The root service checks for the dashboard. It lacks capabilities on purpose, and makes no backups itself.
    capabilities = None if is_own_service() else read_capabilities()
    return Machine(numbers, clock_synchronised(), processor_flags(), capabilities, is_root=os.geteuid() == 0)


def processor_flags() -> frozenset[str]:
    """Returns the features of the processor from /proc/cpuinfo, which x86 lists as flags, arm as Features."""
    try:
        match = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(match[1].split()) if match else frozenset()


_KNOBS = ("dynamic_reclaim", "periodic_reclaim", "bg_reclaim_threshold")


def read_filesystem(path: Path) -> FilesystemFacts:
    """Reads the facts of the btrfs of `path`. Raises OSError."""
    uuid, mount = filesystem_uuid(path), mount_of(path)
    folder = SYS / "fs" / "btrfs" / uuid
    machine, allocation, missing = machine_mount(path), read_allocation(path), missing_devices(path)
    checksum, driver = _checksum(folder)
    options = tuple(option for option in mount.super_options if not option.startswith("subvol"))
    return FilesystemFacts(
        uuid=uuid,
        target=mount.target,
        mount_options=frozenset(machine.mount_options) if machine else None,
        options=options,
        features=frozenset(_names(folder / "features")),
        kernel_features=frozenset(_names(SYS / "fs" / "btrfs" / "features")),
        free_space_tree="space_cache=v2" in options,
        checksum=checksum,
        checksum_driver=driver,
        profiles=_profiles(allocation),
        devices=tuple(device(name) for name in _present(folder / "devices")),
        missing=missing,
        errors=device_errors(allocation),
        quota=qgroups.mode(uuid),
        reclaim=_reclaim(folder / "allocation" / "data"),
        exclusive_operation=exclusive_operation(path) if (folder / "exclusive_operation").exists() else None,
        room=read_room(path),
        allocated=sum(space.total for space in allocation.spaces),
        subvolumes=_subvolumes(path),
        redundancy=read_redundancy(path, allocation, missing),
        unallocated={device.devid: device.unallocated for device in allocation.devices if device.present},
    )


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return []


def _present(folder: Path) -> list[str]:
    """Returns the names of the present devices: a missing one appears in sysfs without a link target."""
    return [name for name in _names(folder) if (SYS / "class" / "block" / name).exists()]


def _checksum(folder: Path) -> tuple[str, str]:
    """Algorithm and driver of "crc32c (crc32c-intel)" (Linux 5.5)."""
    match = re.fullmatch(r"(\S+) \((.+)\)", sysfs_text(folder / "checksum"))
    return (match[1], match[2]) if match else ("", "")


def _profiles(allocation: Allocation) -> Mapping[str, tuple[str, ...]]:
    by_type: dict[str, list[str]] = {}
    for space in allocation.spaces:
        if space.total:
            by_type.setdefault(space.type, []).append(space.profile)
    return {kind: tuple(sorted(profiles)) for kind, profiles in by_type.items()}


def _reclaim(folder: Path) -> Mapping[Path, str]:
    """Returns the settings of the kernel's reclaim. The threshold alone has no effect; if dynamic reclaim is on, it sets the
    threshold, and that is shown.
    """
    values = {folder / name: sysfs_text(folder / name) for name in _KNOBS}
    return {file: value for file, value in values.items() if value not in ("", "0")}


def _subvolumes(path: Path) -> int | None:
    with opened(path.resolve()) as fd:
        try:
            return count_subvolumes(fd)
        except PermissionError:
            return None


SYS = Path("/sys")
_MAKERS = {"LVM": "lvm", "CRYPT": "crypt", "mpath": "multipath", "DRBD": "drbd"}
_WITH_PARITY_OR_COPY = ("raid1", "raid4", "raid5", "raid6", "raid10")
_NAMES = {"drbd": "drbd", "nbd": "nbd", "rbd": "rbd", "zram": "zram"}
_BUSES = (  # patterns of the path of a disk's folder in sysfs; the first match counts
    (r"/session\d+/", "iscsi"),
    (r"/rport-[\d:-]+/", "fibre channel"),
    (r"/virtio\d+/", "virtio"),
    (r"/usb\d+/", "usb"),
    (r"/ata\d+/", "sata"),
)
_DEEPEST = 32


def device(name: str, sys: Path = SYS) -> DeviceFacts:
    """Returns the block device of that name in /sys/class/block and all devices below it, each once, level by level."""
    layers: dict[str, Layer] = {}
    level = [name]
    for _ in range(_DEEPEST):
        below: list[str] = []
        for block_device in level:
            if block_device not in layers:
                layers[block_device] = layer(block_device, sys)
                below += _below(block_device, sys)
        level = below
    return DeviceFacts(tuple(layers.values()))


def _folder(name: str, sys: Path) -> Path:
    return sys / "class" / "block" / name


def _below(name: str, sys: Path) -> list[str]:
    folder = _folder(name, sys)
    if (folder / "partition").exists():
        return [folder.resolve().parent.name]
    try:
        return sorted(entry.name for entry in (folder / "slaves").iterdir())
    except OSError:
        return []


def layer(name: str, sys: Path = SYS) -> Layer:
    """Returns one block device, without those below it."""
    folder = _folder(name, sys)
    if (folder / "partition").exists():
        return Layer(name, "partition", rotational=_flag(folder.resolve().parent / "queue" / "rotational"))
    rotational = _flag(folder / "queue" / "rotational")
    kind, detail, redundant = _layer_kind(name, folder, sys)
    return Layer(name, kind, detail, redundant, rotational)


def _layer_kind(name: str, folder: Path, sys: Path) -> tuple[str, str, bool | None]:
    """Returns kind, detail and `redundant` of the layer."""
    if (folder / "dm").is_dir():
        return _mapped(name, folder, sys)
    if (folder / "md").is_dir():
        level = sysfs_text(folder / "md" / "level")
        return "md", level, level in _WITH_PARITY_OR_COPY
    if (folder / "bcache").is_dir():
        mode = re.search(r"\[(\w+)\]", sysfs_text(folder / "bcache" / "cache_mode"))
        return "bcache", mode[1] if mode else "", None
    if (folder / "loop").is_dir() or re.fullmatch(r"loop\d+", name):
        return "loop", sysfs_text(folder / "loop" / "backing_file"), None
    if name.startswith("nvme"):
        transport = sysfs_text(folder / "device" / "transport")
        return ("nvme" if transport in ("", "pcie") else "nvme fabrics"), transport, None
    for prefix, kind in _NAMES.items():
        if re.match(rf"{prefix}\d", name):
            return kind, "", None
    place = str(folder.resolve())
    return next((kind for pattern, kind in _BUSES if re.search(pattern, place)), "disk"), "", None


def _mapped(name: str, folder: Path, sys: Path) -> tuple[str, str, bool | None]:
    prefix = re.sub(r"^part\d+-", "", sysfs_text(folder / "dm" / "uuid")).partition("-")[0]
    detail = sysfs_text(folder / "dm" / "name")
    kind = _MAKERS.get(prefix, "dm")
    if kind == "lvm":
        below = [sysfs_text(_folder(block_device, sys) / "dm" / "name") for block_device in _below(name, sys)]
        if any(re.search(r"[_-](cdata|cvol|wcorig|corig)$|_cvol[_-]", mapping) for mapping in below):
            return "dm-cache", "", None
        if any(re.search(r"_(rimage|mimage)_\d+$", mapping) for mapping in below):
            return "lvm raid", "", any(re.search(r"_rmeta_\d+$|_mimage_\d+$", mapping) for mapping in below) or None
    return kind, detail, None


def _flag(file: Path) -> bool | None:
    return {"0": False, "1": True}.get(sysfs_text(file))


def stacks(devices: tuple[DeviceFacts, ...]) -> Iterator[str]:
    """Yields each device with its path to the disks: "dm-3: multipath on iscsi"."""
    for layered in devices:
        words = [layer.kind + (f" {layer.detail}" if layer.kind == "md" else "") for layer in layered.layers]
        yield f"{layered.name}: {' on '.join(dict.fromkeys(words))}"
