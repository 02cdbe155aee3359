"""Parses the lines that start runs: crontabs with the times of each line, and calls of `backupd run` in command lines. Pure.

A command line is one of cron, systemd or a script. The fields of a crontab are those of crontab(5): minute, hour, day of the month,
month, day of the week, with lists, ranges, steps and names.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from btrkeep.config.reading import FOLDER

_NAMES = {
    name: str(number)
    for names, first in (("jan feb mar apr may jun jul aug sep oct nov dec", 1), ("sun mon tue wed thu fri sat", 0))
    for number, name in enumerate(names.split(), first)
}
_SPECIAL = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0", "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_ASSIGNMENT = re.compile(r"""\s*["']?([A-Za-z_]\w*)["']?\s*=\s*(.*?)\s*""")
_PART = re.compile(r"(\*|\d+(?:-\d+)?)(?:/(\d+))?")


@dataclass(frozen=True, slots=True)
class CronTimes:
    """The times of one line. If only one of `days` and `weekdays` is None, the other decides alone."""

    minutes: frozenset[int]
    """0 to 59."""
    hours: frozenset[int]
    """0 to 23."""
    days: frozenset[int] | None
    """Days of the month; None: the field starts with a star."""
    months: frozenset[int]
    """1 to 12."""
    weekdays: frozenset[int] | None
    """Days of the week, 0 is Sunday; None: the field starts with a star."""

    def between(self, begin: datetime, end: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        """Yields all times after `begin` until `end`, in UTC."""
        day = begin.astimezone(zone).date()
        while day <= end.astimezone(zone).date():
            if day.month in self.months and self._is_on(day.day, day.isoweekday() % 7):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        moment = datetime.combine(day, time(hour, minute), zone).astimezone(UTC)
                        if begin < moment <= end:
                            yield moment
            day += timedelta(days=1)

    def _is_on(self, day: int, weekday: int) -> bool:
        if self.days is not None and self.weekdays is not None:
            return day in self.days or weekday in self.weekdays
        return (self.days is None or day in self.days) and (self.weekdays is None or weekday in self.weekdays)


@dataclass(frozen=True, slots=True)
class CronLine:
    """A line that starts a program."""

    times: CronTimes
    """When."""
    command: str
    """The command line."""
    zone: str = ""
    """The value of CRON_TZ= above it; "": not set."""


def cron_lines(text: str, *, has_user: bool) -> Iterator[CronLine]:
    """Yields the lines of a crontab, without @reboot and those that cron would refuse.

    `has_user`: a field with the user comes before the command, as in /etc/crontab.
    """
    zone = ""
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if assignment := _ASSIGNMENT.fullmatch(line):
            if assignment[1] == "CRON_TZ":
                zone = assignment[2].strip("\"'")
            continue
        words = line.split(None, 1)
        fields, command = (_SPECIAL.get(words[0].lower(), ""), words[-1]) if words[0].startswith("@") else _five(line)
        times = cron_times(fields)
        if times and has_user:
            command = command.partition(command.split(None, 1)[0])[2].strip()
        if times and command:
            yield CronLine(times, _before_percent(command), zone)


def _five(line: str) -> tuple[str, str]:
    words = line.split(None, 5)
    return (" ".join(words[:5]), words[5]) if len(words) == 6 else ("", "")


def _before_percent(command: str) -> str:
    """Returns the command. Cron takes the text after the first percent sign as the command's input, unless it has a backslash
    before it.
    """
    return re.split(r"(?<!\\)%", command, maxsplit=1)[0].replace("\\%", "%")


def cron_times(fields: str) -> CronTimes | None:
    """Returns the times of five fields, None if they are invalid."""
    words = fields.lower().split()
    if len(words) != len(_FIELDS):
        return None
    values = [_field(word, low, high) for word, (low, high) in zip(words, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = values
    if minutes is None or hours is None or days is None or months is None or weekdays is None:
        return None
    weekdays = frozenset(day % 7 for day in weekdays)
    return CronTimes(
        minutes, hours, None if words[2].startswith("*") else days, months, None if words[4].startswith("*") else weekdays
    )


def _field(text: str, low: int, high: int) -> frozenset[int] | None:
    chosen: set[int] = set()
    for part in re.sub(r"[a-z]{3}", lambda name: _NAMES.get(name[0], "x"), text).split(","):
        match = _PART.fullmatch(part)
        if not match:
            return None
        begin, _, end = (f"{low}-{high}" if match[1] == "*" else match[1]).partition("-")
        last = int(end) if end else (high if match[2] else int(begin))
        step = int(match[2] or 1)
        if not low <= int(begin) <= last <= high or not step:
            return None
        chosen.update(range(int(begin), last + 1, step))
    return frozenset(chosen)


def anacron_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the period in days and the command of each line of an anacrontab."""
    periods = {"@daily": 1, "@weekly": 7, "@monthly": 30}
    for line in text.splitlines():
        words = line.split(None, 3)
        if len(words) == 4 and not line.lstrip().startswith("#") and (words[0].isdecimal() or words[0] in periods):
            yield periods.get(words[0]) or int(words[0]), words[3]


_OPERATORS = frozenset("();<>|&")
_DEEPEST = 4  # nested calls: a script that calls a script, with `sh -c` inside
_BACKUP_UNIT = re.compile(r"btrkeep-backup@([^/]+?)(?:\.service)?")
_GROUP_VALUES = ("--pool", "--config")
_RUN_VALUES = ("--now",)


@dataclass(frozen=True, slots=True)
class RunCall:
    """A call of `backupd run`. `hosts`: the named hosts; `everything`: it has --all."""

    hosts: tuple[str, ...] = ()
    everything: bool = False


@dataclass(frozen=True, slots=True)
class CommandReader:
    """Parses command lines for one pool. `script` returns the text of a script, "" for any other file; `parts` the files of a
    folder that run-parts runs.
    """

    pool: str
    file: Path
    script: Callable[[str], str]
    parts: Callable[[str], list[str]]

    def calls(self, command: str, depth: int = 0) -> Iterator[RunCall]:
        """Yields the calls of `backupd run` for this pool."""
        if depth > _DEEPEST:
            return
        for words in _commands(command):
            yield from self._of_words(words, depth)

    def calls_of_script(self, text: str, depth: int = 0) -> Iterator[RunCall]:
        """Yields the calls in the lines of a script, whether or not they are executed."""
        for line in text.replace("\\\n", " ").splitlines():
            if not line.lstrip().startswith("#"):
                yield from self.calls(line, depth)

    def _of_words(self, words: list[str], depth: int) -> Iterator[RunCall]:
        for place, word in enumerate(words):
            name = word.rpartition("/")[2]
            if name == "backupd":
                yield from self._of_backupd(words[place + 1 :])
                return
            if name == "run-parts":
                for folder in words[place + 1 :]:
                    for file in self.parts(folder) if folder.startswith("/") else ():
                        yield from self.calls_of_script(self.script(file), depth + 1)
                return
            if name == "systemctl" and {"start", "restart"} & set(words[place:]):
                units = [match[1] for unit in words[place:] if (match := _BACKUP_UNIT.fullmatch(unit))]
                yield from (RunCall() for pool in units if pool == self.pool and self._is_read_by_units())
                return
            if re.search(r"\s", word) and ("backupd" in word or "/" in word):
                yield from self.calls(word, depth + 1)
            elif word.startswith("/"):
                yield from self.calls_of_script(self.script(word), depth + 1)

    def _of_backupd(self, words: list[str]) -> Iterator[RunCall]:
        pool, file, rest = "main", "", list(words)
        while rest and rest[0].startswith("-"):
            option, _, value = rest.pop(0).partition("=")
            if option in _GROUP_VALUES:
                value = value or (rest.pop(0) if rest else "")
                pool, file = (value, file) if option == "--pool" else (pool, value)
        if not rest or rest.pop(0) != "run" or not self._is_this(pool, file):
            return
        hosts, options = [], set()
        while rest:
            word = rest.pop(0)
            option = word.partition("=")[0]
            if option in _RUN_VALUES and word == option and rest:
                rest.pop(0)
            if word.startswith("-"):
                options.add(option)
            else:
                hosts.append(word)
        if not options & {"--dry-run", "--help"}:
            yield RunCall(tuple(hosts), "--all" in options)

    def _is_this(self, pool: str, file: str) -> bool:
        return Path(file) == self.file.absolute() if file else pool == self.pool and self._is_read_by_units()

    def _is_read_by_units(self) -> bool:
        return self.file == FOLDER / f"{self.pool}.toml"


def _commands(line: str) -> Iterator[list[str]]:
    """Yields the words of each simple command of a line of the shell, without its redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        tokens = list(lexer)
    except ValueError:  # a quote that is closed on a later line
        tokens = line.replace('"', " ").replace("'", " ").split()
    words: list[str] = []
    skips = False
    for token in tokens:
        if set(token) <= _OPERATORS and token:
            skips = bool(set(token) & {"<", ">"})
            if skips and words and words[-1].isdecimal():
                words.pop()  # the descriptor of 2>&1
            if not skips:
                yield words
                words = []
        elif skips:
            skips = False
        else:
            words.append(token)
    yield words
