"""Locks of the pool: across processes, and after the death of the process that took them."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from btrkeep.errors import Exit, LockHeld, PoolUnusable
from btrkeep.pool.locks import Lock, read_holder, take_lock
from btrkeep.process.proc import start_time
from tests.beds import TOP, work
from tests.beds.watch import wait_for


@contextmanager
def another_process(lock: Path, then: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Starts a process that takes the lock, prints "held", waits for a line, and continues with `then`."""
    code = f"""
        import os, pathlib, subprocess, sys, time
        from btrkeep.pool.locks import take_lock
        lock = take_lock(pathlib.Path({str(lock)!r}), "backup of web1", "2026-11-20T22:00:03Z")
        print("held", flush=True)
        sys.stdin.readline()
        {then}
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.Popen(words, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    try:
        assert process.stdout.readline() == "held\n"
        yield process, process.stdout
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def attempt(path: Path) -> Lock:
    return take_lock(path, "the night", "2026-11-20T22:10:00Z")


def test_a_lock_that_another_process_holds_is_refused_and_its_holder_is_named(tmp_path: Path) -> None:
    with another_process(tmp_path / "host-web1", "pass") as (process, _):
        with pytest.raises(LockHeld) as caught:
            attempt(tmp_path / "host-web1")
        assert caught.value.exit_code is Exit.LOCKED
        for word in ("host-web1", str(process.pid), "backup of web1", "2026-11-20T22:00:03Z"):
            assert word in caught.value.message
        holder = read_holder(tmp_path / "host-web1")
        assert holder
        assert holder.pid == process.pid
        assert holder.is_alive
    assert not holder.is_alive
    with attempt(tmp_path / "host-web1") as lock:
        assert lock.holder.pid == os.getpid()


def test_a_lock_that_was_given_back_or_whose_holder_was_killed_is_free(tmp_path: Path) -> None:
    with another_process(tmp_path / "lock", "lock.release(); print('released', flush=True); time.sleep(60)") as (process, output):
        go_on(process)
        assert output.readline() == "released\n"
        attempt(tmp_path / "lock").release()
    with another_process(tmp_path / "lock", "pass") as (process, _):
        process.kill()
        process.wait()
        attempt(tmp_path / "lock").release()


def test_a_lock_lives_as_long_as_the_last_child_that_inherited_it(tmp_path: Path) -> None:
    """A receiver continues to write after its parent was killed, so its host must stay locked."""
    then = (
        "child = subprocess.Popen(['sleep', '60'], pass_fds=[lock.fd], start_new_session=True); "
        "other = subprocess.Popen(['sleep', '60']); "
        "lock.note_group(child.pid); print(child.pid, other.pid, flush=True); time.sleep(60)"
    )
    with another_process(tmp_path / "lock", then) as (process, output):
        go_on(process)
        child, other = map(int, output.readline().split())
        process.kill()
        process.wait()
        try:
            with pytest.raises(LockHeld, match=rf"process {child} \(sleep\), left from") as caught:
                attempt(tmp_path / "lock")
            assert "the next run of the host ends it" in caught.value.hint, "`backupd status` knows of no run any more"
            holder = read_holder(tmp_path / "lock")
            assert holder
            assert (holder.pid, holder.group, holder.is_alive) == (process.pid, child, False)
        finally:
            os.kill(child, 9)
        # The other child was not handed the lock, and is still there.
        wait_for(lambda: start_time(child) is None)
        os.kill(other, 0)
        attempt(tmp_path / "lock").release()
        os.kill(other, 9)


def test_a_lock_is_exclusive_within_a_process_too_and_can_be_taken_again(tmp_path: Path) -> None:
    with attempt(tmp_path / "new folder" / "lock") as lock:
        with pytest.raises(LockHeld):
            attempt(lock.path)
        assert work("stat", "-c", "%a", lock.path, lock.path.parent).stdout.split() == ["600", "700"]
        lock.note_group(4711)
        holder = read_holder(lock.path)
        assert holder
        assert holder.group == 4711
    assert read_holder(lock.path) is None
    lock.release()  # once more does no harm
    attempt(lock.path).release()


def test_a_holder_whose_pid_was_given_to_another_process_is_not_alive(tmp_path: Path) -> None:
    with attempt(tmp_path / "lock") as lock:
        assert lock.holder.is_alive
        fields = json.loads(lock.path.read_text(encoding="utf-8"))
        lock.path.write_text(json.dumps({**fields, "started": "1"}), encoding="utf-8")
        holder = read_holder(lock.path)
        assert holder
        assert not holder.is_alive


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"pid": 1}', b"\xff", b'{"pid": 1, "unknown": 2}'])
def test_a_lock_whose_text_cannot_be_read_is_still_held_or_free_as_the_kernel_says(tmp_path: Path, content: bytes) -> None:
    with attempt(tmp_path / "lock") as lock:
        lock.path.write_bytes(content)
        with pytest.raises(LockHeld, match="another process"):
            attempt(lock.path)
    lock.path.write_bytes(content)
    attempt(lock.path).release()


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b'{"pid": "../../tmp", "started": "", "since": "now", "what": "backup", "group": 1}',
        b'{"pid": -1, "started": "1", "since": "now", "what": "backup"}',
        b'{"pid": true, "started": "1", "since": "now", "what": "backup"}',
        b'{"pid": 1, "started": "1", "since": "now", "what": "\\u001b[2Jbackup"}',
        b'{"pid": 1, "started": "1", "since": "now", "what": "backup", "group": [1]}',
        b'{"pid": 1' + b"0" * 5000 + b', "started": "1", "since": "now", "what": "backup"}',
    ],
    ids=["nested", "a path", "negative", "a truth", "escapes", "a list", "digits"],
)
@pytest.mark.parametrize("size", [None, 1 << 43])
def test_an_invented_text_of_a_lock_is_ignored(tmp_path: Path, content: bytes, size: int | None) -> None:
    """A process that inherits a lock could write to it, such as a receiver that a host controls."""
    with attempt(tmp_path / "lock") as lock:
        lock.path.write_bytes(content)
        if size:
            os.truncate(lock.path, size)
        with pytest.raises(LockHeld, match=rf"held by another process \({os.getpid()}\)"):
            attempt(lock.path)


@pytest.mark.root
def test_who_inherits_a_sealed_lock_cannot_change_it_as_root(tmp_path: Path) -> None:
    code = """if True:
        import os, sys
        fd, done = int(sys.argv[1]), []
        again = f"/proc/self/fd/{fd}"
        for what in (
            lambda: os.write(fd, b"x"), lambda: os.open(again, os.O_RDWR), lambda: os.truncate(again, 0), lambda: os.fchmod(fd, 0),
            lambda: os.fchown(fd, 1, 1), lambda: os.setxattr(fd, "trusted.x", b""), lambda: os.utime(fd), lambda: os.utime(again),
            lambda: os.chmod(again, 0), lambda: os.link(again, sys.argv[2], follow_symlinks=True),
        ):
            try:
                what()
                done.append("done")
            except OSError:
                done.append("")
        print(done, os.fstat(fd).st_ino)
    """
    with take_lock(tmp_path / "lock", "backup of web", "now", sealed=True) as lock:
        words = [sys.executable, "-c", code, str(lock.fd), str(tmp_path / "other")]
        done = subprocess.run(words, pass_fds=[lock.fd], capture_output=True, text=True, check=True)
        assert done.stdout == f"{[''] * 10} {lock.path.stat().st_ino}\n"
        lock.note_group(4711)
        assert json.loads(lock.path.read_text())["group"] == 4711
        assert f":{lock.path.stat().st_ino} " in Path("/proc/locks").read_text()
        with pytest.raises(LockHeld, match="backup of web"):
            attempt(lock.path)
        child = subprocess.Popen(["sleep", "60"], pass_fds=[lock.fd])
    with pytest.raises(LockHeld, match="another process"):
        attempt(lock.path)
    child.kill()
    child.wait()
    attempt(lock.path).release()
    assert work("find", "/proc/self/fd", "-lname", f"{lock.path}*").stdout == ""


def test_a_symlink_in_a_locks_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched", encoding="utf-8")
    (tmp_path / "lock").symlink_to("victim")
    with pytest.raises(PoolUnusable):
        attempt(tmp_path / "lock")
    assert (tmp_path / "victim").read_text(encoding="utf-8") == "untouched"
