"""A tree as the kernel shows it, name by name: the independent reference for backups.

It uses no code of btrkeep, and names are never decoded: each is the bytes in the folder. One process reads everything,
where find, sha256sum, getfacl, getfattr and getcap would be five, hundreds of times.
"""

import hashlib
import os
import stat
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

_KINDS = {
    stat.S_IFREG: "f",
    stat.S_IFDIR: "d",
    stat.S_IFLNK: "l",
    stat.S_IFIFO: "p",
    stat.S_IFSOCK: "s",
    stat.S_IFBLK: "b",
    stat.S_IFCHR: "c",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a tree. Sizes are those of regular files, times are nanoseconds; `links` are all names of its inode within the
    tree, sorted. ACLs and capabilities are among the xattrs, which are sorted too.
    """

    kind: str
    mode: str
    uid: int
    gid: int
    size: int
    mtime: int
    target: bytes
    links: tuple[bytes, ...]
    device: tuple[int, int] | None
    sha256: str
    xattrs: tuple[tuple[str, bytes], ...]
    blocks: int | None


def manifest(top: Path, blocks: bool = False) -> dict[bytes, Entry]:
    """Returns each name below `top`, and `top` itself as b"", with everything that a backup has to contain.

    `blocks` adds the allocated 512-byte blocks of regular files: whether holes stayed holes.
    """
    parent = os.open(top, os.O_PATH | os.O_DIRECTORY)
    try:
        rows = list(_walk(parent, b".", b""))
    finally:
        os.close(parent)
    names: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
    for row in rows:
        names[row.info.st_dev, row.info.st_ino].append(row.name)
    return {row.name: _entry(row, sorted(names[row.info.st_dev, row.info.st_ino]), blocks) for row in rows}


def differences(source: dict[bytes, Entry], backup: dict[bytes, Entry]) -> list[str]:
    """Returns a line for each name that only one side has, and for each differing field of a common name; empty if equal."""
    lines = [f"{name!r}: only in the source" for name in sorted(source.keys() - backup.keys())]
    lines += [f"{name!r}: only in the backup" for name in sorted(backup.keys() - source.keys())]
    for name in sorted(source.keys() & backup.keys()):
        for field in fields(Entry):
            here, answer = getattr(source[name], field.name), getattr(backup[name], field.name)
            if here != answer:
                lines.append(f"{name!r}: {field.name} is {here!r} in the source, {answer!r} in the backup")
    return lines


class _Row(NamedTuple):
    name: bytes
    info: os.stat_result
    target: bytes
    sha256: str
    xattrs: tuple[tuple[str, bytes], ...]


def _entry(row: _Row, links: list[bytes], blocks: bool) -> Entry:
    info = row.info
    kind = _KINDS[stat.S_IFMT(info.st_mode)]
    return Entry(
        kind=kind,
        mode=f"{stat.S_IMODE(info.st_mode):o}",
        uid=info.st_uid,
        gid=info.st_gid,
        size=info.st_size if kind == "f" else 0,
        mtime=info.st_mtime_ns,
        target=row.target,
        links=tuple(links) if kind != "d" else (),
        device=(os.major(info.st_rdev), os.minor(info.st_rdev)) if kind in "bc" else None,
        sha256=row.sha256,
        xattrs=row.xattrs,
        blocks=info.st_blocks if blocks and kind == "f" else None,
    )


def _walk(folder: int, name: bytes, path: bytes) -> Iterator[_Row]:
    """Yields the name in that open folder, and everything below it. No path becomes longer than the kernel allows."""
    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    sha256 = _sha256(folder, name) if stat.S_ISREG(info.st_mode) else ""
    target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(info.st_mode) else b""
    yield _Row(path, info, target, sha256, _xattrs(b"/proc/self/fd/%d/%s" % (folder, name)))
    if stat.S_ISDIR(info.st_mode):
        inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            with os.scandir(inside) as listed:
                names = sorted(os.fsencode(each.name) for each in listed)
            for each in names:
                yield from _walk(inside, each, b"/".join(filter(None, (path, each))))
        finally:
            os.close(inside)


def _xattrs(path: bytes) -> tuple[tuple[str, bytes], ...]:
    names = sorted(os.listxattr(path, follow_symlinks=False))
    return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)


def _sha256(folder: int, name: bytes) -> str:
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
