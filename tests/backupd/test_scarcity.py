"""When a transfer is stopped for lack of space, which one, and when the space is checked again."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.rsync.command import rsync_version
from backupd.rsync.confined import Confinement
from backupd.run.host_run import HostRun
from backupd.run.night import NightRunner
from backupd.run.room import Level, Scarcity, TransferGrowth, fastest, next_level, next_look, running_out
from backupd.run.run_context import RunContext
from btrkeep.backup_states import Cause, CauseCode
from btrkeep.catalogue import Catalogue
from btrkeep.clock import Clock
from btrkeep.config import HostConfig, load
from btrkeep.pool.marker import Pool
from btrkeep.pool.space_by_profile import Room
from btrkeep.process.progress import ProgressSinks

GIB, MIB = 1 << 30, 1 << 20
sizes = st.integers(0, 1 << 46)


def room(free: int, unallocated: int = 0, metadata: int = GIB) -> Room:
    return Room(1000 * GIB, free, unallocated, metadata)


LEVEL = Level(10 * GIB, 8 * MIB)


@pytest.mark.parametrize(
    ("result", "rate", "why"),
    [
        (room(11 * GIB), 0, ""),
        (room(6 * GIB, 5 * GIB), 0, ""),
        (room(9 * GIB), 0, "too little free space: "),
        (room(11 * GIB), 4 * GIB, "too little free space: "),  # in the time that a stop takes it would be below
        (room(50 * GIB, 0, MIB), 0, "for metadata"),
        (room(50 * GIB, GIB, MIB), 0, ""),  # more can be allocated
    ],
)
def test_a_transfer_is_stopped_when_less_is_left_than_the_level(result: Room, rate: float, why: str) -> None:
    output = running_out(result, LEVEL, rate)
    assert (why in output) if why else output == ""


def test_a_stop_names_what_is_left_the_limit_and_when_it_would_come_too_late_the_speed() -> None:
    level = Level(13 * MIB, 0)
    assert running_out(room(12 * MIB), level) == (
        "the pool has too little free space: 12.0 MiB are left (0 B unallocated and 12.0 MiB free in data block groups), "
        "13.0 MiB are reserved (a quarter of min_free, or half of the space left at an earlier stop)"
    )
    fast = running_out(room(111 * MIB, 113 * MIB), level, 500 * MIB)
    assert "224 MiB are left (113 MiB unallocated and 111 MiB free in data block groups) and shrink by 500 MiB/s, " in fast
    assert "13.0 MiB are reserved" in fast
    assert "32.0 MiB are reserved" in running_out(room(50 * GIB, 0, MIB), Level(0, 32 * MIB))


def test_a_pool_without_min_free_may_be_filled_to_the_brim() -> None:
    assert running_out(room(1), Level(0, 8 * MIB), 9e9) == ""


@given(free=sizes, unallocated=sizes, metadata=sizes)
def test_after_a_stop_the_others_have_half_of_what_is_left(free: int, unallocated: int, metadata: int) -> None:
    result = room(free, unallocated, metadata)
    after = next_level(result, LEVEL)
    assert after.data <= min(LEVEL.data, (free + unallocated) / 2)
    assert after.metadata <= LEVEL.metadata
    assert running_out(result, after) == "" or result.available == 0


@given(left=sizes, rate=st.floats(0, 1e12))
def test_the_next_look_comes_long_before_the_room_is_used_up_and_never_too_often(left: int, rate: float) -> None:
    pause = next_look(room(LEVEL.data + left), LEVEL, rate)
    assert 0.1 <= pause <= 5
    assert pause == 0.1 or rate * pause < max(1, left)


def test_the_host_that_wrote_most_is_the_one() -> None:
    assert fastest({"a": 5, "b": 7, "c": 6}) == "b"
    assert fastest({"b": 0, "a": 0}) == "a"


@pytest.fixture
def writer() -> Iterator["subprocess.Popen[str]"]:
    """A program in its own process group that writes a mebibyte for each input line, and reports it.

    To a disk: the kernel does not count writes to memory, where the folders of tests may be.
    """
    code = f"""
import os, sys, tempfile
with tempfile.TemporaryFile(dir="/var/tmp", buffering=0) as file:
    for line in sys.stdin:
        file.write(os.urandom({MIB})); os.fsync(file.fileno()); print("written", flush=True)
"""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        yield process
        process.kill()


def test_what_a_transfer_writes_is_the_kernels_word(writer: "subprocess.Popen[str]") -> None:
    assert writer.stdin
    assert writer.stdout
    growth, groups = TransferGrowth(), {writer.pid: "web"}
    for second in range(3):
        writer.stdin.write("more\n")
        writer.stdin.flush()
        writer.stdout.readline()
        lately = growth.measure(groups, 2.0 * second)
        assert growth.total["web"] >= (second + 1) * MIB
    assert lately["web"] < growth.total["web"]  # the first reading was long ago
    growth.forget("web")
    assert growth.measure({}, 6.0) == growth.total == {}


def test_a_look_that_a_bug_ends_is_not_the_last(shared_btrfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "main.toml").write_text(f'[pool]\npath = "{shared_btrfs}"\nstate = "{tmp_path}"\nmin_free = "1000TiB"\n')
    monkeypatch.setattr("backupd.run.room._LONGEST", 0.1)
    looks, stopped = iter((KeyError("a bug"), {os.getpgrp(): "web"})), list[str]()

    def groups() -> dict[int, str]:
        result = next(looks, dict[int, str]())
        if isinstance(result, Exception):
            raise result
        return result

    async def watch() -> None:
        looked = asyncio.Event()

        def stop(host: str, _why: object) -> None:
            stopped.append(host)
            looked.set()

        watching = asyncio.create_task(Scarcity(shared_btrfs, load(file=tmp_path / "main.toml"), groups, stop).run())
        await asyncio.wait_for(looked.wait(), 60)
        assert watching.cancel()

    asyncio.run(watch())
    assert stopped == ["web"]


@pytest.mark.parametrize(("before", "why"), [(None, "room"), (Cause(CauseCode.SIGNAL, facts={"name": "SIGTERM"}), None)])
def test_only_what_was_stopped_for_want_of_room_is_noted_as_such(tmp_path: Path, before: Cause | None, why: str | None) -> None:
    """A later night discards such backups. A host that is already being stopped still writes, and may be the fastest."""
    (tmp_path / "main.toml").write_text(f'[pool]\npath = "{tmp_path}"\nstate = "{tmp_path}"\n')
    config, pool = load(file=tmp_path / "main.toml"), Pool(tmp_path, "1", "11111111-2222-4333-8444-555555555555", False)
    with Catalogue.open(tmp_path) as catalogue:
        site = RunContext(config, pool, catalogue, Clock(None), rsync_version(), ProgressSinks(), False, Confinement())
        night = NightRunner(site, [])
        night.runs["web"] = run = HostRun(night.context, HostConfig("web", paths=("/srv",)))
        if before:
            night.stop(before)
        night._stop_for_room("web", "the pool has too little free space")
        assert run.stopped_for == why
        assert run.cancellation.reason == (before or Cause(CauseCode.POOL, facts={"text": "the pool has too little free space"}))
