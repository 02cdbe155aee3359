"""The server that has the backups: it lists and sends them, and does nothing else.

It runs behind a forced command of ssh, so the owner of the key gets the answers of this module and no more. Requested hosts and
names are looked up in the pool; no path comes from outside. It writes only which backup of each host is common to both pools, so
that expiry keeps it (common_backups.py).
"""

import json
import os
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from backupd.replicate.wire import (
    END,
    KEEPALIVE_INTERVAL,
    LONGEST_PIECE,
    PIECE,
    PROTOCOL,
    UNREADABLE,
    UNREADABLE_PARENT,
    frame,
    object_frame,
    time_in,
    write_all,
)
from backupd.repo.backup_json import UnreadableRecord
from backupd.repo.common_backups import common_with, copied_to, write_common, write_copied
from backupd.repo.final_backups import FinalBackup, is_lost, is_unreadable, read_if_ours
from backupd.repo.notes_json import HOLD, Notes, effective_state, read_notes
from backupd.repo.pool_files import hosts_of
from backupd.repo.read_lock import lock_for_reading
from backupd.repo.reconcile import all_rows
from backupd.repo.seals import Seals, is_original, read_seals
from btrkeep import __version__
from btrkeep.backup_states import COMPLETE, EXPIRED, SUSPECT
from btrkeep.catalogue import WHOLE, Backup, BackupState, Catalogue
from btrkeep.config.sources import name_fault
from btrkeep.descriptors import widen_pipe
from btrkeep.errors import OperatorError, is_damage
from btrkeep.pool.allocation import read_room
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import newest_stream, opened, origins, send
from btrkeep.process.threads import NoThread, start
from btrkeep.treescan import last_changes
from btrkeep.units import format_time, parse_backup_name

SENT = (COMPLETE, SUSPECT)
"""The states of backups that are worth a copy: an expired one is due for deletion, and a failed one is incomplete."""
_LONGEST_REQUEST = 8 << 20
_LOOK = 500  # ms
_TOGETHER = 0.001  # seconds


class SendRefused(OperatorError):
    """The request is invalid, or the requested backup has changed since it was listed. `code`: of the protocol, or ""."""

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


Verbs = Mapping[str, Callable[[Mapping[str, Any]], None]]
"""The functions that answer, by verb."""


def serve(lines: Iterator[bytes], verbs: Verbs, out: int) -> None:
    """Answers one request after the other, until there are no more. Raises OSError if the answers have no reader."""
    for line in lines:
        problem, code = None, ""
        try:
            asked = _parsed(line)
            verbs[asked["verb"]](asked)
        except OperatorError as error:
            problem, code = error.message, error.code if isinstance(error, SendRefused) else ""
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            problem = f"not a request: {error!r}"
        except BrokenPipeError:
            raise
        except OSError as error:  # of the pool or the initial copy: read-only, full, damaged
            problem = f"{error.filename or 'its source'}: {error.strerror}"
        end = ({"error": problem} if problem else {}) | ({"code": code} if code else {})
        write_all(out, object_frame(end, END))


@dataclass(frozen=True, slots=True)
class BackupSender:
    """Sends backups of this pool."""

    pool: Pool
    """The pool."""
    catalogue: Catalogue | None
    """The catalogue; None: the pool itself is read, which takes longer."""
    out: int
    """The descriptor to which streams are written."""
    replica: str | None = None
    """The name under which this pool records the common backups; None: the name that the other server gives."""
    hosts: tuple[str, ...] = ()
    """Patterns of the hosts that the other server may see; empty: all."""
    before_piece: Callable[[int], None] = lambda _: None
    """Called with the number of bytes before each piece of a stream. It may wait, and raise to end the stream."""
    before_backup: Callable[[], None] = lambda: None
    """Called before each backup. It may wait, and raise."""
    after_common: Callable[[], None] = lambda: None
    """Called after the common backups are recorded in the pool."""

    @property
    def verbs(self) -> Verbs:
        """Returns the verbs that it answers."""
        return {"hello": self._hello, "list": self._list, "send": self._send, "common": self._common}

    def _hello(self, _: Mapping[str, Any]) -> None:
        answer: dict[str, Any] = {"protocol": PROTOCOL, "version": __version__, "pool": self.pool.id, "stream": newest_stream()}
        with suppress(OSError):  # only helps the other server to report early whether everything fits
            room = read_room(self.pool.path)
            answer |= {"free": room.available, "used": max(0, room.total - room.available)}
        write_all(self.out, object_frame({**answer, "now": format_time(datetime.now(UTC))}))

    def _list(self, _: Mapping[str, Any]) -> None:
        """Returns one object for each host that has backups to send: its backups, oldest first, each as name, UUID,
        state and hold.
        """
        backups_by_host: dict[str, list[list[Any]]] = {
            host: [] for host in hosts_of(self.pool) if not name_fault(host) and self._may_know(host)
        }
        changes, unread = self._changes(), list[tuple[str, str]]()
        seals_of = lru_cache(1)(self._notes_and_seals)  # rows are ordered by host; without a cache it takes quadratic time
        rows = set[tuple[str, str]]()
        for row in self._rows(unread):
            rows.add((row.host, row.name or ""))
            if (
                row.state in SENT
                and row.name
                and row.uuid
                and row.host in backups_by_host
                and self._is_original(row, changes, seals_of)
            ):
                until = format_time(row.held_until) if row.held_until else None
                hold = None if row.held_why is None else [until, row.held_why]
                backups_by_host[row.host].append([row.name, row.uuid, row.state, *([hold] if hold else [])])
        if self.catalogue:  # a rebuilt catalogue has no row of an unreadable backup
            lost = dict.fromkeys((damage.host, damage.name) for damage in self.catalogue.damages() if damage.path == WHOLE)
            unread += [backup for backup in lost if backup not in rows and is_lost(self.pool.host(backup[0]) / backup[1])]
        uuids = origins(self.pool.path) if unread else {}
        for host, backups in backups_by_host.items():
            try:
                notes = read_notes(self.pool.host(host))
            except UnreadableRecord:
                continue
            backups += self._unreadable(host, [name for other, name in unread if other == host], notes, uuids)
            if backups and not notes.forgotten:
                fetched = {"copy_of": notes.replica.get("pool")} if notes.replica else {}
                write_all(self.out, object_frame({"host": host, "was": notes.was, "backups": backups, **fetched}))

    def _changes(self) -> Mapping[int, int]:
        """Returns the last change of each subvolume, because a backup that was changed by hand must not be listed."""
        with opened(self.pool.path) as fd:
            return last_changes(fd)

    def _is_original(
        self, row: BackupState | Backup, changes: Mapping[int, int], seals_of: Callable[[str], tuple[Notes, Seals]]
    ) -> bool:
        """Returns True unless the backup was changed after it was final. An unreadable one is listed: `send` reports why."""
        if row.sealed is not None and row.subvolume_id is not None and changes.get(row.subvolume_id) == row.sealed:
            return True
        name = row.name or ""
        with suppress(OSError, OperatorError):
            path, (notes, seals) = self.pool.host(row.host) / name, seals_of(row.host)
            seal = seals.get(name)
            if seal and seal.subvolume == row.subvolume_id and changes.get(seal.subvolume) == seal.ctransid:
                return notes.is_original(name)
            backup = read_if_ours(path, row.host)
            return backup is None or is_original(path, backup[0], notes, name)
        return True

    def _notes_and_seals(self, host: str) -> tuple[Notes, Seals]:
        folder = self.pool.host(host)
        return read_notes(folder), read_seals(folder)

    def _rows(self, unread: list[tuple[str, str]]) -> Iterator[BackupState] | Iterator[Backup]:
        return self.catalogue.states() if self.catalogue else all_rows(self.pool, [], unread)

    def _unreadable(self, host: str, names: Sequence[str], notes: Notes, uuids: Mapping[int, str]) -> list[list[Any]]:
        """Returns backups that the disk cannot read, in the format of the list: their seals identify them.

        The other server requests them, gets the reason, and reports them. With a catalogue most are in its rows.
        """
        seals = read_seals(self.pool.host(host)) if names else {}
        sealed = [(name, uuids.get(seals[name].subvolume)) for name in names if name in seals]
        return [[name, uuid, COMPLETE] for name, uuid in sealed if uuid and notes.note(name, EXPIRED) is None]

    def _send(self, asked: Mapping[str, Any]) -> None:
        """Returns an object with the announcement, then the stream in pieces."""
        self.before_backup()  # first, because the expiry that it waits for may delete the requested backup
        version = max(1, min(int(asked.get("stream", 1)), newest_stream()))
        with self._naming_unreadable(asked):
            chosen, parent, announcement = self._asked(asked)
            with lock_for_reading(chosen.path), lock_for_reading(parent.path if parent else chosen.path):
                write_all(self.out, object_frame({**announcement, "stream": version}))
                self._stream(chosen.path, parent.subvolume.id if parent else None, version)

    @contextmanager
    def _naming_unreadable(self, asked: Mapping[str, Any]) -> Iterator[None]:
        """Raises SendRefused, with a code, if the disk cannot read the requested backup, or its parent: the other server then
        chooses another one.
        """
        try:
            yield
        except (OSError, OperatorError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError) or not is_damage(cause):
                raise
            host, name, parent = str(asked["host"]), str(asked["name"]), str(asked.get("parent") or "")
            is_parent = parse_backup_name(parent) is not None and is_unreadable(self.pool.host(host) / parent)
            message = f"{host}@{parent if is_parent else name} cannot be sent: {cause.strerror}"
            raise SendRefused(message, code=UNREADABLE_PARENT if is_parent else UNREADABLE) from error

    def _asked(self, asked: Mapping[str, Any]) -> tuple[FinalBackup, FinalBackup | None, dict[str, Any]]:
        """Returns the requested backup, the one that the other server already has, and the answer about it. Raises SendRefused."""
        host = str(asked["host"])
        notes = self._notes(host)
        chosen = self._backup(host, str(asked["name"]), str(asked["uuid"]), notes)
        parent = self._backup(host, str(asked["parent"]), str(asked["parent_uuid"]), notes) if asked.get("parent") else None
        announcement = {
            "uuid": chosen.record.uuid,
            "state": effective_state(chosen.record, notes),
            "notes": {key: notes.note(chosen.path.name, key) for key in (HOLD, "accepted")},
            "bytes": chosen.record.new_bytes if parent else chosen.record.total("bytes"),
            "total": chosen.record.total("bytes"),
        }
        return chosen, parent, announcement

    def _notes(self, host: str) -> Notes:
        if name_fault(host) or not self._may_know(host):
            raise SendRefused("there is no such host")
        return read_notes(self.pool.host(host))

    def _backup(self, host: str, name: str, uuid: str, notes: Notes) -> FinalBackup:
        """Returns the backup if it is exactly the listed one. Raises SendRefused."""
        path = self.pool.host(host) / name
        final_backup = read_if_ours(path, host) if parse_backup_name(name) else None
        if not final_backup or not final_backup[0].read_only or final_backup[1].uuid != uuid:
            raise SendRefused(f"{host}@{name} no longer exists here, or was replaced")
        if not is_original(path, final_backup[0], notes, name):
            raise SendRefused(
                f"{host}@{name} was changed after it was final, so it is not sent; run `backupd list {host}` on that server"
            )
        if effective_state(final_backup[1], notes) not in SENT:
            raise SendRefused(f"{host}@{name} is due for deletion")
        return FinalBackup(path, *final_backup)

    def _stream(self, path: Path, parent: int | None, version: int) -> None:
        """Lets the kernel write into a pipe, and yields the pieces from it. Raises NoThread, and SendRefused if the kernel ends
        with an error.

        The kernel writes command by command, and would wake this process and the other server for each: what arrives within a
        moment is sent together.
        """
        reading, writing = os.pipe2(os.O_CLOEXEC)
        widen_pipe(reading)
        coming = select.poll()
        coming.register(reading, select.POLLIN)
        failed: list[OSError] = []
        is_written, is_short = threading.Event(), True

        def work() -> None:
            try:
                send(path, writing, parent, version)
            except OSError as error:
                failed.append(error)
            finally:
                os.close(writing)
                is_written.set()

        kernel = threading.Thread(target=work, daemon=True)
        try:
            start(kernel)
        except NoThread:
            os.close(reading)
            os.close(writing)
            raise
        try:
            while True:
                while not coming.poll(KEEPALIVE_INTERVAL * 1000):
                    self.beat()
                if is_short:
                    is_written.wait(_TOGETHER)
                if not (piece := os.read(reading, LONGEST_PIECE)):
                    break
                is_short = len(piece) < LONGEST_PIECE
                self.before_piece(len(piece))
                write_all(self.out, frame(PIECE, piece))
        finally:
            os.close(reading)  # before waiting for the thread: a send without a reader ends with EPIPE
            kernel.join()
        if failed:
            raise SendRefused(f"{path.parent.name}@{path.name} cannot be sent: {failed[0].strerror}") from failed[0]

    def beat(self) -> None:
        """Sends a sign of life in a stream: otherwise the other server might not notice a dead connection."""
        write_all(self.out, frame(PIECE, b""))

    def _may_know(self, host: str) -> bool:
        return not self.hosts or any(fnmatchcase(host, pattern) for pattern in self.hosts)

    def _common(self, asked: Mapping[str, Any]) -> None:
        given = asked["hosts"]
        replica, copied = self.replica or str(asked["replica"]), asked.get("copied")
        hosts = self._merged(common_with(self.pool, replica), given) if isinstance(given, dict) else given
        write_common(self.pool, replica, hosts, fetched=self._fetched(asked))
        if isinstance(copied, dict):  # a list that is too long is not sent
            with suppress(OSError):  # only the dashboard uses it, and the request itself is done
                write_copied(self.pool, replica, self._merged(copied_to(self.pool, replica), copied))
        self.after_common()

    def _fetched(self, asked: Mapping[str, Any]) -> datetime | None:
        """Returns the time of the reported fetch; None if nothing was fetched, as by `demote`, or if every host failed.

        The other server's clock is trusted only in rehearsals.
        """
        fetch = asked["fetch"]
        if fetch is None:
            return None
        remote_time = time_in(fetch) if self.pool.rehearsal and isinstance(fetch, dict) else None
        return remote_time or datetime.now(UTC)

    def _merged(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the announced hosts that the other server may see, and all others as recorded."""
        others = {host: copies for host, copies in ours.items() if not self._may_know(host)}
        return others | {host: copies for host, copies in theirs.items() if self._may_know(host)}


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(request, dict):
        raise TypeError("not an object")
    return request


def request_lines(fd: int, is_over: Callable[[], bool] = lambda: False) -> Iterator[bytes]:
    """Yields the requests, each a line, until `is_over`, which is called from time to time. Raises SendRefused for a line that is
    too long.
    """
    kept, looked = bytearray(), 0
    coming = select.poll()
    coming.register(fd, select.POLLIN)
    while not is_over():
        if (end := kept.find(b"\n", looked) + 1) > 0:
            yield bytes(kept[:end])
            del kept[:end]
            looked = 0
            continue
        looked = len(kept)
        if looked > _LONGEST_REQUEST:
            raise SendRefused(
                f"a request with more than {_LONGEST_REQUEST:,} bytes", "check the program at the other end of this connection"
            )
        if coming.poll(_LOOK):
            if not (piece := os.read(fd, 1 << 16)):
                return
            kept += piece
