"""A folder of pictures and recorded states becomes an animation: GIF, WebP, or by ffmpeg mp4.

Frames are drawn by as many threads as there are processors, a few ahead of where they are written, and none is kept.
"""

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, TypeVar

from PIL import Image

from btrkeep.cli.arguments import show_times_of_pool_on
from btrkeep.errors import OperatorError
from btrkeep.fs.output_file import whole_file
from btrkeep.process.programs import run
from heatmap.animation import Gif, Palette, Webp, ffmpeg_command
from heatmap.colourings import ColourScheme
from heatmap.frames import FrameSequence, Progress, frame_sequence, gather
from heatmap.overview import PHYSICAL

_SAMPLES = 16
_LAST_STAYS = 2.0  # seconds, before it begins anew
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TimelapseSummary:
    """The result for a folder: number of frames, the times of the first and the last, and a line for each skipped file."""

    frames: int
    first: datetime
    last: datetime
    width: int
    height: int
    left_out: list[str]


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
    """Makes the animation that the ending of `output` names, whole or not at all. Raises OperatorError."""
    write = _WRITERS.get(output.suffix.lower())
    if write is None:
        raise OperatorError(f"{output}: an animation is a .gif, a .webp or an .mp4", "let the name after -o end so")
    if output.suffix.lower() == ".mp4" and not shutil.which("ffmpeg"):
        raise OperatorError("ffmpeg, which makes mp4, is not installed", "install it, or name a .gif or a .webp")
    found = gather(folder, output)
    if not found.sources:
        why = f": {found.left_out[0]}" if found.left_out else ""
        raise OperatorError(f"{folder} has no picture and no recorded state{why}", "`btrfs-heatmap --record MOUNTPOINT` makes them")
    recorded = [source.moment for source in found.sources if source.moment]
    if recorded:
        show_times_of_pool_on(recorded[-1].fsid)
    frames = frame_sequence(found.sources, scheme, sort=sort, size=size, dated=dated)
    # The last frame is drawn before anything is written: what it lacks (scores, say), mostly all lack.
    height, width = frames.frame(len(frames.sources) - 1).shape[:2]
    with whole_file(str(output)) as file:
        write(frames, file, FrameFormat(width, height, fps), output.parent, progress or _tell_nobody)
    return TimelapseSummary(len(found.sources), found.sources[0].taken, found.sources[-1].taken, width, height, found.left_out)


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """Pixels of a frame, and frames a second."""

    width: int
    height: int
    fps: float

    def seconds(self, number: int, count: int) -> float:
        """Returns for how long a frame is shown."""
        return 1 / self.fps if number < count - 1 else max(_LAST_STAYS, 1 / self.fps)


def _tell_nobody(_done: int, _count: int) -> None:
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
    """By way of pictures in a folder beside the output: there is room for it there, and there may be none in /tmp."""
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
    """Yields what `work` makes of each number, in order; several threads work ahead, for NumPy and zlib let others run."""
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
