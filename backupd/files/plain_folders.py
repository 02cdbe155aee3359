"""Copies and compares whole folders with few plain files and symlinks in them, and nothing else.

A folder is made in the staging folder, gets its files and all else, its time too, and then its place: so it is whole, or not there.
"""

import itertools
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from backupd.files.attributes import is_power
from backupd.files.destination import rename_to_nothing
from backupd.files.plain_files import Handled, compare, copy
from backupd.files.staging import delete_folder
from backupd.files.walking import PlainFile
from backupd.files.writing import comparable
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import FOLDER, open_on_same_device

_numbers = itertools.count()


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
    os.mkdir(temporary, 0o700, dir_fd=staging)
    try:
        with ClosingFd(os.open(temporary, FOLDER, dir_fd=staging)) as made:
            handled = copy(original, made, files, reflinks=reflinks, privileged=privileged, at_once=True)
            for number in handled.left_over:
                with suppress(FileNotFoundError):
                    os.unlink(files[number].name, dir_fd=made)
            _dress(original, made, folder, privileged)
            rename_to_nothing(staging, temporary, folder.name, to)
    except BaseException:
        delete_folder(staging, temporary)
        raise
    return handled


def _dress(original: int, made: int, folder: FolderFields, privileged: bool) -> None:
    """Gives owner, attributes, mode and time, in this order."""
    if (folder.uid, folder.gid) != (os.geteuid(), os.getegid()):  # those of the staging folder
        os.fchown(made, folder.uid, folder.gid)
    for name in os.listxattr(original):
        if privileged or not is_power(name):
            os.setxattr(made, name, os.getxattr(original, name))
    os.fchmod(made, folder.mode)
    os.utime(made, ns=(folder.mtime, folder.mtime))


def compare_folder(
    source: int, to: int, folder: FolderFields, files: Sequence[PlainFile], *, reflinks: bool, privileged: bool, content: bool
) -> Handled:
    """Compares a folder with its files, as `plain_files.compare`. Both are opened by name.

    A folder with attributes is given back.
    """
    try:
        with (
            ClosingFd(open_on_same_device(source, folder.name)) as ours,
            ClosingFd(os.open(folder.name, FOLDER, dir_fd=to)) as theirs,
        ):
            is_same = _is_same(ours, theirs, folder)
            handled = compare(ours, theirs, files, reflinks=reflinks, privileged=privileged, content=content)
            return handled._replace(is_folder_done=is_same)
    except OSError:
        return Handled(list(range(len(files))), 0, is_folder_done=False)


def _is_same(ours: int, theirs: int, folder: FolderFields) -> bool:
    status = os.fstat(theirs)
    fields = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns
    if fields != (folder.mode, folder.uid, folder.gid, folder.mtime):
        return False
    return not any(any(map(comparable, os.listxattr(fd))) for fd in (ours, theirs))
