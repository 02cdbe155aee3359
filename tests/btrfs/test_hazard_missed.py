"""Unreadable and vanished files: complete with warnings within the limit, suspect beyond it, never complete without a report."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.beds import work
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
    """Writes new content that only root may read."""
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
    assert nights.data("web", files(tree, 1)[0]).read_bytes() == before  # the reason for the warning
    assert nights.status("web")["state"] == "ok"
    assert nights.status("web")["warnings"] == nights.listed("web")[0]["warnings"] == result["warnings"]
    for words in (["status"], ["status", "web"], ["list"], ["list", "web"]):
        output = nights.backupd(*words).stdout
        assert "3 could not be read" in output
        assert str(files(tree, 3)[2]) in output


def test_exactly_at_the_limit_is_not_beyond_it(nights: Nights, tree: Path) -> None:
    nights.host("web", tree, rsync_path=NOBODY)
    nights.run("web")
    names = nights.record("web")["totals"]["files"]
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
    nights.host("web", tree, rsync_path=NOBODY, unreadable_limit="15%")
    nights.run("web")
    shut(tree / "folder3")
    gone = tree / "folder1" / "file11"
    gone.unlink()
    result = nights.run("web")["web"]
    assert result["outcome"] == "complete"
    assert nights.data("web", gone).exists()
    assert nights.data("web", tree / "folder3" / "file33").exists()
    path = path_of(nights)
    assert (path["unreadable"], path["deletions_skipped"]) == (1 + 10, True)  # the folder, and what the base has below it
    words = "deletions were skipped"
    assert any(words in warning for warning in result["warnings"])
    assert any(words in warning for warning in nights.status("web")["warnings"])
    assert any(words in warning for warning in nights.listed("web")[0]["warnings"])
    for command in (["status"], ["status", "web"], ["list"], ["list", "web"], ["run", "web"]):
        assert words in nights.backupd(*command).stdout, command


def nested(tree: Path, count: int) -> Path:
    """Makes a folder with that many names below it, some of them deep, of all types."""
    top = tree / "deep"
    (top / "er" / "still").mkdir(parents=True)
    for number in range(count - 5):
        (top / ("er" if number % 2 else "er/still") / f"file{number}").write_text(f"content of {number}\n")
    (top / "link").symlink_to(tree)
    (top / "er" / "link out").symlink_to("/")
    os.mkfifo(top / "er" / "fifo")
    assert len(work("find", top, "-mindepth", "1").stdout.splitlines()) == count
    return top


@pytest.mark.parametrize("inplace", ["always", "large"])
def test_a_folder_that_cannot_be_read_counts_for_all_that_the_base_has_below_it(nights: Nights, tree: Path, inplace: str) -> None:
    top = nested(tree, 80)
    nights.host("web", tree, rsync_path=NOBODY, unreadable_limit="50%", inplace=inplace)
    nights.run("web")
    shut(top)
    assert nights.run("web")["web"]["warnings"][0].startswith(f"{tree}: 81 could not be read")
    nights.host("web", tree, rsync_path=NOBODY, unreadable_limit="30%", inplace=inplace)
    result = nights.run("web", status=1)["web"]
    assert result["outcome"] == nights.record("web")["state"] == "suspect"
    assert re.search(r"at least \d\d of 1\d\d files could not be read or kept \(3\d", result["error"]), result["error"]


def test_what_lies_below_two_folders_that_cannot_be_read_is_counted_once(nights: Nights, tree: Path) -> None:
    """A real rsync cannot reach the inner one; a hostile host reports it anyway."""
    top = nested(tree, 80)
    nights.host("web", tree, rsync_path=NOBODY, unreadable_limit="100%")
    nights.run("web")
    shut(top)
    host = nights.top / "host"
    line = f'rsync: [sender] opendir "{top}/er" failed: Permission denied (13)'
    host.write_text(f"#!/bin/sh\nfor number in 1 2 3; do echo '{line}'; done >&2\nexec {NOBODY} \"$@\"\n".replace(" rsync", ""))
    host.chmod(0o755)
    nights.host("web", tree, rsync_path=f"{host} rsync", unreadable_limit="100%")
    nights.run("web")
    assert path_of(nights)["unreadable"] == 1 + 80 + 3


@pytest.mark.parametrize("name", ["plain", "new\nline", 'quo"te', "Umlaut ä", "\\#012", "x" * 250])
def test_a_folder_of_any_name_that_cannot_be_read_counts_for_what_is_below_it(nights: Nights, tree: Path, name: str) -> None:
    top = nested(tree, 80).rename(tree / name)
    nights.host("web", tree, rsync_path=NOBODY, unreadable_limit="100%")
    nights.run("web")
    shut(top)
    nights.run("web")
    assert path_of(nights)["unreadable"] == 81


def test_a_folder_in_which_nothing_can_be_looked_at_counts_for_the_folders_in_it(nights: Nights, tree: Path) -> None:
    """It can be listed, but its entries cannot be read: rsync prints a line for each name in it, folder or not."""
    top = nested(tree, 80)
    nights.host("web", tree, rsync_path=NOBODY, unreadable_limit="100%")
    nights.run("web")
    top.chmod(0o744)
    nights.run("web")
    assert path_of(nights)["unreadable"] in (80, 81)  # a newer rsync cannot even open it


def test_a_folder_that_is_new_and_cannot_be_read_counts_once(nights: Nights, tree: Path) -> None:
    nights.host("web", tree, rsync_path=NOBODY, unreadable_limit="2%")
    shut(nested(tree, 80))
    for _ in range(2):
        nights.run("web")
        assert path_of(nights)["unreadable"] == 1


def test_behind_a_restricted_key_a_folder_that_cannot_be_read_counts_for_what_is_below_it(nights: Nights, tree: Path) -> None:
    """rrsync serves one folder as the root; the remote rsync reports its files with their whole paths."""
    top = nested(tree, 80)
    (tree / "ssh").write_text(
        "#!/bin/sh\nwhile getopts ':B:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:' o; do :; done\nshift $OPTIND\n"
        f'export SSH_ORIGINAL_COMMAND="$*"\nexec {NOBODY.removesuffix(" rsync")} rrsync -ro {tree.parent}\n'
    )
    (tree / "ssh").chmod(0o755)
    nights.ssh(str(tree / "ssh"))
    nights.host("web", f"/{tree.name}", unreadable_limit="100%")
    nights.run("web")
    shut(top)
    nights.run("web")
    assert path_of(nights)["unreadable"] == 81


def test_more_folders_than_can_be_counted_make_a_backup_suspect(
    nights: Nights, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backupd.rsync.messages.MOST_UNLISTED", 3)
    nights.host("web", tree, rsync_path=NOBODY, unreadable_limit="99%")
    nights.night("web")
    shut(*(tree / f"folder{number}" for number in range(3)))
    assert [result.outcome for result in nights.night("web")] == ["complete"]
    shut(tree / "folder3")
    (result,) = nights.night("web")
    assert result.outcome == "suspect"
    assert result.error is not None
    assert "cannot be counted" in result.error


MANY = 20


@pytest.fixture
def vanishing(nights: Nights) -> Path:
    """Sends a large file first; during that, later files are removed. The sender has already listed them."""
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
    """With inplace = "large" two rsyncs transfer a path, and each opens only its own files."""
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
