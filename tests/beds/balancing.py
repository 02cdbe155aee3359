"""Filesystems that are worth balancing, their state read without our code, and Balancing as a process.

balancing.py PATH [WHEN:SIGNAL:COUNT] [field=value ...] prints each event as a line of JSON. With WHEN it sends itself
a signal at one moment: `before` or `after` the COUNTth ioctl that relocates, at the COUNTth event of a kind (`begins`, `progress`,
...), or at the COUNTth `look` at the filesystem. Fields are those of Settings.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import btrfs as python_btrfs

from balancer import balance_plan, balancing, relocation
from balancer.balancing import Balancing
from balancer.choose import Floors
from balancer.cost_model import DEFAULT, Model, Rates
from balancer.run_types import (
    BalanceEvent,
    BalanceProgress,
    BalanceStarted,
    Cancelling,
    PlannedBlockGroup,
    Report,
    RoomFloor,
    RunSettings,
    StepDone,
)
from btrkeep.pool.balance_ioctl import exclusive_operation
from btrkeep.process.progress import Notice, Waiting
from tests.beds import btrfs, session
from tests.beds.cli import TOP
from tests.beds.watch import wait_for
from tests.beds.work import work

EASY = Floors(min_score=1, min_benefit=1)
"""So that the small block groups of test beds are worth it."""
KIB = 1 << 10
DATA, METADATA = python_btrfs.BLOCK_GROUP_DATA, python_btrfs.BLOCK_GROUP_METADATA
NO_TIME = Model(Rates(0, 0, 0, 0), Rates(0, 0, 0, 0))
QUICK: dict[str, Any] = {"floors": EASY, "min_unallocated": RoomFloor(0), "max_pressure": None}
Event = dict[str, Any]
BALANCE, LOOK = "balance_block_group", "read_filesystem"
EVENTS = {
    BalanceStarted: "begins",
    PlannedBlockGroup: "step_begins",
    BalanceProgress: "progress",
    StepDone: "step_ends",
    Waiting: "waits",
    Cancelling: "stopping",
    Notice: "warns",
    Report: "ends",
}


def churn(point: Path, files: int, snapshots: int, seed: int = 5) -> None:
    """Makes adjacent small files, of which every second one is deleted, and snapshots of the rest: many fragments and
    references.
    """
    volume, rng = point / "volume", random.Random(seed)
    work("btrfs", "-q", "subvolume", "create", volume)
    noise = rng.randbytes(512 * KIB)
    for number in range(files):
        folder = volume / f"{number % 40}"
        folder.mkdir(exist_ok=True)
        begin = rng.randrange(len(noise) // 2)
        (folder / f"{number}").write_bytes(noise[begin : begin + rng.choice((8, 12, 20, 40)) * KIB])
    work("btrfs", "filesystem", "sync", point)
    for number in range(0, files, 2):
        (volume / f"{number % 40}" / f"{number}").unlink()
    work("btrfs", "filesystem", "sync", point)
    for number in range(snapshots):
        work("btrfs", "-q", "subvolume", "snapshot", "-r", volume, point / f"snapshot{number}")
    work("btrfs", "filesystem", "sync", point)


@contextmanager
def checked_bed() -> Iterator[Path]:
    """Yields a filesystem that the btrfs program checks at the end."""
    point = btrfs.make(size="900M", mkfs=("-m", "single"))
    yield point
    work("btrfs", "scrub", "start", "-B", point)
    device = btrfs.devices_of(point)[0]
    btrfs.unmount(point)
    work("btrfs", "check", device)
    problems = session.remove(point.parent)
    assert not problems, "\n".join(problems)


def fragmented(point: Path) -> Path:
    """The same with at least two fragmented block groups, with many references: balancing the first takes tenths of a second."""
    if len(worth := planned(point)) < 2 or worth[0].used < 30 << 20:
        for path in btrfs.subvolumes_below(point, point):
            btrfs.delete_subvolume(path, point)
        wait_for(lambda: cleaned(point))
        churn(point, 7000, 10)
    return point


def cleaned(point: Path) -> bool:
    """Returns True if the cleaner has finished; `btrfs subvolume sync` would not wake it."""
    work("btrfs", "filesystem", "sync", point)
    return not work("btrfs", "subvolume", "list", "-d", point).stdout


def planned(point: Path, **settings: Any) -> list[PlannedBlockGroup]:
    with python_btrfs.FileSystem(str(point)) as filesystem:
        return balance_plan.plan_all(
            filesystem.fd, balance_plan.read_filesystem(filesystem.fd, point), RunSettings(**{**QUICK, **settings}), DEFAULT
        )


def groups(point: Path) -> dict[int, tuple[int, int, int]]:
    """Returns vaddr: length, type, used; by python-btrfs."""
    with python_btrfs.FileSystem(str(point)) as filesystem:
        result = [(chunk.vaddr, chunk.length, chunk.type) for chunk in filesystem.chunks()]
        return {vaddr: (length, kind, filesystem.block_group(vaddr, length).used) for vaddr, length, kind in result}


def fullest(point: Path) -> int:
    """Returns the most used data block group."""
    return max((used, vaddr) for vaddr, (_, kind, used) in groups(point).items() if kind & DATA)[1]


def checksum(point: Path) -> str:
    """Returns a checksum of all files, but not of the snapshots, which share every block with them."""
    return work("sh", "-c", "find volume -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum", cwd=point).stdout


def nothing_is_left(point: Path) -> None:
    """Requires that no balance is left: by the btrfs program, by sysfs, and by the state of the device after a power cut now."""
    status = work("btrfs", "balance", "status", point, check=False)
    assert status.stdout.startswith("No balance found"), status.stdout
    uuid = work("findmnt", "-no", "UUID", point).stdout.strip()
    assert Path(f"/sys/fs/btrfs/{uuid}/exclusive_operation").read_text().strip() == "none"
    work("btrfs", "filesystem", "sync", point)
    tree = work("btrfs", "inspect-internal", "dump-tree", "-t", "root", btrfs.devices_of(point)[0]).stdout
    assert "BALANCE" not in tree


def foreign(point: Path, vaddr: int) -> subprocess.Popen[str]:
    """Starts a balance of another program."""
    argv = ["btrfs", "balance", "start", f"-dvrange={vaddr}..{vaddr + 1}", str(point)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: exclusive_operation(point) == "balance", pause=0.005)
    return process


class Seen:
    """A sink that records events, and calls `act` at `event`."""

    def __init__(self, event: str = "", act: Callable[[], object] = lambda: None) -> None:
        self.reported: list[tuple[str, object]] = []
        self._event, self._act = event, act

    def __call__(self, event: BalanceEvent) -> None:
        name = EVENTS[type(event)]
        self.reported.append((name, event))
        if name == self._event:
            self._act()

    def events(self) -> list[str]:
        return [event for event, _ in self.reported if event != "progress"]


def balance(point: Path, seen: Seen | None = None, **settings: Any) -> Report:
    return Balancing(point, RunSettings(**{**QUICK, **settings}), sinks=[seen] if seen else []).run()


def start(point: Path, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tests.beds.balancing", str(point), *words]
    return subprocess.Popen(argv, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], status: int = 0) -> list[Event]:
    """Returns its output until its end."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, out + err
    return [json.loads(line) for line in out.splitlines()]


def until(process: subprocess.Popen[str], event: str) -> list[Event]:
    """Returns its output until this event."""
    assert process.stdout is not None
    output: list[Event] = []
    for line in process.stdout:
        output.append(json.loads(line))
        if output[-1]["event"] == event:
            return output
    raise AssertionError(f"it never said {event}: {output}")


class Teller:
    """Prints each event as a line of JSON."""

    def _print_event(self, event: str, **subject: Any) -> None:
        sys.stdout.write(json.dumps({"event": event, **subject}) + "\n")
        sys.stdout.flush()

    def __call__(self, event: BalanceEvent) -> None:
        getattr(self, EVENTS[type(event)])(event)

    def begins(self, started: BalanceStarted) -> None:
        self._print_event("begins", score=started.numbers.score)

    def step_begins(self, group: PlannedBlockGroup) -> None:
        self._print_event("step_begins", vaddr=group.vaddr, used=group.used)

    def progress(self, progress: BalanceProgress) -> None:
        self._print_event("progress", left=progress.left, written=progress.written)

    def step_ends(self, done: StepDone) -> None:
        self._print_event("step_ends", vaddr=done.group.vaddr, outcome=done.outcome, moved=done.moved, error=done.error)

    def waits(self, waiting: Waiting) -> None:
        self._print_event("waits", why=waiting.why)

    def stopping(self, cancelling: Cancelling) -> None:
        self._print_event("stopping", why=cancelling.why)

    def warns(self, notice: Notice) -> None:
        self._print_event("warns", text=notice.text)

    def ends(self, report: Report) -> None:
        self._print_event("ends", ending=report.reason, why=report.why, steps=len(report.steps), signal=report.signal)


def signalling(function: Callable[..., Any], number: int, count: int, *, after: bool = False) -> Callable[..., Any]:
    """Returns the function, which sends its process a signal at its `count`th call."""
    calls = 0

    def wrapped(*args: Any, **keys: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and not after:
            os.kill(os.getpid(), number)
        try:
            return function(*args, **keys)
        finally:
            if calls == count and after:
                os.kill(os.getpid(), number)

    return wrapped


def arm(when: str, number: int, count: int) -> None:
    """Makes the signal come at that moment."""
    if when in ("before", "after"):
        setattr(relocation, BALANCE, signalling(getattr(relocation, BALANCE), number, count, after=when == "after"))
    elif when == "look":
        setattr(balancing, LOOK, signalling(getattr(balancing, LOOK), number, count))
    else:
        setattr(Teller, when, signalling(getattr(Teller, when), number, count))


def main(path: str, *words: str) -> None:
    for word in words:
        if "=" not in word:
            when, name, count = word.split(":")
            arm(when, getattr(signal, name), int(count))
    given = dict(QUICK)
    given.update((name, json.loads(value)) for name, _, value in (word.partition("=") for word in words if "=" in word))
    assert given.keys() <= {field.name for field in fields(RunSettings)}
    balancing = Balancing(Path(path), RunSettings(**given), sinks=[Teller()])
    with balancing.cancellation.listening():
        balancing.run()
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))  # a signal now arrives after everything is done


if __name__ == "__main__":
    main(*sys.argv[1:])
