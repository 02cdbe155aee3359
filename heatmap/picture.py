"""From a drawing to a picture file: Pillow writes it, and it appears whole or not at all; and the name that it gets."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import cast

from PIL import Image

from btrkeep.errors import OperatorError
from btrkeep.fs.output_file import require_own_links, whole_file
from heatmap.curves import HILBERT
from heatmap.grid import Grid, Runs

_LEVEL = 4
"""Of zlib: docs/decisions/0012 compares them."""


def image_of(runs: Runs, grid: Grid) -> Image.Image:
    """The picture of 2**size lines, enlarged if its order is lower: each pixel a square."""
    # Pillow keeps four bytes for a pixel of RGB as well, so they are taken over as they are.
    image = Image.frombytes("RGB", (grid.edge, grid.edge), cast(bytes, runs.words(grid)), "raw", "RGBX", 0, 1)
    if grid.scale == 1:
        return image
    edge = grid.edge * grid.scale
    return image.resize((edge, edge), Image.Resampling.NEAREST)


def save(image: Image.Image, name: str, form: str = "png") -> None:
    """Writes a file, or "-", standard output; `form` is one of PICTURE_FORMATS. Raises OperatorError."""
    with whole_file(name) as file:
        if form == "png":
            image.save(file, "PNG", compress_level=_LEVEL)
        else:
            image.save(file, "WEBP", lossless=True, quality=0)


def name_parts(
    fsid: str,
    curve: str,
    *,
    virtual: bool = False,
    block_group: int | None = None,
    extents: bool = False,
    devices: Sequence[int] = (),
    colour: str = "usage",
) -> list[str]:
    """Returns the parts of a file's name: those of knorrie's btrfs-heatmap, in its order, then those that it has not."""
    parts = ["fsid", fsid]
    if curve != HILBERT:
        parts.append(curve)
    if virtual:
        parts.append("chunks")
    if block_group is not None:
        parts += ["blockgroup", str(block_group)]
    if extents:
        parts.append("extents")
    for devid in devices:
        parts += ["device", str(devid)]
    if colour != "usage":
        parts.append(colour)
    return parts


def output_name(chosen: str | None, parts: Sequence[str], taken: datetime, form: str) -> str:
    """`chosen` where it names a file or "-"; else a name made of `parts` and the time, in the folder it names or in this one.

    A folder is made when its name ends with a slash and it does not exist. Raises OperatorError if it cannot be.
    """
    if chosen is not None and chosen.endswith("/"):
        require_own_links(Path(chosen))
        try:
            Path(chosen).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OperatorError(f"the folder {chosen} could not be made: {error.strerror}", "name another place with -o") from None
    if chosen is not None and not Path(chosen).is_dir():
        return chosen
    name = "_".join([*parts, "at", str(int(taken.timestamp()))]) + f".{form}"
    return str(Path(chosen, name)) if chosen else name
