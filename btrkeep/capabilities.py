"""The capabilities that this process really has: root of a container, or of a service's sandbox, lacks some of them.

From CapEff of /proc/self/status, and uid_map: in a user namespace of its own a process may have all capabilities, but CAP_SYS_ADMIN
and CAP_MKNOD do not count for a filesystem that was mounted outside of it, and other users' ids may not exist there.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

SYS_ADMIN = "CAP_SYS_ADMIN"
_NAMES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT",
    "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE",
    "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
)  # fmt: skip
"""By bit: include/uapi/linux/capability.h."""
_ONLY_INITIAL = frozenset({SYS_ADMIN, "CAP_MKNOD"})
"""What the kernel asks of the initial user namespace."""
_ALL_IDS = (0, 0, (1 << 32) - 1)
_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`effective`: names such as "CAP_CHOWN". `namespace`: the process is in a user namespace of its own."""

    effective: frozenset[str]
    namespace: bool = False

    def has(self, name: str) -> bool:
        """Returns True if the process may do what that capability permits, on a filesystem of the machine."""
        if name == "CAP_DAC_READ_SEARCH" and "CAP_DAC_OVERRIDE" in self.effective:
            return True
        return name in self.effective and not (self.namespace and name in _ONLY_INITIAL)


def parse_capabilities(status: str, uid_map: str) -> Capabilities | None:
    """Parses /proc/PID/status and uid_map; None if it has no line of capabilities."""
    match = _EFFECTIVE.search(status)
    if match is None:
        return None
    bits = int(match[1], 16)
    effective = frozenset(f"CAP_{name}" for bit, name in enumerate(_NAMES) if bits >> bit & 1)
    ids = [tuple(map(int, line.split())) for line in uid_map.splitlines()]
    return Capabilities(effective, bool(ids) and ids != [_ALL_IDS])


def read_capabilities() -> Capabilities | None:
    """Returns those of this process; None if /proc cannot be read."""
    try:
        return parse_capabilities(Path("/proc/self/status").read_text(), Path("/proc/self/uid_map").read_text())
    except OSError:
        return None


def privilege_hint(name: str = SYS_ADMIN) -> str:
    """Returns what to do when something was not permitted that takes this capability."""
    if os.geteuid():
        return "run this as root"
    known = read_capabilities()
    if known is None or known.has(name):
        return "it was refused to root: see the service's sandbox, the mount options, and dmesg"
    return f"root has no {name} here{_where(known)}"


def _where(known: Capabilities) -> str:
    if known.namespace:
        return ": this is a user namespace (an unprivileged container). Run this on the machine itself"
    return " (a container, or a service's sandbox): run this on the machine itself, or give it that capability"
