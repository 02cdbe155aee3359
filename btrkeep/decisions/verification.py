"""Decides the verification state of a backup, and of a host, and which backups a crash of this server may have damaged. Pure. Three
sources count: `backupd verify`, which reads the files of a backup; a scrub, which reads everything on the disks and checks it
against btrfs' own checksums; and a comparison with the host. A comparison depends on what the host sends, so it never makes a
backup "whole" and does not postpone reading the disks.

A disk that acknowledged data which was only in its cache, or a controller with a dead battery, loses the newest data. Afterwards
the filesystem and all names are intact, but the data cannot be read, or is wrong.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from btrkeep.backup_states import ALTERED, FAILED
from btrkeep.catalogue import Backup, Catalogue, ComparedBackup, VerificationFacts, VerifiedBackup
from btrkeep.decisions import FactReader, FactWriter, parse_fact
from btrkeep.decisions.due import latest
from btrkeep.units import counted, format_duration, format_time, local_time, parse_time, printable

SCRUB, _BEGUN = "scrub", "scrub-begun"
"""The names of the facts of the newest finished scrub, and of the state when the newest one started."""


class VerificationState(StrEnum):
    """The result of the newest verification of a backup's data.

    `IN_PART`: only some of its files were read. `IN_DOUBT`: it was written shortly before a crash of this server, and has not been
    read since.
    """

    NEVER = "never"
    IN_PART = "in part"
    WHOLE = "whole"
    IN_DOUBT = "in doubt"
    DAMAGED = "damaged"


class VerifiedBy(StrEnum):
    """The check that read the backup."""

    SCRUB = "scrub"
    VERIFY = "verify"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Verification:
    """The contents of `verified.json` for one backup. `begun`: start of the pass that reads each of its files once; `at`: end of
    its last part. `read`: files that the pass could read; `compared`: those that were compared with an earlier checksum; `bytes` of
    data, without holes. `whole`: when a pass was last finished. `damages`: number of damaged files; `damaged`: the first of them.
    """

    begun: datetime
    at: datetime
    read: int = 0
    compared: int = 0
    bytes: int = 0
    whole: datetime | None = None
    damaged: tuple[str, ...] = ()
    damages: int = 0

    @property
    def is_over(self) -> bool:
        """Returns True if the pass is finished: the next one is another."""
        return self.whole is not None and self.whole >= self.begun


class ReadPass(Protocol):
    """The known facts about a backup that was read; common to `Verification` and the catalogue."""

    @property
    def at(self) -> datetime: ...
    @property
    def read(self) -> int: ...
    @property
    def compared(self) -> int: ...
    @property
    def whole(self) -> datetime | None: ...


@dataclass(frozen=True, slots=True)
class ScrubBegin:
    """The state when a scrub first started. `newest`: the highest id of a backup's subvolume; `at`: the time."""

    newest: int = 0
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FinishedScrub:
    """A finished scrub.

    `begun`: its first start, even if it was cancelled and resumed since; `newest`: the highest id of a backup's subvolume at that
    time. `is_whole`: it found no error, or repaired it, or the files of all uncorrectable errors are known as damaged.
    """

    begun: datetime
    finished: datetime
    is_whole: bool
    newest: int

    def has_read(self, finished: datetime | None, subvolume_id: int | None, until: datetime) -> bool:
        """Returns True if it has read all of a backup: one that existed, complete and read-only, when the scrub first started.

        A copy that was fetched later, or imported, was finished before that time, but has a higher id.
        """
        was_there = finished is not None and finished < self.begun and subvolume_id is not None and subvolume_id <= self.newest
        return self.is_whole and was_there and self.finished <= until


@dataclass(frozen=True, slots=True)
class Verified:
    """The verification state of a backup."""

    state: VerificationState
    """The state."""
    by: VerifiedBy | None = None
    """The source of the proof; None: none."""
    at: datetime | None = None
    """When that source read it; None: never."""
    read: int = 0
    """Number of files that `backupd verify` read; 0: it did not read the backup."""
    compared: int = 0
    """Number of them that were compared with a recorded checksum."""
    damages: int = 0
    """Number of damaged files."""
    source: ComparedBackup | None = None
    """The result of a comparison with the host, whatever determines the state; None: none."""
    damaged: str = ""
    """The path of one of the damaged files; "": none."""


def state_of(facts: VerificationFacts) -> VerificationState:
    """Returns the verification state. Damage counts first, whatever its age: data does not repair itself."""
    if facts.is_damaged:
        return VerificationState.DAMAGED
    if facts.is_in_doubt:
        return VerificationState.IN_DOUBT
    if facts.is_empty:  # reading all files of an empty backup proves nothing
        return VerificationState.NEVER
    if facts.is_whole:
        return VerificationState.WHOLE
    return VerificationState.IN_PART if facts.is_begun else VerificationState.NEVER


def is_empty(state: str, files: int | None) -> bool:
    """Returns True if reading it proves nothing: it failed and no data arrived, or it was changed after it became final."""
    return state == ALTERED or (state == FAILED and not files)


def verified(
    read_pass: ReadPass | None,
    scrub: FinishedScrub | None,
    damages: int,
    now: datetime,
    source: ComparedBackup | None = None,
    in_doubt: datetime | None = None,
    damaged: str = "",
    *,
    empty: bool = False,
) -> Verified:
    """Returns the verification state of a backup, and which source determined it, and when. `scrub`: one that has read all of it;
    `damages`: number of its files known to be damaged, `damaged`: the path of one of them; `in_doubt`: since when a crash may have
    damaged it; `empty`: `is_empty`.

    The newest source that read the whole backup counts, then the newest one that did not. Times in the future come from a clock
    that was ahead and are ignored.
    """
    until = latest(now)
    read_pass = read_pass if read_pass and read_pass.at <= until else None
    source = source if source and source.at <= until else None
    whole = read_pass.whole if read_pass and read_pass.whole and read_pass.whole <= until else None
    is_alike = source is not None and source.alike > 0 and not source.differing
    is_begun = bool(read_pass and read_pass.read) or is_alike
    state = state_of(VerificationFacts(damages > 0, in_doubt is not None, empty, bool(scrub or whole), is_begun))
    match state:
        case VerificationState.DAMAGED:
            return Verified(state, at=read_pass.at if read_pass else None, damages=damages, source=source, damaged=damaged)
        case VerificationState.IN_DOUBT:
            return Verified(state, at=in_doubt, source=source)
        case VerificationState.NEVER:
            return Verified(state, source=source)
        case VerificationState.WHOLE if scrub and (whole is None or whole <= scrub.finished):
            return Verified(state, VerifiedBy.SCRUB, scrub.finished, source=source)
        case VerificationState.IN_PART if (
            source and is_alike and (read_pass is None or not read_pass.read or read_pass.at <= source.at)
        ):
            return Verified(state, VerifiedBy.SOURCE, source.at, source=source)
    assert read_pass
    return Verified(state, VerifiedBy.VERIFY, whole or read_pass.at, read_pass.read, read_pass.compared, source=source)


class KnownBackups(FactReader, Protocol):
    """The catalogue, as far as it is needed here."""

    def newest_verifications(self, until: datetime) -> dict[str, datetime]: ...
    def hosts_with_backups(self, finished: datetime, subvolume_id: int) -> set[str]: ...


def last_reads(catalogue: KnownBackups, hosts: Iterable[str], now: datetime) -> dict[str, datetime | None]:
    """Returns when data of each of the hosts, which have backups, was last read, by any means; None: never."""
    until, scrub = latest(now), read_scrub(catalogue)
    read = catalogue.newest_verifications(until)  # including hosts whose backups are missing from a lost catalogue
    newest_reads = {host: read.get(host) for host in hosts}
    if scrub and scrub.is_whole and scrub.finished <= until:
        for host in catalogue.hosts_with_backups(scrub.begun, scrub.newest) & newest_reads.keys():
            newest_reads[host] = max(newest_reads[host] or scrub.finished, scrub.finished)
    return newest_reads


def late_reads(
    oldest: Mapping[str, datetime], read_times: Mapping[str, datetime | None], max_age: float, now: datetime, *, is_asked: bool
) -> tuple[str, ...]:
    """Returns the hosts whose data was not read for longer than `max_age` seconds, though the oldest backup is older than that.

    If nothing was ever read, that is a choice and not late, unless `is_asked`: the configuration has a limit.
    """
    if not is_asked and not any(read_times.values()):
        return ()
    since = now - timedelta(seconds=max_age)
    return tuple(sorted(host for host, last in read_times.items() if oldest[host] < since and (last is None or last < since)))


def verification_sentence(read_times: Mapping[str, datetime | None], damaged: int, now: datetime) -> str:
    """Summarises all hosts in a sentence: those whose data was read, and the number of damaged backups; "" if none was
    ever read.
    """
    read = [last for last in read_times.values() if last]
    parts = []
    if read:
        age = format_duration(max(0.0, (now - min(read)).total_seconds()))
        hosts_words = "every host" if len(read) == len(read_times) else f"{len(read):,} of {counted(len(read_times), 'host')}"
        never = f", of {counted(len(read_times) - len(read), 'host')} never" if len(read) < len(read_times) else ""
        parts.append(f"data of {hosts_words} was read within the last {age}{never}")
    if damaged:
        parts.append(f"{counted(damaged, 'backup')} damaged")
    return "; ".join(parts)


_NEVER = Verified(VerificationState.NEVER)


class VerifiedBackups:
    """The verification states of backups, for callers that ask host by host."""

    def __init__(self, catalogue: Catalogue, now: datetime) -> None:
        self._catalogue, self._now, self._scrub = catalogue, now, read_scrub(catalogue)
        self._damages, self._until, self._in_doubt = catalogue.damaged_files(), latest(now), read_in_doubt(catalogue)
        self._first = catalogue.first_damaged() if self._damages else {}
        self._host, self._verified, self._compared = "", dict[str, VerifiedBackup](), dict[str, ComparedBackup]()

    def of(self, backup: Backup) -> Verified:
        """Returns the state of a final backup."""
        host, name = backup.host, backup.name or ""
        if host != self._host:
            self._host, self._verified, self._compared = (
                host,
                self._catalogue.verifications(host),
                self._catalogue.comparisons(host),
            )
        scrub = self._scrub if self._scrub and self._scrub.has_read(backup.finished, backup.subvolume_id, self._until) else None
        since = self._in_doubt.since if self._in_doubt and (host, name) in self._in_doubt.backups else None
        verified_backup, compared, damages = self._verified.get(name), self._compared.get(name), self._damages.get((host, name), 0)
        if not (verified_backup or compared or damages or scrub or since):
            return _NEVER
        first = self._first.get((host, name), "")
        empty = is_empty(backup.outcome or backup.state, backup.files)
        return verified(verified_backup, scrub, damages, self._now, compared, since, first, empty=empty)


def verification_counts(catalogue: Catalogue, now: datetime) -> Counter[VerificationState]:
    """Counts the final backups of all hosts by their verification state, with one query of the catalogue."""
    until, scrub, doubtful = latest(now), read_scrub(catalogue), read_in_doubt(catalogue)
    if scrub and not (scrub.is_whole and scrub.finished <= until):
        scrub = None
    in_doubt = doubtful.backups if doubtful else frozenset[tuple[str, str]]()
    counts_by_facts = catalogue.count_by_verification(until, scrub.begun if scrub else None, scrub.newest if scrub else 0, in_doubt)
    counts = Counter[VerificationState]()
    for verification_facts, number in counts_by_facts.items():
        counts[state_of(verification_facts)] += number
    return counts


def note_begin(facts: FactWriter, begin: ScrubBegin) -> None:
    """Stores the state when a scrub started, and replaces the previous one."""
    facts.set_fact(_BEGUN, json.dumps({"newest": begin.newest, "at": begin.at.isoformat() if begin.at else None}))


def read_begin(facts: FactReader) -> ScrubBegin:
    """Returns the state when the newest scheduled scrub started."""
    return parse_fact(facts.get_fact(_BEGUN), _scrub_begin, ScrubBegin())


def _scrub_begin(given: Mapping[str, Any]) -> ScrubBegin:
    return ScrubBegin(int(given["newest"]), parse_time(given["at"]))


def note_scrub(facts: FactWriter, scrub: FinishedScrub) -> None:
    """Stores a finished scrub, and replaces the previous one."""
    facts.set_fact(SCRUB, json.dumps({**asdict(scrub), "begun": format_time(scrub.begun), "finished": format_time(scrub.finished)}))


def read_scrub(facts: FactReader) -> FinishedScrub | None:
    """Returns the newest finished scrub; None if there was none, or the fact is invalid."""
    return parse_fact(facts.get_fact(SCRUB), _finished_scrub, None)


def _finished_scrub(given: Mapping[str, Any]) -> FinishedScrub:
    begun, finished = parse_time(given["begun"]), parse_time(given["finished"])
    return FinishedScrub(begun, finished, bool(given["is_whole"]), int(given["newest"]))


def verified_briefly(proof: Verified, date: Callable[[datetime], str]) -> str:
    """Formats state and date for a table."""
    head = {VerifiedBy.SCRUB: "scrub", VerifiedBy.SOURCE: "source"}.get(proof.by or VerifiedBy.VERIFY, str(proof.state))
    return f"{head} {date(proof.at)}" if proof.at else head


def verified_words(proof: Verified, date: Callable[[datetime], str]) -> str:
    """Formats the state in one line, with the result of the comparison with the host."""
    host = source_words(proof.source, date) if proof.source and proof.source.files else ""
    if proof.by == VerifiedBy.SOURCE:
        return host
    return f"{_words(proof, date)}; {host}" if host else _words(proof, date)


def source_words(comparison: ComparedBackup, date: Callable[[datetime], str]) -> str:
    """Formats the result of a comparison with the host."""
    rest = [
        f"{comparison.changed:,} changed or deleted after the backup" if comparison.changed else "",
        f"{comparison.differing:,} with other content there" if comparison.differing else "",
    ]
    amount = f"{comparison.alike:,} of {counted(comparison.files, 'file')}" if any(rest) else counted(comparison.files, "file")
    return ", ".join([f"{amount} equal when compared with the host on {date(comparison.at)}", *filter(None, rest)])


def damaged_words(proof: Verified) -> str:
    """Formats the number of damaged files, with the path of one. Paths are escaped."""
    if not proof.damaged:
        return f"damaged: {counted(proof.damages, 'file')}"
    return f"damaged: {printable(proof.damaged)}" + (f", {counted(proof.damages, 'file')}" if proof.damages > 1 else "")


def _words(proof: Verified, date: Callable[[datetime], str]) -> str:
    day = date(proof.at) if proof.at else ""
    match proof.state:
        case VerificationState.NEVER:
            return "never verified"
        case VerificationState.DAMAGED:
            return damaged_words(proof)
        case VerificationState.IN_DOUBT:
            return f"written just before a crash of this server, noticed {day}, and not read since"
        case VerificationState.WHOLE if proof.by == VerifiedBy.SCRUB:
            return f"all data read without errors by the scrub on {day}"
    amount = "all files" if proof.state == VerificationState.WHOLE else counted(proof.read, "file")
    return f"{amount} read on {day}, {proof.compared:,} compared with their checksums"


_IN_DOUBT = "in_doubt"


class WrittenBackup(NamedTuple):
    """A backup of a host, by its name, and when a file of it was last written in this pool."""

    host: str
    name: str
    written: datetime


class BackupsInDoubt(NamedTuple):
    """The backups, by host and name, that were written just before a crash and have not been read since. `since`: when the crash
    was noticed.
    """

    since: datetime
    backups: frozenset[tuple[str, str]]


def written_last(
    backups: Sequence[WrittenBackup],
    signs: Iterable[datetime],
    stopped: datetime | None,
    margin: timedelta,
    begun: datetime,
    now: datetime,
) -> frozenset[tuple[str, str]]:
    """Returns the backups of earlier boots, by host and name, that a crash at the end of the last boot may have damaged.

    `begun`: start of the present boot; `signs`: times at which this server was running; `stopped`: its last orderly shutdown. The
    time of a crash is unknown, but it was not before the last sign of life. So data written more than `margin` before that sign had
    at least this long to reach the disk. After an orderly shutdown only later writes are doubted, because there was another boot in
    between.

    Signs later than `begun` prove nothing about the boot before. If all are later, the clock is wrong and all of them count.
    Backups with a time in the future are always doubted.
    """
    moments = [backup.written for backup in backups] + [*signs, *((stopped,) if stopped else ())]
    if not moments:
        return frozenset()
    before_start = [moment for moment in moments if moment <= begun]
    since = max(before_start or moments) - margin
    after = max(since, stopped) if stopped in (before_start or moments) and stopped else since
    return frozenset(
        (backup.host, backup.name)
        for backup in backups
        if backup.written > after and (not before_start or backup.written <= begun or backup.written > latest(now))
    )


def note_in_doubt(facts: FactWriter, in_doubt: BackupsInDoubt | None) -> None:
    """Stores the backups in doubt for programs that cannot read the pool; None: there are none."""
    fields = {"since": format_time(in_doubt.since), "backups": sorted(in_doubt.backups)} if in_doubt else None
    text = json.dumps(fields) if fields else None
    if text != facts.get_fact(_IN_DOUBT):
        facts.set_fact(_IN_DOUBT, text)


def read_in_doubt(facts: FactReader) -> BackupsInDoubt | None:
    """Reads the stored backups in doubt; None if there are none, or if the fact is invalid."""
    return parse_fact(facts.get_fact(_IN_DOUBT), _backups_in_doubt, None)


def _backups_in_doubt(given: Mapping[str, Any]) -> BackupsInDoubt:
    return BackupsInDoubt(parse_time(given["since"]), frozenset((str(host), str(name)) for host, name in given["backups"]))


def in_doubt_words(in_doubt: BackupsInDoubt) -> str:
    """Formats the number of backups in doubt and the reason in one line."""
    return (
        f"{counted(len(in_doubt.backups), 'backup')} written just before a crash of this server, "
        f"noticed {local_time(in_doubt.since)}, and not read since"
    )


_VERIFYING = "verifying"


@dataclass(frozen=True, slots=True)
class RunningVerification:
    """The progress of a running `backupd verify`, as last recorded."""

    pid: int
    """Its process."""
    pid_started: str | None
    """The start time of that process."""
    began: datetime
    """When it started."""
    updated: datetime
    """When this was recorded."""
    words: str = ""
    """What it reads, and how much it has read."""


def note_verifying(facts: FactWriter, running: RunningVerification | None) -> None:
    """Stores the progress of a verification; None: it has ended."""
    times = {"began": format_time(running.began), "updated": format_time(running.updated)} if running else {}
    facts.set_fact(_VERIFYING, json.dumps({**asdict(running), **times}) if running else None)


def read_verifying(facts: FactReader) -> RunningVerification | None:
    """Reads the progress of a verification, or None. The caller must check that its process is alive."""
    return parse_fact(facts.get_fact(_VERIFYING), _running_verification, None)


def _running_verification(fields: dict[str, Any]) -> RunningVerification:
    return RunningVerification(began=parse_time(fields.pop("began")), updated=parse_time(fields.pop("updated")), **fields)
