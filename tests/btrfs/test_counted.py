"""A backup's own numbers, compared with find and the disk."""

import errno
import os
import re
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.history import write_down
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MIB = 1 << 20


def sparse(path: Path, size: int, data: int) -> int:
    """Writes data at the end of a hole; returns its size."""
    with path.open("wb") as file:
        file.seek(size - data)
        file.write(os.urandom(data))
    return data


def test_new_counts_data_without_holes_and_files_counts_files(shared_btrfs: Path) -> None:
    nights = Nights(shared_btrfs)
    www = nights.source / "www"
    (www / "folder").mkdir(parents=True)
    (www / "link").symlink_to("small")
    (www / "small").write_bytes(b"s" * 900)
    (www / "dense").write_bytes(os.urandom(2 * MIB))
    (www / "zeros").write_bytes(bytes(8 * MIB))
    for name, first in (("a", True), ("b", False)):
        data = sparse(www / f"sparse-{name}", 64 * MIB, MIB) + (2 * MIB + 900 if first else 0)
        nights.host("web1", www)
        files = len(work("find", www, "-type", "f").stdout.splitlines())
        done = nights.run("web1")["web1"]
        row, run = nights.listed("web1")[0], nights.json("log", "web1", "-n", "1")[0]
        assert (done["files"], row["files"]) == (files, files)
        assert data <= done["new_bytes"] <= data + 8192, "blocks are 4096 bytes"
        assert row["new_bytes"] == run["literal_bytes"] == done["new_bytes"]
        assert nights.record("web1")["totals"]["literal"] >= 64 * MIB, "rsync's own number is kept as it is"
    before = [(row["files"], row["new_bytes"]) for row in nights.listed("web1")]
    nights.json("rebuild")
    assert [(row["files"], row["new_bytes"]) for row in nights.listed("web1")] == before, "it is not lost with the catalogue"


@pytest.mark.parametrize("runs", [1, 2])
def test_a_backup_whose_holes_cannot_be_counted_is_complete_with_a_warning(
    shared_btrfs: Path, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    nights = Nights(shared_btrfs)
    nights.host("web1", nights.source)

    def refused(*_: object, **__: object) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    for run in range(1, runs + 1):  # the first run counts them, the second searches for them
        (nights.source / f"dense-{run}").write_bytes(os.urandom(2 * MIB))
        if run == runs:
            monkeypatch.setattr("backupd.repo.holes.written_bytes", refused)
            monkeypatch.setattr("backupd.repo.holes.written_files", refused)
        (done,) = nights.night("web1")
    assert (done.outcome, done.error) == ("complete", None)
    (row,) = nights.listed("web1")[:1]
    assert row["state"] == nights.record("web1")["state"] == "complete"
    warning = "could not make or count the holes of sparse files: Operation not permitted"
    assert row["warnings"] == nights.record("web1")["warnings"] == [warning]
    assert not nights.differences("web1", nights.source)


def test_a_backup_whose_own_tree_cannot_be_read_is_not_complete(shared_btrfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nights = Nights(shared_btrfs)
    nights.host("web1", nights.source)
    (nights.source / "dense").write_bytes(os.urandom(2 * MIB))

    def damaged(*_: object, **__: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("backupd.repo.holes.written_bytes", damaged)
    (done,) = nights.night("web1")
    assert (done.outcome, nights.listed("web1")[0]["state"]) == ("failed", "partial")


def test_what_is_due_is_now_and_what_is_past_is_since(shared_btrfs: Path) -> None:
    nights = Nights(shared_btrfs)
    nights.host("web1", "/etc/default", every="12h")
    nights.settings("pool", zone="UTC")
    assert re.search(r"^web1 +never +- +now *$", nights.backupd("status").stdout, re.MULTILINE)
    assert re.search(r"^next due +now *$", nights.backupd("status", "web1").stdout, re.MULTILINE)
    due = nights.status("web1")["next_due"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", due), "for programs it is the moment"
    nights.run("web1")
    assert re.search(r"^web1 +ok .* \d{4}-\S+Z *$", nights.backupd("status").stdout, re.MULTILINE), "not due any more"
    (name,) = nights.names("web1")
    for mark, words in (
        ("2026-01-01T00:00:00Z", "due for deletion since 2026-01-02"),
        ("2098-12-31T00:00:00Z", "expires 2099-01-01"),
    ):
        write_down(nights, "web1", backups={name: {"expired": {"at": mark, "why": "no rule keeps it"}}})
        nights.json("rebuild")
        assert words in nights.backupd("list", "web1").stdout
