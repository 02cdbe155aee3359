"""The site of bench.soak: hosts whose files change every day, a pool that they are backed up to, and a pool that fetches from it.

The state of the hosts' files is kept here, by checksums of this bench (`Truth`). There are three filesystems: the hosts' disks, the
pool and the second pool. The first pool's state folder is on a small disk of its own, which can be full.
"""

import random
import shlex
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from backupd.rehearse.fill import BLOCK, Change, ChangeFile, DeleteFile, HostFiles, WriteFile
from backupd.rehearse.rehearsal_types import HostModel
from bench import cut_truth
from bench.common import FAKESSH
from bench.soak_held import HeldExtents
from tests.beds import TOP, btrfs, work
from tests.beds.nights import Nights
from tests.beds.watch import KILL_AT

REPLICA = "first"
DAILY, WEEKLY, MIN_KEEP = 7, 3, 2
HORIZON = 7 * WEEKLY + 2
"""After this many nights each night deletes as much as it makes."""
LARGEST = 512 << 10
STALL = 20
"""Seconds; with 3, a host on a busy machine was given up that did nothing wrong."""
_NOISE = 4 << 20


def model(name: str, files: int) -> HostModel:
    """Returns the files of a host: each night a twentieth of them change, and a fiftieth are added or deleted, in some
    nights more.
    """
    return HostModel(name, files, 24_000, 1.3, files / 50, 24_000, files / 50, files / 20, 0.3, 0.4, (0.5, 1.0, 1.0, 1.5))


class Truth:
    """The files of each host at each time, so that a backup of any moment can be compared with them."""

    def __init__(self) -> None:
        self._trees: dict[str, list[tuple[datetime, cut_truth.Tree]]] = {}

    def note(self, host: str, moment: datetime, tree: cut_truth.Tree) -> None:
        """Records `tree` as that of the host from `moment` on; unchanged entries take no memory."""
        trees = self._trees.setdefault(host, [])
        before = trees[-1][1] if trees else {}
        trees.append((moment, {name: before[name] if before.get(name) == is_ else is_ for name, is_ in tree.items()}))

    def at(self, host: str, moment: datetime) -> cut_truth.Tree:
        """Returns the host's files at that moment."""
        return next(tree for since, tree in reversed(self._trees[host]) if since <= moment)


class Hosts:
    """The hosts and their disks. `sources`: the mount point of the disks."""

    def __init__(self, count: int, files: int, seed: int) -> None:
        self.sources = btrfs.make("512M", options="noatime")
        self.names = tuple(f"host{number:03}" for number in range(count))
        self.truth = Truth()
        self.held = HeldExtents()
        self._files = {name: HostFiles(model(name, files), seed, LARGEST) for name in self.names}
        self._random = random.Random(seed)
        self._noise = self._random.randbytes(_NOISE)

    @property
    def total_bytes(self) -> int:
        """Returns the bytes of all files of all hosts."""
        return sum(files.bytes for files in self._files.values())

    def source(self, host: str) -> Path:
        """Returns the folder of a host's files."""
        return self.sources / host

    def day(self, moment: datetime) -> None:
        """Changes the files of all hosts, or makes their first files, and records them as their content from `moment` on."""
        for name, files in self._files.items():
            top = self.source(name)
            new = not top.exists()
            top.mkdir(exist_ok=True)
            for change in files.first() if new else files.night():
                self._apply(top, change)
                self.held.change(name, change)
            self.note(name, moment)
            self.held.note(name, moment)

    def note(self, host: str, moment: datetime) -> None:
        """Records the present files of a host as its content from `moment` on."""
        self.truth.note(host, moment, cut_truth.tree(self.source(host)))

    def _apply(self, top: Path, change: Change) -> None:
        path = top / change.name
        match change:
            case DeleteFile():
                path.unlink()
            case WriteFile():
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(self._data(change.size))
            case ChangeFile():
                with path.open("r+b") as file:
                    for offset, length in change.pieces:
                        file.seek(offset)
                        file.write(self._data(length))

    def _data(self, size: int) -> bytes:
        start = self._random.randrange((_NOISE - size) // BLOCK) * BLOCK if size < _NOISE - BLOCK else 0
        return self._noise[start : start + size]


class Site:
    """Both pools; the second one has the first `copied` hosts. The fault of a host is a file with its name in `faults`, of
    lines for the shell: see `_ssh`.
    """

    def __init__(self, hosts: Hosts, copied: int, pool_size: str, folder: Path) -> None:
        self.hosts, self.copied, self.folder = hosts, hosts.names[:copied], folder
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.first, self.second = (self._pool(pool_size) for _ in range(2))
        self.first.state = self._small_disk() / "state"
        self.first.settings("pool", state=str(self.first.state))
        self.first.settings("ssh", command=self._ssh())
        # a host of few files may lose half of them in a night without anything being wrong
        self.first.settings("backup", concurrency=4, attempts=1, stall=f"{STALL}s", shrink_limit="100%")
        self.first.tables["host"] = {name: {"address": name, "paths": [str(hosts.source(name))]} for name in hosts.names}
        self.second.tables[f"replica.{REPLICA}"] = {"from": str(self.first.pool), "hosts": list(self.copied)}
        for pool in self.pools:
            pool.write()

    @property
    def pools(self) -> tuple[Nights, Nights]:
        """Returns the first and the second pool."""
        return self.first, self.second

    def _pool(self, size: str) -> Nights:
        pool = Nights(btrfs.make(size, options="noatime,nossd"), "--rehearsal")
        pool.tables["retention"] = {"daily": DAILY, "weekly": WEEKLY, "min_keep": MIN_KEEP, "grace": "1d"}
        pool.tables["expiry"] = {"mount_option": "ssd", "max_orphans": 100}
        return pool

    def _small_disk(self) -> Path:
        image, point = self.folder / "state.img", self.folder / "state"
        with image.open("wb") as file:
            file.truncate(160 << 20)
        work("mkfs.ext4", "-q", "-m", "0", image)
        point.mkdir()
        work("mount", "-o", "loop,noatime", image, point)
        return point

    def _ssh(self) -> str:
        """Returns a stand-in for ssh, which executes the host's file in `faults`, if there is one."""
        script = self.folder / "ssh"
        at = shlex.quote(str(self.faults))
        look = f'for word; do [ ! -f {at}/"$word" ] || . {at}/"$word"; done'
        script.write_text(f'#!/bin/sh\n{look}\nexec {shlex.quote(str(FAKESSH))} "$@"\n')
        script.chmod(0o755)
        return shlex.quote(str(script))

    def complete(self, pool: Nights) -> dict[str, dict[str, datetime]]:
        """Returns when the complete backups of each host in a pool were finished, by name, from their own records."""
        times_by_host: dict[str, dict[str, datetime]] = {}
        for host, name, record in cut_truth.backups(pool.pool):
            if record["state"] == "complete":
                times_by_host.setdefault(host, {})[name] = datetime.fromisoformat(record["finished"])
        return times_by_host

    def unlike_their_source(self, pool: Nights, backups: Mapping[str, Mapping[str, datetime]]) -> Iterator[str]:
        """Yields a line for each of these backups that differs from its source at the time when it was finished."""
        for host, moments in backups.items():
            for name, moment in moments.items():
                copied_tree = cut_truth.tree(pool.data(host, self.hosts.source(host), name))
                if wrong := cut_truth.unlike(self.hosts.truth.at(host, moment), copied_tree):
                    yield f"{host}/{name} is called complete and differs from its source: {wrong[:3]}"


def space(mount: Path) -> dict[str, int]:
    """Returns `size`, `allocated` and `used` bytes of a btrfs's device, from /sys."""
    uuid = work("findmnt", "-n", "-o", "UUID", mount).stdout.strip()
    shown = Path("/sys/fs/btrfs") / uuid
    kinds = [shown / "allocation" / kind for kind in ("data", "metadata", "system")]
    size = sum(int((device / "size").read_text()) * 512 for device in (shown / "devices").iterdir())
    return {
        "size": size,
        "allocated": sum(int((kind / "disk_total").read_text()) for kind in kinds),
        "used": sum(int((kind / "disk_used").read_text()) for kind in kinds),
    }


def command_line(program: str, pool: Nights, *words: str, dies_at: int = 0) -> tuple[list[str], Mapping[str, str]]:
    """Returns the command line of a btrkeep program, and its environment. `dies_at`: the number of the checkpoint that kills it."""
    config = ("--config", str(pool.config))
    ours = [*config, *words] if program == "backupd" else [*words, *config]
    env = {"NO_COLOR": "1", "PYTHONPATH": str(TOP)}
    if not dies_at:
        return [sys.executable, "-m", program, *ours], env
    which = () if program == "backupd" else ("-m", program)
    return [sys.executable, "-P", str(KILL_AT), "die", "any", "any", str(dies_at), *which, *ours], env
