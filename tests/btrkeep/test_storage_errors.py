"""Errors of the kernel and the disks below a pool: each is reported or tolerated as its caller expects, and none counts as success.

The kernel's calls are replaced by ones that fail as its source and the man pages have it; files and filesystems are real.
"""

import errno
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from btrfs import ioctl

from btrkeep.errors import OperatorError
from btrkeep.pool import activity, balance_ioctl, mounts, reserve, subvolume, temporary_devices
from btrkeep.pool.balance_ioctl import balance_block_group, balance_now, cancel_balance, exclusive_operation, missing_devices
from btrkeep.pool.mounts import is_machines, machine_mount, remount, remount_flags, set_allocator
from btrkeep.pool.reserve import give_back, with_reserve
from btrkeep.pool.syncfs import Syncfs, SyncfsSet
from btrkeep.pool.temporary_devices import (
    TemporaryDevice,
    TemporaryRecord,
    is_same_device,
    left_devices,
    read_record,
    write_record,
)
from btrkeep.procfs import Mount
from btrkeep.procfs import mounts as real_mounts

OTHER_TMPFS = Path("/dev/shm")


def failing(number: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


# Writes that the disk lost


class Disks:
    """Filesystems whose syncs fail with these errors in turn; 0: the sync succeeds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: int) -> None:
        self.errors, self.syncs, self.last = list(errors), 0, 0
        monkeypatch.setattr("btrkeep.pool.syncfs._syncfs", self.sync)
        monkeypatch.setattr("ctypes.get_errno", lambda: self.last)

    def sync(self, _fd: int) -> int:
        self.syncs += 1
        self.last = self.errors.pop(0)
        return -1 if self.last else 0


def test_lost_data_is_reported_at_each_later_sync_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports the loss once. The second sync must not make a backup complete whose data was lost before the first."""
    disks = Disks(monkeypatch, errno.EIO, 0)
    fd = os.open(tmp_path, os.O_RDONLY)
    disk = Syncfs(fd)
    for _ in range(2):
        with pytest.raises(OSError) as lost:
            disk.sync()
        assert lost.value.errno == errno.EIO
    assert disks.syncs == 1
    os.close(fd)


def test_a_filesystem_that_became_read_only_has_lost_data_though_its_sync_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disks(monkeypatch, 0, 0, 0)
    fd = os.open(tmp_path, os.O_RDONLY)
    disk, statvfs = Syncfs(fd), os.fstatvfs(fd)
    disk.sync()
    read_only = os.statvfs_result((*statvfs[:8], statvfs.f_flag | os.ST_RDONLY, statvfs[9]))
    monkeypatch.setattr(os, "fstatvfs", lambda _fd: read_only)
    with pytest.raises(OSError, match="Read-only"):
        disk.sync()
    Syncfs(fd).sync()  # one that was read-only from the beginning loses nothing
    os.close(fd)


def test_of_several_filesystems_all_are_synced_and_the_one_that_lost_data_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore into a folder with another filesystem below it."""
    disks, restored = Disks(monkeypatch, errno.EIO, 0), SyncfsSet()
    for folder in (tmp_path, tmp_path, OTHER_TMPFS):
        fd = os.open(folder, os.O_RDONLY)
        restored.add(fd, folder, [b"below"])
        os.close(fd)
    if tmp_path.stat().st_dev == OTHER_TMPFS.stat().st_dev:
        pytest.skip("the tests' folder is on the same filesystem as /dev/shm")
    with pytest.raises(OSError) as lost:
        restored.sync()
    assert (lost.value.errno, lost.value.filename, disks.syncs) == (errno.EIO, str(tmp_path / "below"), 2)
    restored.close()


# A full pool


@pytest.fixture
def reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a pool's folder with both reserves on any filesystem; `commits` has the size of the reserve for data at each commit."""
    (tmp_path / ".btrkeep").mkdir()
    (tmp_path / ".btrkeep" / "reserve").write_bytes(bytes(4096))
    (tmp_path / ".btrkeep" / "reserve-metadata").touch()

    def commit(pool: Path) -> None:
        with (pool / "commits").open("a") as commits:
            commits.write(f"{(pool / '.btrkeep' / 'reserve').stat().st_size}\n")

    monkeypatch.setattr(reserve, "commit", commit)
    return tmp_path


class Writing:
    """Fails with these errors in turn, then succeeds."""

    def __init__(self, *errors: int) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self) -> None:
        self.calls += 1
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_notes_for_which_a_full_pool_has_no_room_take_the_reserve(reserved: Path, number: int) -> None:
    """Without notes btrkeep may delete nothing, so a full pool would stay full."""
    write = Writing(number)
    with_reserve(reserved, write)
    assert write.calls == 2
    assert (reserved / ".btrkeep" / "reserve").stat().st_size == 0
    assert not (reserved / ".btrkeep" / "reserve-metadata").exists()
    assert (reserved / "commits").read_text().splitlines()[-1] == "0"  # the kernel frees the space only then


def test_the_reserve_is_not_spent_on_what_room_does_not_help(reserved: Path) -> None:
    write = Writing(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        with_reserve(reserved, write)
    assert write.calls == 1
    assert (reserved / ".btrkeep" / "reserve").stat().st_size == 4096
    with_reserve(reserved, Writing())
    assert (reserved / ".btrkeep" / "reserve").stat().st_size == 4096


def test_a_pool_that_is_full_even_without_its_reserve_reports_that(reserved: Path) -> None:
    write = Writing(errno.ENOSPC, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        with_reserve(reserved, write)
    assert write.calls == 2
    give_back(reserved)  # there is nothing left to free, which is not an error


@pytest.mark.parametrize(
    ("number", "calls", "succeeds"), [(errno.ENOSPC, 3, True), (errno.EPERM, 1, False), (errno.ENOTEMPTY, 1, False)]
)
def test_a_deletion_on_a_full_pool_is_tried_again_after_a_commit_and_any_other_error_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, calls: int, succeeds: bool
) -> None:
    asked, commits = list[int](), list[int]()

    def destroy(_fd: int, _request: int, arguments: bytearray) -> int:
        asked.append(len(arguments))
        if len(asked) < 3:
            raise OSError(number, os.strerror(number))
        return 0

    monkeypatch.setattr(subvolume, "ioctl", destroy)
    monkeypatch.setattr("btrfs.ioctl.sync", commits.append)
    monkeypatch.setattr(subvolume, "_PAUSE", 0)
    monkeypatch.setattr("btrfs.ioctl.ino_lookup", lambda _fd: SimpleNamespace(treeid=5))
    data = struct.pack("<Q", tmp_path.stat().st_ino)
    monkeypatch.setattr(subvolume, "search_v2", lambda *_: [(None, data)])
    if succeeds:
        subvolume.delete(tmp_path, 300)
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            subvolume.delete(tmp_path, 300)
    assert (len(asked), len(commits)) == (calls, calls - 1)


# Balances


def answering(result: int = 0, *, expected: int = 1, completed: int = 1) -> Callable[..., int]:
    """Answers BTRFS_IOC_BALANCE_V2 as the kernel does."""

    def answer(_fd: int, _request: int, arguments: bytearray) -> int:
        struct.pack_into("=QQQ", arguments, 16 + 3 * 136, expected, expected, completed)
        return result

    return answer


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        (answering(11), errno.EINPROGRESS),  # BTRFS_ERROR_DEV_EXCL_RUN_IN_PROGRESS, for example while a device is added
        (answering(completed=0), errno.ETXTBSY),  # a swap file: the kernel calls that a success
        (failing(errno.ECANCELED), errno.ECANCELED),
        (failing(errno.ENOSPC), errno.ENOSPC),
    ],
)
def test_a_block_group_that_was_not_moved_is_an_error(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[..., int], number: int
) -> None:
    """Otherwise success would count as freed space, and the balancer would run for ever."""
    monkeypatch.setattr(balance_ioctl, "ioctl", answer)
    with pytest.raises(OSError) as refused:
        balance_block_group(3, 1 << 30, 1)
    assert refused.value.errno == number


def test_a_block_group_that_exists_no_longer_was_not_moved_and_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance_ioctl, "ioctl", answering(expected=0, completed=0))
    assert balance_block_group(3, 1 << 30, 1) == 0
    monkeypatch.setattr(balance_ioctl, "ioctl", answering())
    assert balance_block_group(3, 1 << 30, 1) == 1


class Balancing:
    """A kernel that balances the block group at `address`; `cancelled`: number of requests to cancel."""

    def __init__(self, address: int, *, ends_meanwhile: bool = False) -> None:
        self.address, self.ends_meanwhile, self.cancelled = address, ends_meanwhile, 0

    def __call__(self, _fd: int, request: int, arguments: object) -> int:
        if request == ioctl.IOC_BALANCE_PROGRESS:
            assert isinstance(arguments, bytearray)
            struct.pack_into("=QQ", arguments, 0, 1, 1)
            struct.pack_into("=QLL7Q", arguments, 16, 0, 0, 100, 0, 0, 0, self.address, self.address + 1, 0, 16)
            return 0
        if self.ends_meanwhile:
            failing(errno.ENOTCONN)()
        self.cancelled += 1
        return 0


def test_only_our_own_balance_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator's balance may have run for days."""
    kernel = Balancing(1 << 30)
    monkeypatch.setattr(balance_ioctl, "ioctl", kernel)
    assert not cancel_balance(3, 2 << 30)
    assert kernel.cancelled == 0
    assert cancel_balance(3, 1 << 30)
    assert cancel_balance(3)
    assert kernel.cancelled == 2


def test_a_balance_that_ends_while_it_is_cancelled_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance_ioctl, "ioctl", Balancing(1 << 30, ends_meanwhile=True))
    assert not cancel_balance(3)
    monkeypatch.setattr(balance_ioctl, "ioctl", failing(errno.ENOTCONN))
    assert balance_now(3) is None
    assert not cancel_balance(3)
    monkeypatch.setattr(balance_ioctl, "ioctl", failing(errno.EPERM))
    with pytest.raises(PermissionError):
        balance_now(3)


def test_what_an_old_kernel_does_not_report_is_unknown_and_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`()` as the missing devices would mean that all are present. Exclusive operations are reported at the start of a balance."""
    monkeypatch.setattr(balance_ioctl, "SYSFS", tmp_path)
    monkeypatch.setattr(balance_ioctl, "filesystem_uuid", lambda _path: "u")
    assert missing_devices(tmp_path) is None
    assert exclusive_operation(tmp_path) == "none"
    for devid, is_missing in ((1, "0"), (3, "1"), (2, "1")):
        (tmp_path / "u" / "devinfo" / str(devid)).mkdir(parents=True)
        (tmp_path / "u" / "devinfo" / str(devid) / "missing").write_text(f"{is_missing}\n")
    (tmp_path / "u" / "devinfo" / "4").mkdir()  # removed between the two reads
    (tmp_path / "u" / "exclusive_operation").write_text("balance paused\n")
    assert missing_devices(tmp_path) == (2, 3)
    assert exclusive_operation(tmp_path) == "balance paused"


@pytest.mark.parametrize(
    ("number", "runs"), [(None, True), (errno.ENOTCONN, False), (errno.ENODEV, False), (errno.EACCES, False), (errno.EIO, None)]
)
def test_whether_a_scrub_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, runs: bool | None) -> None:
    monkeypatch.setattr(activity, "ioctl", failing(number) if number else lambda *_: 0)
    monkeypatch.setattr(activity, "exclusive_operation", lambda _path: "none")
    if runs is None:
        with pytest.raises(OSError, match="Input/output"):
            activity.read_activity(tmp_path, [1])
    else:
        assert activity.read_activity(tmp_path, [1]) == (("scrub",) if runs else ())


# Mounts


def mount(**fields: Any) -> Mount:
    (first, *_) = real_mounts()
    return replace(first, **fields)


def all_mounted(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Simulates these properties of every mount of this machine, in place of those that the product reads from the kernel."""
    monkeypatch.setattr(mounts, "mounts", lambda: [replace(each, **fields) for each in real_mounts()])


def test_a_kernel_without_fspick_is_given_all_flags_of_the_mount_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mount(2) drops each flag that is not passed: a pool would lose nosuid, nodev and noexec at each expiry."""
    flags = ("rw", "nosuid", "nodev", "noexec", "relatime")
    all_mounted(monkeypatch, filesystem="btrfs", mount_options=flags, super_options=("rw", "ssd"))
    given: list[tuple[int, tuple[str, ...]]] = []
    monkeypatch.setattr(mounts, "remount", lambda mount, words: given.append((remount_flags(mount), words)))
    monkeypatch.setattr(mounts, "reconfigure", failing(errno.ENOSYS))
    set_allocator(tmp_path, "nossd")
    assert given == [(0x20 | 0x2 | 0x4 | 0x8 | 0x200000, ("nossd",))]
    monkeypatch.setattr(mounts, "reconfigure", failing(errno.EPERM))
    with pytest.raises(PermissionError):
        set_allocator(tmp_path, "nossd")
    assert len(given) == 1


def test_a_bind_mount_that_is_read_only_by_itself_is_never_used_to_remount_the_filesystem() -> None:
    """mount(2) would make the whole pool read-only."""
    with pytest.raises(OSError, match="name another of its mounts") as refused:
        remount(mount(mount_options=("ro", "noatime"), super_options=("rw",)), ("nossd",))
    assert refused.value.errno == errno.EROFS


def test_only_options_of_a_btrfs_are_switched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="discard"):
        set_allocator(tmp_path, "discard")
    all_mounted(monkeypatch, filesystem="ext4")
    monkeypatch.setattr(mounts, "reconfigure", failing(errno.EXDEV))
    with pytest.raises(OSError, match="it is not a btrfs"):
        set_allocator(tmp_path, "nossd")


def test_what_is_mounted_for_a_unit_alone_is_not_taken_for_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit with ProtectHome= sees an empty folder where the machine has a full one: btrkeep must not back it up as empty."""
    own = mount(device="0:99", root="/", target=tmp_path)
    monkeypatch.setattr(mounts, "mount_of", lambda _path: own)
    machine: list[Mount] = []
    monkeypatch.setattr(mounts, "mounts", lambda pid: machine if pid == 1 else [own])
    assert not is_machines(tmp_path)
    assert machine_mount(tmp_path) is own  # the parent process mounted it only for us
    machine.append(mount(device="0:99", root="/", target=Path("/elsewhere")))
    assert not is_machines(tmp_path)
    assert machine_mount(tmp_path) is None
    machine.append(mount(device="0:99", root="/", target=tmp_path))
    assert is_machines(tmp_path)
    assert machine_mount(tmp_path) is machine[-1]
    monkeypatch.setattr(mounts, "mounts", failing(errno.EACCES))  # processes of others are hidden
    assert not is_machines(tmp_path)
    assert machine_mount(tmp_path) is None


# Temporary devices of a pool


FILE = TemporaryDevice(Path("/srv/file"), is_file=True, size=1 << 30)
RECORD = TemporaryRecord("u", "2026-03-01T22:00:00Z", 1 << 30, (FILE,), 5, is_returning=True, round=2, lasting=("a",), added=("b",))


def test_the_record_of_temporary_devices_comes_back_as_it_was_written(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    assert left_devices(tmp_path) == ()
    write_record(tmp_path, RECORD)
    assert read_record(tmp_path) == RECORD
    assert left_devices(tmp_path) == ("/srv/file",)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 2}', '{"format": 1, "devices": [{}]}', '{"format": 1, "devices": []}']
)
def test_a_record_that_cannot_be_understood_is_reported_and_not_taken_for_none(tmp_path: Path, text: str) -> None:
    """A pool that uses a file in memory as a device is lost with the next restart."""
    path = tmp_path / "temporary-devices.json"
    path.write_text(text)
    with pytest.raises(OperatorError, match="is invalid") as refused:
        read_record(tmp_path)
    assert "`btrfs filesystem show`" in (refused.value.hint or "")
    assert left_devices(tmp_path) == (str(path),)
    assert path.read_text() == text


def test_a_record_of_another_version_is_not_guessed(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    path = tmp_path / "temporary-devices.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(OperatorError, match="another version wrote it"):
        read_record(tmp_path)


def test_a_record_on_storage_that_does_not_answer_is_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary_devices, "answers", lambda _path: False)
    with pytest.raises(OperatorError, match="does not answer"):
        read_record(tmp_path)


def test_files_and_missing_devices_are_never_the_same_device(tmp_path: Path) -> None:
    """The same device is emptied and removed from the pool."""
    (tmp_path / "file").touch()
    assert not is_same_device(tmp_path / "file", tmp_path / "file")
    assert not is_same_device(tmp_path / "file", None)
    assert not is_same_device(tmp_path / "missing", tmp_path / "file")
    assert not is_same_device(Path("/dev/null"), Path("/dev/null"))
