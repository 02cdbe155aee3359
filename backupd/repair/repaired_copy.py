"""Makes a repaired copy of a backup by the steps of a night: `.working` from a snapshot, and the final name when everything is on
the disk.

The damaged backup is read-only and stays unchanged, which preserves the data that it shares with others, and its relation to copies
in other pools. It is marked for the next expiry, because the copy replaces it, unless something needs it; then the copy is held.
"""

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from backupd.actions.delete import choose, mark, require_sane_clock
from backupd.actions.hold import hold
from backupd.expire.expiry_context import ExpiryContext
from backupd.expire.host_backups import read_host_from_pool
from backupd.files.backup_selector import Restorable
from backupd.files.tree import Tree, components, entry_of, joined
from backupd.repair.plan import DamagedPath, GoodCopy, RecordedSums, RepairPlan, RepairProof, key, read_whole
from backupd.repo.backup_json import Record
from backupd.repo.backup_json import write as write_record
from backupd.repo.catalogue_row import backup_row
from backupd.repo.final_backups import FinalBackup, discard, final_backups, point_latest, read_if_ours, recover, require_not_replica
from backupd.repo.notes_json import ACCEPTED, HOLD, hold_of, read_notes, write_notes
from backupd.repo.pool_files import names_of
from backupd.repo.read_lock import lock_for_reading
from backupd.repo.reconcile import row_of
from backupd.repo.verification_files import enter_damages, forget_recorded
from backupd.run import finalisation
from backupd.run import work_subvolume as working
from backupd.run.interrupted import discardable, settings_of
from btrkeep import __version__
from btrkeep.backup_states import RUNNING
from btrkeep.catalogue import Damage
from btrkeep.checkpoints import Checkpoint
from btrkeep.config import HostConfig
from btrkeep.decisions.pool_health import lacks_room, room_advice
from btrkeep.decisions.retention import DeletionRequest, Hold
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError, PoolUnusable, StateConflict
from btrkeep.fs.file_data import copy_run, data_runs
from btrkeep.fs.openat import FILE, is_there
from btrkeep.fs.reflink import clone
from btrkeep.pool import qgroups
from btrkeep.pool.allocation import read_room
from btrkeep.pool.syncfs import syncing
from btrkeep.process.proc import login_name
from btrkeep.units import backup_name, counted

_UNLIKE = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY)  # another filesystem, or only one of the two has checksums


@dataclass(frozen=True, slots=True)
class RepairDone:
    """The result for a backup."""

    plan: RepairPlan
    """The plan that was carried out."""
    name: str
    """The name of the repaired copy."""
    stays: str = ""
    """The reason why the damaged backup does not expire, so that the copy is held; "": it expires."""


def repair(context: ExpiryContext, plan: RepairPlan) -> RepairDone:
    """Makes the copy, unless an earlier repair did, and marks the damaged backup for expiry. The caller holds the host's lock.

    Raises StateConflict if the host or its backup has changed, PoolUnusable, DataLost, OSError. An unfinished copy is discarded.
    """
    pool, backup = context.pool, plan.backup
    require_not_replica(pool, backup.host)
    if read_notes(pool.host(backup.host)).forgotten:
        raise StateConflict(
            f"{backup.host} is forgotten: all its backups are due for deletion",
            f"`backupd forget {backup.host} --undo` undoes that",
        )
    recover(pool, backup.host)
    name = _made_before(context, backup)
    if name is None:
        _require_no_other_work(context, backup.host)
        if why := lacks_room(read_room(pool.path), context.config.pool.min_free):
            raise PoolUnusable(why, room_advice(context.config))
        name = _make(context, plan)
    elif row := row_of(pool, backup.host, name):  # a kill may have kept the row from the catalogue
        context.catalogue.put_backup(row)
    _carry_notes(context, plan, name)
    return RepairDone(plan, name, _expire_damaged(context, plan, name))


def _made_before(context: ExpiryContext, backup: Restorable) -> str | None:
    """Returns the copy that a killed or earlier repair made."""
    copies = (copy.record for copy in final_backups(context.pool, backup.host, []))
    return next((copy.name for copy in copies if (copy.repaired or {}).get("of_uuid") == backup.record.uuid), None)


def _start(context: ExpiryContext, backup: Restorable) -> datetime:
    """Returns a second after the start of the damaged backup, or later if other copies have that time. Raises StateConflict if the
    next backup is too close, because the copy must not come after it.
    """
    moment, taken = backup.started + timedelta(seconds=1), names_of(context.pool, backup.host)
    while (name := backup_name(moment)) in taken:
        final_backup = read_if_ours(context.pool.host(backup.host) / name, backup.host)
        if final_backup is None or not final_backup[1].repaired:
            raise StateConflict(
                f"{backup.host} {name} follows {backup.name} at once: no second is free for a repaired copy",
                "repair a later backup",
            )
        moment += timedelta(seconds=1)
    return moment


def _require_no_other_work(context: ExpiryContext, host: str) -> None:
    """Discards the unfinished copy of a killed repair; an unfinished backup of a night is data of a host. Raises StateConflict."""
    path = context.pool.working(host)
    if not is_there(path):
        return
    settings = settings_of(HostConfig(host))
    if left := discardable(path, host, lambda record: bool(record.repaired) or record.settings == settings):
        discard(path, left.uuid)
    if is_there(path):
        raise StateConflict(
            f"{host} has an unfinished backup", f"`backupd run {host}` finishes it, `backupd discard {host}` deletes it"
        )


def _make(context: ExpiryContext, plan: RepairPlan) -> str:
    backup = plan.backup
    with lock_for_reading(backup.path), syncing(context.pool.path) as disk:
        final_backup = read_if_ours(backup.path, backup.host)
        if final_backup is None or not final_backup[0].read_only or final_backup[1].uuid != backup.record.uuid:
            raise StateConflict(f"{backup.host} {backup.name} was replaced", "run the repair again")
        start = _start(context, backup)
        prepared = working.make_work_subvolume(
            context.pool, HostConfig(backup.host), FinalBackup(backup.path, *final_backup), start
        )
        try:
            qgroups.join(context.pool, backup.host, prepared.id)
            with Tree(prepared.path) as tree:
                for damaged in plan.repairs:
                    _replace(tree, damaged)
            record = _record(context, plan, replace(backup.record, uuid=prepared.uuid, started=start, ancestors=prepared.ancestors))
            write_record(prepared.path, replace(record, state=RUNNING, settings=settings_of(HostConfig(backup.host))))
            _enter_damages(context, plan, backup_name(start))
            _, final = finalisation.finalise(context.pool, prepared, record, disk, None, split=False)
        except BaseException:
            with suppress(OSError):
                discard(prepared.path, prepared.uuid)
            raise
    assert final.name is not None
    context.catalogue.put_backup(backup_row(context.pool, final, final.state, prepared.id))
    return final.name


def _record(context: ExpiryContext, plan: RepairPlan, first: Record) -> Record:
    """Returns the record of the damaged backup without the numbers of a transfer, because nothing came from the host."""
    unproven = sum(damaged.copy is not None and damaged.copy.proof != RepairProof.CHECKSUM for damaged in plan.repairs)
    warning = f"a repaired copy of {plan.backup.name}: {counted(len(plan.repairs), 'damaged file')} replaced"
    return replace(
        first,
        name=None,
        base=plan.backup.name,
        base_uuid=plan.backup.record.uuid,
        finished=context.now,
        paths=tuple(replace(path, numbers=_counted(path.numbers), seconds=0.0) for path in first.paths),
        warnings=(*first.warnings, warning + (f", {unproven} of them without a checksum as proof" if unproven else "")),
        version=__version__,
        written=None,
        imported=None,
        repaired={"of": plan.backup.name, "of_uuid": plan.backup.record.uuid, "files": len(plan.repairs), "unproven": unproven},
    )


def _counted(numbers: Mapping[str, int]) -> dict[str, int]:
    return {**{name: numbers[name] for name in ("files", "regular", "bytes") if name in numbers}, "literal": 0}


def _enter_damages(context: ExpiryContext, plan: RepairPlan, name: str) -> None:
    """Records remaining damage for the copy before it is renamed: after a kill there must not be a copy that seems undamaged."""
    left = {os.fsdecode(file.path) for file in plan.unrepaired}
    rows = [
        damage
        for damage in context.catalogue.damages(plan.backup.host, plan.backup.name)
        if damage.fate is None and damage.path in left
    ]
    copied = [Damage(row.host, name, row.path, row.start, row.length, row.found_by, context.now) for row in rows]
    forget_recorded(context.pool, plan.backup.host, name)  # recorded for an earlier, deleted backup of that name
    enter_damages(context.pool, context.catalogue, [plan.backup.host], copied)


@Checkpoint("damaged file replaced")
def _replace(tree: Tree, damaged: DamagedPath) -> None:
    """Gives the file in `.working` its content; owner, mode, times, attributes and its other names stay."""
    assert damaged.copy is not None
    names = components(damaged.path)
    flags = os.O_RDWR | os.O_NONBLOCK | FILE
    with tree.folder(joined(names[:-1])) as folder, ClosingFd(os.open(names[-1], flags, dir_fd=folder)) as fd:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode) or before.st_ino != damaged.inode:
            raise StateConflict(f"{os.fsdecode(damaged.path)} was replaced", "run the repair again")
        attributes = {name: os.getxattr(fd, name) for name in os.listxattr(fd)}
        _fill(fd, damaged.copy, before.st_size)
        _require_content(fd, damaged)
        os.fchmod(fd, stat.S_IMODE(before.st_mode))  # writing removes setuid bits and file capabilities
        for name in set(attributes) - set(os.listxattr(fd)):
            os.setxattr(fd, name, attributes[name])
        os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))


def _require_content(fd: int, damaged: DamagedPath) -> None:
    """Raises StateConflict if the source has changed: a given folder may change at any time, a backup does not."""
    assert damaged.copy is not None
    if damaged.copy.backup is None:
        file_read = read_whole(os.dup(fd), entry_of(damaged.path, os.fstat(fd), None), RecordedSums(None, None), lambda: True)
        if file_read is None or file_read.digest != damaged.copy.digest:
            raise StateConflict(
                f"{damaged.copy.name}: {os.fsdecode(damaged.path)} was changed during the repair", "run the repair again"
            )


def _fill(fd: int, copy: GoodCopy, size: int) -> None:
    """Copies the data, shared if possible. Raises StateConflict if the source has changed."""
    with copy.tree() as tree:
        entry = tree.stat(copy.path)
        with ClosingFd(tree.open_file(copy.path)) as source:
            if key(entry) != copy.key or os.fstat(source).st_ino != entry.inode:
                raise StateConflict(f"{copy.name}: {os.fsdecode(copy.path)} was replaced", "run the repair again")
            os.ftruncate(fd, 0)  # so that the damaged data is not read
            try:
                clone(source, fd)
            except OSError as error:
                if error.errno not in _UNLIKE:
                    raise
                _copy(source, fd, size)


def _copy(source: int, fd: int, size: int) -> None:
    for start, end in data_runs(source, size):
        for _ in copy_run(source, fd, start, end):
            pass
    os.ftruncate(fd, size)


def _carry_notes(context: ExpiryContext, plan: RepairPlan, name: str) -> None:
    """Copies the hold and the acceptance of the damaged backup."""
    folder = context.pool.host(plan.backup.host)
    notes = before = read_notes(folder)
    for note_key in (HOLD, ACCEPTED):
        if (note := notes.note(plan.backup.name, note_key)) and not notes.note(name, note_key):
            notes = notes.with_note(name, note_key, note)
    if notes != before:
        write_notes(folder, notes)
        if row := row_of(context.pool, plan.backup.host, name):
            context.catalogue.put_backup(row)
        point_latest(context.pool, plan.backup.host)


def _is_proven(context: ExpiryContext, host: str, copy: str) -> bool:
    """Returns True if all replaced files in the copy have the recorded content; an earlier repair may have made it."""
    final_backup = read_if_ours(context.pool.host(host) / copy, host)
    return final_backup is not None and (final_backup[1].repaired or {}).get("unproven") == 0


def _expire_damaged(context: ExpiryContext, plan: RepairPlan, name: str) -> str:
    """Marks the damaged backup for expiry, so that the copy replaces it; otherwise returns the reason. Then the copy is held,
    because the retention keeps only the first of two backups of a day.
    """
    host, old = plan.backup.host, plan.backup.name
    asked = DeletionRequest(f"repaired in {name}", by=login_name())
    seen = read_host_from_pool(
        context.pool, context.config, host, {backup.name: backup.state for backup in context.catalogue.backups(host) if backup.name}
    )
    candidates = {candidate.name: candidate for candidate in seen.facts.candidates}
    stays = ""
    if old not in candidates:
        stays = seen.unreadable.get(old, "it is no longer in the catalogue")
    elif candidates[old].asked and candidates[old].expired:
        return ""
    elif not _is_proven(context, host, name):
        stays = "not all copies are proven by a checksum"
    elif candidates[old].common:
        stays = f"it is the common backup with the replica {candidates[old].common}"
    else:
        try:
            require_sane_clock(context, asked)
            mark(context, [choose(context, host, [old], asked)], asked)
        except OperatorError as error:
            stays = error.message
    if stays and not hold_of(read_notes(context.pool.host(host)), name):
        kept = Hold(None, f"repaired copy of {old}, which stays: {stays}")
        hold(context.pool, context.catalogue, host, name, kept, context.now, by=login_name())
    return stays
