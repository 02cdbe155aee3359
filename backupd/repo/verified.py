"""verified.json and compared.json: when files of a host's backups were last read, or compared with the host, and the results.

    {"format": 1, "backups": {NAME: {"begun", "at", "read", "compared", "bytes", "whole", "damages", "damaged": [PATHS]}}}

    {"format": 1, "next": {SLICES: {"slice", "after"}},
     "backups": {NAME: {"at", "files", "alike", "changed", "differing", "differs": [PATHS]}}}

They lie beside notes.json, which nothing here changes. One that cannot be read counts as empty: nothing is deleted or kept because
of it, and the next verification writes it again.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from backupd.repo.json_file import number_of, path_of, read_json_file, replace_json_file
from btrkeep.catalogue import ComparedBackup, Damage, VerifiedBackup
from btrkeep.decisions.verification import Verification
from btrkeep.units import format_time, parse_time

VERIFIED = "verified.json"
NAMED = 100
"""How many damaged files of a backup it names."""
_FEWER_DAMAGED = (NAMED, 10, 1, 0)  # the first of these with which the file can be read again
_FORMAT = 1


def read_verified(folder: Path) -> dict[str, Verification]:
    """Returns the records by names of backups, of the host with that folder."""
    return read_json_file(folder / VERIFIED, _verifications, {})


def write_verified(folder: Path, verifications: Mapping[str, Verification]) -> None:
    """Replaces the file as a whole. It names fewer damaged files if else it could not be read again. Raises OSError."""
    replace_json_file(folder / VERIFIED, (_verified_text(verifications, most) for most in _FEWER_DAMAGED), _FORMAT)


def _verified_text(verifications: Mapping[str, Verification], most: int) -> str:
    backups = {
        name: verification_fields(verification) | {"damaged": list(verification.damaged[:most])}
        for name, verification in sorted(verifications.items())
    }
    return json.dumps({"format": _FORMAT, "backups": backups}, indent=1) + "\n"


def forget_verified(folder: Path, name: str) -> None:
    """Forgets the result of a backup, because another one has taken its place. Raises OSError."""
    verifications = read_verified(folder)
    if verifications.pop(name, None):
        write_verified(folder, verifications)


def damages_of(host: str, verifications: Mapping[str, Verification]) -> Iterator[Damage]:
    """Yields damages for a new catalogue: the files named here. The next verification finds the exact ranges."""
    for name, verification in verifications.items():
        yield from (Damage(host, name, path, 0, 0, "verify", verification.at) for path in verification.damaged)


def verified_row(host: str, name: str, verification: Verification) -> VerifiedBackup:
    """Returns the row for the catalogue."""
    return VerifiedBackup(
        host, name, verification.begun, verification.at, verification.read, verification.compared, verification.whole
    )


def verification_fields(verification: Verification) -> dict[str, Any]:
    """Returns the result for JSON."""
    return {
        "begun": format_time(verification.begun),
        "at": format_time(verification.at),
        "read": verification.read,
        "compared": verification.compared,
        "bytes": verification.bytes,
        "whole": format_time(verification.whole) if verification.whole else None,
        "damages": verification.damages,
        "damaged": list(verification.damaged),
    }


def _verifications(fields: Mapping[str, Any]) -> dict[str, Verification]:
    return (
        {str(name): _verification(verification) for name, verification in fields["backups"].items()}
        if fields["format"] == _FORMAT
        else {}
    )


def _verification(fields: Mapping[str, Any]) -> Verification:
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


COMPARED = "compared.json"
_NAMED_DIFFERING = 1000  # files that differ, of each backup
_FEWER_DIFFERING = (_NAMED_DIFFERING, 100, 10, 1)  # the first of these with which the file can be read again


@dataclass(frozen=True, slots=True)
class Comparison:
    """The last comparison of a backup with its host."""

    at: datetime
    """When it ended."""
    files: int
    """Number of compared files."""
    alike: int
    """Number of files with the same content."""
    changed: int
    """Number of files that the host has changed since."""
    differing: int
    """Number of files with another content although size and time are the same."""
    differs: tuple[str, ...] = ()
    """The first files that were ever found to differ."""

    def with_those_of(self, before: "Comparison | None") -> "Comparison":
        """This one, with what an earlier one of the same backup found to differ."""
        paths = {*self.differs, *(before.differs if before else ())}
        return replace(self, differs=tuple(sorted(paths, key=os.fsencode)[:_NAMED_DIFFERING]))


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
    return read_json_file(folder / COMPARED, _host_comparisons, HostComparisons())


def write_compared(folder: Path, comparisons: HostComparisons) -> None:
    """Replaces the file as a whole. It names fewer files that differ if else it could not be read again. Raises OSError."""
    replace_json_file(folder / COMPARED, (_compared_text(comparisons, most) for most in _FEWER_DIFFERING), _FORMAT)


def _compared_text(comparisons: HostComparisons, most: int) -> str:
    backups = {
        name: comparison_fields(comparison) | {"differs": list(comparison.differs[:most])}
        for name, comparison in sorted(comparisons.backups.items())
    }
    slices = {str(slices): _next_fields(next_slice) for slices, next_slice in sorted(comparisons.slices.items())}
    return json.dumps({"format": _FORMAT, "next": slices, "backups": backups}, indent=1) + "\n"


def differing_of(host: str, comparisons: Mapping[str, Comparison]) -> Iterator[Damage]:
    """Yields damages for a new catalogue, so that the next run fetches these files again."""
    for name, comparison in comparisons.items():
        yield from (Damage(host, name, path, 0, 0, "source", comparison.at) for path in comparison.differs)


def compared_row(host: str, name: str, comparison: Comparison) -> ComparedBackup:
    """Returns the row for the catalogue."""
    return ComparedBackup(host, name, comparison.at, comparison.files, comparison.alike, comparison.changed, comparison.differing)


def comparison_fields(comparison: Comparison | ComparedBackup) -> dict[str, Any]:
    """Returns the result for JSON."""
    return {
        "at": format_time(comparison.at),
        "files": comparison.files,
        "alike": comparison.alike,
        "changed": comparison.changed,
        "differing": comparison.differing,
    }


def _next_fields(next_slice: NextSlice) -> dict[str, Any]:
    return {"slice": next_slice.number, "after": None if next_slice.after is None else os.fsdecode(next_slice.after)}


def _parse_next(fields: Mapping[str, Any]) -> NextSlice:
    after = fields["after"]
    return NextSlice(number_of(fields["slice"]), None if after is None else os.fsencode(str(after)))


def _host_comparisons(fields: Mapping[str, Any]) -> HostComparisons:
    if fields["format"] != _FORMAT:
        return HostComparisons()
    backups = {str(name): _comparison(comparison) for name, comparison in fields["backups"].items()}
    return HostComparisons({int(slices): _parse_next(next_slice) for slices, next_slice in fields["next"].items()}, backups)


def _comparison(fields: Mapping[str, Any]) -> Comparison:
    files, alike, changed, differing = (number_of(fields[name]) for name in ("files", "alike", "changed", "differing"))
    differs = tuple(map(path_of, fields["differs"]))
    return Comparison(parse_time(fields["at"]), files, alike, changed, differing, differs)


def forget_compared(folder: Path, name: str) -> None:
    """Forgets the result of a backup, because another one has taken its place. Raises OSError."""
    host_comparisons = read_compared(folder)
    if name in host_comparisons.backups:
        write_compared(
            folder,
            replace(
                host_comparisons,
                backups={other: comparison for other, comparison in host_comparisons.backups.items() if other != name},
            ),
        )
