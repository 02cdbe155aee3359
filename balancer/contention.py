"""Whether a filesystem may be balanced at all, and what else is in progress on it: an exclusive operation, or backups.
Only reads.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from balancer.survey import filesystem_uuid
from btrkeep.errors import ConfigError, LockHeld, OperatorError, PoolUnusable
from btrkeep.pool.balance_ioctl import balance_now, exclusive_operation, missing_devices
from btrkeep.pool.locks import BALANCE_LOCK, Holder, read_holder, take_lock
from btrkeep.pool.marker import MARKER, is_on
from btrkeep.pool.mounts import mount_of
from btrkeep.process.proc import has_locked, members, start_time
from btrkeep.procfs import mounts
from btrkeep.units import counted, format_time

_LOCKS = "locks"
_EXPIRY = "expire"
_BACKUPS = ("night", _EXPIRY)  # and a lock for each host
_HOST = "host-"
_PROGRAMS = (b"btrfs", b"btrfs-balancer", b"balancer")


def lock_folders(path: Path, filesystem: str, more: Iterable[Path] = ()) -> tuple[Path, ...]:
    """Returns the lock folders of pools on this filesystem (a UUID): below mount points, above `path`, and of configured pools."""
    tops = [mount.target for mount in mounts() if mount.filesystem == "btrfs"]
    above = path.resolve()
    tops += [above, *above.parents, *_configured()]
    folders = dict.fromkeys(top / MARKER / _LOCKS for top in tops)
    return (*(folder for folder in folders if _is_there(folder, filesystem)), *more)


def _is_there(folder: Path, filesystem: str) -> bool:
    try:
        return folder.is_dir() and is_on(folder, filesystem)
    except OSError:  # a mount point without permission, or just unmounted
        return False


def _configured() -> Iterator[Path]:
    """Yields the top folders of all configured pools."""
    from btrkeep.config import reading  # importing it takes longer than scanning a filesystem, and few machines have pools

    for file in sorted(reading.FOLDER.glob("[!.]*.toml")):
        with suppress(ConfigError):  # the search for the catalogue reports it
            yield reading.load_usable(file=file).pool.path


def backups_at_work(folders: Iterable[Path], *, only_expiry: bool = False) -> str | None:
    """Returns in words who makes or expires backups, or None. `only_expiry`: only expiries count.

    Reads the text of the locks: taking a lock, even for a moment, could make a backup fail.
    """
    for folder in folders:
        for file in [folder / _EXPIRY] if only_expiry else _held(folder):
            holder = read_holder(file)
            if holder and _is_running(holder, file):
                return f"{holder.what} (process {holder.pid})"
    return None


@contextmanager
def lock_out_expiries(folders: Iterable[Path], now: datetime) -> Iterator[None]:
    """Prevents expiries of these pools from deleting, by taking their locks. Raises LockHeld, PoolUnusable."""
    with ExitStack() as held:
        for folder in folders:
            held.enter_context(take_lock(folder / BALANCE_LOCK, "btrfs-balancer", format_time(now)))
        yield


def _held(folder: Path) -> Iterator[Path]:
    """Yields locks of backups that are not empty; a lock is emptied when it is released."""
    with suppress(OSError):  # the pool was unmounted, or is being created
        yield from (folder / name for name in _BACKUPS if (folder / name).exists())
        yield from (
            Path(lock_file.path)
            for lock_file in os.scandir(folder)
            if lock_file.name.startswith(_HOST) and lock_file.stat().st_size
        )


def _is_running(holder: Holder, file: Path) -> bool:
    if holder.is_alive:
        return True
    with suppress(OSError):  # a receiver that outlived a killed run still writes
        return bool(holder.group) and any(has_locked(member.pid, file.stat()) for member in members(holder.group))
    return False


def operation_and_who(path: Path) -> tuple[str, str]:
    """Returns the exclusive operation in progress, usually "none", and its process: "process 123: btrfs balance start
    /x", or "".
    """
    operation = exclusive_operation(path)
    return (operation, "") if operation in ("none", "balance paused") else (operation, _user_of(path))


def _user_of(path: Path) -> str:
    filesystem = filesystem_uuid(path)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                words = Path(entry.path, "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                if _is_such(words) and start_time(int(entry.name)) and _is_on_it(Path(entry.path, "fd"), filesystem):
                    return f"process {entry.name}: {b' '.join(words).decode('utf-8', 'backslashreplace')}"
    return ""


def _is_such(words: list[bytes]) -> bool:
    return any(word.rpartition(b"/")[2] in _PROGRAMS for word in words[:3])


def _is_on_it(folder: Path, filesystem: str) -> bool:
    for entry in os.scandir(folder):
        with suppress(OSError):
            if Path(entry.path).is_dir() and is_on(Path(entry.path), filesystem):
                return True
    return False


def require_balanceable(path: Path) -> None:
    """Raises PoolUnusable if the filesystem is mounted read-only, or without some of its devices."""
    mount = mount_of(path)
    if "ro" in mount.super_options:
        raise PoolUnusable(
            f"the btrfs at {path} is read-only",
            f"check dmesg for an error that made it read-only, then run `mount -o remount,rw {mount.target}`",
        )
    if "ro" in mount.mount_options:
        raise PoolUnusable(
            f"{mount.target} is a read-only mount", "name another mount point of the same filesystem: `findmnt -t btrfs` lists them"
        )
    if missing := missing_devices(path):
        which = ", ".join(map(str, missing))
        raise PoolUnusable(
            f"the btrfs at {path} is degraded: {counted(len(missing), 'device')} missing ({which})",
            "replace the missing device first, with `btrfs replace start`: a balance now would write with too little redundancy",
        )


def under_way_error(fd: int, path: Path, exclusive: str, by: str) -> OperatorError:
    """Returns the error for a filesystem with another exclusive operation."""
    balance = balance_now(fd) if exclusive == "balance paused" else None
    if balance is None:
        who = f", by {by}" if by else ""
        return LockHeld(
            f"{path}: {exclusive} is running{who}", "wait for it to end, or add --wait; only one such operation can run at a time"
        )
    description = f"a balance of the block group at {balance.block_group}" if balance.block_group is not None else "a balance"
    return LockHeld(
        f"{path}: {description} is paused, and blocks all others",
        f"`btrfs balance cancel {path}` ends it, `btrfs balance resume {path}` continues it",
    )
