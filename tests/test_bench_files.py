"""The benches of reading backups and of damage run through in a tiny size, tell what they should, and leave nothing.

Their figures mean nothing here.
"""

import json
import sys

import pytest

from bench.files import COMMANDS
from tests.beds import TOP, session, work


@pytest.mark.long
@pytest.mark.btrfs
@pytest.mark.root
def test_the_bench_of_looking_into_backups_runs_through() -> None:
    place = session.folder(5 << 30)
    words = ("--backups", "3", "--names", "40", "--files", "40", "--rounds", "1", "--quiet", "0", "--image-dir", place, "--json")
    told = json.loads(work(sys.executable, "-m", "bench.files", *words, cwd=TOP, timeout=110).stdout)
    assert told["seconds"].keys() == COMMANDS.keys()
    assert all(one["median"] > 0 for measure in ("seconds", "MB of memory") for one in told[measure].values())
    assert not [*place.glob(f"{session.PREFIX}*")]


@pytest.mark.long
@pytest.mark.btrfs
@pytest.mark.root
def test_the_bench_of_reading_back_runs_through() -> None:
    place = session.folder(5 << 30)
    words = ("--files", "50", "--mib", "2", "--rounds", "1", "--quiet", "0", "--image-dir", place, "--json")
    told = json.loads(work(sys.executable, "-m", "bench.verify", *words, cwd=TOP, timeout=110).stdout)
    assert {"cat", "b2sum", "btrfs scrub", "verify, first", "verify, compares", "restic"} <= told["seconds"].keys()
    assert told["ratios"]["restic to ours"]["median"] > 0
    assert not [*place.glob(f"{session.PREFIX}*")]


@pytest.mark.slow
@pytest.mark.btrfs
@pytest.mark.root
def test_the_bench_of_damage_runs_through_and_both_sides_name_the_same() -> None:
    place = session.folder(5 << 30)
    words = ("--hosts", "2", "--backups", "3", "--files", "2", "--rounds", "1", "--quiet", "0", "--image-dir", str(place), "--json")
    done = work(sys.executable, "-m", "bench.damage", *words, cwd=TOP, timeout=110, check=False)
    told = json.loads(done.stdout)
    assert (told["same"], told["addresses"], told["names"]) == (True, 4, 12)
    assert not [*place.glob(f"{session.PREFIX}*")]


@pytest.mark.long
@pytest.mark.btrfs
@pytest.mark.root
def test_the_bench_of_fresh_sums_runs_through() -> None:
    place = session.folder(5 << 30)
    words = ("--hosts", "2", "--files", "10", "--kib", "20", "--nights", "1", "--quiet", "0", "--image-dir", str(place), "--json")
    told = json.loads(work(sys.executable, "-m", "bench.fresh_sums", *words, cwd=TOP, timeout=110, check=False).stdout)
    assert told["backups with sums"] == 4
    assert told["ratios"]["with to without"]["median"] > 0
    for name in ("the step, of the night's processor time", "the steps, of the night on the clock"):
        assert 0 < told["ratios"][name]["median"] < 0.5, name
    assert not [*place.glob(f"{session.PREFIX}*")]


@pytest.mark.long
@pytest.mark.btrfs
@pytest.mark.root
def test_the_bench_of_a_share_compared_with_the_host_runs_through() -> None:
    place = session.folder(5 << 30)
    words = ("--files", "60", "--share", "50%", "--nights", "1", "--quiet", "0", "--image-dir", str(place), "--json")
    told = json.loads(work(sys.executable, "-m", "bench.against_source", *words, cwd=TOP, timeout=110, check=False).stdout)
    assert sum(told["files compared"]) == 60
    assert told["ratios"]["with to without"]["median"] > 0
    assert not [*place.glob(f"{session.PREFIX}*")]


@pytest.mark.long
@pytest.mark.btrfs
@pytest.mark.root
def test_the_bench_of_restores_runs_through() -> None:
    place = session.folder(5 << 30)
    sizes = (
        "--files",
        "30",
        "--large",
        "1",
        "--large-mib",
        "1",
        "--big-mib",
        "2",
        "--empty",
        "20",
        "--small",
        "300",
        "--sparse-mib",
        "8",
    )
    archives = ("tar of files", "tar of files, to a file", "download of files", "zip of files")
    parts = ("files, warm", "links", "files, on the pool", *archives, "files, to a host")
    words = (*sizes, "--only", *parts, "--rounds", "1", "--quiet", "0", "--image-dir", str(place), "--json")
    told = json.loads(work(sys.executable, "-m", "bench.restore", *words, cwd=TOP, timeout=170).stdout)
    ours = {"ours, metadata compared", "ours, contents compared"}
    assert {"cp -a", "rsync -aHAX", *ours} | ({"restic", "borg"} - {*told["missing peers"]}) == told["files, warm: seconds"].keys()
    assert ours < told["files, to a host: CPU seconds, times those of rsync -aHAX"].keys() | {"other"}
    assert 5 < told["tar of files: MB of memory"]["tar"]["median"] < told["tar of files: MB of memory"]["ours"]["median"]
    assert (
        0 < told["zip of files: seconds to the first byte"]["ours"]["median"] < told["zip of files: seconds"]["ours"]["median"] + 1
    )
    assert told["tar of files, to a file: seconds"].keys() == {"tar", "ours"}
    if "curl" not in told["missing peers"]:
        for kind in ("tar", "zip"):
            for figure in ("seconds to the first byte", "CPU seconds", "MB of memory", "GB a second"):
                assert told[f"download of files: {figure}"][f"download as {kind}"]["median"] > 0
    assert not [*place.glob(f"{session.PREFIX}*")]
