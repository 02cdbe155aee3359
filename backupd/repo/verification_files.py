"""verified.json, compared.json and damaged.json beside a host's backups: when its files were last read, or compared with the host,
and all known damage; and how all of this is restored to a lost catalogue.

{"format": 1, "backups": {NAME: {"begun", "at", "read", "compared", "bytes", "whole", "damages", "damaged": [PATHS]}}}

{"format": 1, "next": {SLICES: {"slice", "after"}}, "backups": {NAME: {"at", "files", "alike", "changed", "differing", "differs":
[PATHS]}}}

{"format": 1, "backups": {NAME: [{"path", "start", "length", "found_by", "found_at"}]}}

They are beside notes.json, which nothing here changes. A file that cannot be read counts as empty: nothing is deleted or kept
because of it, and the next verification or scrub writes it again.
"""

import fcntl
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from backupd.repo.pool_files import (
    COMPARED,
    DAMAGED,
    VERIFIED,
    has_room,
    names_of,
    number_of,
    path_of,
    read_json_file,
    replace_json_file,
)
from btrkeep.catalogue import FOUND_BY, Catalogue, ComparedBackup, Damage, VerifiedBackup
from btrkeep.decisions.verification import Verification
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import FOLDER, is_there
from btrkeep.pool.marker import Pool
from btrkeep.pool.reserve import with_reserve
from btrkeep.units import format_time, parse_time

NAMED = 100
"""Maximum number of damaged files of a backup in the file."""
_FEWER_DAMAGED = (NAMED, 10, 1, 0)  # files listed, reduced until the result can be read again
_FORMAT = 1


def read_verified(folder: Path) -> dict[str, Verification]:
    """Returns the records of the host with that folder, by names of backups."""
    return read_json_file(folder / VERIFIED, _verifications, {})


def write_verified(folder: Path, verifications: Mapping[str, Verification]) -> None:
    """Replaces the file. If it would become too large to be read again, it names fewer damaged files. Raises OSError."""
    replace_json_file(folder / VERIFIED, (_verified_text(verifications, most) for most in _FEWER_DAMAGED), _FORMAT)


def _verified_text(verifications: Mapping[str, Verification], most: int) -> str:
    backups = {
        name: verification_fields(verification) | {"damaged": list(verification.damaged[:most])}
        for name, verification in sorted(verifications.items())
    }
    return json.dumps({"format": _FORMAT, "backups": backups}, indent=1) + "\n"


def forget_verified(folder: Path, name: str) -> None:
    """Deletes the result of a backup because another one has replaced it. Raises OSError."""
    verifications = read_verified(folder)
    if verifications.pop(name, None):
        write_verified(folder, verifications)


def damages_of(host: str, verifications: Mapping[str, Verification]) -> Iterator[Damage]:
    """Yields damages for a new catalogue: the files in verified.json. The next verification finds the exact ranges."""
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


_NAMED_DIFFERING = 1000  # differing files of each backup
_FEWER_DIFFERING = (_NAMED_DIFFERING, 100, 10, 1)  # reduced until the result can be read again


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
    """Number of files that the host has changed since the backup."""
    differing: int
    """Number of files with another content although size and time are the same."""
    differs: tuple[str, ...] = ()
    """The first files that were ever found to differ."""

    def with_those_of(self, before: "Comparison | None") -> "Comparison":
        """Returns this comparison, with the differences that an earlier one of the same backup found."""
        paths = {*self.differs, *(before.differs if before else ())}
        return replace(self, differs=tuple(sorted(paths, key=os.fsencode)[:_NAMED_DIFFERING]))


@dataclass(frozen=True, slots=True)
class NextSlice:
    """The slice to compare next: its `number` only increases. `after`: the last path compared in it; None: none yet."""

    number: int = 0
    after: bytes | None = None


@dataclass(frozen=True, slots=True)
class HostComparisons:
    """`slices`: the next slice, by the number of slices into which a host is divided; `backups`: by name."""

    slices: Mapping[int, NextSlice] = field(default_factory=dict)
    backups: Mapping[str, Comparison] = field(default_factory=dict)

    def next_of(self, slices: int) -> NextSlice:
        """Returns the next slice for that number of slices."""
        return self.slices.get(slices, NextSlice())


def read_compared(folder: Path) -> HostComparisons:
    """Reads the record of the host with that folder."""
    return read_json_file(folder / COMPARED, _host_comparisons, HostComparisons())


def write_compared(folder: Path, comparisons: HostComparisons) -> None:
    """Replaces the file. If it would become too large to be read again, it names fewer differing files. Raises OSError."""
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
    """Deletes the result of a backup because another one has replaced it. Raises OSError."""
    host_comparisons = read_compared(folder)
    if name in host_comparisons.backups:
        write_compared(
            folder,
            replace(
                host_comparisons,
                backups={other: comparison for other, comparison in host_comparisons.backups.items() if other != name},
            ),
        )


# Places of each backup, reduced until the result can be read again.
_NAMED_PLACES = (100_000, 10_000, 1000, 100, 10, 0)
_log = logging.getLogger(__name__)


def enter_damages(
    pool: Pool,
    catalogue: Catalogue,
    hosts: Iterable[str],
    damages: Iterable[Damage],
    is_gone: Callable[[Damage], bool] = lambda _: False,
) -> None:
    """Records the damages that were found, and removes those that are gone, for these hosts: in the catalogue, then beside their
    backups.

    If the pool cannot be written, that is logged. Raises OperatorError if the catalogue cannot be written.
    """
    every = sorted(set(hosts))
    gone = [damage for host in every for damage in catalogue.damages(host) if is_gone(damage)]
    catalogue.change_damages(gone, damages)
    for host in every:
        folder = pool.host(host)
        try:
            with _locked(folder):
                before = read_damaged(folder, host)
                names = names_of(pool, host)
                left = [damage for damage in before if damage.name in names and not is_gone(damage)]
                after = _in_order([*left, *(damage for damage in catalogue.damages(host) if damage.fate is None)])
                if after != before:
                    _write_damaged(pool, folder, after)
        except FileNotFoundError:  # the host was removed
            continue
        except OSError as error:
            _log.warning("%s cannot be written: %s", folder / DAMAGED, error.strerror)


def read_damaged(folder: Path, host: str) -> list[Damage]:
    """Returns the damages of the host with that folder, ordered by backup, path and place; none if a later version
    wrote the file.
    """
    return read_json_file(folder / DAMAGED, partial(_damages, host), [])


def replace_damaged(pool: Pool, host: str, name: str, rows: Iterable[Damage]) -> None:
    """Replaces the recorded damages of a backup by its damages in `rows`, and adds those of other backups. Without damages of its
    own, another backup has replaced it.

    Does not need the catalogue. Raises OSError.
    """
    folder = pool.host(host)
    with _locked(folder):
        before = read_damaged(folder, host)
        after = _in_order([*(row for row in before if row.name != name), *rows])
        if after != before:
            _write_damaged(pool, folder, after)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Takes a lock: a scrub and a check of the devices may end at the same time."""
    with ClosingFd(os.open(folder, FOLDER)) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def _in_order(unordered: Iterable[Damage]) -> list[Damage]:
    """Returns the damages as they are read again: each once, times to the second, as many as fit in the file."""
    rounded = {
        (damage.name, os.fsencode(damage.path), damage.start): _damage(damage.host, damage.name, _damage_fields(damage))
        for damage in unordered
    }
    every = [rounded[key] for key in sorted(rounded)]
    damages = every
    for most in _NAMED_PLACES:
        damages = [damage for _, group in groupby(every, key=attrgetter("name")) for damage in _at_most(list(group), most)]
        if has_room(_damages_text(damages)):
            break
    return damages


def _at_most(places: list[Damage], most: int) -> list[Damage]:
    """Returns the damages of one backup. If some are left out, the first one is `/` for all of them, which the repair of the
    listed files does not remove.
    """
    if len(places) <= most:
        return places
    whole = replace(places[0], path="/", start=0, length=0)
    return [whole, *islice((place for place in places if place.path != "/"), most)]


def _write_damaged(pool: Pool, folder: Path, damages: Iterable[Damage]) -> None:
    with_reserve(pool.path, lambda: replace_json_file(folder / DAMAGED, (_damages_text(damages),), _FORMAT))


def _damages_text(damages: Iterable[Damage]) -> str:
    backups = {name: [_damage_fields(damage) for damage in group] for name, group in groupby(damages, key=attrgetter("name"))}
    return json.dumps({"format": _FORMAT, "backups": backups}, indent=1) + "\n"


def _damage_fields(damage: Damage) -> dict[str, Any]:
    return {
        "path": damage.path,
        "start": damage.start,
        "length": damage.length,
        "found_by": damage.found_by,
        "found_at": format_time(damage.found_at),
    }


def _damages(host: str, fields: Mapping[str, Any]) -> list[Damage]:
    if int(fields["format"]) > _FORMAT:
        return []
    return [_damage(host, str(name), damage) for name, damages in fields["backups"].items() for damage in damages]


def _damage(host: str, name: str, fields: Mapping[str, Any]) -> Damage:
    found_by = str(fields["found_by"])
    if found_by not in FOUND_BY:
        raise ValueError(f"unknown found_by: {found_by!r}")
    start, length = number_of(fields["start"]), number_of(fields["length"])
    return Damage(host, name, path_of(fields["path"]), start, length, found_by, parse_time(fields["found_at"]))


EveryDamage = Callable[[Pool, str, str], list[bytes]]
"""Finds the paths of all damaged files of a host's backup, because verified.json names only the first ones."""


def forgotten_damages(
    pool: Pool, host: str, names: Collection[str], new_damages: Iterable[Damage], every: EveryDamage | None = None
) -> list[Damage]:
    """Returns the damaged files of these backups that are recorded in the pool but not among `new_damages`, those of the catalogue.

    Without `every`, only those that verified.json names.
    """
    folder = pool.host(host)
    placed = [damage for damage in read_damaged(folder, host) if damage.name in names]
    rows, files = {(damage.name, damage.path) for damage in new_damages}, {(damage.name, damage.path) for damage in placed}
    counts = Counter(name for name, _ in rows | files)
    verifications = {name: verification for name, verification in read_verified(folder).items() if name in names}
    for name, verification in verifications.items():
        if every and counts[name] <= len(verification.damaged) < verification.damages:
            verifications[name] = replace(verification, damaged=(*verification.damaged, *map(os.fsdecode, every(pool, host, name))))
    compared = {name: comparison for name, comparison in read_compared(folder).backups.items() if name in names}
    unplaced = [
        damage
        for damage in (*differing_of(host, compared), *damages_of(host, verifications))
        if (damage.name, damage.path) not in files
    ]
    damages = [damage for damage in (*unplaced, *placed) if (damage.name, damage.path) not in rows]
    return list({(damage.name, damage.path, damage.start): damage for damage in damages}.values())


def recall_verifications(
    pool: Pool, catalogue: Catalogue, host: str, names: Collection[str], every: EveryDamage | None = None
) -> None:
    """Writes the recorded damages, verifications and comparisons of these backups to the catalogue. `every`: as above."""
    folder = pool.host(host)
    if forgotten := forgotten_damages(pool, host, names, catalogue.damages(host), every):
        catalogue.put_damages(forgotten)
    verified, compared = read_verified(folder), read_compared(folder).backups
    if rows := [verified_row(host, name, verification) for name, verification in verified.items() if name in names]:
        catalogue.put_verifications(rows)
    if others := [compared_row(host, name, comparison) for name, comparison in compared.items() if name in names]:
        catalogue.put_comparisons(others)


def forget_recorded(pool: Pool, host: str, name: str, left: Iterable[Damage] = ()) -> None:
    """Deletes the records of a backup, because another one replaces it or its former name. Raises OSError.

    `left`: damages that the new one also has, and damages of other backups like it.
    """
    folder = pool.host(host)
    replace_damaged(pool, host, name, left)
    with_reserve(pool.path, lambda: forget_verified(folder, name))
    with_reserve(pool.path, lambda: forget_compared(folder, name))


def forget_gone(pool: Pool, host: str, name: str) -> None:
    """Deletes the records of a backup that no longer exists: the next backup of that name was not checked yet. Raises OSError."""
    if pool.host(host).is_dir() and not is_there(pool.host(host) / name):
        forget_recorded(pool, host, name)
