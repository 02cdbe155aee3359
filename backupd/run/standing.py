"""Follows what a backup leaves out, or has twice, because of the configuration: it is reported as long as that lasts."""

from contextlib import suppress
from os import fsencode
from pathlib import Path

from backupd.files.tree import Tree
from backupd.repo.backup_json import Record
from backupd.run.fetched_twice import FetchedTwice
from btrkeep.conditions import ConditionKey, ConditionKind


def standing_keys(subvolume: Path, base: Record | None, twice: FetchedTwice, *, one_file_system: bool) -> list[ConditionKey]:
    """Returns the standing conditions of a backup: those that its run has met, and those of its base that the run did not look for.

    A run looks for folders with the files of others only where it has fetched much. So one that the base has counts until it is
    deleted or empty, as an excluded one is, and one whose bind mount has ended.
    """
    before = [condition.key for condition in base.lasting] if base else []
    keys = list(twice.folders)
    keys += [key for key in before if key.kind is ConditionKind.FETCHED_TWICE and _holds_anything(subvolume, key.name)]
    for result in twice.results:
        if result.left_out is not None:
            keys += [ConditionKey(ConditionKind.LEFT_OUT, result.path, folder) for folder in result.left_out]
        elif one_file_system:  # the host could not be asked
            keys += [
                key
                for key in before
                if key.kind is ConditionKind.LEFT_OUT and key.path == result.path and _is_folder(subvolume, key.name)
            ]
    return keys


def _holds_anything(subvolume: Path, folder: str) -> bool:
    with suppress(OSError, ValueError), Tree(subvolume) as tree:
        return bool(tree.names(fsencode(folder)))
    return False


def _is_folder(subvolume: Path, folder: str) -> bool:
    with suppress(OSError, ValueError), Tree(subvolume) as tree:
        return tree.stat(fsencode(folder)).kind == "folder"
    return False
