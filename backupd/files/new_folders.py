"""Makes and compares folders in open folders: single ones, and plain folders with few plain files and symlinks.

A plain folder is made in the staging folder, gets its files and everything else, including its time, and is then moved to its
place: so it is complete, or missing. Unusual files and folders, and failed attempts, are returned: the caller repeats them one by
one, with a reason.
"""

import errno
import itertools
import os
import stat
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from backupd.files.attributes import is_power
from backupd.files.batched_walk import PlainFolder
from backupd.files.destination import PREFIX, Destination, rename_to_nothing
from backupd.files.plain_files import BatchResult, StagingState, compare, copy, folder_prefix
from backupd.files.tree import Entry, names_in
from backupd.files.writing import Undeleted, comparable, is_empty, is_own_space, mode_to_fill, remove_unfinished
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import FOLDER, by_descriptor, open_on_same_device, require_device

STAGING = PREFIX + b"staging"
_PRIVATE = 0o700
_DONE = BatchResult([], 0, is_bare=True)
_RANDOM = os.urandom(8).hex().encode("ascii")
_numbers = itertools.count()


def make_folder(source: int, name: bytes, entry: Entry, to: int, undeleted: Undeleted, *, privileged: bool) -> int | None:
    """Makes a folder like one of the open folder `source` in the open folder `to`, where its name is unused; without its time.

    Returns an open descriptor of it; None if it could not be made in this way, and then only `undeleted` is left of it.
    """
    temporary = b"%s%s-folder%d" % (PREFIX, _RANDOM, next(_numbers))
    try:
        os.mkdir(temporary, 0o700, dir_fd=to)
    except OSError:
        return None
    try:
        made = os.open(temporary, FOLDER, dir_fd=to)
        try:
            is_ours = not others_write(to) or is_empty(made)  # otherwise another user may have moved a folder of root's there
            if is_ours and _dressed(source, name, entry, made, privileged):
                rename_to_nothing(to, temporary, name)
                return made
        except BaseException:
            os.close(made)
            raise
        os.close(made)
    except OSError:  # the caller handles it by itself, gets the same error and reports it
        pass
    remove_unfinished(to, temporary, undeleted)
    return None


def others_write(folder: int) -> bool:
    """Returns True if users other than that of this process may change the names in an open folder."""
    status = os.fstat(folder)
    return status.st_uid != os.geteuid() or bool(status.st_mode & 0o022)


def _dressed(source: int, name: bytes, entry: Entry, made: int, privileged: bool) -> bool:
    """Gives owner, attributes and the mode to fill it. Returns False if the folder cannot be made in this way. Raises OSError."""
    status = os.fstat(made)
    if status.st_uid != os.geteuid():  # another user has replaced it
        return False
    if any(map(comparable, os.listxattr(made))):  # inherited, such as an ACL
        return False
    if (status.st_uid, status.st_gid) != (entry.uid, entry.gid):
        os.fchown(made, entry.uid, entry.gid)
    original = by_descriptor(source, name)
    for attribute in os.listxattr(original, follow_symlinks=False):
        if privileged or not is_power(attribute):
            os.setxattr(made, attribute, os.getxattr(original, attribute, follow_symlinks=False))
    if stat.S_IMODE(status.st_mode) != (mode := mode_to_fill(entry)):
        os.fchmod(made, mode)
    return True


def same_folder(source: int, name: bytes, entry: Entry, to: int, restored: bytes) -> bool:
    """Returns True if a folder has the same owner, mode and time in the open folder `to`; False also for a folder with attributes.

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


class FolderCopier:
    """Copies plain folders with their files, through the open staging folder `staging`."""

    def __init__(self, staging: int, *, reflinks: bool, privileged: bool) -> None:
        self._staging, self._reflinks, self._privileged = staging, reflinks, privileged
        self._staged = StagingState()

    def copy(self, source: int, to: int, folders: Sequence[PlainFolder]) -> list[BatchResult]:
        """Copies folders of the open folder `source` into the open folder `to`, where their names are unused.

        Nothing is left of the returned folders. Some files may be returned although their folder was made.
        """
        handled, device = list[BatchResult](), os.fstat(source).st_dev
        for folder in folders:
            try:
                handled.append(self._copied(source, to, folder, device))
            except OSError:  # the caller handles each name by itself, gets the same error and reports it
                handled.append(_not_done(folder))
        return handled

    def _copied(self, source: int, to: int, folder: PlainFolder, device: int) -> BatchResult:
        """Copies one folder. Raises OSError, and leaves nothing there."""
        if not folder.files:
            path = folder_prefix(source) + folder.name
            status = os.stat(folder.name, dir_fd=source, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) and status.st_dev == device and not os.listxattr(path, follow_symlinks=False):
                return self._made(-1, to, folder, (), device)
        with ClosingFd(os.open(folder.name, FOLDER, dir_fd=source)) as original:
            require_device(original, device)
            return self._made(original, to, folder, os.listxattr(original), device)

    def _made(self, original: int, to: int, folder: PlainFolder, names: Sequence[str], device: int) -> BatchResult:
        """Makes a folder with the attributes of these names, and its files. Raises OSError, and leaves nothing there.

        In the staging folder a name is as safe as a descriptor.
        """
        staging, temporary, handled = self._staging, _temporary(), _DONE
        os.mkdir(temporary, _PRIVATE, dir_fd=staging)
        try:
            path = by_descriptor(staging, temporary) if names else b""
            for name in names:  # its files inherit properties such as compression
                if is_own_space(name):
                    os.setxattr(path, name, os.getxattr(original, name))
            if folder.files:
                self._staged.prefix = temporary + b"/"
                handled = copy(
                    original, staging, folder.files,
                    reflinks=self._reflinks, privileged=self._privileged, staged=self._staged, device=device,
                )  # fmt: skip
                if handled.undeleted:  # incomplete, but under its final name
                    raise OSError(errno.EBUSY, handled.undeleted[0][1])
            if (folder.uid, folder.gid) != self._staged.owner:
                os.chown(temporary, folder.uid, folder.gid, dir_fd=staging, follow_symlinks=False)
            for name in names:
                if (self._privileged or not is_power(name)) and not is_own_space(name):
                    os.setxattr(path, name, os.getxattr(original, name))
            if names or folder.mode != _PRIVATE:
                os.chmod(temporary, folder.mode, dir_fd=staging)
            os.utime(temporary, ns=(folder.mtime, folder.mtime), dir_fd=staging)
            rename_to_nothing(staging, temporary, folder.name, to)
        except BaseException:
            with suppress(OSError):  # it may be in place already; Ctrl-C must not turn into an error about a missing name
                delete_folder(staging, temporary)
            raise
        return handled._replace(is_bare=False) if names else handled


def _temporary() -> bytes:
    return b"%d-%d" % (os.getpid(), next(_numbers))


def _not_done(folder: PlainFolder) -> BatchResult:
    return BatchResult(list(range(len(folder.files))), 0, is_folder_done=False)


def compare_folders(
    source: int,
    to: int,
    folders: Sequence[PlainFolder],
    *,
    reflinks: bool,
    privileged: bool,
    content: bool,
    is_bare: bool = False,
    synced: int = 0,
) -> list[BatchResult]:
    """Compares folders with their files, like `plain_files.compare`. Both sides are found by name.

    A folder with attributes is returned. `is_bare`: neither they nor a file in them has attributes in the backup.
    """
    handled = list[BatchResult]()
    for folder in folders:
        try:
            if folder.files:
                done = _compared(
                    source, to, folder, reflinks=reflinks, privileged=privileged, content=content, is_bare=is_bare, synced=synced
                )  # fmt: skip
            else:
                done = _DONE if _is_same_empty(source, to, folder, is_bare=is_bare) else _not_done(folder)
            handled.append(done)
        except OSError:
            handled.append(_not_done(folder))
    return handled


def _is_same_empty(source: int, to: int, folder: PlainFolder, *, is_bare: bool) -> bool:
    """Returns True if a folder without content is the same on both sides. Raises OSError."""
    status = os.stat(folder.name, dir_fd=to, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or not _is_same(status, folder):
        return False
    if any(map(comparable, os.listxattr(folder_prefix(to) + folder.name, follow_symlinks=False))):
        return False
    return is_bare or not any(map(comparable, os.listxattr(by_descriptor(source, folder.name), follow_symlinks=False)))


def _compared(
    source: int, to: int, folder: PlainFolder, *, reflinks: bool, privileged: bool, content: bool, is_bare: bool, synced: int
) -> BatchResult:
    """Compares one folder with its files. Raises OSError."""
    needs_source, ours = not is_bare or content or any(file.target == b"" for file in folder.files), -1
    with ClosingFd(os.open(folder.name, FOLDER, dir_fd=to)) as theirs:
        is_same = _is_same(os.fstat(theirs), folder) and not any(map(comparable, os.listxattr(theirs)))
        try:
            if needs_source:
                ours = open_on_same_device(source, folder.name)
                is_same = is_same and not any(map(comparable, os.listxattr(ours)))
            handled = compare(
                ours, theirs, folder.files,
                reflinks=reflinks, privileged=privileged, content=content, is_bare=is_bare, synced=synced,
            )  # fmt: skip
        finally:
            if ours >= 0:
                os.close(ours)
    return handled if is_same else handled._replace(is_folder_done=False)


def _is_same(status: os.stat_result, folder: PlainFolder) -> bool:
    """Compares all but attributes."""
    fields = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns
    return fields == (folder.mode, folder.uid, folder.gid, folder.mtime)


class Staging:
    """A folder in a destination, only accessible to root, in which folders are completed before they are moved to their place.
    Deleted at the end.

    Because only root can enter it, files in it may have their names before they are complete, and everything that a killed restore
    leaves in it is from btrkeep. It is made if the destination is empty; otherwise only the folder of a killed restore is deleted.

    `fd` is an open descriptor of it until `close`; None if there is none. `left`: why it could not be deleted; "": it was deleted.
    Nothing is made and nothing deleted in a destination to which others may write, in one whose attributes are inherited, and if a
    name of the backup has the same place (`taken`).
    """

    def __init__(self, to: Destination, taken: Container[bytes]) -> None:
        self.fd: int | None = None
        self.left = ""
        self._root = -1
        self._deletes = False
        if STAGING in taken or to.outside(()):
            return
        with suppress(OSError):  # without it, folders are restored name by name
            self._root = os.dup(to.folder(()))
            if not others_write(self._root):
                self._deletes = True
                _delete(self._root)
                if _is_fresh(self._root):
                    self.fd = _made(self._root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        if self._root >= 0:
            with ClosingFd(self._root):  # a process of the killed restore may have just ended
                self._try(self._delete_again)

    def close(self) -> None:
        """Deletes it, with what is unfinished in it."""
        if self.fd is None:
            return
        with ClosingFd(self.fd) as fd:
            self._try(lambda: self._delete_open(fd))
        self.fd = None

    def _delete_open(self, fd: int) -> None:
        _empty(fd)  # by descriptor, because its name may mean something else by now
        os.rmdir(STAGING, dir_fd=self._root)

    def _delete_again(self) -> None:
        if self._deletes and not others_write(self._root):
            _delete(self._root)

    def _try(self, delete: Callable[[], None]) -> None:
        """Records why something could not be deleted: the next restore to this destination tries again."""
        try:
            delete()
            self.left = ""
        except FileNotFoundError:
            self.left = ""
        except OSError as error:
            self.left = error.strerror or str(error)


def _made(root: int) -> int | None:
    """Makes the folder. Returns None, and leaves nothing there, if its attributes are not as required. Raises OSError."""
    os.mkdir(STAGING, 0o700, dir_fd=root)
    with suppress(OSError):  # the filesystem has no such attributes
        fd = os.open(STAGING, FOLDER, dir_fd=root)
        try:
            if _is_ours(fd, root) and not any(map(comparable, os.listxattr(fd))):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    os.rmdir(STAGING, dir_fd=root)
    return None


def _is_fresh(root: int) -> bool:
    """Returns True if a folder contains at most what mkfs makes in a new ext4."""
    with os.scandir(root) as names:
        return all(entry.name == "lost+found" for entry in names)


def _is_ours(fd: int, root: int) -> bool:
    """Returns True if only this process's user may enter an open folder, and its group is not inherited."""
    status = os.fstat(fd)
    is_plain = (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), os.getegid(), 0o700)
    return is_plain and status.st_dev == os.fstat(root).st_dev


def _delete(root: int) -> None:
    """Deletes the folder with the files in its folders, if btrkeep made it. Raises OSError."""
    try:
        opened = os.open(STAGING, FOLDER, dir_fd=root)
    except FileNotFoundError:
        return
    with ClosingFd(opened) as fd:
        if not _is_ours(fd, root):
            return
        _empty(fd)
    os.rmdir(STAGING, dir_fd=root)


def _empty(staging: int) -> None:
    for name in names_in(staging):
        delete_folder(staging, name)


def delete_folder(staging: int, name: bytes) -> None:
    """Deletes a folder in the staging folder, with its files; it contains no folders. Raises OSError."""
    if os.geteuid():  # its mode may not permit that
        with suppress(OSError):
            os.chmod(name, _PRIVATE, dir_fd=staging)
    with ClosingFd(os.open(name, FOLDER, dir_fd=staging)) as folder, os.scandir(folder) as files:
        for file in files:
            os.unlink(file.name, dir_fd=folder)
    os.rmdir(name, dir_fd=staging)
