"""Copies and compares whole folders with few plain files and symlinks in them, and nothing else.

A folder is made in the staging folder, gets its files and all else, its time too, and then its place: so it is whole, or not there.
"""

import itertools
import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

from backupd.files.attributes import is_power
from backupd.files.destination import rename_to_nothing
from backupd.files.plain_files import Handled, compare, copy
from backupd.files.staging import delete_folder
from backupd.files.walking import PlainFile
from backupd.files.writing import comparable, is_own_space
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import FOLDER, open_on_same_device

_numbers = itertools.count()
_PRIVATE = 0o700
_EMPTY = Handled([], 0, is_bare=True)


class FolderFields(NamedTuple):
    """A folder of a backup; `mtime` in nanoseconds. Of plain types: it goes to other processes."""

    name: bytes
    mode: int
    uid: int
    gid: int
    mtime: int


def copy_folder(
    staging: int, source: int, to: int, folder: FolderFields, files: Sequence[PlainFile], *, reflinks: bool, privileged: bool
) -> Handled:
    """Copies a folder of the open folder `source` with its files into the open folder `to`, where nothing has its name.

    If that does not succeed, nothing is left of it. Some files may be given back although the folder is made.
    """
    try:
        with ClosingFd(open_on_same_device(source, folder.name)) as original:
            return _copied(staging, original, to, folder, files, reflinks=reflinks, privileged=privileged)
    except OSError:  # whoever does it name by name meets the same, and names it
        pass
    return Handled(list(range(len(files))), 0, is_folder_done=False)


def _copied(
    staging: int, original: int, to: int, folder: FolderFields, files: Sequence[PlainFile], *, reflinks: bool, privileged: bool
) -> Handled:
    """Raises OSError, and leaves nothing there."""
    temporary = b"%d-%d" % (os.getpid(), next(_numbers))
    os.mkdir(temporary, _PRIVATE, dir_fd=staging)
    try:
        with ClosingFd(os.open(temporary, FOLDER, dir_fd=staging)) as made:
            names = os.listxattr(original)
            for name in names:  # its files get it from there, such as its compression
                if is_own_space(name):
                    os.setxattr(made, name, os.getxattr(original, name))
            handled = _EMPTY
            if files:
                handled = copy(original, made, files, reflinks=reflinks, privileged=privileged, at_once=True)
            _dress(original, made, folder, names, privileged)
            rename_to_nothing(staging, temporary, folder.name, to)
    except BaseException:
        delete_folder(staging, temporary)
        raise
    return handled._replace(is_bare=handled.is_bare and not names)


def _dress(original: int, made: int, folder: FolderFields, names: Sequence[str], privileged: bool) -> None:
    """Gives owner, attributes, mode and time, in this order."""
    if (folder.uid, folder.gid) != (os.geteuid(), os.getegid()):  # those of the staging folder
        os.fchown(made, folder.uid, folder.gid)
    for name in names:
        if (privileged or not is_power(name)) and not is_own_space(name):
            os.setxattr(made, name, os.getxattr(original, name))
    if names or folder.mode != _PRIVATE:
        os.fchmod(made, folder.mode)
    os.utime(made, ns=(folder.mtime, folder.mtime))


def compare_folder(
    source: int,
    to: int,
    folder: FolderFields,
    files: Sequence[PlainFile],
    *,
    reflinks: bool,
    privileged: bool,
    content: bool,
    is_bare: bool = False,
) -> Handled:
    """Compares a folder with its files, as `plain_files.compare`. Both are opened by name.

    A folder with attributes is given back. `is_bare`: neither it nor a file in it has any in the backup.
    """
    try:
        with ClosingFd(os.open(folder.name, FOLDER, dir_fd=to)) as theirs:
            if is_bare and not content and not any(file.is_symlink for file in files):
                return _compared(None, theirs, folder, files, reflinks, privileged, content=False, is_bare=True)
            with ClosingFd(open_on_same_device(source, folder.name)) as ours:
                return _compared(ours, theirs, folder, files, reflinks, privileged, content=content, is_bare=is_bare)
    except OSError:
        return Handled(list(range(len(files))), 0, is_folder_done=False)


def _compared(
    ours: int | None,
    theirs: int,
    folder: FolderFields,
    files: Sequence[PlainFile],
    reflinks: bool,
    privileged: bool,
    *,
    content: bool,
    is_bare: bool,
) -> Handled:
    """`ours` None: nothing is needed of the backup's. Raises OSError."""
    is_same = _is_same(None if is_bare else ours, theirs, folder)
    if not files:
        return _EMPTY._replace(is_folder_done=is_same)
    source = -1 if ours is None else ours
    handled = compare(source, theirs, files, reflinks=reflinks, privileged=privileged, content=content, is_bare=is_bare)
    return handled._replace(is_folder_done=is_same)


def _is_same(ours: int | None, theirs: int, folder: FolderFields) -> bool:
    """Returns False also for a folder with attributes, which are looked at in `ours` too. Raises OSError."""
    status = os.fstat(theirs)
    fields = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns
    if fields != (folder.mode, folder.uid, folder.gid, folder.mtime):
        return False
    return not any(map(comparable, os.listxattr(theirs))) and (ours is None or not any(map(comparable, os.listxattr(ours))))
