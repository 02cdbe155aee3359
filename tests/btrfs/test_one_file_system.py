"""Omissions of `one_file_system` are reported: nested subvolumes, and mounts below a source path."""

import json
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import pytest

from backupd.repo.backup_json import PathOutcome, PathResult, Record
from backupd.rsync.host_answers import is_expected
from backupd.run.other_file_systems import are_too_many, was_hidden
from btrkeep.units import local_time, parse_time
from tests.beds import TOP, work
from tests.beds.nights import Nights
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.root, pytest.mark.btrfs]


@pytest.fixture
def tree(nights: Nights) -> Path:
    """A host's btrfs with a nested subvolume, as distributions make /home."""
    tree = nights.source / "host"
    (tree / "etc").mkdir(parents=True)
    (tree / "empty").mkdir()
    (tree / "etc" / "file").write_text("of the host")
    subvolume(tree / "home", "chapter 1")
    return tree


def subvolume(path: Path, text: str) -> None:
    work("btrfs", "subvolume", "create", path)
    (path / "thesis").write_text(text)


def counted(nights: Nights) -> Path:
    """Returns a file with one line for each connection to a host from now on."""
    log = nights.top / "connections"
    nights.ssh(f"sh -c 'echo >>{log}; exec \"$@\"' sh {Path(__file__).resolve().parents[1] / 'fakessh'}")
    return log


def test_a_nested_subvolume_is_reported_each_night_and_asked_for_once(nights: Nights, tree: Path) -> None:
    log = counted(nights)
    nights.host("h", tree, one_file_system=True)
    (warning,) = nights.run("h")["h"]["warnings"]
    assert f"excludes the files in {tree / 'home'}: " in warning
    assert list((nights.data("h", tree) / "home").iterdir()) == []
    assert len(log.read_text().splitlines()) == 2

    (tree / "etc" / "new").write_text("x")
    (again,) = nights.run("h")["h"]["warnings"]
    assert again == warning
    assert len(log.read_text().splitlines()) == 3  # nothing that could be such a folder has changed

    subvolume(tree / "etc" / "deep", "a later one")
    (both,) = nights.run("h")["h"]["warnings"]
    assert str(tree / "home") in both
    assert str(tree / "etc" / "deep") in both

    nights.host("h", tree, one_file_system=True, exclude=[str(tree / "home"), str(tree / "etc" / "deep")])
    assert nights.run("h")["h"]["warnings"] == []


def test_what_is_left_out_is_named_with_its_start_as_long_as_the_newest_backup_leaves_it_out(nights: Nights, tree: Path) -> None:
    nights.host("h", tree, one_file_system=True)
    nights.run("h")
    first = nights.record("h")["started"]
    env = nights.rsync('case " $* " in *--info=mount*) echo "no more logins" >&2; exit 12;; esac\nexec "$REAL" "$@"')
    subvolume(tree / "etc" / "deep", "a later one")  # so the host is asked again, in vain
    nights.run("h", env=env)
    home = tree / "home"
    remark = f"{home} has been excluded by `one_file_system` since {local_time(parse_time(first))} (2 backups in a row)"
    commands = (("status", "h"), ("browse", "h", tree), ("browse", "h", home), ("versions", "h", home))
    restore = ("restore", "h", tree, "--to", nights.top / "back", "--dry-run")
    for words in (*commands, restore):
        assert remark in " ".join(nights.backupd(*words).stdout.split()), words
    assert "left out" not in nights.backupd("browse", "h", tree / "etc" / "file").stdout
    for command, path in (("browse", tree), ("versions", home)):
        answer = nights.json(command, "h", str(path))
        assert answer.get("backup", answer)["left_out"] == [{"path": str(home), "since": first}]

    nights.host("h", tree, exclude=[str(home)], one_file_system=True)
    nights.run("h")
    remaining = [condition["name"] for condition in nights.record("h")["lasting"]]
    assert remaining == [str(tree / "etc" / "deep")]
    nights.host("h", tree)
    nights.run("h")
    assert "lasting" not in nights.record("h")
    assert "left out" not in nights.backupd("browse", "h", tree).stdout


def test_old_files_of_a_subvolume_that_is_left_out_from_now_on_are_not_taken_for_new(nights: Nights, tree: Path) -> None:
    nights.host("h", tree)
    assert nights.run("h")["h"]["warnings"] == []
    (tree / "home" / "thesis").write_text("chapters 1 to 9")
    nights.host("h", tree, one_file_system=True)
    for _ in range(2):
        (warning,) = nights.run("h")["h"]["warnings"]
        assert str(tree / "home") in warning
        assert "the backup still contains the old files there" in warning
        assert (nights.data("h", tree) / "home" / "thesis").read_text() == "chapter 1"


def test_what_cannot_be_asked_for_is_not_called_nothing_and_is_asked_for_again(nights: Nights, tree: Path) -> None:
    nights.host("h", tree, one_file_system=True)
    env = nights.rsync('case " $* " in *--info=mount*) echo "no more logins" >&2; exit 12;; esac\nexec "$REAL" "$@"')
    result = nights.run("h", env=env)["h"]
    assert result["outcome"] == "complete"
    (warning,) = result["warnings"]
    assert "could not list the folders that `one_file_system` excludes" in warning
    (warning,) = nights.run("h")["h"]["warnings"]
    assert str(tree / "home") in warning


@pytest.mark.parametrize("confine", ["auto", "never"])
def test_a_run_that_is_stopped_while_it_asks_ends_at_once_and_keeps_the_backup(nights: Nights, tree: Path, confine: str) -> None:
    asked = nights.top / "asked"
    fakessh = Path(__file__).resolve().parents[1] / "fakessh"
    script = f'[ -e {asked}.1 ] && {{ : >{asked}.2; exec sleep 300; }}; : >{asked}.1; exec {fakessh} "$@"'
    nights.ssh(f"sh -c {shlex.quote(script)} sh")
    nights.host("h", tree, one_file_system=True)
    nights.settings("backup", confine=confine)
    nights.write()
    words = [sys.executable, "-m", "backupd", "--config", str(nights.config), "run", "h"]
    with Popen(words, cwd=TOP) as run:
        try:
            wait_for(lambda: Path(f"{asked}.2").exists())
            run.send_signal(signal.SIGTERM)
            assert run.wait(60) == 143
        finally:
            run.kill()
    record = nights.record("h")
    assert record["state"] == "complete"
    assert any("could not list the folders that `one_file_system` excludes" in warning for warning in record["warnings"])


def test_a_path_of_which_most_bytes_are_not_listed_any_more_is_suspect(nights: Nights, tree: Path) -> None:
    (images := tree / "images").mkdir()
    (images / "vm").write_bytes(bytes(range(256)) * (32 << 10))
    for number in range(20):
        (tree / "etc" / str(number)).write_text("small")
    nights.host("h", tree, one_file_system=True)
    assert nights.run("h")["h"]["outcome"] == "complete"
    images.rename(tree / "gone")
    work("btrfs", "subvolume", "create", images)  # a disk that is mounted there; what it hides is neither listed nor deleted
    (tree / "gone" / "vm").unlink()
    result = nights.run("h", status=1)["h"]
    assert result["outcome"] == "suspect", result
    assert (nights.working("h", images) / "vm").exists() or (nights.data("h", images, nights.names("h")[-1]) / "vm").exists()


def test_a_folder_that_is_only_empty_is_not_reported(nights: Nights, tree: Path) -> None:
    nights.host("h", tree / "etc", tree / "empty", one_file_system=True)
    assert nights.run("h")["h"]["warnings"] == ["contains no file"] or nights.record("h")["paths"][0]["left_out"] == []
    (tree / "etc" / "later").mkdir()
    assert nights.run("h")["h"]["warnings"] == []
    (tree / "etc" / "later" / "file").write_text("x")
    assert nights.run("h")["h"]["warnings"] == []


def test_connect_reports_what_would_be_left_out(nights: Nights, tree: Path) -> None:
    nights.host("h", tree, one_file_system=True)
    answer = json.loads(nights.backupd("check", "--connect", "--json", check=False).stdout)
    levels = {each["level"]: each["message"] for each in answer if each["subject"] == "h"}
    assert set(levels) == {"ok", "note"}
    assert str(tree / "home") in levels["note"]


EXPECTED = ["/proc", "/run/user/0", "/tmp", "/snap/core/1", "/var/lib/docker/overlay2/a1/merged"]


@pytest.mark.parametrize("folder", EXPECTED)
def test_what_each_system_mounts_is_expected(folder: str) -> None:
    assert is_expected(folder, "/")


@pytest.mark.parametrize("folder", ["/home", "/tmp/data", "/srv/run", "/procs", "/var/lib/docker"])
def test_all_else_is_not_nor_what_the_configuration_names(folder: str) -> None:
    assert not is_expected(folder, "/")
    assert not is_expected("/dev/shm/data/disk", "/dev/shm/data")


def test_files_that_were_neither_listed_nor_deleted_are_noticed() -> None:
    record = Record("h", "uuid", "complete", parse_time("2026-11-28T22:00:00Z"))
    before = PathResult("/srv", PathOutcome.COMPLETE, numbers={"files": 100}, left_out=())
    result = PathResult("/srv", PathOutcome.COMPLETE, numbers={"files": 104, "created": 9, "deleted": 5})
    assert not was_hidden(record, before, result)
    assert was_hidden(record, before, replace(result, numbers={"files": 94, "created": 9, "deleted": 5}))
    assert was_hidden(record, replace(before, left_out=None), result)
    assert not was_hidden(record, before, replace(result, numbers={"files": 94}))  # an rsync that counts neither


def test_folders_of_which_the_rules_would_use_up_the_memory_are_asked_for_with_all_others() -> None:
    """Each rule has the whole path of a folder above it: for the deep folders of a host that would be hundreds of millions of
    bytes.
    """
    assert not are_too_many([f"/var/lib/docker/volumes/volume-{number}/_data/cache" for number in range(200)])
    assert are_too_many([f"/{number}{1800 * '/d'}" for number in range(30)])
    assert are_too_many([f"/{number}" for number in range(201)])
