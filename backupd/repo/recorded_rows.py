"""Puts what verified.json, damaged.json and compared.json record back into a catalogue that lost it, and removes it from them."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from backupd.repo.compared import compared_row, differing_of, forget_compared, read_compared
from backupd.repo.damages import read_damaged, replace_damaged
from backupd.repo.verified import damages_of, forget_verified, read_verified, verified_row
from btrkeep.catalogue import Catalogue, Damage
from btrkeep.fs.openat import is_there
from btrkeep.pool.marker import Pool
from btrkeep.pool.reserve import with_reserve

EveryDamage = Callable[[Pool, str, str], list[bytes]]
"""Finds the paths of all damaged files of a host's backup, of which verified.json names only the first."""


def forgotten_damages(
    pool: Pool, host: str, names: Collection[str], known: Iterable[Damage], every: EveryDamage | None = None
) -> list[Damage]:
    """Returns the damaged files of these backups that the pool records and that are not among `known`, those of the catalogue.

    Without `every` only those that verified.json names.
    """
    folder = pool.host(host)
    placed = [one for one in read_damaged(folder, host) if one.name in names]
    rows, files = {(one.name, one.path) for one in known}, {(one.name, one.path) for one in placed}
    counts = Counter(name for name, _ in rows | files)
    found = {name: one for name, one in read_verified(folder).items() if name in names}
    for name, one in found.items():
        if every and counts[name] <= len(one.damaged) < one.damages:
            found[name] = replace(one, damaged=(*one.damaged, *map(os.fsdecode, every(pool, host, name))))
    compared = {name: one for name, one in read_compared(folder).backups.items() if name in names}
    unplaced = [one for one in (*differing_of(host, compared), *damages_of(host, found)) if (one.name, one.path) not in files]
    damages = [one for one in (*unplaced, *placed) if (one.name, one.path) not in rows]
    return list({(one.name, one.path, one.start): one for one in damages}.values())


def recall_looks(pool: Pool, catalogue: Catalogue, host: str, names: Collection[str], every: EveryDamage | None = None) -> None:
    """Enters what is recorded of these backups: damages, verifications and comparisons. `every`: as above."""
    folder = pool.host(host)
    if forgotten := forgotten_damages(pool, host, names, catalogue.damages(host), every):
        catalogue.put_damages(forgotten)
    verified, compared = read_verified(folder), read_compared(folder).backups
    if rows := [verified_row(host, name, one) for name, one in verified.items() if name in names]:
        catalogue.put_verifications(rows)
    if others := [compared_row(host, name, one) for name, one in compared.items() if name in names]:
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
    """The same, unless that backup is there: the next one of that name was not looked at yet. Raises OSError."""
    if pool.host(host).is_dir() and not is_there(pool.host(host) / name):
        forget_recorded(pool, host, name)
