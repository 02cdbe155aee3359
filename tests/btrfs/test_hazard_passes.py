"""inplace = "large" reads a path twice, and the host changes in between."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import exclusive_bytes, work
from tests.beds.badssh import FAKESSH
from tests.beds.nights import Nights

MIB = 1 << 20


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "small").write_bytes(os.urandom(MIB // 2))
    (tree / "large").write_bytes(os.urandom(4 * MIB))
    (tree / "stays").write_text("unchanged")
    nights.host("web", tree, inplace="large", shrink_limit="100%")
    nights.run("web")
    return tree


@pytest.fixture
def between(nights: Nights) -> Callable[[str], None]:
    """`between(COMMANDS)`: shell lines that are run when the second rsync of a night starts."""

    def arrange(commands: str) -> None:
        script, count = nights.top / "second", nights.top / "count"
        script.write_text(
            f"#!/bin/sh -e\necho >> {count}\nif [ $(wc -l < {count}) = 2 ]; then\n{commands}\nfi\n"
            f'exec {shlex.quote(str(FAKESSH))} "$@"\n'
        )
        script.chmod(0o755)
        nights.ssh(shlex.quote(str(script)))

    return arrange


def test_a_file_that_crosses_the_limit_between_the_passes_is_in_the_backup_as_it_is(
    nights: Nights, tree: Path, between: Callable[[str], None]
) -> None:
    (tree / "one").write_text("small")
    between(
        f"""cd {tree}
        head -c {3 * MIB} /dev/urandom > small
        head -c {2 * MIB} /dev/urandom > one
        head -c {2 * MIB} /dev/urandom > new
        head -c 1000 /dev/urandom > large
        rm stays"""
    )
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
    assert sorted(path.name for path in nights.data("web", tree).iterdir()) == ["large", "new", "one", "small"]


def test_a_file_that_shrinks_between_the_passes_is_in_the_backup_as_it_is(
    nights: Nights, tree: Path, between: Callable[[str], None]
) -> None:
    (tree / "large").write_bytes(os.urandom(4 * MIB))
    between(f"head -c 1000 /dev/urandom > {tree}/large")
    nights.run("web")
    assert nights.differences("web", tree) == []


@pytest.mark.parametrize("size", [1000, 2 * MIB])
def test_a_hard_link_that_is_broken_between_the_passes_corrupts_no_other_name(
    nights: Nights, tree: Path, between: Callable[[str], None], size: int
) -> None:
    """One name gets new content; of the other only the mode changes, its time and size do not."""
    for name in ("content", "mode"):
        (tree / name).write_bytes(os.urandom(1000))
        (tree / f"{name} too").hardlink_to(tree / name)
    between(
        f"""cd {tree}
        head -c {size} /dev/urandom > new; mv new content
        cp -p mode new; chmod 600 new; mv new mode
        ln small 'small too'"""
    )
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
    assert nights.run("web")["web"]["new_bytes"] == 0


def test_a_large_file_is_still_written_in_place_and_a_small_one_anew(nights: Nights, tree: Path) -> None:
    numbers = {name: nights.data("web", tree / name).stat().st_ino for name in ("small", "large")}
    for name in numbers:
        with (tree / name).open("r+b") as file:
            file.write(b"changed")
    nights.run("web")
    path = nights.data("web", tree)
    assert (path / "large").stat().st_ino == numbers["large"]
    assert (path / "small").stat().st_ino != numbers["small"]
    assert MIB // 2 <= exclusive_bytes(nights.backup("web")) < MIB
    work("cmp", tree / "large", path / "large")


def test_what_is_unreadable_counts_once_in_two_passes_and_the_second_is_made_also_when_it_is_too_much(
    nights: Nights, tree: Path, public_folder: Path
) -> None:
    for name in "abcd":
        (public_folder / name).write_text(name)
    (public_folder / "large").write_bytes(os.urandom(2 * MIB))
    user = "setpriv --reuid=65534 --regid=65534 --clear-groups rsync"
    nights.host("web", public_folder, inplace="large", rsync_path=user, unreadable_limit="0%")
    nights.run("web")
    (public_folder / "large").write_bytes(os.urandom(2 * MIB))
    (public_folder / "a").write_text("changed")
    (public_folder / "a").chmod(0)
    assert nights.run("web", status=1)["web"]["outcome"] == "suspect"
    assert nights.record("web")["paths"][0]["unreadable"] == 1
    work("cmp", public_folder / "large", nights.data("web", public_folder / "large"))
