"""Forgets a host, so that all its backups expire, and undoes that.

This is one line in the host's notes.json, which `backupd expire` reads. Callers of `forget` and `undo_forget` hold the host's lock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from backupd.actions.hold import holds
from backupd.expire.host_backups import forgotten_at
from backupd.repo.actions_log import UserAction
from backupd.repo.notes_json import ASKED, BY, RULES, read_notes, write_with_action
from backupd.repo.reconcile import follow_notes
from btrkeep.backup_states import DELETING, EXPIRED
from btrkeep.catalogue import Backup, Catalogue
from btrkeep.config import Config
from btrkeep.decisions.retention import RetentionCode
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.marker import Pool
from btrkeep.units import counted, format_size, format_time


@dataclass(frozen=True, slots=True)
class RemainingBackups:
    """The remaining backups of a host."""

    names: tuple[str, ...]
    """Names of the final backups."""
    newest: int | None
    """The size of the newest backup whose size is known; None if no size is known."""
    written: int | None
    """Bytes that rsync wrote for all of them; None if unknown."""

    def __str__(self) -> str:
        if not self.names:
            return "no backups"
        span = self.names[0] if len(self.names) == 1 else f"{self.names[0]} to {self.names[-1]}"
        sizes = [f"the newest has {format_size(self.newest)}"] if self.newest is not None else []
        sizes += [f"rsync wrote {format_size(self.written)} of data for all of them"] if self.written is not None else []
        return f"{counted(len(self.names), 'backup')}, {span}" + (f"; {', '.join(sizes)}" if sizes else "")


def remaining_backups(catalogue: Catalogue, host: str) -> RemainingBackups:
    """Returns the remaining backups of a host according to the catalogue."""
    backups = [backup for backup in catalogue.backups(host) if backup.name]
    sizes = [backup.bytes for backup in backups if backup.bytes is not None]
    return RemainingBackups(tuple(str(backup.name) for backup in backups), sizes[-1] if sizes else None, _written(backups))


def _written(backups: list[Backup]) -> int | None:
    sizes = [backup.new_bytes for backup in backups if backup.new_bytes is not None]
    return sum(sizes) if sizes and len(sizes) == len(backups) else None


def require_forgettable(config: Config, pool: Pool, host: str, now: datetime) -> None:
    """Raises UsageError if the host is still backed up, OperatorError if it has no backup or some are held."""
    if host in config.excluded:
        raise UsageError(f"{host} is configured, with a mistake: {config.excluded[host].fault}", "correct that line first")
    if config.unread:
        raise UsageError(f"{host} may be configured in a file that cannot be read: {config.unread[0]}", "correct that file first")
    configured = config.hosts.get(host)
    if configured and configured.enabled:
        raise UsageError(
            f"{host} is still backed up",
            f"`backupd host remove {host}` removes it from the configuration; then run `backupd forget {host}`",
        )
    if not pool.host(host).is_dir():
        raise OperatorError(f"{host} has no backup in the pool", "there is nothing to forget")
    held = list(holds(read_notes(pool.host(host)), now))
    if held:
        names = ", ".join(name for name, _ in held)
        raise OperatorError(
            f"{counted(len(held), 'backup')} of {host} {'is' if len(held) == 1 else 'are'} held: {names}",
            f"`backupd release {host} {held[0][0]}` ends a hold",
        )


def forget(pool: Pool, host: str, now: datetime, *, by: str) -> datetime:
    """Records that all backups of the host may expire. Returns the time since which it is forgotten, which may be earlier."""
    notes = read_notes(pool.host(host))
    if since := forgotten_at(notes):
        return since
    notes = replace(notes, forgotten={"at": format_time(now), BY: by})
    write_with_action(pool, notes, UserAction(now, "forget", by, host))
    return now


def undo_forget(pool: Pool, catalogue: Catalogue, host: str, now: datetime, *, by: str) -> list[str]:
    """Undoes it. Returns the names of the backups that had expired for this reason and are not being deleted yet.

    Raises OperatorError if the host is not forgotten.
    """
    notes = read_notes(pool.host(host))
    if not notes.forgotten:
        raise OperatorError(f"{host} is not forgotten", "there is nothing to undo")
    rows = {backup.name: backup.state for backup in catalogue.backups(host)}
    marked = [name for name in notes.backups if _was_forgotten(notes.note(name, EXPIRED))]
    back = sorted(name for name in marked if rows.get(name) != DELETING)
    for name in back:
        notes = notes.without(name, EXPIRED)
    write_with_action(pool, replace(notes, forgotten=None), UserAction(now, "forget --undo", by, host))
    follow_notes(pool, catalogue, host, back)
    return back


def _was_forgotten(note: Mapping[str, Any] | None) -> bool:
    """Returns True if a backup was marked because its host was forgotten, and not because an operator requested it."""
    return note is not None and ASKED not in note and RetentionCode.FORGOTTEN in (note.get(RULES) or ())
