"""Renames a host: its folder moves, the backups in it stay unchanged.

Each backup keeps the name under which it was made, so first the host's notes record, on disk, its former names, and backups in
doubt since a crash are in doubt under both names; then the folder is renamed, which is atomic, and synced; finally the catalogue
follows. If the command is killed in between, running it again finishes the job. A run in between finds the host under one of the
two names.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime

from backupd.proof.after_crash import doubt_under_both_names, end_doubt_of
from backupd.proof.damaged_files import recorded_damage
from backupd.repo.actions_log import UserAction
from backupd.repo.common_backups import rename_common
from backupd.repo.final_backups import point_latest
from backupd.repo.notes_json import read_notes, write_with_action
from backupd.repo.pool_files import has_backups_in_doubt, names_of
from backupd.repo.read_lock import lock_for_deletion
from backupd.repo.reconcile import row_of
from backupd.repo.verification_files import recall_verifications
from btrkeep.catalogue import Catalogue
from btrkeep.checkpoints import Checkpoint
from btrkeep.config.sources import require_host_name
from btrkeep.errors import OperatorError, UsageError
from btrkeep.fs.openat import is_there
from btrkeep.pool.locks import EXPIRE_LOCK, NIGHT_LOCK, VERIFY_LOCK, take_lock
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import commit, delete, describe
from btrkeep.process.threads import raise_limit


@contextmanager
def locked(pool: Pool, old: str, new: str, since: str) -> Iterator[None]:
    """The locks that a rename needs: of both hosts, and of every job that may have a list of hosts: a night, a rebuild, an expiry,
    and the verification of backups in doubt after a crash.
    """
    with ExitStack() as held:
        if has_backups_in_doubt(pool, (old, new)):
            held.enter_context(take_lock(pool.locks / VERIFY_LOCK, "backupd rename", since))
        for path in (pool.locks / NIGHT_LOCK, pool.locks / EXPIRE_LOCK, pool.host_lock(old), pool.host_lock(new)):
            held.enter_context(take_lock(path, "backupd rename", since))
        yield


def validate_names(old: str, new: str) -> None:
    """Raises UsageError for an invalid name of a host, and for its present name."""
    require_host_name(new)
    if old == new:
        raise UsageError(f"{old} has that name already", "choose another name")


def require_renameable(pool: Pool, old: str, new: str) -> None:
    """Raises OperatorError if there is nothing to rename or the new name is taken. The names have been validated."""
    folder = pool.host(new)
    in_the_way = OperatorError(f"{folder} exists already", "check what it contains, and move it away")
    if is_there(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise in_the_way
    if is_renamed(pool, old, new):
        return
    if not pool.host(old).is_dir():
        raise OperatorError(f"{old} has no backup in the pool", f"only rename the section [host.{old}] in the configuration")
    if names_of(pool, new):
        raise OperatorError(
            f"{new} has backups already", f"two hosts cannot be merged; choose another name, or first `backupd forget {new}`"
        )
    if is_there(folder) and any(os.scandir(folder)):
        raise in_the_way


def is_renamed(pool: Pool, old: str, new: str) -> bool:
    """Returns True if the folder has moved already, so that only the remaining steps may be missing."""
    return not is_there(pool.host(old)) and old in read_notes(pool.host(new)).was


def backups_of(pool: Pool, host: str) -> int:
    """Returns the number of final backups in the host's folder."""
    return sum(1 for name in names_of(pool, host) if name[0] != ".")


def rename(pool: Pool, catalogue: Catalogue, old: str, new: str, now: datetime, *, by: str) -> int:
    """Renames the host, or completes an earlier rename. Returns the number of its backups. The caller holds the locks."""
    require_renameable(pool, old, new)
    if not is_renamed(pool, old, new):
        _clear_staged(pool, old)
        notes = read_notes(pool.host(old))
        notes = replace(notes, was=tuple(dict.fromkeys((*notes.was, old))))
        write_with_action(pool, notes, UserAction(now, "rename", by, old, None, f"to {new}"))
        doubt_under_both_names(pool, old, new)
        with _locked_against_restores(pool, old), Checkpoint("folder of the host renamed"):
            pool.host(old).rename(pool.host(new))
    rename_common(pool, old, new)
    commit(pool.hosts)
    point_latest(pool, new)
    _in_catalogue(pool, catalogue, old, new)
    end_doubt_of(pool, catalogue, old)
    return backups_of(pool, new)


@contextmanager
def _locked_against_restores(pool: Pool, host: str) -> Iterator[None]:
    """Locks the host's backups against restores, which use their paths. Raises OperatorError if one is running.

    Takes an open file for each backup, of which a host may have thousands.
    """
    raise_limit()
    with ExitStack() as held:
        for name in sorted(names_of(pool, host)):
            try:
                is_unread = held.enter_context(lock_for_deletion(pool.host(host) / name))
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    hint = "root raises the limit with `ulimit -n 100000`; then run the command again"
                    raise OperatorError(f"{host} has more backups than this process may have files open", hint) from None
                continue  # not a backup, although its name looks like one
            if not is_unread:
                raise OperatorError(f"{host}@{name} is being restored from", "wait until the restore has ended")
        yield


def _clear_staged(pool: Pool, old: str) -> None:
    """Removes the parts of a `.working` that a killed run of the host was creating: no run under the new name would remove them."""
    staged = pool.staged(old)
    if left := describe(staged):
        delete(staged.parent, left.id)
    with suppress(OSError):  # it does not exist, or contains a foreign file
        staged.parent.rmdir()


def _in_catalogue(pool: Pool, catalogue: Catalogue, old: str, new: str) -> None:
    """Renames rows and runs. If the new name already has rows, from a run that found the folder first, or runs of a forgotten host,
    the rows are read from the pool, and the runs of both are kept.
    """
    if not _is_known(catalogue, old):
        return
    if not _is_known(catalogue, new):
        catalogue.rename_host(old, new)
        return
    catalogue.drop_host(old)
    catalogue.drop_host(new)
    for name in sorted(names_of(pool, new)):
        if row := row_of(pool, new, name):
            catalogue.put_backup(row)
    catalogue.move_runs(old, new)
    recall_verifications(pool, catalogue, new, names_of(pool, new), recorded_damage)


def _is_known(catalogue: Catalogue, host: str) -> bool:
    return bool(catalogue.runs(host, 1) or list(catalogue.backups(host)))
