"""Follows what a backup leaves out, or has twice, because of the configuration: it is reported as long as that lasts."""

from contextlib import closing, suppress
from itertools import islice
from os import fsencode
from pathlib import Path

from backupd.files.tree import Entry, Tree
from backupd.files.walking import walk
from backupd.repo.backup_json import Record
from backupd.run.fetched_twice import FetchedTwice
from backupd.run.interrupted import settings_of
from btrkeep.conditions import ConditionKey, ConditionKind
from btrkeep.config import HostConfig

_MOST_LOOKED_UP = 3000  # names; a folder counts twice


def standing_keys(subvolume: Path, base: Record | None, twice: FetchedTwice, host: HostConfig) -> list[ConditionKey]:
    """Returns the standing conditions of a backup: those that its run has met, and those of its base that the run did not look for.

    A run looks for folders with the files of others only where it has fetched much. So one that the base has counts until the files
    that the base has there are gone, as those of an excluded folder are, and those of a bind mount that has ended. A changed
    `exclude` ends it, too: it may be the other folder that is left out now.
    """
    before = [condition.key for condition in base.lasting] if base else []
    keys = list(twice.folders)
    exclude = settings_of(host)["exclude"]
    if base and base.settings.get("exclude", exclude) == exclude:
        old = subvolume.parent / str(base.name)
        keys += [key for key in before if key.kind is ConditionKind.FETCHED_TWICE and _has_files_of(subvolume, old, key.name)]
    for result in twice.results:
        if result.left_out is not None:
            keys += [ConditionKey(ConditionKind.LEFT_OUT, result.path, folder) for folder in result.left_out]
        elif host.one_file_system:  # the host could not be asked
            keys += [
                key
                for key in before
                if key.kind is ConditionKind.LEFT_OUT and key.path == result.path and _is_folder(subvolume, key.name)
            ]
    return keys


def _has_files_of(subvolume: Path, base: Path, folder: str) -> bool:
    """Returns True if the base has files in this folder of which one is there unchanged, and if the base cannot be read."""
    path = fsencode(folder)
    try:
        with Tree(subvolume) as tree, Tree(base) as old, closing(walk(old, path)) as found:
            entries = (each.entry for each in islice(found, _MOST_LOOKED_UP))
            return any(_is_same(tree, entry) for entry in entries if entry.kind == "file")
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return _is_folder(subvolume, folder)


def _is_same(tree: Tree, file: Entry) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        present = tree.stat(file.path)
        return (present.kind, present.size, present.mtime) == ("file", file.size, file.mtime)
    return False


def _is_folder(subvolume: Path, folder: str) -> bool:
    with suppress(OSError, ValueError), Tree(subvolume) as tree:
        return tree.stat(fsencode(folder)).kind == "folder"
    return False
