"""The content of a pool, read without btrkeep's code: trees by their checksums, backups by records and subvolume flags."""

import fcntl
import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Tree = dict[str, tuple[Any, ...]]
_GET_SUBVOL_INFO, _IOC_SYNC = 0x81F8943C, 0x9408  # linux/btrfs.h
_INFO = struct.Struct("=Q256sQQQQ16s")  # id, name, parent, folder, generation, flags, UUID
_READ_ONLY = 1
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z")


def tree(top: Path) -> Tree:
    """Returns each name below `top` with its properties: kind, mode, owner, mtime, size, SHA-256 or target, and other names of its
    inode.
    """
    entries: Tree = {}
    linked: dict[int, list[str]] = {}
    for folder, folders, files in os.walk(top):
        below = os.path.relpath(folder, top) + "/" if folder != str(top) else ""
        for name in (*folders, *files):
            path, at = f"{folder}/{name}", f"{below}{name}"
            seen = os.lstat(path)
            entries[at] = (*_facts(seen), _content(path, seen), ())
            if seen.st_nlink > 1:
                linked.setdefault(seen.st_ino, []).append(at)
    for names in linked.values():
        for at in names:
            entries[at] = (*entries[at][:-1], tuple(sorted(set(names) - {at})))
    return entries


def below(tree: Tree, top: str) -> Tree:
    """Returns the entries below the folder `top`, in the form of `tree` of that folder."""
    start = f"{top}/"
    length = len(start)
    return {
        at[length:]: (*facts, tuple(name[length:] for name in others if name.startswith(start)))
        for at, (*facts, others) in tree.items()
        if at.startswith(start)
    }


def _content(path: str, seen: os.stat_result) -> str:
    if stat.S_ISREG(seen.st_mode):
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a million of them
            return hashlib.file_digest(file, "sha256").hexdigest()
    return str(Path(path).readlink()) if stat.S_ISLNK(seen.st_mode) else ""


def _facts(seen: os.stat_result) -> tuple[int, ...]:
    size = seen.st_size if stat.S_ISREG(seen.st_mode) else 0
    return seen.st_mode, seen.st_uid, seen.st_gid, seen.st_mtime_ns, size


def unlike(tree: Tree, other: Tree) -> list[str]:
    """Returns the names that differ."""
    return [name for name in sorted(tree.keys() | other.keys()) if tree.get(name) != other.get(name)]


def backups(pool: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Host, name and record of every subvolume with a final name that is read-only."""
    for host in sorted((pool / "hosts").iterdir()):
        for path in sorted(host.iterdir()):
            if _NAME.fullmatch(path.name):
                yield host.name, path.name, json.loads((path / "backup.json").read_text())


def notes(pool: Path, host: str) -> dict[str, Any]:
    """Returns a host's notes.json."""
    path = pool / "hosts" / host / "notes.json"
    return dict(json.loads(path.read_text())) if path.exists() else {"backups": {}}


def facts(pool: Path) -> set[str]:
    """Returns the facts of the pool, one per line: the backups, their states and their notes.

    A note of a deleted backup proves nothing: an interrupted deletion left it (see stale_notes).
    """
    facts_of_pool = {f"{host}/{name} is there, {record['state']}" for host, name, record in backups(pool)}
    for host in sorted(path.name for path in (pool / "hosts").iterdir()):
        host_notes = notes(pool, host)
        facts_of_pool |= {
            f"{host}/{name}: {key}"
            for name, keys in host_notes["backups"].items()
            if (pool / "hosts" / host / name).exists()
            for key in keys
        }
        facts_of_pool |= {f"{host} was {name}" for name in host_notes.get("was", ())}
        facts_of_pool |= {f"{host} is forgotten"} if host_notes.get("forgotten") else set()
        facts_of_pool |= {f"{host} is fetched"} if host_notes.get("replica") else set()
    return facts_of_pool


def stale_notes(pool: Path) -> list[str]:
    """Returns notes of backups that no longer exist."""
    hosts = sorted(path.name for path in (pool / "hosts").iterdir())
    return [
        f"{host}/{name}" for host in hosts for name in notes(pool, host)["backups"] if not (pool / "hosts" / host / name).exists()
    ]


@dataclass(frozen=True, slots=True)
class Subvolume:
    """The kernel's description of a subvolume. It does not change as long as nothing in the subvolume changes."""

    number: int
    generation: int
    flags: int
    uuid: bytes


def subvolume(path: Path) -> Subvolume:
    """Returns the subvolume's state at the last commit."""
    info = bytearray(504)
    _ioctl(path, _GET_SUBVOL_INFO, info)
    number, _, _, _, generation, flags, uuid = _INFO.unpack_from(info)
    return Subvolume(number, generation, flags, uuid)


def commit(pool: Path) -> None:
    """Writes everything to the disk."""
    _ioctl(pool, _IOC_SYNC)


def _ioctl(path: Path, code: int, data: bytearray | None = None) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, code, data or 0)
    finally:
        os.close(fd)


def writable(pool: Path) -> list[str]:
    """Returns writable backups with a final name: there must never be one."""
    paths = [pool / "hosts" / host / name for host, name, _ in backups(pool)]
    return [str(path) for path in paths if not subvolume(path).flags & _READ_ONLY]


def allocator(point: Path) -> str:
    """Returns `ssd` or `nossd`, from /proc/self/mounts."""
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    options = next(words[3].split(",") for words in lines if words[1] == str(point))
    return next((word for word in options if "ssd" in word), "")
