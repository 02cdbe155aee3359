"""Enables and disables simple quotas on the pool's filesystem, and lists problems and costs first.

Nothing enables them automatically: kernels before 6.7 cannot mount the filesystem afterwards.
"""

import platform
import re
import shlex
from dataclasses import dataclass
from datetime import datetime

from backupd.repo.final_backups import unfinished
from backupd.repo.pool_files import hosts_of
from btrkeep.config import Config
from btrkeep.errors import OperatorError
from btrkeep.fs.openat import is_there
from btrkeep.pool import qgroups
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.process.programs import ProgramFailed, run

_PROGRAMS = (6, 7)
"""The first version of btrfs-progs with simple quotas."""


@dataclass(frozen=True, slots=True)
class QuotaState:
    """The state of simple quotas."""

    mode: str
    """See btrkeep.pool.qgroups."""
    since: datetime | None
    """When they were enabled; None: unknown, or they are off."""
    ever_on: bool
    """True if the filesystem has the feature, which stays after they are disabled."""
    referenced_bytes: dict[str, int]
    """Counted bytes by host."""
    limits: dict[str, int]
    """The quota in bytes, by host."""


def read_state(config: Config, pool: Pool) -> QuotaState:
    """Raises OSError, OperatorError."""
    mode = qgroups.mode(pool.filesystem)
    return QuotaState(
        mode=mode,
        since=qgroups.since(pool) if mode == qgroups.SIMPLE else None,
        ever_on=qgroups.was_ever_on(pool.filesystem),
        referenced_bytes=qgroups.live_bytes(pool),
        limits={host.name: host.quota for host in config.every_host.values() if host.quota is not None},
    )


def costs(kernel: str, version: str) -> tuple[str, ...]:
    """Returns the costs of enabling simple quotas, one sentence each, the most serious first. `kernel`, `version`: the releases of
    this machine's Linux and btrfs-progs.
    """
    older = (
        "kernels before 6.7 can no longer mount the filesystem, and btrfs-progs before 6.7 cannot check or repair it; "
        f"this machine has Linux {kernel} and btrfs-progs {version}"
    )
    stays = (
        "`backupd quota disable` ends the counting, but the filesystem stays incompatible; only `btrfstune "
        "--remove-simple-quota` of a recent btrfs-progs changes that, on the unmounted filesystem"
    )
    moved = (
        "a balance, by btrfs-balancer or by the kernel's own reclaim, counts the data it moves for other hosts (Linux 6.18); the "
        "counted bytes are then only a hint, and a quota may stop a host because of another host's data"
    )
    later = "only data written from then on is counted: a host's counted bytes are too few until its older backups are deleted"
    slower = "nights and deletions may take a few percent longer, and the kernel keeps about 2 KiB in memory for each subvolume"
    return older, stays, moved, later, slower


def programs() -> tuple[str, bool]:
    """The version of this machine's btrfs-progs, and whether it can check and repair a filesystem that has had simple quotas."""
    try:
        output = run(("btrfs", "--version")).stdout
    except ProgramFailed:
        return "none", False
    version = re.search(r"v(\d+(?:\.\d+)+)", output)
    return (version[1], tuple(map(int, version[1].split("."))) >= _PROGRAMS) if version else ("unknown", False)


def require_enableable(pool: Pool) -> None:
    """Raises OperatorError if simple quotas cannot be enabled."""
    if not qgroups.is_known_to_kernel():
        raise OperatorError(
            f"Linux {platform.release()} has no simple quotas", "they need Linux 6.7; all other functions work without them"
        )
    if qgroups.mode(pool.filesystem) == qgroups.FULL:
        raise OperatorError("qgroups are switched on, which simple quotas would replace", _disabling(pool))
    qgroups.require_numbers(pool)


def enable(pool: Pool, now: datetime) -> None:
    """Switches them on; data that runs write from now on is counted. Raises OperatorError, OSError."""
    require_enableable(pool)
    qgroups.enable(pool, now)
    for host in hosts_of(pool):
        path = pool.host(host) / WORKING
        if is_there(path) and (subvolume := unfinished(path, host)) and not subvolume.read_only:
            qgroups.join(pool, host, subvolume.id)


def require_disableable(pool: Pool) -> None:
    """Raises OperatorError if the filesystem has qgroups of other programs, which would be lost too."""
    if qgroups.mode(pool.filesystem) == qgroups.FULL:
        raise OperatorError("the filesystem has qgroups, not simple quotas", _disabling(pool))
    if others := qgroups.foreign_groups(pool):
        raise OperatorError(
            f"the filesystem has qgroups that do not belong to this pool: {', '.join(others[:3])}", _disabling(pool)
        )


def _disabling(pool: Pool) -> str:
    return f"if they are not needed: `btrfs quota disable {shlex.quote(str(pool.path))}`"
