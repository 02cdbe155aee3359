"""The names of hosts and backups, and small JSON files. The size of a file is limited when it is read, because a pool may come from
elsewhere; a file is replaced completely.

POOL/.btrkeep/boot.json is one of them: the last boot of a server that used the pool, whether it ended with a shutdown, and the
backups to be read. A crash that undoes changes in the pool undoes them in this file, too. {"format": 1, "boot": ID, "seen": TIME,
"stopped": BOOL, "unread": [[HOST, NAME], ...]}
"""

import errno
import json
import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from btrkeep.descriptors import ClosingFd
from btrkeep.pool.atomic import NO_ROOM, write_atomically
from btrkeep.pool.marker import MARKER, WORKING, Pool
from btrkeep.procfs import boot_id
from btrkeep.units import LARGEST_NUMBER, format_time, parse_backup_name, parse_time


def hosts_of(pool: Pool) -> list[str]:
    """Returns the hosts that have a folder in the pool."""
    return sorted(entry.name for entry in os.scandir(pool.hosts) if entry.is_dir(follow_symlinks=False))


def is_pattern(word: str) -> bool:
    """True for a pattern of hosts, such as web*; no host's name has such characters."""
    return not {*"*?["}.isdisjoint(word)


def names_of(pool: Pool, host: str, wanted: AbstractSet[str] = frozenset()) -> set[str]:
    """Returns the names in a host's folder that may be backups, including `.working`.

    Names that are in `wanted` are not parsed, which saves half of the time if there are many.
    """
    try:
        names = [entry.name for entry in os.scandir(pool.host(host))]
        return {name for name in names if name in wanted or name == WORKING or parse_backup_name(name)}
    except FileNotFoundError:
        return set()


_FORMAT = 1  # of each of these files
LARGEST = 16 << 20
"""The maximum bytes of such a file, backup.json among them; real ones have some thousands."""

NOT_UNDERSTOOD = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""The exceptions for invalid JSON, too deep nesting, and unexpected values."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # it may be a fifo
_log = logging.getLogger(__name__)

T = TypeVar("T")


def text_of_file(path: Path) -> str:
    """Returns the text of a regular file; follows no symlink and does not wait for a pipe.

    Raises OSError if it is missing or not a regular file (EINVAL); ValueError if it is not text, or larger than btrkeep writes.
    """
    with ClosingFd(os.open(path, _READ)) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(fd, "rb", closefd=False) as file:
            content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it has more than {LARGEST >> 20} MiB")
    return content.decode("utf-8")


def read_json_file(path: Path, parse: Callable[[Any], T], nothing: T) -> T:
    """Returns the result of `parse` for the file's fields; `nothing` if there is no file, or if it cannot be read,
    which is logged.
    """
    try:
        return parse(json.loads(text_of_file(path)))
    except FileNotFoundError:
        return nothing
    except (OSError, *NOT_UNDERSTOOD) as error:
        _log.warning("%s cannot be read: %s", path, error)
        return nothing


def has_room(text: str) -> bool:
    """Returns True if text_of_file would read that."""
    return len(text.encode("utf-8", "surrogateescape")) <= LARGEST


def replace_json_file(path: Path, texts: Iterable[str], version: int) -> None:
    """Replaces the file by the first of the texts that is small enough to be read again, or the last. `version`: their "format".

    Does not replace a file of a later version of btrkeep, which may contain more. Raises OSError.
    """
    with suppress(OSError, *NOT_UNDERSTOOD):
        if int(json.loads(text_of_file(path))["format"]) > version:
            _log.warning("%s was written by a later version of btrkeep, and is not changed", path)
            return
    text = ""
    for text in texts:
        if has_room(text):
            break
    write_atomically(path, text)


def number_of(value: Any) -> int:
    """Returns a number of a file, if a column of the catalogue can store it. Raises ValueError."""
    if abs(number := int(value)) > LARGEST_NUMBER:
        raise ValueError(f"{number} is too large")
    return number


def path_of(value: Any) -> str:
    """Returns a path of a file. Raises ValueError if it is not a possible path."""
    if b"\0" in os.fsencode(path := str(value)):
        raise ValueError(f"{path!r} is not the path of a file")
    return path


# --- verified.json, compared.json, damaged.json: more about them in verification_files

VERIFIED, COMPARED, DAMAGED = "verified.json", "compared.json", "damaged.json"
_PATHS: Mapping[str, Callable[[Any], Iterable[Any]]] = {
    VERIFIED: lambda verification: verification["damaged"],
    COMPARED: lambda comparison: comparison["differs"],
    DAMAGED: lambda damages: [damage["path"] for damage in damages],
}


def damaged_paths(folder: Path, name: str) -> frozenset[bytes]:
    """Returns the files that are recorded as damaged of a backup of the host with that folder.

    A restore needs no more; it would start a sixth later with the types of the catalogue, which the other records need.
    """

    def paths(file: str, fields: Mapping[str, Any]) -> list[bytes]:
        backup = fields["backups"].get(name) if fields["format"] == _FORMAT else None
        return [os.fsencode(path_of(path)) for path in _PATHS[file](backup)] if backup else []

    nothing = list[bytes]()
    return frozenset(path for file in _PATHS for path in read_json_file(folder / file, partial(paths, file), nothing))


# --- boot.json


BOOT = "boot.json"


@dataclass(frozen=True, slots=True)
class BootRecord:
    """The last boot of a server that used the pool."""

    boot: str
    """The id of the kernel's boot."""
    seen: datetime
    """When the boot was recorded, or when it ended with a shutdown."""
    stopped: bool = False
    """True if it ended with a shutdown."""
    unread: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """Host and name of the backups that a crash may have damaged and that have not been read since."""


def read_boot(pool: Pool) -> BootRecord | None:
    """Reads the record; None if it is missing or invalid, which counts as a crash."""
    return read_json_file(_path(pool), _boot_record, None)


def has_backups_in_doubt(pool: Pool, hosts: Collection[str] | None = None) -> bool:
    """True if this boot was not examined yet, or a backup of these hosts (None: of any host) is in doubt. In a rehearsal there are
    no boots.
    """
    if pool.rehearsal:
        return False
    previous = read_boot(pool)
    return previous is None or previous.boot != boot_id() or any(hosts is None or host in hosts for host, _ in previous.unread)


def _boot_record(fields: Mapping[str, Any]) -> BootRecord:
    if fields["format"] != _FORMAT:
        raise ValueError(f"format {fields['format']}")
    unread = frozenset((str(host), str(name)) for host, name in fields["unread"])
    return BootRecord(str(fields["boot"]), parse_time(fields["seen"]), bool(fields["stopped"]), unread)


def note_new_pool(pool: Pool) -> None:
    """Records that no crash before this boot can have damaged anything: fetched backups are not read before the first run."""
    write_boot(pool, BootRecord(boot_id(), datetime.now(UTC)))


def write_boot(pool: Pool, record: BootRecord) -> None:
    """Replaces the record. On a full pool the old one remains, so more than necessary is read. Raises OSError."""
    fields = {
        "format": _FORMAT,
        "boot": record.boot,
        "seen": format_time(record.seen),
        "stopped": record.stopped,
        "unread": sorted(record.unread),
    }
    try:
        write_atomically(_path(pool), json.dumps(fields, indent=1) + "\n")
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _log.warning("%s cannot be replaced: %s", _path(pool), error.strerror)


def _path(pool: Pool) -> Path:
    return pool.path / MARKER / BOOT
