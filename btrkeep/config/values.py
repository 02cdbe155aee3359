"""Values that are more than a number or a word: a window of the day, a floor of free space, a pace, a URL with secrets.

They keep the text that was written, which is shown to users. Of a URL only its scheme is shown, because it may contain passwords
and tokens.
"""

import re
from dataclasses import dataclass, field
from datetime import time
from ipaddress import IPv4Address, IPv6Address

from btrkeep.units import parse_share, parse_size

_LATENCY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s)\s*", re.ASCII)
_LONGEST_LATENCY = 60.0  # seconds; beyond, nothing would ever pause
_HOST_NAME = re.compile(r"(?!-)[a-z0-9-]+(\.[a-z0-9-]+)*|\[[0-9a-f:.]+\]", re.ASCII)
_LONGEST_NAME = 253
_TIME_OF_DAY = re.compile(r"\s*(\d\d?):(\d\d)\s*", re.ASCII)
_WINDOW = re.compile(r"\s*(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Window:
    """When transfers may start, in the pool's zone: from `start` until before `end`, which may be the next morning."""

    start: time
    end: time

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"


@dataclass(frozen=True, slots=True)
class Listen:
    """An address to listen on."""

    host: str
    """The address; an IPv6 address has no brackets here."""
    port: int
    """The port."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SizeOrShare:
    """A size, or a share of the filesystem."""

    text: str
    """The text in the configuration."""
    share: float | None
    """0 to 1; None: it is a size."""
    size: int = 0
    """Bytes, if `share` is None."""

    def bytes_of(self, total: int) -> int:
        """Returns the floor in bytes of a filesystem of `total` bytes, rounded down."""
        return self.size if self.share is None else int(total * self.share)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FileSample:
    """How many files of a backup: all of them if `number` and `share` are None."""

    text: str
    """The text in the configuration."""
    number: int | None = None
    """This number of files."""
    share: float | None = None
    """A share of them, 0 to 1."""

    @property
    def is_all(self) -> bool:
        """Returns True if it is the whole backup."""
        return self.number is None and self.share is None

    def __str__(self) -> str:
        return self.text


def parse_sample(text: str) -> FileSample:
    """ "1000", "5%" or "all". Raises ValueError."""
    text = text.strip()
    if text == "all":
        return FileSample(text)
    if text.endswith("%"):
        share = parse_share(text)
        if not share:
            raise ValueError(text)
        return FileSample(text, share=share)
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _LARGEST_SAMPLE:
        raise ValueError(text)
    return FileSample(text, number=int(text))


_LARGEST_SAMPLE = 1_000_000  # the chosen names are held in memory


@dataclass(frozen=True, slots=True)
class Pace:
    """A limit on the load that expiry may cause."""

    text: str
    """The text in the configuration."""
    latency: float | None
    """Maximum seconds of a small fsync; None: the limit is a pressure."""
    pressure: float | None = None
    """Maximum share of time that processes wait for I/O, 0 to 1; None: the limit is a latency."""

    def __str__(self) -> str:
        return self.text


def parse_window(text: str) -> Window | None:
    """Parses "22:00-06:00"; returns None for "none". 24:00 is midnight. Raises ValueError for an invalid or empty window."""
    if text.strip() == "none":
        return None
    match = _WINDOW.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a window")
    hour, minute, last_hour, last_minute = map(int, match.groups())
    if (last_hour, last_minute) == (24, 0):
        last_hour = 0
    return Window(time(hour, minute), time(last_hour, last_minute))


def parse_listen(text: str) -> Listen:
    """Parses "127.0.0.1:8765" or "[::1]:8765" into address and port. Raises ValueError for anything else, also for names."""
    host, colon, port = text.strip().rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    host = str(IPv6Address(host[1:-1]) if in_brackets else IPv4Address(host))
    if not colon or not port.isascii() or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not an address and port")
    return Listen(host, int(port))


def parse_host_name(text: str) -> str:
    """Parses a name of the DNS, or an address, without port; in lower case. Raises ValueError."""
    name = text.strip().lower()
    if len(name) > _LONGEST_NAME or not _HOST_NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not the name of a host")
    return name


def parse_time_of_day(text: str) -> time | None:
    """Parses a time such as "08:00"; "none" becomes None. Raises ValueError."""
    if text.strip() == "none":
        return None
    match = _TIME_OF_DAY.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a time of the day")
    return time(int(match[1]), int(match[2]))


def parse_min_free(text: str) -> SizeOrShare:
    """Parses "5%" or "20GiB". Raises ValueError, also above 100 %."""
    if "%" in text:
        return SizeOrShare(text, parse_share(text))
    return SizeOrShare(text, None, parse_size(text))


def parse_pace(text: str) -> Pace | None:
    """Parses "50ms", "0.2s" or "10%"; "off" becomes None.

    Raises ValueError for anything else, also for a latency or a share of zero, and above one minute or 100 %.
    """
    text = text.strip()
    if text == "off":
        return None
    pace = Pace(text, None, parse_share(text)) if "%" in text else Pace(text, _parse_latency(text))
    if not (pace.latency or pace.pressure):
        raise ValueError(f"{text!r} must be above zero")
    return pace


def _parse_latency(text: str) -> float:
    match = _LATENCY.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a pace")
    latency = float(match[1]) * (0.001 if match[2] == "ms" else 1.0)
    if latency > _LONGEST_LATENCY:
        raise ValueError(f"{text!r} is longer than a pause may be")
    return latency


_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://[^\s\x00-\x1f\x7f]+", re.ASCII)
_CREDENTIALS = re.compile(r"://\S*@")
_PING = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+/[!-~]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Url:
    """`text`: the complete URL; str and repr return only the scheme, so that no log and no message shows more."""

    text: str = field(repr=False)

    @property
    def scheme(self) -> str:
        """mailto, ntfy, json, https, ..."""
        return self.text.partition("://")[0].lower()

    def __str__(self) -> str:
        return f"{self.scheme}://..."

    __repr__ = __str__


def without_credentials(text: str) -> str:
    """Returns the text without the part before the @ of a URL."""
    return _CREDENTIALS.sub("://***@", text)


def parse_url(text: str) -> Url:
    """Parses SCHEME://SOMETHING, without spaces. Raises ValueError, which does not repeat the text."""
    if not _URL.fullmatch(text.strip()):
        raise ValueError("no URL")
    return Url(text.strip())


def parse_ping(text: str) -> Url:
    """Parses an http or https URL to which /start can be added. Raises ValueError, which does not repeat the text."""
    if not _PING.fullmatch(text.strip()) or "?" in text or "#" in text:
        raise ValueError("no URL")
    return Url(text.strip().rstrip("/"))
