"""The data from which a picture is drawn, compared with python-btrfs and sysfs item by item."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from heatmap.filesystem_state import DATA, FilesystemState
from heatmap.state_reader import read_state
from tests.balancer.program import score_of
from tests.beds import work
from tests.beds.shapes import MIB, SHAPES, Read, rows, settled, take_turns

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


def see_it_all(read: Read, state: FilesystemState) -> None:
    theirs = read.theirs
    assert (state.fsid, state.nodesize, state.sectorsize) == (str(theirs.fsid), theirs.nodesize, theirs.sectorsize)
    assert rows(state.devid, state.total_bytes) == [(device.devid, device.total_bytes) for device in theirs.devices()]
    groups = [(block_group.vaddr, block_group.length, block_group.used, block_group.flags) for block_group in theirs.block_groups()]
    assert rows(state.bg_vaddr, state.bg_length, state.bg_used, state.bg_flags) == groups
    extents = [(dev_extent.devid, dev_extent.paddr, dev_extent.vaddr, dev_extent.length) for dev_extent in theirs.dev_extents()]
    assert rows(state.de_devid, state.de_paddr, state.de_vaddr, state.de_length) == extents
    chunks = [(chunk.vaddr, chunk.length, chunk.type, len(chunk.stripes)) for chunk in theirs.chunks()]
    assert rows(state.ch_vaddr, state.ch_length, state.ch_type, state.ch_stripes) == chunks
    stripes = [(at, each.devid, each.offset) for at, row in enumerate(theirs.chunks()) for each in row.stripes]
    assert rows(state.st_chunk, state.st_devid, state.st_paddr) == stripes


def see_scores(read: Read, state: FilesystemState) -> None:
    assert state.score is not None
    for vaddr, length, flags, score in rows(state.bg_vaddr, state.bg_length, state.bg_flags, state.score):
        if flags & DATA:
            free = [
                (free_space_extent.vaddr, free_space_extent.length)
                for free_space_extent in read.theirs.free_space_extents(vaddr, vaddr + length - 1)
            ]
            assert score == pytest.approx(score_of(free, length), rel=1e-6)
        else:
            assert np.isnan(score)


def see_generations(read: Read, state: FilesystemState) -> None:
    assert state.generation is not None
    for vaddr, length, generation in rows(state.bg_vaddr, state.bg_length, state.generation):
        items = [
            (getattr(extent, "length", state.nodesize), extent.generation)
            for extent in read.theirs.extents(vaddr, vaddr + length - 1)
        ]
        size = sum(size for size, _ in items)
        assert generation == (round(sum(size * number for size, number in items) / size) if size else 0)


@pytest.mark.parametrize("name", ["dup", "raid10", "mixed", "no free space tree"])
def test_a_state_is_what_python_btrfs_finds_item_by_item(make_btrfs: Callable[..., Path], name: str) -> None:
    shape = SHAPES[name]
    point = make_btrfs(size=shape.size, devices=shape.devices, mkfs=("-L", "a label", *shape.mkfs), options=shape.options)
    (point / "file").write_bytes(os.urandom(9000))
    take_turns(point, "fine", [3, 1, 4, 1, 5, 9, 2, 6], 20 * MIB)
    work("btrfs", "filesystem", "sync", point)
    (point / "later").write_bytes(os.urandom(900_000))
    with settled(point) as read:
        begun = datetime.now(UTC)
        state = read_state(read.fd, scores=True, generations=True)
        assert begun <= state.taken <= datetime.now(UTC)
        assert state.label == "a label"
        see_it_all(read, state)
        see_generations(read, state)
        if not shape.options:
            see_scores(read, state)
        plain = read_state(read.fd)
        assert plain.score is plain.generation is None
    assert state.generation is not None
    assert len({*state.generation.tolist()}) > (name != "mixed")  # "mixed" has only one block group with data


def test_a_state_of_a_block_group_tree_is_too(with_block_group_tree: Path) -> None:
    take_turns(with_block_group_tree, "fine", [3, 1, 4, 1, 5, 9, 2, 6], 20 * MIB)
    with settled(with_block_group_tree) as read:
        state = read_state(read.fd, scores=True)
        see_it_all(read, state)
        see_scores(read, state)
