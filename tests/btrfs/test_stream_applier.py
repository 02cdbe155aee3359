"""Streams of a real `btrfs send`, applied by our program and by `btrfs receive`: the two trees must be equal in everything."""

import fcntl
import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backupd.streams.applying import StreamTarget, applier_command
from backupd.streams.file_writer import CLONE_ARGUMENTS, CLONE_RANGE
from tests.beds import differences, manifest, work
from tests.beds.random_tree import random_tree

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.slow]


class Streams:
    """A subvolume with its snapshots on one btrfs; on another one the results of their streams, by both programs."""

    def __init__(self, source: Path, target: Path, proto: int) -> None:
        self.source, self.target, self.proto = source, target, proto
        self.tree, self.snapshots = source / "tree", list[Path]()
        self.applied, self.received = list[Path](), list[Path]()
        work("btrfs", "-q", "subvolume", "create", self.tree)

    def night(self, *, as_received: bool = True) -> dict[str, Any]:
        """Takes a snapshot, sends it, and compares: with the snapshot, and with what `btrfs receive` makes of the stream. Returns
        the applier's result.
        """
        number = len(self.snapshots)
        snapshot = self.source / f"snapshot{number}"
        work("btrfs", "-q", "subvolume", "snapshot", "-r", self.tree, snapshot)
        parent = ("-p", str(self.snapshots[-1])) if self.snapshots else ()
        proto = ("--proto", str(self.proto), *(("--compressed-data",) if self.proto > 1 else ()))
        file = self.source.parent / f"{self.proto}-{number}.stream"
        work("btrfs", "-q", "send", *proto, *parent, "-f", file, snapshot)
        work("btrfs", "-q", "receive", "-f", file, self.target)
        received, applied = self.target / snapshot.name, self.target / f"applied{number}"
        if self.applied:
            work("btrfs", "-q", "subvolume", "snapshot", self.applied[-1], applied)
        else:
            work("btrfs", "-q", "subvolume", "create", applied)
            (applied / "data/srv").mkdir(parents=True)
        result = self.apply(file, applied / "data/srv", self.applied[-1] / "data/srv" if self.applied else None, number)
        file.unlink()
        if as_received:
            assert differences(manifest(received, blocks=True), manifest(applied / "data/srv", blocks=True)) == []
        assert differences(manifest(snapshot), manifest(applied / "data/srv")) == []
        assert [path.name for path in applied.iterdir()] == ["data"]
        assert [path.name for path in (applied / "data").iterdir()] == ["srv"]
        self.snapshots.append(snapshot)
        self.received.append(received)
        self.applied.append(applied)
        return result

    def apply(self, file: Path, folder: Path, base: Path | None, number: int) -> dict[str, Any]:
        parent = self.identity(self.snapshots[-1]) if self.snapshots else None
        with file.open("rb") as stream:
            words = applier_command(StreamTarget(folder, base, parent), 0, None)
            done = subprocess.run(words, stdin=stream, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), f"night {number}"
        result = dict(json.loads(done.stdout.splitlines()[-1]))
        assert result["own"].startswith(self.uuid(self.source / f"snapshot{number}"))
        return result

    def uuid(self, path: Path) -> str:
        lines = work("btrfs", "subvolume", "show", path).stdout.splitlines()
        return next(line.split()[-1] for line in lines if line.strip().startswith("UUID:"))

    def identity(self, path: Path) -> str:
        """Returns the applier's report about the previous stream: the kernel's own values in the stream."""
        dumped = work("sh", "-c", f"btrfs -q send --no-data '{path}' | btrfs receive --dump").stdout.splitlines()[0]
        words = dict(word.split("=") for word in dumped.split() if "=" in word)
        return f"{words['uuid']}:{words['transid']}"


@pytest.fixture(params=[1, 2])
def streams(request: pytest.FixtureRequest, make_btrfs: Callable[..., Path]) -> Streams:
    return Streams(make_btrfs(size="500M", options="compress-force=zstd"), make_btrfs(size="500M"), request.param)


def totals(tree: Path) -> tuple[int, int, int]:
    """Returns the number of names including the top, of regular files, and their bytes; each name counts."""
    entries = manifest(tree).values()
    regular = [entry for entry in entries if entry.kind == "f"]
    return len(entries), len(regular), sum(entry.size for entry in regular)


def test_nights_of_all_kinds_of_changes_are_as_btrfs_receive_has_them(streams: Streams) -> None:
    tree, chance = streams.tree, random.Random(1)
    random_tree(tree / "made", 1)
    (tree / "big").write_bytes(chance.randbytes(3 << 20))
    (tree / "text").write_bytes(b"compressible words " * 100_000)
    (tree / "inline").write_bytes(b"short " * 20)
    (tree / "inline-random").write_bytes(chance.randbytes(500))
    with (tree / "sparse").open("wb") as file:
        file.truncate(50 << 20)
        file.seek(20 << 20)
        file.write(b"within" * 1000)
    (tree / "deep/er/est").mkdir(parents=True)
    (tree / "deep/er/est/file").write_text("deep")
    work("btrfs", "property", "set", tree / "deep", "compression", "zlib")
    before = streams.night()["numbers"]
    assert (before["files"] + 1, before["regular"], before["bytes"]) == totals(streams.applied[-1] / "data/srv")

    (tree / "big").rename(tree / "deep/big")  # renamed, and then changed in the middle
    with (tree / "deep/big").open("r+b") as file:
        file.seek(1 << 20)
        file.write(chance.randbytes(5000))
    os.link(tree / "text", tree / "deep/second-name")
    work("cp", "--reflink=always", tree / "deep/big", tree / "reflink")
    with (tree / "sparse").open("r+b") as file:
        file.truncate(30 << 20)
    work("fallocate", "--punch-hole", "--offset", "1M", "--length", "64K", tree / "text")
    (tree / "deep").rename(tree / "shallow")
    (tree / "deep").mkdir()  # the old name is another folder
    (tree / "shallow/er").rename(tree / "deep/er")
    (tree / "inline").write_bytes(b"longer " * 2000)
    (tree / "inline-random").unlink()
    (tree / "inline-random").symlink_to("inline")
    shutil.rmtree(next(path for path in sorted((tree / "made").iterdir()) if path.is_dir() and not path.is_symlink()))
    tree.chmod(0o2751)
    os.chown(tree, 5, 6)
    os.setxattr(tree, "user.top", b"of the top")
    after = streams.night()["numbers"]
    sums = tuple(before[name] + after[name] for name in ("files", "regular", "bytes"))
    assert (sums[0] + 1, *sums[1:]) == totals(streams.applied[-1] / "data/srv")

    first, second = tree / "deep", tree / "shallow"  # two folders swap their names
    first.rename(tree / "third")
    second.rename(first)
    (tree / "third").rename(second)
    os.removexattr(tree, "user.top")
    os.setxattr(tree / "text", "user.big", b"x" * 3000)
    (tree / "deep/second-name").unlink()
    streams.night()
    shutil.rmtree(tree / "made")
    streams.night()
    assert streams.night()["numbers"]["created"] == 0  # nothing has changed


@pytest.mark.takes(30)
def test_random_nights_are_as_btrfs_receive_has_them(streams: Streams) -> None:
    random_tree(streams.tree / "made", 10 + streams.proto)
    streams.night()
    chance = random.Random(streams.proto)
    for number in range(5):
        change(streams.tree, chance, number)
        streams.night()


def change(tree: Path, chance: random.Random, number: int) -> None:
    """Makes changes of all kinds at random places."""
    for each in range(60):
        paths = sorted(tree.rglob("*"))
        folders = [tree, *(path for path in paths if path.is_dir() and not path.is_symlink())]
        files = [path for path in paths if path.is_file() and not path.is_symlink()]
        path, into = chance.choice(paths or [tree / "none"]), chance.choice(folders)
        new = into / f"new{number}-{each}"
        kind = chance.choice(("write", "append", "move", "move", "delete", "link", "clone", "create", "folder", "mode", "swap"))
        if kind in ("write", "append", "link", "clone") and files:
            file = chance.choice(files)
            if kind == "link":
                os.link(file, new)
            elif kind == "clone":
                work("cp", "--reflink=always", file, new)
            else:
                with file.open("r+b") as opened:
                    opened.seek(chance.randrange(1 + file.stat().st_size) if kind == "write" else file.stat().st_size)
                    opened.write(chance.randbytes(chance.choice((10, 5000, 70_000))))
        elif kind == "move" and path.exists() and not into.is_relative_to(path):
            path.rename(new)
        elif kind == "swap" and path.exists() and files:
            other, middle = chance.choice(files), tree / "middle"
            if not other.is_relative_to(path) and not path.is_relative_to(other):
                path.rename(middle)
                other.rename(path)
                middle.rename(other)
        elif kind == "delete" and chance.random() < 0.5 and path.parent != tree:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        elif kind == "create":
            new.write_bytes(chance.randbytes(chance.choice((0, 100, 9000))))
        elif kind == "folder":
            new.mkdir()
        elif kind == "mode" and not path.is_symlink() and path.exists():
            path.chmod(chance.choice((0o600, 0o755, 0o4711)))


def test_attributes_are_those_of_the_host_where_a_stream_alone_would_change_them(streams: Streams) -> None:
    """`btrfs receive` loses a setuid bit with the owner, gives new files the top's default ACL, and changes the time of the top."""
    tree = streams.tree
    (tree / "program").write_bytes(b"program")
    (tree / "program").chmod(0o6755)
    (tree / "before").mkdir()
    work("setfacl", "-d", "-m", "u:1234:rwx", tree)
    work("btrfs", "property", "set", tree, "compression", "zstd")
    (tree / "before/first").write_text("has no ACL")
    streams.night(as_received=False)
    os.chown(tree / "program", 1, 1)
    (tree / "program").chmod(0o6755)
    (tree / "before/second").write_text("has no ACL")
    (tree / "before/folder").mkdir()
    os.mkfifo(tree / "before/pipe")
    streams.night(as_received=False)


def test_reflinks_share_their_data_as_on_the_host(streams: Streams) -> None:
    """Within the subvolume, and with the parent's: 20 MB of clones take no space."""
    tree = streams.tree
    (tree / "one").write_bytes(random.Random(3).randbytes(10 << 20))
    work("cp", "--reflink=always", tree / "one", tree / "two")
    streams.night()
    work("cp", "--reflink=always", tree / "one", tree / "three")
    (tree / "one").unlink()
    result = streams.night()
    assert result["numbers"]["matched"] >= 10 << 20
    assert result["numbers"]["literal"] == 0
    work("btrfs", "filesystem", "sync", streams.target)
    line = work("btrfs", "filesystem", "du", "-s", "--raw", streams.applied[-1]).stdout.splitlines()[-1]
    assert int(line.split()[1]) < 1 << 20  # exclusive


def test_compressed_data_stay_compressed(make_btrfs: Callable[..., Path]) -> None:
    streams = Streams(make_btrfs(size="500M", options="compress-force=zstd"), make_btrfs(size="500M"), 2)
    (streams.tree / "text").write_bytes(b"compressible words " * 500_000)
    streams.night()
    work("btrfs", "filesystem", "sync", streams.target)
    used = work("compsize", streams.applied[-1], check=False) if shutil.which("compsize") else None
    size = (streams.applied[-1] / "data/srv/text").stat().st_size
    line = work("btrfs", "filesystem", "usage", "--raw", streams.target).stdout
    taken = next(int(line.split()[-1]) for line in line.splitlines() if line.strip().startswith("Used:"))
    assert taken < size, used and used.stdout


def test_compressed_files_that_change_in_place_stay_compressed(make_btrfs: Callable[..., Path]) -> None:
    """A file that becomes shorter ends in the middle of a sector: the kernel takes such data only at the end of a file."""
    streams = Streams(make_btrfs(size="500M", options="compress-force=zstd"), make_btrfs(size="500M"), 2)
    names, chance = [streams.tree / f"file{number}" for number in range(40)], random.Random(6)
    for night in range(6):
        for name in names:
            with name.open("r+b" if night else "wb") as file:
                if chance.random() < 0.7:
                    file.truncate(chance.choice((0, 100, 5000, 200_000)))
                file.seek(chance.choice((0, 0, 3000, 4096, 150_000)))
                file.write(b"%d compressible words " % chance.randrange(10) * chance.choice((2, 20, 300, 20_000)))
        streams.night(as_received=False)


def test_an_inline_extent_before_unchanged_data_cuts_no_file(make_btrfs: Callable[..., Path]) -> None:
    """Its stream has only that extent, and no command for the size. A complete stream has the rest."""
    streams = Streams(make_btrfs(size="300M", options="compress=zstd"), make_btrfs(size="300M"), 2)
    file, copy = streams.tree / "file", streams.tree / "copy"
    file.write_bytes(b"old head" * 512 + random.Random(1).randbytes(8192))
    work("sync", "-f", streams.source)
    work("cp", "--reflink=always", file, copy)
    streams.night(as_received=False)
    file.write_bytes(b"new head " * 200)
    work("sync", "-f", streams.source)
    with copy.open("rb") as source, file.open("r+b") as target:
        fcntl.ioctl(target, CLONE_RANGE, CLONE_ARGUMENTS.pack(source.fileno(), 4096, 8192, 4096))
    with pytest.raises(AssertionError, match=r"\(4, 'file was"):
        streams.night(as_received=False)


def test_new_files_have_the_compression_of_the_pools_folder_and_no_others(streams: Streams) -> None:
    """Not that of the host's top, where a stream makes them."""
    streams.night()
    (streams.tree / "new").mkdir()
    (streams.tree / "new/file").write_bytes(b"compressible words " * 50_000)
    work("btrfs", "property", "set", streams.tree / "new", "compression", "lzo")
    snapshot, file, into = streams.source / "snapshot1", streams.source / "stream", streams.target / "into"
    work("btrfs", "-q", "subvolume", "snapshot", "-r", streams.tree, snapshot)
    work("btrfs", "-q", "send", "-f", file, snapshot)
    into.mkdir()
    with file.open("rb") as stream:
        words = applier_command(StreamTarget(into, compression="zstd"), 0, None)
        done = subprocess.run(words, stdin=stream, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    properties = {name: work("btrfs", "property", "get", into / name, "compression").stdout for name in (".", "new", "new/file")}
    assert properties == {".": "compression=zstd\n", "new": "compression=lzo\n", "new/file": "compression=zstd\n"}
    work("btrfs", "filesystem", "sync", streams.target)
    assert "encoded" in work("filefrag", "-v", into / "new/file").stdout


def test_a_pool_that_cannot_store_compressed_data_as_it_is_says_so(make_btrfs: Callable[..., Path]) -> None:
    streams = Streams(make_btrfs(size="300M", options="compress-force=zstd"), make_btrfs(size="300M", options="nodatasum"), 2)
    (streams.tree / "text").write_bytes(b"compressible words " * 50_000)
    snapshot, file, into = streams.source / "snapshot0", streams.source / "stream", streams.target / "into"
    work("btrfs", "-q", "subvolume", "snapshot", "-r", streams.tree, snapshot)
    work("btrfs", "-q", "send", "--proto", "2", "--compressed-data", "-f", file, snapshot)
    into.mkdir()
    with file.open("rb") as stream:
        words = applier_command(StreamTarget(into), 0, None)
        done = subprocess.run(words, stdin=stream, capture_output=True, text=True, check=False)
    assert done.returncode == 5, done
