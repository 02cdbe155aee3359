"""Rules about the mount of the filesystem. Options belong to the whole filesystem, except nosuid, nodev and access times.

btrfs chooses ssd by itself when it is mounted and /sys/block/*/queue/rotational is 0 for all its devices; a udev rule can correct
that flag.
"""

import shlex
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from backupd.doctor.doctor_facts import DeviceFacts, DoctorFacts, DoctorRule, FilesystemFacts, diagnosis, unless
from btrkeep.decisions import findings as health
from btrkeep.decisions.findings import Finding, FixCommand, Remedy

LONGEST_COMMIT = 300  # seconds; above it the kernel warns too
SHORTEST_COMMIT = 10
DEFAULT_COMMIT = 30
POWERLESS = ("nosuid", "nodev")
_ROOT = Path("/")
_HIGH_LEVEL = 3  # of zstd: above it, a core compresses more slowly than a disk writes


def remount(fs: FilesystemFacts, option: str) -> FixCommand:
    """The step that changes an option of the mounted filesystem, until the next mount."""
    return FixCommand(("mount", "-o", f"remount,{option}", str(fs.target)))


def in_fstab(word: str) -> str:
    """Returns the manual step for the next mount."""
    return f"# and add {word} to the options in /etc/fstab, for the next mount"


def _atime(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    if fs.mount_options is None or "noatime" in fs.mount_options:
        return
    kind = "relatime" if "relatime" in fs.mount_options else "strictatime"
    yield diagnosis(
        "atime",
        "note",
        f"the pool is mounted with {kind}: the time of every read is stored",
        "each night rsync reads every folder of a host, so btrfs writes the metadata of all of them again, and earlier backups "
        "no longer share it",
        "none known: hardly any program needs the time of the last read",
        (in_fstab("noatime"),),
        (remount(fs, "noatime"),),
    )


def powerless(target: Path, options: Collection[str]) -> FixCommand | None:
    """The step that disables setuid programs, capabilities and device nodes of hosts below `target`; None if they are disabled
    already, or if the system itself is on that mount and needs its own.
    """
    if target == _ROOT or all(word in options for word in POWERLESS):
        return None
    return FixCommand(("mount", "-o", f"remount,{','.join(POWERLESS)}", str(target)))


def _powerful(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    missing = [word for word in POWERLESS if fs.mount_options is not None and word not in fs.mount_options]
    if fs.mount_options is None or not missing:
        return
    step = powerless(fs.target, fs.mount_options)
    words = ",".join(POWERLESS)
    by_hand = (
        in_fstab(words) if step else f"# the system is on this filesystem too: mount the pool's subvolume separately, with {words}"
    )
    yield diagnosis(
        "nosuid",
        "note",
        f"the pool is mounted without {' and '.join(missing)}",
        "backups contain setuid programs and device nodes of the hosts, even of a compromised host; only the closed root folder "
        "of the pool keeps users of this machine from using them",
        "none for backups and restores; programs that are run from this filesystem lose setuid bits and capabilities",
        (by_hand,),
        (step,) if step else (),
    )


def _read_only(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    for finding in facts.verdict.of(health.READ_ONLY):
        remedy = Remedy(
            "the pool was mounted read-only, or the kernel stopped all writing after an error",
            "after an error every further write can increase the damage: find the cause first, and copy important data",
            ("dmesg | grep -i btrfs", f"umount {_q(fs)}", f"btrfs check --readonly {_device(fs)}", f"mount {_q(fs)}"),
            unmounted=True,
        )
        yield replace(finding, remedy=remedy)


def _degraded(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    if fs.option("degraded") is None or fs.missing is None or fs.missing:
        return
    yield diagnosis(
        "degraded",
        "warning",
        "the pool is mounted with degraded although no device is missing",
        "if a device is missing later, the pool is mounted without it, unnoticed",
        "none; the pool must be unmounted to change the option",
        ("# remove degraded from the options in /etc/fstab", f"umount {_q(fs)}", f"mount {_q(fs)}"),
        unmounted=True,
    )


def _space_cache(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    if fs.free_space_tree and fs.option("nospace_cache") is None:
        return
    cache = "no space cache" if fs.option("nospace_cache") is not None else "a space cache of version 1"
    yield diagnosis(
        "space-cache",
        "warning",
        f"the filesystem has {cache} instead of a free space tree",
        "version 1 writes a file for each changed block group in every commit, which causes pauses on a large filesystem; "
        "without a cache the whole extent tree is read after each mount, and scoring the free space takes far longer",
        "low; the first mount reads the whole extent tree, which takes minutes on a large filesystem. Afterwards Linux "
        "before 4.5 can only read the filesystem",
        (f"umount {_q(fs)}", f"mount -o clear_cache,space_cache=v2 {_device(fs)} {_q(fs)}",
         "# this is permanent: no option in /etc/fstab is needed, but remove space_cache=v1 or nospace_cache there"),
        unmounted=True,
    )  # fmt: skip


def _compression(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    forced, chosen = fs.option("compress-force"), fs.option("compress")
    method, _, level = (forced or chosen or "").partition(":")
    if forced is not None:
        yield _slow_compression(
            fs,
            "compress-force also compresses data that does not get smaller",
            "such data is cut into extents of 512 KiB at the most, compressed data into 128 KiB: much more metadata, at every "
            "snapshot, expiry and balance",
        )
    elif method == "zlib" or (level.isdigit() and int(level) > _HIGH_LEVEL):
        yield _slow_compression(
            fs,
            f"data is compressed with {chosen}, which is slow",
            "a backup that arrives faster than it is compressed waits for the processor; zstd:1 saves nearly as much",
        )
    elif method == "":
        yield diagnosis(
            "compression",
            "note",
            "data is not compressed",
            "much server data gets smaller with zstd:1, so less is written",
            "some processor time; files are cut into extents of 128 KiB, so more metadata. Only data written from now on changes",
            (remount(fs, "compress=zstd:1").line, in_fstab("compress=zstd:1")),
        )


def _slow_compression(fs: FilesystemFacts, text: str, why: str) -> Finding:
    risk = "none: data written from now on is a little larger"
    return diagnosis("compression", "note", text, why, risk, (in_fstab("compress=zstd:1"),), (remount(fs, "compress=zstd:1"),))


def _commit(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    value = fs.option("commit") or ""
    if not value.isdigit() or SHORTEST_COMMIT <= int(value) <= LONGEST_COMMIT:
        return
    why = (
        "each commit writes the changed part of every tree; the same blocks are written again and again"
        if int(value) < SHORTEST_COMMIT
        else "a power cut loses the data written since the last commit; such a large commit delays all writes, and the cleaner "
        "pauses as long"
    )
    yield diagnosis(
        "commit",
        "warning",
        f"a commit is made every {value} seconds",
        why,
        "none: 30 seconds is the default of btrfs",
        ("# and remove commit= from the options in /etc/fstab",),
        (remount(fs, f"commit={DEFAULT_COMMIT}"),),
    )


def _autodefrag(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    if fs.option("autodefrag") is None:
        return
    yield diagnosis(
        "autodefrag",
        "warning",
        "the pool is mounted with autodefrag",
        "files changed in place are rewritten completely, so data shared with earlier backups is stored twice",
        "none for backups",
        ("# and remove autodefrag from the options in /etc/fstab",),
        (remount(fs, "noautodefrag"),),
    )


def _no_checksums(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    options = [word for word in ("nodatacow", "nodatasum") if fs.option(word) is not None]
    if not options:
        return
    yield diagnosis(
        "checksums-off",
        "warning",
        f"the pool is mounted with {' and '.join(options)}",
        "new files have no checksums: neither reading nor scrub detects damage on the disks",
        "none; existing files stay without checksums",
        (f"# remove {' and '.join(options)} from the options in /etc/fstab",),
        (remount(fs, "datacow,datasum"),),
    )


_BLIND_TO_MOUNT = unless(
    lambda facts: facts.filesystem.mount_options is not None,
    "this process has a private mount instead of the machine's, and /proc/1/mountinfo does not show the machine's",
)
_BLIND_TO_MISSING = unless(
    lambda facts: facts.filesystem.missing is not None or facts.filesystem.option("degraded") is None,
    "the kernel does not report which devices are missing",
)


def _q(fs: FilesystemFacts) -> str:
    return shlex.quote(str(fs.target))


def _device(fs: FilesystemFacts) -> str:
    return shlex.quote(f"/dev/disk/by-uuid/{fs.uuid}")


RULES = (
    DoctorRule("read-only", ("error",), "the filesystem is read-only", _read_only, blind=_BLIND_TO_MOUNT),
    DoctorRule("atime", ("note",), "access times are kept (relatime, strictatime)", _atime, fixable=True, blind=_BLIND_TO_MOUNT),
    DoctorRule("nosuid", ("note",), "setuid programs and device nodes of hosts would work in the pool", _powerful, fixable=True,
         blind=_BLIND_TO_MOUNT),
    DoctorRule("space-cache", ("warning",), "a space cache of version 1, or none, instead of a free space tree", _space_cache),
    DoctorRule("compression", ("note",), "data is not compressed, or in an expensive way", _compression, fixable=True),
    DoctorRule(
        "commit",
        ("warning",),
        f"commits less than {SHORTEST_COMMIT} or more than {LONGEST_COMMIT} seconds apart",
        _commit,
        fixable=True,
    ),
    DoctorRule("autodefrag", ("warning",), "autodefrag, which breaks the sharing between snapshots", _autodefrag, fixable=True),
    DoctorRule("checksums-off", ("warning",), "nodatacow or nodatasum", _no_checksums, fixable=True),
    DoctorRule("degraded", ("warning",), "degraded in the mount options although no device is missing", _degraded,
               blind=_BLIND_TO_MISSING),
)  # fmt: skip


_HIDING_DISKS = ("iscsi", "fibre channel", "multipath", "virtio", "loop", "nbd", "rbd", "drbd", "nvme fabrics")


def _ssd(facts: DoctorFacts) -> Iterator[Finding]:
    fs, site = facts.filesystem, facts.site
    spread, ssd = fs.option("ssd_spread") is not None, fs.option("ssd") is not None
    if site.expiring and site.mount_option in ("ssd", "ssd_spread"):  # expiry has changed it, and restores it later
        return
    if spread:
        yield diagnosis(
            "ssd",
            "warning",
            "the pool is mounted with ssd_spread",
            "new data is then written only where 2 MiB are free in one piece: holes stay, and more and more space is allocated "
            "but unused",
            "snapshots may be removed more slowly; [expiry] mount_option switches during expiry",
            ("# and remove ssd_spread from the options in /etc/fstab",),
            (remount(fs, "nossd"),),
        )
        return
    doubtful = [device for device in fs.devices if device.rotational is False and device.has(*_HIDING_DISKS)]
    if ssd and doubtful:
        yield _guessed(fs, doubtful)


def _guessed(fs: FilesystemFacts, doubtful: list[DeviceFacts]) -> Finding:
    names = ", ".join(f"{device.name} ({_virtual(device)})" for device in doubtful)
    return diagnosis(
        "ssd",
        "note",
        f"ssd is active because {names} reports that it does not rotate",
        "the flag of such a device does not show which disks are behind it. With ssd, metadata is written where 2 MiB are free "
        "in one piece, which suits flash and the removal of snapshots, but fills fewer holes",
        "if the disks are flash there is nothing to correct. With nossd snapshots are removed more slowly; [expiry] mount_option = "
        '"ssd" switches during expiry',
        ("# if rotating disks are behind it, in /etc/udev/rules.d/99-btrkeep-rotational.rules:",
         *(f"#   {line}" for line in udev_rule(fs, doubtful)),
         "# and until the next mount:", remount(fs, "nossd").line),
    )  # fmt: skip


def udev_rule(fs: FilesystemFacts, devices: list[DeviceFacts]) -> list[str]:
    """The udev rule that tells the kernel that a device of this filesystem rotates, each time it appears.

    A partition has no flag of its own: that of its disk is one folder above.
    """
    attributes = {("../" if device.layers[0].kind == "partition" else "") + "queue/rotational" for device in devices}
    match = f'ACTION!="remove", SUBSYSTEM=="block", ENV{{ID_FS_UUID}}=="{fs.uuid}"'
    return [f'{match}, ATTR{{{attribute}}}="1"' for attribute in sorted(attributes)]


def _virtual(device: DeviceFacts) -> str:
    return next(layer.kind for layer in device.layers if layer.kind in _HIDING_DISKS)


_BLIND_TO_FLAG = unless(
    lambda facts: (
        facts.filesystem.option("ssd") is None
        or (bool(facts.filesystem.devices) and all(device.rotational is not None for device in facts.filesystem.devices))
    ),
    "/sys does not show whether the devices rotate",
)

SSD_RULES = (
    DoctorRule(
        "ssd",
        ("note", "warning"),
        "ssd_spread; or ssd only because a virtual disk reports that it does not rotate",
        _ssd,
        fixable=True,
        blind=_BLIND_TO_FLAG,
    ),
)
