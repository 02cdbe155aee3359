"""One deletion of thousands of subvolumes, from the shell's prompt until the kernel has dropped the last one, and what it cost."""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Self

from bench import churned, common, seeks
from bench.churned import ChurnedPool, Shape
from bench.images import Images, Mounted, Writes
from btrkeep.pool.orphans import wait_for
from tests.beds import TOP, work

SIZE = 40 << 30  # of a filesystem; nothing is allocated until it is written
_LOOK = 0.02
_IDLE = 2.0  # seconds that the writer is alone before the deletion begins


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of small fsync'd writes, in milliseconds."""

    count: int
    p50: float
    p99: float
    worst: float


@dataclass(frozen=True, slots=True)
class Deleted:
    """`process`: seconds until the command ended; `seconds`: until the queue was empty; `settled`: until all was written.

    `cpu`: seconds of the command and its children, without the kernel's cleaner. `idle`, `busy`: the writer's latencies before and
    during the deletion, None without a writer. `places`: the positions of the writes (bench.seeks), None if not traced.
    """

    process: float
    seconds: float
    settled: float
    cpu: float
    writes: Writes
    stdout: str
    idle: Latencies | None = None
    busy: Latencies | None = None
    places: int | None = None

    @property
    def seen(self) -> Latencies:
        """The latencies of the writer at the same time."""
        assert self.busy is not None
        return self.busy


@dataclass(slots=True)
class Writer:
    """A bench.fsync_writer in progress, and its writes after it has ended."""

    process: subprocess.Popen[str]
    writes: list[tuple[float, float]] = field(default_factory=list)

    def between(self, begin: float, end: float) -> Latencies:
        """Returns the latencies of the writes that started in that period."""
        return latencies([seconds for begun, seconds in self.writes if begin <= begun < end])


def latencies(seconds: Iterable[float]) -> Latencies:
    """Returns median, 99th percentile (the nearest rank) and maximum."""
    ordered = sorted(seconds)
    rank = -(-99 * len(ordered) // 100) - 1
    return Latencies(len(ordered), statistics.median(ordered) * 1000, ordered[rank] * 1000, ordered[-1] * 1000)


@contextmanager
def writer(path: Path) -> Iterator[Writer]:
    """Starts a process that writes to a file there; its writes are known at the end."""
    argv = [sys.executable, "-m", "bench.fsync_writer", str(path)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TOP)
    made = Writer(process)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield made
        made.writes = [(begun, seconds) for begun, seconds in json.loads(process.communicate()[0])]
    finally:
        process.kill()
        process.wait()


def delete_all(
    mounted: Mounted, command: Sequence[str], doomed: Mapping[str, int], kept: Sequence[str], *, watched: bool
) -> Deleted:
    """Runs the command and waits until all of `doomed` (id by path) are dropped. Afterwards exactly `kept` are left.

    `watched`: with a writer beside it.
    """
    mounted.sync()
    if not watched:
        done, _, _ = _run(mounted, command, doomed)
    else:
        with writer(mounted.point / "small-writes") as beside:
            since = time.monotonic()
            time.sleep(_IDLE)
            done, begun, ended = _run(mounted, command, doomed)
        idle, busy = beside.between(since, begun), beside.between(begun, ended)
        done = replace(done, idle=idle, busy=busy)
    see_what_is_left(mounted.point, kept)
    return done


def _run(mounted: Mounted, command: Sequence[str], doomed: Mapping[str, int]) -> tuple[Deleted, float, float]:
    """Runs the command; returns the times of its start and of the empty queue."""
    before, begun = mounted.writes(), time.monotonic()
    done = common.timed(command)
    for id_ in doomed.values():
        while not wait_for(mounted.point, id_, timeout=0):  # it looks for one key, in some microseconds
            time.sleep(_LOOK)
    ended = time.monotonic()
    mounted.sync()
    settled = time.monotonic()
    writes = mounted.writes().since(before)
    return Deleted(done.seconds, ended - begun, settled - begun, done.cpu, writes, done.stdout), begun, ended


def see_what_is_left(point: Path, kept: Sequence[str]) -> None:
    """Requires that exactly the right subvolumes were deleted, from the list of the `btrfs` program."""
    waiting = work("btrfs", "subvolume", "list", "-d", point).stdout
    assert not waiting, f"still in the queue: {waiting}"
    lines = work("btrfs", "subvolume", "list", point).stdout.splitlines()
    left = {line.split(" path ", 1)[1] for line in lines} - {"pool"}
    assert left == set(kept), f"left, or gone, by mistake: {sorted(left ^ set(kept))[:10]}"


@dataclass(frozen=True, slots=True)
class Original:
    """A churned pool with its catalogue, of which each run gets a copy."""

    images: Images
    pool: ChurnedPool
    shape: Shape

    @classmethod
    def make(
        cls, folder: Path, shape: Shape, mount: str, mkfs: tuple[str, ...] = (), then: Callable[[Mounted], None] | None = None
    ) -> Self:
        """Builds it in `folder`, and calls `then` at the end."""
        images = Images(folder)
        common.say(f"making {shape.hosts * shape.nights} backups")
        with images.made("churned", SIZE, mount, mkfs) as mounted:
            pool = churned.build(mounted.point, folder, shape)
            if then:
                then(mounted)
        (folder / "state").rename(folder / "state.original")
        return cls(images, pool, shape)

    def run(
        self, command: Sequence[str], options: argparse.Namespace, mount: str, *, watched: bool, trace: bool = False
    ) -> Deleted:
        """Runs one deletion on a copy. `watched`: with a writer beside it; `trace`: with a trace of the positions of the writes."""
        with self.images.copy("churned", mount) as mounted:
            if not common.wait_for_quiet(options):
                common.say("not quiet")
            with seeks.traced(mounted.device, self.images.folder) if trace else nullcontext(seeks.Traced()) as traced:
                done = delete_all(mounted, command, self.pool.doomed, self.pool.kept, watched=watched)
            return replace(done, places=traced.places)

    def by_expire(self, **settings: object) -> tuple[str, ...]:
        """Deletes by the btrkeep command, with these keys of [expiry], and an empty catalogue."""
        state = self.images.folder / "state"
        shutil.rmtree(state, ignore_errors=True)
        shutil.copytree(self.images.folder / "state.original", state)
        written = churned.configuration(self.images.point / "pool", state, self.shape, **settings)
        self.pool.config.write_text(written, encoding="utf-8")
        return self.pool.backupd("expire", "--json")

    def by_btrfs(self) -> tuple[str, ...]:
        """Deletes all at once by the `btrfs` program, in the same order. It notices the end up to a second late, which is not
        counted.
        """
        names = self.images.folder / "doomed"
        names.write_bytes(b"".join(bytes(self.images.point / path) + b"\0" for path in self.pool.doomed))
        steps = 'btrfs filesystem sync "$2" && btrfs subvolume sync "$2" >/dev/null'
        return ("sh", "-ec", f'xargs -0 btrfs -q subvolume delete <"$1" && {steps}', "sh", str(names), str(self.images.point))


def shape_options(words: argparse.ArgumentParser, shape: Shape) -> None:
    """Adds the options of a churned pool; `shape` has the defaults."""
    words.add_argument("--hosts", type=int, default=shape.hosts)
    words.add_argument("--nights", type=int, default=shape.nights, help="number of backups that are made of each host")
    words.add_argument("--keep", type=int, default=shape.keep, help="number of them that are kept")
    words.add_argument(
        "--window",
        type=int,
        default=shape.window,
        help="age in nights at which backups are deleted while the pool is built; 0: none",
    )
    words.add_argument("--files", type=int, default=shape.files, help="files of each host")
    words.add_argument("--changed", type=int, default=shape.changed, help="number of them that change each night")
    words.add_argument("--smallest", type=common.size, default=shape.smallest, help="bytes of the smallest file")
    words.add_argument("--largest", type=common.size, default=shape.largest, help="bytes of the largest file")
    words.add_argument("--seed", type=int, default=shape.seed)


def shape_of(options: argparse.Namespace) -> Shape:
    """Returns the shape that these options describe."""
    return Shape(**{attribute.name: getattr(options, attribute.name) for attribute in fields(Shape)})
