#!/usr/bin/python3 -I
"""Replaces rsync, as if a host had taken it over: tries forbidden actions, and reports those that succeeded.

    taken_over.py ... --rsh "bash -c 'echo >&N; ...' ..." SOURCE DATA/
    taken_over.py --rsh "bash -c ..." DATA/./NAME HOST:FOLDER/   gives files back
    taken_over.py --server ...                                   the host's side: sends one byte and waits

It starts its remote shell first, as rsync does, and writes DATA/found: JSON of {attempt: the error, "" for none}. When it gives
files back, it prints the numbers of attempts and of successes, and tries nothing that needs a folder to write to. The test writes
the targets and the attempts into TARGETS. Each system call has arguments that every kernel rejects, so nothing happens where it is
not refused.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

TARGETS: dict[str, Any] = {}
F_SETPIPE_SZ = 1031
CALLS = {
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "clone": 56, "clone3": 435, "setns": 308,
    "fsopen": 430, "open_tree": 428, "move_mount": 429, "mount_setattr": 442, "open_by_handle_at": 304, "name_to_handle_at": 303,
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_open": 434, "pidfd_getfd": 438, "bpf": 321,
    "perf_event_open": 298, "init_module": 175, "finit_module": 313, "kexec_load": 246, "io_uring_setup": 425, "userfaultfd": 323,
    "keyctl": 250, "add_key": 248, "swapon": 167, "sethostname": 170, "settimeofday": 164, "clock_settime": 227, "reboot": 169,
    "quotactl": 179, "prctl": 157, "seccomp": 317, "ioctl": 16, "shmget": 29, "msgget": 68, "setsid": 112, "setpgid": 109,
    "personality": 135, "prlimit64": 302, "fanotify_init": 300, "flock": 73, "socket": 41, "connect": 42, "sendmsg": 46,
    "memfd_create": 319, "syslog": 103, "iopl": 172, "setuid": 105, "setgroups": 116, "sched_setscheduler": 144, "mlockall": 151,
    "fallocate": 285, "recvmsg": 47, "bind": 49, "listen": 50, "execveat": 322, "setrlimit": 160, "setpriority": 141,
}  # fmt: skip


class Attempts:
    """The attempt, and its error."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.results: dict[str, str] = {}

    def attempt(self, subject: str, how: Callable[[], object]) -> None:
        try:
            how()
        except (OSError, ValueError, MemoryError) as error:
            self.results[subject] = str(error) or type(error).__name__
        else:
            self.results[subject] = ""

    def files(self) -> None:
        for path in TARGETS["secret"]:
            self.attempt(f"read {path}", Path(path).read_bytes)
        for path in TARGETS["folders"]:
            self.attempt(f"write to {path}", Path(path, "evil").touch)
        self.attempt("climb out", lambda: Path("/proc/1/root/etc/shadow").read_bytes())
        for name in ("sys/kernel/core_pattern", "sys/kernel/modprobe", "sysrq-trigger", "1/oom_score_adj", "self/uid_map"):
            self.attempt(f"open /proc/{name} for writing", partial(opened, Path("/proc", name), os.O_WRONLY))
        self.attempt("rename data", lambda: self.data.rename(self.data.with_name("other")).rename(self.data))

    def devices(self) -> None:
        for name, kind, numbers in (("disk", stat.S_IFBLK, TARGETS["disk"]), ("memory", stat.S_IFCHR, (1, 1))):
            node = self.data / f"node-{name}"
            os.mknod(node, kind | 0o600, os.makedev(*numbers))  # needed to back up such a node
            self.attempt(f"open the {name} by a node of its own", partial(opened, node, os.O_RDONLY))
            node.unlink()

    def calls(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        for name, number in CALLS.items():
            libc.syscall(number, *(ctypes.c_long(-1) for _ in range(6)))
            refused = ctypes.get_errno() in (errno.ENOSYS, errno.ENOTTY)
            self.results[f"call {name}"] = os.strerror(ctypes.get_errno()) if refused else ""

    def descriptors(self) -> None:
        """All that it was given, and that the first process of the cell has, but pipes and sockets: success changes nothing."""
        for number in (0, *inherited()):
            status = os.fstat(number)
            if not stat.S_ISFIFO(status.st_mode) and not stat.S_ISSOCK(status.st_mode):
                self._descriptor(number, status)
        for entry in Path("/proc/1/fd").iterdir() if TARGETS["cell"] else ():
            if not entry.is_fifo() and not entry.is_socket():
                self.attempt(f"open {entry}", partial(opened, entry, os.O_RDWR))
        for name, command in (
            ("a lease", fcntl.F_SETLEASE),
            ("an owner for signals", fcntl.F_SETOWN),
            ("larger pipes", F_SETPIPE_SZ),
        ):
            self.attempt(f"fcntl: {name}", partial(not_known, fcntl.fcntl, 1, command, 0))

    def _descriptor(self, number: int, status: os.stat_result) -> None:
        path = Path(f"/proc/self/fd/{number}")
        subject = f"descriptor {number} ({path.readlink()})"
        self.attempt(f"open {subject} for writing", partial(opened, path, os.O_RDWR))
        self.attempt(f"change the mode of {subject}", partial(os.fchmod, number, stat.S_IMODE(status.st_mode)))
        self.attempt(f"change the owner of {subject}", partial(os.fchown, number, status.st_uid, -1))
        self.attempt(f"give {subject} an attribute", partial(marked, number))
        self.attempt(f"change the times of {subject}", partial(os.utime, number, ns=(status.st_atime_ns, status.st_mtime_ns)))
        self.attempt(f"write to {subject}", partial(os.write, number, b""))
        self.attempt(f"go on from {subject}", partial(os.stat, ".", dir_fd=number))

    def processes(self) -> None:
        self.attempt("signal a process outside", lambda: os.kill(TARGETS["pid"], 0))
        self.attempt("map most of the memory", lambda: mmap.mmap(-1, TARGETS["memory"]).close())
        self.attempt("open a socket", socket.socket)
        program = self.data / "setuid"
        program.write_bytes(Path("/usr/bin/id").read_bytes())
        os.chown(program, 1, 1)
        program.chmod(0o6755)
        output = subprocess.run([program, "-u"], capture_output=True, text=True, check=False).stdout
        self.results["a setuid file"] = "" if output.strip() == "1" else f"it is {output.strip()}"
        program.unlink()

    def second_connection(self, shell: list[str]) -> None:
        """Each of them writes to the same socket that the first one did."""
        second = subprocess.Popen([*shell, "evil"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=inherited())
        try:
            second.wait(0.3)
            self.results["a second connection"] = "" if second.returncode == 0 else f"status {second.returncode}"
        except subprocess.TimeoutExpired:
            self.results["a second connection"] = "it waits for ever"
        second.kill()


def inherited() -> tuple[int, ...]:
    """Returns all descriptors but the first three, as a program that rsync starts would have them."""
    return tuple(number for number in range(3, 64) if _is_open(number))


def marked(number: int) -> None:
    """Writes an attribute, and removes it again."""
    os.setxattr(number, "trusted.evil", b"")
    os.removexattr(number, "trusted.evil")


def opened(path: Path, how: int) -> None:
    """Opens a file like rsync, and closes it."""
    os.close(os.open(path, how))


def not_known(call: Callable[..., object], *words: object) -> None:
    """Fails only if the call itself is refused; another error of the kernel about its arguments is not a refusal."""
    try:
        call(*words)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def fork_without_end() -> None:
    for _ in range(500):  # as good as endless
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        time.sleep(0.005)
    time.sleep(60)


def main() -> int:
    words = sys.argv[1:]
    if "--version" in words or "-VV" in words:
        os.write(1, b"rsync  version 3.5.0  protocol version 32\n")
        return 0
    if "--server" in words:
        os.write(1, b"!")
        os.read(0, 1)
        return 0
    shell = shlex.split(next(words[at + 1] for at, word in enumerate(words) if word == "--rsh"))
    (from_us, to_host), (from_host, to_us) = os.pipe(), os.pipe()
    gives = TARGETS.get("gives", False)
    host = [*shell, *TARGETS["words"], "--server", *(() if gives else ("--sender",)), "-e.", ".", "/x"]
    remote = subprocess.Popen(host, stdin=from_us, stdout=to_us, pass_fds=inherited())
    os.close(from_us)
    os.close(to_us)
    os.write(1, b"(Client) Protocol versions: remote=32, negotiated=32\n")  # otherwise `.working` is deleted as empty
    os.read(from_host, 1)  # after the first byte from the host, this acts as the host's program
    if TARGETS.get("forks"):
        fork_without_end()
    tried = Attempts(Path(words[-2].split("/./")[0] if gives else words[-1].rstrip("/")))
    for doing in (tried.files, tried.descriptors, tried.calls, *(() if gives else (tried.devices, tried.processes))):
        doing()
    if gives:
        tried.attempt("write to data", (tried.data / "evil").touch)
    if TARGETS["cell"]:
        tried.second_connection(shell)
    if gives:
        could = [name for name, why in tried.results.items() if not why]
        os.write(2, f"it tried {len(tried.results)} and could do {len(could)}: {could[:4]}\n".encode())
        os.close(to_host)
        return 12
    (tried.data / "found").write_text(json.dumps(tried.results))
    os.close(to_host)
    remote.wait(5)
    if os.fork() == 0:  # continues after the run
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(0.02)
            (tried.data / "alive").write_text(str(time.monotonic()))
    return 23


if __name__ == "__main__":
    sys.exit(main())
