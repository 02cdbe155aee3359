"""Real btrfs on loop devices, on sparse images of the session."""

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import struct
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from btrfs.ctree import FIRST_FREE_OBJECTID, LAST_FREE_OBJECTID, ROOT_BACKREF_KEY, ROOT_TREE_OBJECTID, Key
from btrfs.ioctl import ino_lookup, search_v2

from btrkeep.units import parse_size
from tests.beds import session
from tests.beds.work import explain, work

MOUNT_POINT = "mnt"
MIB = 1 << 20
_LONGEST_COPY = 60.0  # seconds
_WITH_BLOCK_GROUP_TREE = Path(__file__).resolve().parents[1] / "btrfs" / "golden" / "block-group-tree.img.tar.xz"


@functools.cache
def why_not() -> str:
    """Returns why tests cannot have a btrfs on this machine, or "". It tries to make one."""
    if os.geteuid() != 0:
        return "no root"
    missing = [name for name in ("mkfs.btrfs", "losetup", "mount") if not shutil.which(name)]
    if missing:
        return f"{missing[0]} is not installed"
    try:
        point = make(size="128M")
    except AssertionError as error:
        return f"no btrfs on a loop device: {str(error).strip().splitlines()[-1]}"
    session.remove(point.parent)
    return ""


def make(size: str = "2G", devices: int = 1, mkfs: Sequence[str] = (), options: str = "") -> Path:
    """Makes and mounts a btrfs; returns its mount point, PARENT/mnt beside its images. `session.remove(PARENT)` ends it.

    `size` is that of each device; nothing is allocated until it is written. `mkfs` are further arguments of mkfs.btrfs, `options`
    mount options.
    """
    room = parse_size(size)
    bed = Path(tempfile.mkdtemp(prefix="btrfs-", dir=session.folder(room * devices)))
    try:
        loops = [attach(_sparse(bed / f"disk{number}", room)) for number in range(devices)]
        work("mkfs.btrfs", "-q", *mkfs, *loops)
        point = bed / MOUNT_POINT
        point.mkdir()
        others = [f"device={loop}" for loop in loops[1:]]
        words = ["-o", ",".join([*others, *filter(None, [options])])] if others or options else []
        work("mount", "-t", "btrfs", *words, loops[0], point)
    except BaseException:  # including Ctrl-C and the alarm of a time limit: no other code knows this folder yet
        session.remove(bed)
        raise
    return point


def make_with_block_group_tree(size: str = "700M") -> Path:
    """The same, from an image that mkfs.btrfs 6.14 made: the version of Debian 12 cannot (tests/btrfs/test_treescan_trees.py has
    details).
    """
    if not Path("/sys/fs/btrfs/features/block_group_tree").exists():
        pytest.skip("this kernel knows no block group tree")
    room = parse_size(size)
    bed = Path(tempfile.mkdtemp(prefix="btrfs-", dir=session.folder(room)))
    with tarfile.open(_WITH_BLOCK_GROUP_TREE) as archive:
        archive.extractall(bed)
    image, point = bed / "block-group-tree.img", bed / MOUNT_POINT
    os.truncate(image, room)
    point.mkdir()
    try:
        work("mount", attach(image), point)
        work("btrfs", "-q", "filesystem", "resize", "max", point)
    except BaseException:
        session.remove(bed)
        raise
    return point


def _sparse(image: Path, size: int) -> Path:
    with image.open("wb") as file:
        file.truncate(size)
    return image


def attach(image: Path) -> str:
    """Attaches a loop device to an image. Parallel sessions may take the same free device: then it tries again.

    Skips the test if none is allowed here: fixtures that make their own filesystem have no marker.
    """
    if os.geteuid() != 0:
        pytest.skip("left out: on a real btrfs (no root)")
    for _ in range(10):
        done = work("losetup", "--find", "--show", image, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    raise AssertionError(explain(done))


def subvolumes_below(top: Path, point: Path) -> list[Path]:
    """The subvolumes strictly below `top` on the filesystem mounted at `point`, the innermost first.

    By the kernel's tree of roots, in this process: `btrfs subvolume list` would be a process for each test.
    """
    first, last = (Key(objectid, ROOT_BACKREF_KEY, 0) for objectid in (FIRST_FREE_OBJECTID, LAST_FREE_OBJECTID))
    fd = os.open(point, os.O_RDONLY)
    try:
        answer = search_v2(fd, ROOT_TREE_OBJECTID, first, last)
        parents = {key.objectid: (key.offset, bytes(data)) for key, data in answer if key.type == ROOT_BACKREF_KEY}
        paths = [point / os.fsdecode(_path_of(fd, id_, parents)) for id_ in parents]
    finally:
        os.close(fd)
    return sorted((path for path in paths if path.is_relative_to(top) and path != top), key=lambda path: -len(path.parts))


def _path_of(fd: int, id_: int, parents: Mapping[int, tuple[int, bytes]]) -> bytes:
    if id_ not in parents:  # the filesystem's top
        return b""
    parent, reference = parents[id_]
    folder, _, length = struct.unpack_from("<QQH", reference)  # struct btrfs_root_ref
    return _path_of(fd, parent, parents) + ino_lookup(fd, parent, folder).name_bytes + reference[18 : 18 + length] + b"/"


def delete_subvolume(top: Path, point: Path) -> None:
    """Deletes a subvolume with all subvolumes in it, including read-only ones."""
    set_flags, snap_destroy = 0x4008941A, 0x5000940F  # linux/btrfs.h: BTRFS_IOC_SUBVOL_SETFLAGS, BTRFS_IOC_SNAP_DESTROY
    doomed = [*subvolumes_below(top, point), top]
    for holder in {parent for path in doomed for parent in path.parents}.intersection(doomed):
        # One in a read-only one cannot be unlinked from it.
        _ioctl(holder, set_flags, struct.pack("=Q", 0))
    for path in doomed:
        _ioctl(path.parent, snap_destroy, struct.pack("=q4088s", 0, os.fsencode(path.name)))


def _ioctl(path: Path, number: int, argument: bytes) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, number, bytearray(argument))
    finally:
        os.close(fd)


def devices_of(point: Path) -> list[str]:
    """Returns the loop devices of the bed mounted at `point`, for tests that unmount it and mount it again: `mount
    DEVICE POINT`.
    """
    return session.loops_below(point.parent)


def unmount(point: Path) -> None:
    """Unmounts the only mount of a filesystem, and returns when the kernel has let go of it: then it can be mounted in another way.

    Another test's process may have a copy of the mount for a moment, in a namespace of its own. Another program's may have it for
    hours, so after a second it is unmounted there too.
    """
    shown = Path("/sys/fs/btrfs") / work("findmnt", "-n", "-o", "UUID", point).stdout.strip()
    devices = [Path("/dev") / device.name for device in (shown / "devices").iterdir()]
    assert devices
    umount(point)
    deadline, copied = time.monotonic() + _LONGEST_COPY, time.monotonic() + 1
    while shown.exists() or not all(map(_is_free, devices)):  # it disappears there first
        elsewhere = f"{point} is unmounted here, and still mounted elsewhere"
        assert time.monotonic() < deadline, "\n".join([elsewhere, *session.with_a_copy(point)])
        if time.monotonic() > copied:
            session.unmount_copies(point)
            copied = time.monotonic() + 1
        time.sleep(0.02)


def umount(point: Path, *program: str) -> None:
    """umount(8), or another `program`, once the mount is unused: a command's processes may end a moment after the command, and
    the kernel detaches a loop device when its last user, such as udev, has closed it.
    """
    deadline = time.monotonic() + _LONGEST_COPY
    while (done := work(*(program or ("umount",)), point, check=False)).returncode:
        assert "busy" in done.stderr, explain(done)
        assert time.monotonic() < deadline, "\n".join([explain(done), *session.holders(point)])
        time.sleep(0.05)


def _is_free(device: Path) -> bool:
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def remount(point: Path, options: str) -> None:
    work("mount", "-o", f"remount,{options}", point)


def simple_quotas(point: Path) -> None:
    """Does the same as `btrfs quota enable --simple`, which Debian 12 lacks. Raises OSError if the kernel has no simple quotas."""
    quota_ctl, enable_simple_quota = 0xC0109428, 4  # btrfs.h: BTRFS_IOC_QUOTA_CTL, BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA
    _ioctl(point, quota_ctl, struct.pack("=QQ", enable_simple_quota, 0))


def fill(point: Path, into: Path) -> None:
    """Fills the filesystem from within a read-only subvolume, until there is no space for a file of one byte."""
    work("btrfs", "property", "set", "-f", "-ts", into, "ro", "false")
    with (into / "ballast").open("wb") as file:
        for step in (16 * MIB, MIB, 4096):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), file.tell(), step)
                    file.seek(step, os.SEEK_CUR)
    work("btrfs", "filesystem", "sync", point)
    for number in range(1000):
        if not fits(into / f"crumb{number}"):
            break
    work("btrfs", "property", "set", "-ts", into, "ro", "true")
    assert not fits(point / "byte")


def fill_metadata(point: Path) -> None:
    """Fills metadata until no empty file can be made; all unallocated space is given to data first."""
    (point / "small").mkdir()
    (point / "large").touch()
    with (point / "ballast").open("wb") as file, contextlib.suppress(OSError):
        while True:
            os.posix_fallocate(file.fileno(), file.tell(), 16 * MIB)
            file.seek(16 * MIB, os.SEEK_CUR)
    os.truncate(point / "ballast", 16 * MIB)  # to free space for data
    work("btrfs", "filesystem", "sync", point)
    with contextlib.suppress(OSError):
        for number in range(100_000):
            os.setxattr(point / "large", f"user.{number}", bytes(16_000))  # a leaf of its own
    for size in (2000, 0):
        for number in range(100_000):
            try:
                (point / "small" / f"{size}-{number}").write_bytes(bytes(size))
            except OSError:
                synced = work("btrfs", "filesystem", "sync", point, check=False)
                if os.statvfs(point).f_flag & os.ST_RDONLY:  # Linux 6.18.44 does so each time, 6.18 of some days before did not
                    pytest.skip("left out: without room for metadata (this kernel ends read-only when it is filled)")
                assert synced.returncode == 0, synced.stderr
                if not makes(point / "empty"):
                    break


def makes(path: Path) -> bool:
    """Returns True if an empty file could be made there. It is deleted again."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return False
        raise
    path.unlink()
    return True


def fits(path: Path) -> bool:
    """Returns True if a new file of one byte could be written there. It is kept."""
    try:
        path.write_bytes(b"x")
    except OSError as error:
        path.unlink(missing_ok=True)
        if error.errno == errno.ENOSPC:
            return False
        raise
    return True
