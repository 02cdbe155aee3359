"""A folder of root alone in a destination, in which folders are made whole before they get their place. It is gone at the end.

Nobody else can enter it. So files in it may have their names before they are whole, and what a killed restore leaves in it is ours.
"""

import os
import stat
from collections.abc import Callable, Container
from contextlib import suppress
from types import TracebackType
from typing import Self

from backupd.files.destination import PREFIX, Destination
from backupd.files.new_folders import others_write
from backupd.files.tree import names_in
from backupd.files.writing import comparable
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import FOLDER

NAME = PREFIX + b"staging"


class Staging:
    """The folder, made if the destination is empty; otherwise only what a killed restore left is deleted.

    `fd` is an open descriptor of it until `close`; None if there is none. `left`: why it could not be deleted; "" if it is gone. In
    a destination that others may write to, in one that hands something down, and where a name of the backup has its place
    (`taken`), nothing is made and nothing deleted.
    """

    def __init__(self, to: Destination, taken: Container[bytes]) -> None:
        self.fd: int | None = None
        self.left = ""
        self._root = -1
        self._deletes = False
        if NAME in taken or to.outside(()):
            return
        with suppress(OSError):  # without it folders are restored name by name
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
            with ClosingFd(self._root):  # a process of the killed restore may have ended only now
                self._try(self._delete_again)

    def close(self) -> None:
        """Deletes it, with what is unfinished in it."""
        if self.fd is None:
            return
        with ClosingFd(self.fd) as fd:
            self._try(lambda: self._delete_open(fd))
        self.fd = None

    def _delete_open(self, fd: int) -> None:
        _empty(fd)  # by its name it could be something else by now
        os.rmdir(NAME, dir_fd=self._root)

    def _delete_again(self) -> None:
        if self._deletes and not others_write(self._root):
            _delete(self._root)

    def _try(self, delete: Callable[[], None]) -> None:
        """Notes why something could not be deleted: the next restore to here tries it again."""
        try:
            delete()
            self.left = ""
        except FileNotFoundError:
            self.left = ""
        except OSError as error:
            self.left = error.strerror or str(error)


def _made(root: int) -> int | None:
    """Makes the folder. Returns None, and leaves nothing there, if it is not as it has to be. Raises OSError."""
    os.mkdir(NAME, 0o700, dir_fd=root)
    with suppress(OSError):  # a filesystem without attributes
        fd = os.open(NAME, FOLDER, dir_fd=root)
        try:
            if _is_ours(fd, root) and not any(map(comparable, os.listxattr(fd))):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    os.rmdir(NAME, dir_fd=root)
    return None


def _is_fresh(root: int) -> bool:
    """Returns True if nothing is in a folder but what mkfs makes in a new ext4."""
    with os.scandir(root) as names:
        return all(entry.name == "lost+found" for entry in names)


def _is_ours(fd: int, root: int) -> bool:
    """Returns True if only this process's user may enter an open folder, and it hands no group down."""
    status = os.fstat(fd)
    is_plain = (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), os.getegid(), 0o700)
    return is_plain and status.st_dev == os.fstat(root).st_dev


def _delete(root: int) -> None:
    """Deletes the folder with the files in its folders, if it is ours. Raises OSError."""
    try:
        opened = os.open(NAME, FOLDER, dir_fd=root)
    except FileNotFoundError:
        return
    with ClosingFd(opened) as fd:
        if not _is_ours(fd, root):
            return
        _empty(fd)
    os.rmdir(NAME, dir_fd=root)


def _empty(staging: int) -> None:
    for name in names_in(staging):
        delete_folder(staging, name)


def delete_folder(staging: int, name: bytes) -> None:
    """Deletes a folder in the staging folder, with its files; it has no folders in it. Raises OSError."""
    with ClosingFd(os.open(name, FOLDER, dir_fd=staging)) as folder, os.scandir(folder) as files:
        for file in files:
            os.unlink(file.name, dir_fd=folder)
    os.rmdir(name, dir_fd=staging)
