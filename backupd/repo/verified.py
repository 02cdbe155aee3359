"""verified.json: the result of `backupd verify` for each backup of a host. It lies beside notes.json, which nothing here changes.

    {"format": 1, "backups": {NAME: {"begun", "at", "read", "compared", "bytes", "whole", "damages", "damaged": [PATHS]}}}

If it cannot be read, it counts as empty: no deletion depends on it, and the next verification writes it again.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from backupd.repo.json_file import NOT_UNDERSTOOD, number_of, path_of, replace_json_file, text_of_file
from btrkeep.catalogue import Damage, VerifiedBackup
from btrkeep.decisions.verification import Verification
from btrkeep.units import format_time, parse_time

VERIFIED = "verified.json"
NAMED = 100
"""How many damaged files of a backup it names."""
_FEWER = (NAMED, 10, 1, 0)  # the first of these with which the file can be read again
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
    """Replaces the file as a whole. It names fewer damaged files if else it could not be read again. Raises OSError."""
    replace_json_file(folder / VERIFIED, (_text(found, most) for most in _FEWER), _FORMAT)


def _text(found: Mapping[str, Verification], most: int) -> str:
    backups = {name: verification_fields(one) | {"damaged": list(one.damaged[:most])} for name, one in sorted(found.items())}
    return json.dumps({"format": _FORMAT, "backups": backups}, indent=1) + "\n"


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
        number_of(fields["read"]),
        number_of(fields["compared"]),
        number_of(fields["bytes"]),
        parse_time(fields["whole"]) if fields["whole"] else None,
        tuple(map(path_of, fields["damaged"])),
        number_of(fields["damages"]),
    )
