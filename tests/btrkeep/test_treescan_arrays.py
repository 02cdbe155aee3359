"""From the bytes of a search to arrays, compared with loops over single items and bits.

The kernel is played by a list of items: what TREE_SEARCH_V2 answers is written down here a second time, with struct.
"""

import bisect
import struct
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from btrfs import ioctl
from hypothesis import given, settings
from hypothesis import strategies as st

from btrkeep.treescan import free_space as free_space_module
from btrkeep.treescan import search
from btrkeep.treescan.block_groups import chunks, device_extents, looked_up, used_from_free_space
from btrkeep.treescan.extents import SHARED, Extents, extents, gaps
from btrkeep.treescan.free_space import FreeSpace, free_space, unpacked
from btrkeep.treescan.items import HEADER, gathered, headers, positions
from tests.beds.gate import examples

TOP = 2**64 - 1
SECTOR = 4096
BITMAP_REACH = 256 * 8 * SECTOR
INFO, EXTENT, BITMAP = 198, 199, 200
MIB = 1 << 20
Item = tuple[tuple[int, int, int], bytes]


class Kernel:
    """Trees of items ((objectid, type, offset), payload), searched as btrfs_ioctl_tree_search_v2 (fs/btrfs/ioctl.c) searches."""

    def __init__(self, **trees: list[Item]) -> None:
        self.trees = {int(name.removeprefix("tree")): sorted(items) for name, items in trees.items()}
        self.searches = 0

    def ioctl(self, fd: int, number: int, buffer: bytearray) -> int:
        assert number == 0xC0709411  # _IOWR(0x94, 17, 112 bytes)
        key = struct.unpack_from("=7Q4L", buffer)
        tree, first_id, last_id, first_offset, last_offset, _, _, first_type, last_type, most, _ = key
        items = self.trees[tree]
        at, end, count = 112, 112 + struct.unpack_from("=Q", buffer, 104)[0], 0
        begin = bisect.bisect_left(items, (first_id, first_type, first_offset), key=lambda item: item[0])
        for (objectid, kind, offset), payload in items[begin:]:
            fits = at + 32 + len(payload) <= end
            if count == most or not fits or (objectid, kind, offset) > (last_id, last_type, last_offset):
                assert count or fits, "EOVERFLOW"
                break
            struct.pack_into("=QQQLL", buffer, at, 7, objectid, offset, kind, len(payload))
            buffer[at + 32 : at + 32 + len(payload)] = payload
            at, count = at + 32 + len(payload), count + 1
        struct.pack_into("=L", buffer, 64, count)
        self.searches += 1
        return 0


def answering(**fields: int) -> Callable[[int], SimpleNamespace]:
    """Answers ioctl.fs_info and ioctl.get_features."""
    return lambda _: SimpleNamespace(**fields)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kernel], Kernel]:
    """`play(kernel)` replaces the kernel from now on."""
    monkeypatch.setattr(ioctl, "fs_info", answering(sectorsize=SECTOR, nodesize=16384))
    monkeypatch.setattr(ioctl, "get_features", answering(compat_ro_flags=0))

    def use(kernel: Kernel) -> Kernel:
        monkeypatch.setattr("btrkeep.treescan.search.ioctl", kernel.ioctl)
        return kernel

    return use


def pairs(first: Any, second: Any) -> list[tuple[int, int]]:
    return list(zip(first.tolist(), second.tolist(), strict=True))


def rows_of(*columns: Any) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


# Bitmaps


def runs(bits: list[int], vaddr: int, sector: int) -> list[tuple[int, int]]:
    """Returns where runs of ones begin and how long they are, found bit by bit."""
    numbers: list[tuple[int, int]] = []
    before = 0
    for number, bit in enumerate(bits):
        if bit and not before:
            numbers.append((vaddr + number * sector, sector))
        elif bit:
            numbers[-1] = (numbers[-1][0], numbers[-1][1] + sector)
        before = bit
    return numbers


@st.composite
def bitmap_bits(draw: st.DrawFn, most: int = 2048) -> list[int]:
    """Draws runs of zeros and ones in turn: single bits, whole words, or the whole bitmap."""
    lengths = draw(st.lists(st.sampled_from([1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 128, 500, 2048]), min_size=1, max_size=60))
    bit, bits = draw(st.integers(0, 1)), list[int]()
    for length in lengths:
        bits += [bit] * length
        bit = 1 - bit
    return (bits + [bit] * most)[:most]


def packed(bits: list[int]) -> bytes:
    return bytes(sum(bit << number for number, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(st.lists(bitmap_bits(), max_size=5), st.sampled_from([4096, 16384, 65536]))
def test_bitmaps_are_unpacked_as_a_loop_over_their_bits_does(rows: list[list[int]], sector: int) -> None:
    starts = [number * 2048 * sector * 3 + 2**40 for number in range(len(rows))]
    words = np.frombuffer(b"".join(map(packed, rows)), "<u8").reshape(-1, 32)
    result = unpacked(np.array(starts, "<u8"), words, sector)
    assert pairs(*result) == [run for bits, start in zip(rows, starts, strict=True) for run in runs(bits, start, sector)]
    assert {part.dtype for part in result} == {np.dtype("<u8")}


def test_a_run_to_the_last_bit_ends_there_and_one_from_the_first_bit_of_the_next_bitmap_is_another() -> None:
    full = np.full((3, 32), TOP, "<u8")
    starts = np.array([0, BITMAP_REACH, 5 * BITMAP_REACH], "<u8")
    assert pairs(*unpacked(starts, full, SECTOR)) == [(start, BITMAP_REACH) for start in starts.tolist()]
    assert pairs(*unpacked(starts, np.zeros_like(full), SECTOR)) == []
    highest = np.array([2**64 - BITMAP_REACH], "<u8")
    assert pairs(*unpacked(highest, full[:1], SECTOR)) == [(2**64 - BITMAP_REACH, BITMAP_REACH)]


# Places and headers


@given(st.lists(st.sampled_from([0, 8, 24, 33, 53, 256]), min_size=1, max_size=50), st.integers(0, 9), st.booleans())
def test_headers_are_found_whatever_the_sizes_of_items(sizes: list[int], start: int, same: bool) -> None:
    if same:
        sizes = [sizes[0]] * len(sizes)
    buffer, places = bytearray(b"\xff" * start), []
    for number, size in enumerate(sizes):
        places.append(len(buffer))
        buffer += struct.pack("=QQQLL", 3, number * 2**40, TOP - number, number % 256, size) + b"\xff" * size
    at = positions(buffer, start, len(sizes))
    assert at.tolist() == places
    actual_headers = headers(buffer, at)
    assert actual_headers["objectid"].tolist() == [number * 2**40 for number in range(len(sizes))]
    assert actual_headers["offset"].tolist() == [TOP - number for number in range(len(sizes))]
    assert actual_headers["len"].tolist() == sizes


def test_what_was_taken_out_of_a_buffer_stays_when_the_buffer_is_filled_again() -> None:
    buffer = bytearray(range(200))
    taken = gathered(buffer, np.array([5, 37]), HEADER)
    expected = [struct.unpack_from("=QQQLL", buffer, place) for place in (5, 37)]
    buffer[:] = bytes(200)
    assert [tuple(each) for each in taken.tolist()] == expected
    with pytest.raises(IndexError):
        gathered(buffer, np.array([200 - HEADER.itemsize + 1]), HEADER)
    assert len(gathered(buffer, np.array([], np.int64), HEADER)) == 0


# Searches


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 256, TOP - 1, TOP]), st.integers(0, 255), st.sampled_from([0, 1, TOP - 1, TOP])),
             min_size=1, max_size=30, unique=True),
    st.sampled_from([40, 80, 100, 400]),
)  # fmt: skip
def test_a_search_goes_on_behind_any_key(keys: list[tuple[int, int, int]], room: int) -> None:
    kernel = Kernel(tree2=[(key, b"12345678") for key in keys])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("btrkeep.treescan.search.ioctl", kernel.ioctl)
        tree, numbers = search.TreeSearch(0, 2, buffer_size=room), list[tuple[int, int, int]]()
        while count := tree.fill():
            at = positions(tree.buffer, tree.first_header, count)
            actual_headers = headers(tree.buffer, at)
            numbers += zip(
                actual_headers["objectid"].tolist(), actual_headers["type"].tolist(), actual_headers["offset"].tolist(), strict=True
            )
            tree.resume_after(int(at[-1]))
    assert numbers == sorted(keys)


# Free space


@st.composite
def block_groups_with_free_space(draw: st.DrawFn) -> tuple[list[Item], list[tuple[int, int]], list[tuple[int, int]]]:
    """Returns items of the free space tree, and the expected free extents and block groups."""
    items: list[Item] = []
    expected: list[tuple[int, int]] = []
    groups: list[tuple[int, int]] = []
    start = draw(st.sampled_from([MIB, 2**45]))
    for _ in range(draw(st.integers(1, 4))):
        sectors = draw(st.sampled_from([2048, 4096, 2048 + 64, 2048 * 3 + 16, 1008]))  # the last three end in an odd bitmap
        groups.append((start, sectors * SECTOR))
        items.append(((start, INFO, sectors * SECTOR), struct.pack("=LL", 1, 0)))
        if draw(st.booleans()):
            for at in range(0, sectors, 2048):
                reach = min(2048, sectors - at)
                bits = draw(bitmap_bits(reach))
                items.append(((start + at * SECTOR, BITMAP, reach * SECTOR), packed(bits)))
                expected += runs(bits, start + at * SECTOR, SECTOR)
        else:
            edges = sorted(draw(st.sets(st.integers(0, sectors), max_size=20)))
            numbers = [
                (start + number * SECTOR, (two - number) * SECTOR) for number, two in zip(edges[::2], edges[1::2], strict=False)
            ]
            items += [((vaddr, EXTENT, length), b"") for vaddr, length in numbers]
            expected += numbers
        start += sectors * SECTOR
    return items, expected, groups


@pytest.mark.slow
@settings(max_examples=examples(80))
@given(block_groups_with_free_space(), st.sampled_from([300, 700, 5000, 256 * 1024]))
def test_the_free_space_tree_is_read_as_it_was_written(
    tree: tuple[list[Item], list[tuple[int, int]], list[tuple[int, int]]], room: int
) -> None:
    items, expected, groups = tree
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ioctl, "fs_info", answering(sectorsize=SECTOR))
        patch.setattr("btrkeep.treescan.search.ioctl", Kernel(tree10=items).ioctl)
        batches = list(free_space(0, buffer_size=room))
        assert [pair for batch in batches for pair in pairs(batch.vaddr, batch.length)] == expected
        assert [pair for batch in batches for pair in pairs(batch.group_vaddr, batch.group_length)] == groups
        count, length = groups[-1]
        last = list(free_space(0, count, count + length - 1, buffer_size=room))
        in_last = [each for each in expected if each[0] >= count]
        assert [pair for batch in last for pair in pairs(batch.vaddr, batch.length)] == in_last


def with_seen_paths(patch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that records by which path of the code each buffer is read."""
    seen: list[str] = []
    aligned, unaligned = free_space_module._aligned, free_space_module._unaligned

    def first(*words: Any) -> Any:
        answer = aligned(*words)
        if answer:
            seen.append("aligned")
        return answer

    def second(*words: Any) -> Any:
        seen.append("unaligned")
        return unaligned(*words)

    patch.setattr(free_space_module, "_aligned", first)
    patch.setattr(free_space_module, "_unaligned", second)
    return seen


def test_a_bitmap_whose_bits_look_like_headers_is_a_bitmap(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits equal four words of a header with its place, length and kind, at every place of the bitmap and as its last words."""
    seen = with_seen_paths(monkeypatch)
    for kind, size in ((INFO, 8), (EXTENT, 0), (BITMAP, 256)):
        for place in range(29):
            fake = struct.pack("=QQQLL", 7, 3 * SECTOR, SECTOR, kind, size)
            payload = (bytes(place * 8) + fake + bytes(256))[:256]
            bits = [byte >> number & 1 for byte in payload for number in range(8)]
            items = [
                ((0, INFO, 2 * BITMAP_REACH), bytes(8)),
                ((0, BITMAP, BITMAP_REACH), payload),
                ((BITMAP_REACH, EXTENT, SECTOR), b""),
            ]
            play(Kernel(tree10=items))
            [batch] = free_space(0)
            assert pairs(batch.vaddr, batch.length) == [*runs(bits, 0, SECTOR), (BITMAP_REACH, SECTOR)]
    assert set(seen) == {"unaligned"}  # otherwise this test proves nothing


def test_what_an_earlier_and_longer_answer_left_in_the_buffer_is_not_read_again(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = with_seen_paths(monkeypatch)
    items = [((number * 4 * SECTOR, EXTENT, SECTOR), b"") for number in range(25)]
    kernel = play(Kernel(tree10=items))
    batches = list(free_space(0, buffer_size=320))  # ten, ten, and five, which leave old items behind them in the buffer
    assert [len(batch.vaddr) for batch in batches] == [10, 10, 5]
    assert [vaddr for batch in batches for vaddr in batch.vaddr.tolist()] == [key[0] for key, _ in items]
    assert kernel.searches == 4
    assert set(seen) == {"aligned"}


def test_common_trees_take_the_fast_way_and_one_odd_bitmap_the_other(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = with_seen_paths(monkeypatch)
    even = [((0, INFO, BITMAP_REACH), bytes(8)), ((0, BITMAP, BITMAP_REACH), b"\x0f" * 256), ((BITMAP_REACH, EXTENT, SECTOR), b"")]
    play(Kernel(tree10=even))
    list(free_space(0))
    assert seen == ["aligned"]
    odd = 2048 * SECTOR // 16
    play(Kernel(tree10=[((0, INFO, odd), bytes(8)), ((0, BITMAP, odd), b"\xff" * 16)]))
    [batch] = free_space(0)
    assert pairs(batch.vaddr, batch.length) == [(0, odd)]
    assert seen == ["aligned", "unaligned"]


@pytest.mark.parametrize("room", [32, 64, 4096])
def test_no_byte_is_free_twice_when_the_tree_changes_under_the_scan(play: Any, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """A piece is taken from the begin of an extent that was just read; then the whole block group changes to bitmaps."""
    before = [((number * 16 * SECTOR, EXTENT, 8 * SECTOR), b"") for number in range(20)]
    kernel = play(Kernel(tree10=before))
    numbers: list[tuple[int, int]] = []
    answer, turn = kernel.ioctl, 0

    def changing(fd: int, number: int, buffer: bytearray) -> int:
        nonlocal turn
        turn += 1
        taken = turn % 7 * SECTOR
        kernel.trees[10] = [((vaddr + taken, EXTENT, length - taken), b"") for (vaddr, _, length), _ in before]
        return answer(fd, number, buffer)

    monkeypatch.setattr("btrkeep.treescan.search.ioctl", changing)
    for batch in free_space(0, buffer_size=room):
        numbers += pairs(batch.vaddr, batch.length)
    see_that_they_are_apart(numbers)
    if room < 64:
        assert turn > 20  # otherwise every extent was in one answer, and this test proves nothing


def test_no_byte_is_free_twice_when_extents_become_a_bitmap_within_one_answer(play: Any) -> None:
    items = [((number * 16 * SECTOR, EXTENT, 8 * SECTOR), b"") for number in range(20)]
    items.append(((4 * 16 * SECTOR + SECTOR, BITMAP, BITMAP_REACH), packed(([1] * 7 + [0] * 8 + [1]) * 128)))
    play(Kernel(tree10=items))
    [batch] = free_space(0)
    actual_pairs = pairs(batch.vaddr, batch.length)
    see_that_they_are_apart(actual_pairs)
    bits = {sector for vaddr, length in actual_pairs for sector in range(vaddr // SECTOR, (vaddr + length) // SECTOR)}
    assert bits == {sector for sector in range(65 + 2048) if sector % 16 < 8}


def see_that_they_are_apart(numbers: list[tuple[int, int]]) -> None:
    assert numbers
    assert all(length > 0 for _, length in numbers)
    assert all(count + length <= two for (count, length), (two, _) in pairwise(numbers))


# Chunks, device extents, block groups


def chunk_item(vaddr: int, length: int, kind: int, stripes: list[tuple[int, int]]) -> Item:
    head = struct.pack("=QQQQLLLHH", length, 2, 65536, kind, 65536, 65536, 4096, len(stripes), 1)
    return (256, 228, vaddr), head + b"".join(struct.pack("=QQ16s", devid, paddr, b"u" * 16) for devid, paddr in stripes)


@given(st.lists(st.tuples(st.integers(1, 2**20), st.integers(1, 5)), min_size=1, max_size=30), st.sampled_from([300, 4096, 2**18]))
def test_chunks_have_their_stripes_however_many(numbers: list[tuple[int, int]], room: int) -> None:
    expected, items, vaddr = [], [((1, 216, 1), b"d" * 98)], MIB
    for number, (size, count) in enumerate(numbers):
        stripes = [(each + 1, (number * 8 + each) << 30) for each in range(count)]
        expected.append((vaddr, size * 65536, 1 << number % 11, stripes))
        items.append(chunk_item(*expected[-1]))
        vaddr += size * 65536
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("btrkeep.treescan.search.ioctl", Kernel(tree3=items).ioctl)
        patch.setattr("btrkeep.treescan.block_groups.TreeSearch", lambda *words: search.TreeSearch(*words, buffer_size=room))
        actual_chunks = chunks(0)
    assert rows_of(actual_chunks.vaddr, actual_chunks.length, actual_chunks.type) == [each[:3] for each in expected]
    assert actual_chunks.stripes.tolist() == [len(stripes) for *_, stripes in expected]
    told_stripes = [(number, *stripe) for number, (*_, stripes) in enumerate(expected) for stripe in stripes]
    assert rows_of(actual_chunks.stripe_chunk, actual_chunks.stripe_devid, actual_chunks.stripe_paddr) == told_stripes


def test_device_extents_are_told_from_a_device_s_other_items(play: Any) -> None:
    extent = struct.pack("=QQQQ16s", 3, 256, 5 * MIB, 8 * MIB, b"u" * 16)
    items = [((0, 249, 1), b"s" * 40), ((1, 204, MIB), extent), ((1, 249, 0), b"x" * 40), ((2, 204, 3 * MIB), extent)]
    play(Kernel(tree4=items))
    results = device_extents(0)
    assert rows_of(results.devid, results.paddr, results.vaddr, results.length) == [
        (1, MIB, 5 * MIB, 8 * MIB),
        (2, 3 * MIB, 5 * MIB, 8 * MIB),
    ]


def test_a_block_group_that_was_removed_meanwhile_is_left_out_and_its_neighbours_keep_their_figures(play: Any) -> None:
    items = [((number * MIB, 192, MIB), struct.pack("=QQQ", number * 5, 256, 1 << number)) for number in (1, 3)]
    play(Kernel(tree2=[((MIB, 168, SECTOR), bytes(53)), *items]))
    block_groups = looked_up(0, np.array([1, 2, 3], "<u8") * MIB, np.full(3, MIB, "<u8"))
    assert rows_of(block_groups.vaddr, block_groups.length, block_groups.used, block_groups.flags) == [
        (MIB, MIB, 5, 2),
        (3 * MIB, MIB, 15, 8),
    ]
    nothing = looked_up(0, np.array([2], "<u8") * MIB, np.full(1, MIB, "<u8"))
    assert [len(column) for column in (nothing.vaddr, nothing.length, nothing.used, nothing.flags)] == [0] * 4


def test_used_is_the_rest_but_where_a_copy_of_the_superblock_lies_it_is_looked_up(play: Any) -> None:
    """The copies lie at 64 KiB, 64 MiB and 256 GiB of each device."""
    places = [(MIB, 8 * MIB), (60 * MIB, 8 * MIB), (68 * MIB, 8 * MIB), (256 * 1024 * MIB - 4 * MIB, 8 * MIB), (2**40, MIB)]
    items = [chunk_item(number << 40, length, 1, [(1, paddr)]) for number, (paddr, length) in enumerate(places)]
    groups = [((number << 40, 192, length), struct.pack("=QQQ", 4242, 256, 1)) for number, (_, length) in enumerate(places)]
    play(Kernel(tree3=items, tree2=groups))
    chunk = chunks(0)
    free = np.full(len(places), 3 * SECTOR, "<u8")
    rest = [length - 3 * SECTOR for _, length in places]
    expected = [rest[0], 4242, rest[2], 4242, rest[4]]
    assert used_from_free_space(0, chunk, chunk.vaddr, free).tolist() == expected
    several = np.array([1, 2, 4])
    assert used_from_free_space(0, chunk, chunk.vaddr[several], free[several]).tolist() == [expected[number] for number in several]


# Extents


DATA_REF, TREE_REF, SHARED_TREE, SHARED_DATA, OWNER = 178, 176, 182, 184, 172


def extent_item(refs: int, flags: int, *parts: bytes) -> bytes:
    return struct.pack("=QQQ", refs, 9, flags) + b"".join(parts)


def inline(kind: int, offset: int, rest: int = 0) -> bytes:
    return struct.pack("=BQ", kind, offset) + b"\xee" * rest


KINDS_OF_EXTENTS = {
    # name: (item type, offset in its key, payload), (length, refs, is tree block, owner)
    "data": ((168, 8192, extent_item(3, 1, inline(DATA_REF, 300, 20))), (8192, 3, False, 300)),
    "data of a quota's owner": ((168, 8192, extent_item(1, 1, inline(OWNER, 301), inline(DATA_REF, 5, 20))), (8192, 1, False, 301)),
    "shared data": ((168, 4096, extent_item(2, 1, inline(SHARED_DATA, 30 * MIB, 4))), (4096, 2, False, SHARED)),
    "data with its references elsewhere": ((168, 4096, extent_item(900, 1)), (4096, 900, False, SHARED)),
    "tree block": ((169, 0, extent_item(1, 2, inline(TREE_REF, 5))), (16384, 1, True, 5)),
    "shared tree block": ((169, 1, extent_item(2, 258, inline(SHARED_TREE, 31 * MIB))), (16384, 2, True, SHARED)),
    "tree block, not skinny": ((168, 16384, extent_item(1, 2, b"\xdd" * 18, inline(TREE_REF, 7))), (16384, 1, True, 7)),
    "tree block, not skinny, no reference": ((168, 16384, extent_item(4, 2, b"\xb0" * 18)), (16384, 4, True, SHARED)),
}


@given(st.lists(st.sampled_from(sorted(KINDS_OF_EXTENTS)), min_size=1, max_size=30), st.sampled_from([130, 400, 2**18]))
def test_extents_have_their_length_references_and_owner(names: list[str], room: int) -> None:
    items: list[Item] = [((2, 192, MIB), bytes(24))]
    expected = []
    for number, name in enumerate(names):
        vaddr, ((kind, offset, payload), result) = (number + 3) * MIB, KINDS_OF_EXTENTS[name]
        items += [((vaddr, kind, offset), payload), ((vaddr, 178, 1), b"\xa8" * 28), ((vaddr, 192, MIB), bytes(24))]
        expected.append((vaddr, *result))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ioctl, "fs_info", answering(nodesize=16384))
        patch.setattr("btrkeep.treescan.search.ioctl", Kernel(tree2=items).ioctl)
        rows = [row for batch in extents(0, buffer_size=room) for row in extent_rows(batch)]
        assert rows == expected
        middle = expected[len(expected) // 2 :]
        values = [row for batch in extents(0, middle[0][0], middle[0][0], buffer_size=room) for row in extent_rows(batch)]
        assert values == middle[:1]


def extent_rows(batch: Extents) -> list[tuple[int, ...]]:
    assert set(batch.generation.tolist()) <= {9}
    return rows_of(batch.vaddr, batch.length, batch.refs, batch.is_tree_block, batch.owner)


@settings(max_examples=examples(80))
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40)), min_size=1, max_size=6),
    st.sets(st.integers(0, 280), max_size=60),
    st.sampled_from([200, 1000, 2**18]),
)
def test_gaps_are_what_no_extent_covers(places: list[tuple[int, int]], edges: set[int], room: int) -> None:
    """Compared sector by sector: the gaps of a block group are its parts without an extent, and gaps of two block groups are not
    joined.
    """
    groups, at = [], 1
    for apart, size in places:
        groups.append((at + apart, size))
        at += apart + size
    covered, items = set[int](), list[Item]()
    bounds = sorted({*edges, *(begin for begin, _ in groups), *(begin + size for begin, size in groups)})
    for number, (begin, end) in enumerate(pairwise(bounds)):  # no extent crosses the border of a block group
        if number % 3:
            items.append(((begin * SECTOR, 168, (end - begin) * SECTOR), extent_item(1, 1, inline(DATA_REF, 5, 20))))
            covered.update(range(begin, end))
    vaddr, length = (np.array(column, "<u8") * SECTOR for column in zip(*groups, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ioctl, "fs_info", answering(nodesize=16384))
        patch.setattr("btrkeep.treescan.search.ioctl", Kernel(tree2=items).ioctl)
        numbers = [pair for batch in gaps(0, vaddr, length, buffer_size=room) for pair in pairs(*batch)]
    expected = []
    for begin, size in groups:
        bits = [int(sector not in covered) for sector in range(begin, begin + size)]
        expected += runs(bits, begin * SECTOR, SECTOR)
    assert numbers == expected


def test_without_block_groups_there_are_no_gaps() -> None:
    none = np.zeros(0, "<u8")
    assert list(gaps(-1, none, none)) == []


def test_an_empty_tree_of_free_space_gives_no_batch(play: Any) -> None:
    play(Kernel(tree10=[]))
    assert list[FreeSpace](free_space(0)) == []
