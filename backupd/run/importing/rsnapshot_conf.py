"""Reads rsnapshot.conf: the folder of its snapshots, and the settings that btrkeep also has.

rsnapshot requires tabs between parameters. Spaces are accepted as well, because copies of the file often have them. A command in
backquotes is never run.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from btrkeep.config.config_model import PERIOD_NAMES
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import UsageError

LARGEST = 1 << 20  # bytes of a file
_DEEPEST = 8  # files that include each other
_MOST_FILES = 1000  # in total: a few files that include each other can be read many times
_MOST_TEXT = 4 << 20  # characters of all files: in memory, lines and patterns take up to twenty times as much
_MOST_DIGITS = 6  # in a number of backups


@dataclass(frozen=True, slots=True)
class BackupPoint:
    """A `backup` line."""

    host: str
    """The host, as its folder is named."""
    address: str | None
    """The host's address for ssh; None: this machine."""
    path: str
    """The source path."""


@dataclass(frozen=True, slots=True)
class RsnapshotConf:
    """The used part of an rsnapshot.conf."""

    root: Path | None = None
    """Its snapshot_root; None: it has none."""
    retain: Mapping[str, int] = field(default_factory=dict)
    """Its `retain` lines: number by name."""
    points: tuple[BackupPoint, ...] = ()
    """Its `backup` lines."""
    exclude: tuple[str, ...] = ()
    """Its exclude patterns."""
    untranslated: tuple[str, ...] = ()
    """Lines that have no equivalent in btrkeep, for messages."""


def read_conf(conf: Path) -> RsnapshotConf:
    """Reads the file, and the files that it includes. Raises UsageError, OSError."""
    root, retain = None, dict[str, int]()
    points, exclude, untranslated = list[BackupPoint](), list[str](), list[str]()
    reader = _Reader()
    for key, *values in _statements(conf, _DEEPEST, reader):
        value = values[0] if values else ""
        match key:
            case "snapshot_root" if value:
                root = Path(value)
            case "retain" | "interval" if len(values) > 1 and _is_count(values[1]) and value in PERIOD_NAMES:
                retain[value] = int(values[1])
            case "exclude" if value:
                exclude.append(value)
            case "exclude_file" if value and Path(value).is_file():
                exclude += [line for line in reader.lines(Path(value)) if line.strip() and line[0] not in "#;"]
            case "backup" if len(values) > 1 and (point := _point(value, values[1])):
                points.append(point)
                untranslated += [" ".join((key, *values))] if len(values) > 2 else []
            case "retain" | "interval" | "backup" | "backup_script" | "include" | "include_file" | "exclude_file":
                untranslated.append(" ".join((key, *values)))
    return RsnapshotConf(root, retain, tuple(points), tuple(exclude), tuple(untranslated))


class _Reader:
    """Reads the files of one configuration, up to a maximum number."""

    def __init__(self) -> None:
        self._files, self._text = _MOST_FILES, _MOST_TEXT

    def lines(self, file: Path) -> list[str]:
        """Returns the lines of a file. Raises UsageError if it cannot be read, and if there are too many files."""
        lines = read_lines(file)
        self._files -= 1
        self._text -= sum(map(len, lines))
        if self._files < 0 or self._text < 0:
            raise UsageError(
                f"{file}: files include each other without end, or are too long together",
                "give the folder snapshot_root instead of the file",
            )
        return lines


def _statements(conf: Path, depth: int, reader: _Reader) -> Iterator[Sequence[str]]:
    """Yields a key and its values for each line that has any. Raises UsageError."""
    if not depth:
        raise UsageError(f"{conf}: files include each other without end", "give the folder snapshot_root instead of the file")
    for line in reader.lines(conf):
        if not line.strip() or line.lstrip().startswith("#") or "\0" in line:  # a path cannot contain a NUL
            continue
        words = [word.strip() for word in line.split("\t")] if "\t" in line.strip() else line.split()
        key, *values = [word for word in words if word]
        if key == "include_conf" and values:
            if "`" in " ".join(values):
                raise UsageError(
                    f"{conf}: include_conf would run a command, which is not permitted",
                    "give the folder snapshot_root instead of the file",
                )
            yield from _statements(conf.parent / values[0], depth - 1, reader)
        else:
            yield key, *values


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _point(source: str, destination: str) -> BackupPoint | None:
    """Parses a `backup` line. Returns None for a source that is neither a path nor a path over ssh (a module of a daemon, LVM)."""
    host = destination.strip("/").partition("/")[0]
    address, colon, path = source.rpartition(":")
    if "::" in source or "://" in source or not path.startswith("/") or not host or host in (".", ".."):
        return None
    return BackupPoint(host, address if colon else None, "/" + path.strip("/"))


def read_lines(file: Path) -> list[str]:
    """Returns the lines of a text file, up to LARGEST bytes. Raises UsageError if it cannot be read, or is a pipe or a device,
    which may have no end.
    """
    try:
        with ClosingFd(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise UsageError(f"{file} is not a regular file")
            with open(fd, "rb", closefd=False) as opened:
                return opened.read(LARGEST).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
