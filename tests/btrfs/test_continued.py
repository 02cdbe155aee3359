"""After an interrupted run: which copies are continued, which are compared first, and which start again."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backupd.run.work_subvolume import WorkRequest, recover_and_prepare
from btrkeep.config import load
from btrkeep.pool.marker import open_pool
from btrkeep.pool.syncfs import syncing
from btrkeep.process.progress import Cancellation, Cancelled
from tests.beds import work
from tests.beds.expiries import LATER, Expiries
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, hold, killed, receivers, rows, subvolumes, transferring, wait_for

MIB = 1 << 20
NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups rsync"
Start = Callable[..., "subprocess.Popen[str]"]


def numbers(nights: Nights) -> dict[str, int]:
    (path,) = nights.record("web")["paths"]
    return dict(path["numbers"])


def broken_off(nights: Nights, count: int = 6 * MIB) -> None:
    """Makes a run whose connection ends after that many bytes."""
    nights.in_the_middle(count, end="dies")
    assert nights.run("web", status=1)["web"]["outcome"] == "partial"
    nights.ssh("")


def killed_in_the_middle(nights: Nights, start: Start, count: int = 6 * MIB) -> None:
    """Makes a run that is killed, with all its processes, after that many bytes."""
    flag = hold(nights, count)
    process = start("--config", nights.config, "run", "web")
    wait_for(flag.exists)
    wait_for(lambda: len(receivers(nights)) == 2)
    for pid in (process.pid, *receivers(nights)):
        with contextlib.suppress(ProcessLookupError):  # a confined receiver ends with its run
            os.kill(pid, signal.SIGKILL)
    process.wait()
    flag.unlink()
    wait_for(lambda: not transferring(nights))
    nights.ssh("")


@pytest.fixture
def pair(nights: Nights, tree: Path) -> Nights:
    """A host with two files; 6 MiB include the first one and half of the second."""
    renew(tree)
    nights.host("web", tree)
    return nights


def renew(tree: Path) -> None:
    for name in ("early", "later"):
        (tree / name).write_bytes(os.urandom(4 * MIB))


@pytest.mark.parametrize("based", [False, True], ids=["a first copy", "one with a base"])
def test_what_broke_off_and_was_synced_goes_on_without_another_look_at_what_is_there(pair: Nights, tree: Path, based: bool) -> None:
    if based:
        pair.run("web")
        renew(tree)
    broken_off(pair)
    kept = subvolumes(pair)["hosts/web/.working"]
    assert pair.run("web")["web"]["outcome"] == "complete"
    assert subvolumes(pair)[f"hosts/web/{pair.names('web')[-1]}"] == kept
    assert numbers(pair)["transferred"] == 1, "the file that was there already was read again"
    assert pair.differences("web", tree) == []


def test_what_broke_off_before_its_host_got_an_exclusion_is_not_gone_on_with(pair: Nights, tree: Path) -> None:
    """The backup would contain excluded files, or lack a path."""
    broken_off(pair)
    left = subvolumes(pair)["hosts/web/.working"]
    pair.host("web", tree, exclude=["early"])
    assert pair.run("web")["web"]["outcome"] == "complete"
    assert left not in subvolumes(pair).values()
    assert pair.differences("web", tree) == ["b'early': only in the source"]


def test_a_first_copy_that_was_killed_is_compared_and_not_sent_again(pair: Nights, tree: Path, backupd_running: Start) -> None:
    killed_in_the_middle(pair, backupd_running)
    kept = subvolumes(pair)["hosts/web/.working"]
    pair.run("web")
    assert subvolumes(pair)[f"hosts/web/{pair.names('web')[-1]}"] == kept
    assert numbers(pair)["transferred"] == 2, "what nobody knows to be on the disk was believed"
    assert numbers(pair)["matched"] >= 3.9 * MIB
    assert numbers(pair)["literal"] < 4.1 * MIB, "what had come was sent again"
    assert pair.differences("web", tree) == []


def test_one_that_was_killed_is_compared_also_when_the_next_run_is_stopped_before_all_of_it_is_doubted(
    pair: Nights, tree: Path, backupd_running: Start
) -> None:
    killed_in_the_middle(pair, backupd_running)
    host, cancelled = load("main", pair.config).hosts["web"], Cancellation()
    cancelled.handle_signal(signal.SIGTERM)
    with syncing(pair.pool) as disk, pytest.raises(Cancelled):
        recover_and_prepare(WorkRequest(open_pool(pair.pool), host, datetime.now(UTC).replace(microsecond=0), disk, cancelled))
    pair.run("web")
    assert numbers(pair)["transferred"] == 2, "what nobody knows to be on the disk was believed"
    assert pair.differences("web", tree) == []


def test_what_has_been_compared_after_a_kill_is_not_compared_a_second_time(
    pair: Nights, tree: Path, backupd_running: Start
) -> None:
    (tree / "last").write_bytes(os.urandom(4 * MIB))
    killed_in_the_middle(pair, backupd_running, 10 * MIB)
    broken_off(pair, 2 * MIB)  # `early` and `later` are compared by then, and `last` is coming
    pair.run("web")
    assert numbers(pair)["transferred"] == 1
    assert pair.differences("web", tree) == []


def test_one_with_a_base_that_was_killed_begins_again_from_the_base(pair: Nights, tree: Path, backupd_running: Start) -> None:
    pair.run("web")
    (base,) = pair.names("web")
    renew(tree)
    broken_off(pair)  # its mark is gone when the next run is killed
    left = subvolumes(pair)["hosts/web/.working"]
    killed_in_the_middle(pair, backupd_running, 1 * MIB)
    assert pair.run("web")["web"]["outcome"] == "complete"
    assert left not in subvolumes(pair).values()
    assert pair.grew_from("web") == base
    assert pair.differences("web", tree) == []
    assert disagreements(pair) == []


def test_what_a_version_that_knows_of_no_mark_went_on_with_is_not_gone_on_with(pair: Nights, tree: Path) -> None:
    """Such a version keeps the mark, and writes its own record."""
    pair.run("web")
    renew(tree)
    broken_off(pair)
    left = subvolumes(pair)["hosts/web/.working"]
    path = pair.backup("web", ".working") / "backup.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "started": "2026-11-20T22:00:00Z"}))
    pair.run("web")
    assert left not in subvolumes(pair).values()
    assert pair.differences("web", tree) == []


@pytest.mark.parametrize("state", ["complete", "failed"])
def test_what_the_host_does_not_give_a_second_time_is_not_in_a_first_copy_that_was_killed_unless_that_failed(
    nights: Nights, public_folder: Path, backupd_running: Start, state: str
) -> None:
    """It is unknown whether it is complete. As in any first copy, unreadable files are missing, and reported. A failed backup is
    for restoring its files, and is never a base.
    """
    tree, other = public_folder / "tree", public_folder / "other"
    for folder in (tree, other):
        folder.mkdir()
    renew(tree)
    nights.host("web", tree, other, unreadable_limit="100%", rsync_path=NOBODY)
    killed_in_the_middle(nights, backupd_running)
    arrived = [path.name for path in nights.working("web", tree).iterdir()]
    assert "early" in arrived
    (tree / "early").chmod(0)
    if state == "failed":
        other.rmdir()
    result = nights.run("web", status=int(state == "failed"))["web"]
    assert result["outcome"] == state
    assert nights.data("web", tree / "early").exists() == (state == "failed")
    assert nights.data("web", tree / "later").read_bytes() == (tree / "later").read_bytes()
    assert ("could not be fetched again" in " ".join(result["warnings"])) == (state == "complete")
    assert ("doubted" in nights.record("web")) == (state == "failed")
    assert nights.data("web", tree).stat().st_mtime_ns == tree.stat().st_mtime_ns
    if state == "failed":
        other.mkdir()
        nights.run("web")
        assert nights.grew_from("web") is None


def marked(nights: Nights) -> bool:
    """Returns True if the unfinished backup has the mark, by getfattr."""
    return "user.btrkeep.synced" in work("getfattr", nights.backup("web", ".working")).stdout


def test_a_run_that_goes_on_with_another_is_killed_at_each_of_its_steps_and_the_mark_is_there_when_all_is_on_disk(
    pair: Nights, tree: Path
) -> None:
    def killed_at(when: str, checkpoint: str) -> bool:
        killed(pair, when, checkpoint, "run", "web")
        return marked(pair)

    broken_off(pair)
    kept = subvolumes(pair)["hosts/web/.working"]
    assert marked(pair)
    assert killed_at("before", "synced mark removed")
    assert not killed_at("after", "synced mark removed")
    assert not killed_at("after", "files marked unsynced")
    assert not killed_at("after", "filesystem synced")
    pair.in_the_middle(2 * MIB, end="dies")
    assert not killed_at("before", "synced mark set")
    assert killed_at("after", "synced mark set")
    pair.ssh("")
    assert not killed_at("after", "unsynced files removed")
    assert pair.run("web")["web"]["outcome"] == "complete"
    assert subvolumes(pair)[f"hosts/web/{pair.names('web')[-1]}"] == kept
    assert pair.differences("web", tree) == []
    assert disagreements(pair) == []


# --- a record that a power cut left empty


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}'])
@pytest.mark.parametrize("based", [False, True], ids=["a first copy", "one with a base"])
def test_a_working_whose_record_a_power_cut_left_empty_costs_its_host_nothing(
    pair: Nights, tree: Path, based: bool, text: str
) -> None:
    if based:
        pair.run("web")
    broken_off_at_once(pair)
    (pair.backup("web", ".working") / "backup.json").write_text(text)
    for words in (["status"], ["list", "web"], ["check"]):
        assert "Traceback" not in pair.backupd(*words, check=False).stderr
    assert pair.run("web")["web"]["outcome"] == "complete"
    assert pair.differences("web", tree) == []
    assert len(pair.names("web")) == 1 + based
    assert disagreements(pair) == []


def broken_off_at_once(nights: Nights) -> None:
    killed(nights, "before", "backup row written", "run", "web")


def test_a_host_with_such_a_working_can_be_given_up(shared_btrfs: Path, tree: Path) -> None:
    pool = Expiries(shared_btrfs)
    renew(tree)
    pool.host("web", tree)
    broken_off_at_once(pool)
    (pool.pool / "hosts/web/.working/backup.json").write_text("")
    del pool.tables["host"]
    pool.write()
    pool.backupd("forget", "web", "--yes", "--now", LATER.strftime("%Y-%m-%dT%H:%M:%SZ"))
    done = pool.expire(LATER.replace(year=LATER.year + 1))
    assert done["problems"] == []
    assert not (pool.pool / "hosts" / "web").exists()
    assert rows(pool, "select host from backup") == []


def test_a_foreign_working_with_an_empty_record_is_not_touched(pair: Nights) -> None:
    path = pair.pool / "hosts" / "web" / ".working"
    path.parent.mkdir()
    work("btrfs", "-q", "subvolume", "create", path)
    (path / "backup.json").touch()
    (path / "mine").write_text("mine")
    assert "does not belong to btrkeep" in pair.run("web", status=1)["web"]["error"]
    assert (path / "mine").read_text() == "mine"
