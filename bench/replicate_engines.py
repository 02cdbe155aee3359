"""The two engines of a second copy, side by side: one host with a large file of very many shared pieces.

    python -m bench.replicate_engines [--megabytes 256] [--pieces 20000] [--pairs 3]

The file is that of a virtual machine whose storage shares equal blocks: pieces of 4 KiB of it are clones of others. From the
first night to the second one piece in a hundred is written anew. Both engines fetch both nights into an empty filesystem each,
from a pool in a folder, so without ssh.
"""

import argparse
import fcntl
import os
import random
import struct
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from backupd.repo import backup_json as records
from bench.common import Sides, Timed, alternate, noise, own_folder, plain_parser, report, say, wait_for_quiet
from bench.replicate import fetch
from btrkeep.backup_states import COMPLETE
from btrkeep.pool.subvolume import create, describe, set_read_only, snapshot
from btrkeep.units import backup_name
from tests.beds import TOP, btrfs, work

FIRST = datetime(2026, 3, 1, 22, tzinfo=UTC)
BLOCK = 4096
_FICLONERANGE = 0x4020940D  # linux/fs.h
_RANGE = struct.Struct("=qQQQ")


@dataclass(frozen=True, slots=True)
class EngineFetch:
    """One replication, and the bytes that came."""

    timed: Timed
    bytes: int


def make_first(top: Path, size: int, pieces: int) -> Path:
    """A pool with a host of two backups; its folder."""
    pool = top / "pool"
    (top / "init.toml").write_text(f'[pool]\npath = "{pool}"\nstate = "{top}/state"\n')
    work(sys.executable, "-m", "backupd", "--config", top / "init.toml", "init", pool, cwd=TOP)
    folder, chance = pool / "hosts/vm", random.Random(1)
    folder.mkdir(mode=0o700)
    before = None
    for night in range(2):
        started = FIRST + timedelta(days=night)
        path = folder / backup_name(started)
        if before:
            snapshot(before, path)
        else:
            create(path)
            (path / "data").mkdir()
        _write_disk(path / "data/disk", size, pieces, chance, is_first=before is None)
        found = describe(path)
        assert found is not None
        records.write(path, records.Record("vm", found.uuid, COMPLETE, started, name=path.name))
        set_read_only(path)
        before = path
    work("btrfs", "filesystem", "sync", top)
    return pool


def _write_disk(path: Path, size: int, pieces: int, chance: random.Random, *, is_first: bool) -> None:
    blocks = size // BLOCK
    with path.open("w+b" if is_first else "r+b", buffering=0) as file:
        if is_first:
            for _ in range(0, size, 1 << 20):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
            for _ in range(pieces):
                origin, place = chance.randrange(blocks) * BLOCK, chance.randrange(blocks) * BLOCK
                if origin != place:
                    fcntl.ioctl(file, _FICLONERANGE, _RANGE.pack(file.fileno(), origin, BLOCK, place))
        else:
            for _ in range(max(1, pieces // 100)):
                file.seek(chance.randrange(blocks) * BLOCK)
                file.write(os.urandom(BLOCK))


def fetch_by(folder: Path, first: Path, engine: str) -> EngineFetch:
    """All of it by that engine, into a pool on a new filesystem."""
    done, told = fetch(folder, first, f'engine = "{engine}"')
    assert len(told["fetched"]) == 2
    return EngineFetch(done, told["bytes"])


def main() -> None:
    """The command line."""
    made = plain_parser(__doc__ or "")
    made.add_argument("--megabytes", type=int, default=256)
    made.add_argument("--pieces", type=int, default=20_000)
    made.add_argument("--pairs", type=int, default=3)
    options = made.parse_args()
    with own_folder(options) as folder:
        report(options, "The engines of a second copy", _measure_all(options, folder))


def _measure_all(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    first = make_first(btrfs.make("3G", options="noatime"), options.megabytes << 20, options.pieces)
    seconds = Sides("rsync", "send")
    came: dict[str, int] = {}
    for pair in range(options.pairs + 1):
        quiet = wait_for_quiet(options)
        rsync, send = alternate(pair, lambda: fetch_by(folder, first, "rsync"), lambda: fetch_by(folder, first, "send"))
        came = {"rsync": rsync.bytes, "send": send.bytes}
        say(f"rsync {rsync.timed.seconds:.1f} s, send {send.timed.seconds:.1f} s; {noise(quiet, rsync.timed, send.timed)}")
        if pair:  # the first one finds cold caches
            seconds.pairs.append((rsync.timed.seconds, send.timed.seconds))
    return {"seconds": seconds.summary(None), "bytes that came": came}


if __name__ == "__main__":
    main()
