"""Makes a backup of one tree of an old history, by the steps of a night: `.working` from the backup before it, the tree's files,
the final name.
"""

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from backupd.proof.damaged_files import recorded_damage
from backupd.repo.backup_json import PathOutcome, PathResult, Record
from backupd.repo.final_backups import discard
from backupd.repo.pool_files import names_of
from backupd.repo.verification_files import forgotten_damages
from backupd.run import finalisation
from backupd.run import work_subvolume as working
from backupd.run.fresh_sums import NO_SUMS
from backupd.run.importing.filling import OpenTrees, fill, scan_tree
from backupd.run.importing.formats import OldTree
from backupd.run.importing.import_context import ImportContext, LookAhead, OwnBackup, locked_for_import, opened_tree
from btrkeep import __version__
from btrkeep.backup_states import COMPLETE
from btrkeep.config import HostConfig
from btrkeep.pool.syncfs import Syncfs, syncing


@dataclass(frozen=True, slots=True)
class ImportedBackup:
    """A backup made of a tree."""

    record: Record
    """Its backup.json."""
    subvolume_id: int
    """The number of its subvolume."""
    literal: int
    """Bytes of data that were copied."""
    nested: int = 0
    """Number of folders that represent subvolumes in a snapshot; they are not in the backup."""


async def import_tree(
    context: ImportContext, tree: OldTree, before: OldTree | None = None, after: OldTree | None = None
) -> ImportedBackup:
    """Imports one tree. `before`: the previous tree of the same history; `after`: the next one to import. Raises Cancelled,
    OperatorError, OSError.

    An incomplete backup is discarded: the next import makes it again.
    """
    with locked_for_import(context, tree) as (host, source), ExitStack() as held:
        old = held.enter_context(opened_tree(before)) if before else None
        disk = held.enter_context(syncing(context.pool.path))
        return await _made(context, OpenTrees(tree, before, after, source, old), host, disk)


async def _made(context: ImportContext, trees: OpenTrees, host: HostConfig, disk: Syncfs) -> ImportedBackup:
    tree, ahead = trees.tree, None
    origin = origin_of(tree)
    damages = tuple(forgotten_damages(context.pool, tree.host, names_of(context.pool, tree.host), (), recorded_damage))
    _, prepared = await asyncio.to_thread(
        working.recover_and_prepare,
        working.WorkRequest(context.pool, host, tree.started, disk, context.cancellation, damages, imported=origin),
    )
    try:
        links = await scan_tree(context, trees, prepared)
        if trees.after:
            ahead = LookAhead.begin(trees.after, tree, links.digests)
        numbers = await fill(context, trees, prepared, links)
        record = import_record(context, tree, working.first_record(prepared, host, tree.started, origin), numbers)
        _, final = await asyncio.to_thread(finalisation.finalise, context.pool, prepared, record, disk, NO_SUMS)
    except BaseException:
        with suppress(OSError):  # the next import starts it again
            discard(prepared.path, prepared.uuid)
        if ahead:
            ahead.stop.set()
        raise
    assert final.name is not None
    context.own[tree.host] = OwnBackup(final.name, links.digests, ahead)
    return ImportedBackup(final, prepared.id, numbers.get("literal", 0))


def import_record(context: ImportContext, tree: OldTree, first: Record, numbers: Mapping[str, int]) -> Record:
    """Returns the record of a complete backup made from the tree. `numbers`: those of a PathResult."""
    return replace(
        first,
        state=COMPLETE,
        finished=context.clock.now().replace(microsecond=0),  # it did not exist here before
        attempts=1,
        paths=(PathResult(tree.path, PathOutcome.COMPLETE, exit_code=0, numbers=dict(numbers)),),
        rsync_version=context.rsync.version,
        protocol=context.rsync.protocol,
        version=__version__,
    )


def origin_of(tree: OldTree) -> str:
    """Returns the folder of the tree, for Record.imported. It is in the record from the start: by this an import recognises its own
    subvolume.
    """
    return os.fsencode(tree.folder).decode("utf-8", "replace")
