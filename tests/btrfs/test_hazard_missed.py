"""What could not be read and what vanished: complete with warnings within the limit, suspect beyond it, never a silent complete."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.beds.nights import Nights

NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups rsync"


@pytest.fixture
def tree(public_folder: Path) -> Path:
    """100 files in folders that a sender without root's rights can read."""
    for number in range(100):
        path = public_folder / f"folder{number // 10}" / f"file{number:02}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"content of {number}\n")
    return public_folder


def shut(*paths: Path) -> None:
    """New content, which nobody but root may read."""
    for path in paths:
        if path.is_file():
            path.write_bytes(os.urandom(path.stat().st_size))
        path.chmod(0)


def files(tree: Path, count: int) -> list[Path]:
    return sorted(tree.glob("*/*"))[:count]


def path_of(nights: Nights) -> dict[str, Any]:
    (path,) = nights.record("web")["paths"]
    return dict(path)


@pytest.mark.parametrize("inplace", ["always", "large"])
def test_unreadable_files_within_the_limit_make_a_complete_backup_with_a_warning(nights: Nights, tree: Path, inplace: str) -> None:
    nights.host("web", tree, rsync_path=NOBODY, unreadable_limit="5%", inplace=inplace)
    nights.run("web")
    before = files(tree, 1)[0].read_bytes()
    shut(*files(tree, 3))
    result = nights.run("web")["web"]
    assert result["outcome"] == "complete"
    names = ", ".join(map(str, files(tree, 3)))
    assert result["warnings"] == [f"{tree}: 3 could not be read (such as {names})"]
    path = path_of(nights)
    assert (path["unreadable"], path["exit_code"], path["deletions_skipped"]) == (3, 23, False)
    assert len(path["samples"]) == 3
    assert all(str(shut) in sample for shut, sample in zip(files(tree, 3), path["samples"], strict=True))
    assert nights.data("web", files(tree, 1)[0]).read_bytes() == before  # which is why it is said
    assert nights.status("web")["state"] == "ok"
    assert nights.status("web")["warnings"] == nights.listed("web")[0]["warnings"] == result["warnings"]
    for words in (["status"], ["status", "web"], ["list"], ["list", "web"]):
        said = nights.backupd(*words).stdout
        assert "3 could not be read" in said
        assert str(files(tree, 3)[2]) in said


def test_exactly_at_the_limit_is_not_beyond_it(nights: Nights, tree: Path) -> None:
    nights.host("web", tree, rsync_path=NOBODY)
    nights.run("web")
    names = nights.run("web")["web"]["files"]
    shut(*files(tree, 7))
    for number in range(700 - names):  # rsync counts every name, folders too
        (tree / f"more{number}").touch()
    assert nights.run("web")["web"]["outcome"] == "complete"
    (tree / "more1").unlink()
    result = nights.run("web", status=1)["web"]
    assert result["outcome"] == "suspect"
    assert "7 of 699 files could not be read" in result["error"]


def test_each_host_has_its_own_limit_of_unreadable_files(nights: Nights, tree: Path) -> None:
    nights.host("strict", tree, rsync_path=NOBODY, unreadable_limit="0%")
    nights.host("lenient", tree, rsync_path=NOBODY, unreadable_limit="50%")
    shut(*files(tree, 1))
    results = nights.run(status=1)
    assert {name: result["outcome"] for name, result in results.items()} == {"strict": "suspect", "lenient": "complete"}


def test_a_path_of_which_nothing_could_be_read_is_suspect_whatever_the_limit(nights: Nights, tree: Path) -> None:
    nights.host("web", tree, rsync_path=NOBODY, unreadable_limit="100%")
    nights.run("web")
    shut(*files(tree, 100))
    result = nights.run("web", status=1)["web"]
    assert result["outcome"] == "suspect"
    assert "nothing could be read" in result["error"]
    assert nights.status("web")["state"] == "suspect"


def test_a_folder_that_cannot_be_read_skips_deletions_and_that_is_said_everywhere(nights: Nights, tree: Path) -> None:
    nights.host("web", tree, rsync_path=NOBODY, unreadable_limit="5%")
    nights.run("web")
    shut(tree / "folder3")
    gone = tree / "folder1" / "file11"
    gone.unlink()
    result = nights.run("web")["web"]
    assert result["outcome"] == "complete"
    assert nights.data("web", gone).exists()
    assert nights.data("web", tree / "folder3" / "file33").exists()
    path = path_of(nights)
    assert (path["unreadable"], path["deletions_skipped"]) == (1, True)
    words = "deletions were skipped"
    assert any(words in warning for warning in result["warnings"])
    assert any(words in warning for warning in nights.status("web")["warnings"])
    assert any(words in warning for warning in nights.listed("web")[0]["warnings"])
    for command in (["status"], ["status", "web"], ["list"], ["list", "web"], ["run", "web"]):
        assert words in nights.backupd(*command).stdout, command


MANY = 20


@pytest.fixture
def vanishing(nights: Nights) -> Path:
    """A large file is sent first; while it is, files behind it are removed. The sender has listed them already."""
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "a-large").write_bytes(os.urandom(4_000_000))
    (tree / "keep").write_text("stays")
    for number in range(MANY):
        (tree / f"z{number:02}").write_bytes(os.urandom(5000))
    nights.in_the_middle(1_000_000, f"rm {tree}/z*")
    return tree


def test_files_that_vanish_make_a_complete_backup_and_are_counted(nights: Nights, vanishing: Path) -> None:
    nights.host("web", vanishing)
    result = nights.run("web")["web"]
    path = path_of(nights)
    assert path["exit_code"] == 24
    assert (path["vanished"], path["unreadable"]) == (MANY, 0)
    assert result["outcome"] == "complete"
    assert result["warnings"][0].startswith(f"{vanishing}: {MANY} vanished while they were read")
    assert [line for line in nights.differences("web", vanishing) if not line.startswith("b'': mtime")] == []
    assert len(path["samples"]) == 5
    assert str(vanishing / "z00") in path["samples"][0]


def test_vanished_files_do_not_hide_that_deletions_stopped_at_a_limit(nights: Nights, vanishing: Path) -> None:
    nights.host("web", vanishing)
    nights.ssh("")
    for number in range(10):
        (vanishing / f"old{number}").write_text("goes")
    nights.run("web")
    for old in vanishing.glob("old*"):
        old.unlink()
    (vanishing / "a-large").write_bytes(os.urandom(4_000_000))
    for number in range(MANY):
        (vanishing / f"z{number:02}").write_bytes(os.urandom(5000))
    nights.in_the_middle(1_000_000, f"rm {vanishing}/z*")
    limited = nights.rsync('case " $* " in *--list-only*|*-V*) exec $REAL "$@";; *--server*) exec $REAL "$@";; esac\n'
                           'exec $REAL --max-delete=3 "$@"')  # fmt: skip
    result = nights.run("web", status=1, env=limited)["web"]
    path = path_of(nights)
    assert path["exit_code"] == 24  # rsync has one exit status and no room for the 25
    assert path["vanished"] == MANY
    assert result["outcome"] == nights.record("web")["state"] == "suspect"
    assert "deletions stopped at a limit" in result["error"]
    assert len(list(nights.data("web", vanishing).glob("old*"))) == 7
    assert nights.status("web")["state"] == "suspect"


def test_deletions_that_stop_at_a_limit_alone_make_a_suspect_backup(nights: Nights, tree: Path) -> None:
    nights.host("web", tree)
    nights.run("web")
    for path in files(tree, 10):
        path.unlink()
    env = nights.rsync('case " $* " in *-V*|*--server*) exec $REAL "$@";; esac\nexec $REAL --max-delete=3 "$@"')
    assert nights.run("web", status=1, env=env)["web"]["outcome"] == "suspect"
    assert path_of(nights)["exit_code"] == 25


def test_what_only_the_first_of_two_passes_missed_is_not_forgotten(nights: Nights, tree: Path) -> None:
    """With inplace = "large" two rsyncs look at a path, and each opens only its own files."""
    large, small = tree / "large", files(tree, 1)[0]
    large.write_bytes(os.urandom(2_000_000))
    nights.host("web", tree, rsync_path=NOBODY, inplace="large", unreadable_limit="2%")
    nights.run("web")
    shut(large, small)
    result = nights.run("web")["web"]
    assert result["warnings"] == [f"{tree}: 2 could not be read (such as {large}, {small})"]
    assert (path_of(nights)["exit_code"], path_of(nights)["unreadable"]) == (23, 2)
    shut(large, *files(tree, 2))
    assert nights.run("web", status=1)["web"]["outcome"] == "suspect"  # one and two make three of 113
