"""Which backup of each host two pools have in common: the newest, which the next difference is to.

POOL/.btrkeep/common/NAME.json, written on both sides at the end of a replication; expiry on either side leaves these alone. An
administrator who gives a replica up deletes the file. POOL/.btrkeep/copied/NAME.json names all backups that both had by then, for
the dashboard alone.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from backupd.repo.backup_json import NOT_UNDERSTOOD, UnreadableRecord, text_of_file
from btrkeep.config.sources import name_fault
from btrkeep.errors import OperatorError
from btrkeep.pool.atomic import write_atomically
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.units import parse_backup_name

FORMAT = 1
_FOLDER = "common"
_COPIED = "copied"
_MOST = 100  # replicas of one pool
CommonBackups = Mapping[str, Mapping[str, tuple[str, ...]]]
"""By host and backup, the names of the replicas that have it in common with this pool."""


@dataclass(frozen=True, slots=True)
class _File:
    replica: str
    path: Path


def write_common(pool: Pool, replica: str, hosts: Any) -> None:
    """Replaces what is recorded for one replica: the backup's name by host. Raises OperatorError for invalid data."""
    if name_fault(replica):
        raise OperatorError("that cannot be a replica's name")
    if not isinstance(hosts, dict) or not all(_is_named(host, name) for host, name in hosts.items()):
        raise OperatorError("that is no list of backups")
    _write(pool.path / MARKER / _FOLDER, replica, hosts)


def write_copied(pool: Pool, replica: str, hosts: Any) -> None:
    """Replaces the names of all backups that both this pool and the replica have, by host. Raises OperatorError for bad data."""
    if name_fault(replica):
        raise OperatorError("that cannot be a replica's name")
    if not _is_copied(hosts):
        raise OperatorError("that is no list of backups")
    _write(pool.path / MARKER / _COPIED, replica, hosts)


def copied_to(pool: Pool, replica: str) -> dict[str, list[str]]:
    """Returns the names of all backups that this pool and the replica both had, by host; empty if that is unknown."""
    try:
        hosts = json.loads(copied_text(pool, replica) or "{}")["hosts"]
    except (OSError, *NOT_UNDERSTOOD):
        return {}
    return hosts if _is_copied(hosts) else {}


def copied_text(pool: Pool, replica: str) -> str | None:
    """Returns the same as it is written, a JSON object with the key `hosts`; None if there is none. Raises OSError, ValueError."""
    try:
        return text_of_file(pool.path / MARKER / _COPIED / f"{replica}.json")
    except FileNotFoundError:
        return None


def common_with(pool: Pool, replica: str) -> dict[str, str]:
    """Returns what one replica has, by host. Raises UnreadableRecord."""
    return next((_read(file.path) for file in _files(pool) if file.replica == replica), {})


def common_of_all(pool: Pool) -> dict[str, dict[str, str]]:
    """Returns what each replica has, by host. Raises UnreadableRecord."""
    return {file.replica: _read(file.path) for file in _files(pool)}


def drop_common(pool: Pool, replica: str, hosts: Collection[str]) -> None:
    """Ends keeping backups of these hosts for that replica. Raises UnreadableRecord."""
    if known := common_with(pool, replica):
        write_common(pool, replica, {host: name for host, name in known.items() if host not in hosts})


def rename_common(pool: Pool, old: str, new: str) -> None:
    """Renames a host in the record of what replicas have in common with this pool. Raises UnreadableRecord."""
    for file in _files(pool):
        if old in (known := _read(file.path)):
            write_common(pool, file.replica, {new if host == old else host: name for host, name in known.items()})
        if old in (copied := copied_to(pool, file.replica)):
            write_copied(pool, file.replica, {new if host == old else host: names for host, names in copied.items()})


def _is_copied(hosts: Any) -> TypeGuard[dict[str, list[str]]]:
    return isinstance(hosts, dict) and all(
        isinstance(names, list) and all(_is_named(host, name) for name in names) for host, names in hosts.items()
    )


def _is_named(host: Any, name: Any) -> bool:
    return isinstance(host, str) and not name_fault(host) and isinstance(name, str) and parse_backup_name(name) is not None


def common_backups(pool: Pool) -> CommonBackups:
    """Returns what all replicas have. Raises UnreadableRecord: it is unknown then what may be deleted."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for file in _files(pool):
        for host, name in _read(file.path).items():
            of_host = found.setdefault(host, {})
            of_host[name] = (*of_host.get(name, ()), file.replica)
    return found


def _write(folder: Path, replica: str, hosts: Mapping[str, Any]) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{replica}.json"
    if not path.exists() and len(list(folder.iterdir())) >= _MOST:
        raise OperatorError(f"{folder} has {_MOST} replicas already", "delete those that are given up")
    write_atomically(path, json.dumps({"format": FORMAT, "hosts": hosts}) + "\n")


def _read(path: Path) -> dict[str, str]:
    try:
        content = json.loads(text_of_file(path))
        if content["format"] > FORMAT:
            raise ValueError(f"it has format {content['format']}, this program knows {FORMAT}")
        return dict(content["hosts"])
    except (OSError, *NOT_UNDERSTOOD) as error:
        raise UnreadableRecord(
            f"{path} cannot be read: {error}", "mend it, or delete it if the replica is given up; nothing expires now"
        ) from None


def _files(pool: Pool) -> Iterator[_File]:
    folder = pool.path / MARKER / _FOLDER
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return
    yield from (_File(name.removesuffix(".json"), folder / name) for name in names if name.endswith(".json"))
