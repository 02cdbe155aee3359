"""Asks systemd whether a unit has failed, and for its last lines in the journal."""

import re
from dataclasses import dataclass

from btrkeep.errors import UsageError
from btrkeep.process.programs import ProgramFailed, run

_UNIT = re.compile(r"[A-Za-z0-9:_.@\\][A-Za-z0-9:_.@\\-]{0,254}", re.ASCII)  # systemd.unit(5)
_LINES = 15
_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class UnitFailure:
    """How a unit failed: systemd's result, its exit status, and its last lines, unchanged: other programs wrote them."""

    unit: str
    result: str
    status: int
    lines: tuple[str, ...]


def validate_unit(name: str) -> str:
    """Returns the name of a unit. Raises UsageError if it is invalid."""
    if not _UNIT.fullmatch(name):
        raise UsageError("that is no name of a unit", "systemd gives it as %n, such as btrkeep-backup@main.service")
    return name


def journal_command(unit: str) -> tuple[str, ...]:
    """The last lines of all that the unit ever said: when it failed at once, those before tell why."""
    return ("journalctl", f"--unit={unit}", f"--lines={_LINES}", "--output=cat", "--no-pager", "--quiet")


def show_command(unit: str) -> tuple[str, ...]:
    """The command that shows whether and how the unit failed."""
    return ("systemctl", "show", "--property=ActiveState", "--property=Result", "--property=ExecMainStatus", "--", unit)


def read_failure(unit: str) -> UnitFailure:
    """Returns what systemd knows of the failure. Where systemd cannot be asked, the fields are empty."""
    try:
        lines = run(journal_command(unit), timeout=_SECONDS).stdout.splitlines()
    except ProgramFailed as error:
        lines = [f"(the journal cannot be read: {error.message})"]
    shown = _show(unit)
    status = int(shown.get("ExecMainStatus", 0))
    result = f"{shown.get('Result') or 'unknown result'}{f', exit status {status}' if status else ''}"
    return UnitFailure(unit, result, status, tuple(line for line in lines if line.strip()))


def has_failed(unit: str) -> bool | None:
    """True if the newest run of the unit that has ended failed; None while it runs again, or where systemd cannot be asked."""
    shown = _show(unit)
    state, result = shown.get("ActiveState"), shown.get("Result")
    if state == "failed":
        return True
    if state in ("inactive", "active") and result == "success":
        return False
    return None


def _show(unit: str) -> dict[str, str]:
    try:
        lines = run(show_command(unit), timeout=_SECONDS).stdout.splitlines()
    except ProgramFailed:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)
