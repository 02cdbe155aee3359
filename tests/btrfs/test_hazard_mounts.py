"""A folder whose content is missing although the folder did not change: a missing mount is not a deletion.

Below `shrink_limit`, which notices only the loss of a large part of a source path.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.repo.backup_json import Record
from backupd.run import finalisation
from backupd.run.emptied import judged
from backupd.run.finalisation import WorkSubvolume
from btrkeep.pool.marker import Pool
from btrkeep.process.progress import Cancellation
from tests.beds import work
from tests.beds.nights import Nights

LONG_AGO = time.time() - 400 * 86400


def fill(folder: Path, count: int, size: int = 1000) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"file{number}").write_bytes(os.urandom(size))
    return folder


def mount_point(folder: Path) -> Path:
    folder.mkdir()
    os.utime(folder, (LONG_AGO, LONG_AGO))
    return folder


@contextmanager
def mounted(folder: Path) -> Iterator[None]:
    work("mount", "-t", "tmpfs", "none", folder)
    try:
        yield
    finally:
        work("umount", folder)


def a_night_with_a_mount(nights: Nights, *, files: int = 20, size: int = 1000, **keys: object) -> tuple[Path, Path]:
    """Makes the source path, and a mount in it during its first night only, with a tenth of its files."""
    tree = fill(nights.source / "srv", 180)
    point = mount_point(tree / "disk")
    nights.host("web", tree, **keys)
    with mounted(point):
        fill(point / "in" / "it", files, size)
        nights.run("web")
    return tree, point


def test_a_filesystem_that_is_no_longer_mounted_makes_the_backup_suspect_until_it_is_back(nights: Nights) -> None:
    tree, point = a_night_with_a_mount(nights)
    good = nights.names("web")[0]
    (tree / "file3").write_text("a change")
    result = nights.run("web", status=1)["web"]
    assert result["outcome"] == "suspect"
    assert result["error"].startswith(f"{tree}: {point} is empty")
    assert nights.record("web")["state"] == nights.listed("web")[0]["state"] == nights.status("web")["state"] == "suspect"
    assert nights.differences("web", tree) == []  # the backup has the listed files

    nights.run("web", status=1)  # against the good one again
    assert nights.record("web")["base"] == good
    with mounted(point):
        fill(point / "in" / "it", 20)
        assert nights.run("web")["web"]["outcome"] == "complete"
        assert nights.record("web")["base"] == good
        assert nights.differences("web", tree) == []


def test_an_accepted_one_is_the_base_of_complete_ones(nights: Nights) -> None:
    a_night_with_a_mount(nights)
    nights.run("web", status=1)
    nights.backupd("accept", "web", "latest", "--why", "that disk is gone for good")
    assert nights.run("web")["web"]["outcome"] == "complete"


def test_a_folder_whose_files_were_removed_is_no_such_folder(nights: Nights) -> None:
    tree = fill(nights.source / "srv", 180)
    folder = fill(tree / "cache", 20)
    nights.host("web", tree)
    nights.run("web")
    for path in folder.iterdir():
        path.unlink()
    result = nights.run("web")["web"]
    assert (result["outcome"], result["warnings"]) == ("complete", [])
    assert list(nights.data("web", folder).iterdir()) == []


def test_few_files_are_a_warning_that_names_the_folder(nights: Nights) -> None:
    _, point = a_night_with_a_mount(nights, files=1, unreadable_limit="2%")
    result = nights.run("web")["web"]
    assert result["outcome"] == "complete"
    (warning,) = result["warnings"]
    assert str(point) in warning
    assert "3 files" in warning  # with the two folders


def test_few_files_of_many_bytes_are_no_trifle(nights: Nights) -> None:
    a_night_with_a_mount(nights, files=1, size=1_000_000, unreadable_limit="10%", shrink_limit="95%")
    assert nights.run("web", status=1)["web"]["outcome"] == "suspect"


def sparse_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.write(b"x" * 4096)


def test_holes_are_no_bytes_of_which_the_lost_ones_are_a_small_part(nights: Nights) -> None:
    tree = fill(nights.source / "srv", 180)
    sparse_file(tree / "image")
    point = mount_point(tree / "disk")
    nights.host("web", tree, unreadable_limit="10%", shrink_limit="95%")
    with mounted(point):
        fill(point / "in", 1, 1_000_000)
        nights.run("web")
    assert nights.run("web", status=1)["web"]["outcome"] == "suspect"


def test_a_sparse_file_that_is_not_mounted_any_more_has_few_bytes(nights: Nights) -> None:
    tree = fill(nights.source / "srv", 180)
    point = mount_point(tree / "disk")
    nights.host("web", tree, unreadable_limit="10%", shrink_limit="95%")
    with mounted(point):
        sparse_file(point / "image")
        nights.run("web")
    result = nights.run("web")["web"]
    assert result["outcome"] == "complete"
    assert str(point) in result["warnings"][0]


def test_it_is_seen_when_the_night_was_killed_before_and_goes_on(nights: Nights) -> None:
    tree, _ = a_night_with_a_mount(nights)
    fill(tree / "new", 1, 20_000_000)
    nights.in_the_middle(4_000_000, end="dies")
    nights.run("web", status=1)
    assert nights.listed("web")[0]["state"] == "partial"
    nights.ssh("")
    result = nights.run("web", status=1)["web"]
    assert (result["outcome"], "is empty" in result["error"]) == ("suspect", True)


def test_what_the_configuration_leaves_out_from_now_on_is_a_warning_and_never_suspect(nights: Nights) -> None:
    tree = fill(nights.source / "srv", 180)
    folder = fill(tree / "cache", 20)
    os.utime(folder, (LONG_AGO, LONG_AGO))
    nights.host("web", tree)
    nights.run("web")
    nights.host("web", tree, exclude=[f"{folder}/*"])
    result = nights.run("web")["web"]
    assert list(nights.data("web", folder).iterdir()) == []
    assert result["outcome"] == "complete"
    (warning,) = result["warnings"]
    assert str(folder) in warning
    assert "`exclude` was changed" in warning
    assert nights.run("web")["web"]["warnings"] == []


def test_a_mount_that_is_missing_when_another_exclusion_ends_is_seen(nights: Nights) -> None:
    a_night_with_a_mount(nights, exclude=["*.tmp", "*.bak"])
    nights.host("web", nights.source / "srv", exclude=["*.tmp"])
    assert nights.run("web", status=1)["web"]["outcome"] == "suspect"


def test_an_rsync_that_does_not_count_deletions_hides_no_missing_mount(nights: Nights) -> None:
    a_night_with_a_mount(nights)
    env = nights.rsync('exec "$REAL" --protocol=30 "$@"')
    result = nights.run("web", status=1, env=env)["web"]
    numbers = nights.record("web")["paths"][0]["numbers"]
    assert "deleted" not in numbers, numbers
    assert (result["outcome"], "is empty" in result["error"]) == ("suspect", True)


def of_tomorrow(nights: Nights) -> None:
    (result,) = nights.night("web", now=datetime.now(UTC) + timedelta(days=1))
    assert result.outcome == "complete"


def test_a_base_of_the_future_makes_no_missing_mount_of_deleted_files(nights: Nights) -> None:
    tree = fill(nights.source / "srv", 180)
    folder = fill(tree / "cache", 20)
    nights.host("web", tree)
    of_tomorrow(nights)
    for path in folder.iterdir():
        path.unlink()
    result = nights.run("web", status=1)["web"]
    assert result["outcome"] == "suspect"
    assert "of that backup is in the future" in result["error"]
    nights.backupd("accept", "web", "latest", "--why", "they were deleted")
    assert nights.run("web")["web"]["outcome"] == "complete"


def test_a_missing_mount_is_seen_although_the_base_is_of_the_future(nights: Nights) -> None:
    tree = fill(nights.source / "srv", 180)
    point = mount_point(tree / "disk")
    nights.host("web", tree)
    with mounted(point):
        fill(point / "in", 20)
        of_tomorrow(nights)
    result = nights.run("web", status=1)["web"]
    assert (result["outcome"], "nothing was deleted there" in result["error"]) == ("suspect", True)


@pytest.mark.parametrize(("seconds", "words"), [(30.0, "is empty"), (0.0, "could not be compared")])
def test_a_run_that_is_stopped_after_its_rsync_is_never_complete_without_the_comparison(
    nights: Nights, monkeypatch: pytest.MonkeyPatch, seconds: float, words: str
) -> None:
    a_night_with_a_mount(nights)
    monkeypatch.setattr("backupd.run.emptied.AFTER_STOP", seconds)
    finalise = finalisation.finalise

    def stopped(pool: Pool, prepared: WorkSubvolume, record: Record, *args: Any, judge: Any, **keys: Any) -> tuple[Path, Record]:
        base = prepared.base
        assert base is not None
        assert base.name is not None
        cancelled = Cancellation()
        cancelled.handle_signal(15)

        def judge_after(record: Record) -> Record:
            return judged(record, prepared.path, base, pool.host("web") / str(base.name), 0.01, cancelled)

        return finalise(pool, prepared, record, *args, judge=judge_after, **keys)

    monkeypatch.setattr(finalisation, "finalise", stopped)
    (result,) = nights.night("web")
    assert (result.outcome, words in str(result.error)) == ("suspect", True)
    monkeypatch.undo()
    (again,) = nights.night("web")
    assert (again.outcome, "is empty" in str(again.error)) == ("suspect", True)  # against the good one again


def test_what_a_mount_hides_stays_in_the_backups_where_mounts_are_left_out(nights: Nights) -> None:
    tree = fill(nights.source / "srv", 180)
    folder = fill(tree / "home", 20)
    nights.host("web", tree, one_file_system=True)
    nights.run("web")
    with mounted(folder):
        fill(folder, 3)
        result = nights.run("web")["web"]
    assert result["outcome"] == "complete"
    (warning,) = result["warnings"]
    assert str(folder) in warning
    assert {path.name: path.read_bytes() for path in nights.data("web", folder).iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }


def test_the_path_it_lies_in_is_the_one_that_is_named(nights: Nights) -> None:
    outer, other = fill(nights.source / "srv", 180), fill(nights.source / "other", 10)
    point = mount_point(outer / "disk")
    nights.host("web", outer, other)
    with mounted(point):
        fill(point, 20)
        nights.run("web")
    nights.run("web", status=1)
    by_path = {each["path"]: each for each in nights.record("web")["paths"]}
    assert {path: each["outcome"] for path, each in by_path.items()} == {str(outer): "suspect", str(other): "complete"}


@pytest.mark.parametrize("name", [b"line\nbreak", b"\xff\xfe", b"x" * 255], ids=["newline", "no UTF-8", "long"])
def test_odd_names_are_told_in_one_line(nights: Nights, name: bytes) -> None:
    tree = fill(nights.source / "srv", 180)
    point = mount_point(tree / os.fsdecode(name))
    nights.host("web", tree)
    with mounted(point):
        fill(point, 20)
        nights.run("web")
    result = nights.run("web", status=1)["web"]
    assert (result["outcome"], result["error"].isprintable()) == ("suspect", True)
    for words in (("status",), ("list", "web"), ("log",)):
        done = nights.backupd(*words, check=False)
        assert "Traceback" not in done.stderr
        assert "line\nbreak" not in done.stdout


def test_without_the_base_an_emptied_folder_makes_the_backup_suspect(nights: Nights) -> None:
    tree, _ = a_night_with_a_mount(nights)
    fill(tree / "new", 1, 20_000_000)
    base = nights.pool / "hosts" / "web" / nights.names("web")[0]
    nights.in_the_middle(4_000_000, f"btrfs property set {base} ro false; btrfs subvolume delete {base}")
    result = nights.run("web", status=1)["web"]
    assert (result["outcome"], "could not be compared" in result["error"]) == ("suspect", True)
