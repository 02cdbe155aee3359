"""`backupd progress` with a real cleaner, stopped and at work; compared with btrfs-progs and the test's own count."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.expire.cli.progress import left_text, line, rows, screen
from backupd.expire.monitor import CleanerReading, Dropping, Rate, TimeLeft, in_hand
from btrkeep.pool.orphans import Drop, key_text
from tests.beds import backupd, btrfs, cleaner, session, work
from tests.beds.cli import BACKUPD, TOP
from tests.beds.nights import Nights
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
Running = Callable[..., "subprocess.Popen[str]"]


def once(point: Path, *words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(backupd("progress", point, "--once", "--json", "--interval", "0.3", *words).stdout)
    return answer


@pytest.fixture
def still(make_btrfs: Callable[..., Path]) -> Iterator[cleaner.Still]:
    """Makes filesystems on which nothing wakes the cleaner unless a test does."""
    filesystems = cleaner.Still(make_btrfs)
    yield filesystems
    filesystems.settle()


@pytest.fixture(scope="module")
def stopped(no_leftovers: None) -> Iterator[tuple[Path, cleaner.RootTree]]:
    """A cleaner that stops in the middle of a tree for all tests of this module, and its state on the device."""
    point = btrfs.make(size="2G")
    try:
        cleaner.delete(cleaner.diverged(point, 12, files=12_000, changes=300))
        with cleaner.stopped(point) as truth:
            yield point, truth
    finally:
        problems = session.remove(point.parent)
    assert not problems, "\n".join(problems)


def test_the_json_of_one_look_is_what_the_device_says(stopped: tuple[Path, cleaner.RootTree]) -> None:
    point, truth = stopped
    before = datetime.now(UTC).replace(microsecond=0)
    answer = once(point)
    assert list(answer) == ["orphans", "dropping", "rate", "eta"]
    assert answer["orphans"] == len(truth.orphans)
    assert list(answer["dropping"]) == ["root", "since", "drop_progress", "level"]
    key = answer["dropping"]["drop_progress"]
    assert {answer["dropping"]["root"]: (key_text((key[0], key[1], key[2])), answer["dropping"]["level"])} == truth.drops
    assert before <= datetime.fromisoformat(answer["dropping"]["since"]) <= datetime.now(UTC)
    assert answer["rate"] is None  # 0.3 seconds are too few
    assert answer["eta"] is None


def test_a_drop_has_begun_when_it_was_first_seen(stopped: tuple[Path, cleaner.RootTree], backupd_running: Running) -> None:
    running = backupd_running("progress", stopped[0], "--json", "--interval", "0.4", env={"PYTHONUNBUFFERED": "1"})
    assert running.stdout is not None
    begun = time.monotonic()
    since = [datetime.fromisoformat(json.loads(running.stdout.readline())["dropping"]["since"]) for _ in range(9)]
    assert time.monotonic() - begun > 2
    assert max(since) - min(since) <= timedelta(seconds=1)  # they are whole seconds


def test_in_a_pipe_it_prints_the_state_once_and_ends(stopped: tuple[Path, cleaner.RootTree]) -> None:
    point, truth = stopped
    output = backupd("progress", point).stdout
    assert output.count("deleted subvolumes") == 1
    assert f"{len(truth.orphans)} deleted subvolumes" in output


def test_the_text_of_one_look_has_key_level_and_share(stopped: tuple[Path, cleaner.RootTree]) -> None:
    point, truth = stopped
    output = backupd("progress", point, "--once", "--interval", "1.5").stdout
    [(root, (key, level))] = truth.drops.items()
    keys = cleaner.node_keys(point, truth.nodes[root])
    behind = sum(order(each) <= order(key) for each in keys) - 1
    values = {text[:12].strip(): text[12:] for text in output.splitlines()}
    assert values["dropping"] == f"nothing (root {root} has started)"
    assert values["waiting"] == f"{len(truth.orphans)} deleted subvolumes"
    assert values["at key"] == f"{key} level {level}"
    assert values["done"].endswith(f"({behind} of {len(keys)} branches)")
    assert values["rate"].startswith("0.0 a minute over 1.")
    assert values["time left"] == "unknown"


TYPES = {"INODE_ITEM": 1, "INODE_REF": 12, "XATTR_ITEM": 24, "DIR_ITEM": 84, "DIR_INDEX": 96, "EXTENT_DATA": 108}


def order(key: str) -> tuple[int, int, int]:
    objectid, kind, offset = key.strip("()").split()
    return int(objectid), TYPES[kind], int(offset)


def test_it_goes_on_to_show_a_line_in_each_interval(stopped: tuple[Path, cleaner.RootTree], backupd_running: Running) -> None:
    begun = time.monotonic()
    running = backupd_running("progress", stopped[0], "--interval", "0.4", env={"PYTHONUNBUFFERED": "1"})
    assert running.stdout is not None
    lines = [running.stdout.readline() for _ in range(5)]
    assert time.monotonic() - begun > 1.6
    for text in lines:
        assert re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ \d+ deleted", text)
        assert "\x1b" not in text


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_stays_until_a_signal_ends_it(
    stopped: tuple[Path, cleaner.RootTree], backupd_running: Running, number: int, status: int
) -> None:
    running = backupd_running("progress", stopped[0], "--interval", "0.1")
    assert running.stdout is not None
    running.stdout.readline()
    running.send_signal(number)
    assert running.wait(timeout=60) == status
    assert "Traceback" not in (running.stderr.read() if running.stderr else "")


def on_terminal(columns: int, number: int, *words: str | Path) -> tuple[str, int]:
    """Returns the command's output on a terminal of that many columns until the signal, and its exit status."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", PYTHONPATH=str(TOP), COLUMNS=str(columns), LINES="24")
        os.execv(sys.executable, [*BACKUPD, *map(str, words)])
    text, deadline = b"", time.monotonic() + 60
    while text.count(b"time left") < 3 and time.monotonic() < deadline:
        text += os.read(fd, 65536)
    os.kill(pid, number)
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not piece:
            break
        text += piece
    os.close(fd)
    return text.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("columns", [40, 60, 100])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_live_screen_is_drawn_in_place_and_gives_the_cursor_back(
    stopped: tuple[Path, cleaner.RootTree], columns: int, number: int, status: int
) -> None:
    point, truth = stopped
    text, ended = on_terminal(columns, number, "progress", point, "--interval", "0.2")
    assert ended == status
    assert "\x1b[?25l" in text
    assert text.rindex("\x1b[?25h") > text.rindex("time left")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert all(len(part) < columns for row in plain.splitlines() for part in row.split("\r"))
    pictures = text.split("cleaner of")
    heights = {picture.count("\n") for picture in pictures[1:-1]}
    assert len(heights) == 1, "the screen jumps"
    assert all(picture.count("\x1b[1A") == heights.copy().pop() for picture in pictures[1:-1]), "it scrolls"
    assert f"{len(truth.orphans)} deleted subvolumes" in plain


def test_what_went_while_it_watched_is_what_the_test_deleted(still: cleaner.Still, backupd_running: Running) -> None:
    point = still(size="3G")
    snapshots = cleaner.diverged(point, 60, files=8000, changes=250)
    cleaner.delete(snapshots[:40])
    running = backupd_running("progress", point, "--interval", "0.1", env={"PYTHONUNBUFFERED": "1"})
    assert running.stdout is not None
    assert ": 40 deleted" not in running.stdout.readline()
    time.sleep(1.2)
    work("btrfs", "filesystem", "sync", point)
    cleaner.delete(snapshots[40:])  # new ones come while it watches
    assert cleaner.is_gone(point)
    lines = [running.stdout.readline().rstrip()]
    while " 0 deleted subvolumes; " not in lines[-1]:
        lines.append(running.stdout.readline().rstrip())
        assert lines[-1], "it has ended"
    running.send_signal(signal.SIGINT)
    lines += running.stdout.read().splitlines()
    assert " 0 deleted subvolumes; " in lines[-1]
    assert lines[-1].endswith("time left: none")
    match = re.search(r"rate: ([\d.,]+) a minute over ([\d.]+)s", lines[-1])
    assert match is not None, lines[-1]
    assert float(match[1].replace(",", "")) / 60 * float(match[2]) == pytest.approx(60, abs=3)  # seconds are rounded
    counts = [int(result[1]) for text in lines if (result := re.search(r" (\d+) deleted subvolumes?[; ]", text))]
    assert max(counts) >= 40
    assert any("dropping: root" in text and " branches" in text for text in lines)
    held = [result for text in lines if (result := re.search(r" (\d+) deleted subvolumes? \(at least (\d+) held", text))]
    assert all(int(result[2]) < int(result[1]) for result in held), "those in the cleaner's list count as held"


def test_json_goes_on_with_one_object_a_line(still: cleaner.Still, backupd_running: Running) -> None:
    point = still()
    with cleaner.held(cleaner.diverged(point, 3, files=40)):
        running = backupd_running("progress", point, "--json", "--interval", "0.1", env={"PYTHONUNBUFFERED": "1"})
        assert running.stdout is not None
        readings = [json.loads(running.stdout.readline()) for _ in range(14)]
        assert {each["orphans"] for each in readings} == {3}
        assert readings[0]["rate"] is None
        assert readings[-1]["rate"] == 0
        work("btrfs", "filesystem", "sync", point)
        time.sleep(0.5)
        text = backupd("progress", point, "--once", "--interval", "1.2").stdout
        assert "3 deleted subvolumes (at least 2 held by open files)" in text  # one might be in the cleaner's hands
    assert cleaner.is_gone(point)
    assert once(point) == {"orphans": 0, "dropping": None, "rate": None, "eta": 0.0}


def test_on_a_filesystem_mounted_read_only_nothing_is_dropped_and_nothing_held(still: cleaner.Still) -> None:
    point = still()
    [device] = btrfs.devices_of(point)
    with cleaner.held(cleaner.diverged(point, 3, files=40)):
        work("mount", "-o", "remount,ro", point)
    work("umount", point)
    work("mount", "-o", "ro", device, point)
    assert len(cleaner.listed_as_deleted(point)) == 3
    text = backupd("progress", point, "--once", "--interval", "0.3").stdout
    assert re.search(r"^waiting +3 deleted subvolumes$", text, re.MULTILINE)
    assert re.search(r"^dropping +nothing$", text, re.MULTILINE)
    work("mount", "-o", "remount,rw", point)


def test_the_configured_pool_is_watched_without_a_mount_point(still: cleaner.Still) -> None:
    point = still()
    (point / "top").mkdir()
    nights = Nights(point / "top")
    with cleaner.held(cleaner.diverged(point, 2, files=40)):
        assert json.loads(nights.backupd("progress", "--once", "--json", "--interval", "0.1").stdout)["orphans"] == 2
        missing: tuple[str | Path, ...] = ("--config", point / "nothing.toml", "progress")
        assert "2 deleted subvolumes" in backupd(*missing, point / "top", "--once", "--interval", "0.1").stdout
        refused = backupd(*missing, "--once", check=False)
    assert refused.returncode == 2
    assert "nothing.toml" in refused.stderr


def test_what_cannot_be_watched_is_said_in_a_line_and_a_hint(btrfs_mount: Path, tmp_path: Path) -> None:
    calls: list[tuple[str | Path, ...]] = [(tmp_path / "nothing",), (tmp_path,), ("",)]
    calls += [(btrfs_mount, "--interval", "0.09"), (btrfs_mount, "--interval", "nan")]
    for words in calls:
        done = backupd("progress", *words, "--once", check=False)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert re.fullmatch(r"error: [^\n]+\nhint: [^\n]+\n", done.stderr), done.stderr
    argv = ("setpriv", "--bounding-set=-sys_admin", *BACKUPD, "progress", btrfs_mount, "--once")
    done = work(*argv, check=False, env={"PYTHONPATH": str(TOP), "NO_COLOR": "1"})
    assert done.returncode == 4
    assert "hint: root has no CAP_SYS_ADMIN here" in done.stderr


def test_a_filesystem_that_goes_away_ends_the_watch(still: cleaner.Still, backupd_running: Running) -> None:
    point = still(size="256M")
    running = backupd_running("progress", point, "--interval", "0.1", env={"PYTHONUNBUFFERED": "1"})
    assert running.stdout is not None
    running.stdout.readline()
    wait_for(lambda: work("umount", point, check=False).returncode == 0)  # it keeps nothing open, except during a reading
    assert running.wait(timeout=60) == 4
    assert running.stderr is not None
    assert re.fullmatch(r"error: [^\n]+\nhint: [^\n]+\n", running.stderr.read())


def test_another_btrfs_below_the_one_that_goes_away_is_not_taken_for_it(still: cleaner.Still, backupd_running: Running) -> None:
    below, above = still(size="256M"), still(size="256M")
    [device] = btrfs.devices_of(above)
    point = below / "point"
    point.mkdir()
    work("mount", device, point)
    running = backupd_running("progress", point, "--interval", "0.1", env={"PYTHONUNBUFFERED": "1"})
    assert running.stdout is not None
    running.stdout.readline()
    work("umount", "--lazy", point)
    assert running.wait(timeout=60) == 4
    assert running.stderr is not None
    assert "is on another filesystem now" in running.stderr.read()


def seen(**fields: Any) -> CleanerReading:
    given: dict[str, Any] = {"waiting": 3, "held": 0, "idle": False, "dropping": None, "rate": None, "left": None}
    return CleanerReading(**{**given, **fields})


def test_into_a_file_it_says_once_that_nothing_waits(btrfs_mount: Path, backupd_running: Running) -> None:
    process = backupd_running("progress", btrfs_mount, "--interval", "0.1", env={"PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    assert "no deleted subvolume waits" in process.stdout.readline()
    time.sleep(0.6)
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[0] == ""


def test_of_several_that_were_begun_the_one_that_moves_is_being_dropped() -> None:
    old, other, moved = Drop(300, (900, 1, 0), 1), Drop(301, (500, 1, 0), 1), Drop(301, (600, 1, 0), 1)
    before = {300: old, 301: other}
    assert in_hand([], before, 300) is None
    assert in_hand([old], {}, None) == old
    assert in_hand([old, other], {}, None) is None  # one reading is not enough
    assert in_hand([old, moved], before, 300) == moved
    assert in_hand([old, moved], {300: old, 301: moved}, 301) == moved
    assert in_hand([old, other], before, None) is None
    assert in_hand([old, moved], {300: old}, 300) == moved  # it has just been started


def test_with_nothing_to_show_it_is_one_line() -> None:
    nothing = seen(waiting=0, idle=True, left=TimeLeft(0, 0, 0))
    assert line(nothing) == "no deleted subvolume waits for the cleaner"
    assert len(rows(nothing)) == 1
    assert "1,234.5 a minute" in line(replace(nothing, rate=Rate(1234.5, 300.0))), "what went lately is shown on"


def test_what_is_not_known_is_shown_as_unknown() -> None:
    shown = dict(rows(seen()))
    assert shown["rate"] == shown["time left"] == "unknown"
    assert shown["dropping"].startswith("unknown")
    assert dict(rows(seen(idle=True)))["dropping"] == "nothing"
    dropping = Dropping(Drop(300, (6660, 108, 0), 1), datetime(2026, 11, 20, tzinfo=UTC), 75.0, False, None, None)
    shown = dict(rows(seen(dropping=dropping)))
    assert shown["dropping"] == "root 300 for 1m 15s"
    assert shown["done"] == "unknown"
    assert "done: unknown" in line(seen(dropping=dropping))
    assert dict(rows(seen(dropping=replace(dropping, from_before=True))))["dropping"] == "root 300 for at least 1m 15s"


def test_the_time_left_is_told_with_its_uncertainty() -> None:
    assert left_text(TimeLeft(200.0, 180.0, 240.0)) == "about 3m 20s (3m to 4m)"
    assert left_text(TimeLeft(200.0, 180.0, None)) == "about 3m 20s (at least 3m)"


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_the_screen_fits_and_loses_no_word(columns: int) -> None:
    dropping = Dropping(Drop(300, (6660, 108, 0), 1), datetime(2026, 11, 20, tzinfo=UTC), 7500.0, True, 29, 100)
    full = seen(waiting=12345, held=17, dropping=dropping, rate=Rate(1234.5, 300.0), left=TimeLeft(2e5, 1e5, 3e5))
    text = screen(full, "/srv/a-folder-with-a-long-name/and-another-one/backup", columns).plain
    assert max(map(len, text.split("\n"))) < max(columns, 21)
    together = re.sub(r"\s", "", "".join(row[12:] for row in text.split("\n")))
    for _, value in rows(full):
        assert re.sub(r"\s", "", value) in together
