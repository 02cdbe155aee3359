"""The rule about ssd, and the udev rule that tells the kernel what a device is.

btrfs chooses ssd by itself when it is mounted and /sys/block/*/queue/rotational is 0 for all its devices.
"""

from collections.abc import Iterator

from backupd.doctor.facts import DeviceFacts, DoctorFacts, FilesystemFacts
from backupd.doctor.finding import DoctorRule, diagnosis, unless
from backupd.doctor.rules.mount import remount
from btrkeep.decisions.findings import Finding

_SAYS_NOTHING = ("iscsi", "fibre channel", "multipath", "virtio", "loop", "nbd", "rbd", "drbd", "nvme fabrics")


def _ssd(facts: DoctorFacts) -> Iterator[Finding]:
    fs, site = facts.filesystem, facts.site
    spread, ssd = fs.option("ssd_spread") is not None, fs.option("ssd") is not None
    if site.expiring and site.mount_option in ("ssd", "ssd_spread"):  # expiry has switched it, and puts it back
        return
    if spread:
        yield diagnosis(
            "ssd",
            "warning",
            "the pool is mounted with ssd_spread",
            "new data then goes only where 2 MiB are free in one piece: holes stay, and more and more is allocated and not used",
            "snapshots may be removed more slowly; [expiry] mount_option switches for the time of it",
            ("# and take ssd_spread out of the options in /etc/fstab",),
            (remount(fs, "nossd"),),
        )
        return
    doubtful = [device for device in fs.devices if device.rotational is False and device.has(*_SAYS_NOTHING)]
    if ssd and doubtful:
        yield _guessed(fs, doubtful)


def _guessed(fs: FilesystemFacts, doubtful: list[DeviceFacts]) -> Finding:
    names = ", ".join(f"{device.name} ({_virtual(device)})" for device in doubtful)
    return diagnosis(
        "ssd",
        "note",
        f"ssd holds because {names} says that it does not rotate",
        "the flag of such a device tells nothing about the disks behind it. With ssd metadata goes where 2 MiB are free in one "
        "piece, which suits flash and the removal of snapshots, but fills fewer holes",
        "where the disks are flash there is nothing to mend. With nossd snapshots are removed more slowly; [expiry] mount_option = "
        '"ssd" switches for the time of it',
        ("# if disks that rotate are behind it, in /etc/udev/rules.d/99-btrkeep-rotational.rules:",
         *(f"#   {line}" for line in udev_rule(fs, doubtful)),
         "# and until the next mount:", remount(fs, "nossd").line),
    )  # fmt: skip


def udev_rule(fs: FilesystemFacts, devices: list[DeviceFacts]) -> list[str]:
    """The rule that tells the kernel, each time that a device of this filesystem comes up, that it rotates.

    A partition has no flag of its own: that of its disk lies one folder above.
    """
    attributes = {("../" if device.layers[0].kind == "partition" else "") + "queue/rotational" for device in devices}
    match = f'ACTION!="remove", SUBSYSTEM=="block", ENV{{ID_FS_UUID}}=="{fs.uuid}"'
    return [f'{match}, ATTR{{{attribute}}}="1"' for attribute in sorted(attributes)]


def _virtual(device: DeviceFacts) -> str:
    return next(layer.kind for layer in device.layers if layer.kind in _SAYS_NOTHING)


_BLIND_TO_FLAG = unless(
    lambda facts: (
        facts.filesystem.option("ssd") is None
        or (bool(facts.filesystem.devices) and all(device.rotational is not None for device in facts.filesystem.devices))
    ),
    "/sys does not show whether the devices rotate",
)

RULES = (
    DoctorRule(
        "ssd",
        ("note", "warning"),
        "ssd_spread; or ssd only because a virtual disk says that it does not rotate",
        _ssd,
        fixable=True,
        blind=_BLIND_TO_FLAG,
    ),
)
