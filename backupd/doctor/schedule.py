"""Finds what starts a program by itself: enabled timers and lines of cron. Read from files: systemd need not run.

When a timer starts it next is asked of systemd.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from btrkeep.config import HostConfig
from btrkeep.decisions.due import window_end
from btrkeep.process.programs import ProgramFailed, run

_UNITS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
_ELAPSE = re.compile(r"OnCalendar=.*; next_elapse=@(\d+)")
_SECONDS = 10.0
_CRON = ("etc/crontab", "etc/cron.d", "var/spool/cron/crontabs", "etc/cron.hourly", "etc/cron.daily")


def scheduled_by(program: str, verb: str, root: Path = Path("/")) -> Iterator[str]:
    """Names of enabled timers and of files of cron that run `program ... verb`, which may be any pool's."""
    said = re.compile(rf"\b{re.escape(program)}\b[^\n]*\b{re.escape(verb)}\b")
    for timer in sorted(_enabled(root)):
        if any(said.search(line) for line in _lines(_service_of(timer, root))):
            yield timer
    for folder in _CRON:
        for file in sorted(_files(root / folder)):
            if any(said.search(line) for line in _lines(file)):
                yield str(file)


def next_starts(starters: Iterable[str]) -> tuple[datetime, ...] | None:
    """Returns when each OnCalendar= line of these timers starts its service next.

    None if that is unknown for one of them, as for cron, or if a service has --catch-up and waits long for a window.
    """
    found: list[datetime] = []
    for timer in starters:
        service = f"{timer.removesuffix('.timer')}.service"
        try:
            calendar = run(("systemctl", "show", "--timestamp=unix", "--property=TimersCalendar", "--", timer), timeout=_SECONDS)
            command = run(("systemctl", "show", "--property=ExecStart", "--", service), timeout=_SECONDS)
        except ProgramFailed:
            return None
        starts = elapses(calendar.stdout)
        if not starts or "--catch-up" in command.stdout:
            return None
        found += starts
    return tuple(found) or None


def elapses(said: str) -> list[datetime]:
    """The times in what systemctl shows as TimersCalendar."""
    return [datetime.fromtimestamp(int(seconds), UTC) for seconds in _ELAPSE.findall(said)]


def never_started(hosts: Iterable[HostConfig], zone: ZoneInfo, starts: Iterable[datetime]) -> tuple[HostConfig, ...]:
    """Returns the hosts into whose window none of these starts falls. Pure."""
    times = tuple(starts)
    return tuple(host for host in hosts if host.window and all(window_end(host.window, zone, start) is None for start in times))


def _enabled(root: Path) -> set[str]:
    """Timers that a target wants: what `systemctl enable` makes of [Install]."""
    return {timer.name for folder in _UNITS for timer in (root / folder).glob("*.wants/*.timer")}


def _service_of(timer: str, root: Path) -> Path | None:
    """The file of the service that a timer of the same name starts; that of the template for an instance (a@b.timer)."""
    name = timer.removesuffix(".timer")
    template = name.partition("@")[0] + "@" if "@" in name else name
    candidates = (root / folder / f"{one}.service" for one in dict.fromkeys((name, template)) for folder in _UNITS)
    return next((file for file in candidates if file.exists()), None)


def _files(place: Path) -> list[Path]:
    with suppress(OSError):
        if place.is_dir():
            return [file for file in place.iterdir() if not file.name.startswith(".")]
    return [place]


def _lines(file: Path | None) -> list[str]:
    """Returns the lines of a file that are no comments."""
    try:
        text = file.read_text(errors="replace") if file else ""
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";"))]
