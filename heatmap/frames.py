"""The frames of a timelapse: which files of a folder are moments of it, and what each looks like."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from btrkeep.errors import OperatorError
from btrkeep.units import format_size, local_minute, printable
from heatmap.colourings import ColourScheme
from heatmap.legend import strip
from heatmap.overview import Scale, common_scale, overview
from heatmap.picture import image_of
from heatmap.recorded import SUFFIX, StateHeader, Unreadable, load, read_header
from heatmap.state import Array

PICTURES = (".png", ".webp")
_AUTOMATIC_NAME = re.compile(r"_at_(\d{1,11})$")  # as btrfs-heatmap names pictures
_STANDARD_WIDTH = 1024
_FULL_HD_AND_MORE = 1 << 13  # no picture of ours is wider than 2**15, and no animation should be


@dataclass(frozen=True, slots=True, eq=False)
class FrameSource:
    """The source of a frame: a recorded state, or a picture of `width` x `height` pixels."""

    path: Path
    taken: datetime
    moment: StateHeader | None
    width: int = 0
    height: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FrameSources:
    """Sources in order of time, and for each skipped file a line with the reason."""

    sources: list[FrameSource]
    left_out: list[str]


def gather(folder: Path, without: Path | None = None) -> FrameSources:
    """Collects the recorded states and pictures in a folder, except the file `without`. Raises OperatorError.

    A state contains its time; a picture has it in its automatic name (..._at_EPOCH.png), otherwise it is the time of the last
    change. A picture beside its own recorded state, with the same name except the extension, is skipped.
    """
    try:
        names = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise OperatorError(f"{folder} cannot be read: {error.strerror}", "name a folder of pictures or recorded states") from None
    recorded = {path.stem for path in names if path.suffix == SUFFIX}
    sources, left_out = [], []
    for path in names:
        if path == without or path.suffix not in (SUFFIX, *PICTURES) or (path.suffix != SUFFIX and path.stem in recorded):
            continue
        try:
            source = _state(path) if path.suffix == SUFFIX else _picture(path)
        except OperatorError as error:
            left_out.append(error.message)
        else:
            sources += [source] if source else []
    _require_one_filesystem(folder, [source.moment for source in sources if source.moment])
    return FrameSources(sorted(sources, key=lambda source: (source.taken, source.path)), left_out)


def _state(path: Path) -> FrameSource:
    moment = read_header(path)
    return FrameSource(path, moment.taken, moment)


def _picture(path: Path) -> FrameSource | None:
    """Returns the picture in the file; None for an animation, such as an earlier timelapse. Raises Unreadable."""
    try:
        with Image.open(path) as image:
            width, height, frames = *image.size, getattr(image, "n_frames", 1)
        changed = path.stat().st_mtime
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError) as error:
        raise Unreadable(str(path), f"cannot be read as a picture: {_words(error)}") from None
    named = _AUTOMATIC_NAME.search(path.stem)
    taken = datetime.fromtimestamp(int(named[1]) if named else changed, UTC)
    return FrameSource(path, taken, None, width, height) if frames == 1 else None


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "it is none, or damaged"


def _require_one_filesystem(folder: Path, moments: Sequence[StateHeader]) -> None:
    found = sorted({moment.fsid for moment in moments})
    if len(found) > 1:
        several = ", ".join(map(printable, found[:3])) + (", ..." if len(found) > 3 else "")
        raise OperatorError(f"{folder} has states of {len(found)} filesystems: {several}", "give each a folder of its own")


@dataclass(frozen=True, slots=True, eq=False)
class FrameSequence:
    """All frames, u8[height, width, 3], each drawn when it is asked for; any thread may ask."""

    sources: list[FrameSource]
    width: int
    picture_height: int
    scale: Scale | None
    scheme: ColourScheme
    sort: str
    curve: str
    dated: bool

    def frame(self, number: int) -> Array:
        """Draws one frame. Raises Unreadable: a file is damaged or has disappeared."""
        source = self.sources[number]
        image, words = self._drawn(source) if source.moment else (_opened(source), "")
        canvas = np.zeros((self.picture_height, self.width, 3), np.uint8)
        fitted = _fitted(image, self.width)
        canvas[: fitted.height] = np.asarray(fitted)
        if not self.dated:
            return canvas
        return np.concatenate((canvas, strip(self.width, local_minute(source.taken), words)))

    def _drawn(self, source: FrameSource) -> tuple[Image.Image, str]:
        state = load(source.path)
        total = int(state.total_bytes.sum())
        if self.scale:
            state = self.scale.applied(state)
        size = self.width.bit_length() - 1
        drawn = overview(
            state,
            sort=self.sort,
            size=size,
            curve=self.curve,
            colouring=self.scheme.paint,
            min_brightness=self.scheme.min_brightness,
        )
        allocated, used = int(state.de_length.sum()), int(state.bg_used.sum())
        words = f"{format_size(total)}, {format_size(allocated)} allocated, {format_size(used)} used"
        return image_of(drawn.runs, drawn.grid), words


def frame_sequence(
    sources: list[FrameSource],
    scheme: ColourScheme,
    *,
    sort: str,
    curve: str = "hilbert",
    size: int | None,
    dated: bool,
) -> FrameSequence:
    """The frames of all sources. They are 2**size pixels wide; without a size as wide as the widest picture, or 1024 pixels."""
    moments = [source.moment for source in sources if source.moment]
    pictures = [source for source in sources if not source.moment]
    width = 1 << size if size is not None else max((source.width for source in pictures), default=_STANDARD_WIDTH)
    width = min(_FULL_HD_AND_MORE, max(_STANDARD_WIDTH, width) if moments and size is None else width)
    heights = [_height(source.width, source.height, width) for source in pictures] + [width] * bool(moments)
    return FrameSequence(sources, width, max(heights), common_scale(moments) if moments else None, scheme, sort, curve, dated)


def _height(width: int, height: int, wanted: int) -> int:
    return max(1, round(height * wanted / width))


def _opened(source: FrameSource) -> Image.Image:
    try:
        with Image.open(source.path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise Unreadable(str(source.path), f"cannot be read as a picture: {_words(error)}", "take it out of the folder") from None


def _fitted(image: Image.Image, width: int) -> Image.Image:
    """Scales an image to the frame's width. Enlarged pixels stay squares; reduced ones are averaged."""
    if image.width == width:
        return image
    way: Image.Resampling = Image.Resampling.NEAREST if image.width < width else Image.Resampling.BOX
    return image.resize((width, _height(image.width, image.height, width)), way)


Progress = Callable[[int, int], None]
"""Told how many of how many frames are done."""
