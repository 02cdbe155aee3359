"""Writes a night into the throwaway pool, as a run would leave it, but with changes that are made here instead of by rsync.

The files of a host and the changes of a night are plain data, the same for the same seed whatever the settings: compared settings
get the same changes, so differences in the end are caused by the settings. For each host: a snapshot of its newest backup, the
changes, backup.json, a commit, and the subvolume becomes read-only. As many hosts as the configuration lets run at once alternate,
file by file, so that their data is mixed on the disk. One thread does everything: the order is the same for every variant.
"""

import os
import random
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate
from math import log
from pathlib import Path

from backupd.rehearse.rehearsal_types import HostModel
from backupd.repo import backup_json as records
from backupd.repo.backup_json import PathOutcome, PathResult, Record
from backupd.repo.catalogue_row import backup_row
from backupd.rsync.command import LARGE
from btrkeep.backup_states import COMPLETE
from btrkeep.catalogue import Catalogue
from btrkeep.config import HostConfig
from btrkeep.descriptors import ClosingFd
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import Subvolume, commit, create, describe, set_read_only, snapshot
from btrkeep.units import backup_name

BLOCK = 4096
PIECE = 16384
"""Bytes of a changed piece within a file."""
_MOST_PIECES = 64
_IN_FOLDER = 50


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A new file."""

    name: str
    """Its name."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A file that changes in some places."""

    name: str
    """Its name."""
    size: int
    """Bytes of the whole file."""
    pieces: tuple[tuple[int, int], ...]
    """Offset and length of each place; they do not overlap."""


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file that is deleted."""

    name: str
    """Its name."""


Change = WriteFile | ChangeFile | DeleteFile


class HostFiles:
    """The files of one host after the nights so far. `largest`: the size of the largest file."""

    def __init__(self, model: HostModel, seed: int, largest: int) -> None:
        self._model, self._largest = model, max(largest, BLOCK)
        self._random = random.Random(f"{seed} {model.name}")  # noqa: S311  no secret
        self._files: dict[str, int] = {}
        self._made = 0

    @property
    def bytes(self) -> int:
        """Returns the bytes of all files."""
        return sum(self._files.values())

    def __len__(self) -> int:
        return len(self._files)

    def first(self) -> list[Change]:
        """The first copy."""
        return [self._new(self._model.mean_size) for _ in range(self._model.files)]

    def night(self) -> list[Change]:
        """The next night."""
        model, factor = self._model, self._random.choice(self._model.nightly)
        gone = self._drawn(self._number(model.deleted * factor), 0.0)
        changed = [name for name in self._drawn(self._number(model.changed * factor), model.bias) if name not in gone]
        changes: list[Change] = [self._change(name) for name in changed]
        changes += [self._delete(name) for name in gone]
        changes += [self._new(model.created_size) for _ in range(self._number(model.created * factor))]
        self._random.shuffle(changes)
        return changes

    def _number(self, expected: float) -> int:
        """Returns a whole number that is `expected` on average."""
        whole = int(expected)
        return whole + (self._random.random() < expected - whole)

    def _new(self, mean: float) -> WriteFile:
        sigma = self._model.sigma
        size = min(max(int(self._random.lognormvariate(log(max(mean, 1)) - sigma * sigma / 2, sigma)), 1), self._largest)
        name = f"folder{self._made // _IN_FOLDER:04}/file{self._made:06}"
        self._made += 1
        self._files[name] = size
        return WriteFile(name, size)

    def _delete(self, name: str) -> DeleteFile:
        del self._files[name]
        return DeleteFile(name)

    def _drawn(self, count: int, bias: float) -> list[str]:
        """Draws up to that many files, each once; larger ones are more likely, by size to the power `bias`."""
        names = list(self._files)
        if count >= len(names):
            return names
        weights = list(accumulate(size**bias for size in self._files.values()))
        drawn: dict[str, None] = {}
        for _ in range(4 * count):
            if len(drawn) == count:
                break
            drawn[names[bisect(weights, self._random.random() * weights[-1], hi=len(names) - 1)]] = None
        return list(drawn)

    def _change(self, name: str) -> ChangeFile:
        size = self._files[name]
        return ChangeFile(name, size, tuple(self._pieces(size)))

    def _pieces(self, size: int) -> Iterator[tuple[int, int]]:
        wanted = max(size * self._model.rewritten, 1)
        if wanted >= size * 0.95 or size <= BLOCK:
            yield 0, size
            return
        length = max(PIECE, -(-round(wanted / _MOST_PIECES) // BLOCK) * BLOCK)
        length = min(length, max(round(wanted) // BLOCK * BLOCK, BLOCK))
        places = -(-size // length)
        for place in sorted(self._random.sample(range(places), min(max(round(wanted / length), 1), places))):
            yield place * length, min(length, size - place * length)


def new_bytes(change: Change) -> int:
    """Returns the bytes of new data."""
    match change:
        case WriteFile():
            return change.size
        case ChangeFile():
            return sum(length for _, length in change.pieces)
    return 0


NOISE = 8 << 20
_PACKED = 2048
"""In each 4 KiB, this many bytes are noise and the rest is text that compresses well: about half of real data compresses."""
_DURATION = 20.0


def noise() -> bytes:
    """Returns the data from which files are made."""
    rng = random.Random(1)  # noqa: S311  no secret
    text = (b"backup " * 300)[: BLOCK - _PACKED]
    return b"".join(rng.randbytes(_PACKED) + text for _ in range(NOISE // BLOCK))


@dataclass(slots=True)
class _HostState:
    config: HostConfig
    """The host's configuration."""
    files: HostFiles
    """Its files now."""
    newest: str | None = None
    """The name of its newest backup; None: none."""
    changes: list[Change] = field(default_factory=list)
    """The changes of the coming night."""
    subvolume: Subvolume | None = None
    """The path of its files; None: not created yet."""


class NightWriter:
    """The nights of one variant with one seed. `inplace` None: as each host is configured. `largest`: the size of the
    largest file.
    """

    def __init__(
        self, pool: Pool, catalogue: Catalogue, hosts: Mapping[str, tuple[HostConfig, HostFiles]], inplace: str | None
    ) -> None:
        self._pool, self._catalogue, self._inplace = pool, catalogue, inplace
        self._hosts = [_HostState(config, files) for config, files in hosts.values()]
        self._noise = noise()
        self._at = 0

    def write(self, started: datetime, at_once: int) -> int:
        """Writes a night; returns the number of new bytes. Raises OSError."""
        return sum(self._together(self._hosts[first : first + at_once], started) for first in range(0, len(self._hosts), at_once))

    def _together(self, hosts: Sequence[_HostState], started: datetime) -> int:
        for host in hosts:
            self._begin(host, started)
        new = 0
        for host, change in _in_turns(hosts):
            self._apply(host, change, started)
            new += new_bytes(change)
        for host in hosts:
            self._record(host, started)
        commit(self._pool.path)
        for host in hosts:
            self._finalise(host, started)
        return new

    def _begin(self, host: _HostState, started: datetime) -> None:
        path = self._pool.backup(host.config.name, started)
        if host.newest:
            snapshot(path.parent / host.newest, path)
            host.changes = host.files.night()
        else:
            path.parent.mkdir(mode=0o700)
            create(path)
            (path / records.DATA).mkdir(mode=0o777)
            host.changes = host.files.first()
        host.subvolume = describe(path)

    def _apply(self, host: _HostState, change: Change, started: datetime) -> None:
        path = self._pool.backup(host.config.name, started) / records.DATA / change.name
        match change:
            case DeleteFile():
                path.unlink()
            case WriteFile():
                self._write(path, change.size)
            case ChangeFile() if self._changes_in_place(host, change):
                self._change(path, change)
            case ChangeFile():
                self._write(path.with_name(f".{path.name}.new"), change.size)
                path.with_name(f".{path.name}.new").replace(path)

    def _changes_in_place(self, host: _HostState, change: ChangeFile) -> bool:
        how = self._inplace or host.config.inplace
        return how == "always" or (how == "large" and change.size >= LARGE)

    def _write(self, path: Path, size: int) -> None:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            path.parent.mkdir(exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with ClosingFd(fd):
            for data in self._data(size):
                _write_all(fd, data)

    def _change(self, path: Path, change: ChangeFile) -> None:
        with ClosingFd(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as fd:
            for offset, length in change.pieces:
                os.lseek(fd, offset, os.SEEK_SET)
                for data in self._data(length):
                    _write_all(fd, data)

    def _data(self, size: int) -> Iterator[memoryview]:
        """Yields `size` bytes of the noise, from another position each time."""
        whole = memoryview(self._noise)
        while size:
            self._at = (self._at + BLOCK * 37) % NOISE
            data = whole[self._at : self._at + size]
            size -= len(data)
            yield data

    def _record(self, host: _HostState, started: datetime) -> None:
        records.write(self._pool.backup(host.config.name, started), self._record_of(host, started))

    def _record_of(self, host: _HostState, started: datetime) -> Record:
        assert host.subvolume is not None
        files, new = len(host.files), sum(map(new_bytes, host.changes))
        numbers = {"files": files, "regular": files, "bytes": host.files.bytes, "literal": new}
        path = PathResult("/data", PathOutcome.COMPLETE, numbers=numbers, seconds=_DURATION)
        name, ended = backup_name(started), started + timedelta(seconds=_DURATION)
        uuid = host.subvolume.uuid
        return Record(
            host.config.name, uuid, COMPLETE, started, name, host.newest, finished=ended, duration=_DURATION, paths=(path,)
        )

    def _finalise(self, host: _HostState, started: datetime) -> None:
        assert host.subvolume is not None
        record = self._record_of(host, started)
        set_read_only(self._pool.backup(host.config.name, started))
        self._catalogue.put_backup(backup_row(self._pool, record, COMPLETE, host.subvolume.id))
        host.newest = record.name


def _in_turns(hosts: Sequence[_HostState]) -> Iterator[tuple[_HostState, Change]]:
    """Yields one change of each host after the other, until none has any left."""
    for number in range(max((len(host.changes) for host in hosts), default=0)):
        yield from ((host, host.changes[number]) for host in hosts if number < len(host.changes))


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]
