"""verified.json: the result of `backupd verify` for each backup of a host. It lies beside notes.json, which nothing here changes.

    {"format": 1, "backups": {NAME: {"begun", "at", "read", "compared", "bytes", "whole", "damages", "damaged": [PATHS]}}}

If it cannot be read, it counts as empty: no deletion depends on it, and the next verification writes it again.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from backupd.repo.backup_json import NOT_UNDERSTOOD, text_of_file
from btrkeep.catalogue import Damage, VerifiedBackup
from btrkeep.decisions.verification import Verification
from btrkeep.pool.atomic import write_atomically
from btrkeep.units import format_time, parse_time

VERIFIED = "verified.json"
NAMED = 100
"""How many damaged files of a backup it names."""
_FORMAT = 1
_log = logging.getLogger(__name__)


def read_verified(folder: Path) -> dict[str, Verification]:
    """Returns the records by names of backups, of the host with that folder."""
    try:
        fields = json.loads(text_of_file(folder / VERIFIED))
        return {str(name): _parse(one) for name, one in fields["backups"].items()} if fields["format"] == _FORMAT else {}
    except FileNotFoundError:
        return {}
    except (OSError, *NOT_UNDERSTOOD) as error:
        _log.warning("%s cannot be read: %s", folder / VERIFIED, error)
        return {}


def write_verified(folder: Path, found: Mapping[str, Verification]) -> None:
    """Replaces the file as a whole. Raises OSError."""
    backups = {name: verification_fields(one) for name, one in sorted(found.items())}
    write_atomically(folder / VERIFIED, json.dumps({"format": _FORMAT, "backups": backups}, indent=1) + "\n")


def forget_verified(folder: Path, name: str) -> None:
    """Forgets the result of a backup, because another one has taken its place. Raises OSError."""
    found = read_verified(folder)
    if found.pop(name, None):
        write_verified(folder, found)


def damages_of(host: str, found: Mapping[str, Verification]) -> Iterator[Damage]:
    """Yields damages for a new catalogue: the files named here. The next verification finds the exact ranges."""
    for name, one in found.items():
        yield from (Damage(host, name, path, 0, 0, "verify", one.at) for path in one.damaged)


def verified_row(host: str, name: str, found: Verification) -> VerifiedBackup:
    """Returns the row for the catalogue."""
    return VerifiedBackup(host, name, found.begun, found.at, found.read, found.compared, found.whole)


def verification_fields(one: Verification) -> dict[str, Any]:
    """Returns the result for JSON."""
    return {
        "begun": format_time(one.begun),
        "at": format_time(one.at),
        "read": one.read,
        "compared": one.compared,
        "bytes": one.bytes,
        "whole": format_time(one.whole) if one.whole else None,
        "damages": one.damages,
        "damaged": list(one.damaged),
    }


def _parse(fields: Mapping[str, Any]) -> Verification:
    return Verification(
        parse_time(fields["begun"]),
        parse_time(fields["at"]),
        int(fields["read"]),
        int(fields["compared"]),
        int(fields["bytes"]),
        parse_time(fields["whole"]) if fields["whole"] else None,
        tuple(str(path) for path in fields["damaged"]),
        int(fields["damages"]),
    )
