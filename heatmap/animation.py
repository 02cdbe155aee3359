"""Writes animations frame by frame: only the previous frame is kept, because the next one usually differs little from it.

GIF: https://www.w3.org/Graphics/GIF/spec-gif89a.txt. WebP: https://developers.google.com/speed/webp/docs/riff_container. Pillow
compresses each frame; the containers are written here, because Pillow would collect all frames first.
"""

import io
import struct
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np
from PIL import GifImagePlugin, Image

from heatmap.filesystem_state import Array

COLOURS = 255
"""Number of colours of a palette; one more number means "unchanged"."""
_AS_BEFORE = COLOURS
_LEAVE_IT = 1  # GIF's disposal method: the next frame is drawn over this one


class _Clock:
    """Rounds durations so that their sum is correct."""

    def __init__(self, per_second: int) -> None:
        self._per_second, self._exact, self._given = per_second, 0.0, 0

    def ticks(self, seconds: float) -> int:
        self._exact += seconds * self._per_second
        ticks = max(1, round(self._exact) - self._given)
        self._given += ticks
        return ticks


class Palette:
    """A palette of at most COLOURS colours for all frames, and the nearest of them for each colour: u8[n, 3]."""

    _BITS = 6  # bits of each channel that are used

    def __init__(self, colours: Array) -> None:
        self.colours = colours
        self._nearest = self._table(colours)

    @classmethod
    def of(cls, samples: Iterable[Array]) -> "Palette":
        """Returns a palette for these pictures, u8[..., 3]: their own colours if there are few enough."""
        keys, counts = _counted(samples)
        rgb = np.column_stack((keys >> 16, keys >> 8 & 255, keys & 255)).astype(np.uint8)
        if len(rgb) <= COLOURS:
            return cls(rgb)
        weighted = np.repeat(rgb, np.maximum(1, 64 * np.sqrt(counts / counts.max())).astype(np.int64), axis=0)
        reduced = Image.fromarray(weighted[None]).quantize(COLOURS, Image.Quantize.MEDIANCUT, kmeans=1)
        return cls(np.array(reduced.getpalette(), np.uint8).reshape(-1, 3)[:COLOURS])

    def _table(self, colours: Array) -> Array:
        """u8[2**18]: for each colour in coarser steps, the nearest of the palette; computed in pieces, because all distances take
        256 MB.
        """
        steps = (np.arange(1 << self._BITS) * 255 / ((1 << self._BITS) - 1)).astype(np.float32)
        grid = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), -1).reshape(-1, 3)
        wanted = colours.astype(np.float32)
        own = (wanted**2).sum(1)
        return np.concatenate([(own - 2 * (piece @ wanted.T)).argmin(1).astype(np.uint8) for piece in np.array_split(grid, 64)])

    def indices(self, rgb: Array) -> Array:
        """u8[h, w] of u8[h, w, 3]."""
        drop = 8 - self._BITS
        key = (rgb[..., 0] >> drop).astype(np.int32)
        for channel in (1, 2):
            key <<= self._BITS
            key |= rgb[..., channel] >> drop
        nearest: Array = self._nearest[key]
        return nearest


def _counted(samples: Iterable[Array]) -> tuple[Array, Array]:
    """Returns the colours of the pictures as numbers, each once, and the number of pixels of each."""
    keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for sample in samples:
        rgb = sample.reshape(-1, 3).astype(np.int32)
        new_keys, number = np.unique(rgb[:, 0] << 16 | rgb[:, 1] << 8 | rgb[:, 2], return_counts=True)
        keys, place = np.unique(np.concatenate((keys, new_keys)), return_inverse=True)
        counts = np.bincount(place, np.concatenate((counts, number))).astype(np.int64)
    return keys, counts


class Gif:
    """A GIF that repeats, with one palette for all frames. Frames are numbers of colours here, u8[h, w], so that other code can
    compute them.
    """

    def __init__(self, file: BinaryIO, width: int, height: int, palette: Palette) -> None:
        self._file, self._clock, self._before = file, _Clock(100), np.full((height, width), _AS_BEFORE, np.uint8)
        table = np.zeros((256, 3), np.uint8)
        table[: len(palette.colours)] = palette.colours
        file.write(b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF7, 0, 0) + table.tobytes())
        file.write(b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00")

    def add(self, frame: Array, seconds: float) -> None:
        """Writes the next frame, u8[h, w]."""
        changed = frame != self._before
        x, y, right, bottom = _box(changed)
        part = np.where(changed, frame, np.uint8(_AS_BEFORE))[y:bottom, x:right]
        # "L" instead of "P": the same bytes, without a palette.
        image, delay = Image.fromarray(np.ascontiguousarray(part)), self._clock.ticks(seconds) * 10
        data = GifImagePlugin.getdata(image, (x, y), duration=delay, transparency=_AS_BEFORE, disposal=_LEAVE_IT)
        self._file.writelines(data)
        self._before = frame

    def finish(self) -> None:
        """The end mark."""
        self._file.write(b";")


class Webp:
    """A WebP that repeats, without loss; of each frame only the difference from the previous one."""

    def __init__(self, file: BinaryIO, width: int, height: int) -> None:
        self._file, self._clock, self._before = file, _Clock(1000), np.zeros((0, 0, 3), np.uint8)
        self._start = file.tell()
        file.write(b"RIFF\0\0\0\0WEBP")
        file.write(_chunk(b"VP8X", struct.pack("<I", 0x12) + _u24(width - 1) + _u24(height - 1)))  # flags: animation, alpha
        file.write(_chunk(b"ANIM", struct.pack("<IH", 0xFF000000, 0)))

    def add(self, frame: Array, seconds: float) -> None:
        """Writes the next frame, u8[h, w, 3]."""
        changed = (frame != self._before).any(2) if frame.shape == self._before.shape else np.ones(frame.shape[:2], bool)
        x, y, right, bottom = _box(changed)
        x, y = x & ~1, y & ~1  # a frame's position is counted in pairs of pixels
        differs = changed[y:bottom, x:right]
        part = np.dstack((np.where(differs[..., None], frame[y:bottom, x:right], 0), differs * np.uint8(255)))
        head = _u24(x // 2) + _u24(y // 2) + _u24(right - x - 1) + _u24(bottom - y - 1) + _u24(self._clock.ticks(seconds)) + b"\0"
        self._file.write(_chunk(b"ANMF", head + _compressed(part)))
        self._before = frame

    def finish(self) -> None:
        """Writes the file's length at its start."""
        end = self._file.tell()
        self._file.seek(self._start + 4)
        self._file.write(struct.pack("<I", end - self._start - 8))
        self._file.seek(end)


def _compressed(rgba: Array) -> bytes:
    """Returns the chunk with a picture's pixels from the file that Pillow makes of it."""
    buffer = io.BytesIO()
    Image.fromarray(rgba).save(buffer, "WEBP", lossless=True, method=1, quality=0, exact=True)
    data, at = buffer.getvalue(), 12
    while at < len(data):
        name, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        if name == b"VP8L":
            return data[at : at + 8 + size + size % 2]
        at += 8 + size + size % 2
    raise ValueError("Pillow wrote no VP8L chunk")


def _chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def _u24(number: int) -> bytes:
    return number.to_bytes(3, "little")


def _box(changed: Array) -> tuple[int, int, int, int]:
    """Returns left, top, right, bottom of the smallest rectangle with all changes; one pixel if nothing changed."""
    lines, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    if not len(lines):
        return 0, 0, 1, 1
    return int(columns[0]), int(lines[0]), int(columns[-1]) + 1, int(lines[-1]) + 1


def ffmpeg_command(frames: str, output: str, fps: float) -> tuple[str, ...]:
    """Returns the command that makes an mp4 for every browser. `frames`: a pattern such as /x/%06d.png."""
    read = ("ffmpeg", "-nostdin", "-loglevel", "error", "-y", "-framerate", f"{fps:g}", "-i", frames)
    even = ("-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2")  # the format has one colour for each square of two by two pixels
    coded = ("-c:v", "libx264", "-preset", "veryfast", "-crf", "18", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4")
    return (*read, *even, *coded, output)
