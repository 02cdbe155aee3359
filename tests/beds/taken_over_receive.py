#!/usr/bin/python3 -I
"""Replaces `btrfs receive`, as if a stream had taken it over: tries forbidden actions, and reports those that succeeded as an
error. Each system call has arguments that every kernel rejects, so nothing happens where it is not refused.
"""

import ctypes
import errno
import json
import os
import struct
import sys
from pathlib import Path

CALLS = {
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "clone3": 435, "setns": 308, "fsopen": 430,
    "open_tree": 428, "move_mount": 429, "open_by_handle_at": 304, "ptrace": 101, "process_vm_writev": 311, "pidfd_getfd": 438,
    "bpf": 321, "perf_event_open": 298, "finit_module": 313, "io_uring_setup": 425, "keyctl": 250, "sethostname": 170,
    "quotactl": 179, "prctl": 157, "socket": 41, "connect": 42, "bind": 49, "flock": 73, "setuid": 105, "setsid": 112,
}  # fmt: skip
IOCTLS = {
    "SNAP_DESTROY": 0x5000940F, "SNAP_DESTROY_V2": 0x5000943F, "RESIZE": 0x50009403, "DEFRAG": 0x50009402, "ADD_DEV": 0x5000940A,
    "RM_DEV": 0x5000940B, "BALANCE": 0x5000940C, "SEND": 0x40489426, "QUOTA_CTL": 0xC0109428, "FITRIM": 0xC0185879,
    "SETFLAGS": 0x40086602, "TIOCSTI": 0x5412,
}  # fmt: skip

libc = ctypes.CDLL(None, use_errno=True)
lines = []
for name, number in CALLS.items():
    libc.syscall(number, *(ctypes.c_long(-1) for _ in range(6)))
    if ctypes.get_errno() != errno.ENOSYS:
        lines.append(f"{name}: {os.strerror(ctypes.get_errno())}")
receiving = os.open(sys.argv[-1], os.O_RDONLY)
for name, number in IOCTLS.items():
    libc.ioctl(receiving, ctypes.c_ulong(number), ctypes.c_long(-1))
    if ctypes.get_errno() != errno.ENOTTY:
        lines.append(f"{name}: {os.strerror(ctypes.get_errno())}")
READ_ONLY = ctypes.c_uint64(2)
libc.ioctl(receiving, ctypes.c_ulong(0x5000940E), struct.pack("<q4088s", 0, b"sealed"))  # BTRFS_IOC_SUBVOL_CREATE
sealed = os.open(f"{sys.argv[-1]}/sealed", os.O_RDONLY)
if libc.ioctl(sealed, ctypes.c_ulong(0x4008941A), ctypes.byref(READ_ONLY)):  # BTRFS_IOC_SUBVOL_SETFLAGS: `btrfs receive` needs a 0
    lines.append(f"sealing is refused: {os.strerror(ctypes.get_errno())}")
libc.ioctl(sealed, ctypes.c_ulong(0x80089419), ctypes.byref(flags := ctypes.c_uint64()))  # BTRFS_IOC_SUBVOL_GETFLAGS
if flags.value:
    lines.append("changed whether a subvolume is read-only")
for path in (Path(sys.argv[-1]).parent / "evil", Path(sys.argv[-2]) / "evil", Path("/evil"), Path("/usr/evil")):
    try:
        path.touch()
        lines.append(f"wrote {path}")
    except OSError:
        pass
PLACES = ("/etc", "/root", "/home", "/var", "/proc/1", "/sys", "/dev/disk")
seen = [path for path in PLACES if os.path.lexists(path) and list(Path(path).iterdir())]
sys.stderr.write(f"ERROR: {json.dumps([len(CALLS) + len(IOCTLS), lines, seen])}\n")
sys.exit(1)
