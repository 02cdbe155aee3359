"""POOL/.btrkeep/boot.json: the last boot of a server that used the pool, whether it ended with a shutdown, and the backups to be
read.

    {"format": 1, "boot": ID, "seen": TIME, "stopped": BOOL, "unread": [[HOST, NAME], ...]}

It is stored in the pool, because a crash that undoes changes in the pool undoes them in this file, too.
"""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backupd.repo.json_file import read_json_file
from btrkeep.pool.atomic import NO_ROOM, write_atomically
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.procfs import boot_id
from btrkeep.units import format_time, parse_time

BOOT = "boot.json"
_FORMAT = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BootRecord:
    """`boot`: the id of the kernel's boot; `seen`: when it was recorded, or when it was `stopped`, shut down in order.

    `unread`: host and name of the backups that a crash may have damaged and that have not been read since.
    """

    boot: str
    seen: datetime
    stopped: bool = False
    unread: frozenset[tuple[str, str]] = field(default_factory=frozenset)


def read_boot(pool: Pool) -> BootRecord | None:
    """Reads the record; None if it is missing or invalid, which is treated as a crash."""
    return read_json_file(_path(pool), _boot_record, None)


def has_backups_in_doubt(pool: Pool, hosts: Collection[str] | None = None) -> bool:
    """True if this boot was not examined yet, or a backup of these hosts (None: of any) is in doubt. A rehearsal has no boots."""
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
    """Records that no crash before this boot can have damaged anything: what is fetched is not read before the first run."""
    write_boot(pool, BootRecord(boot_id(), datetime.now(UTC)))


def write_boot(pool: Pool, record: BootRecord) -> None:
    """Replaces the record. On a full pool it stays unchanged, so more than necessary is read. Raises OSError."""
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
