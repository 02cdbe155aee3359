"""Whether a filesystem may be balanced at all. Everything that speaks against it is told before anything is done."""

from pathlib import Path

from btrkeep.errors import LockHeld, OperatorError, PoolUnusable
from btrkeep.pool.balance import balance_now, missing_devices
from btrkeep.pool.mounts import mount_of
from btrkeep.units import counted


def refuse_unfit(path: Path) -> None:
    """Raises PoolUnusable: it is mounted read-only, or without some of its devices."""
    mount = mount_of(path)
    if "ro" in mount.super_options:
        raise PoolUnusable(
            f"the btrfs at {path} is read-only", f"`mount -o remount,rw {mount.target}`; dmesg says if an error made it so"
        )
    if "ro" in mount.mount_options:
        raise PoolUnusable(
            f"{mount.target} is a read-only mount", "name another mount point of the same filesystem: `findmnt -t btrfs`"
        )
    if missing := missing_devices(path):
        which = ", ".join(map(str, missing))
        raise PoolUnusable(
            f"the btrfs at {path} is degraded: {counted(len(missing), 'device')} missing ({which})",
            "replace what is missing first: `btrfs replace start`; a balance would write with less redundancy than it should",
        )


def refuse_others(fd: int, path: Path, exclusive: str, by: str) -> OperatorError:
    """The error for a filesystem that somebody else has for himself."""
    found = balance_now(fd) if exclusive == "balance paused" else None
    if found is None:
        who = f", by {by}" if by else ""
        return LockHeld(
            f"{path}: {exclusive} is under way{who}", "wait for it to end, or say --wait; only one such operation can run"
        )
    what = f"a balance of the block group at {found.block_group}" if found.block_group is not None else "a balance"
    return LockHeld(
        f"{path}: {what} is paused, and keeps all others out",
        f"`btrfs balance cancel {path}` ends it, `btrfs balance resume {path}` lets it go on",
    )
