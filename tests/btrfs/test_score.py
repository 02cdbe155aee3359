"""Scores of real filesystems of many shapes, equal to those of python-btrfs's example, item by item."""

import ctypes
import dataclasses
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from balancer.cli import score
from balancer.cli.score import SORTS, ordered
from balancer.explain import ExplainedBlockGroup, NoSuchBlockGroup, explain
from balancer.survey import survey
from btrkeep.pool.mounts import open_btrfs
from btrkeep.treescan.block_groups import Chunks, chunks
from tests.balancer.program import Seen, Span, balancer, histogram, score_of, theirs
from tests.beds import btrfs, session, work
from tests.beds.anyone import NOBODY, readable

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def fragment(mount: Path, sizes: tuple[int, ...], seed: int, least_left: int = 0, turns: int = 60_000) -> None:
    """Two files take turns at extents of these sizes until the filesystem is full (or so few bytes are left), then one goes.

    The extents are reserved and never written, so this costs little.
    """
    rng = random.Random(seed)
    paths = [mount / "keep", mount / "drop"]
    fds = [os.open(path, os.O_CREAT | os.O_RDWR) for path in paths]
    ends = [0, 0]
    for turn in range(turns):
        size = rng.choice(sizes)
        if LIBC.fallocate(fds[turn % 2], 0, ends[turn % 2], size):
            break
        ends[turn % 2] += size
        counted = os.statvfs(mount)
        if counted.f_bavail * counted.f_frsize < least_left:
            break
    for fd in fds:
        os.close(fd)
    paths[1].unlink()
    work("btrfs", "filesystem", "sync", mount)
    work("btrfs", "filesystem", "sync", mount)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a filesystem is made and changed. `sizes` are in KiB."""

    size: str
    devices: int = 1
    mkfs: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (4, 12, 64, 100)
    left: int = 0
    turns: int = 60_000


SHAPES = {
    "extents": Shape("1G", sizes=(2048, 4096, 5000), left=300 << 20),
    "bitmaps": Shape("500M"),
    "odd size": Shape("333332K", sizes=(4, 8, 20)),
    "mixed": Shape("200M", mkfs=("--mixed",)),
    "dup": Shape("400M", mkfs=("-d", "dup", "-m", "dup")),
    "raid1": Shape("300M", 2, ("-d", "raid1", "-m", "raid1")),
    "raid0": Shape("200M", 3, ("-d", "raid0", "-m", "raid1", "-n", "64k")),
    "raid10": Shape("200M", 4, ("-d", "raid10", "-m", "raid10")),
    "raid5": Shape("200M", 3, ("-d", "raid5", "-m", "raid1")),
    "no free space tree": Shape("300M", mkfs=("-R", "^free-space-tree")),
    "many extents": Shape("800M", mkfs=("-d", "single", "-m", "single"), sizes=(4,), turns=16_000),
    "empty": Shape("200M", sizes=()),
}


@pytest.fixture(scope="module")
def shape(no_leftovers: None) -> Iterator[Callable[[str], Path]]:
    """`shape("mixed")` is the mount point of that one of SHAPES, made when it is first asked for. Nothing may write to it."""
    made: dict[str, Path] = {}

    def mounted(name: str) -> Path:
        if name not in made:
            wish = SHAPES[name]
            made[name] = btrfs.make(wish.size, wish.devices, wish.mkfs)
            if wish.sizes:
                fragment(made[name], tuple(size << 10 for size in wish.sizes), len(name), wish.left, wish.turns)
        return made[name]

    yield mounted
    problems = [problem for point in made.values() for problem in session.remove(point.parent)]
    assert not problems, "\n".join(problems)


def ours(mount: Path, *words: str) -> dict[str, Any]:
    return json.loads(balancer("score", mount, "--json", *words).stdout)


def items(mount: Path, kind: str) -> list[int]:
    """Returns the lengths of the free space items of that kind, printed by btrfs-progs."""
    shown = work("btrfs", "inspect-internal", "dump-tree", "-t", "10", btrfs.devices_of(mount)[0]).stdout
    return [int(line.split(f" {kind} ")[1].split(")")[0]) for line in shown.splitlines() if f" {kind} " in line]


@pytest.mark.parametrize("name", SHAPES)
def test_every_block_group_is_as_python_btrfs_sees_it(shape: Callable[[str], Path], name: str) -> None:
    mount = shape(name)
    answer, truth = ours(mount), theirs(mount)
    assert answer["filesystem"] == work("findmnt", "-no", "UUID", mount).stdout.strip()
    assert [group["vaddr"] for group in answer["block_groups"]] == sorted(truth, key=lambda count: (-truth[count].score, count))
    for group in answer["block_groups"]:
        seen = truth[group["vaddr"]]
        assert int(group["score"]) == int(seen.score)
        assert group == {
            "vaddr": seen.vaddr,
            "length": seen.length,
            "used": seen.used,
            "used_pct": seen.used_pct,
            "fragments": seen.fragments,
            "largest_free": max(seen.joined, default=0),
            "score": pytest.approx(seen.score, rel=1e-9, abs=1e-9),
            "benefit": pytest.approx(seen.score / seen.used * 2**30) if seen.used else None,
            "extents": None,
            "references": None,
        }
    assert answer["histogram"] == histogram(length for seen in truth.values() for length in seen.joined)


@pytest.mark.parametrize("name", ["bitmaps", "mixed", "raid10", "no free space tree", "many extents"])
def test_what_would_move_is_counted_with_top_and_with_explain(shape: Callable[[str], Path], name: str) -> None:
    mount = shape(name)
    truth = theirs(mount)
    by_benefit = sorted((seen for seen in truth.values() if seen.used), key=lambda seen: -seen.score / seen.used)
    answer = ours(mount, "--top", "2", "--sort", "benefit")["block_groups"]
    assert [(group["vaddr"], group["extents"], group["references"]) for group in answer] == [
        (seen.vaddr, seen.extents, seen.references) for seen in by_benefit[:2]
    ]
    first = ours(mount, "--explain", str(answer[0]["vaddr"]))
    assert first["block_groups"] == answer[:1]
    assert first["histogram"] == histogram(by_benefit[0].joined)


def test_the_shapes_are_what_their_names_say(shape: Callable[[str], Path]) -> None:
    assert not items(shape("extents"), "FREE_SPACE_BITMAP")
    assert len(items(shape("bitmaps"), "FREE_SPACE_BITMAP")) > 5
    assert any(length % (8 << 20) for length in items(shape("odd size"), "FREE_SPACE_BITMAP"))
    for name in ("bitmaps", "odd size"):
        truth = theirs(shape(name)).values()
        assert sum(len(seen.joined) for seen in truth) < sum(seen.fragments for seen in truth)  # some touch across bitmaps
    assert [seen.used for seen in theirs(shape("empty")).values()] == [0]
    shown = work("btrfs", "filesystem", "df", shape("mixed")).stdout
    assert "Data+Metadata" in shown
    root = work("btrfs", "inspect-internal", "dump-tree", "-t", "root", btrfs.devices_of(shape("no free space tree"))[0]).stdout
    assert "FREE_SPACE_TREE" not in root
    assert len(theirs(shape("raid1"))) > 1
    truth = theirs(shape("many extents")).values()
    assert max(seen.extents for seen in truth) > 256 * 1024 // 85  # more than one buffer of the search holds


def test_the_free_bytes_of_the_histogram_are_what_the_kernel_counts(shape: Callable[[str], Path]) -> None:
    """As sysfs has it: bytes_used of all data block groups, beside the sizes of the block groups."""
    for name in ("bitmaps", "raid1", "raid5"):
        mount = shape(name)
        answer = ours(mount)
        space = Path("/sys/fs/btrfs") / answer["filesystem"] / "allocation" / "data"
        total, used, readonly = (int((space / word).read_text()) for word in ("total_bytes", "bytes_used", "bytes_readonly"))
        assert sum(group["length"] for group in answer["block_groups"]) == total
        assert sum(group["used"] for group in answer["block_groups"]) == used
        assert 0 <= total - used - sum(row["bytes"] for row in answer["histogram"]) <= readonly + 3 * 65536  # superblock copies


def test_any_path_of_the_filesystem_does(btrfs_mount: Path) -> None:
    (btrfs_mount / "folder").mkdir()
    work("btrfs", "subvolume", "create", btrfs_mount / "sub")
    (btrfs_mount / "sub" / "folder").mkdir()
    for file in ("keep", "sub/folder/file"):
        (btrfs_mount / file).write_bytes(b"x" * 100_000)
    (btrfs_mount / "link").symlink_to("sub/folder/file")
    work("btrfs", "filesystem", "sync", btrfs_mount)
    answer = ours(btrfs_mount)
    assert answer["block_groups"]
    for path in ("keep", "folder", "sub/folder/file", "link"):
        assert ours(btrfs_mount / path) == answer, path


def test_what_is_explained_of_a_block_group_is_what_its_items_say(shape: Callable[[str], Path]) -> None:
    mount = shape("bitmaps")
    seen = max(theirs(mount).values(), key=lambda group: group.score)
    with open_btrfs(mount) as fd:
        result = explain(fd, seen.vaddr, 8)
    assert isinstance(result, ExplainedBlockGroup)
    by_class: dict[int, list[Span]] = {length.bit_length() - 1: [] for _, length in sorted(seen.free, key=lambda extent: extent[1])}
    for free_extent in seen.free:
        by_class[free_extent[1].bit_length() - 1].append(free_extent)
    wanted = [(2**power, len(numbers), sum(extent[1] for extent in numbers)) for power, numbers in by_class.items()]
    assert [part[:3] for part in result.parts] == wanted
    scores = [score_of(numbers, seen.length) for numbers in by_class.values()]
    assert [part[3] for part in result.parts] == pytest.approx(scores)
    assert [length for _, length in result.largest] == sorted(seen.joined, reverse=True)[:5]
    assert all(any(vaddr == begin for begin, _ in seen.free) for vaddr, _ in result.largest)
    text = " ".join(balancer("score", mount, "--explain", str(seen.vaddr)).stdout.split())
    assert f"in {seen.extents:,} extents (" in text
    assert f"with {seen.references:,} references" in text
    assert f"counted once, there are {len(seen.joined):,} free extents." in text
    assert f"{seen.used_pct}%" in text


@pytest.mark.parametrize("name", ["bitmaps", "no free space tree"])
def test_a_block_group_that_vanished_since_the_chunks_were_read_is_left_out(
    shape: Callable[[str], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_another(fd: int) -> Chunks:
        actual_chunks = chunks(fd)
        here, gone = (np.append(column, np.uint64(1 << 40)) for column in (actual_chunks.vaddr, actual_chunks.length))
        return dataclasses.replace(actual_chunks, vaddr=here, length=gone, type=np.append(actual_chunks.type, np.uint64(1)))

    monkeypatch.setattr("balancer.survey.chunks", with_another)
    monkeypatch.setattr("balancer.explain.chunks", with_another)
    with open_btrfs(shape(name)) as fd:
        assert survey(fd).groups.vaddr.tolist() == sorted(theirs(shape(name)))
        assert isinstance(explain(fd, 1 << 40, 8), NoSuchBlockGroup)


def test_the_map_shows_the_file_where_it_lies_and_the_stripes_where_they_are(btrfs_mount: Path) -> None:
    """A block group of 8 MiB: its first quarter is written."""
    (btrfs_mount / "file").write_bytes(os.urandom(2 << 20))
    work("btrfs", "filesystem", "sync", btrfs_mount)
    (seen,) = [group for group in theirs(btrfs_mount).values() if group.used >= 2 << 20][:1]
    at = json.loads(balancer("score", btrfs_mount, "--explain", str(seen.vaddr), "--json").stdout)["block_groups"][0]
    text = balancer("score", btrfs_mount, "--explain", str(seen.vaddr)).stdout
    drawn = [line for line in text.splitlines() if line.startswith("|")]
    halves = [character in upper for line in drawn for upper in ("▀█", "▄█") for character in line.strip("|")]
    assert len(halves) == 72 * 12
    assert sum(halves) / len(halves) == pytest.approx(at["used"] / at["length"], abs=0.01)
    assert halves == sorted(halves, reverse=True)  # one run at the beginning
    (chunk,) = (line for line in stripes(btrfs_mount) if line[0] == seen.vaddr)
    assert f"block group {seen.vaddr}: data, single; at {chunk[2]} on device {chunk[1]}\n" in text


def stripes(mount: Path) -> list[tuple[int, int, int]]:
    """Returns (vaddr, devid, paddr) of each device extent, printed by btrfs-progs."""
    shown = work("btrfs", "inspect-internal", "dump-tree", "-t", "dev", btrfs.devices_of(mount)[0]).stdout.splitlines()
    numbers = []
    for line, after in zip(shown, [*shown[2:], "", ""], strict=False):
        if " DEV_EXTENT " in line:
            devid, paddr = line.split("key (")[1].split(" ")[0], line.split(" DEV_EXTENT ")[1].split(")")[0]
            numbers.append((int(after.split("chunk_offset ")[1].split(" ")[0]), int(devid), int(paddr)))
    return numbers


def test_an_address_without_a_data_block_group_names_those_that_are_near(shape: Callable[[str], Path]) -> None:
    mount = shape("raid1")
    truth = sorted(theirs(mount))
    done = balancer("score", mount, "--explain", str(truth[0] + 4096), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error: no data block group begins at {truth[0] + 4096}: it is inside the block group at {truth[0]} (data, RAID1)",
        f"hint: the nearest begin at {', '.join(map(str, truth[:3]))}",
    ]
    others = [vaddr for vaddr, _, _ in stripes(mount) if vaddr not in truth]
    done = balancer("score", mount, "--explain", hex(others[0]), check=False)
    assert done.returncode == 2
    assert f"at {others[0]}: the block group there is " in done.stderr
    done = balancer("score", mount, "--explain", str(2**64 - 1), check=False)
    assert str(truth[-1]) in done.stderr.splitlines()[1]


def test_the_table_has_the_worst_first_and_says_how_many_more_there_are(shape: Callable[[str], Path]) -> None:
    mount = shape("bitmaps")
    truth = sorted(theirs(mount).values(), key=lambda seen: (-seen.score, seen.vaddr))
    lines = balancer("score", mount, "--top", "2").stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.split()[:1] == ["VADDR"])
    assert [shown(line) for line in lines[at + 1 : at + 3]] == [(seen.vaddr, seen.fragments, int(seen.score)) for seen in truth[:2]]
    assert lines[at + 3] == f"{len(truth) - 2} more: --top N shows more of them, --json all"
    assert max(map(len, lines)) <= 80
    above = truth[1].score
    output = balancer("score", mount, "--min-score", str(above)).stdout
    assert str(truth[1].vaddr) in output
    assert not any(str(seen.vaddr) in output for seen in truth[2:])
    assert "no block group scores 1e+06 or more" in balancer("score", mount, "--min-score", "1000000").stdout


def test_without_top_the_table_has_twenty_lines(shape: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert score.TOP == 20
    monkeypatch.setattr(score, "TOP", 3)  # three block groups do not need a large filesystem
    mount = shape("bitmaps")
    lines = CliRunner().invoke(score.command, [str(mount)]).output.splitlines()
    at = next(number for number, line in enumerate(lines) if line.split()[:1] == ["VADDR"])
    truth = by_address(theirs(mount), KEYS["score"])
    assert [int(line.split()[0]) for line in lines[at + 1 : at + 4]] == [seen.vaddr for seen in truth[:3]]
    assert lines[at + 4].startswith(f"{len(truth) - 3} more: ")


def shown(line: str) -> tuple[int, int, int]:
    """Returns vaddr, fragments and the integer part of the score of a line with costs: sizes are two words."""
    vaddr, _, _, fragments, _, _, score, *_ = line.split()
    return int(vaddr), int(fragments), int(score.partition(".")[0])


KEYS: dict[str, Callable[[Seen], float]] = {
    "score": lambda seen: -seen.score,
    "fragments": lambda seen: -seen.fragments,
    "largest_free": lambda seen: max(seen.joined, default=0),
    "used": lambda seen: seen.used,
    "used_pct": lambda seen: seen.used_pct,
    "length": lambda seen: -seen.length,
    "vaddr": lambda seen: seen.vaddr,
}


def by_address(truth: dict[int, Seen], value: Callable[[Seen], float]) -> list[Seen]:
    return sorted(truth.values(), key=lambda seen: (value(seen), seen.vaddr))


def test_block_groups_are_sorted_by_every_key(shape: Callable[[str], Path]) -> None:
    mount = shape("bitmaps")
    truth = theirs(mount)
    with open_btrfs(mount) as fd:
        groups = survey(fd).groups
    wanted = {key: [seen.vaddr for seen in by_address(truth, value)] for key, value in KEYS.items()}
    assert {key: groups.vaddr[ordered(groups, key)].tolist() for key in KEYS} == wanted
    assert [group["vaddr"] for group in ours(mount, "--sort", "used")["block_groups"]] == wanted["used"]
    assert {*KEYS, "benefit"} == {*SORTS}
    benefit = groups.benefit[ordered(groups, "benefit")]
    answer = benefit[~np.isnan(benefit)].tolist()
    assert answer == sorted(answer, reverse=True)
    assert np.isnan(benefit[len(answer) :]).all()


def test_a_reader_that_has_had_enough_is_no_error(shape: Callable[[str], Path]) -> None:
    done = work("bash", "-c", f"set -o pipefail; '{sys.executable}' -m balancer score '{shape('bitmaps')}' --json | head -c 20")
    assert done.stderr == ""


def test_who_may_not_read_the_trees_is_told_so_in_one_line(btrfs_mount: Path) -> None:
    btrfs_mount.parent.chmod(0o755)
    words = readable().run_as(NOBODY, "-m", "balancer", "score", btrfs_mount)
    done = work(*words, env=readable().environment, check=False, cwd=Path("/"))
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.splitlines()[1] == "hint: run this as root"
    assert len(done.stderr.splitlines()) == 2
