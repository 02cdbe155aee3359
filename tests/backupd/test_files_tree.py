"""The files of a backup are reached without ever leaving it: compared with find, stat, and the kernel's list of opened files."""

import os
import resource
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.files.tree import KINDS, Tree, components, joined
from backupd.files.walking import entries
from tests.beds import work
from tests.beds.opens import watched
from tests.beds.swapped import swapping

SECRET = b"what no backup may show"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder `data` of a folder with the layout of a backup."""
    folder = tmp_path / "backup" / "data"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the server with private content."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    return folder


# --- paths


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (b"/", []),
        (b"//", []),
        (b"/etc", [b"etc"]),
        (b"/etc/", [b"etc"]),
        (b"//etc//./passwd/", [b"etc", b"passwd"]),
        (b"/a\nb/\xff\xfe", [b"a\nb", b"\xff\xfe"]),
        (b"/.../..a", [b"...", b"..a"]),
    ],
)
def test_a_path_is_taken_apart_into_names(path: bytes, names: list[bytes]) -> None:
    assert components(path) == names
    assert components(joined(names)) == names


@pytest.mark.parametrize("path", [b"", b"etc", b"./etc", b"/..", b"/etc/../../root", b"/a/..", b"/a\0b", b"..", b"\0"])
def test_what_is_no_path_of_a_backup_is_refused(path: bytes) -> None:
    with pytest.raises(ValueError, match="a path "):
        components(path)


@given(st.lists(st.binary(min_size=1, max_size=12), max_size=5))
def test_no_path_has_names_that_lead_up_or_elsewhere(parts: list[bytes]) -> None:
    try:
        names = components(b"/" + b"/".join(parts))
    except ValueError:
        assert any(b"\0" in part or b".." in part.split(b"/") for part in parts)
        return
    assert not {b"", b".", b".."} & set(names)
    assert not any(b"/" in name or b"\0" in name for name in names)


# --- what is there


def fill(data: Path) -> None:
    """Makes a file of each kind, and difficult names."""
    (data / "etc").mkdir()
    (data / "etc" / "passwd").write_text("root\n")
    os.link(data / "etc" / "passwd", data / "etc" / "linked")
    (data / "etc" / "up").symlink_to("../../../../../etc/shadow")
    os.mkfifo(data / "fifo", 0o600)
    for name in (b"new\nline", b"\x1b[31mred", b"not \xff utf-8", b"x" * 255, b" ", b"-rf", b"a\\b", "ümläut".encode()):
        Path(os.fsdecode(os.fsencode(data) + b"/" + name)).write_bytes(name)
    os.utime(data / "etc" / "passwd", ns=(0, 1_234_567_890_123_456_789))
    os.utime(data / "-rf", ns=(0, -5_000_000_000))
    (data / "etc" / "passwd").chmod(0o4751)
    if os.geteuid() == 0:
        os.chown(data / "etc" / "passwd", 123456, 654321)
        os.mknod(data / "null", 0o020600, os.makedev(1, 3))
        os.mknod(data / "loop", 0o060600, os.makedev(7, 200))


_FIND = {"f": "file", "d": "folder", "l": "symlink", "p": "fifo", "s": "socket", "c": "character device", "b": "block device"}
_FIELDS = "%P\\0%y\\0%s\\0%b\\0%m\\0%U\\0%G\\0%T@\\0%i\\0%n\\0%l\\0"


def listed_by_find(data: Path) -> dict[bytes, tuple[object, ...]]:
    """find's output for everything below a folder."""
    output = subprocess.run(["find", ".", "-printf", _FIELDS], cwd=data, capture_output=True, check=True).stdout
    words = iter(output.split(b"\0")[:-1])
    rows: dict[bytes, tuple[object, ...]] = {}
    for name, kind, *numbers, target in zip(*[words] * 11, strict=True):
        size, blocks, mode, uid, gid, time, inode, links = numbers
        seconds, _, rest = time.decode().partition(".")
        nanoseconds = int(seconds) * 10**9 + int(rest[:9])
        rows[b"/" + name] = (
            _FIND[kind.decode()], int(size), int(blocks) * 512, int(mode, 8), int(uid), int(gid), nanoseconds, int(inode),
            int(links), target or None,
        )  # fmt: skip
    return rows


def listed_by_tree(tree: Tree) -> dict[bytes, tuple[object, ...]]:
    return {
        entry.path: (
            *(entry.kind, entry.size, entry.allocated, entry.mode, entry.uid, entry.gid),
            *(entry.mtime, entry.inode, entry.links, entry.target),
        )
        for entry in entries(tree, b"/")
    }  # fmt: skip


def test_all_that_is_in_a_backup_is_told_as_find_tells_it(data: Path) -> None:
    fill(data)
    with Tree(data.parent) as tree:
        assert listed_by_tree(tree) == listed_by_find(data)
        assert {entry.path for entry in tree.list(b"/etc")} == {b"/etc/passwd", b"/etc/linked", b"/etc/up"}
        for path, words in listed_by_find(data).items():
            entry = tree.stat(path)
            assert (entry.path, entry.kind, entry.size) == (path, *words[:2])
            assert entry.name == (path.rsplit(b"/", 1)[1] or b"/")
    assert set(_FIND.values()) == set(KINDS.values())


@pytest.mark.root
def test_the_numbers_of_a_device_are_those_of_stat(data: Path) -> None:
    fill(data)
    with Tree(data.parent) as tree:
        for name in ("null", "loop"):
            numbers = work("stat", "-c", "%Hr %Lr", data / name).stdout.split()
            rdev = tree.stat(b"/" + name.encode()).rdev
            assert [os.major(rdev), os.minor(rdev)] == [int(number) for number in numbers]


def test_the_inodes_own_time_is_that_of_stat(data: Path) -> None:
    (data / "file").touch()
    seconds, _, rest = work("stat", "-c", "%.9Z", data / "file").stdout.strip().partition(".")
    with Tree(data.parent) as tree:
        assert tree.stat(b"/file").changed == int(seconds) * 10**9 + int(rest)


def test_a_walk_gives_folders_before_what_is_in_them_and_names_in_order(data: Path) -> None:
    for name in ("b/z", "b/a", "a", "b.c", "c/d/e"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).touch()
    with Tree(data.parent) as tree:
        assert [entry.path.decode() for entry in entries(tree, b"/")] == [
            "/",
            "/a",
            "/b",
            "/b/a",
            "/b/z",
            "/b.c",
            "/c",
            "/c/d",
            "/c/d/e",
        ]
        skipped = entries(tree, b"/", lambda entry: entry.path == b"/c/d")
        assert [entry.path.decode() for entry in skipped][-2:] == ["/c", "/c/d"]
        assert [entry.path for entry in entries(tree, b"/a")] == [b"/a"]


@pytest.mark.slow
def test_folders_nested_deeper_than_descriptors_and_calls_go_are_walked(data: Path) -> None:
    """rsync transfers paths of up to 4,096 bytes: up to two thousand nested folders. Python's call stack allows a thousand."""
    depth, old = 1200, Path.cwd()
    try:
        os.chdir(data)
        for _ in range(depth):
            Path("d").mkdir()
            Path("after").touch()
            os.chdir("d")
    finally:
        os.chdir(old)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        with Tree(data.parent) as tree:
            assert sum(1 for _ in entries(tree, b"/")) == 2 * depth + 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        work("rm", "-rf", data / "d")


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_walk_leaves_no_descriptor_open_also_when_it_is_abandoned(data: Path) -> None:
    for name in ("a/b/c/d", "e"):
        (data / name).mkdir(parents=True)
    before = descriptors()
    with Tree(data.parent) as tree:
        walk = entries(tree, b"/")
        assert [next(walk).path for _ in range(4)][-1] == b"/a/b/c"
        del walk
        with suppress(OSError):
            tree.stat(b"/a/missing/x")
    assert descriptors() == before


# --- what is outside


@pytest.mark.parametrize(
    ("link", "path"),
    [
        ("{outside}", b"/link/secret"),
        ("../../outside", b"/link/secret"),
        ("/", b"/link{outside}/secret"),
        ("/proc/self/cwd", b"/link/secret"),
        ("here", b"/link/file"),  # not even one that stays inside
    ],
)
def test_no_symlink_is_followed(data: Path, outside: Path, link: str, path: bytes) -> None:
    (data / "here").mkdir()
    (data / "here" / "file").touch()
    (data / "link").symlink_to(link.format(outside=outside))
    asked = path.replace(b"{outside}", os.fsencode(outside))
    with Tree(data.parent) as tree:
        for reach in (
            tree.stat,
            tree.open_file,
            tree.names,
            lambda asked: list(tree.list(asked)),
            lambda asked: list(entries(tree, asked)),
        ):
            with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
                reach(asked)
        for reach in (tree.open_file, tree.names):  # nor as the last component
            with pytest.raises(OSError, match=r"Not a directory|symbolic links|not a plain file"):
                reach(b"/link")
        assert tree.stat(b"/link").kind == "symlink"
        assert [entry.path for entry in entries(tree, b"/link")] == [b"/link"]


def test_a_backup_whose_own_folders_are_symlinks_is_not_opened(data: Path, outside: Path) -> None:
    data.rmdir()
    data.symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        Tree(data.parent)
    other = data.parents[1] / "other"
    other.symlink_to(data.parent)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        Tree(other)


def test_a_folder_that_becomes_a_symlink_at_any_moment_leads_nowhere(data: Path, outside: Path) -> None:
    """A backup is read-only; but even if it were not, there must be no race between check and use."""
    (data / "etc").mkdir()
    (data / "etc" / "secret").write_bytes(b"the host's own")
    (data / "link").symlink_to(outside)
    seen = set()
    with swapping(data / "etc", data / "link"), Tree(data.parent) as tree:
        for _ in range(5000):
            try:
                fd = tree.open_file(b"/etc/secret")
                seen.add(os.read(fd, 100))
                os.close(fd)
            except OSError as error:
                seen.add(os.strerror(error.errno or 0).encode())
    assert seen <= {b"the host's own", b"Not a directory", b"Too many levels of symbolic links"}
    assert len(seen) == 2, "both were met, or this shows nothing"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["symlink", "fifo"])
def test_a_file_that_becomes_something_else_at_any_moment_is_opened_as_a_file_or_not_at_all(
    data: Path, outside: Path, kind: str
) -> None:
    (data / "file").write_bytes(b"the host's own")
    other = data / "other"
    if kind == "symlink":
        other.symlink_to(outside / "secret")
    else:
        os.mkfifo(other)
    seen = set()
    with watched(other) if kind == "fifo" else watched(outside / "secret") as opens:
        with swapping(data / "file", other), Tree(data.parent) as tree:
            for _ in range(5000):
                try:
                    fd = tree.open_file(b"/file")
                    seen.add(os.read(fd, 100))
                    os.close(fd)
                except OSError as error:
                    seen.add(str(error).encode())
        assert opens.count() == 0
    assert seen == {b"the host's own", b"[Errno 22] not a plain file"}


@pytest.mark.root
def test_fifos_and_devices_are_looked_at_and_never_opened(data: Path) -> None:
    os.mkfifo(data / "fifo")
    os.mknod(data / "zero", 0o020666, os.makedev(1, 5))
    os.mknod(data / "tape", 0o020666, os.makedev(9, 0))  # to open it may wind it back
    stop = threading.Timer(20, lambda: os.close(os.open(data / "fifo", os.O_RDWR)))  # a reader that waits for a writer gets one
    stop.start()
    try:
        with watched(data / "fifo", data / "zero", data / "tape") as opens, Tree(data.parent) as tree:
            for name in (b"/fifo", b"/zero", b"/tape"):
                with pytest.raises(OSError, match="not a plain file"):
                    tree.open_file(name)
            assert len(list(entries(tree, b"/"))) == 4
            assert opens.count() == 0
            os.close(os.open(data / "zero", os.O_RDONLY))  # this is what it would look like
            assert opens.count() == 1
    finally:
        stop.cancel()


@pytest.mark.root
@pytest.mark.btrfs
def test_what_is_mounted_in_a_backup_is_not_of_it(data: Path, outside: Path) -> None:
    (data / "mnt").mkdir()
    work("mount", "-t", "tmpfs", "none", data / "mnt")
    try:
        (data / "mnt" / "secret").write_bytes(SECRET)
        with Tree(data.parent) as tree:
            assert [entry.path for entry in entries(tree, b"/")] == [b"/", b"/mnt"]
            for reach in (tree.names, lambda path: tree.open_file(path + b"/secret"), lambda path: tree.stat(path + b"/secret")):
                with pytest.raises(OSError, match="mounted"):
                    reach(b"/mnt")
    finally:
        work("umount", data / "mnt")
