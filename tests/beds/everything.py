"""All properties of a tree of files, in parts: a backup must contain them, and a restore must restore them."""

import os
import socket
import stat
from pathlib import Path

from tests.beds.work import work

SECOND = 10**9


def at(path: Path | bytes, seconds: int, nanoseconds: int = 0) -> None:
    """Sets the time of change of the name itself, not of its target."""
    os.utime(path, ns=(0, seconds * SECOND + nanoseconds), follow_symlinks=False)


def write(path: Path, content: str = "content\n", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
    return path


def owners_and_modes(top: Path) -> None:
    for number, mode in enumerate((0o4755, 0o2755, 0o6711, 0o000, 0o640, 0o777)):
        path = write(top / f"mode{mode:04o}")
        os.chown(path, 1000 + number, 4_000_000_000 - number)  # before the mode: it takes setuid away
        path.chmod(mode)
    for name, mode in (("sticky", 0o1777), ("setgid", 0o2775), ("closed", 0o700)):
        (top / name).mkdir()
        os.chown(top / name, 65534, 12)
        (top / name).chmod(mode)
    write(top / "closed" / "inside")


def times(top: Path) -> None:
    for name, when in (("1901", -2_170_000_000), ("1969", -1), ("epoch", 0), ("2039", 2_180_000_000), ("2200", 7_258_118_400)):
        at(write(top / name, name), when, 123_456_789)
    (top / "folder").mkdir()
    at(top / "folder", 1_000_000_000, 1)
    (top / "link").symlink_to("epoch")
    at(top / "link", 1_000_000_000, 999_999_999)


def attributes(top: Path) -> None:
    path = write(top / "acl")
    work("setfacl", "-m", "u:1234:rwx,u:4000000000:r,g:99:r,m:rw", path)
    (top / "folder").mkdir()
    work("setfacl", "-m", "u:1234:rx", "-d", "-m", "u:1234:rwx,g:99:r,o::-", top / "folder")
    write(top / "folder" / "heir")
    path = write(top / "xattr")
    for name, value in (("user.text", b"words"), ("user.empty", b""), ("user.binary", bytes(range(256))), ("trusted.t", b"\0\xff")):
        os.setxattr(path, name, value)
    os.setxattr(top / "folder", "user.on-a-folder", b"x" * 3000)
    os.setxattr(write(top / "security"), "security.note", b"label\0")
    work("setcap", "cap_net_raw+ep", write(top / "capability", mode=0o755))
    (top / "dangling").symlink_to("nowhere")
    os.setxattr(top / "dangling", "trusted.on-a-link", b"1", follow_symlinks=False)


def special(top: Path) -> None:
    top.mkdir(exist_ok=True)
    os.mknod(top / "char", stat.S_IFCHR | 0o620, os.makedev(4, 300))
    os.mknod(top / "block", stat.S_IFBLK | 0o660, os.makedev(253, 70_000))
    os.chown(top / "block", 3, 6)
    os.mkfifo(top / "fifo", 0o622)
    here = Path.cwd()
    os.chdir(top)  # a socket's address has no room for a long path
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
    finally:
        os.chdir(here)
    for name, target in (("dangling", "no/where"), ("absolute", "/etc/passwd"), ("up", "../../.."), ("long", "x/" * 2000)):
        (top / name).symlink_to(target)
    os.lchown(top / "dangling", 1001, 1002)


def contents(top: Path) -> None:
    write(top / "empty", "")
    write(top / "linked", "linked").chmod(0o600)
    (top / "again").hardlink_to(top / "linked")
    (top / "below").mkdir()
    (top / "below" / "and-again").hardlink_to(top / "linked")
    os.mkfifo(top / "fifo")
    (top / "same-fifo").hardlink_to(top / "fifo")
    with (top / "sparse").open("wb") as file:
        file.truncate(20_000_000)
        file.seek(9_000_000)
        file.write(os.urandom(100_000))
    (top / "binary").write_bytes(os.urandom(300_000))
    (top / "empty-folder" / "in-it").mkdir(parents=True)
    deep = top.joinpath(*(["deep" * 10] * 60))  # a path of 2,400 characters
    deep.mkdir(parents=True)
    write(deep / "bottom")


ODD_NAMES = (
    *(
        b"new\nline",
        b"return\rhere",
        b"tab\tand\x1b[31mescape",
        b"not utf-8 \xff\xfe",
        b"\xc3\xa4 utf-8",
        b" leading",
        b"trailing ",
    ),
    *(
        b"-rf",
        b"--delete",
        b"*",
        b"[a]?",
        b"back\\slash",
        b"\\#012",
        b"'quote\"",
        b"$HOME `id` ;",
        b"#hash",
        b"~",
        b"host:name",
        b"x" * 255,
    ),
    *(b".hidden", b"backup.json", b".working", b"data", b"lost+found2", b"Number of files: 7", b"*deleting   x", b"\x01\x7f"),
)


def names(top: Path) -> None:
    for name in ODD_NAMES:
        with open(os.fsencode(top) + b"/" + name, "wb") as file:  # noqa: PTH123 - a name that is not text
            file.write(name)
        folder = os.fsencode(top) + b"/in " + name[:200]
        os.mkdir(folder)  # noqa: PTH102
        with open(folder + b"/" + name, "wb") as file:  # noqa: PTH123
            file.write(name)


PARTS = (owners_and_modes, times, attributes, special, contents, names)


def everything(top: Path) -> Path:
    """Makes all parts below `top`, which gets an owner, a mode and a time."""
    for part in PARTS:
        (top / part.__name__).mkdir(parents=True)
        part(top / part.__name__)
    os.chown(top, 77, 88)
    top.chmod(0o1751)
    at(top, 1_234_567_890, 987_654_321)
    return top
