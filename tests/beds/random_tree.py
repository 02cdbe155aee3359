"""Trees with names of every kind, the same ones for the same seed."""

import os
import random
from pathlib import Path

from tests.beds.work import work


def random_tree(top: Path, seed: int, names: int = 260) -> None:
    """Makes folders, files, symlinks, hard links of both, and some files that are not copied in groups."""
    chance, folders, linkable = random.Random(seed), [top], list[Path]()
    top.mkdir(parents=True)
    for number in range(names):
        path = chance.choice(folders[-12:]) / f"{chance.choice('abcé')}{number}"
        kind = chance.choice(("folder", "folder", "file", "file", "file", "symlink", "link", "link", "odd"))
        if kind == "link" and linkable:
            os.link(chance.choice(linkable), path, follow_symlinks=False)
            continue
        if kind == "folder":
            path.mkdir()
            folders.append(path)
        elif kind == "symlink":
            path.symlink_to(chance.choice(("/etc/passwd", "../nowhere", "x" * 200, b"\xff".decode("utf-8", "surrogateescape"))))
        elif kind == "odd":
            chance.choice((os.mkfifo, _device, _sparse))(path)
        else:
            path.write_bytes(chance.randbytes(chance.choice((0, 10, 3000, 80_000))))
        _dress(path, chance, kind)
        if kind != "folder":
            linkable.append(path)
    for folder in reversed(folders):
        os.utime(folder, ns=(0, chance.randrange(2 * 10**18)))


def _device(path: Path) -> None:
    os.mknod(path, 0o060600, os.makedev(7, 1))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(300_000)
        file.seek(100_000)
        file.write(b"within")


def _dress(path: Path, chance: random.Random, kind: str) -> None:
    if chance.random() < 0.3:
        os.lchown(path, chance.randrange(3000), chance.randrange(3000))
    if chance.random() < 0.1:
        os.setxattr(path, "trusted.number", b"%d" % chance.randrange(10), follow_symlinks=False)
    if kind in ("folder", "file"):
        if chance.random() < 0.1:
            os.setxattr(path, "user.words", b"some words", follow_symlinks=False)
        if chance.random() < 0.1:
            work("setfacl", "-m", "u:1234:rx", *(("-d", "-m", "g:99:rwx") if kind == "folder" else ()), path)
        path.chmod(chance.choice((0o755, 0o700, 0o2750, 0o1777, 0o500) if kind == "folder" else (0o644, 0o4755, 0o600, 0o2711, 0)))
    if kind == "file" and chance.random() < 0.1:
        work("setcap", "cap_net_raw+ep", path)
    os.utime(path, ns=(0, chance.randrange(2 * 10**18)), follow_symlinks=False)
