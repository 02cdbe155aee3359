"""Trees of real filesystems of every shape, read in bulk and compared with the output of python-btrfs, btrfs-progs and sysfs."""

import bisect
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import btrfs
import numpy as np
import pytest

from btrkeep.treescan import free_space as free_space_module
from btrkeep.treescan.block_groups import (
    block_groups,
    chunks,
    device_extents,
    has_block_group_tree,
    looked_up,
    used_from_free_space,
)
from btrkeep.treescan.extents import extents, gaps
from btrkeep.treescan.free_space import free_space, has_free_space_tree
from btrkeep.treescan.search import BUFFER_SIZE
from tests.beds import dumped, session, work
from tests.beds.btrfs import devices_of, simple_quotas
from tests.beds.shapes import MIB, SECTOR, SHAPES, Read, fragment, rows, settled, take_turns

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
BITMAP_REACH = 256 * 8 * SECTOR
BUFFERS = [320, 4096 + 24, BUFFER_SIZE]  # a bitmap and its header nearly fill the first
GOLDEN = Path(__file__).parent / "golden"
DATA, SYSTEM, METADATA = 1, 2, 4
SUPERS = (64 << 10, 64 << 20, 256 << 30)


def free_extents(read: Read, buffer_size: int = BUFFER_SIZE) -> list[tuple[int, int]]:
    return [pair for batch in free_space(read.fd, buffer_size=buffer_size) for pair in rows(batch.vaddr, batch.length)]


def see_chunks(read: Read) -> None:
    chunk = read.chunk
    stripes: list[list[tuple[int, int]]] = [[] for _ in chunk.vaddr]
    for which, devid, paddr in rows(chunk.stripe_chunk, chunk.stripe_devid, chunk.stripe_paddr):
        stripes[which].append((devid, paddr))
    ours = [(*row, tuple(each)) for row, each in zip(rows(chunk.vaddr, chunk.length, chunk.type), stripes, strict=True)]
    assert ours == dumped.chunks(read.point)
    theirs = [
        (chunk.vaddr, chunk.length, chunk.type, tuple((each.devid, each.offset) for each in chunk.stripes))
        for chunk in read.theirs.chunks()
    ]
    assert ours == theirs
    assert chunk.stripes.tolist() == [len(each) for each in stripes]
    results = device_extents(read.fd)
    ours_on_devices = rows(results.devid, results.paddr, results.vaddr, results.length)
    assert ours_on_devices == dumped.device_extents(read.point)
    assert ours_on_devices == [
        (dev_extent.devid, dev_extent.paddr, dev_extent.vaddr, dev_extent.length) for dev_extent in read.theirs.dev_extents()
    ]
    assert len(ours) >= 4


def see_block_groups(read: Read, tree: int) -> None:
    results = block_groups(read.fd, read.chunk)
    ours = rows(results.vaddr, results.length, results.used, results.flags)
    assert ours == dumped.block_groups(read.point, tree)
    assert ours == [
        (block_group.vaddr, block_group.length, block_group.used, block_group.flags) for block_group in read.theirs.block_groups()
    ]
    assert rows(*vars_of(looked_up(read.fd, read.chunk.vaddr, read.chunk.length))) == ours
    for name, kind in (("data", DATA), ("metadata", METADATA), ("system", SYSTEM), ("mixed", DATA | METADATA)):
        folder = Path("/sys/fs/btrfs", read.uuid, "allocation", name)
        chosen = [(length, used) for _, length, used, flags in ours if flags & 7 == kind]
        if folder.is_dir():
            text = [int((folder / name).read_text()) for name in ("total_bytes", "bytes_used")]
            assert [sum(length for length, _ in chosen), sum(used for _, used in chosen)] == text
        else:
            assert not chosen


def vars_of(answer: Any) -> tuple[Any, ...]:
    return answer.vaddr, answer.length, answer.used, answer.flags


def see_free_space(read: Read) -> None:
    """Compares the free space. mkfs.btrfs leaves the free space of block groups that it has removed in the tree: it is read, but
    belongs to no chunk.
    """
    theirs = [(free_space_extent.vaddr, free_space_extent.length) for free_space_extent in read.theirs.free_space_extents()]
    for buffer_size in BUFFERS:
        assert free_extents(read, buffer_size) == theirs
    infos = dumped.free_space_infos(read.point)
    begun = [pair for batch in free_space(read.fd) for pair in rows(batch.group_vaddr, batch.group_length)]
    assert dict(begun) == {vaddr: length for vaddr, (length, _, _) in infos.items()}
    results = block_groups(read.fd, read.chunk)
    assert [pair for pair in begun if pair[0] in read.chunk.vaddr] == rows(results.vaddr, results.length)
    free = {}
    for vaddr, (length, count, _) in infos.items():
        inside = [pair for batch in free_space(read.fd, vaddr, vaddr + length - 1) for pair in rows(batch.vaddr, batch.length)]
        assert inside == [pair for pair in theirs if vaddr <= pair[0] < vaddr + length]
        assert len(joined(inside)) == count
        free[vaddr] = sum(length for _, length in inside)
    ours = used_from_free_space(
        read.fd, read.chunk, results.vaddr, np.array([free[vaddr] for vaddr in results.vaddr.tolist()], "<u8")
    )
    assert ours.tolist() == results.used.tolist()
    assert {has for _, _, has in infos.values()} == {True, False}  # otherwise this test proves less than it claims
    assert len(theirs) > 600


def joined(numbers: list[tuple[int, int]]) -> list[tuple[int, int]]:
    values: list[tuple[int, int]] = []
    for vaddr, length in numbers:
        if values and sum(values[-1]) == vaddr:
            values[-1] = (values[-1][0], values[-1][1] + length)
        else:
            values.append((vaddr, length))
    return values


def see_extents(read: Read, nodesize: int) -> None:
    actual_extents = dumped.extents(read.point, nodesize)
    for buffer_size in (1024 + nodesize // 4, BUFFER_SIZE):
        batches = list(extents(read.fd, buffer_size=buffer_size))
        ours = [
            row
            for batch in batches
            for row in rows(batch.vaddr, batch.length, batch.refs, batch.generation, batch.is_tree_block, batch.owner)
        ]
        assert ours == actual_extents
    theirs = [
        (extent.vaddr, getattr(extent, "length", nodesize), extent.refs, extent.generation) for extent in read.theirs.extents()
    ]
    assert [row[:4] for row in ours] == theirs
    assert {0, 2, 5} < {row[5] for row in ours}
    assert max(row[2] for row in ours) >= 4
    group = max(read.chunk.vaddr.tolist())
    assert next(extents(read.fd, group)).vaddr.tolist() == [row[0] for row in actual_extents if row[0] >= group]


def see_gaps(read: Read, nodesize: int) -> None:
    """Compares the gaps of all block groups, and of some of them without the gaps of those between."""
    expected = {(row, size): gaps_by_hand(read, row, size, nodesize) for row, size in rows(read.chunk.vaddr, read.chunk.length)}
    for chosen in (slice(None), slice(1, None, 2), slice(2, 3)):
        vaddr, length = read.chunk.vaddr[chosen], read.chunk.length[chosen]
        ours = [pair for batch in gaps(read.fd, vaddr, length, buffer_size=8192 + nodesize) for pair in rows(*batch)]
        assert ours == [pair for group in rows(vaddr, length) for pair in expected[group[0], group[1]]]
    if has_free_space_tree(read.fd):
        free = free_extents(read)
        for (vaddr, length), numbers in expected.items():
            if not holds_super(read, vaddr):
                assert numbers == joined([pair for pair in free if vaddr <= pair[0] < vaddr + length])


def gaps_by_hand(read: Read, vaddr: int, length: int, nodesize: int) -> list[tuple[int, int]]:
    at, numbers = vaddr, []
    for extent in read.theirs.extents(vaddr, vaddr + length - 1):
        if extent.vaddr > at:
            numbers.append((at, extent.vaddr - at))
        at = extent.vaddr + getattr(extent, "length", nodesize)
    return [*numbers, (at, vaddr + length - at)] if at < vaddr + length else numbers


def holds_super(read: Read, vaddr: int) -> bool:
    """According to btrfs-progs' device extents."""
    pieces = [(paddr, length) for _, paddr, chunk, length in dumped.device_extents(read.point) if chunk == vaddr]
    return any(paddr <= copy < paddr + length for paddr, length in pieces for copy in SUPERS)


@pytest.mark.parametrize("name", SHAPES)
def test_every_tree_of_a_filesystem_is_read_as_others_read_it(make_btrfs: Callable[..., Path], name: str) -> None:
    shape = SHAPES[name]
    point = make_btrfs(size=shape.size, devices=shape.devices, mkfs=shape.mkfs, options=shape.options)
    fragment(point)
    with settled(point) as read:
        assert read.theirs.nodesize == shape.nodesize
        assert {kind & 0x7F8 for kind in read.chunk.type.tolist() if kind & DATA} == {shape.profile}
        assert has_free_space_tree(read.fd) == (not shape.options)
        assert not has_block_group_tree(read.fd)
        see_chunks(read)
        see_block_groups(read, tree=2)
        if not shape.options:
            see_free_space(read)
        else:
            with pytest.raises(FileNotFoundError):
                list(free_space(read.fd))
        see_extents(read, shape.nodesize)
        see_gaps(read, shape.nodesize)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way the buffers are read, from now on."""
    seen: list[str] = []
    for name in ("_aligned", "_unaligned"):
        monkeypatch.setattr(free_space_module, name, _noting(seen, name, getattr(free_space_module, name)))
    return seen


def _noting(seen: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*words: Any) -> Any:
        answer = function(*words)
        seen.extend([name] if answer else [])
        return answer

    return noted


def test_the_shorter_bitmap_at_the_end_of_a_block_group_of_an_odd_size_is_read(
    make_btrfs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last block group of a device has the remaining size. The device grows afterwards, so more follows after that bitmap."""
    point = make_btrfs(size="616640K", mkfs=("-d", "single", "-m", "single"))
    take_turns(point, "fine", [3, 1, 4, 1, 5, 9, 2, 6], 0)
    os.truncate(point.parent / "disk0", 900 * MIB)
    work("losetup", "--set-capacity", *devices_of(point))
    work("btrfs", "-q", "filesystem", "resize", "max", point)
    take_turns(point, "more", [3, 1, 4, 1, 5, 9, 2, 6], 0)
    seen = watched(monkeypatch)
    with settled(point) as read:
        see_free_space(read)
        all_bitmaps = dumped.bitmaps(point)
        odd = [(vaddr, length) for vaddr, length in all_bitmaps if length != BITMAP_REACH]
        # Else this test shows nothing, nor does it with one that shifts what follows by whole words, or that nothing follows.
        assert any(length // SECTOR // 8 % 8 and vaddr < max(all_bitmaps)[0] for vaddr, length in odd)
        for vaddr, length in odd:
            assert [free_extent for free_extent in free_extents(read) if vaddr <= free_extent[0] < vaddr + length]
        del seen[:]
        assert free_extents(read, 2048)
        assert set(seen) == {"_aligned", "_unaligned"}


def test_an_everyday_filesystem_with_bitmaps_is_read_the_fast_way(
    make_btrfs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    point = make_btrfs(size="600M", mkfs=("-d", "single", "-m", "single"))
    take_turns(point, "fine", [3, 1, 4, 1, 5, 9, 2, 6], 100 * MIB)
    seen = watched(monkeypatch)
    with settled(point) as read:
        assert len(free_extents(read)) > 1000
        assert len(dumped.bitmaps(point)) > 4
    assert set(seen) == {"_aligned"}


@pytest.fixture
def with_block_group_tree() -> Iterator[Path]:
    """A filesystem with a block group tree, which mkfs.btrfs 6.2 cannot make.

    golden/block-group-tree.img.tar.xz is a sparse image of 128 MiB from `mkfs.btrfs -m single -O block-group-tree` 6.14.
    """
    if not Path("/sys/fs/btrfs/features/block_group_tree").exists():
        pytest.skip("this kernel knows no block group tree")
    bed = Path(tempfile.mkdtemp(prefix="btrfs-", dir=session.folder(1 << 30)))
    with tarfile.open(GOLDEN / "block-group-tree.img.tar.xz") as archive:
        archive.extractall(bed)
    image, point = bed / "block-group-tree.img", bed / "mnt"
    os.truncate(image, 1500 * MIB)
    point.mkdir()
    try:
        work("mount", "-o", "loop", image, point)
        work("btrfs", "-q", "filesystem", "resize", "max", point)
        yield point
    finally:
        assert session.remove(bed) == []


def test_a_filesystem_with_a_block_group_tree_is_read_in_bulk(with_block_group_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = with_block_group_tree
    fragment(point)
    with settled(point) as read:
        assert has_block_group_tree(read.fd)
        see_chunks(read)
        see_block_groups(read, tree=11)
        see_free_space(read)
        see_extents(read, 16384)
        see_gaps(read, 16384)
        monkeypatch.setattr("btrkeep.treescan.block_groups.looked_up", None)
        assert len(block_groups(read.fd, read.chunk).used) == len(read.chunk.vaddr)


def test_with_simple_quotas_the_owner_of_an_extent_is_who_made_it(make_btrfs: Callable[..., Path]) -> None:
    """The file is reflinked from one subvolume into another, and removed where it was made; btrfs-progs 6.2 cannot look."""
    if not Path("/sys/fs/btrfs/features/simple_quota").exists():
        pytest.skip("this kernel knows no simple quotas")
    point = make_btrfs()
    simple_quotas(point)
    for name in ("maker", "heir"):
        work("btrfs", "-q", "subvolume", "create", point / name)
    (point / "maker" / "file").write_bytes(os.urandom(MIB))
    work("btrfs", "filesystem", "sync", point)
    work("cp", "--reflink=always", point / "maker" / "file", point / "heir" / "file")
    (point / "maker" / "file").unlink()
    with settled(point) as read:
        mapped = work("filefrag", "-v", "-b1", point / "heir" / "file").stdout
        [vaddr] = [int(line.split()[3].rstrip(".")) for line in mapped.splitlines() if line.split()[0] == "0:"]
        made_by = int(work("btrfs", "inspect-internal", "rootid", point / "maker").stdout)
        [batch] = extents(read.fd)
        answer = {row[0]: row[1:] for row in rows(batch.vaddr, batch.length, batch.refs, batch.is_tree_block, batch.owner)}
        assert answer[vaddr] == (MIB, 1, False, made_by)
        theirs_told = [
            (extent.vaddr, getattr(extent, "length", 16384), extent.refs, extent.generation) for extent in read.theirs.extents()
        ]
        assert rows(batch.vaddr, batch.length, batch.refs, batch.generation) == theirs_told
        assert {5, made_by} < {each[3] for each in answer.values() if each[2]}


WRITER = """
import os, sys, random
point, rng, files = sys.argv[1], random.Random(5), {}
print("ready", flush=True)
for turn in range(10**9):
    name = os.path.join(point, f"busy{rng.randrange(40)}")
    fd = os.open(name, os.O_CREAT | os.O_RDWR)
    size = os.fstat(fd).st_size
    if size > rng.randrange(8 << 20):
        os.unlink(name)
    else:
        try:
            os.posix_fallocate(fd, size, rng.randrange(1, 60) * 4096)
        except OSError:  # full: a busy machine commits late, and deleted data is free only then
            os.unlink(name)
    if turn % 50 == 0:
        os.fsync(fd)
    os.close(fd)
"""


@contextmanager
def being_written(point: Path) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", WRITER, point], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout
            assert writer.stdout.readline() == b"ready\n"
            yield
            assert writer.poll() is None
        finally:
            writer.kill()


@pytest.mark.parametrize("buffer_size", [320, BUFFER_SIZE])
def test_while_it_is_written_to_nothing_that_is_read_is_impossible(make_btrfs: Callable[..., Path], buffer_size: int) -> None:
    """Whatever moment a piece is of: extents in order, apart, within block groups, of whole sectors; used no more than there is."""
    point = make_btrfs(size="700M", mkfs=("-d", "single", "-m", "single"), options="commit=1")
    take_turns(point, "middle", [3, 1, 40, 1, 50, 9, 2, 60], 200 * MIB)
    seen = set()
    with being_written(point), btrfs.FileSystem(str(point)) as theirs:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            chunk = chunks(theirs.fd)
            free = free_extents(Read(point, theirs.fd, chunk, theirs), buffer_size)
            seen.add(tuple(free))
            groups = see_that_groups_are_possible(theirs.fd, chunk)
            see_that_extents_are_possible(free, groups | dict(rows(*vars_of(block_groups(theirs.fd, chunks(theirs.fd)))[:2])))
            is_data = chunk.type & np.uint64(DATA) != 0
            free_spans = [pair for gap in gaps(theirs.fd, chunk.vaddr[is_data], chunk.length[is_data]) for pair in rows(*gap)]
            # a group dropped in between leaves its chunk without an extent: one gap
            see_that_extents_are_possible(free_spans, dict(rows(chunk.vaddr, chunk.length)))
            for extent in extents(theirs.fd, buffer_size=max(buffer_size, 4096)):
                assert extent.refs.min(initial=1) > 0
                assert not (extent.length % SECTOR).any()
    assert len(seen) > 3  # otherwise nothing changed, and this test proves nothing


def see_that_groups_are_possible(fd: int, chunk: Any) -> dict[int, int]:
    results = block_groups(fd, chunk)
    assert (results.used <= results.length).all()
    free = np.zeros(len(results.vaddr), "<u8")
    for batch in free_space(fd):
        which = np.searchsorted(results.vaddr, batch.vaddr, "right") - 1
        inside = (which >= 0) & (batch.vaddr < (results.vaddr + results.length)[which])
        np.add.at(free, which[inside], batch.length[inside])
    assert (used_from_free_space(fd, chunk, results.vaddr, free) <= results.length).all()
    return dict(rows(results.vaddr, results.length))


def see_that_extents_are_possible(numbers: list[tuple[int, int]], groups: dict[int, int]) -> None:
    assert numbers
    assert all(count + length <= two for (count, length), (two, _) in pairwise(numbers))
    assert all(vaddr % SECTOR == 0 and length % SECTOR == 0 and length > 0 for vaddr, length in numbers)
    starts = sorted(groups)
    for vaddr, length in numbers:
        start = starts[bisect.bisect_right(starts, vaddr) - 1]
        assert start <= vaddr < vaddr + length <= start + groups[start]


def test_a_block_group_that_is_removed_after_its_chunk_was_read_is_left_out(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(mkfs=("-d", "single", "-m", "single"))
    work("fallocate", "-l", "600M", point / "doomed")
    with settled(point) as read:
        before = read.chunk
    (point / "doomed").unlink()
    work("btrfs", "filesystem", "sync", point)
    work("btrfs", "-q", "balance", "start", "-dusage=0", point)
    with settled(point) as read:
        result, now = block_groups(read.fd, before), block_groups(read.fd, read.chunk)
        assert 0 < len(result.vaddr) < len(before.vaddr)
        assert set(rows(*vars_of(result))) <= set(rows(*vars_of(now)))
        assert not set(before.vaddr.tolist()) - set(read.chunk.vaddr.tolist()) & set(result.vaddr.tolist())
