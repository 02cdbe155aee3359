"""Timelapses: other programs decode the picture of each time from them."""

import json
import os
import shutil
import stat
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from btrkeep.errors import OperatorError
from heatmap.animation import Palette, ffmpeg_command
from heatmap.colourings import COLOUR_SCHEMES
from heatmap.filesystem_state import FilesystemState
from heatmap.picture import image_of
from heatmap.recorded import save
from heatmap.timelapse import TimelapseSummary, frame_sequence, gather, timelapse
from heatmap.whole_filesystem import overview
from tests.beds import TOP, work
from tests.heatmap.program import heatmap
from tests.heatmap.states import FIRST_DAY, GIB, growing

DAYS = growing(6)
USAGE = COLOUR_SCHEMES["usage"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the states of six days; the second device is added on the fourth."""
    path = tmp_path / "states"
    path.mkdir()
    for number, state in enumerate(DAYS):
        save(state, str(path / f"{9 - number}.heatmap"))  # the order of names does not matter
    return path


def _count(image: Image.Image) -> int:
    return getattr(image, "n_frames", 1)


def frames(path: Path) -> list[NDArray[np.uint8]]:
    with Image.open(path) as image:
        rows = []
        for number in range(_count(image)):
            image.seek(number)
            rows.append(np.array(image.convert("RGB")))
    return rows


def made(folder: Path, name: str, **wishes: object) -> tuple[TimelapseSummary, list[NDArray[np.uint8]]]:
    output = folder.parent / name
    result = timelapse(folder, output, USAGE, **wishes)  # type: ignore[arg-type]
    return result, frames(output)


def as_if(state: FilesystemState, *, size: int) -> NDArray[np.uint8]:
    """Returns the picture of a state, drawn to the scale of the last day."""
    larger = replace(state, devid=DAYS[-1].devid, total_bytes=DAYS[-1].total_bytes)
    drawn = overview(larger, size=size)
    return np.asarray(image_of(drawn.runs, drawn.grid))


def test_a_webp_shows_exactly_the_picture_of_each_day_to_the_scale_of_the_largest(folder: Path) -> None:
    result, shown = made(folder, "x.webp", size=7)
    assert (result.frames, result.first, result.last) == (6, DAYS[0].taken, DAYS[-1].taken)
    assert len(DAYS[0].devid) == 1
    for frame, state in zip(shown, DAYS, strict=True):
        assert frame.shape == (result.height, result.width, 3)
        assert (frame[:128] == as_if(state, size=7)).all()


@pytest.mark.slow
def test_a_gif_shows_it_as_well_as_255_colours_can(folder: Path) -> None:
    _, shown = made(folder, "x.gif", size=8)
    for frame, state in zip(shown, DAYS, strict=True):
        off = np.abs(frame[:256].astype(int) - as_if(state, size=8))
        assert off.max() <= 16
        assert off.mean() < 2


def test_dates_are_below_the_picture_and_differ_from_day_to_day(folder: Path) -> None:
    _, dated = made(folder, "x.webp", size=8)
    result, plain = made(folder, "y.webp", size=8, dated=False)
    assert (result.width, result.height) == (256, 256)
    for frame, other in zip(dated, plain, strict=True):
        assert (frame[:256] == other).all()
    strips = {frame[256:].tobytes() for frame in dated}
    assert len(strips) == len(DAYS)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["gif", "webp"])
@pytest.mark.parametrize("fps", [3.0, 7.0, 24.0, 50.0])
def test_it_lasts_as_long_as_it_should(folder: Path, form: str, fps: float) -> None:
    made(folder, f"x.{form}", size=6, fps=fps)
    with Image.open(folder.parent / f"x.{form}") as image:
        durations = []
        for number in range(_count(image)):
            image.seek(number)
            image.load()
            durations.append(image.info["duration"])
        assert image.info["loop"] == 0
    if form == "webp":  # Pillow gives the time since the frame before
        durations = durations[: len(DAYS)]
    assert sum(durations) == pytest.approx(1000 * (5 / fps + 2), abs=11)
    assert max(durations[:-1]) - min(durations[:-1]) <= 10


@pytest.mark.slow
def test_days_on_which_nothing_changed_have_their_frames(folder: Path) -> None:
    sizes = {}
    for name in ("x.gif", "x.webp"):
        made(folder, name, size=6, dated=False)
        sizes[name] = (folder.parent / name).stat().st_size
    for number in range(3):
        save(replace(DAYS[-1], taken=DAYS[-1].taken + timedelta(minutes=number + 1)), str(folder / f"again{number}.heatmap"))
    for name in ("x.gif", "x.webp"):
        _, shown = made(folder, name, size=6, dated=False)
        assert len(shown) == 9
        assert (shown[-1] == shown[5]).all()
        assert (folder.parent / name).stat().st_size < sizes[name] + 3 * 100


def picture(path: Path, edge: int, height: int, colour: int, changed: datetime | None = None) -> None:
    Image.new("RGB", (edge, height), (colour, colour, colour)).save(path)
    if changed:
        os.utime(path, (changed.timestamp(),) * 2)


def test_pictures_come_in_the_order_of_their_names_or_else_of_their_last_change(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    begin = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    picture(folder / f"fsid_x_at_{begin + 200}.png", 64, 64, 30, datetime(2020, 1, 1, tzinfo=UTC))
    picture(folder / f"fsid_x_at_{begin}.png", 128, 150, 10)
    picture(folder / "b.png", 32, 32, 20, datetime.fromtimestamp(begin + 100, UTC))
    result, shown = made(folder, "x.webp", dated=False)
    assert (result.first, result.last) == (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 3, 20, tzinfo=UTC))
    assert [frame[0, 0, 0] for frame in shown] == [10, 20, 30]
    assert shown[0].shape == (150, 128, 3)  # as wide as the widest, as high as the highest
    assert (shown[1][:128] == 20).all()
    assert (shown[1][128:] == 0).all()


def test_a_picture_beside_its_recorded_state_is_not_shown_as_well(folder: Path) -> None:
    picture(folder / "9.png", 64, 64, 50)
    picture(folder / "other_at_1.png", 64, 64, 50)
    assert sorted(source.path.name for source in gather(folder).sources if not source.moment) == ["other_at_1.png"]


@pytest.mark.slow
def test_what_is_damaged_is_left_out_and_named(folder: Path) -> None:
    (folder / "9.heatmap").write_bytes((folder / "9.heatmap").read_bytes()[:-1])
    (folder / "x.png").write_bytes(b"no picture")
    (folder / "notes.txt").write_text("nothing to see")
    result, shown = made(folder, "x.gif", size=6)
    assert len(shown) == 5
    assert sorted(Path(line.split(" ")[0]).name for line in result.skipped_states) == ["9.heatmap", "x.png"]


def test_the_animation_itself_is_no_frame_of_the_next_one(folder: Path) -> None:
    for _ in range(2):
        assert timelapse(folder, folder / "all.webp", USAGE, size=6).frames == 6
    shutil.copy(folder / "all.webp", folder / "copy.webp")
    assert timelapse(folder, folder / "all.webp", USAGE, size=6).frames == 6


def test_two_filesystems_in_one_folder_are_refused(folder: Path) -> None:
    save(replace(DAYS[0], fsid="another"), str(folder / "x.heatmap"))
    with pytest.raises(OperatorError, match="states of 2 filesystems"):
        timelapse(folder, folder.parent / "x.gif", USAGE)


@pytest.mark.slow
def test_it_appears_whole_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = folder.parent / "x.gif"
    output.write_bytes(b"the old one")
    from heatmap.animation import Gif

    add = Gif.add
    monkeypatch.setattr(Gif, "add", lambda self, frame, seconds: add(self, frame, seconds) if not _fail(self) else None)
    with pytest.raises(OperatorError, match="No space left on device"):
        timelapse(folder, output, USAGE, size=6)
    assert output.read_bytes() == b"the old one"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["states", "x.gif"]


def _fail(gif: object) -> bool:
    if not (getattr(gif, "_before") == 255).all():  # noqa: B009  not the first frame
        raise OSError(28, "No space left on device")
    return False


def test_states_without_scores_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    save(replace(DAYS[0], score=None), str(tmp_path / "x.heatmap"))
    with pytest.raises(OperatorError, match="no scores"):
        timelapse(tmp_path, tmp_path / "x.gif", COLOUR_SCHEMES["score"])
    assert [path.name for path in tmp_path.iterdir()] == ["x.heatmap"]


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (("nowhere", "-o", "x.gif"), "error: nowhere cannot be read: No such file or directory"),
        ((".", "-o", "x.avi"), "error: x.avi: an animation is a .gif, a .webp or an .mp4"),
        ((".", "-o", "x.gif"), "error: . has no picture and no recorded state"),
    ],
)
def test_errors_are_one_line_a_hint_and_status_1(
    words: tuple[str, ...], output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = heatmap("timelapse", *words, check=False)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error == output
    assert hint.startswith("hint: ")


@pytest.mark.slow
def test_the_command_says_what_it_made(folder: Path, tmp_path: Path) -> None:
    done = heatmap("timelapse", folder, "-o", tmp_path / "x.gif", "--size", "6", "--colour", "score", "--sort", "virtual")
    assert done.stdout.startswith("6 frames, 2025-11-21 22:00 +0000 to 2025-11-26 22:00 +0000, 64 x 86 pixels, ")
    assert done.stderr == ""
    assert len(frames(tmp_path / "x.gif")) == 6


def test_without_ffmpeg_mp4_says_what_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(OperatorError, match="ffmpeg, which makes mp4, is not installed"):
        timelapse(folder, folder.parent / "x.mp4", USAGE)


def test_ffmpeg_is_asked_for_an_mp4_that_every_browser_plays() -> None:
    command = ffmpeg_command("/x/%06d.png", "/y/z.mp4", 12.5)
    assert command[0] == "ffmpeg"
    assert command[-1] == "/y/z.mp4"
    words = " ".join(command)
    for part in (
        "-nostdin",
        "-framerate 12.5 -i /x/%06d.png",
        "-c:v libx264",
        "-pix_fmt yuv420p",
        "-movflags +faststart",
        "-f mp4",
    ):
        assert part in words


def test_ffmpeg_gets_every_frame_in_order_and_its_failure_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stand-in named ffmpeg records its input."""
    programs, output = tmp_path / "bin", tmp_path / "x.mp4"
    programs.mkdir()
    stand_in = programs / "ffmpeg"
    stand_in.write_text('#!/bin/sh\nfor last; do :; done\ncd "$(dirname "$last")"\nls *.png > "$last"\n')
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    timelapse(folder, output, USAGE, size=6)
    assert output.read_text().split() == [f"{number:06}.png" for number in range(6)]
    stand_in.write_text("#!/bin/sh\necho no such codec >&2\nexit 1\n")
    output.unlink()
    with pytest.raises(OperatorError, match="no such codec"):
        timelapse(folder, output, USAGE, size=6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "states"]


def test_a_real_ffmpeg_makes_a_film_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package imageio-ffmpeg has an ffmpeg, which also counts the frames: all of them, and one more or none at the end."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ffmpeg").symlink_to(imageio_ffmpeg.get_ffmpeg_exe())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    output = folder.parent / "x.mp4"
    timelapse(folder, output, USAGE, size=7)
    assert b"ftyp" in output.read_bytes()[:16]
    count, seconds = imageio_ffmpeg.count_frames_and_secs(str(output))
    assert count == len(DAYS)
    assert seconds > 0


def test_few_colours_are_kept_exactly_but_for_those_that_lie_close() -> None:
    sample = np.array([[[0, 0, 0], [255, 255, 255], [0, 0, 255], [255, 0, 51]]], np.uint8)
    palette = Palette.of([sample])
    assert (palette.colours[palette.indices(sample)] == sample).all()


@pytest.mark.slow
def test_many_colours_find_a_near_one() -> None:
    grey = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, 1)
    blue = np.stack([np.zeros(256), np.zeros(256), np.arange(256)], 1).astype(np.uint8)
    sample = np.stack([grey, blue])
    palette = Palette.of([sample])
    assert len(palette.colours) <= 255
    assert np.abs(palette.colours[palette.indices(sample)].astype(int) - sample).max() <= 8


def test_a_place_stays_where_it_was_when_a_filesystem_grows(folder: Path) -> None:
    sources = gather(folder).sources
    assert sources[0].taken == FIRST_DAY
    result = frame_sequence(sources, USAGE, sort="physical", curve="linear", size=6, dated=False)
    assert result.scale is not None
    assert result.scale.total_bytes.tolist() == [64 * GIB, 32 * GIB]
    for number, state in enumerate(DAYS):
        lines: Any = result.frame(number).any((1, 2))
        assert lines[:20].all()
        assert lines[43:].any() == (2 in state.de_devid)  # line by line the second device is the last third
    assert {2 in state.de_devid for state in DAYS} == {False, True}


@pytest.mark.slow
def test_the_benchmark_runs_through_and_leaves_nothing(tmp_path: Path) -> None:
    words = ("--frames", "2", "--tib", "1", "--quiet", "0", "--image-dir", tmp_path, "--json")
    answer = json.loads(work(sys.executable, "-m", "bench.timelapse", *words, cwd=TOP).stdout)
    assert [(run["format"], run["frames"], run["pixels"][0]) for run in answer["runs"]] == [
        ("gif", 2, 1024),
        ("gif", 2, 1024),
        ("webp", 2, 1024),
    ]
    assert list(tmp_path.iterdir()) == []
