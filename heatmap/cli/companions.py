"""What a picture may bring along: a legend below it, a map, the recorded state, and itself in the terminal."""

from datetime import datetime
from pathlib import Path

from PIL import Image

from btrkeep.units import printable
from heatmap.cli.request import STDOUT, PictureRequest
from heatmap.naming import output_name
from heatmap.overview import Drawing
from heatmap.state import FilesystemState


def with_legend(
    wish: PictureRequest, image: Image.Image, drawn: Drawing, fsid: str, taken: datetime, state: FilesystemState | None
) -> Image.Image:
    """The picture with what stands below it."""
    from heatmap.colourings import COLOUR_SCHEMES
    from heatmap.legend import add_below, extents_legend, legend

    if state is None:
        return add_below(image, extents_legend(fsid, taken, drawn.grid, drawn.scope, image.width))
    return add_below(image, legend(state, drawn.grid, wish.sort, COLOUR_SCHEMES[wish.colour], image.width))


def write_map(wish: PictureRequest, drawn: Drawing, state: FilesystemState) -> None:
    """The file that says what is where."""
    from heatmap.pixelmap import save

    assert wish.extras.map is not None
    save(state, drawn, wish.extras.map)
    _say(wish, "mapfile", wish.extras.map)


def record(wish: PictureRequest, picture: str | None, parts: list[str], state: FilesystemState) -> None:
    """The state in a file of its own: where --record-to says, else beside the picture, else in the current folder."""
    from heatmap.recorded import SUFFIX, automatic_name, save

    if wish.extras.record_to is None and picture not in (None, STDOUT):
        name = str(automatic_name(Path(picture or "")))
    else:
        name = output_name(wish.extras.record_to, parts, state.taken, SUFFIX.removeprefix("."))
    save(state, name)
    _say(wish, "recorded", name)


def show(image: Image.Image) -> None:
    """The picture in the terminal."""
    from heatmap.terminal import show as draw

    draw(image)


def _say(wish: PictureRequest, what: str, name: str) -> None:
    if name != STDOUT:
        wish.say(f"{what} {printable(name)}")
