"""Removes paths from a new backup that are no longer below a source path, before rsync runs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backupd.repo.final_backups import ForeignData
from backupd.repo.remove_tree import remove_tree
from btrkeep.checkpoints import Checkpoint
from btrkeep.pool.subvolume import describe


@Checkpoint("other paths removed")
def drop_other_paths(data: Path, paths: tuple[str, ...]) -> None:
    """Removes from the new backup all paths outside of the source paths, and anything in the place of a parent folder.

    An older rsync would follow a symlink there. A host could have planted one while a path above was a separate source, or in an
    earlier attempt of this very run.
    """
    wanted: dict[str, Any] = {}
    for path in paths:
        level = wanted
        for part in path.strip("/").split("/") if path != "/" else ():
            level = level.setdefault(part, {})
        if path == "/":
            return
    _prune(data, wanted)


def _prune(folder: Path, wanted: Mapping[str, Any]) -> None:
    for entry in list(os.scandir(folder)):
        below = wanted.get(entry.name)
        is_folder = entry.is_dir(follow_symlinks=False)
        is_file_source = below == {} and entry.is_file(follow_symlinks=False)
        if below is None or not (is_folder or is_file_source):
            if is_folder and describe(Path(entry.path)):
                raise ForeignData(f"{entry.path} is a subvolume that is not ours", "move it away")
            if is_folder:
                try:
                    remove_tree(entry.path)
                except OSError as error:
                    raise ForeignData(f"{entry.path}: {error.strerror}", "move away what is not ours in it") from None
            else:
                Path(entry.path).unlink()
        elif below:
            _prune(Path(entry.path), below)
