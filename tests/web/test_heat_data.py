"""Recorded states as the dashboard finds and draws them: compared with files made here, and the program's own pictures."""

import gzip
import io
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from balancer.score import BAD
from heatmap.filesystem_state import DATA
from heatmap.recorded import save
from tests.beds.cli import TOP
from tests.heatmap.states import FIRST_DAY, FSID, GIB, growing
from web.pool.pictures import LARGEST, DrawingRequest, Painter, RecordedStates, wish_of
from web.pool.scores import BOUNDS, distribution, groups, nearest, neighbours, one_group
from web.result_cache import ResultCache

DAYS = 6
PURE = """
import sys
import web.pool.pictures, web.pool.scores
held = ("btrfs", "click", "rich", "flask", "backupd")
held += ("btrkeep.pool", "btrkeep.process", "btrkeep.treescan")
pure = ("btrkeep.pool", "btrkeep.pool.space_by_profile")
print([name for name in sys.modules if name not in pure and name.startswith(held)])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with six days of a filesystem that gets a second device half way, and files that are not states."""
    path = tmp_path_factory.mktemp("states") / "pictures"
    path.mkdir()
    states = growing(DAYS)
    for number, state in enumerate(states):
        save(replace(state, taken=FIRST_DAY + timedelta(days=number)), str(path / f"night {number}.heatmap"))
    save(replace(states[0], fsid="another"), str(path / "another.heatmap"))
    (path / "damaged.heatmap").write_bytes(b"\x89heatmap" + bytes(100))
    (path / "text.heatmap").write_text("no state")
    (path / ".hidden.heatmap").write_bytes((path / "night 0.heatmap").read_bytes())
    elsewhere = path.parent / "elsewhere.heatmap"
    save(replace(states[0], taken=FIRST_DAY + timedelta(days=90)), str(elsewhere))
    (path / "link.heatmap").symlink_to(elsewhere)
    (path / "folder.heatmap").mkdir()
    os.mkfifo(path / "pipe.heatmap")
    return path


def test_a_folder_that_cannot_be_read_is_said_and_no_error(tmp_path: Path) -> None:
    assert RecordedStates(tmp_path / "missing").gallery().skipped_states == ()
    (tmp_path / "file").touch()
    gallery = RecordedStates(tmp_path / "file").gallery()
    assert (gallery.recorded, gallery.skipped_states) == ((), ("the folder of recorded states cannot be read: Not a directory",))


def test_what_drawing_a_recorded_state_loads_is_pure() -> None:
    done = subprocess.run([sys.executable, "-c", PURE], cwd=TOP, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_states_of_one_filesystem_are_found_in_order_and_others_are_told_of(folder: Path) -> None:
    gallery = RecordedStates(folder).gallery()
    assert [recorded.taken for recorded in gallery.recorded] == [FIRST_DAY + timedelta(days=number) for number in range(DAYS)]
    assert [recorded.name for recorded in gallery.recorded] == [f"night {number}.heatmap" for number in range(DAYS)]
    assert sorted(line.split(" ")[0] for line in gallery.skipped_states) == ["1", "damaged.heatmap:", "text.heatmap:"]
    assert not any(str(folder) in line for line in gallery.skipped_states)
    assert RecordedStates(folder).gallery("another").recorded[0].name == "another.heatmap"
    assert RecordedStates(folder / "not there").gallery().recorded == ()


def test_a_name_from_outside_is_looked_for_in_the_list_and_never_becomes_a_path(folder: Path) -> None:
    gallery = RecordedStates(folder).gallery()
    for name in ("../pictures/night 0", "night 0.heatmap", str(folder / "night 0.heatmap"), "", "2025-11-21T220000Z/", "link"):
        assert gallery.at(name) is None
    assert gallery.at("2025-11-22T220000Z") == 1
    assert gallery.at(None) == DAYS - 1


def test_a_file_that_was_replaced_is_read_again(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "night.heatmap"
    copy.write_bytes((folder / "night 1.heatmap").read_bytes())
    painter = Painter(tmp_path)
    before = painter.states.gallery()
    first = painter.png(before, before.recorded[0], DrawingRequest())
    other = tmp_path / ".new"
    other.write_bytes((folder / "night 5.heatmap").read_bytes())
    other.rename(copy)
    after = painter.states.gallery()
    assert after.recorded[0].taken != before.recorded[0].taken
    assert painter.png(after, after.recorded[0], DrawingRequest()) != first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sort", "curve", "colour"), [("virtual", "hilbert", "usage"), ("physical", "snake", "score"), ("virtual", "linear", "age")]
)
def test_the_picture_is_the_one_that_the_program_draws(folder: Path, tmp_path: Path, sort: str, curve: str, colour: str) -> None:
    painter = Painter(folder)
    gallery = painter.states.gallery()
    recorded = gallery.recorded[-1]
    words = ("--sort", sort, "--curve", curve, "--colour", colour, "--size", "8", "--map", str(tmp_path / "map"), "-o", "-")
    command = [sys.executable, "-m", "heatmap", "draw", str(folder / recorded.name), *words]
    theirs = subprocess.run(command, cwd=TOP, capture_output=True, check=True).stdout
    wish = DrawingRequest(sort, curve, colour, 8)
    assert (_pixels(painter.png(gallery, recorded, wish)) == _pixels(theirs)).all()
    assert json.loads(gzip.decompress(painter.map(gallery, recorded, wish))) == json.loads((tmp_path / "map").read_text())


def _pixels(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def test_in_a_timelapse_a_place_stays_the_same_place(folder: Path) -> None:
    """A second device was added half way: the first pictures drawn alone have another scale, but not in the timelapse."""
    painter = Painter(folder)
    gallery = painter.states.gallery()
    first, last = gallery.recorded[0], gallery.recorded[-1]
    alone, steady = DrawingRequest("physical", size=8), DrawingRequest("physical", size=8, steady=True)
    assert painter.grid(gallery, first, alone).total_bytes == 64 * GIB
    assert painter.grid(gallery, first, steady).total_bytes == painter.grid(gallery, last, steady).total_bytes == 96 * GIB
    image = _pixels(painter.png(gallery, first, steady))
    assert not image[:, image.shape[1] * 2 // 3 :].all()  # the place of the second device is empty then
    assert painter.png(gallery, first, alone) != painter.png(gallery, first, steady)


def test_what_a_query_asks_for_is_within_bounds() -> None:
    hostile = {"sort": "../x", "curve": "<script>", "colour": "", "size": "99999999999999999999"}
    assert wish_of(hostile) == DrawingRequest(size=LARGEST)
    assert wish_of({"size": "-1"}) == wish_of({"size": "1e9"}) == wish_of({"size": "\u0661"}) == DrawingRequest()
    assert wish_of({"size": "0"}).size == 6
    assert wish_of({"sort": "physical", "colour": "score"}).words() == {"sort": "physical", "colour": "score"}


def test_only_so_many_bytes_are_kept_and_what_is_asked_for_again_is_not_made_again() -> None:
    made: list[int] = []
    kept = ResultCache(most=1000, size=len)

    def make(number: int) -> bytes:
        made.append(number)
        return bytes(400)

    for number in (1, 2, 1, 3, 1, 2):
        kept.get(number, lambda: make(number))  # noqa: B023 - it is called at once
    assert made == [1, 2, 3, 2]
    assert len(kept.get("large", lambda: bytes(5000))) == 5000
    assert kept._total == 5000  # nothing else fits in addition


def test_many_threads_that_want_the_same_picture_have_it_drawn_once(folder: Path) -> None:
    painter, drawn = Painter(folder), []
    gallery = painter.states.gallery()
    threads = [
        threading.Thread(target=lambda: drawn.append(id(painter.png(gallery, gallery.recorded[0], DrawingRequest()))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawn) == 8
    assert len(set(drawn)) == 1


def test_block_groups_are_ranked_and_paged() -> None:
    state = growing(3)[-1]
    assert state.score is not None
    whole = len(state.bg_vaddr)
    page = groups(state, "score", 0)
    scores = [group.score for group in page.groups if group.score is not None]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == pytest.approx(float(np.nanmax(state.score)))
    assert page.total == whole
    assert [group.vaddr for group in groups(state, "vaddr", 10**9).groups][-1] == int(state.bg_vaddr[-1])
    assert groups(state, "no such order", -5).offset == 0
    assert groups(replace(state, score=None), "score", 0).order == "vaddr"


def test_a_block_group_is_found_by_its_address_alone_and_others_are_near() -> None:
    state = growing(2)[-1]
    vaddrs = state.bg_vaddr.tolist()
    block_group = one_group(state, vaddrs[3])
    assert block_group
    assert (block_group.vaddr, block_group.length, block_group.used) == (vaddrs[3], int(state.bg_length[3]), int(state.bg_used[3]))
    assert one_group(state, vaddrs[3] + 1) is None
    assert one_group(state, 2**64 - 1) is None
    assert nearest(state, vaddrs[3] + 1)[0] == vaddrs[3]
    assert neighbours(state, vaddrs[0]) == (None, vaddrs[1])
    assert neighbours(state, vaddrs[-1]) == (vaddrs[-2], None)
    assert nearest(state, 2**64 - 1)[0] == vaddrs[-1]


def test_the_distribution_counts_each_data_block_group_once() -> None:
    state = growing(4)[-1]
    result = distribution(state)
    assert result
    assert state.score is not None
    is_data = (state.bg_flags & np.uint64(DATA)) != 0
    by_hand = [0] * len(BOUNDS)
    for score in state.score[is_data].tolist():
        by_hand[max(at for at, least in enumerate(BOUNDS) if score >= least)] += 1
    assert [score_class.block_groups for score_class in result.classes] == by_hand
    assert (
        sum(score_class.score for score_class in result.classes)
        == pytest.approx(result.score)
        == pytest.approx(float(np.nansum(state.score)), rel=1e-4)
    )
    assert distribution(replace(state, score=None)) is None


def test_what_is_bad_is_what_the_balancer_calls_bad() -> None:
    assert BOUNDS[-1] == BAD


def test_the_states_are_of_the_filesystem_that_is_asked_for(folder: Path) -> None:
    assert {recorded.name for recorded in RecordedStates(folder).gallery(FSID).recorded} == {
        f"night {number}.heatmap" for number in range(DAYS)
    }
