"""notes.json: changes to a host's backups after they are final (accepted, held, expired), and to the host itself. It is beside the
backups and is authoritative; the rows of the catalogue follow it. It is always replaced completely, and is on disk before any
action that depends on it. If it cannot be read, nothing of this host is deleted.

{"format": 1, "backups": {NAME: {"accepted": {"at", "why"}, "hold": {"at", "until", "why"}, "expired": {"at", "why", "rules"},
"altered": {"at", "subvolume", "accepted"}}}, "was": [OLDER NAMES], "forgotten": {"at"}, "deleted": {NAME: {"asked", "at", "why"}},
"replica": {"pool", "name", "at", "demoted"}, "machine": ID, "actions": [{"at", "what", "by", "host", "backup", "why"}]}

"by" in a note is the login name of the user who requested it. "actions" are the newest actions of users, so a hold is still
recorded after its release. A backup whose deletion was requested also has {"asked": {"last", "at_once"}} in its `expired`.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backupd.repo.actions_log import UserAction, record_action
from backupd.repo.backup_json import Record, UnreadableRecord
from backupd.repo.pool_files import LARGEST, NOT_UNDERSTOOD, has_room, text_of_file
from btrkeep.backup_states import ALTERED, COMPLETE, EXPIRED, SUSPECT
from btrkeep.errors import OperatorError
from btrkeep.pool.atomic import write_atomically
from btrkeep.pool.marker import Pool
from btrkeep.pool.reserve import with_reserve
from btrkeep.units import parse_time

if TYPE_CHECKING:
    from btrkeep.decisions.retention import Hold

FORMAT = 1
NOTES = "notes.json"
ACCEPTED, HOLD = "accepted", "hold"  # keys of a backup's notes, beside EXPIRED
ALTERED_NOTE = ALTERED  # another key: the backup was changed after it was final (seals.py)
BY = "by"  # a key of each note that a user asked for: the login name
ASKED = "asked"  # a key of EXPIRED: requested with `backupd delete`
RULES = "rules"  # another key: the codes of the reasons in `why`
DEMOTED = "demoted"  # a key of `replica`: the host was backed up here before
_REMEMBERED = 500  # the newest manual deletions of a host
_ACTIONS = 100  # the newest actions of users on a host

_log = logging.getLogger(__name__)


class NotesFull(OperatorError):
    """The notes of a host would be larger than the maximum that is read."""


@dataclass(frozen=True, slots=True)
class Notes:
    """notes.json of a host."""

    backups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Notes by the backup's name and the note's key."""
    was: tuple[str, ...] = ()
    """Earlier names of the host."""
    forgotten: Mapping[str, Any] | None = None
    """When and by whom the host was forgotten: all its backups may be deleted; None: it was not."""
    deleted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Backups deleted on request, by name: when that was requested, when it was done, and why."""
    replica: Mapping[str, Any] | None = None
    """The other pool's id, the replica's name, and since when the host is fetched from there; None: it is backed up here."""
    machine: str | None = None
    """The id that marks its copies offsite, also if another machine gets the same name later; None before the first copy."""
    actions: tuple[Mapping[str, Any], ...] = ()
    """The newest actions of users on the host's backups, oldest first."""

    def note(self, name: str, key: str) -> Mapping[str, Any] | None:
        """Returns one note of one backup."""
        return self.backups.get(name, {}).get(key)

    def accepted(self, name: str) -> bool:
        """Returns True if a suspect backup was accepted."""
        return bool(self.note(name, ACCEPTED))

    def is_altered(self, name: str) -> bool:
        """Returns True if the backup was changed after it became final, and that change was not accepted."""
        note = self.note(name, ALTERED_NOTE)
        return note is not None and not note.get(ACCEPTED)

    def is_original(self, name: str) -> bool:
        """Returns True unless the backup was changed after it became final, accepted or not: a changed backup is not a copy of
        its original.
        """
        return self.note(name, ALTERED_NOTE) is None

    def expired_at(self, name: str) -> datetime | None:
        """Returns when expiry marked the backup, None if it did not."""
        return _moment(self.note(name, EXPIRED), "at")

    def held_until(self, name: str) -> datetime | None:
        """Returns the end of a hold; None without a hold, and for a hold without end: check `note(name, HOLD)` first."""
        return _moment(self.note(name, HOLD), "until")

    def with_note(self, name: str, key: str, value: Mapping[str, Any]) -> "Notes":
        """Returns the notes with one added."""
        return replace(self, backups={**self.backups, name: {**self.backups.get(name, {}), key: value}})

    def without(self, name: str, key: str | None = None) -> "Notes":
        """Returns the notes without that note; without a key, without all notes of that backup."""
        left = {} if key is None else {note_key: value for note_key, value in self.backups.get(name, {}).items() if note_key != key}
        others = {other: notes for other, notes in self.backups.items() if other != name}
        return replace(self, backups={**others, name: left} if left else others)

    def with_action(self, action: UserAction) -> "Notes":
        """Returns the notes with that action as the newest; the oldest is dropped when there are too many."""
        return replace(self, actions=(*self.actions, action.as_json())[-_ACTIONS:])

    def after_deletion(self, name: str, at: str) -> "Notes":
        """Returns the notes after that backup was deleted for good. A requested deletion is remembered."""
        note, left = self.note(name, EXPIRED), self.without(name)
        if not note or not note.get(ASKED):
            return left
        by = {BY: note[BY]} if note.get(BY) else {}
        deleted = {**self.deleted, name: {"asked": note["at"], "at": at, "why": note.get("why") or "", **by}}
        return replace(left, deleted=dict(sorted(deleted.items(), key=lambda item: str(item[1].get("at") or ""))[-_REMEMBERED:]))


def _moment(note: Mapping[str, Any] | None, key: str) -> datetime | None:
    return parse_time(note[key]) if note and note.get(key) else None


def read_notes(folder: Path) -> Notes:
    """Reads the notes in a host's folder. Raises UnreadableRecord if they exist and cannot be read."""
    path = folder / NOTES
    try:
        return _parse(json.loads(text_of_file(path)), path)
    except FileNotFoundError:
        return Notes()
    except (OSError, *NOT_UNDERSTOOD) as error:
        raise UnreadableRecord(
            f"{path} cannot be read: {error}", "correct or restore the file; until then nothing of this host is deleted"
        ) from None


def _parse(fields: Mapping[str, Any], path: Path) -> Notes:
    if fields["format"] > FORMAT:
        raise UnreadableRecord(f"{path} has format {fields['format']}, this program reads {FORMAT}", "use the newer btrkeep")
    notes = Notes(
        {name: {key: dict(note) for key, note in of.items()} for name, of in fields["backups"].items()},
        tuple(str(name) for name in fields.get("was", ())),
        dict(fields["forgotten"]) if fields.get("forgotten") else None,
        {str(name): dict(note) for name, note in fields.get("deleted", {}).items()},
        dict(fields["replica"]) if fields.get("replica") else None,
        str(fields["machine"]) if fields.get("machine") else None,
        tuple(dict(action) for action in fields.get("actions", ()))[-_ACTIONS:],
    )
    for name in notes.backups:  # readers of the notes may rely on their times
        notes.expired_at(name)
        notes.held_until(name)
        if (mark := notes.note(name, EXPIRED)) and not mark.get("at"):
            raise ValueError(f"the mark of {name} has no time")
        if mark and not isinstance(mark.get(RULES) or [], list):
            raise ValueError(f"the rules in the mark of {name} are not a list")
    return notes


def write_notes(folder: Path, notes: Notes) -> None:
    """Replaces the notes; they are on disk when this returns. On a full pool the reserve is used.

    Raises OSError, and NotesFull if they would be larger than the maximum that is read.
    """
    pool, text = folder.parent.parent, bounded_text(folder, notes)
    with_reserve(pool, lambda: write_atomically(folder / NOTES, text))


def bounded_text(folder: Path, notes: Notes) -> str:
    """Returns the content of notes.json for that folder. Raises NotesFull."""
    text = text_of(notes)
    if not has_room(text):
        raise NotesFull(
            f"{folder / NOTES} would be larger than {LARGEST >> 20} MiB, too large to read again",
            f"delete backups of {folder.name}, or release holds with long reasons",
        )
    return text


def has_room_for_foreign(notes: Notes) -> bool:
    """Returns True if notes with the data that another pool sent leave half of the file to this pool's own notes."""
    return len(text_of(notes)) <= LARGEST // 2  # json.dumps writes ASCII


def write_with_action(pool: Pool, notes: Notes, action: UserAction) -> None:
    """Replaces the notes of the action's host, with the action, and then appends it to the pool's record. Raises OSError.

    An error while appending is only logged: the notes contain the action.
    """
    assert action.host is not None
    write_notes(pool.host(action.host), notes.with_action(action))
    if why := record_action(pool, action):
        _log.warning("the action could not be recorded in the pool: %s", why)


def text_of(notes: Notes) -> str:
    """Returns the content of the file."""
    fields: dict[str, Any] = {"format": FORMAT, "backups": notes.backups}
    if notes.was:
        fields["was"] = list(notes.was)
    if notes.forgotten:
        fields["forgotten"] = notes.forgotten
    if notes.deleted:
        fields["deleted"] = notes.deleted
    if notes.replica:
        fields["replica"] = notes.replica
    if notes.machine:
        fields["machine"] = notes.machine
    if notes.actions:
        fields["actions"] = list(notes.actions)
    return json.dumps(fields, indent=1) + "\n"


def hold_of(notes: Notes, name: str) -> "Hold | None":
    """Returns the hold of a backup, even if it has expired."""
    from btrkeep.decisions.retention import Hold  # reading backups does not need it

    note = notes.note(name, HOLD)
    return Hold(notes.held_until(name), str(note.get("why") or "")) if note is not None else None


def effective_state(record: Record, notes: Notes) -> str:
    """Returns the effective state: `expired` if it is marked, `complete` if it is suspect and was accepted."""
    if record.name and notes.note(record.name, EXPIRED):
        return EXPIRED
    return accepted_state(record, notes)


def accepted_state(record: Record, notes: Notes) -> str:
    """Returns the state as if the backup was not marked as expired; it applies as long as the backup can be restored."""
    if record.name and notes.is_altered(record.name):
        return ALTERED
    if record.state == SUSPECT and record.name and notes.accepted(record.name):
        return COMPLETE
    return record.state
