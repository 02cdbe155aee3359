"""Finds out what has started this process: a unit of systemd, cron, a login, or something else."""

import re
import sys
from pathlib import Path

from btrkeep.process.proc import parent_names

CRON, LOGIN, OTHER = "cron", "a login", "another program"
_UNIT = re.compile(r"/([^/]+\.service)(?:/|$)")
_OURS = re.compile(r"btrkeep-\w+@.*\.service|user@\d+\.service")
_CRONS = frozenset({"cron", "crond", "anacron", "fcron", "CRON"})
_SHELLS = frozenset({"sshd", "sshd-session", "login", "su", "sudo", "tmux: server", "screen", "agetty"})


def caller() -> str:
    """Returns the name of what started this process."""
    parents = parent_names()
    if _CRONS & parents:
        return CRON
    units = _units()
    if units and units[-1] not in ("ssh.service", "sshd.service"):
        return str(units[-1])
    return LOGIN if not parents or _SHELLS & parents or sys.stdin.isatty() else OTHER


def is_own_service() -> bool:
    """Returns True in a service of ours, whose sandbox lacks on purpose what other root processes have."""
    return any(unit.startswith("btrkeep-") for unit in _units())


def _units() -> list[str]:
    try:
        return _UNIT.findall(Path("/proc/self/cgroup").read_text())
    except OSError:
        return []


def is_elsewhere_known(name: str) -> bool:
    """Returns True for callers whose coming starts are read from timers and crontabs, and for people."""
    return name in (CRON, LOGIN, "cron.service", "crond.service", "anacron.service") or bool(_OURS.fullmatch(name))
