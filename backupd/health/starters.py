"""Finds what starts the runs of a pool: active timers of systemd, crontabs, and other callers, known from their past runs."""

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from backupd.health.start_lines import CommandReader, RunCall, anacron_lines, cron_lines
from btrkeep.config import Config
from btrkeep.config.reading import FOLDER
from btrkeep.decisions.schedule import (
    NOTHING_MISSED,
    ScheduleVerdict,
    Start,
    StartFacts,
    expected_calls,
    judge_schedule,
    parse_calls,
)
from btrkeep.descriptors import ClosingFd
from btrkeep.process.proc import has_known_starts
from btrkeep.process.programs import ProgramFailed, paste_line, run

_SECONDS = 10.0
_HORIZON = timedelta(days=8)
_LONGEST = timedelta(days=70)
_MOST_STARTS = 900  # of one timer: eight days of a start every 15 minutes
_LARGEST_SCRIPT = 1 << 16
_LARGEST_CRONTAB = 1 << 20
_CRONS = ("cron", "crond", "fcron", "bcron-sched")
_ACTIVE, _ELAPSED = "active", "elapsed"
_ANACRON_TIMER, _ANACRONTAB = "anacron.timer", "/etc/anacrontab"
_CALENDAR = re.compile(r"OnCalendar=(.*?) ; next_elapse=")
_REPEATED = re.compile(r"On(?:Unit(?:In)?Active)USec=(.*?) ; next_elapse=")
_ARGUMENTS = re.compile(r"argv\[\]=(.*?) ; ignore_errors=")
_UTC_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC$")
_SPAN = re.compile(r"(\d+)(month|week|w|d|h|min|s)")
_SPAN_SECONDS = {"month": 2629800, "week": 604800, "w": 604800, "d": 86400, "h": 3600, "min": 60, "s": 1}
_ANACRON_TIME = timedelta(hours=7, minutes=30)  # Debian's cron starts anacron then; otherwise it starts at boot
_DEBIAN_NAME = re.compile(r"[A-Za-z0-9_-]+")


def read_schedule(config: Config, calls: str | None, copies: frozenset[str], now: datetime) -> ScheduleVerdict:
    """Returns which hosts will not be backed up in time. `calls`: the recorded callers in the catalogue; `copies`: the hosts that
    are fetched from another pool.
    """
    hosts = [host for host in config.hosts.values() if host.enabled and not host.calls and host.name not in copies]
    if not hosts:
        return NOTHING_MISSED
    longest = timedelta(seconds=2 * max(host.every for host in hosts)) + timedelta(days=2)
    return judge_schedule(hosts, config.pool.zone, read_starts(config, calls, now, max(_HORIZON, min(longest, _LONGEST))), now)


def read_starts(config: Config, calls: str | None, now: datetime, horizon: timedelta, root: Path = Path("/")) -> StartFacts:
    """Returns everything that starts runs of this pool."""
    reader = CommandReader(config.name, config.file, lambda file: _script(root, file), lambda folder: _parts(root, folder))
    collected = _StarterCollector(now + horizon)
    _read_timers(reader, collected, now, root)
    _read_crontabs(reader, collected, now, root)
    others, callers = expected_calls([call for call in parse_calls(calls) if not has_known_starts(call[1])], collected.until, now)
    by_units = config.file == FOLDER / f"{config.name}.toml"
    return StartFacts(
        starts=(*collected.starts, *others),
        until=collected.until,
        starters=(*dict.fromkeys(collected.starters), *callers),
        unknown="; ".join(collected.unknown),
        by_units=by_units,
        pool=config.name,
        command=_command(config, by_units=by_units),
    )


def _command(config: Config, *, by_units: bool) -> str:
    if by_units:
        return "backupd" if config.name == "main" else paste_line(("backupd", "--pool", config.name))
    return paste_line(("backupd", "--config", str(config.file.absolute())))


@dataclass(slots=True)
class _StarterCollector:
    """The facts that were read so far."""

    until: datetime
    """The time until which all starts are known."""
    starts: list[Start] = field(default_factory=list)
    """The coming starts."""
    starters: list[str] = field(default_factory=list)
    """The timers, cron jobs and programs that start runs."""
    unknown: list[str] = field(default_factory=list)
    """The sources that could not be read, with the reason."""
    has_anacron_timer: bool = False
    """True if systemd starts anacron, without a cron daemon."""

    def add(self, starter: str, calls: list[RunCall], times: list[datetime]) -> None:
        """Adds the starts of one timer or line; one without times starts nothing."""
        if calls and times:
            self.starters.append(starter)
            self.starts += [Start(at, call.hosts, bool(call.hosts) or call.everything) for call in calls for at in times]


def _read_timers(reader: CommandReader, collected: _StarterCollector, now: datetime, root: Path) -> None:
    if not (root / "run/systemd/system").is_dir():
        return  # without systemd there are no timers
    try:
        names = "Id,ActiveState,SubState,Unit,TimersCalendar,TimersMonotonic"
        shown = run(("systemctl", "show", f"--property={names}", "--", "*.timer"), timeout=_SECONDS).stdout
        timers = [timer for timer in _units(shown) if _elapses(timer)]
        collected.has_anacron_timer = any(timer["Id"] == [_ANACRON_TIMER] for timer in timers)
        services = [timer["Unit"][0] for timer in timers if timer.get("Unit")]
        command = ("systemctl", "show", "--property=Id,ExecStart", "--", *services)
        commands = (
            {unit["Id"][0]: unit.get("ExecStart", []) for unit in _units(run(command, timeout=_SECONDS).stdout)} if services else {}
        )
        for timer in timers:
            calls = [call for line in commands.get(timer["Unit"][0], ()) for call in _calls_of_unit(reader, line)]
            if calls:
                collected.add(timer["Id"][0], calls, _times(timer, collected, now))
    except ProgramFailed as error:
        collected.unknown.append(f"the timers could not be read: {error.message}")


def _elapses(timer: dict[str, list[str]]) -> bool:
    """Returns True if the timer is active and will elapse. A timer that has only OnUnitActiveSec= never elapses before its unit has
    run.
    """
    return timer.get("ActiveState") == [_ACTIVE] and timer.get("SubState") != [_ELAPSED]


def _units(shown: str) -> list[dict[str, list[str]]]:
    """Returns the properties of each unit in the output of systemctl; a property can occur several times."""
    units = []
    for block in shown.split("\n\n"):
        unit: dict[str, list[str]] = {}
        for line in block.splitlines():
            name, _, value = line.partition("=")
            unit.setdefault(name, []).append(value)
        if unit.get("Id"):
            units.append(unit)
    return units


def _calls_of_unit(reader: CommandReader, line: str) -> list[RunCall]:
    return [call for argument in _ARGUMENTS.findall(line) for call in reader.calls(argument)]


def _times(timer: dict[str, list[str]], collected: _StarterCollector, now: datetime) -> list[datetime]:
    """Returns the coming elapses of a timer. Raises ProgramFailed."""
    times: list[datetime] = []
    for calendar in (match[1] for line in timer.get("TimersCalendar", ()) if (match := _CALENDAR.search(line))):
        command = ("systemd-analyze", "calendar", f"--iterations={_MOST_STARTS}", "--", calendar)
        elapses = elapses_of_calendar(run(command, timeout=_SECONDS).stdout)
        if len(elapses) >= _MOST_STARTS:
            collected.until = min(collected.until, elapses[-1])
        times += elapses
    for span in (match[1] for line in timer.get("TimersMonotonic", ()) if (match := _REPEATED.search(line))):
        seconds = sum(int(count) * _SPAN_SECONDS[unit] for count, unit in _SPAN.findall(span))
        if seconds:
            count = min(_MOST_STARTS, int((collected.until - now).total_seconds() // seconds))
            times += [now + timedelta(seconds=seconds * number) for number in range(1, count + 1)]
            if count == _MOST_STARTS:
                collected.until = min(collected.until, times[-1])
    return times


def elapses_of_calendar(text: str) -> list[datetime]:
    """Returns the times in the output of `systemd-analyze calendar`: on a machine with another zone each has a line in UTC."""
    moments = [match[1] for line in text.splitlines() if (match := _UTC_TIME.search(line))]
    return [datetime.fromisoformat(f"{moment}+00:00") for moment in moments]


def _read_crontabs(reader: CommandReader, collected: _StarterCollector, now: datetime, root: Path) -> None:
    zone = machine_zone(root)
    crontab_lines: list[tuple[str, list[RunCall], list[datetime]]] = []
    for file, has_user in _crontabs(root, collected):
        try:
            text = _read(file, _LARGEST_CRONTAB).decode(errors="replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            collected.unknown.append(f"{file}: {error.strerror}")
            continue
        for line in cron_lines(text, has_user=has_user):
            if calls := list(reader.calls(line.command)):
                times = list(line.times.between(now, collected.until, _named_zone(line.zone) or zone))
                crontab_lines.append((f"/{file.relative_to(root)}", calls, times))
    for days, command in _anacron(root):
        if calls := list(reader.calls(command)):
            midnight = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
            times = [(midnight + timedelta(days=days * number) + _ANACRON_TIME).astimezone(UTC) for number in range(1, 71)]
            crontab_lines.append((_ANACRONTAB, calls, [at for at in times if at <= collected.until]))
    if crontab_lines and not _cron_runs(root):  # without cron its lines start nothing
        crontab_lines = [line for line in crontab_lines if line[0] == _ANACRONTAB and collected.has_anacron_timer]
    for name, calls, times in crontab_lines:
        collected.add(name, calls, times)


def _crontabs(root: Path, collected: _StarterCollector) -> Iterator[tuple[Path, bool]]:
    """Yields the crontabs of the system and of root. A line in another user's crontab starts no run."""
    yield root / "etc/crontab", True
    yield root / "var/spool/cron/crontabs/root", False
    yield root / "var/spool/cron/root", False
    is_debian = (root / "etc/debian_version").exists()
    try:
        files = sorted(file for file in (root / "etc/cron.d").iterdir() if file.is_file())
    except FileNotFoundError:
        return
    except OSError as error:
        collected.unknown.append(f"/etc/cron.d: {error.strerror}")
        return
    yield from ((file, True) for file in files if not is_debian or _DEBIAN_NAME.fullmatch(file.name))


def _anacron(root: Path) -> list[tuple[int, str]]:
    try:
        return list(anacron_lines(_read(root / "etc/anacrontab", _LARGEST_CRONTAB).decode(errors="replace")))
    except OSError:
        return []


def _cron_runs(root: Path) -> bool:
    """Returns True if a daemon of cron runs. For a folder that is not the root of this machine, it returns True."""
    if root != Path("/"):
        return True
    for folder in os.scandir("/proc"):
        if folder.name.isdecimal():
            try:
                if Path(folder.path, "comm").read_text().strip() in _CRONS:
                    return True
            except OSError:  # the process has ended
                continue
    return False


def machine_zone(root: Path = Path("/")) -> ZoneInfo:
    """Returns the machine's time zone, UTC if it has none."""
    try:
        with (root / "etc/localtime").open("rb") as file:
            return ZoneInfo.from_file(file, key="local time")
    except (OSError, ValueError):
        return ZoneInfo("UTC")


def _named_zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _script(root: Path, name: str) -> str:
    """Returns the text of a script; "" for anything else."""
    try:
        data = _read(root / name.lstrip("/"), _LARGEST_SCRIPT)
    except (OSError, ValueError):
        return ""
    return data.decode(errors="replace") if data.startswith(b"#!") else ""


def _read(path: Path, largest: int) -> bytes:
    """Returns the content of a regular file, which may be another user's. Raises OSError for anything else, and a larger one."""
    with ClosingFd(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = os.pread(fd, largest + 1, 0)
    if len(data) > largest:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data


def _parts(root: Path, folder: str) -> list[str]:
    """Returns the files that run-parts runs: executable, with names of letters, digits, underscores and hyphens."""
    try:
        files = sorted((root / folder.lstrip("/")).iterdir())
        names = [file.name for file in files if _DEBIAN_NAME.fullmatch(file.name) and file.stat().st_mode & 0o111]
    except OSError:
        return []
    return [f"{folder.rstrip('/')}/{name}" for name in names]
