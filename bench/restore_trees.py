"""What bench.restore gives back: trees of one kind each, the same ones in every run."""

import argparse
import fcntl
import os
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.beds import work

_PER_FOLDER = 200
_WRITTEN = 1024  # MiB of the one big file; the rest of it are reflinks
_FICLONERANGE = 0x4020940D
_LINKS = 10  # names of each file
START = "start"
"""The tree of one empty file: what a restore of it takes is the start of the command."""
_DEPTH = 150  # folders in each other: a path stays below the 4,096 bytes that cp can name


def fill(top: Path, options: argparse.Namespace) -> None:
    """Makes the trees of SHAPES that the options ask for, each below its name."""
    for name, make in SHAPES.items():
        (top / name).mkdir(parents=True)
        make(top / name, options)


def _files(top: Path, options: argparse.Namespace) -> None:
    chance = random.Random(1)
    for path in _names(top, options.files):
        path.write_bytes(chance.randbytes(chance.randrange(6000)))
    for number in range(options.large):
        _write(top / f"large-{number}", options.large_mib, chance)


def _big(top: Path, options: argparse.Namespace) -> None:
    _write(top / "big", min(options.big_mib, _WRITTEN), random.Random(2))


def enlarge(backup: Path, file: Path, mib: int) -> None:
    """Repeats the content of a file of a backup by reflinks, until it has that many MiB: more data would need larger disks."""
    if mib <= _WRITTEN:
        return
    work("btrfs", "property", "set", backup, "ro", "false")
    with file.open("r+b") as opened:
        for start in range(_WRITTEN, mib, _WRITTEN):
            size = min(_WRITTEN, mib - start) << 20
            fcntl.ioctl(opened, _FICLONERANGE, struct.pack("=qQQQ", opened.fileno(), 0, size, start << 20))
    work("btrfs", "property", "set", "-f", backup, "ro", "true")


def _empty(top: Path, options: argparse.Namespace) -> None:
    for path in _names(top, options.empty):
        path.touch()


def _deep(top: Path, options: argparse.Namespace) -> None:
    folder = top
    for depth in range(_DEPTH):
        folder /= f"below-{depth:03}"
        folder.mkdir()
        for number in range(options.small // _DEPTH):
            (folder / f"file-{number}").write_bytes(b"x" * number)


def _links(top: Path, options: argparse.Namespace) -> None:
    for number, path in enumerate(_names(top, options.small // _LINKS)):
        path.write_bytes(b"%d" % number)
        for link in range(1, _LINKS):
            os.link(path, path.with_name(f"{path.name}-{link}"))


def _sparse(top: Path, options: argparse.Namespace) -> None:
    """Makes an image in which each mebibyte has 4 KiB of data."""
    with (top / "image").open("wb") as file:
        for number in range(options.sparse_mib):
            file.seek(number << 20)
            file.write(b"%4096d" % number)
        file.truncate(options.sparse_mib << 20)


def _xattrs(top: Path, options: argparse.Namespace) -> None:
    for number, path in enumerate(_names(top, options.small)):
        path.write_bytes(b"x" * (number % 3000))
        os.setxattr(path, "user.number", b"%d" % number)
        os.setxattr(path, "user.origin", b"https://example.org/of/every/file")


def _symlinks(top: Path, options: argparse.Namespace) -> None:
    for number, path in enumerate(_names(top, options.small)):
        path.symlink_to(f"../to/file-{number}")


def _one_file_folders(top: Path, options: argparse.Namespace) -> None:
    for number, path in enumerate(_names(top, options.small // 2)):
        path.mkdir()
        (path / "file").write_bytes(b"x" * (number % 3000))


def _empty_folders(top: Path, options: argparse.Namespace) -> None:
    for path in _names(top, options.small):
        path.mkdir()


def _mixed_folders(top: Path, options: argparse.Namespace) -> None:
    """Makes folders like those of a source tree: 14 files and 5 symlinks in each."""
    for path in _names(top, options.small // 20):
        path.mkdir()
        for number in range(14):
            (path / f"file-{number}").write_bytes(b"x" * (number * 400))
        for number in range(5):
            (path / f"link-{number}").symlink_to(f"file-{number}")


def _start(top: Path, _options: argparse.Namespace) -> None:
    (top / "file").touch()


def _names(top: Path, count: int) -> list[Path]:
    for number in range(0, count, _PER_FOLDER):
        (top / f"{number // _PER_FOLDER:05}").mkdir()
    return [top / f"{number // _PER_FOLDER:05}" / f"file-{number:07}" for number in range(count)]


def _write(path: Path, mib: int, chance: random.Random) -> None:
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(chance.randbytes(1 << 20))


SHAPES: Mapping[str, Callable[[Path, argparse.Namespace], None]] = {
    "files": _files,
    "big": _big,
    "empty": _empty,
    "deep": _deep,
    "links": _links,
    "sparse": _sparse,
    "xattrs": _xattrs,
    "symlinks": _symlinks,
    "one-file folders": _one_file_folders,
    "empty folders": _empty_folders,
    "mixed folders": _mixed_folders,
    START: _start,
}
