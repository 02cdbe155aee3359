"""Copies and compares single symlinks between open folders, for the batches of plain_files."""

import os
import stat

from backupd.files.attributes import is_power
from backupd.files.tree import identity
from backupd.files.walking import PlainFile
from backupd.files.writing import comparable
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import by_descriptor

_HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_symlink(source: int, to: int, file: PlainFile, temporary: bytes, *, privileged: bool, inherits: bool) -> int:
    """Makes the symlink `temporary` in the open folder `to`. Returns its identity; 0 if it needs more than that.

    `inherits`: it may get attributes from its folder. Raises OSError.
    """
    os.symlink(os.readlink(file.name, dir_fd=source), temporary, dir_fd=to)
    with ClosingFd(os.open(temporary, _HELD, dir_fd=to)) as made:
        status = os.fstat(made)
        if not stat.S_ISLNK(status.st_mode):
            return 0
        path = b"/proc/self/fd/%d" % made  # another user may exchange the name
        if (status.st_uid, status.st_gid) != (file.uid, file.gid):
            os.chown(path, file.uid, file.gid)
        if inherits and any(map(comparable, os.listxattr(path))):
            return 0
        original = by_descriptor(source, file.name)
        for name in os.listxattr(original, follow_symlinks=False):
            if privileged or not is_power(name):
                os.setxattr(path, name, os.getxattr(original, name, follow_symlinks=False))
        os.utime(path, ns=(file.mtime, file.mtime))
        return identity(status)


def copy_symlink_at_once(source: int, to: int, file: PlainFile, prefix: bytes, owner: tuple[int, int], *, privileged: bool) -> bool:
    """Makes a symlink under its own name in the open folder `to`, in which nobody else can change names. Raises OSError.

    Returns True if it has no attributes in the backup. `prefix`: what makes a path of a name in `source`. `owner`: what a new
    symlink gets by itself.
    """
    os.symlink(os.readlink(file.name, dir_fd=source), file.name, dir_fd=to)
    try:
        if (file.uid, file.gid) != owner:
            os.chown(file.name, file.uid, file.gid, dir_fd=to, follow_symlinks=False)
        original = prefix + file.name
        names = os.listxattr(original, follow_symlinks=False)
        for name in names:
            if privileged or not is_power(name):
                path = by_descriptor(to, file.name)
                os.setxattr(path, name, os.getxattr(original, name, follow_symlinks=False), follow_symlinks=False)
        os.utime(file.name, ns=(file.mtime, file.mtime), dir_fd=to, follow_symlinks=False)
    except BaseException:
        os.unlink(file.name, dir_fd=to)
        raise
    return not names


def same_symlink(source: int, to: int, file: PlainFile) -> bool:
    """Returns True if the folder `to` has the same symlink, its attributes not looked at. Raises OSError."""
    status = os.stat(file.name, dir_fd=to, follow_symlinks=False)
    return (
        stat.S_ISLNK(status.st_mode)
        and (status.st_mtime_ns, status.st_uid, status.st_gid) == (file.mtime, file.uid, file.gid)
        and os.readlink(file.name, dir_fd=source) == os.readlink(file.name, dir_fd=to)
    )


def may_inherit(folder: int) -> bool:
    """Returns True if a new name in an open folder may get attributes from it: a default ACL, or a label of a security module."""
    try:
        return any(map(comparable, os.listxattr(folder)))
    except OSError:
        return True
