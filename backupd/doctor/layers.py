"""What a block device lies on, from sysfs: partitions, device-mapper, md, bcache, loop devices, and how the disks are attached.

Device-mapper tells who made a device by the prefix of its uuid (LVM-, CRYPT-, mpath-); LVM names what is below a cached or a raid
volume by the end of the name (_cdata, _rimage_0). lvm2's lib/uuid and lib/metadata have these names; Documentation/ABI/ of the
kernel has the rest.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from backupd.doctor.facts import DeviceFacts, Layer
from btrkeep.procfs import sysfs_text

SYS = Path("/sys")
_MAKERS = {"LVM": "lvm", "CRYPT": "crypt", "mpath": "multipath", "DRBD": "drbd"}
_WITH_PARITY_OR_COPY = ("raid1", "raid4", "raid5", "raid6", "raid10")
_NAMES = {"drbd": "drbd", "nbd": "nbd", "rbd": "rbd", "zram": "zram"}
_BUSES = (  # what a disk's folder in sysfs lies in; the first that fits
    (r"/session\d+/", "iscsi"),
    (r"/rport-[\d:-]+/", "fibre channel"),
    (r"/virtio\d+/", "virtio"),
    (r"/usb\d+/", "usb"),
    (r"/ata\d+/", "sata"),
)
_DEEPEST = 32


def device(name: str, sys: Path = SYS) -> DeviceFacts:
    """The block device of that name in /sys/class/block, with all below it: each once, a level after the other."""
    found: dict[str, Layer] = {}
    level = [name]
    for _ in range(_DEEPEST):
        below: list[str] = []
        for one in level:
            if one not in found:
                found[one] = layer(one, sys)
                below += _below(one, sys)
        level = below
    return DeviceFacts(tuple(found.values()))


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
    kind, detail, redundant = _what(name, folder, sys)
    return Layer(name, kind, detail, redundant, rotational)


def _what(name: str, folder: Path, sys: Path) -> tuple[str, str, bool | None]:
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
        below = [sysfs_text(_folder(one, sys) / "dm" / "name") for one in _below(name, sys)]
        if any(re.search(r"[_-](cdata|cvol|wcorig|corig)$|_cvol[_-]", one) for one in below):
            return "dm-cache", "", None
        if any(re.search(r"_(rimage|mimage)_\d+$", one) for one in below):
            return "lvm raid", "", any(re.search(r"_rmeta_\d+$|_mimage_\d+$", one) for one in below) or None
    return kind, detail, None


def _flag(file: Path) -> bool | None:
    return {"0": False, "1": True}.get(sysfs_text(file))


def stacks(devices: tuple[DeviceFacts, ...]) -> Iterator[str]:
    """Yields for each device its path to the disks: "dm-3: multipath on iscsi"."""
    for one in devices:
        words = [layer.kind + (f" {layer.detail}" if layer.kind == "md" else "") for layer in one.layers]
        yield f"{one.name}: {' on '.join(dict.fromkeys(words))}"
