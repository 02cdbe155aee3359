"""bench.files runs through in a tiny size, tells what it should, and leaves nothing. Its figures mean nothing here."""

import json
import sys

import pytest

from bench.files import COMMANDS
from tests.beds import TOP, session, work


@pytest.mark.slow
@pytest.mark.btrfs
@pytest.mark.root
def test_the_bench_of_looking_into_backups_runs_through() -> None:
    place = session.folder(5 << 30)
    words = ("--backups", "3", "--names", "40", "--files", "40", "--rounds", "1", "--quiet", "0", "--image-dir", place, "--json")
    told = json.loads(work(sys.executable, "-m", "bench.files", *words, cwd=TOP, timeout=110).stdout)
    assert told["seconds"].keys() == COMMANDS.keys()
    assert all(one["median"] > 0 for measure in ("seconds", "MB of memory") for one in told[measure].values())
    assert not [*place.glob(f"{session.PREFIX}*")]
