"""Random histories of `rsync --link-dest` are imported, killed now and then, and compared by rsync."""

# Names are bytes, which Path does not take.
# ruff: noqa: PTH101, PTH102, PTH108, PTH112, PTH114, PTH118, PTH123, PTH211
import os
import random
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.beds import work
from tests.beds.nights import Nights
from tests.beds.old_trees import data, differing

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
_NAMES = (b"a", b"b", b"c", b"d", b"\xff not utf8", b"new\nline", b"x" * 255, b"-rf", b"data", b"backup.json", b".btrkeep-gone-x")
_SIZES = (0, 1, 4095, 4096, 4097, 131_071, 131_073, 300_000)
_DEEPEST = 5


class Source:
    """A host whose names are made, changed and removed by chance: files with holes, links, devices, ACLs, folders and all."""

    def __init__(self, top: Path, chance: random.Random) -> None:
        self.top, self.chance = os.fsencode(top), chance
        top.mkdir()

    def folders(self) -> list[bytes]:
        return [folder for folder, _, _ in os.walk(self.top)]

    def others(self) -> list[bytes]:
        walked = os.walk(self.top)
        return [
            os.path.join(at, file)
            for at, inner, files in walked
            for file in files + inner
            if not _is_folder(os.path.join(at, file))
        ]

    def day(self) -> None:
        for _ in range(20):
            path = os.path.join(self.chance.choice(self.folders()), self.chance.choice(_NAMES))
            deed = self.chance.choice((self.make, self.make, self.make, self.remove, self.change, self.attributes))
            deed(path)

    def remove(self, path: bytes) -> None:
        if _is_folder(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)

    def make(self, path: bytes) -> None:
        self.remove(path)
        size = self.chance.choice(_SIZES)
        match self.chance.randrange(9):
            case 0 if path.count(b"/") - self.top.count(b"/") < _DEEPEST:
                os.mkdir(path)
            case 1:
                os.symlink(self.chance.choice((b"/etc/passwd", b"..", b"nowhere")), path)
            case 2:
                os.mkfifo(path)
            case 3:
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, self.chance.randrange(200)))
            case 4 | 5 if others := self.others():
                os.link(self.chance.choice(others), path, follow_symlinks=False)
            case 6:
                with open(path, "wb") as file:
                    file.truncate(5_000_000)
                    file.seek(self.chance.randrange(4_000_000))
                    file.write(self.chance.randbytes(9000))
            case _:
                Path(os.fsdecode(path)).write_bytes(self.chance.choice((bytes(size), self.chance.randbytes(size))))

    def change(self, _: bytes) -> None:
        """Changes a file in place: its hard links change too."""
        if files := [other for other in self.others() if stat.S_ISREG(os.lstat(other).st_mode)]:
            with open(self.chance.choice(files), "r+b") as file:
                file.seek(self.chance.randrange(200_000))
                file.write(self.chance.randbytes(self.chance.choice((1, 5000))))

    def attributes(self, _: bytes) -> None:
        path = self.chance.choice(self.others() + self.folders())
        match self.chance.randrange(4):
            case 0:
                os.lchown(path, self.chance.randrange(5), self.chance.randrange(4_000_000_000))
            case 1 if not os.path.islink(path):
                os.chmod(path, self.chance.choice((0o4755, 0o1777, 0, 0o640)))
            case 2:
                os.setxattr(path, "trusted.x", self.chance.randbytes(9), follow_symlinks=False)
            case _ if not os.path.islink(path):
                work("setfacl", "-m", f"u:{self.chance.randrange(9)}:rw", os.fsdecode(path))


def _is_folder(path: bytes) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def history(place: Path, chance: random.Random, days: int) -> list[Path]:
    """Dated trees. In each, rsync was deceived once: another content with the same size and time."""
    source, root, paths = Source(place / "src", chance), place / "dated", list[Path]()
    root.mkdir()
    for _ in range(4):
        source.day()
    for number in range(1, days + 1):
        source.day()
        tree = root / f"2026-03-{number:02}"
        link = (f"--link-dest={paths[-1]}",) if paths else ()
        work("rsync", "-aHAXS", "--numeric-ids", "--modify-window=-1", *link, f"{place / 'src'}/", f"{tree}/")
        _deceive(tree, chance)
        paths.append(tree)
    return paths


def _deceive(tree: Path, chance: random.Random) -> None:
    files = [
        path for path in sorted(tree.rglob("*")) if not path.is_symlink() and path.is_file() and 0 < path.stat().st_size < 1 << 20
    ]
    if files:
        file = chance.choice(files)
        was, above = file.stat(), file.parent.stat()
        file.unlink()
        file.write_bytes(chance.randbytes(was.st_size))
        os.utime(file, ns=(0, was.st_mtime_ns))
        os.utime(file.parent, ns=(above.st_atime_ns, above.st_mtime_ns))


def imported_with_kills(nights: Nights, root: Path, running: Callable[..., Any], chance: random.Random, kills: int) -> int:
    """Imports; returns the number of killed attempts. The last attempt has to finish."""
    died = 0
    for left in reversed(range(kills + 1)):
        words = ["import", "tree", str(root), "--host", "old1", "--verify", "none", *chance.choice(((), ("--delta",)))]
        process = running("--config", str(nights.config), *words)
        if left:
            try:
                process.wait(timeout=chance.uniform(0.4, 1.5))
            except subprocess.TimeoutExpired:
                process.kill()
        _, answer = process.communicate()
        assert "Traceback" not in answer
        assert process.returncode in (0, -signal.SIGKILL), answer
        died += process.returncode != 0
    assert process.returncode == 0
    return died


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "days", "kills"), [(1, 3, 1)])
def test_a_random_history_comes_whole_however_often_the_import_is_killed(
    make_btrfs: Callable[..., Path], ext4: Path, backupd_running: Callable[..., Any], seed: int, days: int, kills: int
) -> None:
    """Its long form has more days, seeds and kills."""
    chance, nights = random.Random(seed), Nights(make_btrfs(size="900M"))
    trees = history(ext4, chance, days)
    imported_with_kills(nights, ext4 / "dated", backupd_running, chance, kills)
    names = nights.names("old1")
    assert [name[:10] for name in names] == [tree.name for tree in trees]
    for name, tree in zip(names, trees, strict=True):
        assert differing(tree, data(nights, "old1", name)) == "", f"seed {seed}"
    assert not (nights.pool / "hosts/old1/.working").exists()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 14))
def test_a_random_history_of_a_week_comes_whole_with_four_kills(
    make_btrfs: Callable[..., Path], ext4: Path, backupd_running: Callable[..., Any], seed: int
) -> None:
    """Only here: changes that need several days, and kills of attempts that go on with what killed ones have made."""
    test_a_random_history_comes_whole_however_often_the_import_is_killed(make_btrfs, ext4, backupd_running, seed, 7, 4)
