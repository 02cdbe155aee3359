"""Balances one block group at a time, and finds other exclusive operations.

The ioctl blocks until the block group is relocated. Another process can cancel it by BALANCE_CTL, and a fatal signal also cancels
it (Linux 6.18: nothing remains after kill -9). A balance that was paused, or that a power cut interrupted and a mount with
skip_balance did not resume, stays "paused" and blocks all other exclusive operations.

Layouts: struct btrfs_ioctl_balance_args and btrfs_balance_args in linux/btrfs.h. python-btrfs's balance_v2 also packs them, but
hides the result of the ioctl, which is positive if, for example, a device is being added.
"""

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from struct import Struct

from btrfs import ioctl as numbers

from btrkeep.checkpoints import Checkpoint
from btrkeep.pool.marker import SYSFS, filesystem_uuid

_SYSTEM, _METADATA = 1 << 1, 1 << 2  # BTRFS_BLOCK_GROUP_SYSTEM, BTRFS_BLOCK_GROUP_METADATA
_FLAGS = Struct("=QQ")  # kinds of block groups, and the state
# profiles, usage (as two), devid, pstart, pend, vstart, vend, target, flags, limit and stripes (as two each), unused
_FILTER = Struct("=QLL7Q4L48x")
_DATA_AT = _FLAGS.size
_METADATA_AT = _DATA_AT + _FILTER.size
_SYSTEM_AT = _METADATA_AT + _FILTER.size
_COUNTS = Struct("=QQQ")  # expected, considered, completed
_COUNTS_AT = _METADATA_AT + 2 * _FILTER.size
_NO_END = (1 << 64) - 1
_RUNNING = 1  # BTRFS_BALANCE_STATE_RUNNING


@dataclass(frozen=True, slots=True)
class BalanceNow:
    """A running or paused balance. `vrange`: its range of virtual addresses; None if it is not limited to one."""

    paused: bool
    vrange: tuple[int, int] | None

    @property
    def block_group(self) -> int | None:
        """The address of its only block group, if it was started like `balance_block_group`."""
        return self.vrange[0] if self.vrange and self.vrange[1] == self.vrange[0] + 1 else None


@Checkpoint("block group balanced")
def balance_block_group(fd: int, vaddr: int, flags: int) -> int:
    """Relocates exactly the block group at `vaddr`, with these type and profile flags. Blocks until done.

    Returns how many were relocated: 1, or 0 if it no longer exists. Raises OSError: ECANCELED if it was cancelled or paused,
    ENOSPC, ETXTBSY if it contains a swap file, EINPROGRESS if another exclusive operation is running, EROFS, EPERM without
    CAP_SYS_ADMIN.
    """
    arguments = bytearray(numbers.ioctl_balance_args.size)
    filter_ = _FILTER.pack(
        0, 0, 100, 0, 0, _NO_END, vaddr, vaddr + 1, 0, numbers.BALANCE_ARGS_VRANGE, 0, numbers.ULONG_MAX, 0, numbers.ULONG_MAX
    )
    kinds = numbers.BALANCE_DATA
    arguments[_DATA_AT : _DATA_AT + _FILTER.size] = filter_
    if flags & _METADATA:  # with mixed block groups the kernel requires the same arguments for both
        kinds |= numbers.BALANCE_METADATA
        arguments[_METADATA_AT : _METADATA_AT + _FILTER.size] = filter_
    if flags & _SYSTEM:
        kinds |= numbers.BALANCE_SYSTEM
        arguments[_SYSTEM_AT : _SYSTEM_AT + _FILTER.size] = filter_
    _FLAGS.pack_into(arguments, 0, kinds, 0)
    if ioctl(fd, numbers.IOC_BALANCE_V2, arguments):  # BTRFS_ERROR_DEV_EXCL_RUN_IN_PROGRESS
        raise OSError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))
    expected, _, completed = _COUNTS.unpack_from(arguments, _COUNTS_AT)
    if expected > completed:  # the kernel skips a block group that contains a swap file, and returns success
        raise OSError(errno.ETXTBSY, os.strerror(errno.ETXTBSY))
    return int(completed)


def balance_now(fd: int) -> BalanceNow | None:
    """Returns the running or paused balance of the filesystem of `fd`, or None. Raises OSError."""
    arguments = bytearray(numbers.ioctl_balance_args.size)
    try:
        ioctl(fd, numbers.IOC_BALANCE_PROGRESS, arguments)
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            return None
        raise
    state = _FLAGS.unpack_from(arguments, 0)[1]
    fields = _FILTER.unpack_from(arguments, _DATA_AT)
    vrange = (fields[6], fields[7]) if fields[9] & numbers.BALANCE_ARGS_VRANGE else None
    return BalanceNow(not state & _RUNNING, vrange)


def cancel_balance(fd: int, vaddr: int | None = None) -> bool:
    """Cancels the running or paused balance and waits for its end. Returns False if there is none. Raises OSError.

    With `vaddr`, cancels only a balance of that block group.
    """
    balance = balance_now(fd)
    if balance is None or (vaddr is not None and balance.block_group != vaddr):
        return False
    try:
        ioctl(fd, numbers.IOC_BALANCE_CTL, numbers.BALANCE_CTL_CANCEL)
    except OSError as error:
        if error.errno == errno.ENOTCONN:  # it has just ended
            return False
        raise
    return True


def exclusive_operation(path: Path) -> str:
    """Returns the exclusive operation of the filesystem of `path`: "none", "balance", "balance paused", "device add", ... Raises
    OSError.

    Also returns "none" if the kernel does not report it (before Linux 5.10); then starting a balance fails with EINPROGRESS.
    """
    try:
        return (SYSFS / filesystem_uuid(path) / "exclusive_operation").read_text().strip()
    except FileNotFoundError:
        return "none"


def missing_devices(path: Path) -> tuple[int, ...] | None:
    """Returns the numbers of the devices without which the filesystem of `path` is mounted. Raises OSError.

    None if the kernel does not report them: before Linux 5.6, or if /sys is not visible.
    """
    missing = []
    try:
        devices = list((SYSFS / filesystem_uuid(path) / "devinfo").iterdir())
    except FileNotFoundError:
        return None
    for device in devices:
        with suppress(FileNotFoundError):  # removed between the two reads
            if (device / "missing").read_text().strip() == "1":
                missing.append(int(device.name))
    return tuple(sorted(missing))
