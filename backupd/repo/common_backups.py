"""The newest backup of each host that two pools share: the next difference is made against it.
POOL/.btrkeep/common/NAME.json is written on both sides at the end of a replication; expiry on both sides keeps these backups. An
administrator who retires a replica deletes the file.

{"format": 1, "hosts": {HOST: NAME}, "seeds": {HOST: [NAMES]}, "told": TIME}

`seeds`: backups written to disks that are being transported. All initial copies of a host are kept until both pools share a backup
of it, because it is unknown which of them will arrive. `told`: when the pool that fetches from this one has last fetched, as it
reported. POOL/.btrkeep/copied/NAME.json names all backups that both pools had by then, only for the dashboard.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

from backupd.repo.backup_json import UnreadableRecord
from backupd.repo.pool_files import NOT_UNDERSTOOD, has_room, text_of_file
from btrkeep.config.sources import name_fault
from btrkeep.errors import OperatorError
from btrkeep.pool.atomic import write_atomically
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.units import format_time, parse_backup_name, parse_time

FORMAT = 1
_FOLDER = "common"
_COPIED = "copied"
_MOST = 100  # replicas of one pool
CommonBackups = Mapping[str, Mapping[str, tuple[str, ...]]]
"""By host and backup: the names of the replicas that share the backup with this pool."""


@dataclass(frozen=True, slots=True)
class _File:
    replica: str
    """The replica's name."""
    path: Path
    """The file with the record of a replica."""


@dataclass(frozen=True, slots=True)
class _Record:
    hosts: dict[str, str]
    """The newest common backup of each host."""
    initial_copies: dict[str, list[str]]
    """The backups of initial copies that are being transported, by host."""
    last_fetched: datetime | None = None
    """When the other pool last fetched; None: never."""


def write_common(pool: Pool, replica: str, hosts: Any, *, fetched: datetime | None = None) -> None:
    """Replaces the record of one replica: the newest common backup by host. Initial copies of other hosts stay. `fetched`: when the
    other pool has fetched; None: it has not.

    Raises OperatorError for invalid data.
    """
    if name_fault(replica):
        raise OperatorError("the name of the replica is invalid")
    if not isinstance(hosts, dict) or not all(_is_named(host, name) for host, name in hosts.items()):
        raise OperatorError("the list of backups is invalid")
    record = _Record({}, {})
    with suppress(UnreadableRecord):  # an unreadable file is replaced
        record = _record(pool, replica)
    _write_common(pool, replica, _Record(hosts, record.initial_copies, fetched or record.last_fetched))


def keep_initial_copy(pool: Pool, replica: str, host: str, name: str) -> None:
    """Keeps a backup until the replica has it, unless both pools already share one. Raises UnreadableRecord, OSError."""
    record = _record(pool, replica)
    initial_copies = record.initial_copies | {host: sorted({*record.initial_copies.get(host, ()), name})}
    _write_common(pool, replica, replace(record, initial_copies=initial_copies))


def _write_common(pool: Pool, replica: str, record: _Record) -> None:
    left = {host: names for host, names in record.initial_copies.items() if host not in record.hosts}
    fields = {"told": format_time(record.last_fetched)} if record.last_fetched else {}
    _write(pool.path / MARKER / _FOLDER, replica, {"hosts": record.hosts} | ({"seeds": left} if left else {}) | fields)


def write_copied(pool: Pool, replica: str, hosts: Any) -> None:
    """Replaces the names of all backups that both this pool and the replica have, by host. Raises OperatorError for
    invalid data.
    """
    if name_fault(replica):
        raise OperatorError("the name of the replica is invalid")
    if not _is_copied(hosts):
        raise OperatorError("the list of backups is invalid")
    _write(pool.path / MARKER / _COPIED, replica, {"hosts": hosts})


def copied_to(pool: Pool, replica: str) -> dict[str, list[str]]:
    """Returns the names of all backups that this pool and the replica both had, by host; empty if that is unknown."""
    try:
        hosts = json.loads(copied_text(pool, replica) or "{}")["hosts"]
    except (OSError, *NOT_UNDERSTOOD):
        return {}
    return hosts if _is_copied(hosts) else {}


def copied_text(pool: Pool, replica: str) -> str | None:
    """Returns the file's content, a JSON object with the key `hosts`; None if there is no file. Raises OSError, ValueError."""
    try:
        return text_of_file(pool.path / MARKER / _COPIED / f"{replica}.json")
    except FileNotFoundError:
        return None


def common_with(pool: Pool, replica: str) -> dict[str, str]:
    """Returns the newest backup of each host that a replica shares with this pool. Raises UnreadableRecord."""
    return _record(pool, replica).hosts


def common_of_all(pool: Pool) -> dict[str, dict[str, str]]:
    """Returns the newest common backup of each host, by replica. Raises UnreadableRecord."""
    return {file.replica: _read(file.path).hosts for file in _files(pool)}


def last_fetches_by_replica(pool: Pool) -> dict[str, datetime]:
    """Returns when each replica that fetches from this pool has last fetched. Raises UnreadableRecord."""
    return {file.replica: last_fetched for file in _files(pool) if (last_fetched := _read(file.path).last_fetched)}


def drop_common(pool: Pool, replica: str, hosts: Collection[str]) -> None:
    """Stops keeping backups of these hosts for that replica. Raises UnreadableRecord."""
    record = _record(pool, replica)
    if record.hosts or record.initial_copies:
        kept = {host: name for host, name in record.hosts.items() if host not in hosts}
        initial_copies = {host: names for host, names in record.initial_copies.items() if host not in hosts}
        _write_common(pool, replica, replace(record, hosts=kept, initial_copies=initial_copies))


def rename_common(pool: Pool, old: str, new: str) -> None:
    """Renames a host in the record of the backups that replicas share with this pool. Raises UnreadableRecord."""
    for file in _files(pool):
        record = _read(file.path)
        if old in record.hosts or old in record.initial_copies:
            hosts = {new if host == old else host: name for host, name in record.hosts.items()}
            initial_copies = {new if host == old else host: names for host, names in record.initial_copies.items()}
            _write_common(pool, file.replica, replace(record, hosts=hosts, initial_copies=initial_copies))
        if old in (copied := copied_to(pool, file.replica)):
            write_copied(pool, file.replica, {new if host == old else host: names for host, names in copied.items()})


def _is_copied(hosts: Any) -> TypeGuard[dict[str, list[str]]]:
    return isinstance(hosts, dict) and all(
        isinstance(names, list) and all(_is_named(host, name) for name in names) for host, names in hosts.items()
    )


def _is_named(host: Any, name: Any) -> bool:
    return isinstance(host, str) and not name_fault(host) and isinstance(name, str) and parse_backup_name(name) is not None


def common_backups(pool: Pool, *, with_initial_copies: bool) -> CommonBackups:
    """Returns the backups that replicas share with this pool; `with_initial_copies` also those on disks on their way to replicas.

    Raises UnreadableRecord: it is unknown then what may be deleted.
    """
    common: dict[str, dict[str, tuple[str, ...]]] = {}
    for file in _files(pool):
        record = _read(file.path)
        initial_copies = [(host, name) for host, names in record.initial_copies.items() for name in names]
        for host, name in [*record.hosts.items(), *(initial_copies if with_initial_copies else ())]:
            of_host = common.setdefault(host, {})
            of_host[name] = (*of_host.get(name, ()), file.replica)
    return common


def _write(folder: Path, replica: str, fields: Mapping[str, Any]) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{replica}.json"
    if not path.exists() and len(list(folder.iterdir())) >= _MOST:
        raise OperatorError(f"{folder} has {_MOST} replicas already", "delete the files of retired replicas")
    text = json.dumps({"format": FORMAT, **fields}) + "\n"
    if not has_room(text):
        raise OperatorError(f"{path} would be too large to read: the other pool lists too many backups")
    write_atomically(path, text)


def _record(pool: Pool, replica: str) -> _Record:
    return next((_read(file.path) for file in _files(pool) if file.replica == replica), _Record({}, {}))


def _read(path: Path) -> _Record:
    try:
        content = json.loads(text_of_file(path))
        if content["format"] > FORMAT:
            raise ValueError(f"it has format {content['format']}, this program reads {FORMAT}")
        initial_copies = {host: list(names) for host, names in content.get("seeds", {}).items()}
        return _Record(dict(content["hosts"]), initial_copies, parse_time(content["told"]) if "told" in content else None)
    except (OSError, *NOT_UNDERSTOOD) as error:
        raise UnreadableRecord(
            f"{path} cannot be read: {error}",
            "correct the file, or delete it if the replica was retired; until then nothing expires",
        ) from None


def _files(pool: Pool) -> Iterator[_File]:
    folder = pool.path / MARKER / _FOLDER
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return
    yield from (_File(name.removesuffix(".json"), folder / name) for name in names if name.endswith(".json"))
