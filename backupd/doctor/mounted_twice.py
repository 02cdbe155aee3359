"""Decides which folders of a host are backed up twice or cannot be reached, and whether the pool itself is backed up. Pure.

The decision uses the host's mounts. A bind mount, or a btrfs whose top is mounted beside its subvolumes, shows the same files at a
second place. A mount on a folder above another mount hides the other mount.
"""

import posixpath
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from backupd.rsync.host_answers import NotAvailable, is_expected
from btrkeep.config import HostConfig
from btrkeep.config.self_exclusion import below
from btrkeep.procfs import Mount

_NO_FILES = frozenset({"autofs", "rootfs", "proc", "sysfs", "tmpfs", "devtmpfs"})  # hidden files below these are not missed
_MOST, _MOST_PLACES = 100, 5000  # pairs, and folders compared with the patterns: limits, because the host sends the mounts


@dataclass(frozen=True, slots=True)
class MountedTwice:
    """`again` has the same files as `folder`."""

    folder: str
    again: str


def mounted_twice(mounts: Sequence[Mount], host: HostConfig) -> list[MountedTwice]:
    """Returns the folders of a host that are backed up twice. `mounts`: of the host, in the order in which they were made.

    Raises NotAvailable if comparing them would take very long.
    """
    seen, pairs, fetched = _seen(mounts), list[MountedTwice](), dict[str, bool]()

    def is_fetched(path: str) -> bool:
        if path not in fetched:
            if len(fetched) >= _MOST_PLACES:
                raise NotAvailable("too many of its mounts overlap")
            fetched[path] = _is_fetched(path, seen, host)
        return fetched[path]

    order = {str(mount.target): number for number, mount in enumerate(mounts)}
    for place, mount in seen.items():
        if not is_fetched(place) and not any(below(path, place) for path in host.paths):
            continue
        for target, other in seen.items():
            if target == place or other.device != mount.device or not below(mount.root, other.root):
                continue
            same = _moved(mount.root, other.root, target)
            is_later = other.root == mount.root and order[target] > order[place]
            if is_later or _at(seen, same) is not other:
                continue
            if is_fetched(place) and is_fetched(same):
                is_view = f"subvol={mount.root}" in mount.super_options and other.root == "/" != mount.root and target != "/"
                is_source = any(below(path, place) for path in host.paths)
                pair = MountedTwice(place, same) if is_view or is_source else MountedTwice(same, place)
                pairs.append(pair)
                if len(pairs) >= _MOST:
                    return _outermost(pairs)
    return _outermost(pairs)


@dataclass(frozen=True, slots=True)
class HiddenMount:
    """The filesystem at `place` can no longer be reached, because another one was mounted at `above` later."""

    place: str
    above: str


def hidden_mounts(mounts: Sequence[Mount], host: HostConfig) -> list[HiddenMount]:
    """Returns the outermost mounts within the source paths of a host that a later mount hides.

    Files that a mount hides in its own mount point are in no list of mounts: they are invisible from outside. A filesystem that is
    mounted again at another place, or twice at the same place, is not hidden.
    """
    made_on = {(mount.parent, str(mount.target)) for mount in mounts}
    above = {mount.id: cover for mount in mounts if (cover := _cover(mount, made_on))}
    reachable = defaultdict[str, list[str]](list)
    for mount in mounts:
        if mount.id not in above:
            reachable[mount.device].append(mount.root)
    hidden = list[HiddenMount]()
    for mount in mounts:
        place = str(mount.target)
        if mount.id not in above or mount.filesystem in _NO_FILES:
            continue
        if any(below(mount.root, root) for root in reachable[mount.device]):
            continue
        source = next((source for source in host.paths if below(place, source)), None)
        if source and place != "/" and not is_expected(place, source) and not is_excluded(place, source, host.exclude):
            hidden.append(HiddenMount(place, above[mount.id]))
    return hidden[:_MOST]


def _cover(mount: Mount, made_on: Container[tuple[int, str]]) -> str:
    """Returns the place of the mount that hides `mount`; "" if no mount does.

    The hiding mount is on top of `mount`, or on the same filesystem at a folder above: if it had been made before, `mount` would
    have been made on it.
    """
    place = str(mount.target)
    if (mount.id, place) in made_on:
        return place
    while place != "/" and mount.parent != mount.id:
        place = posixpath.dirname(place)
        if (mount.parent, place) in made_on:
            return place
    return ""


def places_of(folder: str, own: Mount, mounts: Sequence[Mount], host: HostConfig) -> list[str]:
    """Returns the places at which the host's backups would include `folder`, or a part of it. `own`: the mount that has it on this
    machine.
    """
    within = _moved(folder, str(own.target), own.root)
    places = list[str]()
    seen = _seen(mounts)
    for target, mount in seen.items():
        if mount.device != own.device:
            continue
        if below(within, mount.root):
            places.append(_moved(within, mount.root, target))
        elif below(mount.root, within):
            places.append(target)
    return [place for place in dict.fromkeys(places) if _is_fetched(place, seen, host)]


def is_excluded(path: str, source: str, patterns: Iterable[str]) -> bool:
    """Returns True if a pattern excludes `path`, a folder between it and its source path, or all of its content."""
    parts = path.strip("/").split("/")
    start = len(source.strip("/").split("/")) if source != "/" else 0  # a source path is fetched regardless of the patterns
    above = ["/" + "/".join(parts[: depth + 1]) for depth in range(start, len(parts))]
    for pattern in patterns:
        bare = pattern.rstrip("/") or "/"
        for end in ("/***", "/**", "/*"):
            bare = bare.removesuffix(end)
        for folder in above:
            name = folder if bare.startswith("/") else folder.rpartition("/")[2] if "/" not in bare else folder[-len(bare) :]
            if name.count("/") == bare.count("/") and fnmatchcase(name, bare):  # a host can have mounts of any depth
                return True
    return False


def _seen(mounts: Sequence[Mount]) -> dict[str, Mount]:
    """Returns the mounts by place: of several at one place only the last one is visible."""
    return {str(mount.target): mount for mount in mounts}


def _at(seen: dict[str, Mount], path: str) -> Mount | None:
    while path not in seen and path != "/":
        path = path.rpartition("/")[0] or "/"
    return seen.get(path)


def _is_fetched(path: str, seen: dict[str, Mount], host: HostConfig) -> bool:
    source = next((source for source in host.paths if below(path, source)), None)
    if source is None or is_expected(path, source) or is_excluded(path, source, (*host.exclude, *host.self_excluded)):
        return False
    return not host.one_file_system or _device(_at(seen, path)) == _device(_at(seen, source))


def _device(mount: Mount | None) -> tuple[str, str]:
    """Returns the parts of the device number of its files: on btrfs each subvolume has its own."""
    if mount is None:
        return "", ""
    options = (word for word in mount.super_options if word.startswith("subvolid="))
    return mount.device, next(options, "") if mount.filesystem == "btrfs" else ""


def _outermost(pairs: Sequence[MountedTwice]) -> list[MountedTwice]:
    """Drops pairs whose second folder is below the second folder of another pair."""
    again = {pair.again for pair in pairs}
    return [pair for pair in pairs if not any(other != pair.again and below(pair.again, other) for other in again)]


def _moved(path: str, above: str, to: str) -> str:
    return posixpath.normpath(f"{to.rstrip('/')}/{path[len(above.rstrip('/')) :].lstrip('/')}")
