"""The types of configuration values: a description with an example, and a parser.

A parser takes the value from TOML and returns the one for the program; it raises InvalidValue, RefusedItems or ValueError.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from btrkeep import choices
from btrkeep.choices import ALARM_EVENTS, ALLOCATORS, BALANCE_POLICIES, SERVICE_VERBS
from btrkeep.config.problems import InvalidValue, RefusedItems, nearest, show
from btrkeep.config.sources import name_fault, parse_address, parse_path, parse_patterns, parse_sources, parse_ssh_file
from btrkeep.config.values import (
    Url,
    Window,
    parse_host_name,
    parse_listen,
    parse_min_free,
    parse_pace,
    parse_ping,
    parse_sample,
    parse_time_of_day,
    parse_url,
    parse_window,
)
from btrkeep.units import parse_duration, parse_share, parse_size

_LONGEST_DURATION = 3650 * 86400  # adding it to a time still gives a valid time
_SERVICE = '"mailto://user:password@mail.example.org"'
_JUMP = '"ProxyJump=gate.example.org"'
_SSH_OPTION = re.compile(r"[A-Za-z]\w*=[^\x00-\x1f\x7f]+", re.ASCII)
_MOST_PERIODS = 100_000  # more days than there are in the years that dates may have
_LEAST_RATE = 1024  # rsync rounds to KiB per second, and 0 means no limit
EVENT_WORDS = (*ALARM_EVENTS, "recovery")


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A type of values."""

    title: str
    """Its name in the documentation."""
    expected: str
    """Completes "expected ..." in a problem."""
    parse: Callable[[Any], Any]
    """Returns the parsed value; raises InvalidValue, RefusedItems or ValueError."""
    words: tuple[str, ...] = ()
    """All values, if there are only a few."""

    def __call__(self, value: Any) -> Any:
        """The parsed value. Raises InvalidValue or RefusedItems, always with a reason."""
        try:
            return self.parse(value)
        except InvalidValue as refused:
            raise refused if refused.reason else InvalidValue(f"expected {self.expected}", refused.valid) from None
        except (ValueError, OverflowError) as error:
            if isinstance(error, RefusedItems):
                raise
            raise InvalidValue(f"expected {self.expected}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue
    return value


def _command(value: Any) -> str:
    if not shlex.split(_text(value)) or not value.isprintable():  # an unclosed quote is a ValueError
        raise InvalidValue
    return str(value)


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item and "\0" not in item for item in value):
        raise InvalidValue
    return tuple(value)


def _ssh_options(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidValue
    wrong = [
        (item, f"expected NAME=VALUE such as {_JUMP}")
        for item in value
        if not (isinstance(item, str) and _SSH_OPTION.fullmatch(item))
    ]
    if wrong:
        raise RefusedItems(wrong)
    return tuple(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidValue
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidValue
    if value > _MOST_PERIODS:
        raise InvalidValue(f"expected at most {_MOST_PERIODS}")
    return value


def _port(value: Any) -> int:
    if _count(value) > 65535:
        raise InvalidValue
    return int(value)


def _duration(value: Any) -> float:
    seconds = parse_duration(_text(value))
    if not 0 < seconds <= _LONGEST_DURATION:
        raise InvalidValue('expected a duration above zero and up to ten years, such as "30m" or "1d"')
    return seconds


def _rate(value: Any) -> int:
    rate = parse_size(_text(value).removesuffix("/s"))  # as the program prints it
    if rate < _LEAST_RATE:
        raise InvalidValue('expected at least "1KiB"; for no limit leave the key out')
    return rate


def _window(value: Any) -> Window | None:
    window = parse_window(_text(value))
    if window and window.start == window.end:
        raise InvalidValue(
            'start and end are the same; for the whole day leave the key out, or write "none" to cancel an inherited one'
        )
    return window


def _size_limit(value: Any) -> int | None:
    size = None if _text(value).strip() == "none" else parse_size(value)
    if size == 0:
        raise InvalidValue
    return size


def _count_limit(value: Any) -> int | None:
    return None if value == "none" else _count(value)


def _urls(value: Any) -> tuple[Url, ...]:
    """Parses URLs. Names an invalid one by its number, because its content is secret."""
    urls, wrong = list[Url](), list[int]()
    for number, item in enumerate(value if isinstance(value, list) else [value], 1):
        try:
            urls.append(parse_url(_text(item)))
        except ValueError:
            wrong.append(number)
    if not isinstance(value, list):
        raise InvalidValue(valid=tuple(urls))
    if wrong:
        raise InvalidValue(f"number {wrong[0]} is not a URL: expected a URL such as {_SERVICE}", tuple(urls))
    return tuple(urls)


def _events(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidValue
    wrong = [(item, f"is not one of {', '.join(map(show, EVENT_WORDS))}") for item in value if item not in EVENT_WORDS]
    if wrong:
        raise RefusedItems(wrong)
    return tuple(event for event in EVENT_WORDS if event in value)


def _text_as(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Returns a parser of values that must be texts."""
    return lambda value: parse(_text(value))


def _or_none(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a parser that also accepts "none", for no limit."""
    return lambda value: None if _text(value).strip() == "none" else parse(value)


def _list_of(parse: Callable[[str], str], expected: str) -> Callable[[Any], tuple[str, ...]]:
    """Returns a parser of a list of texts, each parsed by `parse`; it names the invalid one."""

    def parse_all(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise InvalidValue
        parsed, wrong = [], []
        for item in value:
            try:
                parsed.append(parse(_text(item)))
            except ValueError:
                wrong.append((item, expected))
        if wrong:
            raise RefusedItems(wrong)
        return tuple(dict.fromkeys(parsed))

    return parse_all


def _verb_counts(value: Any) -> dict[str, int]:
    """Parses "download 60": a verb and a number above zero."""
    if not isinstance(value, list):
        raise InvalidValue
    counts, wrong = dict[str, int](), list[tuple[Any, str]]()
    for item in value:
        verb, _, number = _text(item).partition(" ")
        if verb not in SERVICE_VERBS:
            wrong.append((item, f"there is no verb {show(verb)}{nearest(verb, SERVICE_VERBS)}"))
        elif not number.isascii() or not number.isdigit() or not 0 < int(number) <= _MOST_REQUESTS:
            wrong.append((item, f"expected a number from 1 to {_MOST_REQUESTS} after {verb}"))
        else:
            counts[verb] = int(number)
    if wrong:
        raise RefusedItems(wrong)
    return counts


_MOST_REQUESTS = 1_000_000
_DUMP = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,49}|/\S*[^\s/]", re.ASCII)


def _loads(value: Any) -> dict[str, str]:
    """Parses "shop load-shop": the name of a dump or a path without spaces, and a command for the shell."""
    if not isinstance(value, list):
        raise InvalidValue
    loads, wrong = dict[str, str](), list[tuple[Any, str]]()
    for item in value:
        dump, _, command = _text(item).partition(" ")
        if not _DUMP.fullmatch(dump):
            wrong.append((item, "expected the name of a dump, or a path of the backup, at its start"))
        elif not command.strip() or not command.isprintable():
            wrong.append((item, f"expected a command on one line after {dump}"))
        elif dump in loads:
            wrong.append((item, f"there is another command for {dump}"))
        else:
            loads[dump] = command.strip()
    if wrong:
        raise RefusedItems(wrong)
    return loads


def _history(value: Any) -> str | None:
    """Parses "daily=7, weekly=4" into the form in which a host gets it."""
    if _text(value).strip() == "none":
        return None
    counts = dict[str, int]()
    for part in value.split(","):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in choices.HISTORY_PERIODS:
            raise InvalidValue(f"there is no rule {show(name)}{nearest(name, choices.HISTORY_PERIODS)}")
        if name in counts or not number.isascii() or not number.isdigit() or not 0 < int(number) <= _MOST_PERIODS:
            raise InvalidValue
        counts[name] = int(number)
    return ",".join(f"{name}={counts[name]}" for name in choices.HISTORY_PERIODS if name in counts)


def _ip(text: str) -> str:
    return str(ip_address(text))


def _one_of(words: tuple[str, ...]) -> ValueKind:
    """One of a few words: its title in the documentation names them all."""
    literals = [f'``"{word}"``' for word in words]
    expected = f"one of {', '.join(map(show, words))}"

    def parse(value: Any) -> str:
        if value not in words:
            near = nearest(value, words) if isinstance(value, str) else ""
            raise InvalidValue(f"expected {expected}{near}")
        return str(value)

    return ValueKind(f"{', '.join(literals[:-1])} or {literals[-1]}", expected, parse, words)


def _zone(value: Any) -> ZoneInfo:
    try:
        return ZoneInfo(_text(value))
    except InvalidValue:
        raise
    except (ValueError, KeyError, OSError):  # raised by zoneinfo for invalid names, unknown ones and folders of zones
        raise InvalidValue(f"unknown time zone{_near_zone(str(value))}") from None


def _near_zone(name: str) -> str:
    import zoneinfo

    zones = zoneinfo.available_timezones()
    return nearest(name, zones) if zones else "; this machine has no time zones, install the package tzdata"


class CopySource(Enum):
    """The value is neither an address nor a folder."""

    PUSH = "push"


def _copy_source(value: Any) -> str | Path | CopySource:
    """An address, or the folder of a pool; PUSH if the other server sends."""
    if _text(value) == CopySource.PUSH.value:
        return CopySource.PUSH
    return _copy_target(value) if value.startswith("ssh://") else parse_path(value)


def _copy_target(value: Any) -> str:
    if not _text(value).startswith("ssh://"):
        raise ValueError
    return parse_address(value.removeprefix("ssh://"))


def _restic_repository(value: Any) -> str:
    """Without a password, because messages and `ps` show it."""
    text = _text(value)
    if not text.strip() or any(ord(letter) < 32 for letter in text) or re.search(r"://[^/\s]*:[^/\s]*@", text):
        raise InvalidValue("a repository of restic without a password; one with a password goes into environment_file")
    return text


_HOST_PATTERN = re.compile(r"[\w.*?\[\]!-]{1,200}")


def _host_pattern(text: str) -> str:
    if not _HOST_PATTERN.fullmatch(text):
        raise ValueError
    return text


def _group(value: Any) -> str:
    fault = name_fault(_text(value))
    if fault:
        raise InvalidValue(fault)
    return str(value)


ADDRESSES = ValueKind("list of addresses", 'a list of IP addresses such as ["127.0.0.1"]', _list_of(_ip, "expected an IP address"))
ADDRESS = ValueKind("address", 'an address such as "root@web1.example.org"', parse_address)
COMMAND = ValueKind("command line", 'a command on one line, such as "sudo rsync"', _command)
COUNT = ValueKind("whole number", "a whole number from 1, such as 4, without quotes", _count)
COUNT_LIMIT = ValueKind("whole number", 'a whole number from 1, such as 1000000, without quotes, or "none"', _count_limit)
DURATION = ValueKind("duration", 'a duration such as "30m", "6h", "1d" or "2w"', _duration)
EVENTS = ValueKind("list of events", 'a list of events such as ["failure", "suspect"]', _events)
FLAG = ValueKind("true or false", "true or false, without quotes", _flag, ("true", "false"))
HISTORY = ValueKind("rules", 'rules such as "daily=7, weekly=4" (daily, weekly, monthly, yearly), or "none"', _history)
LISTEN = ValueKind("address and port", 'an address and a port such as "127.0.0.1:8765" or "[::1]:8765"', _text_as(parse_listen))
LOADS = ValueKind(
    "list of dumps and commands",
    'a list of dumps, each with a command, such as ["postgresql /usr/local/sbin/load-postgresql"]',
    _loads,
)
NAMES = ValueKind(
    "list of names", 'a list of names such as ["backup.example.org"]', _list_of(parse_host_name, "expected a host's name")
)
SIZE_OR_SHARE = ValueKind(
    "share or size", 'a percentage up to "100%" such as "5%", or a size such as "20GiB"', _text_as(parse_min_free)
)
NUMBER = ValueKind("whole number", "a whole number from 0, such as 14, without quotes", _number)
MOUNT_OPTION = _one_of((*ALLOCATORS, "none"))
PACE = ValueKind(
    "pace", 'a latency up to "60s" such as "50ms", a share of I/O pressure such as "10%", or "off"', _text_as(parse_pace)
)
POLICY = _one_of(tuple(BALANCE_POLICIES))
PRESSURE = ValueKind("share", 'a percentage from "0%" to "100%" such as "40%", or "none"', _or_none(parse_share))
SIZE_LIMIT = ValueKind("size", 'a size above zero such as "20GiB", or "none"', _size_limit)
TIME_LIMIT = ValueKind("duration", 'a duration such as "2h", or "none"', _or_none(_duration))
PATH = ValueKind("path", 'an absolute path such as "/srv/backup"', parse_path)
GROUP = ValueKind("name of a group", 'the name of a group, such as "debian"', _group)
HOST_NAME = ValueKind("name of a host", 'the name of a host, such as "web1"', _group)
POOL_NAME = ValueKind("name of a pool", 'the name of a pool, such as "main"', _group)
COPY_SOURCE = ValueKind(
    "address or path",
    'an address such as "ssh://root@backup1.example.org", an absolute path such as "/srv/backup", or "push"',
    _copy_source,
)
COPY_TARGET = ValueKind("address", 'an address such as "ssh://root@backup2.example.org"', _copy_target)
HOST_PATTERNS = ValueKind(
    "list of hosts",
    'a list of names or patterns such as ["web*", "db1"]',
    _list_of(_host_pattern, "expected a host's name or a pattern"),
)
RESTIC_REPOSITORY = ValueKind(
    "restic repository", 'a repository such as "rest:https://copies.example.org/main"', _restic_repository
)
CONFINE = _one_of(("auto", "always", "never"))
IN_PLACE = _one_of(choices.IN_PLACE)
SNAPSHOTS = _one_of(choices.SNAPSHOTS)
ENGINE = _one_of(choices.ENGINES)
PATTERNS = ValueKind("list of exclude patterns", 'a list of patterns such as ["/var/cache/*", "*.tmp"]', parse_patterns)
PING = ValueKind("URL", 'a URL such as "https://hc-ping.com/UUID", http or https, without ? and #', _text_as(parse_ping))
PORT = ValueKind("whole number", "a port from 1 to 65535, such as 22, without quotes", _port)
RATE = ValueKind("size per second", 'bytes per second, such as "16MB"', _rate)
SAMPLE = ValueKind("sample", 'a number of names such as "1000", a share of them such as "5%", or "all"', _text_as(parse_sample))
SAMPLE_OR_NONE = ValueKind("sample", 'a number such as "200", a share such as "1%", "all", or "none"', _or_none(parse_sample))
SHARE = ValueKind("share", 'a percentage from "0%" to "100%", such as "50%"', _text_as(parse_share))
SOURCES = ValueKind("list of absolute paths", 'a list of one absolute path or more, such as ["/etc", "/srv"]', parse_sources)
SSH_FILE = ValueKind("path", 'an absolute path such as "/etc/btrkeep/id_ed25519"', parse_ssh_file)
SSH_OPTIONS = ValueKind("list of NAME=VALUE", f"a list of ssh's options such as [{_JUMP}]", _ssh_options)
TIME_OF_DAY = ValueKind("time of the day", 'a time such as "08:00", or "none"', _text_as(parse_time_of_day))
URLS = ValueKind("list of URLs", f"a list of URLs such as [{_SERVICE}]", _urls)
VERB_COUNTS = ValueKind("list of verbs and numbers", 'a list of verbs, each with a number, such as ["download 60"]', _verb_counts)
WINDOW = ValueKind("window of the day", 'a window such as "22:00-06:00", or "none"', _window)
WORDS = ValueKind("list of words", 'a list of words, none of them empty, such as ["/usr/local/bin/dump", "{address}"]', _words)
ZONE = ValueKind("time zone", 'the name of a time zone such as "Europe/Berlin"', _zone)
