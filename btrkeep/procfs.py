"""Reads from /proc and /sys: the boot, mounts, pressure, and this process's capabilities. btrkeep.process.proc reads about other
processes. Capabilities are from CapEff of /proc/self/status, and uid_map: in its own user namespace a process may have
all capabilities, but CAP_SYS_ADMIN and CAP_MKNOD do not count for a filesystem that was mounted outside of it, and ids of other
users may not exist there.
"""

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PRESSURE = Path("/proc/pressure")
_MOMENT = 0.01  # seconds
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Returns the id of this boot of the machine."""
    return _BOOT_ID.read_text().strip()


def sysfs_text(file: Path) -> str:
    """Returns the content of the file; "" if it is missing, as on an older kernel, or empty now."""
    try:
        return file.read_text(errors="surrogateescape").strip()
    except OSError:
        return ""


def pressure_totals(file: Path) -> dict[str, int]:
    """Returns the microseconds since boot that "some" or all ("full") processes waited, from PRESSURE / "io", "cpu" or "memory".

    Raises OSError on a kernel without pressure stall information, ValueError for unexpected content.
    """
    rows = (line.split() for line in file.read_text().splitlines())
    return {kind: int(total.removeprefix("total=")) for kind, *_, total in rows}


class IoPressure:
    """Measures the share of time in which some process waited for I/O, on the whole machine, from the running total of
    microseconds.
    """

    def __init__(self, file: Path = PRESSURE / "io") -> None:
        self._file = file
        self.restart()

    def total(self) -> int:
        """Returns microseconds since the boot. Raises OSError or ValueError on a kernel that does not report them (psi=1)."""
        totals = pressure_totals(self._file)
        if "some" not in totals:
            raise ValueError("it hides some processes")
        return totals["some"]

    def _total_if_known(self) -> int | None:
        with suppress(OSError, ValueError):
            return self.total()
        return None

    @property
    def is_known(self) -> bool:
        """Returns True if this kernel has pressure stall information."""
        return self._total_if_known() is not None

    def restart(self) -> None:
        """Starts the measurement of `share` again."""
        self._since = (time.monotonic(), self._total_if_known())

    def share(self) -> float | None:
        """Returns the share since the last start, from 0 to 1; None if it is unknown, or if the start was a moment ago."""
        (since, before), now, total = self._since, time.monotonic(), self._total_if_known()
        if before is None or total is None or now - since < _MOMENT:
            return None
        return (total - before) / 1e6 / (now - since)


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of mountinfo."""

    id: int
    """The id of the mount."""
    device: str
    """The number of the filesystem ("0:42")."""
    target: Path
    """The mount point."""
    source: str
    """The mounted device or filesystem."""
    filesystem: str
    """Its type."""
    root: str
    """The mounted folder of the filesystem; on btrfs from the top subvolume on."""
    mount_options: tuple[str, ...]
    """The options of this mount (nosuid, noatime, ...)."""
    super_options: tuple[str, ...]
    """The options of the filesystem."""
    parent: int = 0
    """The id of its parent mount; 0: unknown."""


def mounts(process: int | str = "self") -> list[Mount]:
    """Returns all mounts that a process sees, in the order in which they were made. Raises OSError."""
    return parse_mounts(Path(f"/proc/{process}/mountinfo").read_bytes())


def parse_mounts(text: bytes) -> list[Mount]:
    """Parses the content of a mountinfo. Raises ValueError if it has another format."""
    try:
        return [_parse(line) for line in text.splitlines()]
    except IndexError:
        raise ValueError("a line has too few fields") from None


def _parse(line: bytes) -> Mount:
    """Parses "36 35 98:0 /root /target rw,noatime master:1 - type source rw,..." (Documentation/filesystems/proc.rst)."""
    fields = line.split(b" ")
    dash = fields.index(b"-", 6)
    filesystem, source, options = (_unescaped(field) for field in fields[dash + 1 : dash + 4])
    return Mount(
        id=int(fields[0]),
        device=fields[2].decode("ascii"),
        target=Path(_unescaped(fields[4])),
        source=source,
        filesystem=filesystem,
        root=_unescaped(fields[3]),
        mount_options=tuple(_unescaped(fields[5]).split(",")),
        super_options=tuple(options.split(",")),
        parent=int(fields[1]),
    )


def _unescaped(field: bytes) -> str:
    """Space, tab, newline, backslash and # are written as a backslash and three octal digits."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field))


SYS_ADMIN = "CAP_SYS_ADMIN"
_NAMES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT",
    "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE",
    "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
)  # fmt: skip
"""By bit: include/uapi/linux/capability.h."""
_ONLY_INITIAL = frozenset({SYS_ADMIN, "CAP_MKNOD"})
"""The capabilities that the kernel requires in the initial user namespace."""
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
    """Returns the capabilities of this process; None if /proc cannot be read."""
    try:
        return parse_capabilities(Path("/proc/self/status").read_text(), Path("/proc/self/uid_map").read_text())
    except OSError:
        return None


def privilege_hint(name: str = SYS_ADMIN) -> str:
    """Returns what to do if an action was not permitted that needs this capability."""
    if os.geteuid():
        return "run this as root"
    capabilities = read_capabilities()
    if capabilities is None or capabilities.has(name):
        return "root was refused: check the service's sandbox, the mount options, and dmesg"
    return f"root has no {name} here{_container_words(capabilities)}"


def _container_words(capabilities: Capabilities) -> str:
    if capabilities.namespace:
        return ": this is a user namespace (an unprivileged container). Run this on the machine itself"
    return " (a container, or a service's sandbox): run this on the machine itself, or give it the capability"
