"""Removes paths from a new backup that are no longer below a source path, before rsync runs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backupd.repo.final_backups import ForeignData
from btrkeep.checkpoints import Checkpoint
from btrkeep.pool.subvolume import describe
from btrkeep.process.programs import run
from btrkeep.units import printable


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
                _remove_tree(entry.path)
            else:
                Path(entry.path).unlink()
        elif below:
            _prune(Path(entry.path), below)


def _remove_tree(folder: str) -> None:
    """Removes a folder with all in it, by rm: a host nests folders deeper than a function may call itself or a process may have
    descriptors. It follows no symlink and enters neither a subvolume nor a mount; raises ForeignData when there is one.
    """
    done = run(("rm", "--recursive", "--force", "--one-file-system", "--", folder), timeout=None, check=False)
    if done.returncode:
        said = printable((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[0].removeprefix("rm: "))
        raise ForeignData(f"{folder} cannot be removed: {said}", "move away what is not ours in it")
