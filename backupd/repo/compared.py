"""compared.json: when files of each backup of a host were compared with the host. It lies beside verified.json.

    {"format": 1, "next": {SLICES: {"slice", "after"}},
     "backups": {NAME: {"at", "files", "alike", "changed", "differing", "differs": [PATHS]}}}

One that cannot be read counts as empty: nothing is deleted or kept on the strength of it.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from backupd.repo.json_file import NOT_UNDERSTOOD, number_of, path_of, replace_json_file, text_of_file
from btrkeep.catalogue import ComparedBackup, Damage
from btrkeep.units import format_time, parse_time

COMPARED = "compared.json"
_FORMAT = 1
_NAMED = 1000  # files that differ, of each backup
_FEWER = (_NAMED, 100, 10, 1)  # the first of these with which the file can be read again
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The last one of a backup, `at` its end: how many files, and how many of them were alike, changed since, or differ.

    `differs`: the first of all that were ever found to differ.
    """

    at: datetime
    files: int
    alike: int
    changed: int
    differing: int
    differs: tuple[str, ...] = ()

    def with_those_of(self, before: "Comparison | None") -> "Comparison":
        """This one, with what an earlier one of the same backup found to differ."""
        paths = {*self.differs, *(before.differs if before else ())}
        return replace(self, differs=tuple(sorted(paths, key=os.fsencode)[:_NAMED]))


@dataclass(frozen=True, slots=True)
class NextSlice:
    """The slice to compare next: its `number` only grows. `after`: the last path compared in it; None: none yet."""

    number: int = 0
    after: bytes | None = None


@dataclass(frozen=True, slots=True)
class HostComparisons:
    """`slices`: the next slice, by the number of slices into which a host is divided; `backups`: by name."""

    slices: Mapping[int, NextSlice] = field(default_factory=dict)
    backups: Mapping[str, Comparison] = field(default_factory=dict)

    def next_of(self, slices: int) -> NextSlice:
        """Returns the next of so many slices."""
        return self.slices.get(slices, NextSlice())


def read_compared(folder: Path) -> HostComparisons:
    """Reads the record of the host with that folder."""
    try:
        fields = json.loads(text_of_file(folder / COMPARED))
        if fields["format"] != _FORMAT:
            return HostComparisons()
        backups = {str(name): _parse(one) for name, one in fields["backups"].items()}
        return HostComparisons({int(slices): _parse_next(one) for slices, one in fields["next"].items()}, backups)
    except FileNotFoundError:
        return HostComparisons()
    except (OSError, *NOT_UNDERSTOOD) as error:
        _log.warning("%s cannot be read: %s", folder / COMPARED, error)
        return HostComparisons()


def write_compared(folder: Path, found: HostComparisons) -> None:
    """Replaces the file as a whole. It names fewer files that differ if else it could not be read again. Raises OSError."""
    replace_json_file(folder / COMPARED, (_text(found, most) for most in _FEWER), _FORMAT)


def _text(found: HostComparisons, most: int) -> str:
    backups = {name: comparison_fields(one) | {"differs": list(one.differs[:most])} for name, one in sorted(found.backups.items())}
    slices = {str(slices): _next_fields(one) for slices, one in sorted(found.slices.items())}
    return json.dumps({"format": _FORMAT, "next": slices, "backups": backups}, indent=1) + "\n"


def differing_of(host: str, found: Mapping[str, Comparison]) -> Iterator[Damage]:
    """Yields damages for a new catalogue, so that the next run fetches these files again."""
    for name, one in found.items():
        yield from (Damage(host, name, path, 0, 0, "source", one.at) for path in one.differs)


def compared_row(host: str, name: str, one: Comparison) -> ComparedBackup:
    """Returns the row for the catalogue."""
    return ComparedBackup(host, name, one.at, one.files, one.alike, one.changed, one.differing)


def comparison_fields(one: Comparison | ComparedBackup) -> dict[str, Any]:
    """Returns the result for JSON."""
    return {
        "at": format_time(one.at),
        "files": one.files,
        "alike": one.alike,
        "changed": one.changed,
        "differing": one.differing,
    }


def _next_fields(one: NextSlice) -> dict[str, Any]:
    return {"slice": one.number, "after": None if one.after is None else os.fsdecode(one.after)}


def _parse_next(fields: Mapping[str, Any]) -> NextSlice:
    after = fields["after"]
    return NextSlice(number_of(fields["slice"]), None if after is None else os.fsencode(str(after)))


def _parse(fields: Mapping[str, Any]) -> Comparison:
    files, alike, changed, differing = (number_of(fields[name]) for name in ("files", "alike", "changed", "differing"))
    differs = tuple(map(path_of, fields["differs"]))
    return Comparison(parse_time(fields["at"]), files, alike, changed, differing, differs)


def forget_compared(folder: Path, name: str) -> None:
    """Forgets the result of a backup, because another one has taken its place. Raises OSError."""
    found = read_compared(folder)
    if name in found.backups:
        write_compared(folder, replace(found, backups={other: one for other, one in found.backups.items() if other != name}))
