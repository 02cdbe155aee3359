"""Hard links that break at the source: no other name of them may get the new content, owner, mode, ACL or xattr."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import manifest, work
from tests.beds.nights import Nights

SIZE = 200_000
Change = Callable[[Path], None]


def content(path: Path) -> None:
    """Changes a file like editors and package managers: a new file under another name is renamed over the old one."""
    new = path.with_name("new")
    new.write_bytes(os.urandom(SIZE))
    os.utime(new, ns=(0, path.stat().st_mtime_ns + 1))
    new.rename(path)


def attribute(*words: str) -> Change:
    """Changes only an attribute, on a copy that keeps the time: rsync has no reason to read the content."""

    def change(path: Path) -> None:
        work("cp", "-p", "--preserve=all", path, path.with_name("new"))
        work(*words, path.with_name("new"))
        path.with_name("new").rename(path)

    return change


CHANGES: dict[str, Change] = {
    "content": content,
    "mode": attribute("chmod", "600"),
    "owner": attribute("chown", "1234:5678"),
    "acl": attribute("setfacl", "-m", "u:1234:rw,g:99:r"),
    "xattr": attribute("setfattr", "-n", "user.note", "-v", "new"),
}


def link(top: Path, *names: str, size: int = SIZE) -> None:
    first, *others = (top / name for name in names)
    first.parent.mkdir(parents=True, exist_ok=True)
    first.write_bytes(os.urandom(size))
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.hardlink_to(first)


@pytest.fixture
def tree(nights: Nights) -> Path:
    """Pairs for each change, of which the first or the last name will be changed; and links that remain."""
    tree = nights.source / "srv"
    for change in CHANGES:
        link(tree, f"{change}-first/a", f"{change}-first/b")
        link(tree, f"{change}-last/a", f"{change}-last/b", f"{change}-last/c")
    link(tree, "holds/a", "holds/b", "z-holds")
    link(tree, "large/a", "large/b", "large/holds", size=2_000_000)
    return tree


def break_links(tree: Path) -> None:
    for name, change in CHANGES.items():
        change(tree / f"{name}-first" / "a")
        change(tree / f"{name}-last" / "c")
    content(tree / "large" / "b")


@pytest.mark.parametrize("inplace", ["always", "large", "never"])
def test_a_hard_link_broken_at_the_source_harms_no_name_and_links_that_hold_stay(nights: Nights, tree: Path, inplace: str) -> None:
    nights.host("web", tree, inplace=inplace)
    nights.run("web")
    assert nights.differences("web", tree) == []

    break_links(tree)
    nights.run("web")
    assert nights.differences("web", tree) == []
    assert manifest(nights.data("web", tree))[b"holds/a"].links == (b"holds/a", b"holds/b", b"z-holds")

    for name, change in CHANGES.items():  # the other name's turn; the pair is still one inode nowhere
        change(tree / f"{name}-first" / "b")
        (tree / f"{name}-last" / "b").unlink()
        (tree / f"{name}-last" / "b").hardlink_to(tree / f"{name}-last" / "c")
    nights.run("web")
    assert nights.differences("web", tree) == []

    still = nights.run("web")["web"]
    assert nights.differences("web", tree) == []
    assert still["new_bytes"] == 0  # no tug of war: a night without changes brings nothing


def test_hard_links_between_nights_may_come_and_go_in_turns(nights: Nights) -> None:
    tree = nights.source / "srv"
    link(tree, "a", "b")
    nights.host("web", tree)
    nights.run("web")
    for night in range(4):
        name, other = ("a", "b") if night % 2 else ("b", "a")
        if night < 2:
            content(tree / name)
        else:
            (tree / name).unlink()
            (tree / name).hardlink_to(tree / other)
            content(tree / name)
        nights.night("web")
        assert nights.differences("web", tree) == []


def grown(tree: Path) -> None:
    """A large file before other links, so that a transfer can be interrupted after it."""
    (tree / "m-large").write_bytes(os.urandom(6_000_000))


@pytest.mark.parametrize("inplace", ["always", "never"])
def test_a_link_that_breaks_before_an_unfinished_backup_is_continued_harms_no_name(
    nights: Nights, tree: Path, inplace: str
) -> None:
    grown(tree)
    nights.host("web", tree, inplace=inplace)
    nights.run("web")
    grown(tree)
    nights.in_the_middle(2_000_000, end="dies")
    (cut,) = nights.night("web")
    assert cut.outcome == "partial"
    assert (nights.working("web", tree) / "content-first" / "a").stat().st_nlink == 2  # rsync had made the links again

    break_links(tree)
    nights.ssh("")
    nights.run("web")
    assert nights.differences("web", tree) == []


def test_a_link_that_breaks_between_two_attempts_of_a_run_harms_no_name(nights: Nights, tree: Path) -> None:
    grown(tree)
    nights.host("web", tree, attempts=3)
    nights.run("web")
    grown(tree)
    new = nights.top / "new"
    new.write_bytes(os.urandom(SIZE))
    command = f"test $(stat -c %h {nights.working('web', tree)}/content-first/a) = 2 && mv {new} {tree}/content-first/a"
    nights.in_the_middle(2_000_000, command, end=f"dies-once:{nights.top}/once")
    (result,) = nights.night("web")
    assert (result.outcome, result.attempts) == ("complete", 2)
    assert not new.exists()
    assert nights.differences("web", tree) == []


def test_a_first_backup_that_was_cut_keeps_broken_links_apart_too(nights: Nights, tree: Path) -> None:
    grown(tree)
    nights.host("web", tree)
    nights.in_the_middle(14_000_000, end="dies")
    nights.run("web", status=1)
    assert nights.names("web") == []

    break_links(tree)
    nights.ssh("")
    nights.run("web")
    assert nights.record("web")["base"] is None
    assert nights.differences("web", tree) == []


def test_links_of_one_source_path_stay_when_another_path_is_tried_again(nights: Nights) -> None:
    path, two = nights.source / "one", nights.source / "two"
    link(path, "a", "b")
    link(two, "a", "b", size=3_000_000)
    nights.host("web", path, two, attempts=2)
    nights.run("web")
    content(two / "a")
    nights.in_the_middle(1_000_000, end=f"dies-once:{nights.top}/once")
    (result,) = nights.night("web")
    assert result.outcome == "complete"
    assert nights.differences("web", path) == []
    assert nights.differences("web", two) == []


def test_a_linked_file_that_grows_large_between_the_two_passes_over_a_path_harms_no_other_name(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With inplace = "large" the first rsync makes links, and the second one must not write through them."""
    tree = nights.source / "srv"
    link(tree, "a", "b")
    link(tree, "large", "large-too", size=2_000_000)
    nights.host("web", tree, inplace="large")
    nights.run("web")
    for name, size in (("a", 3_000_000), ("large", 1000)):
        (nights.top / name).write_bytes(os.urandom(size))
    harm = f"mv {nights.top}/a {tree}/a; mv {nights.top}/large {tree}/large"
    count = f"echo x >> {nights.top}/count; [ $(wc -l < {nights.top}/count) != 2 ] || {{ {harm}; }}"
    env = nights.rsync(f'case " $* " in *" -VV "*|*" --version "*|*" --server "*);; *) {count};; esac\nexec $REAL "$@"')
    monkeypatch.setenv("PATH", env["PATH"])
    nights.night("web")
    assert (nights.top / "count").read_text() == "x\nx\n"
    assert not (nights.top / "a").exists()
    for name in ("b", "large-too"):
        assert (nights.data("web", tree) / name).read_bytes() == (tree / name).read_bytes(), name
    monkeypatch.undo()
    nights.run("web")
    assert nights.differences("web", tree) == []
