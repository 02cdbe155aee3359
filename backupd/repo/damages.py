"""damaged.json: the damage in a host's backups, whoever found it; and what all records of damage put back into a lost catalogue.

    {"format": 1, "backups": {NAME: [{"path", "start", "length", "found_by", "found_at"}]}}

It lies beside verified.json. One that cannot be read counts as empty: the next scrub writes it again.
"""

import fcntl
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from backupd.repo.json_file import has_room, number_of, path_of, read_json_file, replace_json_file
from backupd.repo.listing import names_of
from backupd.repo.verified import (
    compared_row,
    damages_of,
    differing_of,
    forget_compared,
    forget_verified,
    read_compared,
    read_verified,
    verified_row,
)
from btrkeep.catalogue import FOUND_BY, Catalogue, Damage
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import FOLDER, is_there
from btrkeep.pool.marker import Pool
from btrkeep.pool.reserve import with_reserve
from btrkeep.units import format_time, parse_time

DAMAGED = "damaged.json"
_FORMAT = 1
_NAMED = (100_000, 10_000, 1000, 100, 10, 0)  # places of each backup: the first of these with which the file can be read again
_log = logging.getLogger(__name__)


def enter_damages(
    pool: Pool,
    catalogue: Catalogue,
    hosts: Iterable[str],
    damages: Iterable[Damage],
    is_gone: Callable[[Damage], bool] = lambda _: False,
) -> None:
    """Enters what was found, in place of what is gone, of these hosts: in the catalogue, then beside their backups.

    A pool that takes no note of it is logged. Raises OperatorError when the catalogue cannot be written.
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
                after = _ordered([*left, *(damage for damage in catalogue.damages(host) if damage.fate is None)])
                if after != before:
                    _write(pool, folder, after)
        except FileNotFoundError:  # the host is gone
            continue
        except OSError as error:
            _log.warning("%s cannot be written: %s", folder / DAMAGED, error.strerror)


def read_damaged(folder: Path, host: str) -> list[Damage]:
    """Returns the damages, ordered by backup, path and place, of the host with that folder; none of a later version's."""
    return read_json_file(folder / DAMAGED, partial(_damages, host), [])


def replace_damaged(pool: Pool, host: str, name: str, rows: Iterable[Damage]) -> None:
    """Replaces the damages of a backup by these of it, and adds those of others. None: another backup has taken its place.

    The catalogue is not needed. Raises OSError.
    """
    folder = pool.host(host)
    with _locked(folder):
        before = read_damaged(folder, host)
        after = _ordered([*(row for row in before if row.name != name), *rows])
        if after != before:
            _write(pool, folder, after)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A scrub and a look at the devices may end at once."""
    with ClosingFd(os.open(folder, FOLDER)) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def _ordered(unordered: Iterable[Damage]) -> list[Damage]:
    """As they are read again: each once, times to the second, as many as the file has room for."""
    rounded = {
        (damage.name, os.fsencode(damage.path), damage.start): _parse(damage.host, damage.name, _fields(damage))
        for damage in unordered
    }
    every = [rounded[key] for key in sorted(rounded)]
    damages = every
    for most in _NAMED:
        damages = [damage for _, group in groupby(every, key=attrgetter("name")) for damage in _first(list(group), most)]
        if has_room(_text(damages)):
            break
    return damages


def _first(places: list[Damage], most: int) -> list[Damage]:
    """Of one backup. If some are left out the first is the folder of all, which no repair of the others makes good."""
    if len(places) <= most:
        return places
    whole = replace(places[0], path="/", start=0, length=0)
    return [whole, *islice((place for place in places if place.path != "/"), most)]


def _write(pool: Pool, folder: Path, damages: Iterable[Damage]) -> None:
    with_reserve(pool.path, lambda: replace_json_file(folder / DAMAGED, (_text(damages),), _FORMAT))


def _text(damages: Iterable[Damage]) -> str:
    backups = {name: [_fields(damage) for damage in group] for name, group in groupby(damages, key=attrgetter("name"))}
    return json.dumps({"format": _FORMAT, "backups": backups}, indent=1) + "\n"


def _fields(damage: Damage) -> dict[str, Any]:
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
    return [_parse(host, str(name), damage) for name, damages in fields["backups"].items() for damage in damages]


def _parse(host: str, name: str, fields: Mapping[str, Any]) -> Damage:
    found_by = str(fields["found_by"])
    if found_by not in FOUND_BY:
        raise ValueError(f"nothing is found by {found_by!r}")
    start, length = number_of(fields["start"]), number_of(fields["length"])
    return Damage(host, name, path_of(fields["path"]), start, length, found_by, parse_time(fields["found_at"]))


EveryDamage = Callable[[Pool, str, str], list[bytes]]
"""Finds the paths of all damaged files of a host's backup, of which verified.json names only the first."""


def forgotten_damages(
    pool: Pool, host: str, names: Collection[str], new_damages: Iterable[Damage], every: EveryDamage | None = None
) -> list[Damage]:
    """Returns the damaged files of these backups that the pool records and that are not among `known`, those of the catalogue.

    Without `every` only those that verified.json names.
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


def recall_looks(pool: Pool, catalogue: Catalogue, host: str, names: Collection[str], every: EveryDamage | None = None) -> None:
    """Enters what is recorded of these backups: damages, verifications and comparisons. `every`: as above."""
    folder = pool.host(host)
    if forgotten := forgotten_damages(pool, host, names, catalogue.damages(host), every):
        catalogue.put_damages(forgotten)
    verified, compared = read_verified(folder), read_compared(folder).backups
    if rows := [verified_row(host, name, verification) for name, verification in verified.items() if name in names]:
        catalogue.put_verifications(rows)
    if others := [compared_row(host, name, comparison) for name, comparison in compared.items() if name in names]:
        catalogue.put_comparisons(others)


def forget_recorded(pool: Pool, host: str, name: str, left: Iterable[Damage] = ()) -> None:
    """Forgets what is recorded of a backup, because another one takes its place, or the name that it had. Raises OSError.

    `left`: damages that the other one has, and that others have like it.
    """
    folder = pool.host(host)
    replace_damaged(pool, host, name, left)
    with_reserve(pool.path, lambda: forget_verified(folder, name))
    with_reserve(pool.path, lambda: forget_compared(folder, name))


def forget_gone(pool: Pool, host: str, name: str) -> None:
    """The same, unless that backup is there: the next one of that name was not checked yet. Raises OSError."""
    if pool.host(host).is_dir() and not is_there(pool.host(host) / name):
        forget_recorded(pool, host, name)
