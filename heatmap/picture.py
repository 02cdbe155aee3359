"""From a drawing to a picture file: Pillow writes it, and it appears whole or not at all."""

from typing import cast

from PIL import Image

from btrkeep.fs.output_file import whole_file
from heatmap.grid import Grid, Runs

FORMATS = ("png", "webp")

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
    """Writes a file, or "-", standard output; `form` is one of FORMATS. Raises OperatorError."""
    with whole_file(name) as file:
        if form == "png":
            image.save(file, "PNG", compress_level=_LEVEL)
        else:
            image.save(file, "WEBP", lossless=True, quality=0)
