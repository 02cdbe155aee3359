"""Some of a repository read back: a share of its data by restic, and some files of a backup, compared with those in the pool."""

import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from tempfile import mkdtemp

from backupd.files.tree import Tree
from backupd.files.walking import entries
from backupd.offsite.repository import snapshots
from backupd.offsite.restic import SHOWN, Restic, ResticFailed
from backupd.repo.backup_json import DATA
from backupd.repo.read_lock import lock_for_reading
from backupd.repo.remove_tree import remove_tree
from btrkeep.decisions.offsite import OffsiteSnapshot
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import Pool

_LARGEST = 64 << 20  # bytes of a file that is got back
_LOOKED_AT = 100_000  # names of a backup, to choose from
_COMMAND_LINE = 500_000  # bytes of paths in one; the kernel takes 2 MiB, and some letters are doubled
_PIECE = 1 << 20
_PATTERN = {ord(letter): f"\\{letter}" for letter in "\\*?["}


class SampleDiffers(OperatorError):
    """A file read back from the repository differs from the one that was sent."""


@dataclass(frozen=True, slots=True)
class SampleCheck:
    """The number of files of a backup that were read back equal; none if no backup there is also in the pool."""

    files: int
    host: str = ""
    name: str = ""


def check_sample(restic: Restic, pool: Pool, share: str, files: int, look: Callable[[], None]) -> SampleCheck:
    """Raises ResticFailed when the repository is damaged, SampleDiffers when another file came back, and what `look` raises."""
    restic.ask("check", f"--read-data-subset={share}", look=look)
    both = [one for one in snapshots(restic, pool) if not one.former and (pool.host(one.host) / one.name).is_dir()]
    if not both or not files:
        return SampleCheck(0)
    chosen = random.SystemRandom().choice(both)
    folder = Path(mkdtemp(prefix="check-", dir=restic.cache))
    try:
        with lock_for_reading(pool.host(chosen.host) / chosen.name), Tree(pool.host(chosen.host) / chosen.name) as tree:
            some = _some_files(tree, files)
            _compare(restic, chosen, tree, some, folder, look)
    finally:
        with suppress(OSError):
            remove_tree(folder)
    return SampleCheck(len(some), chosen.host, chosen.name)


def _some_files(tree: Tree, number: int) -> list[bytes]:
    """Paths of some files, chosen by chance among the first that a walk meets."""
    looked_at = islice(entries(tree, b"/"), _LOOKED_AT)
    found = [one.path for one in looked_at if one.kind == "file" and one.size <= _LARGEST]
    chosen = random.SystemRandom().sample(found, min(number, len(found)))
    sizes = accumulate(len(path) for path in chosen)
    return [path for path, size in zip(chosen, sizes, strict=True) if size <= _COMMAND_LINE]


def _compare(
    restic: Restic, chosen: OffsiteSnapshot, tree: Tree, some: list[bytes], folder: Path, look: Callable[[], None]
) -> None:
    if not some:
        return
    shown = f"{SHOWN}/{DATA}"
    patterns = [(shown + os.fsdecode(path)).translate(_PATTERN) for path in some]
    words = [word for pattern in patterns for word in ("--include", pattern)]
    failed = ""
    try:
        restic.ask("restore", chosen.id, "--target", str(folder), *words, written=folder, look=look)
    except ResticFailed as error:  # it may be about attributes alone: what counts is below
        failed = f": {error.message}"
    for path in some:
        with os.fdopen(tree.open_file(path), "rb") as ours:
            try:
                theirs = (folder / f"{shown}{os.fsdecode(path)}".lstrip("/")).open("rb")
            except OSError as error:
                raise ResticFailed(f"{os.fsdecode(path)} did not come back{failed or f': {error.strerror}'}") from None
            with theirs:
                while piece := ours.read(_PIECE):
                    if piece != theirs.read(_PIECE):
                        break
                if piece or theirs.read(1):
                    raise SampleDiffers(f"{chosen.host}@{chosen.name}: {os.fsdecode(path)} came back as another file")
