"""Drills with other problems at the same time: the clock, a deletion, no space, no time, other jobs."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from btrkeep.decisions.drills import DrillOutcome, DrillResult, DrillState, drill_status, in_turn, note_drill, read_drills
from tests.beds import TOP
from tests.beds.nights import Nights
from tests.btrfs.test_drill import at_a_checkpoint, drill, noted, scratch

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


class Facts(dict[str, str]):
    """Facts in the form of the catalogue."""

    def facts(self, beginning: str) -> dict[str, str]:
        return {name: value for name, value in self.items() if name.startswith(beginning)}

    def set_fact(self, name: str, value: str | None) -> None:
        self[name] = value or ""


def result(outcome: DrillOutcome, at: datetime, host: str = "web") -> DrillResult:
    return DrillResult(host, "2026-11-20T220000Z", at, outcome)


@pytest.mark.parametrize("first", [DrillOutcome.FAILED, DrillOutcome.PROVEN])
def test_what_was_noted_while_the_clock_was_ahead_does_not_outlive_what_came_later(first: DrillOutcome) -> None:
    facts, ahead = Facts(), NOW + timedelta(days=4000)
    then = DrillOutcome.PROVEN if first == DrillOutcome.FAILED else DrillOutcome.FAILED
    for number in range(9):
        note_drill(facts, result(first, ahead + timedelta(days=number)))
    note_drill(facts, result(then, NOW))
    matching = drill_status(read_drills(facts), ["web"], 1e7, NOW)
    assert matching.state == (DrillState.OK if then == DrillOutcome.PROVEN else DrillState.FAILING)


def test_a_host_that_was_drilled_while_the_clock_was_ahead_has_its_turn() -> None:
    facts = Facts()
    note_drill(facts, result(DrillOutcome.PROVEN, NOW + timedelta(days=4000), "web"))
    note_drill(facts, result(DrillOutcome.PROVEN, NOW - timedelta(days=1), "db"))
    assert in_turn(["web", "db"], read_drills(facts), Random(1), NOW)[0] == "web"


@pytest.fixture
def large(make_btrfs: Callable[..., Path], tmp_path: Path) -> Nights:
    """A pool that is not much larger than its one backup."""
    nights = Nights(make_btrfs(size="400M"))
    for number in range(8):
        (tmp_path / f"large{number}").write_bytes(os.urandom(8 << 20))
    nights.host("web", tmp_path)
    nights.run()
    return nights


@pytest.mark.btrfs
def test_a_backup_that_is_deleted_before_it_is_drilled_is_an_error_of_one_line(large: Nights) -> None:
    (name,) = large.names("web")
    large.run()
    words = ("-m", "backupd", "--config", large.config, "delete", f"web@{name}", "--force", "--now-without-grace")
    line = f"does:cd {TOP}; {shlex.join(map(str, (sys.executable, *words)))} >{large.top}/said 2>&1; :"
    done = at_a_checkpoint(large, line, "before", "reserve made", f"web@{name}")
    assert name not in large.names("web"), (large.top / "said").read_text()
    assert "Traceback" not in done.stderr
    assert "was deleted" in done.stderr
    assert scratch(large) == []


@pytest.mark.btrfs
def test_a_pool_that_others_fill_in_the_middle_says_nothing_of_the_backup(large: Nights) -> None:
    filler = large.top / "filler"
    done = at_a_checkpoint(large, f"does:dd if=/dev/zero of={filler} bs=1M 2>/dev/null; :", "before", "sample restored", "--json")
    assert "Traceback" not in done.stderr, done.stderr
    (answer,) = json.loads(done.stdout)
    assert (answer["outcome"], done.returncode) == ("unfinished", 1), answer
    assert scratch(large) == []
    filler.unlink()
    assert drill(large)[0]["outcome"] == "proven"


@pytest.mark.btrfs
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_drill_whose_time_is_over_in_the_middle_says_nothing_of_the_backup(large: Nights, when: str) -> None:
    done = at_a_checkpoint(large, "does:sleep 1.5", when, "sample restored", "--json", "--time", "1s")
    (answer,) = json.loads(done.stdout)
    assert (answer["outcome"], done.returncode) == ("unfinished", 1), answer
    assert "not finished within" in answer["text"]
    assert scratch(large) == []
    assert json.loads(large.backupd("status", "--json").stdout)["drill"]["state"] == "never"


@pytest.mark.btrfs
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("where", ["restore", "comparison", "rsync"])
def test_a_drill_stands_still_while_a_night_is_at_work(large: Nights, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """During the restore, before the comparison and during it; a signal ends it there."""
    when, pause = ("before" if where == "restore" else "after"), 1.5
    if where == "rsync":
        monkeypatch.setenv("PATH", large.rsync('sleep 1; exec "$REAL" "$@"')["PATH"])
        pause = 0
    script = large.top / "holder.py"
    script.write_text(
        f"import sys, time; sys.path.insert(0, {str(TOP)!r})\n"
        "from pathlib import Path; from btrkeep.pool.locks import take_lock\n"
        f"with take_lock(Path({str(large.pool)!r}) / '.btrkeep/locks/night', 'backupd run', 'now'):\n"
        f"    print(flush=True); time.sleep(float(sys.argv[1]))\n"
    )
    for end, status in (("kill {holder}", 0), ("kill $PPID", 143)):
        with subprocess.Popen([sys.executable, script, "200"], stdout=subprocess.PIPE) as holder:
            holder.send_signal(signal.SIGSTOP)
            ends = end.format(holder=holder.pid)
            go = f"exec >/dev/null 2>&1; kill -CONT {holder.pid}; sleep {pause}; (sleep 3; {ends}) & :"
            begun = time.monotonic()
            done = at_a_checkpoint(large, f"does:{go}", when, "sample restored", "--json")
            took = time.monotonic() - begun
            holder.kill()
        assert done.returncode == status, done.stderr
        assert scratch(large) == []
        if status:
            assert took < 100
        else:
            assert took > pause + 3
            assert json.loads(done.stdout)[0]["outcome"] == "proven", done.stderr


@pytest.mark.btrfs
@pytest.mark.parametrize("end", ["kill -9 $$", "exit 22", "exit 127"], ids=["killed", "without memory", "missing"])
def test_an_rsync_that_did_not_compare_says_nothing_of_the_backup(large: Nights, end: str) -> None:
    env = large.rsync(f'case "$*" in *--dry-run*) {end};; esac; exec "$REAL" "$@"')
    (done,) = drill(large, status=1, env=dict(env))
    assert done["outcome"] == "unfinished", done
    assert "rsync" in done["text"]
    assert scratch(large) == []


KILL_PROCESSES = "for c in $(cat /proc/$PPID/task/$PPID/children); do [ $c = $$ ] || kill -9 $c; done"


@pytest.mark.btrfs
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one processor there are no processes")
def test_a_process_of_the_restore_that_is_killed_says_nothing_of_the_backup(large: Nights, tmp_path: Path) -> None:
    """As by the kernel when memory is short."""
    for number in range(100):
        (tmp_path / f"small{number}").write_bytes(os.urandom(1000))
    large.run()
    which = (f"web@{large.names('web')[-1]}", "--sample", "all", "--json")
    done = at_a_checkpoint(large, f"does:{KILL_PROCESSES}", "after", "filesystem synced", *which)
    (answer,) = json.loads(done.stdout)
    assert (answer["outcome"], done.returncode) == ("unfinished", 1), answer
    assert "a process of this command was killed" in answer["text"]
    assert scratch(large) == []
    assert json.loads(large.backupd("status", "--json").stdout)["drill"]["state"] == "never"


@pytest.mark.btrfs
def test_odd_names_come_back(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    source = tmp_path / "srv"
    source.mkdir()
    for name in (b"new\nline", b"esc\x1b[2J", b"caf\xe9", b"x" * 255, b" lead", b"-n", b"*?[a]", b"\\#012", b"; x", b"..."):
        (source / os.fsdecode(name)).write_bytes(name)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(source / "s"))
    deep = os.open(source, os.O_RDONLY)
    for _ in range(18):
        os.mkdir("d" * 200, dir_fd=deep)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=deep))
    os.close(deep)
    nights.host("web", source)
    nights.run()
    (done,) = drill(nights, "--sample", "all")
    assert done["outcome"] == "proven"
    (done,) = drill(nights, "--sample", "12")
    assert done["outcome"] == "proven"
    assert noted(nights)
