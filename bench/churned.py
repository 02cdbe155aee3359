"""A rehearsal pool with thousands of backups, made without rsync: like those of btrkeep, but this module changes the files.

Night after night every host's newest backup is snapshot, some of its files are written over or replaced, backup.json is written,
all is committed, and the snapshot becomes read-only; at last `backupd rebuild` makes the catalogue. Hosts take turns within a
night, so their metadata lies mixed on the disk, as in a real pool. With `Shape.window` old backups are deleted on the way, which
leaves holes between the kept data.

All but the newest `keep` backups of every host are marked `expired`, so long ago that their grace has ended at `ChurnedPool.now`.
"""

import json
import random
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from backupd.repo import backup_json as records
from backupd.repo.backup_json import PathOutcome, PathResult
from backupd.repo.notes_json import Notes, write_notes
from btrkeep.backup_states import COMPLETE, EXPIRED
from btrkeep.pool.orphans import dead_roots, wait_for
from btrkeep.pool.subvolume import commit, create, delete, describe, set_read_only, snapshot
from btrkeep.units import backup_name, format_time
from tests.beds import TOP, work

FIRST_NIGHT = datetime(2026, 1, 1, 22, 0, tzinfo=UTC)
NOISE = 8 << 20
_LONG = 3600.0
_AT_A_TIME = 8  # hosts of a night that share commits, as in a real night


@dataclass(frozen=True, slots=True)
class Shape:
    """How large and how diverged.

    `files` of each host, of which `changed` change each night; their sizes are log-uniform from `smallest` to `largest` bytes.
    `window`: the age in nights at which a backup is deleted, except that of each seventh night; 0: none is deleted. `paths`: the
    number of source paths in each record; 0: only the required fields.
    """

    hosts: int
    nights: int
    keep: int
    files: int
    changed: int
    smallest: int
    largest: int
    window: int = 0
    seed: int = 7
    paths: int = 0


@dataclass(frozen=True, slots=True)
class ChurnedPool:
    """The pool that was built. `doomed`: the ids of the subvolumes to be deleted, by path relative to the filesystem, by host and
    age; `kept`: the paths of the others.
    """

    config: Path
    doomed: Mapping[str, int]
    kept: tuple[str, ...]
    now: datetime

    def backupd(self, *words: str) -> tuple[str, ...]:
        """Returns a command line of btrkeep, at the time when all marked backups may be deleted."""
        return (sys.executable, "-m", "backupd", "--config", str(self.config), *words, "--now", format_time(self.now))


class _Host:
    """The files of one host, and the changes of a night; the same for the same seed."""

    def __init__(self, folder: Path, shape: Shape, number: int, noise: bytes) -> None:
        self.folder = folder
        self.backups: dict[str, int] = {}  # name and subvolume id of those that there are
        self._shape = shape
        self._random = random.Random(shape.seed * 100_003 + number)
        self._noise = noise
        self._names: list[str] = []
        self._made = 0

    def night(self, number: int) -> None:
        """Makes a new backup, which is not final yet."""
        started = FIRST_NIGHT + timedelta(days=number)
        path = self.folder / backup_name(started)
        if self.backups:
            snapshot(self.folder / max(self.backups), path)
            self._change(path / records.DATA)
        else:
            self.folder.mkdir(mode=0o700)
            create(path)
            self._fill(path / records.DATA)
        subvolume = describe(path)
        assert subvolume is not None
        self.backups[path.name] = subvolume.id
        ended = started + timedelta(seconds=20)
        record = records.Record(self.folder.name, subvolume.uuid, COMPLETE, started, path.name, finished=ended, duration=20.0)
        if self._shape.paths:
            record = replace(
                record, **_night_statistics(self._shape.paths), ancestors=dict.fromkeys(list(self.backups)[-2:-1], number)
            )
        records.write(path, record)

    def finalise(self) -> None:
        """Makes the newest backup read-only."""
        set_read_only(self.folder / max(self.backups))

    def _fill(self, data: Path) -> None:
        for number in range(self._shape.files):
            self._names.append(f"folder{number // 50:03}/file{number:05}")
        for folder in sorted({name.partition("/")[0] for name in self._names}):
            (data / folder).mkdir(parents=True)
        for name in self._names:
            (data / name).write_bytes(self._content())

    def _change(self, data: Path) -> None:
        """Writes half of the files over in place; each other file is replaced by a new file with a new inode."""
        for turn, number in enumerate(self._random.sample(range(len(self._names)), self._shape.changed)):
            if turn % 2:
                self._made += 1
                (data / self._names[number]).unlink()
                self._names[number] = f"{self._names[number].partition('/')[0]}/new{self._made:06}"
            (data / self._names[number]).write_bytes(self._content())

    def _content(self) -> bytes:
        shape = self._shape
        size = round(shape.smallest * (shape.largest / shape.smallest) ** self._random.random())
        start = self._random.randrange(NOISE - size)
        return self._noise[start : start + size]


def _night_statistics(paths: int) -> dict[str, Any]:
    """Returns the other fields of the record of a night."""
    files = {"files": 42_000, "regular": 38_000, "created": 7, "deleted": 3, "transferred": 61, "bytes": 9_100_000_000}
    sent = {"transferred_bytes": 81_000_000, "literal": 2_700_000, "matched": 78_300_000, "sent": 151_000, "received": 4_300_000}
    names = [f"/srv/data{number}" for number in range(paths)]
    path_result = PathResult("", PathOutcome.COMPLETE, exit_code=0, meaning="complete", numbers=files | sent, seconds=4.2)
    excluded = ["/proc/*", "/sys/*", "/dev/*", "/run/*", "/tmp/*", "/var/tmp/*", "lost+found"]
    return {
        "attempts": 1,
        "paths": tuple(replace(path_result, path=name) for name in names),
        "settings": {"paths": names, "exclude": excluded, "inplace": "always", "one_file_system": False},
        "rsync_version": "3.4.1",
        "protocol": 32,
        "seconds": {"prepare": 0.01, "rsync": 19.2},
        "version": "0.1.0",
        "links_split": True,
        "confined": True,
    }


def build(mount: Path, folder: Path, shape: Shape) -> ChurnedPool:
    """Builds the pool on the filesystem mounted at `mount`, and its catalogue and configuration in `folder`."""
    pool, config = mount / "pool", folder / "churned.toml"
    config.write_text(configuration(pool, folder / "state", shape), encoding="utf-8")
    work(sys.executable, "-m", "backupd", "--config", config, "init", "--rehearsal", pool, cwd=TOP)
    noise = random.Random(shape.seed).randbytes(NOISE)
    hosts = [_Host(pool / "hosts" / name, shape, number, noise) for number, name in enumerate(names(shape))]
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        for night in range(shape.nights):
            list(threads.map(_Host.night, hosts, [night] * len(hosts)))
            commit(mount)
            list(threads.map(_Host.finalise, hosts))
            _thin_out(hosts, night, shape)
    _wait_for_the_cleaner(mount)
    for host in hosts:
        write_notes(host.folder, _notes(host, shape))
    work(sys.executable, "-m", "backupd", "--config", config, "rebuild", cwd=TOP, timeout=_LONG)
    doomed = {str((host.folder / name).relative_to(mount)): id_ for host in hosts for name, id_ in _old(host, shape)}
    kept = tuple(str((host.folder / name).relative_to(mount)) for host in hosts for name in sorted(host.backups)[-shape.keep :])
    return ChurnedPool(config, doomed, kept, _end(shape) + timedelta(days=2))


def names(shape: Shape) -> list[str]:
    """Returns the names of the hosts, in order."""
    return [f"host{number:04}" for number in range(shape.hosts)]


def configuration(pool: Path, state: Path, shape: Shape, **expiry: object) -> str:
    """Returns the configuration file: a policy that keeps the newest `keep`; `expiry` are keys of its section."""
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in expiry.items())
    head = f'[pool]\npath = "{pool}"\nstate = "{state}"\n[retention]\ndaily = {shape.keep}\nmin_keep = {min(3, shape.keep)}\n'
    hosts = (f'[host.{name}]\naddress = "root@{name}"\npaths = ["/srv"]\n' for name in names(shape))
    return f"{head}[expiry]\n{keys}" + "".join(hosts)


def _end(shape: Shape) -> datetime:
    return FIRST_NIGHT + timedelta(days=shape.nights - 1)


def _old(host: _Host, shape: Shape) -> Iterator[tuple[str, int]]:
    return ((name, host.backups[name]) for name in sorted(host.backups)[: -shape.keep])


def _notes(host: _Host, shape: Shape) -> Notes:
    note = {EXPIRED: {"at": format_time(_end(shape)), "why": "no rule keeps it"}}
    return Notes({name: dict(note) for name, _ in _old(host, shape)})


def _thin_out(hosts: list[_Host], night: int, shape: Shape) -> None:
    old = night - shape.window
    if shape.window and old >= 0 and old % 7:
        name = backup_name(FIRST_NIGHT + timedelta(days=old))
        for host in hosts:
            delete(host.folder, host.backups.pop(name))


def _wait_for_the_cleaner(mount: Path) -> None:
    """Wakes the cleaner by a commit, and waits until its queue is empty."""
    commit(mount)
    for dead in dead_roots(mount):
        assert wait_for(mount, dead.id, _LONG)
    commit(mount)
