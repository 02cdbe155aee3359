"""The cell of a confined program: the arguments for bubblewrap, and the allowed system calls.

docs/decisions/0028-confined-rsync.rst has the reasons.

rsync's cell contains only programs and libraries, read-only, and the folder `data` of the run, in which device nodes and setuid
bits have no effect. There is no /etc, /dev or /run, no other backup, and no process but its own. /proc shows those, and exists
because rsync 3.5 changes the modes of sockets and device nodes through /proc/self/fd, and reports no error if it cannot. rsync has
the capabilities that files need.

The system calls that a confined rsync or `btrfs receive` may make are a seccomp filter (classic BPF, seccomp(2)). rsync keeps
CAP_SYS_ADMIN, which the attributes security.* and trusted.* need: the labels of SELinux, the marks of overlayfs. The filter makes
that capability harmless. Not allowed are: mount, ioctl, socket, bpf, ptrace, setns, io_uring, open_by_handle_at, flock (on the
inherited lock), fallocate (space that no counter of written bytes shows), setsid and setpgid (with which a process would leave the
group that gets signals). fcntl can duplicate descriptors and change their flags, but not leases, owners of signals or the size of
pipes.

`btrfs receive` may also reserve space and use those ioctls of btrfs with which a subvolume is made, found, written to and marked as
a copy: none of them deletes a subvolume, mounts, or waits. The ioctl that makes a subvolume read-only does nothing and reports
success: that saves one commit of the filesystem for each backup, and the snapshot that gets the backup's name is read-only
(docs/decisions/0055). The program that applies a host's stream has three ioctls: clone, encoded write, and punch a
hole.

Calls that are not allowed fail with ENOSYS, as on an older kernel, so that the C library uses its older method; ioctl fails with
ENOTTY, as on a file that is not a terminal.
"""

import errno
import os
import platform
import shutil
import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

from btrkeep.process.programs import environment, program_path

PROGRAM = "bwrap"
_CAPABILITIES = ("CHOWN", "FOWNER", "FSETID", "DAC_OVERRIDE", "SETFCAP", "MKNOD", "SYS_ADMIN")
_SHOWN = ("/usr/bin", "/usr/lib", "/usr/lib64", "/bin", "/lib", "/lib64")
_ADDED = ("/usr/local/bin", "/usr/local/lib")  # if rsync itself is there


def confinement_hint() -> str:
    """Returns what to do on a machine where nothing can be confined: install bubblewrap if it is missing, else allow
    what it needs.
    """
    if not shutil.which(PROGRAM, path=environment()["PATH"]):
        return "`apt install bubblewrap`"
    return (
        "allow namespaces and pidfd_getfd(2): in a container, in the configuration of the container; "
        "otherwise raise `sysctl user.max_user_namespaces`"
    )


def filter_file(*, receives: bool = False, applies: bool = False) -> int:
    """Returns a descriptor from which bubblewrap reads the filter: of rsync, of a program that `receives` subvolumes, or of one
    that `applies` streams to a folder. Raises OSError.
    """
    program_code = seccomp_filter(receives=receives, applies=applies)
    assert program_code is not None
    file = os.memfd_create("seccomp")
    os.write(file, program_code)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def confined_command(command: Sequence[str], data: str | None, calls: int, *, shown: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns `command` in a cell that can write only `data`, and can also read `shown`; `calls`: the descriptor of filter_file().

    The root of the cell is made read-only last: it is in memory, which could be filled otherwise. The cell does not die with its
    parent, which ends together with rsync's first process, while the receiver still has to write the data that has arrived.
    """
    program = program_path(command[0], environment()["PATH"])
    return (
        PROGRAM,
        "--unshare-pid",
        *shown_programs(program),
        *(("--bind", data, data) if data else ()),
        *(word for path in shown for word in ("--ro-bind", path, path)),
        "--proc",
        "/proc",
        "--remount-ro",
        "/proc",
        "--remount-ro",
        "/",
        "--chdir",
        "/",
        "--cap-drop",
        "ALL",
        *(word for name in _CAPABILITIES for word in ("--cap-add", f"CAP_{name}")),
        "--seccomp",
        str(calls),
        "--",
        program,
        *command[1:],
    )


@cache
def shown_programs(program: str = "/usr/bin") -> tuple[str, ...]:
    """Returns the folders of programs and libraries of this machine; a program in another folder is shown alone."""
    folders = [Path(name) for name in (*_SHOWN, *(_ADDED if program.startswith("/usr/local/") else ())) if os.path.lexists(name)]
    words = [
        ("--symlink", str(folder.readlink()), str(folder)) if folder.is_symlink() else ("--ro-bind", str(folder), str(folder))
        for folder in folders
    ]
    if not any(Path(program).is_relative_to(folder) for folder in folders):
        words.append(("--ro-bind", program, program))
    return tuple(word for each in words for word in each)


_BOTH = {  # name: (x86-64, the table that all newer architectures share)
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "mmap": (9, 222),
    "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233), "dup": (32, 23), "nanosleep": (35, 101),
    "getpid": (39, 172), "socketpair": (53, 199), "execve": (59, 221), "exit": (60, 93), "wait4": (61, 260), "kill": (62, 129),
    "uname": (63, 160), "fsync": (74, 82), "fdatasync": (75, 83), "truncate": (76, 45),
    "ftruncate": (77, 46), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "fchmod": (91, 52), "fchown": (93, 55),
    "umask": (95, 166), "gettimeofday": (96, 169), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175),
    "getegid": (108, 177), "getppid": (110, 173), "getpgid": (121, 155), "sigaltstack": (131, 132), "gettid": (186, 178),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "getxattr": (191, 8), "lgetxattr": (192, 9),
    "fgetxattr": (193, 10), "listxattr": (194, 11), "llistxattr": (195, 12), "flistxattr": (196, 13),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "futex": (202, 98),
    "getdents64": (217, 61), "set_tid_address": (218, 96), "restart_syscall": (219, 128), "fadvise64": (221, 223),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "exit_group": (231, 94),
    "tgkill": (234, 131), "openat": (257, 56), "mkdirat": (258, 34), "mknodat": (259, 33), "fchownat": (260, 54),
    "newfstatat": (262, 79), "unlinkat": (263, 35), "renameat": (264, 38), "linkat": (265, 37), "symlinkat": (266, 36),
    "readlinkat": (267, 78), "fchmodat": (268, 53), "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73),
    "set_robust_list": (273, 99), "utimensat": (280, 88), "dup3": (292, 24), "pipe2": (293, 59),
    "renameat2": (316, 276), "getrandom": (318, 278), "statx": (332, 291), "rseq": (334, 293), "close_range": (436, 436),
    "openat2": (437, 437), "faccessat2": (439, 439), "fchmodat2": (452, 452),
}  # fmt: skip
_ONLY_X86 = {
    "open": 2, "stat": 4, "lstat": 6, "poll": 7, "access": 21, "pipe": 22, "select": 23, "dup2": 33, "fork": 57, "vfork": 58,
    "getdents": 78, "rename": 82, "mkdir": 83, "rmdir": 84, "link": 86, "unlink": 87, "symlink": 88, "readlink": 89, "chmod": 90,
    "chown": 92, "lchown": 94, "getpgrp": 111, "utime": 132, "mknod": 133, "arch_prctl": 158, "time": 201, "utimes": 235,
    "futimesat": 261,
}  # fmt: skip
_RECEIVE = {"fallocate": (285, 47), "prlimit64": (302, 261)}
_RECEIVE_ONLY_X86 = {"creat": 85}
_RECEIVE_IOCTLS = {  # from linux/btrfs.h; the numbers include the sizes of the structures
    "SUBVOL_CREATE": 0x5000940E, "SNAP_CREATE_V2": 0x50009417, "SUBVOL_GETFLAGS": 0x80089419, "SET_RECEIVED_SUBVOL": 0xC0C89425,
    "GET_SUBVOL_INFO": 0x81F8943C, "TREE_SEARCH": 0xD0009411, "INO_LOOKUP": 0xD0009412, "FS_INFO": 0x8400941F,
    "CLONE_RANGE": 0x4020940D, "ENCODED_WRITE": 0x40809440,
}  # fmt: skip
_APPLY_IOCTLS = {name: _RECEIVE_IOCTLS[name] for name in ("CLONE_RANGE", "ENCODED_WRITE")} | {"UNRESVSP": 0x4030582B}
_SUBVOL_SETFLAGS = 0x4008941A
_CLONE = (56, 220)
_IOCTL = (16, 29)
_FCNTL = (72, 25)
_F_SETFL, _F_DUPFD_CLOEXEC = 4, 1030  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL and F_SETFL are 0 to 4
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME of sched.h
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}  # AUDIT_ARCH_* of linux/audit.h

_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06  # of linux/bpf_common.h
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # offsets in struct seccomp_data, of the lower halves
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000  # SECCOMP_RET_* of linux/seccomp.h; _REFUSE takes an errno
_INSTRUCTION = struct.Struct("=HBBI")


_NOTHING = 0  # instead of an errno: the call returns 0 without doing anything
_REFUSED, _ALLOWED = -2, -1  # jumps to the last two instructions


@lru_cache(3)
def seccomp_filter(machine: str = platform.machine(), *, receives: bool = False, applies: bool = False) -> bytes | None:
    """Returns the filter for `bwrap --seccomp`; the programs are those of `filter_file`. None if the system calls of the machine
    (its name by uname(2)) are unknown here.
    """
    architecture = _ARCHITECTURES.get(machine)
    if architecture is None:
        return None
    shared = _BOTH | (_RECEIVE if receives else {})
    own = _ONLY_X86 | (_RECEIVE_ONLY_X86 if receives else {})
    table, more = (0, list(own.values())) if machine == "x86_64" else (1, [])
    allowed = sorted([numbers[table] for numbers in shared.values()] + more)
    ioctls = list((_RECEIVE_IOCTLS if receives else _APPLY_IOCTLS if applies else {}).values())
    skipped = [_SUBVOL_SETFLAGS] if receives else []
    return program(architecture, _CLONE[table], _IOCTL[table], _FCNTL[table], allowed, ioctls, skipped)


def program(
    architecture: int, clone: int, ioctl: int, fcntl: int, allowed: Sequence[int], ioctls: Sequence[int], skipped: Sequence[int]
) -> bytes:
    """Returns the instructions; the last two refuse and allow. `skipped` ioctls do nothing and succeed."""
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 0, len(ioctls) + 2 * len(skipped) + 2, ioctl),
        (_LOAD, 0, 0, _SECOND_ARGUMENT),
        *((_EQUAL, _ALLOWED, 0, number) for number in ioctls),
        *(step for number in skipped for step in ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE | _NOTHING))),
        (_RETURN, 0, 0, _REFUSE | errno.ENOTTY),
        (_EQUAL, 0, 3, fcntl),
        (_LOAD, 0, 0, _SECOND_ARGUMENT),
        (_EQUAL, _ALLOWED, 0, _F_DUPFD_CLOEXEC),
        (_GREATER, _REFUSED, _ALLOWED, _F_SETFL),
        (_EQUAL, 0, 2, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, _REFUSED, _ALLOWED, _NEW_NAMESPACES),
        *((_EQUAL, _ALLOWED, 0, number) for number in allowed),
        (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    ]

    def jump(place: int, to: int) -> int:
        """Returns a jump, counted from the next instruction."""
        return to if to >= 0 else len(code) + to - place - 1

    return b"".join(
        _INSTRUCTION.pack(instruction, jump(at, true), jump(at, false), k) for at, (instruction, true, false, k) in enumerate(code)
    )
