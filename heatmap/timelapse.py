"""Makes an animation of a folder of pictures and recorded states, frame by frame: GIF, WebP, or by ffmpeg mp4.

Frames are drawn by as many threads as there are processors, a few ahead of writing, and none is kept.
"""

import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from btrkeep.cli.arguments import show_times_of_pool_on
from btrkeep.errors import OperatorError
from btrkeep.fs.output_file import whole_file
from btrkeep.process.programs import run
from btrkeep.units import format_size, local_minute, printable
from heatmap.animation import Gif, Palette, Webp, ffmpeg_command
from heatmap.colourings import ColourScheme
from heatmap.filesystem_state import Array
from heatmap.legend import strip
from heatmap.picture import image_of
from heatmap.recorded import SUFFIX, StateHeader, Unreadable, load, read_header
from heatmap.whole_filesystem import PHYSICAL, Scale, common_scale, overview

PICTURES = (".png", ".webp")
_AUTOMATIC_NAME = re.compile(r"_at_(\d{1,11})$")  # as btrfs-heatmap names pictures
_STANDARD_WIDTH = 1024
_FULL_HD_AND_MORE = 1 << 13  # our pictures are at most 2**15 wide, and animations should not be wider


@dataclass(frozen=True, slots=True, eq=False)
class FrameSource:
    """The source of a frame: a recorded state, or a picture."""

    path: Path
    """The file."""
    taken: datetime
    """When."""
    moment: StateHeader | None
    """The header of a recorded state; None: it is a picture."""
    width: int = 0
    """Width of a picture in pixels."""
    height: int = 0
    """Height of a picture in pixels."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameSources:
    """The sources of all frames."""

    sources: list[FrameSource]
    """The sources in order of time."""
    skipped_states: list[str]
    """A line with the reason for each skipped file."""


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
    sources, skipped_states = [], []
    for path in names:
        if path == without or path.suffix not in (SUFFIX, *PICTURES) or (path.suffix != SUFFIX and path.stem in recorded):
            continue
        try:
            source = _state(path) if path.suffix == SUFFIX else _picture(path)
        except OperatorError as error:
            skipped_states.append(error.message)
        else:
            sources += [source] if source else []
    _require_one_filesystem(folder, [source.moment for source in sources if source.moment])
    return FrameSources(sorted(sources, key=lambda source: (source.taken, source.path)), skipped_states)


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
    return (error.strerror if isinstance(error, OSError) else None) or "not a picture, or damaged"


def _require_one_filesystem(folder: Path, moments: Sequence[StateHeader]) -> None:
    fsids = sorted({moment.fsid for moment in moments})
    if len(fsids) > 1:
        several = ", ".join(map(printable, fsids[:3])) + (", ..." if len(fsids) > 3 else "")
        raise OperatorError(f"{folder} has states of {len(fsids)} filesystems: {several}", "use a separate folder for each")


@dataclass(frozen=True, slots=True, eq=False)
class FrameSequence:
    """All frames, u8[height, width, 3]. Each is drawn when it is requested, by any thread."""

    sources: list[FrameSource]
    """Their sources."""
    width: int
    """Pixels."""
    picture_height: int
    """Width in pixels, and height without the line of the date."""
    scale: Scale | None
    """The common scale; None: each state has its own."""
    scheme: ColourScheme
    """The colours."""
    sort: str
    """The order of block groups."""
    curve: str
    """The curve."""
    dated: bool
    """True if each frame shows its date."""

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
    """Returns the frames of all sources. They are 2**size pixels wide; without a size as wide as the widest picture, or 1024
    pixels.
    """
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
        raise Unreadable(
            str(source.path), f"cannot be read as a picture: {_words(error)}", "move the file out of the folder"
        ) from None


def _fitted(image: Image.Image, width: int) -> Image.Image:
    """Scales an image to the frame's width. Enlarged pixels stay squares; reduced ones are averaged."""
    if image.width == width:
        return image
    way: Image.Resampling = Image.Resampling.NEAREST if image.width < width else Image.Resampling.BOX
    return image.resize((width, _height(image.width, image.height, width)), way)


Progress = Callable[[int, int], None]
"""Called with the number of finished frames and of all frames."""


_SAMPLES = 16
_LAST_STAYS = 2.0  # seconds, before it starts again
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TimelapseSummary:
    """The result for a folder."""

    frames: int
    """Number of frames."""
    first: datetime
    """The time of the first source."""
    last: datetime
    """The time of the last source."""
    width: int
    """Pixels."""
    height: int
    """Pixels."""
    skipped_states: list[str]
    """A line with the reason for each skipped file."""


def timelapse(
    folder: Path,
    output: Path,
    scheme: ColourScheme,
    *,
    sort: str = PHYSICAL,
    fps: float = 10.0,
    size: int | None = None,
    dated: bool = True,
    progress: Progress | None = None,
) -> TimelapseSummary:
    """Makes the animation in the format of the extension of `output`, atomically. Raises OperatorError."""
    write = _WRITERS.get(output.suffix.lower())
    if write is None:
        raise OperatorError(f"{output}: an animation is a .gif, a .webp or an .mp4", "give the file after -o one of these endings")
    if output.suffix.lower() == ".mp4" and not shutil.which("ffmpeg"):
        raise OperatorError(
            "ffmpeg, which makes mp4, is not installed", "`apt install ffmpeg`, or give -o the name of a .gif or a .webp"
        )
    frame_sources = gather(folder, output)
    if not frame_sources.sources:
        why = f": {frame_sources.skipped_states[0]}" if frame_sources.skipped_states else ""
        raise OperatorError(f"{folder} has no picture and no recorded state{why}", "`btrfs-heatmap --record MOUNTPOINT` makes them")
    recorded = [source.moment for source in frame_sources.sources if source.moment]
    if recorded:
        show_times_of_pool_on(recorded[-1].fsid)
    frames = frame_sequence(frame_sources.sources, scheme, sort=sort, size=size, dated=dated)
    # The last frame is drawn before anything is written: data that it lacks (such as scores) is usually missing everywhere.
    height, width = frames.frame(len(frames.sources) - 1).shape[:2]
    with whole_file(str(output)) as file:
        write(frames, file, FrameFormat(width, height, fps), output.parent, progress or _no_progress)
    return TimelapseSummary(
        len(frame_sources.sources),
        frame_sources.sources[0].taken,
        frame_sources.sources[-1].taken,
        width,
        height,
        frame_sources.skipped_states,
    )


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """The format of a video."""

    width: int
    """Pixels."""
    height: int
    """Pixels."""
    fps: float
    """Frames per second."""

    def seconds(self, number: int, count: int) -> float:
        """Returns the duration of a frame."""
        return 1 / self.fps if number < count - 1 else max(_LAST_STAYS, 1 / self.fps)


def _no_progress(_done: int, _count: int) -> None:
    pass


def _write_gif(frames: FrameSequence, file: BinaryIO, frame_format: FrameFormat, _folder: Path, progress: Progress) -> None:
    count = len(frames.sources)
    samples = sorted({number * (count - 1) // max(1, _SAMPLES - 1) for number in range(_SAMPLES)} & set(range(count)))
    palette = Palette.of(_ahead(frames.frame, samples))
    gif = Gif(file, frame_format.width, frame_format.height, palette)
    for number, frame in enumerate(_ahead(lambda number: palette.indices(frames.frame(number)), range(count))):
        gif.add(frame, frame_format.seconds(number, count))
        progress(number + 1, count)
    gif.finish()


def _write_webp(frames: FrameSequence, file: BinaryIO, frame_format: FrameFormat, _folder: Path, progress: Progress) -> None:
    count = len(frames.sources)
    webp = Webp(file, frame_format.width, frame_format.height)
    for number, frame in enumerate(_ahead(frames.frame, range(count))):
        webp.add(frame, frame_format.seconds(number, count))
        progress(number + 1, count)
    webp.finish()


def _write_mp4(frames: FrameSequence, file: BinaryIO, frame_format: FrameFormat, folder: Path, progress: Progress) -> None:
    """Makes a video from pictures in a folder beside the output, because that filesystem has space for them, and /tmp may not."""
    count = len(frames.sources)
    with tempfile.TemporaryDirectory(prefix=".timelapse-", dir=folder) as name:
        room = Path(name)

        def draw(number: int) -> None:
            Image.fromarray(frames.frame(number)).save(room / f"{number:06}.png", compress_level=1)

        for number, _ in enumerate(_ahead(draw, range(count))):
            progress(number + 1, count)
        made = room / "made.mp4"
        run(ffmpeg_command(str(room / "%06d.png"), str(made), frame_format.fps), timeout=None)
        with made.open("rb") as video:
            shutil.copyfileobj(video, file)


_WRITERS: dict[str, Callable[[FrameSequence, BinaryIO, FrameFormat, Path, Progress], None]] = {
    ".gif": _write_gif,
    ".webp": _write_webp,
    ".mp4": _write_mp4,
}


def _ahead(work: Callable[[int], _T], numbers: Iterable[int]) -> Iterator[_T]:
    """Yields the results of `work` for each number, in order; several threads work ahead, because NumPy and zlib allow others to
    run.
    """
    threads = len(os.sched_getaffinity(0))
    waiting: deque[Future[_T]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for number in numbers:
                waiting.append(pool.submit(work, number))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
