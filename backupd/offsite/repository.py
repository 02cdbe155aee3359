"""The snapshots in an offsite repository, from restic's own list: the repository itself is the only record of them.

Some of it can be read back: a share of its data by restic, and some files of a backup, which are compared with those in the pool.
"""

import json
import os
import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate, islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from uuid import uuid4

from backupd.files.tree import Tree
from backupd.files.walking import entries
from backupd.offsite.restic import SHOWN, Restic, ResticFailed
from backupd.repo.backup_json import DATA, UnreadableRecord
from backupd.repo.backup_json import read as read_record
from backupd.repo.final_backups import read_final_if_ours
from backupd.repo.leftovers import remove_tree
from backupd.repo.notes_json import Notes, read_notes, write_notes
from backupd.repo.pool_files import hosts_of
from backupd.repo.read_lock import lock_for_reading
from btrkeep.catalogue import Catalogue
from btrkeep.config.sources import name_fault
from btrkeep.decisions.copy_status import COPIED, OFFSITE_THERE, copied_backups_text, note_stored, offsite_newest, read_offsite
from btrkeep.decisions.offsite import (
    OffsiteSnapshot,
    complete_in_repository,
    left_by_tag,
    newest_in_repository,
    placed,
    tagged_incomplete,
)
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import Pool
from btrkeep.units import parse_backup_name

_OURS = "btrkeep"
_ID = re.compile(r"[0-9a-f]{8,64}")
MOST_AT_ONCE = 500
"""The most ids in one command of restic."""
_POOL, _BACKUP, _MACHINE = "pool:", "backup:", "machine:"
_INCOMPLETE = "incomplete"


def tags_of(pool: Pool, name: str, machine: str) -> tuple[str, ...]:
    """Returns the options with pool, backup and machine, which identify the backups from the repository alone."""
    return ("--tag", ",".join((_OURS, f"{_POOL}{pool.id}", f"{_BACKUP}{name}", *([f"{_MACHINE}{machine}"] if machine else ()))))


def machine_of(pool: Pool, host: str, since: str) -> str:
    """Returns the id of the host, which is created in the pool if there is none; "" if that is impossible, as in a read-only pool.

    Raises LockHeld, UnreadableRecord.
    """
    folder = pool.host(host)
    if machine := read_notes(folder).machine:
        return machine
    made = str(uuid4())
    try:
        with take_lock(pool.host_lock(host), "backupd offsite", since):
            notes = read_notes(folder)
            write_notes(folder, replace(notes, machine=notes.machine or made))
            return notes.machine or made
    except (OSError, PoolUnusable):
        return ""


def snapshots(restic: Restic, pool: Pool) -> list[OffsiteSnapshot]:
    """Returns this pool's backups there, under the present names of their hosts, without those of other programs.

    Raises ResticFailed.
    """
    answer = restic.ask("snapshots", "--no-lock", "--tag", f"{_OURS},{_POOL}{pool.id}")
    try:
        answers = [snapshot_json for line in answer.lines if isinstance(line, list) for snapshot_json in line]
        own_snapshots = [snapshot for each in answers if (snapshot := _snapshot(each))]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResticFailed(f"restic's list of snapshots is invalid: {error!r}") from None
    notes = _notes(pool)
    machines = {host: of.machine for host, of in notes.items()}
    return placed([snapshot if snapshot.machine else _proven(pool, notes, snapshot) for snapshot in own_snapshots], machines)


def note_machines(
    restic: Restic, in_repository: Sequence[OffsiteSnapshot], incomplete: Collection[str], poll: Callable[[], None]
) -> bool:
    """Stores in the repository the ids of machines that `snapshots` has found. Returns whether there were any. The ids of those
    snapshots change, and the key must be able to delete. Raises ResticFailed, and what `poll` raises.
    """
    left = left_by_tag(in_repository)
    ids_by_machine: dict[str, list[str]] = {}
    for snapshot in in_repository:
        if snapshot.proven and snapshot.id not in incomplete and snapshot.id not in left:
            ids_by_machine.setdefault(snapshot.machine, []).append(snapshot.id)
    for machine, ids in ids_by_machine.items():
        _ask_of(restic, ("tag", "--add", f"{_MACHINE}{machine}"), ids, poll)
    _ask_of(restic, ("forget",), sorted(left), poll)
    return bool(ids_by_machine or left)


def tag_incomplete(restic: Restic, ids: Sequence[str], poll: Callable[[], None]) -> None:
    """Marks in the repository that these snapshots lack files, for a server whose catalogue is lost. Their ids change. Raises
    ResticFailed if the key may not delete.
    """
    _ask_of(restic, ("tag", "--add", _INCOMPLETE), ids, poll)


def _ask_of(restic: Restic, words: Sequence[str], ids: Sequence[str], poll: Callable[[], None]) -> None:
    for first in range(0, len(ids), MOST_AT_ONCE):
        restic.ask(*words, *ids[first : first + MOST_AT_ONCE], poll=poll)


def _notes(pool: Pool) -> dict[str, Notes]:
    """Returns the notes of the pool's hosts. A host with unreadable notes is skipped: its machine is unknown."""
    notes_by_host: dict[str, Notes] = {}
    for host in hosts_of(pool):
        with suppress(UnreadableRecord):
            notes_by_host[host] = read_notes(pool.host(host))
    return notes_by_host


def _proven(pool: Pool, notes: Mapping[str, Notes], snapshot: OffsiteSnapshot) -> OffsiteSnapshot:
    """Adds the id of the machine to a snapshot without one (its pool was read-only): that of the host whose folder has the backup.

    Without that proof the snapshot may belong to another host that had the name.
    """
    machines = {
        of.machine
        for host, of in notes.items()
        if of.machine and snapshot.host in (host, *of.was) and _is_of(pool.host(host) / snapshot.name, host, snapshot.host)
    }
    return replace(snapshot, machine=machines.pop(), proven=True) if len(machines) == 1 else snapshot


def _is_of(path: Path, host: str, name: str) -> bool:
    """Returns True if that is a backup of the host that was made under that name."""
    with suppress(UnreadableRecord):
        if read_final_if_ours(path, host) and (record := read_record(path)):
            return record.host == name
    return False


def _snapshot(answer: dict[str, Any]) -> OffsiteSnapshot | None:
    name, machine = (_tagged(answer, kind) for kind in (_BACKUP, _MACHINE))
    host, started = answer["hostname"], parse_backup_name(name)
    if not _ID.fullmatch(answer["id"]):  # it becomes an argument of restic later
        raise ValueError(answer["id"])
    if not started or name_fault(host):
        return None
    original, incomplete = str(answer.get("original") or ""), _INCOMPLETE in (answer.get("tags") or ())
    return OffsiteSnapshot(answer["id"], host, name, started, machine, original=original, incomplete=incomplete)


def _tagged(answer: dict[str, Any], kind: str) -> str:
    return next((str(tag).removeprefix(kind) for tag in answer.get("tags") or () if tag.startswith(kind)), "")


def create_repository(restic: Restic) -> None:
    """Creates the repository, and its folder if it is on this machine. Raises ResticFailed, OperatorError."""
    made = restic.local
    if made and not made.exists():
        try:
            made.mkdir(mode=0o700)
        except OSError as error:
            raise OperatorError(f"{made}: {error.strerror}", "check that the disk is mounted") from None
    restic.ask("init")


def note_size(restic: Restic, catalogue: Catalogue) -> None:
    """Records the size of the repository. If a repository cannot report it, the recorded size is kept."""
    with suppress(ResticFailed):
        for line in restic.ask("stats", "--no-lock", "--mode", "raw-data").lines:
            size = line.get("total_size") if isinstance(line, dict) else None
            if type(size) is int and size >= 0:
                note_stored(catalogue, restic.settings.name, size)


class KnownRepository:
    """The catalogue's record of a repository: the newest backup of each host there, and incomplete snapshots."""

    def __init__(self, catalogue: Catalogue, name: str) -> None:
        self._catalogue, self._name = catalogue, name

    def incomplete(self, in_repository: Iterable[OffsiteSnapshot]) -> frozenset[str]:
        """Returns the ids of snapshots that restic made without reading everything, and of those whose end is unknown."""
        fact, every = read_offsite(self._catalogue, self._name), list(in_repository)
        unheard = {tuple(pair) for pair in fact.get("unheard", ())}
        unknown = {snapshot.id for snapshot in every if (snapshot.label or snapshot.host, snapshot.name) in unheard}
        return frozenset(fact.get("incomplete", ())) | unknown | tagged_incomplete(every)

    @property
    def newest(self) -> dict[str, str]:
        """Returns the newest backup by host."""
        return offsite_newest(self._catalogue, self._name)

    def note(
        self, in_repository: Collection[OffsiteSnapshot], incomplete: Collection[str], unheard: Collection[tuple[str, str]] = ()
    ) -> None:
        """Records the contents of the repository. `unheard`: hosts and backups that are being sent, or whose sending was
        interrupted: the repository may have them or not.
        """
        ids = {snapshot.id for snapshot in in_repository}
        fact: dict[str, Any] = {
            "newest": newest_in_repository(in_repository, incomplete),
            "incomplete": sorted(ids.intersection(incomplete)),
        }
        if unheard:
            fact["unheard"] = sorted(unheard)
        self._catalogue.set_fact(OFFSITE_THERE + self._name, json.dumps(fact, separators=(",", ":"), sort_keys=True))
        self._catalogue.set_fact(COPIED + self._name, copied_backups_text(complete_in_repository(in_repository, incomplete)))


def restic_time(moment: datetime) -> str:
    """Returns the time in the format of restic's --time; its time zone is UTC here."""
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def require_repository(restic: Restic) -> Path | None:
    """Returns the folder of a repository on this machine. Raises OperatorError if it is missing: a disk may be disconnected."""
    if (local := restic.local) and not (local / "config").is_file():
        hint = f"mount the filesystem of this folder, or create the repository with `backupd offsite init {restic.settings.name}`"
        raise OperatorError(f"there is no repository at {local}", hint)
    return restic.local


_LARGEST = 64 << 20  # bytes of a file that is restored
_CHOSEN_AMONG = 100_000  # names in a backup, from which the sample is chosen
_COMMAND_LINE = 500_000  # bytes of paths; the kernel accepts 2 MiB, and some characters are doubled
_PIECE = 1 << 20
_PATTERN = {ord(letter): f"\\{letter}" for letter in "\\*?["}


class SampleDiffers(OperatorError):
    """A file read back from the repository differs from the one that was sent."""


@dataclass(frozen=True, slots=True)
class SampleCheck:
    """Files of a backup that were read back and were equal."""

    files: int
    """Number of files; 0: no backup in the repository is also in the pool."""
    host: str = ""
    """The host's name."""
    name: str = ""
    """The backup's name."""


def check_sample(restic: Restic, pool: Pool, share: str, files: int, poll: Callable[[], None]) -> SampleCheck:
    """Raises ResticFailed if the repository is damaged, SampleDiffers if a restored file differs, and what `poll` raises."""
    restic.ask("check", f"--read-data-subset={share}", poll=poll)
    both = [
        snapshot
        for snapshot in snapshots(restic, pool)
        if not snapshot.former and (pool.host(snapshot.host) / snapshot.name).is_dir()
    ]
    if not both or not files:
        return SampleCheck(0)
    chosen = random.SystemRandom().choice(both)
    folder = Path(mkdtemp(prefix="check-", dir=restic.cache))
    try:
        with lock_for_reading(pool.host(chosen.host) / chosen.name), Tree(pool.host(chosen.host) / chosen.name) as tree:
            paths = _some_files(tree, files)
            _compare(restic, chosen, tree, paths, folder, poll)
    finally:
        with suppress(OSError):
            remove_tree(folder)
    return SampleCheck(len(paths), chosen.host, chosen.name)


def _some_files(tree: Tree, number: int) -> list[bytes]:
    """Returns paths of some files, chosen at random among the first that a walk finds."""
    looked_at = islice(entries(tree, b"/"), _CHOSEN_AMONG)
    candidates = [entry.path for entry in looked_at if entry.kind == "file" and entry.size <= _LARGEST]
    chosen = random.SystemRandom().sample(candidates, min(number, len(candidates)))
    sizes = accumulate(len(path) for path in chosen)
    return [path for path, size in zip(chosen, sizes, strict=True) if size <= _COMMAND_LINE]


def _compare(
    restic: Restic, chosen: OffsiteSnapshot, tree: Tree, paths: list[bytes], folder: Path, poll: Callable[[], None]
) -> None:
    if not paths:
        return
    shown = f"{SHOWN}/{DATA}"
    patterns = [(shown + os.fsdecode(path)).translate(_PATTERN) for path in paths]
    words = [word for pattern in patterns for word in ("--include", pattern)]
    failed = ""
    try:
        restic.ask("restore", chosen.id, "--target", str(folder), *words, written=folder, poll=poll)
    except ResticFailed as error:  # it may be only about attributes; the contents are checked below
        failed = f": {error.message}"
    for path in paths:
        with os.fdopen(tree.open_file(path), "rb") as ours:
            try:
                theirs = (folder / f"{shown}{os.fsdecode(path)}".lstrip("/")).open("rb")
            except OSError as error:
                raise ResticFailed(f"{os.fsdecode(path)} was not restored{failed or f': {error.strerror}'}") from None
            with theirs:
                while piece := ours.read(_PIECE):
                    if piece != theirs.read(_PIECE):
                        break
                if piece or theirs.read(1):
                    raise SampleDiffers(f"{chosen.host}@{chosen.name}: {os.fsdecode(path)} was restored with different content")
