"""The pictures on the heatmap pages equal the pictures that the program draws now."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.beds import TOP

PICTURES = TOP / "docs" / "pictures"


@pytest.mark.slow
def test_the_pictures_in_the_pages_are_up_to_date(tmp_path: Path) -> None:
    """Letters are not compared, because another version of the font may draw them differently."""
    runpy.run_path(str(PICTURES / "heatmaps.py"))["main"](tmp_path)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in PICTURES.glob("heatmap-*"))
    for name in made:
        with Image.open(tmp_path / name) as new, Image.open(PICTURES / name) as old:
            assert new.width == old.width
            assert getattr(new, "n_frames", 1) == getattr(old, "n_frames", 1)
            square = (0, 0, new.width, new.width)
            assert (np.asarray(new.convert("RGB").crop(square)) == np.asarray(old.convert("RGB").crop(square))).all(), name
