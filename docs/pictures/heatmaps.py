"""Draws the pictures of the heatmap pages beside itself: `python docs/pictures/heatmaps.py` from the top folder.

They show four months of a backup pool that never was (tests/heatmap/states.py), so neither root nor btrfs is needed.
"""

import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))  # the pages are made in a bare checkout

from heatmap.colourings import COLOUR_SCHEMES  # noqa: E402
from heatmap.diff_picture import image_of as changes_image  # noqa: E402
from heatmap.diff_picture import key, picture  # noqa: E402
from heatmap.filesystem_state import FilesystemState  # noqa: E402
from heatmap.legend import add_below, band, legend, pixel_words, title  # noqa: E402
from heatmap.picture import image_of, save  # noqa: E402
from heatmap.recorded import save as record  # noqa: E402
from heatmap.timelapse import timelapse  # noqa: E402
from heatmap.whole_filesystem import overview  # noqa: E402
from tests.heatmap.states import TIB, Pool  # noqa: E402

DAYS, GROWS, APART = 120, 60, 7
SIZE = 9


def days() -> list[FilesystemState]:
    """Four months; after two of them the pool gets a second device."""
    pool, states = Pool((TIB + TIB // 2,), filled=0.95), []
    for number in range(DAYS):
        if number == GROWS:
            pool.grow(TIB // 2)
        states.append(pool.state())
        pool.day()
    return states


def drawn(state: FilesystemState, colour: str, folder: Path, sort: str = "physical") -> None:
    """One picture with its legend."""
    scheme = COLOUR_SCHEMES[colour]
    drawing = overview(state, sort=sort, size=SIZE, colouring=scheme.paint, min_brightness=scheme.min_brightness)
    image = image_of(drawing.runs, drawing.grid)
    save(add_below(image, legend(state, drawing.grid, sort, scheme, image.width)), str(folder / f"heatmap-{colour}.png"))


def changes(before: FilesystemState, after: FilesystemState, folder: Path) -> None:
    """What changed in a week."""
    rgb, grid = picture(before, after, size=SIZE)
    image = changes_image(rgb, grid)
    lines = [title(after), f"changes since {before.taken:%Y-%m-%d}", pixel_words(grid, "physical")]
    save(add_below(image, band(lines, key(), image.width)), str(folder / "heatmap-diff.png"))


def film(states: list[FilesystemState], folder: Path) -> None:
    """Every sixth day, by virtual address as the first timelapses of backup pools were."""
    with tempfile.TemporaryDirectory() as name:
        for number, state in enumerate(states[::6]):
            record(state, str(Path(name, f"{number:03}.heatmap")))
        timelapse(Path(name), folder / "heatmap-timelapse.gif", COLOUR_SCHEMES["score"], sort="virtual", size=8, fps=5)


def main(folder: Path) -> None:
    """All of them."""
    states = days()
    for colour in ("usage", "score", "age"):
        drawn(states[-1], colour, folder)
    changes(states[-1 - APART], states[-1], folder)
    film(states, folder)


if __name__ == "__main__":
    main(Path(__file__).parent)
