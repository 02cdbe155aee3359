"""Runs `backupd doctor --fix room`: adds temporary devices, moves block groups, and removes the devices again.

`room_plan` decides each step; this module runs it, after recording its state. The pool's locks keep out expiry, nights and
btrfs-balancer; the kernel allows only one balance, resize or change of devices at a time. The devices are files with loop devices,
or devices that the operator names.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from backupd.doctor import room_words as words
from backupd.doctor.room_plan import (
    End,
    MoveBlockGroup,
    Piece,
    PlacedBlockGroup,
    PoolDevice,
    RemoveDevice,
    RoomEnd,
    RoomPlan,
    RoomProgress,
    RoomReading,
    RoomStep,
    Shrink,
    TurnBack,
    TurnForth,
    next_step,
    plan,
)
from btrkeep.checkpoints import Checkpoint
from btrkeep.config import Config
from btrkeep.decisions.pool_health import unallocated_floor
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool.activity import read_activity
from btrkeep.pool.allocation import read_allocation
from btrkeep.pool.balance_ioctl import balance_block_group, missing_devices
from btrkeep.pool.locks import POOL_LOCKS, take_lock
from btrkeep.pool.marker import Pool, is_on
from btrkeep.pool.mounts import mount_of, open_btrfs
from btrkeep.pool.subvolume import commit
from btrkeep.pool.temporary_devices import (
    TemporaryDevice,
    TemporaryRecord,
    block_device,
    delete_record,
    is_same_device,
    loop_of,
    read_record,
    write_record,
)
from btrkeep.process.programs import run
from btrkeep.procfs import sysfs_text
from btrkeep.treescan.block_groups import block_groups, chunks, device_extents
from btrkeep.units import format_time

_LONGEST = 24 * 3600.0  # seconds: a step of the kernel always ends, but may take long
_ROUNDS = 4
_PASSING = (errno.ENOSPC, errno.ETXTBSY)


@dataclass(frozen=True, slots=True)
class RoomFixResult:
    """The result of a repair."""

    plan: RoomPlan
    """The plan before the first step."""
    devices: tuple[TemporaryDevice, ...]
    """The temporary devices."""
    unallocated: int
    """Unallocated bytes of the permanent devices."""
    goal: int
    """The required value of `unallocated`."""
    steps: int = 0
    """Number of steps that were done."""
    reason: RoomEnd = RoomEnd.REACHED
    """Why it ended."""


class RoomFix:
    """One run on a pool. `named`: devices that the administrator named; empty for files in the state folder. `say` prints lines."""

    def __init__(self, config: Config, pool: Pool, now: datetime, named: Sequence[Path], say: Callable[[str], object]) -> None:
        self._state, self._pool, self._now, self._named, self._say = config.pool.state, pool, now, tuple(named), say
        self._progress = RoomProgress()

    def planned(self) -> RoomFixResult:
        """Returns the plan. Raises OperatorError if nothing can be done."""
        record = read_record(self._state)
        self._require_own(record)
        reading = self._read()
        temporary = self._temporary(reading, record)
        room_plan = plan(reading, self._floor(reading, temporary), temporary)
        if room_plan.refusal and (record or room_plan.is_needed):
            raise words.refusal_error(room_plan, self._pool.path)
        if record:
            return RoomFixResult(room_plan, record.devices, room_plan.unallocated, room_plan.goal)
        if not room_plan.is_needed:
            return RoomFixResult(room_plan, (), room_plan.unallocated, room_plan.goal)
        return RoomFixResult(room_plan, self._chosen(room_plan), room_plan.unallocated, room_plan.goal)

    def run(self) -> RoomFixResult:
        """Runs the plan, or continues a killed run. Raises OperatorError."""
        with ExitStack() as held:
            for name in POOL_LOCKS:
                held.enter_context(take_lock(self._pool.locks / name, "doctor --fix room", format_time(self._now)))
            planned = self.planned()
            if not planned.devices:
                return planned
            try:
                return self._work(planned)
            except OSError as error:
                raise PoolUnusable(f"{self._pool.path}: {error.strerror}", words.CONTINUE) from error

    def _work(self, planned: RoomFixResult) -> RoomFixResult:
        record = read_record(self._state)
        if record is None:
            if is_on(self._state, self._pool.filesystem):
                raise words.state_on_pool_error(self._state)
            lasting = tuple(device.uuid for device in self._read().devices)
            goal, started = planned.plan.goal, format_time(self._now)
            record = TemporaryRecord(self._pool.filesystem, started, goal, planned.devices, lasting=lasting)
            write_record(self._state, record)
        if record.highest < 0:
            record = self._add(record)
        return self._steps(record, planned)

    # --- preparation

    def _require_own(self, record: TemporaryRecord | None) -> None:
        if record and record.filesystem != self._pool.filesystem:
            raise words.foreign_record_error(self._state, record.filesystem)
        if record and self._named and {device.path for device in record.devices} != {path.resolve() for path in self._named}:
            raise words.begun_error(record)

    def _chosen(self, room_plan: RoomPlan) -> tuple[TemporaryDevice, ...]:
        if not self._named:
            if is_on(self._state, self._pool.filesystem):
                raise words.state_on_pool_error(self._state)
            return planned_files(self._state, self._pool.filesystem, room_plan.count, room_plan.size)
        if len(set(self._named)) != room_plan.count:
            raise words.number_error(room_plan.count)
        for path in self._named:
            require_empty(path, room_plan.size)
        return tuple(TemporaryDevice(path.resolve(), False) for path in self._named)

    def _add(self, record: TemporaryRecord) -> TemporaryRecord:
        """Adds the devices that are not part of the pool yet. If that fails for the first device, its file and the record are
        deleted.
        """
        try:
            for device in record.devices:
                if device.is_file and loop_of(device) is None:
                    make_file(device)
                path = attach(device) if device.is_file else device.path
                if not any(is_same_device(Path(other.path), path) for other in self._read().devices):
                    if not device.is_file:
                        require_empty(path, 0)
                    self._say(words.adding(path, device))
                    with Checkpoint("temporary device added"):
                        run(["btrfs", "device", "add", "--nodiscard", str(path), str(self._pool.path)], timeout=_LONGEST)
        except (OperatorError, OSError):
            self._clear(record)
            raise
        reading = self._read()
        added = tuple(device.uuid for device in reading.devices if device.uuid not in record.lasting)
        record = replace(record, highest=max((group.vaddr for group in reading.groups), default=0), added=added)
        write_record(self._state, record)
        return record

    def _clear(self, record: TemporaryRecord) -> None:
        """Deletes files and the record, if no temporary device is part of the pool."""
        with suppress(OperatorError, OSError):
            if not self._temporary(self._read(), record):
                for device in record.devices:
                    drop(device)
                delete_record(self._state)

    # --- the steps

    def _steps(self, record: TemporaryRecord, planned: RoomFixResult) -> RoomFixResult:
        reason, count = RoomEnd.REACHED, 0
        while True:
            reading = self._read()
            temporary = self._temporary(reading, record)
            self._progress.note(reading, temporary)
            step = next_step(
                reading,
                temporary,
                record.goal,
                record.highest,
                is_returning=record.is_returning,
                is_last_round=record.round >= _ROUNDS,
                progress=self._progress,
            )
            if isinstance(step, End):
                if step.reason is RoomEnd.STUCK:
                    raise words.stuck_error(record, self._pool.path)
                break
            if isinstance(step, TurnBack):
                reason, record = step.reason, replace(record, is_returning=True)
                self._progress = RoomProgress()
                write_record(self._state, record)
                self._say(words.turning(step.reason))
                continue
            if isinstance(step, TurnForth):
                for devid in temporary:
                    run(["btrfs", "filesystem", "resize", f"{devid}:max", str(self._pool.path)], timeout=_LONGEST)
                highest = max(group.vaddr for group in reading.groups)
                record = replace(record, is_returning=False, highest=highest, round=record.round + 1)
                self._progress = RoomProgress()
                write_record(self._state, record)
                self._say(words.ANOTHER_ROUND)
                continue
            count += 1
            self._do(step)
        for device in record.devices:
            drop(device)
        delete_record(self._state)
        unallocated = self._read().usable(())
        if unallocated < record.goal:
            raise words.below_goal_error(unallocated, record.goal, reason)
        return RoomFixResult(planned.plan, record.devices, unallocated, record.goal, count, reason)

    def _do(self, step: RoomStep) -> None:
        pool = str(self._pool.path)
        match step:
            case MoveBlockGroup():
                self._say(words.moving(step))
                self._move(step)
            case Shrink(devid, size):
                with Checkpoint("temporary device shrunk"):
                    run(["btrfs", "filesystem", "resize", f"{devid}:{size}", pool], timeout=_LONGEST)
            case RemoveDevice(devid):
                self._say(words.removing(devid))
                with Checkpoint("temporary device removed"):
                    run(["btrfs", "device", "remove", str(devid), pool], timeout=_LONGEST)

    def _move(self, step: MoveBlockGroup) -> None:
        progress = self._progress
        progress.moved.add(step.vaddr)
        progress.returned += step.back
        progress.empty += step.back and not step.used
        try:
            with open_btrfs(self._pool.path) as fd:
                try:
                    balance_block_group(fd, step.vaddr, step.flags)
                except OSError as error:
                    if error.errno not in _PASSING:
                        raise
                    progress.failed.add(step.vaddr)
                    self._say(words.not_moved(step, error))
        finally:
            with suppress(OSError):
                commit(self._pool.path)

    # --- the filesystem

    def _floor(self, reading: RoomReading, temporary: Sequence[int]) -> int:
        sizes = [device.size for device in reading.devices if device.devid not in temporary]
        return unallocated_floor(min(sizes, default=0) if "raid1" in reading.profiles else sum(sizes))

    def _temporary(self, reading: RoomReading, record: TemporaryRecord | None) -> tuple[int, ...]:
        if record is None:
            return ()
        if record.added:
            return tuple(device.devid for device in reading.devices if device.uuid in record.added)
        paths = [path for device in record.devices if (path := block_device(device))]
        new = [device for device in reading.devices if device.uuid not in record.lasting]
        return tuple(device.devid for device in new if any(is_same_device(Path(device.path), path) for path in paths))

    def _read(self) -> RoomReading:
        """Reads the pool, after a commit: only what is committed can be seen in the trees."""
        path = self._pool.path
        with suppress(OSError):
            commit(path)
        allocation = read_allocation(path)
        devids = [device.devid for device in allocation.devices]
        activity = read_activity(path, devids)
        with open_btrfs(path) as fd:
            placed = _placed(fd)
        return RoomReading(
            devices=tuple(PoolDevice(device.devid, device.size, device.path, device.uuid) for device in allocation.devices),
            groups=placed,
            profiles=frozenset(space.profile for space in allocation.spaces if space.total),
            busy=", ".join(activity),
            read_only="ro" in mount_of(path).super_options,
            missing=missing_devices(path) or (),
        )


def _placed(fd: int) -> tuple[PlacedBlockGroup, ...]:
    all_chunks = chunks(fd)
    extents = device_extents(fd)
    pieces: dict[int, list[Piece]] = {}
    columns = (extents.vaddr.tolist(), extents.devid.tolist(), extents.paddr.tolist(), extents.length.tolist())
    for vaddr, devid, start, length in zip(*columns, strict=True):
        pieces.setdefault(vaddr, []).append(Piece(devid, start, length))
    groups = block_groups(fd, all_chunks)
    rows = zip(groups.vaddr.tolist(), groups.length.tolist(), groups.used.tolist(), groups.flags.tolist(), strict=True)
    return tuple(PlacedBlockGroup(vaddr, length, used, flags, tuple(pieces.get(vaddr, ()))) for vaddr, length, used, flags in rows)


def attach_left(state: Path) -> tuple[Path, ...]:
    """Attaches the files of recorded temporary devices again after a restart, so that the pool can be mounted. Raises
    OperatorError.
    """
    record = read_record(state)
    paths = []
    for device in record.devices if record else ():
        if device.is_file and device.path.exists():
            paths.append(attach(device))
            run(["btrfs", "device", "scan", str(paths[-1])], check=False)
    return tuple(paths)


_FILE = "temporary-device-{number}"
_SYS = Path("/sys/class/block")
_FORGETFUL = ("tmpfs", "ramfs", "overlay")
_PERSISTENT = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs")
_SPARE = 1 << 30  # bytes that stay free on the filesystem of the files; for small files a tenth of their size
_NOTHING_FOUND = 2  # exit status of blkid -p


def planned_files(folder: Path, filesystem: str, count: int, size: int) -> tuple[TemporaryDevice, ...]:
    """Returns the devices that `make_file` will create in a folder. Raises OperatorError if the folder is not suitable."""
    folder = folder.resolve()  # the kernel reports the file of a loop device without symlinks
    kind = mount_of(folder).filesystem
    use = "name an empty device with --device"
    if is_on(folder, filesystem):
        raise OperatorError(f"{folder} is on the pool itself: a temporary device cannot be there", use)
    if kind not in _PERSISTENT:
        why = "a restart would lose it" if kind in _FORGETFUL else "a temporary device must be on a local disk"
        raise OperatorError(f"{folder} is on {kind}: {why}", use)
    statvfs_result, needed = os.statvfs(folder), count * size
    if statvfs_result.f_bavail * statvfs_result.f_frsize < needed + min(_SPARE, needed // 10):
        raise OperatorError(f"{folder} does not have {needed >> 20:,} MiB free for a temporary device", use)
    devices = tuple(TemporaryDevice(folder / _FILE.format(number=number), True, size) for number in range(1, count + 1))
    if existing := [device.path for device in devices if os.path.lexists(device.path)]:  # the fix records its own first
        raise OperatorError(f"{existing[0]} exists already, but is not recorded", f"move it away, or {use}")
    return devices


@Checkpoint("temporary file made")
def make_file(device: TemporaryDevice) -> None:
    """Creates the file of a recorded device with all of its blocks allocated, so that the disk below the pool cannot become full.
    Raises OSError.

    An empty file is left by a killed process, and is created again. A file with content is kept, because the pool may use it.
    """
    if device.path.exists() and _content(device.path):
        return
    device.path.unlink(missing_ok=True)
    with ClosingFd(os.open(device.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)) as fd:
        os.posix_fallocate(fd, 0, device.size)
        os.fsync(fd)


@Checkpoint("temporary file attached")
def attach(device: TemporaryDevice) -> Path:
    """Returns the loop device of the file, attaching one if needed. Raises OperatorError.

    Discards are disabled: they would free blocks of the file.
    """
    loop = loop_of(device)
    if loop is None:
        loop = Path(run(["losetup", "--find", "--show", str(device.path)]).stdout.strip())
    with contextlib.suppress(OSError):  # a kernel without this file does not discard
        (Path("/sys/block") / loop.name / "queue" / "discard_max_bytes").write_text("0")
    return loop


@Checkpoint("temporary file deleted")
def drop(device: TemporaryDevice) -> None:
    """Detaches the loop device of a file and deletes the file; a named device is not changed. Raises OperatorError, OSError.

    The kernel wipes a device that it removes from a filesystem. A file with any content is still part of a filesystem.
    """
    if not device.is_file:
        return
    if device.path.exists() and (content := _content(device.path)):
        raise OperatorError(
            f"{device.path} is not deleted, because it is not empty: {content}", "`losetup --list` shows what uses it"
        )
    if loop := loop_of(device):
        run(["losetup", "--detach", str(loop)])
    device.path.unlink(missing_ok=True)


def require_empty(path: Path, size: int) -> None:
    """Raises OperatorError unless it is an unused block device of at least this size, without recognisable content."""
    choose = "name another, empty device"
    try:
        if not stat.S_ISBLK(path.stat().st_mode):
            raise OperatorError(f"{path} is not a block device", choose)
        fd = os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        why = "it is in use" if error.errno == errno.EBUSY else error.strerror
        raise OperatorError(f"{path}: {why}", choose) from error
    with ClosingFd(fd):
        length = os.lseek(fd, 0, os.SEEK_END)
    folder = _SYS / path.resolve().name
    if length < size:
        raise OperatorError(f"{path} has {length >> 20:,} MiB, but {size >> 20:,} MiB are needed", choose)
    if sysfs_text(folder / "ro") == "1":
        raise OperatorError(f"{path} is read-only", choose)
    if holders := _names(folder / "holders"):
        raise OperatorError(f"{path} is in use by {', '.join(holders)}", choose)
    if any((folder / name / "partition").exists() for name in _names(folder)):
        raise OperatorError(f"{path} has partitions", choose)
    if content := _content(path):
        raise OperatorError(f"{path} is not empty: {content}", choose)


def _content(path: Path) -> str:
    """Returns the content that blkid finds on a device or in a file, "" for none."""
    probed = run(["blkid", "--probe", str(path)], check=False)
    if probed.returncode == _NOTHING_FOUND:
        return ""
    return (probed.stdout or probed.stderr).strip() or f"blkid ended with {probed.returncode}"


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
