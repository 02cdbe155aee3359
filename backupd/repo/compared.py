"""compared.json: when files of each backup of a host were compared with the host. It lies beside verified.json.

    {"format": 1, "next": SLICE, "backups": {NAME: {"at", "files", "alike", "changed", "differing"}}}

One that cannot be read counts as empty: nothing is deleted or kept on the strength of it.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from backupd.repo.backup_json import NOT_UNDERSTOOD, text_of_file
from btrkeep.pool.atomic import write_atomically
from btrkeep.units import format_time, parse_time

COMPARED = "compared.json"
_FORMAT = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The last one of a backup, `at` its end: how many files, and how many of them were alike, changed since, or differ."""

    at: datetime
    files: int
    alike: int
    changed: int
    differing: int


@dataclass(frozen=True, slots=True)
class HostComparisons:
    """By the names of backups. `next_slice`: the number of the slice that is compared next, which only grows."""

    next_slice: int = 0
    backups: Mapping[str, Comparison] = field(default_factory=dict)


def read_compared(folder: Path) -> HostComparisons:
    """Of the host whose folder that is."""
    try:
        fields = json.loads(text_of_file(folder / COMPARED))
        if fields["format"] != _FORMAT:
            return HostComparisons()
        return HostComparisons(int(fields["next"]), {str(name): _parse(one) for name, one in fields["backups"].items()})
    except FileNotFoundError:
        return HostComparisons()
    except (OSError, *NOT_UNDERSTOOD) as error:
        _log.warning("%s cannot be read: %s", folder / COMPARED, error)
        return HostComparisons()


def write_compared(folder: Path, found: HostComparisons) -> None:
    """Replaces the file as a whole. Raises OSError."""
    backups = {name: comparison_fields(one) for name, one in sorted(found.backups.items())}
    text = json.dumps({"format": _FORMAT, "next": found.next_slice, "backups": backups}, indent=1)
    write_atomically(folder / COMPARED, text + "\n")


def comparison_fields(one: Comparison) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "at": format_time(one.at),
        "files": one.files,
        "alike": one.alike,
        "changed": one.changed,
        "differing": one.differing,
    }


def _parse(fields: Mapping[str, Any]) -> Comparison:
    files, alike, changed, differing = (int(fields[name]) for name in ("files", "alike", "changed", "differing"))
    return Comparison(parse_time(fields["at"]), files, alike, changed, differing)
