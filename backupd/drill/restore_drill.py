"""One restore drill: restores a random sample of a backup, or all of it, into the pool, compares it, and deletes it again.

The restore uses the code of ordinary restores, and reads and writes the data instead of sharing it. rsync makes the comparison.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from backupd.drill.comparison import FoundDifferences, compare, write_names
from backupd.drill.drill_context import DrillContext, NotFinished, outcome_of
from backupd.files.backup_selector import Restorable
from backupd.files.restore_types import RestoreProgress, RestoreRequest, RestoreResult, Tell
from backupd.files.to_folder import LocalRestore
from backupd.files.tree import Tree
from backupd.files.walking import entries
from backupd.repo.backup_json import DATA
from backupd.repo.read_lock import lock_for_reading
from btrkeep.checkpoints import Checkpoint
from btrkeep.config.values import FileSample
from btrkeep.decisions.drills import DrillOutcome, DrillResult
from btrkeep.errors import LockHeld, OperatorError
from btrkeep.pool.subvolume import create
from btrkeep.units import counted, printable

_MOST = 1_000_000  # names in memory


@dataclass(frozen=True, slots=True)
class ChosenNames:
    """The names to be restored."""

    paths: tuple[bytes, ...]
    """Their paths, in the order of a walk."""
    of: int
    """Number of names in the backup, without folders."""
    left_out: int
    """Number of chosen names that are too large for the free space."""
    allocated: int
    """Bytes on disk of the chosen names."""


def choose_names(tree: Tree, sample: FileSample, room: int, chance: Random, poll: Callable[[int], None]) -> ChosenNames:
    """Chooses among all names that are not folders. A name that does not fit into `room` bytes with the others is skipped.

    `poll` is called with the number of names seen so far, and may raise. Raises OSError.
    """
    drawn: list[tuple[bytes, int]] = []
    most = min(sample.number or _MOST, _MOST)
    seen = candidates = 0
    for entry in entries(tree, b"/"):
        if entry.kind == "folder":
            continue
        seen += 1
        if not seen % 100:
            poll(seen)
        if sample.share is not None and chance.random() >= sample.share:
            continue
        candidate = (entry.path, entry.allocated if entry.kind == "file" else 0)
        candidates += 1
        if len(drawn) < most:
            drawn.append(candidate)
        elif (place := chance.randrange(candidates)) < most:
            drawn[place] = candidate
    return _fitting(drawn, seen, room, chance)


def _fitting(candidates: list[tuple[bytes, int]], seen: int, room: int, chance: Random) -> ChosenNames:
    chance.shuffle(candidates)
    paths: list[bytes] = []
    used = left_out = 0
    for path, size in candidates:
        if used + size > room:
            left_out += 1
            continue
        used += size
        paths.append(path)
    return ChosenNames(tuple(sorted(paths, key=_as_walked)), seen, left_out, used)


def _as_walked(path: bytes) -> bytes:
    return path.replace(os.sep.encode(), b"\0")


_SCRATCH, _NAMES = "restored", "names"


@dataclass(frozen=True, slots=True)
class RestoreDrill:
    """A backup and the share of it that is restored."""

    backup: Restorable
    """The backup."""
    sample: FileSample
    """How much."""


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a drill would restore."""

    names: int
    """Number of names."""
    of: int
    """Number of names in the backup."""
    needed: int
    """Bytes on the disk."""
    room: int
    """Free bytes of the pool for a drill."""
    left_out: int
    """Number of chosen names that do not fit."""


def restore_plan(context: DrillContext, drill: RestoreDrill, tell: Tell) -> RestorePlan:
    """Returns a plan, with another random sample than the drill itself. Changes nothing. Raises OperatorError, OSError."""
    with Tree(drill.backup.path) as tree:
        chosen = _chosen(context, drill, tree, tell)
    return RestorePlan(len(chosen.paths) or chosen.of, chosen.of, chosen.allocated, context.room(), chosen.left_out)


def run_restore_drill(context: DrillContext, drill: RestoreDrill, tell: Tell) -> DrillResult:
    """Runs the drill and returns its result. Raises Cancelled, LockHeld, and OperatorError if the pool cannot be used."""
    begun = time.monotonic()
    backup = drill.backup
    done = DrillResult(backup.host, backup.name, context.now, DrillOutcome.FAILED, sample=str(drill.sample))
    with context.scratch() as folder, lock_for_reading(backup.path):
        try:
            done = _restored_and_compared(context, drill, folder, tell, done)
        except LockHeld:
            raise
        except (OperatorError, OSError) as error:
            outcome, text = outcome_of(error)
            done = replace(done, outcome=outcome, text=text)
    return replace(done, seconds=round(time.monotonic() - begun, 3))


def _restored_and_compared(context: DrillContext, drill: RestoreDrill, folder: Path, tell: Tell, done: DrillResult) -> DrillResult:
    def follow(progress: RestoreProgress) -> None:
        context.go_on()
        tell(progress)

    scratch, backup = folder / _SCRATCH, drill.backup
    with Tree(backup.path) as tree:
        chosen = _chosen(context, drill, tree, follow)
        if not chosen.of:
            raise NotFinished("the backup has no files to restore", "name another backup, as HOST@BACKUP")
        if not drill.sample.is_all and not chosen.paths:
            raise NotFinished("nothing of the sample fits into the pool", "free some space; `backupd check` shows how")
        context.require_room(chosen.allocated)
        create(scratch)
        paths = chosen.paths or (b"/",)
        request = RestoreRequest(backup.host, backup.name, paths, str(scratch / DATA), parents=True, content=False, privileged=True)
        restore = LocalRestore(tree, request, reflinks=False, copies=True, tell=follow)
        preview = restore.preview(content=False)
        context.require_room(preview.needed or 0)
        with Checkpoint("sample restored"):
            written = restore.run(preview)
    names = None
    if chosen.paths:
        names = folder / _NAMES
        write_names(names, chosen.paths)
    progress = RestoreProgress("comparing")
    progress.turn_to("comparing", len(chosen.paths) or chosen.of, 0)
    follow(progress)
    found_differences = asyncio.run(
        compare(backup.path / DATA, scratch / DATA, names, lambda: context.is_over, context.has_to_wait)
    )
    context.require_going()
    return _judged(
        replace(done, names=len(chosen.paths) or chosen.of, of=chosen.of, left_out=chosen.left_out), written, found_differences
    )


def _chosen(context: DrillContext, drill: RestoreDrill, tree: Tree, tell: Tell) -> ChosenNames:
    """Returns the chosen names; empty for all of them. Raises NotFinished if there is not enough free space for the
    whole backup.
    """
    progress = RestoreProgress()

    def poll(seen: int) -> None:
        progress.files = seen
        tell(progress)

    if not drill.sample.is_all:
        return choose_names(tree, drill.sample, context.room(), context.chance, poll)
    seen = allocated = 0
    links = set[int]()
    for entry in entries(tree, b"/"):
        if entry.kind == "folder":
            continue
        seen += 1
        if entry.kind == "file" and entry.inode not in links:
            allocated += entry.allocated
            if entry.links > 1:
                links.add(entry.inode)
        if not seen % 100:
            poll(seen)
    return ChosenNames((), seen, 0, allocated)


def _judged(done: DrillResult, written: RestoreResult, differences: FoundDifferences) -> DrillResult:
    sizes = [written.counts[step].size for step in written.counts]
    number = written.problems.number + written.differences.number + differences.number
    samples = [
        f"{printable(place)}: {why}"
        for restore_count in (written.problems, written.differences)
        for place, why in restore_count.samples
    ]
    samples += differences.samples
    more = f" (and {counted(number - 1, 'more difference')})" if number > 1 else ""
    return replace(
        done,
        outcome=DrillOutcome.FAILED if number else DrillOutcome.PROVEN,
        bytes=sum(sizes),
        restoring=round(written.seconds, 3),
        differences=number,
        text=f"{samples[0]}{more}" if samples else "",
    )
