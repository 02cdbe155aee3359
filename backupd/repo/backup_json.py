"""backup.json: the description of a backup, inside its subvolume.

It becomes final together with the subvolume, and every later version of btrkeep reads it. Later changes are in notes.json
(notes_json.py).
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from backupd.repo.pool_files import NOT_UNDERSTOOD, has_room, number_of, text_of_file
from btrkeep.backup_states import Cause, Condition, ConditionKey, ConditionKind, cause_of, conditions_of, shortened
from btrkeep.checkpoints import Checkpoint
from btrkeep.consistency import HostDump, PathConsistency, consistency_of, dumps_of
from btrkeep.errors import OperatorError
from btrkeep.units import LARGEST_NUMBER, bounded, format_time, parse_time

FORMAT = 1
RECORD = "backup.json"
DATA = "data"
ROOM = "room"
"""The reason of a run that was stopped because it grew fastest while the pool had too little free space."""

_FEW, _SHORT = 100, 1000  # texts, and characters of each, that stay in a record that would be too large
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL)  # missing; a symlink; a socket; a folder or fifo


class UnreadableRecord(OperatorError):
    """A backup.json or notes.json that cannot be parsed; its backups are neither used nor deleted."""


class NewerRecord(UnreadableRecord):
    """A backup.json of a newer btrkeep."""


class PathOutcome(StrEnum):
    """The result for one source path, ordered from best to worst."""

    COMPLETE = "complete"
    SUSPECT = "suspect"
    BROKEN = "broken"
    UNFINISHED = "unfinished"
    FAULT = "fault"

    @property
    def rank(self) -> int:
        """Returns the rank; 0 is best."""
        return list(PathOutcome).index(self)


@dataclass(frozen=True, slots=True)
class PathResult:
    """One source path of a run, as in backup.json."""

    path: str
    """The source path."""
    outcome: PathOutcome
    """How its transfer ended."""
    reason: str = ""
    """Why the path is not complete; "" if it is."""
    exit_code: int | None = None
    """The exit code of rsync; None: rsync was not started."""
    meaning: str = ""
    """What `exit_code` means."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """rsync's statistics by short name, in bytes and counts."""
    seconds: float = 0.0
    """How long it took."""
    unreadable: int = 0
    """Number of files that could not be read on the host."""
    vanished: int = 0
    """Number of files that were deleted on the host while rsync ran."""
    not_kept: int = 0
    """Number of files whose attributes could not be stored here."""
    deletions_skipped: bool = False
    """True if deleted files were kept because not everything could be read."""
    warnings: tuple[str, ...] = ()
    """One line each."""
    samples: tuple[str, ...] = ()
    """Examples of the files that `reason` and `warnings` are about."""
    cause: Cause | None = None
    """`reason` as data; None if it has only a text."""
    exit_cause: str = ""
    """`meaning` as data, an ExitCause; "": none."""
    left_out: tuple[str, ...] | None = None
    """Folders of the host whose content `one_file_system` leaves out; None, and missing in the file: unknown."""
    consistency: PathConsistency | None = None
    """How it was read; None, and missing in the file: `snapshots` was off, or no transfer began."""
    stream: str | None = None
    """UUID:CTRANSID:OWN of the host's snapshot that a stream brought; None, and missing in the file: there was none."""


_LEFT_OUT = {"omitted": True}  # metadata of a field that is written only if it is not the default


@dataclass(frozen=True, slots=True)
class Record:
    """One backup.json. A field described as "only if set" is missing in the file while it has its default."""

    host: str
    """The host's name."""
    uuid: str
    """Identifies the backup and all copies of it."""
    state: str
    """The state when the record was written; the effective state also depends on the notes."""
    started: datetime
    """When its run started."""
    name: str | None = None
    """The backup's name; None until it is final."""
    base: str | None = None
    """The name of the backup on which it is based; None: a first copy."""
    base_uuid: str | None = None
    """The `uuid` of the base."""
    finished: datetime | None = None
    """When its run ended; None: the run is in progress."""
    duration: float | None = None
    """Seconds that the run took."""
    attempts: int = 0
    """Number of attempts of the transfer."""
    paths: tuple[PathResult, ...] = ()
    """The result of each source path."""
    warnings: tuple[str, ...] = ()
    """Missing or unusual files and settings, one line each."""
    error: str | None = None
    """Why it is not complete; None if it is."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its host that must be the same for a run to be continued."""
    rsync_version: str | None = None
    """Version of rsync on this server."""
    protocol: int | None = None
    """Version of the rsync protocol that both sides used."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Duration of its other steps in seconds, by name."""
    version: str = ""
    """Version of btrkeep."""
    links_split: bool = False
    """True if no file had more than one link before rsync was started in the run (hardlinks.py), so all links are newer than the
    subvolume. Earlier versions wrote `split`, which is ignored: it was wrong after a `promote`.
    """
    doubted: bool = field(default=False, metadata=_LEFT_OUT)
    """True if files with the time UNSYNCED_TIME (run/finalisation.py) may not be on the disk; only if set."""
    stopped_for: str | None = field(default=None, metadata=_LEFT_OUT)
    """ROOM if the run was stopped for that reason; only if set."""
    written: int | None = field(default=None, metadata=_LEFT_OUT)
    """Bytes of rsync's output that are data on the disk, if the rest became holes; only if set."""
    cause: Cause | None = field(default=None, metadata=_LEFT_OUT)
    """`error` as data; only if set."""
    confined: bool | None = field(default=None, metadata=_LEFT_OUT)
    """Whether rsync was confined (rsync/confined.py); None, and missing in the file, if this server is the source."""
    imported: str | None = field(default=None, metadata=_LEFT_OUT)
    """The folder of another program's history from which the backup was made; only if set."""
    repaired: Mapping[str, Any] | None = field(default=None, metadata=_LEFT_OUT)
    """The backup of which this is the repaired copy: {"of": name, "of_uuid", "files": number of replaced files, "unproven": number
    of those whose content is not proven}; only if set.
    """
    shared_with: str | None = field(default=None, metadata=_LEFT_OUT)
    """The other backup that shares its data (`share_with`), HOST@NAME; only if set."""
    shared_bytes: int | None = field(default=None, metadata=_LEFT_OUT)
    """Bytes that share data with that backup; only if set."""
    unread_bases: tuple[str, ...] = field(default=(), metadata=_LEFT_OUT)
    """Newer complete backups that could not be read completely, so that the base became an older one or none; only if set."""
    ancestors: Mapping[str, int] = field(default_factory=dict, metadata=_LEFT_OUT)
    """The existing backups from which it was made, each with the pool's generation when that snapshot was made: all older metadata
    is shared with that backup. Valid only in the pool that made it, not in copies.
    """
    lasting: tuple[Condition, ...] = field(default=(), metadata=_LEFT_OUT)
    """Problems with files: they could not be fetched or deleted, were left out, or were fetched twice. Each has the first of the
    successive backups with the problem; only if set.
    """
    address: str | None = field(default=None, metadata=_LEFT_OUT)
    """How ssh reached the host; None, and missing in the file, if this server is the source."""
    dumps: tuple[HostDump, ...] = field(default=(), metadata=_LEFT_OUT)
    """The dumps that the host made for it; only if set."""

    def total(self, key: str) -> int | None:
        """Returns the sum of one of rsync's numbers over all paths, limited like each of them; None if no path has it."""
        numbers = [result.numbers[key] for result in self.paths if key in result.numbers]
        return bounded(sum(numbers)) if numbers else None

    @property
    def skipped_deletions(self) -> tuple[Condition, ...]:
        """Returns the source paths that may still contain files which the host has deleted, with the time since when. A record of
        an earlier version has only its own night.
        """
        conditions = {
            condition.key.path: condition for condition in self.lasting if condition.kind is ConditionKind.DELETIONS_SKIPPED
        }
        for result in self.paths:
            if result.deletions_skipped and result.path not in conditions:
                conditions[result.path] = Condition(ConditionKey(ConditionKind.DELETIONS_SKIPPED, result.path), self.started)
        return tuple(conditions.values())

    @property
    def left_out(self) -> tuple[Condition, ...]:
        """Returns the folders whose content `one_file_system` leaves out, with the time since when."""
        standing = {condition.key.name: condition for condition in self.lasting if condition.kind is ConditionKind.LEFT_OUT}
        for result in self.paths:
            for folder in result.left_out or ():
                key = ConditionKey(ConditionKind.LEFT_OUT, result.path, folder)
                standing.setdefault(shortened(folder), Condition(key, self.started))
        return tuple(standing.values())

    @property
    def new_bytes(self) -> int | None:
        """Returns the bytes of data that rsync wrote, without holes."""
        literal = self.total("literal")
        return literal if self.written is None or literal is None else min(literal, self.written)

    @property
    def bytes(self) -> int | None:
        """Returns the size of all files, as the host has them."""
        return self.total("bytes")

    @property
    def files(self) -> int | None:
        """Returns the number of regular files. rsync reports no types for an empty list."""
        regular = self.total("regular")
        return self.total("files") if regular is None else regular

    @property
    def live_paths(self) -> int | None:
        """Returns the number of source paths that were not read from snapshots; None if `snapshots` was off."""
        paths = [result.consistency for result in self.paths if result.consistency]
        return sum(path.is_live for path in paths) if paths else None

    def path(self, name: str) -> PathResult | None:
        """Returns the result of one source path."""
        return next((result for result in self.paths if result.path == name), None)

    def to_fields(self) -> dict[str, Any]:
        """Returns the content of the file as JSON values. (dataclasses.asdict copies every object, which takes half of the CPU time
        of a small host's run.)
        """
        fields: dict[str, Any] = {"format": FORMAT, **{name: getattr(self, name) for name in _FIELDS}}
        for name, default in _UNSET.items():
            if fields[name] is None or (default is not None and not fields[name]):
                del fields[name]
        fields["started"] = format_time(self.started)
        fields["finished"] = format_time(self.finished) if self.finished else None
        fields["paths"] = [_path_fields(result) for result in self.paths]
        if self.cause:
            fields["cause"] = self.cause.as_json()
        if self.lasting:
            fields["lasting"] = [condition.as_json() for condition in self.lasting]
        if self.dumps:
            fields["dumps"] = [dump.as_json() for dump in self.dumps]
        fields["totals"] = {key: self.total(key) for key in ("files", "bytes", "literal", "matched", "received")}
        return fields


_FIELDS, _PATH_FIELDS = Record.__dataclass_fields__, PathResult.__dataclass_fields__
_UNSET = {
    name: {} if attribute.default is MISSING else attribute.default
    for name, attribute in _FIELDS.items()
    if attribute.metadata == _LEFT_OUT
}
_TEXT, _NUMBER = (str, str | None), (int, float, int | None, float | None)
_CHECKED: Mapping[type[Any], tuple[tuple[str, ...], ...]] = {
    of: (
        tuple(attribute.name for attribute in fields(of) if attribute.type is str and attribute.default is MISSING),
        tuple(attribute.name for attribute in fields(of) if attribute.type in _TEXT and attribute.default is not MISSING),
        tuple(attribute.name for attribute in fields(of) if attribute.type in _NUMBER),
    )
    for of in (Record, PathResult)
}
"""For each class: the fields that are texts, those that are texts or None, and those that are numbers."""


def _path_fields(result: PathResult) -> dict[str, Any]:
    fields = {name: getattr(result, name) for name in _PATH_FIELDS}
    if result.consistency is None:
        del fields["consistency"]
    else:
        fields["consistency"] = result.consistency.as_json()
    if result.stream is None:
        del fields["stream"]
    if result.left_out is None:
        del fields["left_out"]
    return {**fields, "cause": result.cause.as_json() if result.cause else None}


def parse(text: str) -> Record:
    """Parses the record in `text`. Raises UnreadableRecord; ignores unknown fields of a newer minor version."""
    try:
        fields = json.loads(text)
        if fields["format"] > FORMAT:
            raise NewerRecord(
                f"backup.json was written by a newer btrkeep: it has format {fields['format']}, this program reads {FORMAT}",
                "use the newer btrkeep",
            )
        known_fields = {name: fields[name] for name in _FIELDS if name in fields}
        known_fields["started"] = parse_time(known_fields["started"])
        known_fields["finished"] = parse_time(known_fields["finished"]) if known_fields.get("finished") else None
        known_fields["paths"] = tuple(_path_result(entry) for entry in known_fields.get("paths", ()))
        for name in ("warnings", "unread_bases"):
            known_fields[name] = tuple(known_fields.get(name, ()))
        known_fields["ancestors"] = {
            str(name): number_of(generation) for name, generation in known_fields.get("ancestors", {}).items()
        }
        known_fields["cause"] = cause_of(known_fields.get("cause"))
        known_fields["lasting"] = conditions_of(known_fields.get("lasting", ()))
        known_fields["dumps"] = dumps_of(known_fields.get("dumps", ()))
        return _checked(Record(**known_fields))
    except NOT_UNDERSTOOD as error:
        raise UnreadableRecord(f"backup.json is invalid: {error!r}", "btrkeep does not use or delete this backup") from None


def _checked(record: Record) -> Record:
    """Returns the record if its fields fit a row of the catalogue. Raises TypeError, ValueError."""
    texts: list[Any] = [*record.warnings, *record.unread_bases, *(text for path in record.paths for text in path.left_out or ())]
    numbers: list[Any] = [number for path in record.paths for number in path.numbers.values()]
    for part in (record, *record.paths):
        required, optional, counts = _CHECKED[type(part)]
        texts += [getattr(part, name) for name in required]
        texts += [text for name in optional if (text := getattr(part, name)) is not None]
        numbers += [number for name in counts if (number := getattr(part, name)) is not None]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text field is not a string")
    if record.repaired is not None and not isinstance(record.repaired, dict):
        raise TypeError("`repaired` is not an object")
    if not all(isinstance(number, float) or (isinstance(number, int) and abs(number) <= LARGEST_NUMBER) for number in numbers):
        raise ValueError("a number is missing, not a number or too large")
    return record


def _path_result(entry: Mapping[str, Any]) -> PathResult:
    known_fields = {name: entry[name] for name in _PATH_FIELDS if name in entry}
    lists = {name: tuple(known_fields.get(name, ())) for name in ("warnings", "samples")}
    if known_fields.get("left_out") is not None:
        lists["left_out"] = tuple(known_fields["left_out"])
    numbers = {key: bounded(int(number)) for key, number in known_fields.get("numbers", {}).items()}  # once unlimited
    parsed = {
        **lists,
        "numbers": numbers,
        "outcome": PathOutcome(known_fields["outcome"]),
        "cause": cause_of(known_fields.get("cause")),
        "consistency": consistency_of(known_fields.get("consistency")),
    }
    return PathResult(**{**known_fields, **parsed})


def read(subvolume: Path) -> Record | None:
    """Reads the record of a subvolume; None if there is none. Never follows a symlink. Raises UnreadableRecord; its cause is the
    OSError if the file cannot be read.
    """
    path = subvolume / RECORD
    try:
        text = _text_of(path)
    except (OSError, ValueError) as error:
        raise UnreadableRecord(f"{path}: {error}", "btrkeep does not use or delete this backup") from error
    return None if text is None else parse(text)


def _text_of(path: Path) -> str | None:
    """Returns the content; None if the file is missing or not a regular file."""
    try:
        return text_of_file(path)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise


@Checkpoint("backup.json replaced")
def write(subvolume: Path, record: Record, *, durable: bool = False) -> None:
    """Replaces the record of a writable subvolume. The sync that follows makes it durable.

    With `durable`, the new record is written to the disk before it gets the name: after a power cut there is the old or the new
    one, never an empty file.
    """
    text = _bounded_text(record)
    temporary = subvolume / (RECORD + ".new")
    try:
        file = temporary.open("xb")
    except FileExistsError:  # left behind by a run that was killed at this point
        temporary.unlink()
        file = temporary.open("xb")
    with file:
        file.write(text.encode("utf-8"))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(subvolume / RECORD)


def _text_of_record(record: Record) -> str:
    return json.dumps(record.to_fields()) + "\n"


def _bounded_text(record: Record) -> str:
    """Returns the content of the file: the first variant that is small enough to be read again, or the shortest."""
    text = _text_of_record(record)
    if has_room(text):
        return text
    for shorter in _shorter(record):
        text = _text_of_record(shorter)
        if has_room(text):
            break
    return text


def _shorter(record: Record) -> Iterator[Record]:
    """Yields the record with fewer and fewer of the texts that a host can make long. What later nights need is removed last: first
    the folders that are left out, then the lasting conditions.
    """
    paths = tuple(replace(path, warnings=(), samples=()) for path in record.paths)
    warnings = (
        "the details of this backup were too long, so they are not stored",
        *(text[:_SHORT] for text in record.warnings[:_FEW]),
    )
    without_words = replace(record, paths=paths, warnings=warnings)
    yield without_words
    without_folders = replace(without_words, paths=tuple(replace(path, left_out=None) for path in paths))
    yield without_folders
    yield replace(without_folders, lasting=())
