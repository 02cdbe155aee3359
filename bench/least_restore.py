"""The least that a Python program can do to restore a tree and to compare its metadata: what is left for one that does more.

    python -m bench.least_restore SOURCE DESTINATION [--reflinks]

It makes the system calls that a restore cannot do without, name after name, in one process: each name looked at; files with no name
and folders with another one until they are whole; attributes listed on both sides; after a sync a second look at each name, found
anew. No preview, no reasons, no progress, nothing that is there already, no hostile names; an error ends it.
"""

import os
import stat
import sys
from pathlib import Path
from typing import Any

from backupd.files.destination import rename_to_nothing
from btrkeep.fs.openat import FOLDER
from btrkeep.fs.reflink import clone
from btrkeep.pool.syncfs import SyncfsSet

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NOATIME | os.O_CLOEXEC
_NAMELESS = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
_HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER = os.geteuid(), os.getegid()


Seen = tuple[bytes, os.stat_result, Any]
"""A name, its status, and what is in a folder, the target of a symlink, or None."""


class Restore:
    """One restore. `firsts`: by inode the names of files with several."""

    def __init__(self, *, reflinks: bool) -> None:
        self.reflinks = reflinks
        self.firsts: dict[int, bytes] = {}

    def copy_folder(self, above: int, name: bytes, to_above: int, new_name: bytes) -> list[Seen]:
        """Copies a folder with all that is in it; returns what was seen."""
        source = os.open(name, FOLDER, dir_fd=above)
        status = os.fstat(source)
        temporary = b".least-" + new_name[:200]
        os.mkdir(temporary, 0o700, dir_fd=to_above)
        to = os.open(temporary, FOLDER, dir_fd=to_above)
        _give(source, to, status)
        rename_to_nothing(to_above, temporary, new_name)
        with os.scandir(source) as names:
            names_here = sorted(os.fsencode(entry.name) for entry in names)
        seen = list[Seen]()
        os.fchdir(source)
        for below in names_here:
            looked = os.stat(below, dir_fd=source, follow_symlinks=False)
            if stat.S_ISDIR(looked.st_mode):
                seen.append((below, looked, self.copy_folder(source, below, to, below)))
                os.fchdir(source)
            elif stat.S_ISLNK(looked.st_mode):
                seen.append((below, looked, self._copy_symlink(source, below, to, looked)))
            else:
                self._copy_file(source, below, to, looked)
                seen.append((below, looked, None))
        os.utime(to, ns=(status.st_mtime_ns, status.st_mtime_ns))
        os.close(to)
        os.close(source)
        return seen

    def _copy_symlink(self, source: int, name: bytes, to: int, status: os.stat_result) -> bytes:
        target = os.readlink(name, dir_fd=source)
        os.symlink(target, name, dir_fd=to)
        if (status.st_uid, status.st_gid) != _OWNER:
            os.chown(name, status.st_uid, status.st_gid, dir_fd=to, follow_symlinks=False)
        assert not os.listxattr(name, follow_symlinks=False)
        os.utime(name, ns=(status.st_mtime_ns, status.st_mtime_ns), dir_fd=to, follow_symlinks=False)
        return target

    def _copy_file(self, source: int, name: bytes, to: int, status: os.stat_result) -> None:
        if status.st_nlink > 1 and (first := self.firsts.get(status.st_ino)):
            os.link(first, name, src_dir_fd=to, dst_dir_fd=to)  # of the same folder, in the trees of bench.restore
            return
        original = os.open(name, _READ, dir_fd=source)
        made = os.open(b".", _NAMELESS, stat.S_IMODE(status.st_mode), dir_fd=to)
        if status.st_size and self.reflinks:
            clone(original, made)
        elif status.st_size:
            os.write(made, os.read(original, status.st_size + 1))
        if (status.st_uid, status.st_gid) != _OWNER:
            os.fchown(made, status.st_uid, status.st_gid)
        for attribute in os.listxattr(original):
            os.setxattr(made, attribute, os.getxattr(original, attribute))
        os.utime(made, ns=(status.st_mtime_ns, status.st_mtime_ns))
        os.link(b"/proc/self/fd/%d" % made, name, dst_dir_fd=to, follow_symlinks=True)
        os.close(made)
        os.close(original)
        if status.st_nlink > 1:
            self.firsts[status.st_ino] = name

    def compare(self, above: int, name: bytes, seen: list[Seen]) -> None:
        """Looks at a restored folder again."""
        to = os.open(name, FOLDER, dir_fd=above)
        os.fchdir(to)
        for below, looked, more in seen:
            status = os.stat(below, dir_fd=to, follow_symlinks=False)
            os.listxattr(below, follow_symlinks=False)
            assert (status.st_mtime_ns, status.st_mode, status.st_uid) == (looked.st_mtime_ns, looked.st_mode, looked.st_uid)
            if isinstance(more, bytes):
                assert os.readlink(below, dir_fd=to) == more
            elif more is not None:
                if more:
                    self.compare(to, below, more)
                    os.fchdir(to)
            else:
                assert status.st_size == looked.st_size
        os.close(to)


def _give(source: int, to: int, status: os.stat_result) -> None:
    if (status.st_uid, status.st_gid) != _OWNER:
        os.fchown(to, status.st_uid, status.st_gid)
    for attribute in os.listxattr(source):
        os.setxattr(to, attribute, os.getxattr(source, attribute))
    os.fchmod(to, stat.S_IMODE(status.st_mode))


def main() -> None:
    """The command line."""
    source, to = map(Path, sys.argv[1:3])
    restore = Restore(reflinks="--reflinks" in sys.argv)
    here, top, name = os.open(source.parent, FOLDER), os.open(to.parent, FOLDER), os.fsencode(to.name)
    filesystems = SyncfsSet()
    filesystems.add(top, to.parent)
    seen = restore.copy_folder(here, os.fsencode(source.name), top, name)
    filesystems.sync()
    restore.compare(top, name, seen)


if __name__ == "__main__":
    main()
