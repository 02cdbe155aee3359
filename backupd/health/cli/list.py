"""`backupd list`: lists the backups."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import click

from backupd.actions.hold import hold_fields
from backupd.cli import colours
from backupd.cli.command_context import ShownState, opened_to_show, pass_context
from backupd.cli.names import complete_host_of_pool, require_host_or_folder
from backupd.expire.host_backups import asked_of, policy_of
from backupd.repo.backup_json import UnreadableRecord
from backupd.repo.catalogue_row import NO_NOTES
from backupd.repo.notes_json import Notes, hold_of, read_notes
from backupd.repo.verification_files import comparison_fields, read_verified, verification_fields
from btrkeep.backup_states import ALTERED, PARTIAL, RUNNING
from btrkeep.catalogue import Backup
from btrkeep.cli import json_option, stream_json
from btrkeep.cli.listings import Column, listing, objects
from btrkeep.cli.output import print_wrapped
from btrkeep.decisions.cause_words import error_words
from btrkeep.decisions.due import latest
from btrkeep.decisions.retention import DeletionRequest, Hold
from btrkeep.decisions.retention_words import by_hand, deletion_words, hold_words
from btrkeep.decisions.verification import VerificationState, Verified, VerifiedBackups, damaged_words, verified_briefly
from btrkeep.pool.marker import Pool
from btrkeep.process.proc import start_time
from btrkeep.units import counted, format_duration, format_size, local_day, local_time, printable

_NONE = {False: "no backups yet", True: "there are no backups"}  # key: whether the catalogue was lost
_UNREAD: dict[str, Any] = {"begun": None, "read": 0, "compared": 0, "bytes": 0, "whole": None, "damaged": []}


@click.command("list")
@click.argument("host", required=False, shell_complete=complete_host_of_pool)
@click.option("--all", "everything", is_flag=True, help="Every backup of every host, not only the newest of each.")
@json_option
@pass_context
def command(ctx: click.Context, host: str | None, everything: bool, as_json: bool) -> int:
    """List the backups of HOST, or the newest of each host.

    NAME is the time in UTC at which the backup started. Its files are in POOL/hosts/HOST/NAME/data. FILES is the number of regular
    files. NEW is the data that rsync wrote, without zeros that became holes. (.working) is a backup that is still running or was
    interrupted; the next run continues it. --json prints every backup.

    \b
    States:
      complete   no more is missing than the configuration allows
      suspect    it lost or missed too much: `backupd accept` accepts it
      failed     a source path is missing or failed; the rest is complete
      altered    changed after it was final: `backupd accept` accepts it
      partial    it was stopped; the next run continues it
      running    the run has not ended
      expired    no rule keeps it: an expiry after the shown time deletes it
                 (`backupd unexpire` keeps it again)
      deleting   an expiry is deleting it

    A backup that is held (`backupd hold`) does not expire.
    """
    with opened_to_show(ctx) as state:
        if host is not None:
            require_host_or_folder(state, host)
        if as_json:
            stream_json(objects(_columns(state), _with_killed_as_partial(state, state.catalogue.backups(host))))
            return 0
        every = host or everything
        now_latest = latest(state.clock.now())
        backups: Iterable[Backup] = state.catalogue.backups(host) if every else state.catalogue.newest_backups(now_latest)
        shown = list(_with_killed_as_partial(state, backups))
        click.echo(listing(_columns(state), shown) if shown else _NONE[state.lost])
        if shown and not every:
            print_wrapped("Only the newest backup of each host is shown: `backupd list HOST` or --all shows the others.")
    return 0


def _with_killed_as_partial(state: ShownState, backups: Iterable[Backup]) -> Iterator[Backup]:
    """Shows the backup of a killed run as partial, before the next run has recorded that."""
    alive = {run.host for run in state.catalogue.unfinished_runs() if start_time(run.pid) == run.pid_started}
    for backup in backups:
        yield replace(backup, state=PARTIAL) if backup.state == RUNNING and backup.host not in alive else backup


class _BackupNotes:
    """The contents of notes.json for final backups. Few hosts have notes, so only their files are read."""

    def __init__(self, state: ShownState) -> None:
        self.config, self.now, self.pool = state.config, state.clock.now(), state.pool
        self._notes = cache(lambda host: _notes(state.pool, host))
        self._read = cache(lambda host: read_verified(state.pool.host(host)) if state.pool else {})
        self._verified = VerifiedBackups(state.catalogue, self.now)

    def hold_fields(self, backup: Backup) -> Mapping[str, Any] | None:
        """Returns its hold for JSON, None if no hold applies."""
        return hold_fields(self._hold(backup))

    def hold_words(self, backup: Backup) -> str | None:
        """Formats the hold."""
        hold = self._hold(backup)
        return hold_words(hold) if hold else None

    def _hold(self, backup: Backup) -> Hold | None:
        hold = hold_of(*self._of(backup))
        return hold if hold and hold.is_in_force(self.now) else None

    def _of(self, backup: Backup) -> tuple[Notes, str]:
        noted_name = (backup.held_why is not None or backup.expired) and backup.name
        return (self._notes(backup.host) if noted_name else NO_NOTES), backup.name or ""

    def verified(self, backup: Backup) -> Verified:
        """Returns the verification state."""
        return self._verified.of(backup)

    def verified_words(self, backup: Backup) -> str:
        """Formats the verification state."""
        return verified_briefly(self.verified(backup), local_day) if backup.name else "-"

    def verified_fields(self, backup: Backup) -> dict[str, Any] | None:
        """Returns the verification state for JSON, with the record of `backupd verify`; None if it was never verified."""
        result = self.verified(backup)
        if result.state == VerificationState.NEVER and result.source is None:
            return None
        verification = self._read(backup.host).get(backup.name or "")
        read = verification_fields(verification) if verification else {}
        fields = {"state": str(result.state), "by": result.by and str(result.by), "at": result.at, "damages": result.damages}
        return {**_UNREAD, **read, **fields, "source": comparison_fields(result.source) if result.source else None}

    def asked(self, backup: Backup) -> DeletionRequest | None:
        """Returns the deletion request of an operator."""
        return asked_of(*self._of(backup))

    def deletable(self, backup: Backup) -> datetime | None:
        """Returns the time from which an expired backup may be deleted; None also without the pool."""
        if self.pool is None:
            return None
        if not backup.expired or ((asked := self.asked(backup)) and asked.at_once):
            return backup.expired
        return backup.expired + timedelta(seconds=policy_of(self.config, backup.host, self._notes(backup.host)).grace)


def _notes(pool: Pool | None, host: str) -> Notes:
    try:
        return read_notes(pool.host(host)) if pool else NO_NOTES
    except UnreadableRecord:  # an expiry skips the host and reports it; here the list must still be shown
        return NO_NOTES


def _columns(state: ShownState) -> tuple[Column[Backup], ...]:
    notes, pool = _BackupNotes(state), str(state.config.pool.path)
    return (
        Column("host", lambda backup: backup.host, "HOST"),
        Column("name", lambda backup: backup.name, "NAME", lambda name: name or "(.working)"),
        Column("path", lambda backup: f"{pool}/{backup.path}"),
        Column("state", lambda backup: backup.state, "STATE", lambda state: click.style(state, fg=colours.BACKUP.get(state))),
        Column("started", lambda backup: backup.started, "STARTED", local_time, spare=True),
        Column("finished", lambda backup: backup.finished),
        Column("duration", lambda backup: backup.duration, "TOOK", format_duration, right=True),
        Column("files", lambda backup: backup.files, "FILES", lambda files: str(files) if files is not None else "-", right=True),
        Column("bytes", lambda backup: backup.bytes, "SIZE", format_size, right=True),
        Column("new_bytes", lambda backup: backup.new_bytes, "NEW", format_size, right=True),
        Column("shared_bytes", lambda backup: backup.shared_bytes),
        Column("live_paths", lambda backup: backup.live_paths),
        Column("warnings", lambda backup: backup.warnings),
        Column("error", lambda backup: error_words(backup.error, backup.cause)),
        Column("held", notes.hold_fields),
        Column("expires", notes.deletable),
        Column("verified", header="VERIFIED", cell=notes.verified_words, json=notes.verified_fields, spare=True),
        Column(header="REMARK", cell=lambda backup: printable(_remark(backup, notes))),
    )


def _remark(backup: Backup, notes: _BackupNotes) -> str:
    """Formats when it may be deleted or how it is held, an odd time, and problems."""
    deletable, warnings, verified = notes.deletable(backup), backup.warnings, notes.verified(backup)
    wrong = error_words(backup.error, backup.cause) or (f"{counted(len(warnings), 'warning')}: {warnings[0]}" if warnings else None)
    ahead = "its time is in the future: a clock was wrong" if backup.started > latest(notes.now) else None
    remarks = [
        "changed after it was final" if ALTERED in (backup.state, backup.outcome) else None,
        damaged_words(verified) if verified.damages else None,
        deletion_words(deletable, notes.now) if deletable else None,
        by_hand(notes.asked(backup)),
        notes.hold_words(backup),
        ahead,
        f"{format_size(backup.shared_bytes)} shared with another host" if backup.shared_bytes else None,
        f"{counted(backup.live_paths, 'path')} not from a snapshot" if backup.live_paths else None,
        wrong,
    ]
    return "; ".join(words for words in remarks if words)
