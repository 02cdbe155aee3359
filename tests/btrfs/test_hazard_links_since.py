"""The hard link guard reads only leaves that were written since the base's run began, and must not miss a link.

The trees are large enough to have leaves that stay the same every night.
"""

import json
import os
from pathlib import Path

from tests.beds import work
from tests.beds.nights import Nights


def grow(tree: Path) -> None:
    """Makes two pairs of links at the ends of a tree of some hundred leaves."""
    for number in range(60):
        folder = tree / f"folder{number:02}"
        folder.mkdir(parents=True)
        for each in range(50):
            (folder / f"file{each:02}").write_bytes(os.urandom(100))
    for number in (5, 55):
        (tree / f"folder{number:02}" / "z-linked").hardlink_to(tree / f"folder{number - 5:02}" / "file07")


def replace(path: Path, *change: str | Path) -> None:
    """Breaks a link like a package manager: a changed copy that keeps the time takes the name."""
    work("cp", "-p", path, path.with_name("new"))
    work(*change, path.with_name("new"))
    path.with_name("new").rename(path)


def test_links_that_hold_for_nights_and_then_break_harm_no_name_in_a_tree_that_hardly_changes(nights: Nights) -> None:
    tree = nights.source / "srv"
    grow(tree)
    nights.host("web", tree)
    nights.run("web")
    for night in range(3):  # rsync makes the links again every night, the names in between stay in old leaves
        (tree / "folder30" / "file30").write_bytes(os.urandom(200 + night))
        nights.run("web")
        assert nights.differences("web", tree) == []
    replace(tree / "folder00" / "file07", "chmod", "600")
    replace(tree / "folder55" / "z-linked", "sh", "-c", 'echo new >"$0"')
    (tree / "folder20" / "late").hardlink_to(tree / "folder40" / "file11")
    nights.run("web")
    assert nights.differences("web", tree) == []
    replace(tree / "folder40" / "file11", "chown", "1234:5678")
    nights.run("web")
    assert nights.differences("web", tree) == []


def test_a_backup_that_does_not_say_that_its_run_split_the_links_is_searched_as_a_whole(nights: Nights) -> None:
    """For example one that an administrator made from an existing tree: its links may be older than it."""
    tree = nights.source / "srv"
    grow(tree)
    nights.host("web", tree)
    nights.run("web")
    name = make_it_look_old(nights)
    replace(tree / "folder00" / "file07", "chmod", "600")
    replace(tree / "folder55" / "z-linked", "sh", "-c", 'echo new >"$0"')
    nights.run("web")
    assert nights.grew_from("web") == name
    assert nights.differences("web", tree) == []


def make_it_look_old(nights: Nights) -> str:
    """Replaces the only backup by a snapshot of it, younger than all its links, whose record is another program's; returns its
    name.
    """
    (made,) = nights.names("web")
    name = f"2001{made[4:]}"
    work("btrfs", "filesystem", "sync", nights.pool)
    work("btrfs", "-q", "subvolume", "snapshot", nights.backup("web", made), nights.backup("web").with_name(name))
    work("btrfs", "-q", "subvolume", "delete", nights.backup("web", made))
    record = nights.record("web", name)
    assert record.pop("links_split") is True
    record |= {"name": name, "uuid": nights.subvolume("web", name)["UUID"], "started": f"2001{record['started'][4:]}"}
    (nights.backup("web", name) / "backup.json").write_text(json.dumps(record))
    work("btrfs", "property", "set", "-ts", nights.backup("web", name), "ro", "true")
    return name
