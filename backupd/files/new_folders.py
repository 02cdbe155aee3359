"""Makes and compares single folders of a backup in open folders: the usual case, in few system calls.

What is unusual, and what fails, is given back: whoever asked does it by itself, with a reason.
"""

import itertools
import os
import stat
from contextlib import suppress

from backupd.files.attributes import is_power
from backupd.files.destination import PREFIX, rename_to_nothing
from backupd.files.tree import Entry
from backupd.files.writing import comparable, is_empty
from btrkeep.fs.openat import FOLDER, by_descriptor

_RANDOM = os.urandom(8).hex().encode("ascii")
_numbers = itertools.count()


def make_folder(source: int, name: bytes, entry: Entry, to: int, *, privileged: bool) -> int | None:
    """Makes a folder of the open folder `source` in the open folder `to`, where nothing has its name; without its time.

    Returns an open descriptor of it; None if it could not be made so, and then nothing is left of it.
    """
    temporary = b"%s%s-folder%d" % (PREFIX, _RANDOM, next(_numbers))
    try:
        os.mkdir(temporary, 0o700, dir_fd=to)
    except OSError:
        return None
    try:
        made = os.open(temporary, FOLDER, dir_fd=to)
        try:
            is_ours = not others_write(to) or is_empty(made)  # else another user has moved one of root's there
            if is_ours and _dressed(source, name, entry, made, privileged):
                rename_to_nothing(to, temporary, name)
                return made
        except BaseException:
            os.close(made)
            raise
        os.close(made)
    except OSError:  # whoever does it by itself meets the same, and names it
        pass
    with suppress(OSError):
        os.rmdir(temporary, dir_fd=to)
    return None


def others_write(folder: int) -> bool:
    """Returns True if users other than this process may change the names in an open folder."""
    status = os.fstat(folder)
    return status.st_uid != os.geteuid() or bool(status.st_mode & 0o022)


def _dressed(source: int, name: bytes, entry: Entry, made: int, privileged: bool) -> bool:
    """Gives owner, attributes and mode, in this order. Returns False if it needs more than that. Raises OSError."""
    status = os.fstat(made)
    if status.st_uid != os.geteuid():  # another user has exchanged it
        return False
    if any(map(comparable, os.listxattr(made))):  # inherited, such as an ACL
        return False
    if (status.st_uid, status.st_gid) != (entry.uid, entry.gid):
        os.fchown(made, entry.uid, entry.gid)
    original = by_descriptor(source, name)
    for attribute in os.listxattr(original, follow_symlinks=False):
        if privileged or not is_power(attribute):
            os.setxattr(made, attribute, os.getxattr(original, attribute, follow_symlinks=False))
    if stat.S_IMODE(status.st_mode) != entry.mode:
        os.fchmod(made, entry.mode)
    return True


def same_folder(source: int, name: bytes, entry: Entry, to: int, restored: bytes) -> bool:
    """Returns True if a folder has the same owner, mode and time in the open folder `to`; False also for one with attributes.

    Raises OSError.
    """
    status = os.stat(restored, dir_fd=to, follow_symlinks=False)
    return (
        stat.S_ISDIR(status.st_mode)
        and (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns)
        == (entry.mode, entry.uid, entry.gid, entry.mtime)
        and not any(
            any(map(comparable, os.listxattr(by_descriptor(*place), follow_symlinks=False)))
            for place in ((source, name), (to, restored))
        )
    )
