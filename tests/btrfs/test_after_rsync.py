"""Errors after the end of rsync never lose its data."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.btrfs import MIB
from tests.beds.hidden_changes import hide_changes
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, does_at, subvolumes

FILES = 20
AFTER_RSYNC, BEFORE_HOLES = ("backup.json replaced", 2), ("holes punched", 1)


@pytest.fixture
def half(make_btrfs: Callable[..., Path], tmp_path: Path) -> Nights:
    """A pool with one backup of `web`, and twenty files that are new since then, on another filesystem."""
    nights = Nights(make_btrfs(size="300M"))
    nights.source = tmp_path / "srv"
    nights.source.mkdir()
    nights.host("web", nights.source)
    renew(nights)
    nights.run("web")
    renew(nights)
    return nights


def renew(nights: Nights) -> None:
    """Makes files with zeros in the middle, which arrive without holes."""
    for number in range(FILES):
        (nights.source / f"file{number}").write_bytes(os.urandom(MIB // 2) + bytes(MIB // 2) + os.urandom(1000))


def filling(nights: Nights) -> str:
    """Returns the shell line that fills the pool to the last byte."""
    folder = nights.backup("web")
    code = f"from pathlib import Path; from tests.beds.btrfs import fill; fill(Path({str(nights.top)!r}), Path({str(folder)!r}))"
    return shlex.join([sys.executable, "-P", "-c", code])


def make_room(nights: Nights) -> None:
    first = nights.backup("web", nights.names("web")[0])
    work("btrfs", "property", "set", "-f", "-ts", first, "ro", "false")
    (first / "ballast").unlink()
    work("btrfs", "property", "set", "-ts", first, "ro", "true")
    hide_changes(first.parent)
    work("btrfs", "filesystem", "sync", nights.top)


def transferred(nights: Nights) -> int:
    """Returns the number of files that the newest backup's run has fetched."""
    (path,) = nights.record("web")["paths"]
    return int(path["numbers"]["transferred"])


def goes_on(nights: Nights, kept: int) -> None:
    """Requires that the next run makes this same subvolume final, and fetches nothing."""
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert subvolumes(nights)[f"hosts/web/{nights.names('web')[-1]}"] == kept, "what had come was thrown away"
    assert transferred(nights) == 0
    assert nights.differences("web", nights.source) == []
    assert disagreements(nights) == []


@pytest.mark.parametrize("step", [AFTER_RSYNC, BEFORE_HOLES])
def test_a_pool_that_is_full_when_rsync_is_through_still_takes_the_backup(half: Nights, step: tuple[str, int]) -> None:
    done = does_at(half, filling(half), "before", step[0], "run", "web", "--json", count=step[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)[0]["outcome"] == "complete"
    assert len(half.names("web")) == 2
    assert (half.pool / ".btrkeep" / "reserve").stat().st_size == 0
    assert half.differences("web", half.source) == []
    assert disagreements(half) == []


def test_without_a_reserve_it_stays_for_the_next_run_which_fetches_nothing_again(half: Nights) -> None:
    no_reserve = f"truncate -s 0 {half.pool}/.btrkeep/reserve && btrfs filesystem sync {half.top} && {filling(half)}"
    done = does_at(half, no_reserve, "before", AFTER_RSYNC[0], "run", "web", "--json", count=AFTER_RSYNC[1])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "No space left" in json.loads(done.stdout)[0]["error"]
    assert len(half.names("web")) == 1
    kept = subvolumes(half)["hosts/web/.working"]
    make_room(half)
    goes_on(half, kept)


def test_what_is_not_ours_in_an_unfinished_backup_costs_nothing_of_it_when_it_is_moved_away(half: Nights) -> None:
    """By then, the run that first found it has removed the mark."""
    half.in_the_middle(8 * MIB, end="dies")
    assert half.run("web", status=1)["web"]["outcome"] == "partial"
    half.ssh("")
    kept = subvolumes(half)["hosts/web/.working"]
    foreign = half.working("web") / "foreign"
    work("btrfs", "-q", "subvolume", "create", foreign)
    assert "is a subvolume that does not belong to btrkeep" in half.run("web", status=1)["web"]["error"]
    work("btrfs", "-q", "subvolume", "delete", foreign)
    assert half.run("web")["web"]["outcome"] == "complete"
    assert subvolumes(half)[f"hosts/web/{half.names('web')[-1]}"] == kept, "what had come was thrown away"
    assert 0 < transferred(half) < FILES
    assert half.differences("web", half.source) == []
