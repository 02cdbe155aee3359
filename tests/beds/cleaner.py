"""Work for the kernel's cleaner, ways to stop it in the middle, and the state that btrfs-progs reads from the device itself."""

import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.beds.btrfs import devices_of
from tests.beds.work import work


def diverged(point: Path, count: int, files: int = 4000, changes: int = 200) -> list[Path]:
    """Makes snapshots of a subvolume whose many small files were rewritten before each: their trees share little."""
    source = point / f"source-{time.monotonic_ns()}"
    work("btrfs", "subvolume", "create", source)
    for number in range(files):
        (source / f"file{number}").write_bytes(b"x" * 1500)
    chance, made = random.Random(7), []
    for number in range(count):
        for _ in range(changes):
            (source / f"file{chance.randrange(files)}").write_bytes(chance.randbytes(900))
        made.append(source.with_name(f"{source.name}-{number}"))
        work("btrfs", "subvolume", "snapshot", source, made[-1])
    return made


def ids_of(paths: list[Path]) -> list[int]:
    """Returns subvolume ids from `btrfs subvolume show`."""
    lines = (work("btrfs", "subvolume", "show", path).stdout for path in paths)
    return [int(match[1]) for text in lines if (match := re.search(r"Subvolume ID:\s+(\d+)", text))]


def delete(paths: list[Path]) -> None:
    work("btrfs", "subvolume", "delete", *paths)


@contextmanager
def held(paths: list[Path]) -> Iterator[None]:
    """Deletes and commits subvolumes that are not dropped before the end, because the root folder of each is open."""
    with ExitStack() as opened:
        for path in paths:
            opened.callback(os.close, os.open(path, os.O_RDONLY))
        delete(paths)
        work("btrfs", "filesystem", "sync", paths[0].parent)
        yield


@contextmanager
def stopped(point: Path) -> Iterator["RootTree"]:
    """Stops the cleaner in the middle of a tree, because the filesystem becomes read-only; returns the state on the device."""
    deadline = time.monotonic() + 60
    while True:  # the remount commits, which wakes the cleaner, and then makes it stop
        _make_read_only(point)
        truth = root_tree(point)
        if truth.drops:
            break
        assert truth.orphans, "all are gone, and the cleaner was never met in the middle of a tree"
        assert time.monotonic() < deadline
        work("mount", "-o", "remount,rw", point)
    try:
        yield truth
    finally:
        work("mount", "-o", "remount,rw", point)


def _make_read_only(point: Path) -> None:
    """Commits meanwhile: a remount waits for the cleaner, which may wait for space that only a commit frees (seen on 6.18)."""
    mounting = subprocess.Popen(["mount", "-o", "remount,ro", point], stdin=subprocess.DEVNULL)
    while True:
        try:
            assert mounting.wait(timeout=0.5) == 0
            return
        except subprocess.TimeoutExpired:
            work("btrfs", "filesystem", "sync", point)


def listed_as_deleted(point: Path) -> list[int]:
    """Returns the ids of `btrfs subvolume list -d`."""
    return [int(line.split()[1]) for line in work("btrfs", "subvolume", "list", "-d", point).stdout.splitlines()]


@dataclass(frozen=True, slots=True)
class RootTree:
    """The part of the root tree that dump-tree prints: orphans; drop_progress keys, drop levels and root nodes' addresses by root
    id.
    """

    orphans: list[int]
    drops: dict[int, tuple[str, int]]
    nodes: dict[int, int]


_ROOT_ITEM = re.compile(
    r"key \((\d+) ROOT_ITEM \d+\).*?bytenr (\d+).*?refs (\d+)\s+drop_progress key (\([^)]*\)) drop_level (\d+)", re.DOTALL
)


def root_tree(point: Path) -> RootTree:
    """Returns the root tree on the disk: commit before."""
    text = work("btrfs", "inspect-internal", "dump-tree", "-t", "root", devices_of(point)[0]).stdout
    rows = _ROOT_ITEM.findall(text)
    return RootTree(
        orphans=[int(number) for number in re.findall(r"key \(ORPHAN ORPHAN_ITEM (\d+)\)", text)],
        drops={int(root): (key, int(level)) for root, _, refs, key, level in rows if refs == "0" and not key.startswith("(0 ")},
        nodes={int(root): int(bytenr) for root, bytenr, *_ in rows},
    )


def node_keys(point: Path, bytenr: int) -> list[str]:
    """Returns the keys in the node at that address."""
    text = work("btrfs", "inspect-internal", "dump-tree", "-b", str(bytenr), devices_of(point)[0]).stdout
    return re.findall(r"^\tkey (\([^)]*\)) block", text, re.MULTILINE)


def is_gone(point: Path, seconds: float = 60) -> bool:
    """Returns True if no deleted subvolume is left within that many seconds; keeps waking the cleaner."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        work("btrfs", "filesystem", "sync", point)
        if not listed_as_deleted(point):
            return True
        time.sleep(0.1)
    return False


class Still:
    """Filesystems without commits, so that the cleaner is not woken, except by a test.

    Before they are unmounted, all deleted subvolumes are dropped: an unmount waits for the cleaner, which may wait for a commit.
    """

    def __init__(self, make_btrfs: Callable[..., Path]) -> None:
        self._make = make_btrfs
        self._points: list[Path] = []

    def __call__(self, **wishes: object) -> Path:
        self._points.append(self._make(**{"options": "commit=300", **wishes}))
        return self._points[-1]

    def settle(self) -> None:
        for point in self._points:
            assert not point.is_mount() or is_gone(point)
