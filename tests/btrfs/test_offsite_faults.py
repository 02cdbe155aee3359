"""Offsite copies when restic, the repository or this machine fails in the middle, or sends unexpected output."""

import json
import os
import shlex
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from backupd.offsite.restic import Restic, ResticFailed, restic_of
from btrkeep.config.config_model import OffsiteSettings
from tests.beds.cli import backupd_start
from tests.beds.faults import damage
from tests.beds.watch import wait_for
from tests.beds.work import work
from tests.btrfs.test_offsite import Offsite, damaged_backup, far, fill

pytestmark = pytest.mark.btrfs
__all__ = ["far"]


def instead(far: Offsite, script: str) -> dict[str, str]:
    """Puts our own restic in front of the real one, as shell lines; "$REAL" is the real one. Returns its environment."""
    folder = far.repository / "bin"  # the cell sees it
    folder.mkdir(exist_ok=True)
    real = work("which", "restic").stdout.strip()
    (folder / "restic").write_text(f"#!/bin/bash\nREAL={real}\n{script}\n")
    (folder / "restic").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def damaged_night(far: Offsite) -> None:
    """A backup with a file that the disk cannot read, and a repository for it."""
    content = os.urandom(1_000_000)
    source = far.away / "source"  # not on the pool's disk
    source.mkdir()
    (source / "database").write_bytes(content)
    far.night.host("web1", source)
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    damage(far.night.top, content[:4096])


@pytest.mark.parametrize("end", ["kill -9 $(cat {pid}); sleep 1", "touch {over}"], ids=["killed", "the list cannot be had"])
def test_a_snapshot_that_is_not_whole_never_counts_whatever_comes_next(far: Offsite, end: str) -> None:
    damaged_night(far)
    pid, over = far.repository / "pid", far.repository / "over"
    end = end.format(pid=pid, over=over)
    cases = f'backup) "$REAL" "$@"; s=$?; {end}; exit $s;; snapshots) test -e {over} && exit 1;;'
    env = instead(far, f'case "$1" in {cases} esac\nexec "$REAL" "$@"')
    program = backupd_start("--config", far.night.config, "offsite", "run", env=env)
    pid.write_text(str(program.pid))
    program.communicate()
    over.unlink(missing_ok=True)
    assert len(far.listed_by_restic()) == 1
    listed = json.loads(far.offsite("list", "--json").stdout)
    assert [row["whole"] for row in listed] == [False]
    assert "would be sent" in far.offsite("run", "--dry-run").stdout
    assert far.copies("2026-03-02T23:00:00Z")["state"] != "ok"


@pytest.mark.parametrize("may_delete", [True, False])
def test_a_snapshot_that_lacks_files_is_known_as_such_when_the_catalogue_is_lost(far: Offsite, may_delete: bool) -> None:
    damaged_night(far)
    # a key that cannot delete: the tagged snapshot is written in addition to the first one
    path = far.repository / "snapshots"
    keeps = f'cp -a {path} {path}.kept; "$REAL" "$@"; cp -an {path}.kept/. {path}; exit 1'
    env = None if may_delete else instead(far, f'case "$1" in tag) {keeps};; esac\nexec "$REAL" "$@"')
    far.offsite("run", "--now", "2026-03-01T23:00:00Z", status=1, env=env)
    shutil.rmtree(far.night.state)
    far.night.backupd("rebuild", "--now", "2026-03-02T01:30:00Z")
    listed = json.loads(far.offsite("list", "--json").stdout)
    assert [row["whole"] for row in listed] == [False] * (1 if may_delete else 2)
    assert far.copies("2026-03-02T03:00:00Z")["state"] != "ok"


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_rebuild_in_the_middle_loses_nothing_that_was_sent(far: Offsite, is_lost: bool) -> None:
    """Into the same catalogue, and into a new one while the command has the old one open."""
    fill(far.night.source)
    far.offsite("init", "far")
    far.backup("2026-03-01T22:00:00Z")
    at, go = far.repository / "at", far.repository / "go"
    env = instead(far, f'if test "$1" = backup; then touch {at}; until test -e {go}; do sleep 0.05; done; fi\nexec "$REAL" "$@"')
    program = backupd_start("--config", far.night.config, "offsite", "run", "--now", "2026-03-01T23:00:00Z", env=env)
    wait_for(at.exists, 60)
    for path in far.night.state.glob("catalogue.sqlite*") if is_lost else ():
        path.unlink()
    far.night.backupd("rebuild", "--now", "2026-03-01T22:59:00Z")
    go.touch()
    out, err = program.communicate()
    assert ("Traceback" in err, program.returncode) == (False, 0), out + err
    assert [row["whole"] for row in json.loads(far.offsite("list", "--json").stdout)] == [True]
    assert far.run("--now", "2026-03-01T23:30:00Z")["sent"] == []
    assert len(far.listed_by_restic()) == 1
    copies = far.copies("2026-03-02T00:00:00Z")
    assert (copies["state"], copies["running"], copies["behind"]) == ("ok", None, [])


def test_a_signal_while_backups_are_removed_there_ends_it_in_one_line(far: Offsite) -> None:
    fill(far.night.source)
    far.offsite("init", "far")
    for day in (1, 2, 3):
        far.backup(f"2026-03-0{day}T22:00:00Z")
        far.run("--now", f"2026-03-0{day}T23:00:00Z")
    far.night.tables["offsite.far.retention"] = {"daily": 1, "weekly": 0, "monthly": 0, "yearly": 0, "min_keep": 1}
    far.night.write()
    flag = far.repository / "forgets"
    env = instead(far, f'test "$1" = forget && touch {flag} && sleep 5\nexec "$REAL" "$@"')
    program = backupd_start("--config", far.night.config, "offsite", "run", "--now", "2026-03-05T00:00:00Z", env=env)
    end = time.monotonic() + 60
    while not flag.exists():
        assert time.monotonic() < end
        assert program.poll() is None
        time.sleep(0.02)
    program.send_signal(signal.SIGTERM)
    _, err = program.communicate()
    assert "Traceback" not in err
    assert program.returncode == 143
    assert len(far.listed_by_restic()) == 3


REFUSED = """blob not removed, server response: 403 Forbidden (403)
github.com/restic/restic/internal/backend/rest.(*Backend).Remove
	github.com/restic/restic/internal/backend/rest/rest.go:399
runtime.goexit
	runtime/asm_amd64.s:1594"""
"""As restic 0.14 ends at `rclone serve restic --append-only`, after three quarters of a minute."""


def test_what_the_storage_does_not_let_remove_does_not_make_the_copy_old(far: Offsite) -> None:
    fill(far.night.source)
    far.offsite("init", "far")
    far.night.tables["offsite.far.retention"] = {"daily": 1, "weekly": 0, "monthly": 0, "yearly": 0, "min_keep": 1}
    far.night.write()
    env = instead(far, f'test "$1" = forget && echo {shlex.quote(REFUSED)} >&2 && exit 1\nexec "$REAL" "$@"')
    for day in (1, 2, 3):
        far.backup(f"2026-03-0{day}T22:00:00Z")
        done = far.offsite("run", "--now", f"2026-03-0{day}T23:00:00Z", status=int(day > 1), env=env)
    assert "no backup was removed: restic: blob not removed, server response: 403 Forbidden (403)\n" in done.stderr
    assert "check the permissions of the key" in done.stderr
    failed = far.copies("2026-03-04T01:00:00Z")
    assert (failed["state"], failed["age"]) == ("failing", 3 * 3600)
    assert failed["error"].endswith("403 Forbidden (403)")
    assert len(far.listed_by_restic()) == 3


def test_numbers_that_make_no_sense_are_refused(far: Offsite) -> None:
    fill(far.night.source)
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    far.run()
    assert "Traceback" not in far.offsite("check", "--files", "-1", status=2).stderr
    assert "Traceback" not in far.offsite("check", "--files", "100000000", status=2).stderr
    assert "sample" in far.offsite("check", "--sample", "--repo", status=2).stderr
    for sample in ("0%", "5/3", "abc"):
        far.offsite("check", "--sample", sample, status=2)


def test_lines_of_progress_are_not_kept(far: Offsite) -> None:
    """A first copy takes days, and restic prints the current files every second."""
    far.offsite("init", "far")
    line = json.dumps({"message_type": "status", "current_files": ["x" * 4096] * 4})
    instead(far, f'for i in {{1..2000}}; do echo {shlex.quote(line)}; done; echo \'{{"snapshot_id": "1"}}\'')
    settings = OffsiteSettings("far", repository=str(far.repository), password_file=far.password)
    restic = restic_of(settings, far.night.state, far.night.pool)
    restic = replace(restic, variables={**restic.variables, "PATH": f"{far.repository}/bin:{os.environ['PATH']}"})
    seen = list[object]()
    answer = restic.ask("backup", tell=seen.append)
    assert len(seen) == 2001
    assert answer.lines == [{"snapshot_id": "1"}]


@pytest.mark.parametrize("reached", [False, True])
def test_a_repository_that_is_not_reached_is_not_waited_for(far: Offsite, monkeypatch: pytest.MonkeyPatch, reached: bool) -> None:
    """restic of 2024 and later tries again for a quarter of an hour. Its words are those of restic 0.18.0 (Debian 13)."""
    far.offsite("init", "far")
    refused = 'Head "http://127.0.0.1:1/x/config": dial tcp 127.0.0.1:1: connect: connection refused'
    line = f"Stat(<config/>) returned error, retrying after 1.376080233s: {refused}"
    then = "sleep 2; echo '[]'; exit 0" if reached else "while :; do say; sleep 0.3; done"
    instead(far, f"say() {{ echo {shlex.quote(line)} >&2; }}\nsay; {then}")
    monkeypatch.setattr("backupd.offsite.restic.OPENING", 0.5)
    settings = OffsiteSettings("far", repository=str(far.repository), password_file=far.password)
    restic = restic_of(settings, far.night.state, far.night.pool)
    restic = replace(restic, variables={**restic.variables, "PATH": f"{far.repository}/bin:{os.environ['PATH']}"})
    if reached:  # in the end, and it was silent at work
        assert restic.ask("snapshots").lines == [[]]
        return
    with pytest.raises(ResticFailed, match=r"cannot be reached: .* connection refused"):
        restic.ask("snapshots")


@contextmanager
def silent_server() -> Iterator[str]:
    """Yields the address of a server that accepts connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)  # the kernel accepts them
        yield f"rest:http://127.0.0.1:{server.getsockname()[1]}/"


def test_a_server_that_never_answers_ends_a_check_and_a_run_and_is_a_finding(far: Offsite) -> None:
    fill(far.night.source)
    far.backup("2026-03-01T22:00:00Z")
    with silent_server() as address:
        far.settings(repository=address, stall="1s")
        for _ in range(3):
            reported = far.offsite("check", status=1).stderr
            assert "far: restic: the repository has not answered for 1.0s" in " ".join(reported.split())
        checked = far.night.backupd("check", check=False).stdout
        assert "offsite check far: did not finish 3 times in a row" in " ".join(checked.split())
        far.offsite("run", status=1)
        (copy,) = far.night.json("status")["copies"]
        assert "has not answered" in copy["error"]


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_signal_ends_a_command_whose_server_never_answers(far: Offsite, command: str) -> None:
    with silent_server() as address:
        far.settings(repository=address)
        program = backupd_start("--config", far.night.config, "offsite", command)
        wait_for(lambda: "restic" in started_below(program.pid), 60)
        program.send_signal(signal.SIGTERM)
        _, errors = program.communicate(timeout=60)
        assert (program.returncode, "Traceback" in errors) == (143, False), errors


def started_below(pid: int) -> str:
    """Returns the names of the processes below this one."""
    return work("pstree", str(pid)).stdout


def test_a_run_during_a_check_is_told_so_and_fails_nothing(far: Offsite) -> None:
    fill(far.night.source)
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    far.run("--now", "2026-03-01T23:00:00Z")
    flag = far.repository / "checks"
    env = instead(far, f'test "$1" = check && touch {flag} && sleep 3\nexec "$REAL" "$@"')
    program = backupd_start("--config", far.night.config, "offsite", "check", env=env)
    while not flag.exists():
        assert program.poll() is None
        time.sleep(0.02)
    assert "backupd offsite check" in far.offsite("run", "--now", "2026-03-01T23:30:00Z", status=3).stderr
    assert far.copies("2026-03-01T23:40:00Z")["state"] == "ok"
    program.communicate()
    assert program.returncode == 0


@pytest.mark.parametrize("text", ["https://me:p@ss/w@rd@host/x", "rest:http://user:a@b@host/", "ftp://u@h"])
def test_what_stands_before_a_host_is_not_shown(tmp_path: Path, text: str) -> None:
    cleaned = Restic(OffsiteSettings("far"), tmp_path, (), {})._clean(f"cannot reach {text}: no")
    assert "://***@" in cleaned
    for secret in ("p@ss", "w@rd", "ss/w", "a@b", "@b", "u@"):
        assert secret not in cleaned


def test_a_name_that_is_hostile_is_printed_as_text(far: Offsite) -> None:
    (far.night.source / "odd\n\x1b[2Jname").write_bytes(os.urandom(100_000))
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    far.run()
    name = far.night.backup("web1")
    work("btrfs", "property", "set", "-f", name, "ro", "false")
    (file,) = (path for path in name.rglob("odd*"))
    file.write_bytes(b"changed")
    work("btrfs", "property", "set", name, "ro", "true")
    output = far.offsite("check", status=1).stderr
    assert "\x1b" not in output
    assert "was restored with different content" in output


def test_a_backup_that_restic_cannot_read_is_not_sent_for_ever(far: Offsite) -> None:
    """Each attempt leaves a snapshot there, which a key that can only append cannot remove, and the timer runs each hour."""
    source = damaged_backup(far)
    for hour in range(5):
        answer = far.run("--now", f"2026-03-02T0{hour}:00:00Z", status=1)
        assert [failure["host"] for failure in answer["failed"]] == ["web1"]
    assert len(far.listed_by_restic()) == 3
    assert far.copies("2026-03-02T22:00:00Z")["state"] == "failing"
    assert "would be sent" not in far.offsite("run", "--dry-run").stdout.replace("0 backups of 1 host would be sent", "")
    far.run("far", "web1", "--now", "2026-03-02T06:00:00Z", status=1)
    assert len(far.listed_by_restic()) == 4
    (source / "b").write_bytes(os.urandom(2_000_000))
    far.backup("2026-03-02T22:00:00Z")
    assert len(far.run("--now", "2026-03-03T12:00:00Z")["sent"]) == 1


def test_a_host_whose_newest_backup_is_of_a_newer_version_has_failed(far: Offsite) -> None:
    far.night.host("web1", far.away)
    (far.away / "some").write_text("content")
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    record = far.night.backup("web1") / "backup.json"
    work("btrfs", "property", "set", "-f", record.parent, "ro", "false")
    record.write_text(record.read_text().replace('"format": 1', '"format": 2'))
    work("btrfs", "property", "set", record.parent, "ro", "true")
    (failed,) = far.run("--now", "2026-03-02T06:00:00Z", status=1)["failed"]
    assert failed["host"] == "web1"
    assert "newer btrkeep" in failed["error"]


def test_what_is_mounted_in_a_backup_is_not_sent_in_place_of_what_it_hides(far: Offsite) -> None:
    fill(far.night.source)
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    place = far.night.backup("web1") / "data"
    work("mount", "-t", "tmpfs", "tmpfs", place)
    try:
        assert "a mount in web1@" in far.offsite("run", status=1).stderr
    finally:
        work("umount", place)
    assert far.listed_by_restic() == []
    far.offsite("run")
    assert len(far.listed_by_restic()) == 1
