"""Pictures and recorded states of a filesystem that never was, as `btrfs-heatmap nightly` leaves them.

Two devices, data and metadata in raid1. From picture to picture some block groups fill up, some go, new ones come.
"""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from heatmap.filesystem_state import DATA, METADATA, FilesystemState
from heatmap.picture import image_of, name_parts, output_name, save
from heatmap.recorded import automatic_name
from heatmap.recorded import save as record
from heatmap.whole_filesystem import VIRTUAL, overview, usage

_GIB = 1 << 30
_RAID1 = 16
_FIRST = 1 << 20  # where the first device extent lies


def draw(folder: Path, fsid: str, now: datetime, count: int, block_groups: int = 4000) -> None:
    """Draws the last `count` nights."""
    if not count:
        return
    folder.mkdir(exist_ok=True)
    morning = now.replace(hour=6, minute=0, second=0, microsecond=0)
    morning -= timedelta(days=morning > now)
    for ago in range(count - 1, -1, -1):
        state = state_of(fsid, morning - timedelta(days=ago), count - ago, block_groups)
        drawn = overview(state, sort=VIRTUAL, order=None, size=10, curve="hilbert", colouring=usage, devices=None)
        name = output_name(str(folder), name_parts(fsid, "hilbert", virtual=True), state.taken, "png")
        save(image_of(drawn.runs, drawn.grid), name)
        record(state, str(automatic_name(Path(name))))


def state_of(fsid: str, taken: datetime, night: int, count: int) -> FilesystemState:
    """Returns the state after that many nights."""
    chance = np.random.default_rng(7)
    number = np.arange(count, dtype=np.uint64)
    is_there = chance.random(count) > 0.02 + 0.1 * ((number.astype(np.int64) + night * 37) % 97 < 4)
    number = number[is_there]
    flags = np.where(number % 40 == 0, METADATA | _RAID1, DATA | _RAID1).astype(np.uint64)
    fill = np.clip(chance.random(count)[is_there] ** 0.35 + 0.02 * np.sin(number.astype(float) / 50 + night), 0, 1)
    used = (fill * _GIB).astype(np.uint64) // np.uint64(4096) * np.uint64(4096)
    vaddr, length = number * np.uint64(_GIB), np.full(len(number), _GIB, np.uint64)
    paddr = np.uint64(_FIRST) + number * np.uint64(_GIB)
    score = np.where(flags & np.uint64(DATA), (1 - fill) * fill * 1200, np.nan).astype(np.float32)
    both = np.repeat(np.arange(len(number), dtype=np.int64), 2)
    return FilesystemState(
        fsid,
        "backup",
        taken,
        16384,
        4096,
        np.array([1, 2], np.uint64),
        np.full(2, (count + 200) * _GIB, np.uint64),
        np.repeat(np.array([1, 2], np.uint64), len(number)),
        np.tile(paddr, 2),
        np.tile(vaddr, 2),
        np.tile(length, 2),
        vaddr,
        length,
        flags,
        np.full(len(number), 2, np.int64),
        both,
        np.tile(np.array([1, 2], np.uint64), len(number)),
        np.repeat(paddr, 2),
        vaddr,
        length,
        used,
        flags,
        score,
    )
