"""Malicious hosts whose attacks are too large or too long for a test (tests/beds/attacks.py).

    python -m bench.hostile_sender [--only ATTACK ...] [--json]      # a quarter of an hour

For each attack: a night in which one host attacks and another one is honest, then a night in which both are honest. It prints the
duration and the result of the attack, the peak memory of rsync on this server, the space that the pool lost, and errors in the
honest host's backup, elsewhere in its folder, or in the night after.
"""

import json
import os
import shlex
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import common
from bench.common import own_folder
from btrkeep.units import format_size
from tests.beds import btrfs, session, work
from tests.beds.attacks import Honest
from tests.beds.nights import Nights

ATTACKS = Path(__file__).resolve().parents[1] / "tests" / "beds" / "attacks.py"
SOURCE = "/srv/www"
TRIED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("empty-files=200000", {"max_files": 50_000}),
    ("hard-links=60000", {}),
    ("hard-links=100000", {"max_files": 20_000}),
    ("endless-list", {"max_memory": "1GiB"}),
    ("endless-delta", {"max_new_bytes": "1GiB"}),
    ("endless-delta", {}),  # the room of the pool is its end
    ("endless-blocks", {"max_new_bytes": "1GiB"}),
    ("attributes=20000", {"max_new_bytes": "100MiB"}),
    ("too-large-attributes=5000", {}),
    ("too-large-attributes=50000", {"max_memory": "1GiB"}),
    ("huge-sizes", {}),
    ("flood", {"deadline": "5m"}),
    ("flood-of-errors", {"deadline": "5m"}),
    ("flood-of-nothing", {"deadline": "1m"}),
    ("garbage-in-list", {}),
    ("drip", {"deadline": "1m"}),
    ("hangs-at-end", {"stall": "20s"}),
    ("empty-files=1000000", {}),
)


@dataclass(frozen=True, slots=True)
class HostileNight:
    """The result of one attack; `memory` and `room` are bytes, `wrong` has the defects."""

    attack: str
    limits: str
    outcome: str
    error: str
    seconds: float
    memory: int
    room: int
    wrong: tuple[str, ...]


class MemoryOfReceivers(threading.Thread):
    """The peak memory of all rsyncs that write into a pool, together."""

    def __init__(self, pool: Path) -> None:
        super().__init__(daemon=True)
        self.pool = os.fsencode(pool)
        self.most = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.2):
            self.most = max(self.most, sum(self._each()))

    def _each(self) -> list[int]:
        faults = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                line = (entry / "cmdline").read_bytes()
                if line.partition(b"\0")[0].rpartition(b"/")[2] == b"rsync" and self.pool in line:
                    faults.append(int((entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        return faults


def answers(nights: Nights, host: str, attack: str, **keys: Any) -> None:
    words = shlex.join([sys.executable, "-P", str(ATTACKS), attack])
    nights.host(host, SOURCE, rsync_path=words, shrink_limit="100%", **keys)


def used(point: Path) -> int:
    work("btrfs", "filesystem", "sync", point)
    statvfs_result = os.statvfs(point)
    return (statvfs_result.f_blocks - statvfs_result.f_bfree) * statvfs_result.f_frsize


def attacked(size: str, attack: str, limits: dict[str, Any]) -> HostileNight:
    """Runs both nights, on a separate filesystem."""
    point = btrfs.make(size)
    nights = Nights(point)
    nights.settings("pool", min_free="10%")
    answers(nights, "neighbour", "honest")
    answers(nights, "web", "large")
    nights.run("neighbour", "web")
    before, beside = used(point), work("find", nights.pool / "hosts" / "neighbour", "-mindepth", "2").stdout
    answers(nights, "web", attack, **limits)
    memory, begun = MemoryOfReceivers(nights.pool), time.monotonic()
    memory.start()
    results = {result.host: result for result in nights.night()}
    seconds = time.monotonic() - begun
    memory.ended.set()
    room = used(point) - before
    wrong = [] if results["neighbour"].outcome == "complete" else [f"neighbour: {results['neighbour'].error}"]
    wrong += [line for line in beside.splitlines() if not os.path.lexists(line)]
    answers(nights, "web", "honest")
    wrong += [f"{result.host}, the night after: {result.error}" for result in nights.night() if result.outcome != "complete"]
    if not wrong and (nights.data("web", SOURCE) / "file").read_bytes() != Honest.content:
        wrong.append("the content of the night after")
    session.remove(point.parent)
    web, limit_words = results["web"], ", ".join(f"{key} = {value}" for key, value in limits.items())
    return HostileNight(attack, limit_words, web.outcome, web.error or "", round(seconds, 1), memory.most, room, tuple(wrong))


def main() -> int:
    """Runs the attacks; returns the exit status, 1 after any error."""
    options = common.plain_parser(__doc__ or "")
    options.add_argument("--size", default="8G", help="size of the pool, which is new for each attack")
    options.add_argument("--only", nargs="*", default=(), metavar="ATTACK", help="only these attacks, such as endless-list")
    given = options.parse_args()
    hostile_nights = []
    with own_folder(given):
        for attack, limits in TRIED:
            if given.only and attack.partition("=")[0] not in given.only:
                continue
            hostile_nights.append(night := attacked(given.size, attack, limits))
            if not given.json:
                print(
                    f"{night.attack} ({night.limits or 'no limit'}): {night.outcome} after {night.seconds} s, rsync had "
                    f"{format_size(night.memory)}, the pool lost {format_size(night.room)}; {night.error or 'no error'}",
                    *(f"  WRONG: {line}" for line in night.wrong),
                    sep="\n",
                    flush=True,
                )
    if given.json:
        print(json.dumps([asdict(night) for night in hostile_nights]))
    return 1 if any(night.wrong for night in hostile_nights) else 0


if __name__ == "__main__":
    sys.exit(main())
