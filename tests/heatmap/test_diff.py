"""The differences between two states: where the test knows every byte, and on a real filesystem."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from btrkeep.errors import OperatorError
from heatmap.colourings import VISIONS, distances
from heatmap.diff import as_json, difference, lines
from heatmap.diff_picture import colours, picture
from heatmap.filesystem_state import FilesystemState
from heatmap.recorded import save
from tests.beds import work
from tests.beds.shapes import MIB
from tests.heatmap.program import heatmap
from tests.heatmap.states import GIB, Pool

BEFORE = Pool((16 * GIB, 8 * GIB), filled=0.7, seed=9).state()
_BG = ("bg_vaddr", "bg_length", "bg_used", "bg_flags", "score", "generation")
_CH = ("ch_vaddr", "ch_length", "ch_type", "ch_stripes")


def without(state: FilesystemState, gone: int) -> FilesystemState:
    """Returns the state without its block group number `gone`, its chunk and device extent."""
    kept, vaddr = np.arange(len(state.bg_vaddr)) != gone, state.bg_vaddr[gone]
    pieces = state.de_vaddr != vaddr
    of_group = {name: getattr(state, name)[kept] for name in (*_BG, *_CH, "st_devid", "st_paddr")}
    of_device = {name: getattr(state, name)[pieces] for name in ("de_devid", "de_paddr", "de_vaddr", "de_length")}
    return replace(state, **of_group, **of_device, st_chunk=np.arange(int(kept.sum())))


def changed() -> FilesystemState:
    """Returns the state of a day later: 3 is gone, 5 is fuller by 4096, 6 emptier by 8192, and the piece of 7 is elsewhere."""
    used, paddr, de_paddr = BEFORE.bg_used.copy(), BEFORE.st_paddr.copy(), BEFORE.de_paddr.copy()
    used[5], used[6] = used[5] + np.uint64(4096), used[6] - np.uint64(8192)
    moved = np.flatnonzero(BEFORE.de_vaddr == BEFORE.bg_vaddr[7])
    de_paddr[moved] += np.uint64(512 * MIB)
    paddr[7] += np.uint64(512 * MIB)
    later = BEFORE.taken + timedelta(days=1, hours=2)
    return without(replace(BEFORE, bg_used=used, st_paddr=paddr, de_paddr=de_paddr, taken=later), 3)


@pytest.fixture(scope="module", autouse=True)
def _some_room() -> None:
    """Makes number 5 not full, and number 6 not empty."""
    BEFORE.bg_used[5], BEFORE.bg_used[6] = 100 * MIB, 200 * MIB


def test_what_changed_is_found_and_nothing_else() -> None:
    answer = as_json(difference(BEFORE, changed()))
    vaddr = BEFORE.bg_vaddr.tolist()
    assert [
        (block_group["change"], block_group["vaddr"], block_group["used_after"] - block_group["used_before"])
        for block_group in answer["block_groups"]
    ] == [
        ("gone", vaddr[3], -int(BEFORE.bg_used[3])),
        ("fuller", vaddr[5], 4096),
        ("emptier", vaddr[6], -8192),
    ]
    old, new = int(BEFORE.st_paddr[7]), int(BEFORE.st_paddr[7]) + 512 * MIB
    assert [
        (device_extent["change"], device_extent["vaddr"], device_extent["paddr"]) for device_extent in answer["device_extents"]
    ] == [
        ("left", vaddr[7], old),
        ("came", vaddr[7], new),
    ]
    assert answer["devices"] == []
    assert answer["summary"]["gone"] == {"block_groups": 1, "used": -int(BEFORE.bg_used[3])}


def test_the_other_way_round_what_was_gone_is_new() -> None:
    state_difference = difference(changed(), BEFORE)
    assert state_difference.changes.kind.tolist() == ["new", "emptier", "fuller"]
    assert "1d 2h back" in "\n".join(lines(state_difference, 5))


def test_a_state_does_not_differ_from_itself() -> None:
    state_difference = difference(BEFORE, BEFORE)
    assert len(state_difference.changes.vaddr) == len(state_difference.moves.vaddr) == len(state_difference.devices) == 0
    rgb, _ = picture(BEFORE, BEFORE)
    assert (rgb[..., :1] == rgb).all()
    assert rgb.max() == 58


def test_a_block_group_that_is_used_again_with_another_length_is_gone_and_new() -> None:
    length = BEFORE.bg_length.copy()
    length[2] //= 2
    state_difference = difference(BEFORE, replace(BEFORE, bg_length=length))
    assert sorted(state_difference.changes.kind.tolist()) == ["gone", "new"]


def test_devices_that_come_go_and_grow_are_named() -> None:
    total = BEFORE.total_bytes.copy()
    total[0] += np.uint64(GIB)
    larger = replace(BEFORE, devid=np.array([1, 3], np.uint64), total_bytes=total)
    assert difference(BEFORE, larger).devices == [(1, 16 * GIB, 17 * GIB), (2, 8 * GIB, 0), (3, 0, 8 * GIB)]
    words = "\n".join(lines(difference(BEFORE, larger), 0))
    assert "device 2: gone, 8.00 GiB" in words
    assert "device 1: 16.0 GiB -> 17.0 GiB" in words


def test_two_filesystems_are_not_compared() -> None:
    with pytest.raises(OperatorError, match="two filesystems"):
        difference(BEFORE, replace(BEFORE, fsid="another"))


def test_the_picture_shows_each_change_where_it_is() -> None:
    rgb, grid = picture(BEFORE, changed(), order=6, size=6, curve="linear")
    table = colours()
    along = rgb.reshape(-1, 3)
    offset = {1: 0, 2: 16 * GIB}

    def at(state: FilesystemState, number: int) -> list[int]:
        first = offset[int(state.st_devid[number])] + int(state.st_paddr[number]) + GIB // 2
        return along[int(first / grid.bytes_per_pixel)].tolist()

    assert at(BEFORE, 3) == list(table["gone"])
    fuller, emptier, same = at(BEFORE, 5), at(BEFORE, 6), at(BEFORE, 9)
    for rgb_found, kind in ((fuller, "fuller"), (emptier, "emptier")):
        others = {other: np.abs(np.array(rgb_found) - np.array(colour)).sum() for other, colour in table.items()}
        toward = np.array(table[kind]) - np.array(same)
        step = np.array(rgb_found) - np.array(same)
        assert 0.3 < float(step @ toward / (toward @ toward)) < 0.45, others
    rgb, _ = picture(changed(), BEFORE, order=6, size=6, curve="linear")
    along = rgb.reshape(-1, 3)
    assert at(BEFORE, 3) == list(table["new"])


def test_the_colours_of_changes_are_distinct_with_each_colour_vision() -> None:
    table = np.array([*colours().values(), (58, 58, 58), (0, 0, 0)], np.uint8)
    assert len(VISIONS) == 4
    assert (distances(table, table) + np.eye(len(table))).min() > 0.1


def test_the_command_prints_words_json_and_a_picture(tmp_path: Path) -> None:
    path, two = tmp_path / "one.heatmap", tmp_path / "two.heatmap"
    save(BEFORE, str(path))
    save(changed(), str(two))
    words = heatmap("diff", path, two, "-o", tmp_path / "x.png", "--legend", "--size", "8", "--top", "2")
    assert re.search(r"^gone +1 block group +-", words.stdout, re.MULTILINE)
    assert re.search(r"^moved +1 device extent$", words.stdout, re.MULTILINE)
    assert len(words.stdout.split("VADDR")[1].splitlines()) == 3
    with Image.open(tmp_path / "x.png") as image:
        assert image.width == 256
        assert image.height > 256
    assert json.loads(heatmap("diff", path, two, "--json").stdout) == as_json(difference(BEFORE, changed()))
    failed = heatmap("diff", path, tmp_path / "nothing", check=False)
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[0] == f"error: {tmp_path / 'nothing'} cannot be read: No such file or directory"


@pytest.mark.btrfs
@pytest.mark.root
def test_a_real_filesystem_that_was_filled_emptied_and_balanced(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    """Compared with the output of `btrfs` before and after: the used bytes exactly, and the existing block groups."""
    point = make_btrfs(size="1G")
    (point / "stays").write_bytes(bytes(70 * MIB))
    (point / "goes").write_bytes(bytes(90 * MIB))
    before = _recorded(point, tmp_path / "one.heatmap")
    (point / "goes").unlink()
    (point / "comes").write_bytes(bytes(20 * MIB))
    work("btrfs", "balance", "start", "--full-balance", point)
    after = _recorded(point, tmp_path / "two.heatmap")
    answer = json.loads(heatmap("diff", tmp_path / "one.heatmap", tmp_path / "two.heatmap", "--json").stdout)
    for key, numbers in (("before", before), ("after", after)):
        assert answer[key]["used"] == numbers["used"]
        assert answer[key]["length"] == numbers["total"]
        assert answer[key]["allocated"] == numbers["allocated"]
    gone = {block_group["vaddr"] for block_group in answer["block_groups"] if block_group["change"] == "gone"}
    new = {block_group["vaddr"] for block_group in answer["block_groups"] if block_group["change"] == "new"}
    assert gone == before["vaddr"] - after["vaddr"]
    assert new == after["vaddr"] - before["vaddr"]
    assert gone
    assert new


def _recorded(point: Path, path: Path) -> dict:
    """Records the state and returns btrfs' figures of that moment."""
    work("btrfs", "filesystem", "sync", point)
    work("btrfs", "filesystem", "sync", point)
    heatmap("--record-to", path, "-q", "-o", path.with_suffix(".png"), point)
    listed = work("btrfs", "filesystem", "df", "--raw", point).stdout
    pairs = [tuple(map(int, pair)) for pair in re.findall(r"^(?!GlobalReserve).*total=(\d+), used=(\d+)", listed, re.MULTILINE)]
    device = work("findmnt", "-no", "SOURCE", point).stdout.strip()
    dumped = work("btrfs", "inspect-internal", "dump-tree", "-t", "chunk", device).stdout
    allocated = re.search(r"bytes_used (\d+)", dumped)
    assert allocated
    return {
        "total": sum(total for total, _ in pairs),
        "used": sum(used for _, used in pairs),
        "allocated": int(allocated[1]),
        "vaddr": set(map(int, re.findall(r"FIRST_CHUNK_TREE CHUNK_ITEM (\d+)", dumped))),
    }


@pytest.mark.btrfs
@pytest.mark.root
def test_what_was_recorded_is_drawn_as_it_was_then(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    point = make_btrfs(size="600M")
    (point / "x").write_bytes(bytes(50 * MIB))
    work("btrfs", "filesystem", "sync", point)
    then = tmp_path / "then"
    then.mkdir()
    heatmap("--record", "-q", "-o", then, "--size", "6", point)
    [state] = then.glob("*.heatmap")
    [drawn] = then.glob("*.png")
    assert state.stem == drawn.stem
    for colour in ("score", "age", "type", "profile"):
        live = heatmap(
            "--colour", colour, "-q", "-o", tmp_path / f"{colour}.png", "--record-to", tmp_path / f"{colour}.heatmap", point
        )
        assert live.stdout == ""
    (point / "x").unlink()
    work("btrfs", "balance", "start", "--full-balance", point)
    heatmap("draw", state, "-q", "-o", tmp_path / "again.png", "--size", "6")
    assert (tmp_path / "again.png").read_bytes() == drawn.read_bytes()
    for colour in ("score", "age", "type", "profile"):
        heatmap("draw", tmp_path / f"{colour}.heatmap", "--colour", colour, "-q", "-o", tmp_path / "again.png")
        assert (tmp_path / "again.png").read_bytes() == (tmp_path / f"{colour}.png").read_bytes()
    heatmap("draw", state, "-q", "--colour", "score", "-o", tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "score.png").read_bytes()
