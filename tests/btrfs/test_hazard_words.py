"""Output that a host makes our rsync print: no number, no name and no line without end harms this server or another host."""

import json
import os
import shlex
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP, work
from tests.beds.hidden_changes import hide_changes
from tests.beds.nights import Nights

SAYER = Path(__file__).resolve().parents[1] / "beds" / "sayer.py"
MIB = 1 << 20


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "file").write_text("content")
    return tree


def says(nights: Nights, text: bytes, times: int | str = 1) -> str:
    """Returns the rsync_path of a host that prints it that many times; see tests/beds/sayer.py."""
    path = nights.top / "said"
    path.write_bytes(text)
    return shlex.join([sys.executable, str(SAYER), str(times), str(path), "rsync"])


def measured_run(nights: Nights) -> tuple[dict[str, Any], int]:
    """Returns the results of `backupd run --all --json` by host, and its peak memory in bytes."""
    words = [sys.executable, "-m", "backupd", "--config", str(nights.config), "run", "--all", "--json"]
    # A small process between: what the one that starts it has at its peak would count as the child's.
    between = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:]); print(resource.getrusage(resource.RUSAGE_CHILDREN)[2])"
    )
    done = work(sys.executable, "-c", between, *words, cwd=TOP, env={"NO_COLOR": "1"})
    output, _, peak = done.stdout.rstrip().rpartition("\n")
    return {result["host"]: result for result in json.loads(output)}, int(peak) << 10


def test_numbers_that_add_up_beyond_what_sqlite_holds_stay_that_hosts_own_trouble(
    nights: Nights, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backupd.run.source_paths._LONGEST_PAUSE", 0.01)
    text = b"Number of files: %(n)d (reg: %(n)d)\nTotal file size: %(n)d bytes\nLiteral data: %(n)d bytes\n" % {b"n": 10**18 - 1}
    text += b"Total bytes received: %d\n" % (10**18 - 1)
    nights.host("liar", tree, attempts=10, rsync_path=says(nights, text, "dies"))
    nights.host("web", tree)
    results = {result.host: result for result in nights.night()}
    assert (results["liar"].outcome, results["web"].outcome) == ("partial", "complete"), results["liar"]
    assert results["liar"].attempts == 10
    assert "broke" in str(results["liar"].error)
    for words in (["list"], ["status"], ["log"], ["rebuild"], ["list", "liar"]):
        assert "Traceback" not in nights.backupd(*words).stderr
    nights.host("liar", tree)
    assert {name: result["outcome"] for name, result in nights.run().items()} == {"liar": "complete", "web": "complete"}


def test_a_pool_whose_records_hold_such_numbers_works(nights: Nights, tree: Path) -> None:
    for name in ("liar", "web"):
        nights.host(name, tree)
    nights.run()
    backup = nights.backup("liar")
    work("btrfs", "property", "set", "-ts", backup, "ro", "false")
    record = nights.record("liar")
    record["paths"][0]["numbers"] |= dict.fromkeys(("files", "bytes", "literal", "received"), 2**65)
    (backup / "backup.json").write_text(json.dumps(record))
    work("btrfs", "property", "set", "-ts", backup, "ro", "true")
    hide_changes(backup.parent)
    nights.backupd("rebuild")
    with sqlite3.connect(nights.state / "catalogue.sqlite") as catalogue:
        assert len(catalogue.execute("SELECT bytes FROM backup").fetchall()) == 2
    for words in (["list"], ["status"], ["list", "liar"], ["usage"]):
        nights.backupd(*words)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.run("liar", status=1)["liar"]["outcome"] == "suspect"  # because of fewer files than before
    nights.backupd("rebuild")


@pytest.mark.parametrize(
    "line",
    [
        b"evil\n",
        b"\r",
        pytest.param(b"evil", marks=pytest.mark.long),  # no end of a line is what \r is, too
        pytest.param(b"\r   12  3%   1.00kB/s    0:00:00 (xfr#1, to-chk=1/2)", marks=pytest.mark.long),
    ],
)
def test_a_host_that_prints_without_end_is_stopped_and_the_others_are_not(nights: Nights, tree: Path, line: bytes) -> None:
    """In pieces as large as rsync accepts, or line by line."""
    whole = line if line.endswith(b"\n") else line * (4000 // len(line))
    nights.host("liar", tree, deadline="40s", attempts=3, rsync_path=says(nights, whole * (500 if line.endswith(b"\n") else 1), 0))
    nights.host("web", tree)
    results, memory = measured_run(nights)
    assert results["liar"]["outcome"] == "partial"
    assert "does not end" in results["liar"]["error"]
    assert results["web"]["outcome"] == "complete"
    assert memory < 200 * MIB
    nights.host("liar", tree)
    assert nights.run("liar")["liar"]["outcome"] == "complete"


def test_the_names_that_a_host_prints_cost_no_memory(nights: Nights, tree: Path) -> None:
    line = b">f+++++++++|10|srv/some/folder/with/a/name/of/middling/length/file\n"
    peaks = []
    for times in (1, 200_000):
        nights.host("web", tree, rsync_path=says(nights, line, times))
        results, memory = measured_run(nights)
        assert results["web"]["outcome"] == "complete"
        peaks.append(memory)
    assert peaks[1] - peaks[0] < 15 * MIB


def test_a_file_that_a_host_names_again_and_again_is_looked_through_once(nights: Nights, tree: Path) -> None:
    nights.host("web", tree)
    nights.run("web")
    (tree / "large").write_bytes(os.urandom(32 * MIB))
    line = b">f+++++++++|33554432|%s\n" % os.fsencode(tree / "large").lstrip(b"/")
    nights.host("web", tree, rsync_path=says(nights, line, 20_000), deadline="90s")
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.record("web")["seconds"]["holes"] < 30


def test_zeros_become_holes_whatever_the_host_says_of_the_file(nights: Nights, tree: Path) -> None:
    nights.host("web", tree)
    nights.run("web")
    with (tree / "image").open("wb") as image:
        image.write(os.urandom(MIB))
        image.truncate(9 * MIB)
    (tree / "small").write_bytes(bytes(32 << 10))
    nights.run("web")
    work("btrfs", "filesystem", "sync", nights.pool)
    blocks = {name: int(work("stat", "-c", "%b", nights.data("web", tree / name)).stdout) * 512 for name in ("image", "small")}
    assert blocks == {"image": MIB, "small": 32 << 10}
    assert nights.differences("web", tree) == []
