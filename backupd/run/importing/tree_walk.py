"""Walks the folders of an old tree, and refuses a tree whose inode numbers do not prove which names are the same file."""

import errno
import os
import re
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from hashlib import blake2b
from operator import attrgetter, methodcaller
from typing import NamedTuple

from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.fs.openat import open_folder
from btrkeep.pool.mounts import mount_id
from btrkeep.procfs import mounts
from btrkeep.units import printable

_DIGEST = 16  # bytes
FEW = 100_000
"""Numbers that Python sorts itself, in 10 MB. NumPy needs a tenth of that memory, but a tenth of a second to be imported."""
Attributes = tuple[object, ...]
"""Owner, mode, time and extended attributes of a folder, to be compared."""


class UnprovenTree(OperatorError):
    """The inode numbers in a tree do not prove which files are the same."""


class FolderDigests:
    """A digest of each folder of a tree: of its path, names, inodes and attributes. Sixteen bytes each."""

    def __init__(self) -> None:
        self._new = bytearray()
        self._high, self._low = array("Q"), array("Q")

    def add(self, digest: bytes) -> None:
        """Adds the digest of a folder. `has` finds it only after `sort`."""
        self._new += digest

    def sort(self) -> None:
        """Sorts the digests, so that they can be searched."""
        if len(self._new) <= FEW * _DIGEST:
            numbers = array("Q", bytes(self._new))
            pairs = sorted(zip(numbers[::2], numbers[1::2], strict=True))
            self._high, self._low = (array("Q", [pair[column] for pair in pairs]) for column in (0, 1))
        else:
            import numpy as np  # it takes a tenth of a second

            both = np.frombuffer(self._new, np.uint64).reshape(-1, 2)
            order = np.argsort(both[:, 0])
            self._high, self._low = (array("Q", both[order, column].tobytes()) for column in (0, 1))
        self._new = bytearray()

    def has(self, digest: bytes) -> bool:
        """Returns True if the folder was the same."""
        high, low = memoryview(digest).cast("Q")
        place = bisect_left(self._high, high)
        while place < len(self._high) and self._high[place] == high:
            if self._low[place] == low:
                return True
            place += 1
        return False


class WalkedFolder(NamedTuple):
    """A folder of a tree. Its names are in the order of their inodes, which is mostly the order on the disk."""

    path: bytes
    """Its path in the tree."""
    fd: int
    """Open until the next folder is requested."""
    status: os.stat_result
    folders: list[bytes]
    """The names of the folders in it."""
    others: list["os.DirEntry[str]"]
    """The other entries."""
    joined: bytes
    """The names of the other entries, with a NUL between two."""
    inodes: "array[int]"
    """The inodes of the other entries."""
    files: int
    """Number of regular files."""

    @property
    def names(self) -> list[bytes]:
        """Returns the other names. Most folders are unchanged, so nothing needs the names in them."""
        return self.joined.split(b"\0") if self.others else []


def digest_of(folder: WalkedFolder) -> bytes:
    """Returns the data for the digest of a folder: its entries by name and inode, not the content of its folders.

    Different folders have different data: it starts with the number of numbers and names, and no name contains a NUL.
    """
    content = folder.path, sorted(folder.folders), attributes_of(folder.fd, folder.status), len(folder.others)
    return blake2b(b"%a%b%b" % (content, folder.inodes.tobytes(), folder.joined), digest_size=_DIGEST).digest()


def require_one_numbering(tree: int) -> None:
    """Raises UnprovenTree for an overlay of several subvolumes of btrfs. overlayfs regards them as one filesystem, and shows their
    inode numbers, which each subvolume assigns separately. Layers that are not visible here are not checked.
    """
    if os.major(os.fstat(tree).st_dev):  # on a disk; folders of overlayfs have a device number without a disk
        return
    number, all_mounts = mount_id(tree), mounts()
    if not (mount := next((mount for mount in all_mounts if mount.id == number), None)) or mount.filesystem != "overlay":
        return
    devices = set[int]()
    for folder in _layers(mount.super_options):
        with suppress(OSError), ClosingFd(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
            number = mount_id(fd)
            if any(mount.id == number and mount.filesystem == "btrfs" for mount in all_mounts):
                devices.add(os.fstat(fd).st_dev)
    if len(devices) > 1:
        message = "it is an overlay of several btrfs subvolumes, so its inode numbers do not show which names are hard links"
        raise UnprovenTree(message, f"import the layers separately, or {COPY_IT}")


def _layers(options: Iterable[str]) -> Iterator[str]:
    """Yields the folders in the options of overlayfs: lowerdir=A:B::DATA, lowerdir+=A, datadir+=A, upperdir=A; a colon
    is escaped.
    """
    for option in options:
        key, _, folders = option.partition("=")
        if key == "lowerdir":
            yield from (re.sub(r"\\(.)", r"\1", layer) for layer in re.split(r"(?<!\\):+", folders) if layer)
        elif key in ("lowerdir+", "datadir+", "upperdir"):
            yield folders


def walk_tree(tree: int, goes_on: Callable[[], bool]) -> Generator[WalkedFolder, None, None]:
    """Yields the open folder and each folder below it, each after the one above it. Raises OSError; UnprovenTree for a mount or a
    subvolume, and for a filesystem whose inode numbers prove nothing, which one file shows.
    """
    require_one_numbering(tree)
    waiting, device, is_proven = [b""], os.fstat(tree).st_dev, False
    while waiting and goes_on():
        path = waiting.pop()
        with ClosingFd(open_folder(tree, path.split(b"/") if path else ())) as fd:
            status = os.fstat(fd)
            if status.st_dev != device:
                raise UnprovenTree(
                    f"{printable(path)} in it is another filesystem or subvolume", "import that folder as a separate tree"
                )
            with os.scandir(fd) as unsorted:
                others = sorted(unsorted, key=_INODE)
            files, names = sum(map(_IS_FILE, others)), list[bytes]()
            if files < len(others):
                names = [_encoded(entry.name) for entry in others if _IS_FOLDER(entry)]
                others = [entry for entry in others if not _IS_FOLDER(entry)] if names else others
            if others and not is_proven:
                _require_inodes(fd, path, next(filter(_IS_FILE, reversed(others)), others[-1]), device)
                is_proven = True
            waiting += [path + b"/" + name if path else name for name in reversed(names)]
            joined = _encoded("\0".join(map(_NAME, others)))
            yield WalkedFolder(path, fd, status, names, others, joined, array("Q", map(_INODE, others)), files)


def _encoded(name: str) -> bytes:
    return name.encode(*_ENCODING)


def _require_inodes(folder: int, path: bytes, entry: "os.DirEntry[str]", device: int) -> None:
    """Raises UnprovenTree if the inode number in a listing is not that of the file, or belongs to another filesystem. libfuse
    invents numbers unless the filesystem has its own, and overlayfs has files of several filesystems in one folder.
    """
    try:
        status = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
        if (status.st_dev, status.st_ino) == (device, entry.inode()):
            return
        if status.st_dev == device and status.st_ino == inodes_by_name(folder).get(_encoded(entry.name)):
            return  # it was replaced: the copying code reports it
    except FileNotFoundError:
        return
    name, kind = printable(path + b"/" + _encoded(entry.name) if path else entry.name), filesystem_of(folder)
    if status.st_dev != device:
        raise UnprovenTree(
            f"{name} in it is on another filesystem than its folder ({kind}), so inode numbers do not show which names are hard "
            "links",
            f"if it is a layer of overlayfs, {COPY_IT}; if it is a mount, unmount it",
        )
    raise UnprovenTree(
        f"{name} in it: readdir and stat report different inode numbers, so hard links cannot be recognised on this filesystem "
        f"({kind})",
        f"mount the history without FUSE, or {COPY_IT}",
    )


def filesystem_of(folder: int) -> str:
    """Returns the type of filesystem of an open folder, as in mountinfo."""
    number = mount_id(folder)
    return next((mount.filesystem for mount in mounts() if mount.id == number), "its filesystem")


def walk_again(tree: int, seen: FolderDigests, goes_on: Callable[[], bool]) -> Generator[WalkedFolder, None, None]:
    """Like `walk_tree`, for a tree that was read before. Raises OSError for a folder that differs from `seen`: a name was added,
    removed or became another file, so the results about the tree are no longer correct.
    """
    with closing(walk_tree(tree, goes_on)) as walked:
        for folder in walked:
            if not seen.has(digest_of(folder)):
                raise OSError(
                    errno.EAGAIN,
                    "it was changed during the import: another program may be changing the history",
                    os.fsdecode(folder.path),
                )
            yield folder


COPY_IT = (
    "copy the whole history with one `rsync -aHAX`, on the machine with its disk, to a filesystem such as ext4, and import the copy"
)
_ENCODING = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
# Called by the interpreter itself for each name: a comprehension takes twice as long.
_INODE, _NAME = methodcaller("inode"), attrgetter("name")
_IS_FILE, _IS_FOLDER = methodcaller("is_file", follow_symlinks=False), methodcaller("is_dir", follow_symlinks=False)
IS_FOLDER = -1  # instead of an inode number: folders are never hard-linked


def inodes_by_name(folder: int) -> dict[bytes, int]:
    """Returns the names in an open folder, with the inode of each."""
    with os.scandir(folder) as entries:
        return {_encoded(entry.name): IS_FOLDER if _IS_FOLDER(entry) else entry.inode() for entry in entries}


def attributes_of(folder: int, status: os.stat_result) -> Attributes:
    """Returns the attributes of an open folder with that status, including ACLs."""
    names = list[str]()
    with suppress(OSError):  # the filesystem has no attributes
        names = sorted(os.listxattr(folder))
    return status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, [(name, os.getxattr(folder, name)) for name in names]
