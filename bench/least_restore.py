"""The minimum that a Python program has to do to restore a tree and compare its metadata: a lower bound for btrkeep.

    python -m bench.least_restore SOURCE DESTINATION [--reflinks] [--by-cp] [--contents] [--steps previewed]

It makes only the necessary system calls of a restore, name after name, in one process. Each step includes those before it:

copied: each name is read, and made under its own name, with its attributes; at the end all is synced
whole: a folder without folders gets its name when it is complete; others, and files in those, when they have their attributes
compared: afterwards each name is looked up and read again, with its attributes
previewed: before anything is written, all names are read and remembered

With --contents the data of each file is compared too: with --reflinks by the items of the trees, else, and where these differ,
both files are read.

No reasons, no progress, no existing files, no hostile names; an error ends it.
"""

import argparse
import os
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from backupd.files.destination import rename_to_nothing
from btrkeep.fs.file_data import have_same_items
from btrkeep.fs.openat import FOLDER
from btrkeep.fs.reflink import clone
from btrkeep.pool.syncfs import SyncfsSet

STEPS = ("copied", "whole", "compared", "previewed")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NOATIME | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NAMELESS = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
_OWNER = os.geteuid(), os.getegid()


@dataclass(slots=True)
class Seen:
    """A name, its status, the target of a symlink, and the content of a folder; None: not read yet."""

    name: bytes
    status: os.stat_result
    target: bytes
    below: "list[Seen] | None" = None


def look(folder: int, *, deep: bool) -> list[Seen]:
    """Reads the names in an open folder; with `deep`, also everything below it."""
    with os.scandir(folder) as names:
        names_here = sorted(os.fsencode(entry.name) for entry in names)
    seen = list[Seen]()
    for name in names_here:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        seen.append(Seen(name, status, os.readlink(name, dir_fd=folder) if stat.S_ISLNK(status.st_mode) else b""))
        if deep and stat.S_ISDIR(status.st_mode):
            below = os.open(name, FOLDER, dir_fd=folder)
            seen[-1].below = look(below, deep=True)
            os.close(below)
    return seen


class Restore:
    """One restore. `firsts`: by inode, the first name of files with several names."""

    def __init__(self, *, reflinks: bool, whole: bool) -> None:
        self.reflinks = reflinks
        self.whole = whole
        self.firsts: dict[int, bytes] = {}

    def copy_folder(self, above: int, seen: Seen, to_above: int, new_name: bytes) -> None:
        """Copies a folder with all that is in it."""
        source, status = os.open(seen.name, FOLDER, dir_fd=above), seen.status
        below = seen.below = look(source, deep=False) if seen.below is None else seen.below
        is_last = not any(stat.S_ISDIR(inner.status.st_mode) for inner in below)
        temporary = b".least-" + new_name[:200] if self.whole else new_name
        os.mkdir(temporary, 0o700, dir_fd=to_above)
        to = os.open(temporary, FOLDER, dir_fd=to_above)
        _give(source, to, status)
        if self.whole and not is_last:
            rename_to_nothing(to_above, temporary, new_name)
        os.fchdir(source)
        for inner in below:
            if stat.S_ISDIR(inner.status.st_mode):
                self.copy_folder(source, inner, to, inner.name)
                os.fchdir(source)
            elif stat.S_ISLNK(inner.status.st_mode):
                _copy_symlink(inner, to)
            else:
                self._copy_file(source, inner, to, is_named=is_last or not self.whole)
        os.utime(to, ns=(status.st_mtime_ns, status.st_mtime_ns))
        if self.whole and is_last:
            rename_to_nothing(to_above, temporary, new_name)
        os.close(to)
        os.close(source)

    def _copy_file(self, source: int, seen: Seen, to: int, *, is_named: bool) -> None:
        name, status = seen.name, seen.status
        if status.st_nlink > 1 and (first := self.firsts.get(status.st_ino)):
            os.link(first, name, src_dir_fd=to, dst_dir_fd=to)  # of the same folder, in the trees of bench.restore
            return
        original = os.open(name, _READ, dir_fd=source)
        made = os.open(name if is_named else b".", _NEW if is_named else _NAMELESS, stat.S_IMODE(status.st_mode), dir_fd=to)
        if status.st_size and self.reflinks:
            clone(original, made)
        elif status.st_size:
            os.write(made, os.read(original, status.st_size + 1))
        if (status.st_uid, status.st_gid) != _OWNER:
            os.fchown(made, status.st_uid, status.st_gid)
        for attribute in os.listxattr(original):
            os.setxattr(made, attribute, os.getxattr(original, attribute))
        os.utime(made, ns=(status.st_mtime_ns, status.st_mtime_ns))
        if not is_named:
            os.link(b"/proc/self/fd/%d" % made, name, dst_dir_fd=to, follow_symlinks=True)
        os.close(made)
        os.close(original)
        if status.st_nlink > 1:
            self.firsts[status.st_ino] = name


def _copy_symlink(seen: Seen, to: int) -> None:
    name, status = seen.name, seen.status
    os.symlink(seen.target, name, dir_fd=to)
    if (status.st_uid, status.st_gid) != _OWNER:
        os.chown(name, status.st_uid, status.st_gid, dir_fd=to, follow_symlinks=False)
    assert not os.listxattr(name, follow_symlinks=False)
    os.utime(name, ns=(status.st_mtime_ns, status.st_mtime_ns), dir_fd=to, follow_symlinks=False)


def compare(above: int, name: bytes, below: list[Seen], source_above: int | None = None, *, reflinks: bool = False) -> None:
    """Checks a restored folder; with the folder `source_above`, in which the original has the same name, also the files' data."""
    to = os.open(name, FOLDER, dir_fd=above)
    source = None if source_above is None else os.open(name, FOLDER, dir_fd=source_above)
    os.fchdir(to)
    for seen in below:
        status, looked = os.stat(seen.name, dir_fd=to, follow_symlinks=False), seen.status
        os.listxattr(seen.name, follow_symlinks=False)
        assert (status.st_mtime_ns, status.st_mode, status.st_uid) == (looked.st_mtime_ns, looked.st_mode, looked.st_uid)
        if seen.target:
            assert os.readlink(seen.name, dir_fd=to) == seen.target
        elif seen.below:
            compare(to, seen.name, seen.below, source, reflinks=reflinks)
            os.fchdir(to)
        elif seen.below is None:
            assert status.st_size == looked.st_size
            if source is not None and status.st_size:
                shared = reflinks and have_same_items(source, looked.st_ino, to, status.st_ino)
                assert shared or _is_equal(source, to, seen.name), seen.name
    if source is not None:
        os.close(source)
    os.close(to)


def _is_equal(source: int, to: int, name: bytes) -> bool:
    """Reads both from the disk."""
    contents = list[bytes]()
    for folder in (source, to):
        fd = os.open(name, _READ, dir_fd=folder)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        contents.append(os.read(fd, os.fstat(fd).st_size + 1))
        os.close(fd)
    return contents[0] == contents[1]


def _give(source: int, to: int, status: os.stat_result) -> None:
    if (status.st_uid, status.st_gid) != _OWNER:
        os.fchown(to, status.st_uid, status.st_gid)
    for attribute in os.listxattr(source):
        os.setxattr(to, attribute, os.getxattr(source, attribute))
    os.fchmod(to, stat.S_IMODE(status.st_mode))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("to", type=Path)
    parser.add_argument("--reflinks", action="store_true")
    parser.add_argument("--steps", choices=STEPS, default=STEPS[-1])
    parser.add_argument("--by-cp", action="store_true", help="use cp for copying; this program only previews and compares")
    parser.add_argument("--contents", action="store_true", help="compare the files' data too")
    given = parser.parse_args()
    steps = STEPS[: STEPS.index(given.steps) + 1]
    restore = Restore(reflinks=given.reflinks, whole="whole" in steps)
    here, top = os.open(given.source.parent, FOLDER), os.open(given.to.parent, FOLDER)
    seen = Seen(os.fsencode(given.source.name), given.source.stat(), b"")
    if "previewed" in steps:
        source = os.open(given.source, FOLDER)
        seen.below = look(source, deep=True)
        os.close(source)
    filesystems, name = SyncfsSet(), os.fsencode(given.to.name)
    filesystems.add(top, given.to.parent)
    if given.by_cp:
        subprocess.run(
            ["cp", "-a", f"--reflink={'always' if given.reflinks else 'auto'}", "--", given.source, given.to], check=True
        )
    else:
        restore.copy_folder(here, seen, top, name)
    filesystems.sync()
    if "compared" in steps:
        compare(top, name, seen.below or [], here if given.contents else None, reflinks=given.reflinks)


if __name__ == "__main__":
    main()
