"""Changes of an import in its backup, by names that it read earlier: if a folder is a symlink by then, nothing outside changes."""

import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from backupd.run.importing.copying import FileMatch, copy_changed, copy_tree
from backupd.run.importing.target_names import link_names, remove_names
from backupd.run.importing.tree_links import TreeLinks, scan_links


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """`a` and `deep` lead to an outside folder with a file, a folder with a file, and a file to link."""
    outside, target = tmp_path / "outside", tmp_path / "target"
    (outside / "folder").mkdir(parents=True)
    (outside / "folder/kept").write_text("kept")
    (outside / "file").write_text("kept")
    (target / "real").mkdir(parents=True)
    (target / "z").write_text("linked")
    (target / "real/deep").symlink_to(outside)
    (target / "a").symlink_to(outside)
    return target


def all_below(top: Path) -> list[tuple[str, int]]:
    return sorted((str(path.relative_to(top)), path.lstat().st_nlink) for path in top.rglob("*"))


@pytest.mark.parametrize(
    "names", [[b"a/file"], [b"a/folder"], [b"real/deep/folder/kept"], [b"real/deep/folder"], [b"a/folder/none"]]
)
def test_nothing_is_removed_or_linked_through_a_symlink(target: Path, names: list[bytes]) -> None:
    outside = target.parent / "outside"
    before = all_below(outside)
    for change in (lambda: remove_names(target, names), lambda: link_names(target, [[b"z", *names]])):
        with pytest.raises(NotADirectoryError) as refused:
            change()
        assert refused.value.filename == names[0].decode()
    with pytest.raises(NotADirectoryError):
        link_names(target, [[names[0], b"z"]])
    assert all_below(outside) == before
    assert (target / "z").read_text() == "linked"


def test_names_are_removed_linked_and_let_through_where_all_above_them_are_folders(target: Path) -> None:
    (target / "real/tree").mkdir()
    (target / "real/tree/file").write_text("x")
    (target / "real/new").mkdir()
    os.utime(target / "real/new", ns=(1, 2))
    remove_names(target, [b"real/tree", b"a", b"real/none"])
    assert [path.name for path in (target / "real").iterdir() if path.name != "new"] == ["deep"]
    assert not (target / "a").is_symlink()
    assert (target.parent / "outside/folder/kept").exists()
    link_names(target, [[b"z", b"real/new/one", b"real/new/one", b"other"]])
    assert (target / "z").stat().st_nlink == 3
    assert (target / "real/new").stat().st_mtime_ns == 2


@pytest.mark.slow
def test_a_folder_that_is_deeper_than_a_function_can_call_itself_is_removed(target: Path) -> None:
    fd = os.open(target / "real", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    remove_names(target, [b"real/d"])
    assert not (target / "real/d").exists()


@pytest.mark.parametrize("kind", ["file", "fifo", "symlink"])
def test_a_file_that_is_exchanged_between_the_look_and_the_copy_is_refused(tmp_path: Path, kind: str) -> None:
    """No file gets the owner and mode of one and the content of the other."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "home").mkdir(parents=True)
    target.mkdir()
    (source / "home/name").write_text("mine")
    other = tmp_path / "other"
    if kind == "file":
        other.write_text("secret")
        other.chmod(0o600)
    elif kind == "fifo":
        os.mkfifo(other)
    else:
        other.symlink_to("/etc/passwd")
    number, here = (os.open(folder, os.O_RDONLY) for folder in (source, target))
    links = scan_links(source, None, lambda: True)
    exchanged = before_it_is_opened(b"name", lambda: other.rename(source / "home/name"))
    try:
        with pytest.raises(OSError, match="name") as refused:
            copy_tree(number, here, links, lambda: True)
    finally:
        os.close(number)
        os.close(here)
    assert exchanged == [True]
    assert refused.value.filename == "home/name"
    assert list((target / "home").iterdir()) == []


@pytest.mark.parametrize("way", ["first", "changed", "compared"])
def test_no_name_is_linked_to_a_file_that_took_the_place_of_the_one_that_was_looked_at(tmp_path: Path, way: str) -> None:
    """`a` and `b` are one file. Its owner replaces `a` during the import; that must not change `b`, which belongs to
    another user.
    """
    before, source, target = (tmp_path / name for name in ("before", "source", "target"))
    for folder in (before, source, target):
        folder.mkdir()
    (source / "a").write_text("theirs")
    (source / "b").hardlink_to(source / "a")
    links = scan_links(source, before if way == "changed" else None, lambda: True)
    (tmp_path / "evil").write_text("mine")
    (tmp_path / "evil").rename(source / links.groups[0][0].decode())
    copy = copy_changed if way == "changed" else partial(copy_tree, same=FileMatch.CONTENT if way == "compared" else FileMatch.NONE)
    number, here = (os.open(folder, os.O_RDONLY) for folder in (source, target))
    try:
        with pytest.raises(OSError, match="during the import"):
            copy(number, here, links, lambda: True)
    finally:
        os.close(number)
        os.close(here)


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("same", list(FileMatch))
def test_a_folder_that_is_exchanged_for_a_symlink_meanwhile_leads_to_no_secret(tmp_path: Path, same: FileMatch, time: int) -> None:
    """Before it is read, or between reading and copying; names are copied, or compared with the result of an earlier import."""
    source, target, secret = (tmp_path / name for name in ("source", "target", "secret"))
    for folder in (source / "home", target / "home", secret):
        folder.mkdir(parents=True)
        (folder / "name").write_text("secret" if folder == secret else folder.parent.name)
    number, here = (os.open(folder, os.O_RDONLY) for folder in (source, target))

    def exchange() -> None:
        (source / "home").rename(tmp_path / "away")
        (source / "home").symlink_to(secret)

    links = scan_links(source, None, lambda: True)
    exchanged = before_it_is_opened(b"home", exchange, time)  # the third time is that of the backup's own
    try:
        with pytest.raises(NotADirectoryError):
            copy_tree(number, here, links, lambda: True, same)
    finally:
        os.close(number)
        os.close(here)
    assert exchanged == [True]
    assert (target / "home/name").read_text() == "target"


def before_it_is_opened(name: bytes, deed: Callable[[], object], time: int = 1) -> list[bool]:
    """Calls it once, just before this process opens that name for the `time`th time. The returned list has an item from then on."""
    done: list[bool] = []
    times = count(1)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[0] == name and next(times) == time:
            done.append(True)
            deed()

    sys.addaudithook(hear)
    return done


def copied(copy: Callable[..., object], source: Path, target: Path, links: TreeLinks) -> None:
    number, here = (os.open(folder, os.O_RDONLY) for folder in (source, target))
    try:
        copy(number, here, links, lambda: True)
    finally:
        os.close(number)
        os.close(here)


@pytest.mark.parametrize("same", list(FileMatch))
@pytest.mark.parametrize("deed", ["removed", "added", "replaced", "folder removed"])
def test_a_folder_that_changed_after_the_look_is_refused_for_the_next_tree_is_compared_with_the_look(
    tmp_path: Path, deed: str, same: FileMatch
) -> None:
    """The next tree has the same files. A file that is not copied now would never be copied, because its folder is unchanged."""
    first, target = tmp_path / "1", tmp_path / "target"
    (first / "d").mkdir(parents=True)
    (first / "a").write_text("old")
    (first / "d/b").write_text("old")
    target.mkdir()
    links = scan_links(first, None, lambda: True)
    if deed == "removed":
        (first / "a").unlink()
    elif deed == "added":
        (first / "c").write_text("new")
    elif deed == "replaced":
        (first / "new").write_text("new")
        (first / "new").rename(first / "a")
    else:
        (first / "d/b").unlink()
        (first / "d").rmdir()
    with pytest.raises(OSError, match="during the import"):
        copied(partial(copy_tree, same=same), first, target, links)


def test_a_changed_name_has_to_be_the_file_that_was_looked_at(tmp_path: Path) -> None:
    before, source, target = (tmp_path / name for name in ("before", "source", "target"))
    for folder in (before, source, target):
        folder.mkdir()
    (source / "a").write_text("seen")
    links = scan_links(source, before, lambda: True)
    (tmp_path / "other").write_text("evil")
    (tmp_path / "other").rename(source / "a")
    with pytest.raises(OSError, match="changed during the import"):
        copied(copy_changed, source, target, links)
    assert not (target / "a").exists()


def test_a_symlink_is_the_one_that_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`a` and `b` are one symlink. The owner of `a` replaces it by another symlink after its inode was read."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "a").symlink_to("theirs")
    (source / "b").hardlink_to(source / "a")
    links = scan_links(source, None, lambda: True)
    (tmp_path / "evil").symlink_to("mine")
    real = os.readlink

    def exchanged(*words: Any, **more: Any) -> Any:
        if (tmp_path / "evil").is_symlink():
            was = source.stat()
            (tmp_path / "evil").rename(source / links.groups[0][0].decode())
            os.utime(source, ns=(was.st_atime_ns, was.st_mtime_ns))
        return real(*words, **more)

    monkeypatch.setattr(os, "readlink", exchanged)
    copied(copy_tree, source, target, links)
    assert not (tmp_path / "evil").is_symlink()
    assert real(target / links.groups[0][0].decode()) == "theirs"


@pytest.mark.parametrize("same", [FileMatch.NONE, FileMatch.CONTENT])
@pytest.mark.parametrize("size", [1, 600_000])
def test_a_file_that_is_written_to_while_it_is_copied_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, same: FileMatch
) -> None:
    """Its content would be half old and half new: no backup has ever had that."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    for folder in (source, target):
        (folder / "file").write_bytes(b"a" * size)
        os.utime(folder / "file", (1, 1))
    links = scan_links(source, None, lambda: True)
    done = list[bool]()

    def changing(read: Callable[..., Any], *words: Any) -> Any:
        answer = read(*words)
        if not done:
            done.append(True)
            with (source / "file").open("r+b") as file:
                file.seek(size - 1)
                file.write(b"b")
        return answer

    for name in ("pread", "preadv"):  # a small file is read in one call
        monkeypatch.setattr(os, name, partial(changing, getattr(os, name)))
    with pytest.raises(OSError, match="during the import"):
        copied(partial(copy_tree, same=same), source, target, links)


@pytest.mark.parametrize("way", ["first", "changed"])
def test_a_folder_has_the_attributes_that_were_looked_at_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """They change while its files are copied. The next tree, whose folder is unchanged, would have the wrong ones, too."""
    before, source, target = (tmp_path / name for name in ("before", "source", "target"))
    for folder in (before, source, target):
        folder.mkdir()
    (source / "file").write_text("x")
    links = scan_links(source, before if way == "changed" else None, lambda: True)

    def changing(read: Callable[..., Any], *words: Any) -> Any:
        source.chmod(0o700)
        return read(*words)

    for name in ("pread", "preadv"):  # a small file is read in one call
        monkeypatch.setattr(os, name, partial(changing, getattr(os, name)))
    with pytest.raises(OSError, match="during the import"):
        copied(copy_changed if way == "changed" else copy_tree, source, target, links)
