"""Sizes, durations, shares, moments and names: between what people write and what programs count.

Sizes are bytes as int, durations are seconds as float, shares are fractions of one, moments are aware UTC datetimes.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import MAXYEAR, MINYEAR, UTC, datetime, tzinfo

_SIZE_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "PIB": 2**50,
}  # fmt: skip
_WRITTEN_UNITS = [(f"{letter}{end}", base**power) for base, end in ((1 << 10, "iB"), (1000, "B"))
                  for power, letter in enumerate("KMGTP", 1)]  # fmt: skip
_DURATION_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_NUMBER_AND_LETTERS = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.ASCII)
_NO_UTF8 = re.compile(r"[\udc80-\udcff]")
_STAMP = "%Y-%m-%dT%H%M%SZ"
_STAMP_SHAPE = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d)(\d\d)(\d\d)Z", re.ASCII)


def parse_size(text: str) -> int:
    """Parses "16MB" (decimal), "20GiB" or "20G" (binary), or "512" into bytes. Raises ValueError."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if not match or match[2].upper() not in _SIZE_UNITS:
        raise ValueError(f"{text!r} is not a size: write a number and a unit, such as 16MB or 20GiB")
    return round(float(match[1]) * _SIZE_UNITS[match[2].upper()])


def parse_duration(text: str) -> float:
    """Parses "30m", "6h", "1d", "1d12h" or "2w" into seconds. Raises ValueError."""
    pieces, rest = _NUMBER_AND_LETTERS.findall(text), _NUMBER_AND_LETTERS.sub("", text).strip()
    if not pieces or rest or any(unit not in _DURATION_UNITS for _, unit in pieces):
        raise ValueError(f"{text!r} is not a duration: write a number and a unit, such as 30m, 6h, 1d or 2w")
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in pieces)


def parse_share(text: str) -> float:
    """Parses "5%" into a fraction: 0.05. Raises ValueError if it is not between 0 % and 100 %."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text, re.ASCII)
    if not match or float(match[1]) > 100:
        raise ValueError(f"{text!r} is not a share: write a percentage between 0% and 100%")
    return float(match[1]) / 100


def format_size(size: int | None) -> str:
    """Formats bytes with three significant digits and a binary unit: 1536 is "1.50 KiB", None is "-"."""
    return "-" if size is None else " ".join(size_parts(size))


def size_short(size: int) -> str:
    """Returns `format_size` without zeros at the end: "20 TiB" instead of "20.0 TiB"."""
    number, unit = size_parts(size)
    return f"{float(number):g} {unit}"


def size_parts(size: int) -> tuple[str, str]:
    """Returns the number, with three significant digits, and the binary unit."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while abs(value) >= 1000 and len(units) > 1:
        value, units = value / 1024, units[1:]
    if units[0] == "B":
        return str(size), "B"
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}", units[0]


def format_given(size: int) -> str:
    """Formats a size in the unit in which it was written: 16,000,000 is "16 MB", 20 << 30 is "20 GiB".

    Chooses the unit that needs the fewest digits, of two the binary one; a size that needs more than three decimals is formatted by
    `format_size`.
    """
    exact = [
        (f"{size / each:.3f}".rstrip("0").rstrip("."), unit)
        for unit, each in _WRITTEN_UNITS
        if each <= size < 10_000 * each and size * 1000 % each == 0
    ]
    number, unit = min(exact, key=lambda parts: len(parts[0]), default=size_parts(size))
    return f"{number} {unit}"


def format_duration(seconds: float | None) -> str:
    """Formats with two units: 3725 s is "1h 2m", 0.4 s is "0.4s". None is "-", and so is a negative duration, because a clock was
    set back.
    """
    if seconds is None or seconds < 0:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    parts = [(whole // 86400, "d"), (whole % 86400 // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Returns the seconds between two times; None if one is unknown, or if the clock was set back between them."""
    seconds = (end - start).total_seconds() if start and end else -1.0
    return seconds if seconds >= 0 else None


def format_share(share: float) -> str:
    """0.034 is "3.4%"."""
    return f"{share * 100:.1f}%".replace(".0%", "%")


def counted(number: int, noun: str) -> str:
    """Formats a number with a noun whose plural ends in s: "1 host", "2,000 hosts"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def names_in_words(names: Sequence[str], most: int = 5, noun: str = "") -> str:
    """Formats the first names: "a, b and 17 more"; with a noun: "a, b and 17 more hosts"."""
    shown, left = ", ".join(names[:most]), len(names) - most
    return shown if left <= 0 else f"{shown} and {counted(left, f'more {noun}') if noun else f'{left:,} more'}"


def format_time(moment: datetime) -> str:
    """Formats a time as RFC 3339 in UTC with Z, whole seconds: 2026-11-20T22:00:03Z."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat()[:19] + "Z"  # strftime takes twice as long, and a long list has 200,000 times


_zone: tzinfo | None = None


def show_times_in(zone: tzinfo) -> None:
    """Sets the zone of all times in words of this process: that of its pool. Called only when a program reads its configuration.
    UTC until then.
    """
    global _zone  # a process serves one pool, and a hundred places print times
    _zone = zone


def zone_of_pool() -> tzinfo | None:
    """Returns the zone of the pool of this process; None if it has none, or has not read its configuration."""
    return _zone


def local_time(moment: datetime) -> str:
    """Formats a time in words: RFC 3339 in the pool's zone with its offset, whole seconds. `parse_time` reads it.
    2026-11-20T23:00:03+01:00; with Z if the zone is UTC.
    """
    if _zone is None or _zone is UTC or getattr(_zone, "key", "") == "UTC":
        return format_time(moment)
    return in_zone(moment).isoformat(timespec="seconds")


def local_minute(moment: datetime) -> str:
    """Formats the same without seconds, for tables: 2026-11-20 23:00 +0100."""
    return f"{in_zone(moment):%Y-%m-%d %H:%M %z}"


def local_day(moment: datetime) -> str:
    """Formats the day of a time in the pool's zone: 2026-11-20."""
    return f"{in_zone(moment):%Y-%m-%d}"


def recorded_time(text: str) -> str:
    """Formats the same for a time that a record has as text; any other text is returned unchanged."""
    try:
        return local_time(parse_time(text))
    except ValueError:
        return text


def in_zone(moment: datetime) -> datetime:
    """Returns the local time in the pool's zone, for axes and calendars."""
    try:
        return moment.astimezone(_zone or UTC)
    except OverflowError:  # the first and the last day of the calendar
        return moment


def parse_time(text: str) -> datetime:
    """Parses an RFC 3339 or ISO 8601 time to an aware UTC datetime. Raises ValueError if it is invalid or has no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: write it like 2026-11-20T22:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no zone: end it with Z or an offset, such as 2026-11-20T22:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is not a date of the years 1 to 9999") from None


def backup_name(started: datetime) -> str:
    """Returns the folder name of a backup: 2026-11-20T220003Z, its start in UTC."""
    return started.astimezone(UTC).strftime(_STAMP)


def parse_backup_name(name: str) -> datetime | None:
    """Returns when the backup of that name started; None if it is not the name of a backup. The first and the last possible year
    are rejected, because some of their days do not exist in every zone.
    """
    match = _STAMP_SHAPE.fullmatch(name)
    if not match:
        return None
    year, month, day, hour, minute, second = map(int, match.groups())
    if not MINYEAR < year < MAXYEAR:
        return None
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC)  # strptime takes five times as long
    except ValueError:
        return None


def printable(text: str | bytes) -> str:
    """Returns `text` in a form that is safe to show: bytes that are not UTF-8, control and format characters become visible
    escapes. File names and messages of a host are not trusted: they must not move the cursor or imitate a line.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def percent_encoded(name: str | bytes) -> str:
    """Returns the bytes of a name or path in ASCII, in the form of an address: "/srv/caf%E9"."""
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name, safe="/")


def with_encoded(value: object) -> object:
    """Prepares a value for JSON: beside each text NAME with bytes that are not UTF-8, adds NAME_encoded with all its bytes. Few
    parsers return the lone surrogates that represent such bytes in the text.
    """
    if isinstance(value, list | tuple):
        return [with_encoded(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    encoded: dict[str, object] = {}
    for name, member in value.items():
        encoded[name] = with_encoded(member)
        if isinstance(member, str) and _NO_UTF8.search(member):
            encoded[f"{name}_encoded"] = percent_encoded(member)
    return encoded


LARGEST_NUMBER = (1 << 63) - 1
"""The largest whole number that SQLite keeps."""
LARGEST_COUNT = 1 << 60
"""An exbibyte: no host has more bytes or files."""


def bounded(number: int) -> int:
    """Limits a count or a size from a host, or a sum of such, to the possible values: from 0 to LARGEST_COUNT."""
    return min(max(0, number), LARGEST_COUNT)
