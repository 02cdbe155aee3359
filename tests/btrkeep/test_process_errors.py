"""Programs that cannot be watched or ended, and the processes that keep a deleted backup from being dropped. The processes are
real.
"""

import asyncio
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from btrkeep.process import group as module
from btrkeep.process import proc
from btrkeep.process.group import Group, UnkillableProcess
from btrkeep.process.proc import FolderUser, folder_users, why_no_descriptors
from btrkeep.process.programs import ProgramFailed
from tests.beds import work
from tests.beds.watch import processes, wait_for


def ignore(_data: bytes) -> None:
    pass


def start(*command: str | Path) -> Group:
    return Group.start(list(map(str, command)), on_stdout=ignore, on_stderr=ignore)


def test_a_program_that_cannot_be_watched_is_ended_and_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An rsync that nobody watches would continue to write to the backup."""
    script = tmp_path / "goes-on"
    script.write_text("#!/bin/sh\nsleep 60\n")
    script.chmod(0o755)

    def no_more(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def begin() -> None:
        monkeypatch.setattr(os, "pidfd_open", no_more)
        start(script)

    with pytest.raises(ProgramFailed, match="Too many open files"):
        asyncio.run(begin())
    wait_for(lambda: not processes(script))  # a shell that had forked: its child, killed too, is another's to wait for


def test_a_limit_of_processes_is_reported_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    async def begin() -> None:
        monkeypatch.setattr(subprocess, "Popen", refuse)
        start("true")

    with pytest.raises(ProgramFailed, match="TasksMax="):
        asyncio.run(begin())


def test_a_process_that_not_even_a_kill_ends_is_named_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process waits for a disk (state D). A night that waits for the process would back up no other host."""

    async def at_once(_seconds: float) -> None:
        pass

    async def run_stuck() -> None:
        stuck = start("true")
        monkeypatch.setattr(module, "are_dead", lambda *_: False)
        monkeypatch.setattr("os.killpg", lambda _group, number: sent.append(number) if number else None)
        monkeypatch.setattr("btrkeep.process.group.asyncio.sleep", at_once)
        await stuck.wait()

    sent: list[int] = []
    with pytest.raises(UnkillableProcess, match=r"a process of true cannot be ended: it waits in the kernel \(state D\)"):
        asyncio.run(run_stuck())
    assert sent == [15, 9]


# Who keeps the kernel from dropping a deleted backup


@pytest.fixture
def holder() -> Iterator[Callable[..., int]]:
    """`holder(CODE, folder)` starts a shell that executes the code and then waits, and returns its process id."""
    started: list[subprocess.Popen[str]] = []

    def hold(code: str, folder: Path) -> int:
        words = ["sh", "-c", f"{code}; echo ready; read wait"]
        started.append(subprocess.Popen(words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1].pid

    yield hold
    for process in started:
        process.communicate("\n", timeout=60)


@pytest.mark.parametrize("code", ["true", "cd /; exec 7<{folder}/deep/file"], ids=["its working folder", "an open file"])
def test_who_stands_or_has_a_file_open_in_a_folder_is_named(holder: Callable[..., int], tmp_path: Path, code: str) -> None:
    """Otherwise an administrator does not know why a deleted backup still takes space."""
    (tmp_path / "held" / "deep").mkdir(parents=True)
    (tmp_path / "held" / "deep" / "file").touch()
    (tmp_path / "free").mkdir()
    pid = holder(code.format(folder=tmp_path / "held"), tmp_path / "held" / "deep")
    asked = {str(tmp_path / "held"), str(tmp_path / "free")}
    assert folder_users(asked) == {str(tmp_path / "held"): FolderUser(pid, "sh")}


def test_who_stands_in_a_folder_that_is_deleted_is_named_too(holder: Callable[..., int], tmp_path: Path) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    pid = holder("true", folder)
    folder.rmdir()
    assert folder_users({str(folder)}) == {str(folder): FolderUser(pid, "sh")}


def test_a_folder_whose_name_only_begins_like_a_held_one_is_free(holder: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "held2").mkdir()
    holder("true", tmp_path / "held2")
    assert folder_users({str(tmp_path / "held")}) == {}


def test_processes_that_end_meanwhile_or_hide_their_files_hide_no_others(
    holder: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = holder("true", tmp_path)
    listed = os.scandir
    ended = work("sh", "-c", "echo $$").stdout.strip()
    wait_for(lambda: not Path(f"/proc/{ended}").exists())
    with_ended = {"/proc": [SimpleNamespace(name=ended)]}
    monkeypatch.setattr("os.scandir", lambda path: [*with_ended.get(path, ()), *listed(path)])
    assert folder_users({str(tmp_path)}) == {str(tmp_path): FolderUser(pid, "sh")}


def test_a_kernel_that_forbids_descriptors_of_others_is_reported_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "descriptor_of", lambda _pidfd, number: os.dup(number))
    assert why_no_descriptors() == ""

    def refuse(_pidfd: int, _number: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(proc, "descriptor_of", refuse)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    assert why_no_descriptors() == "pidfd_getfd: Function not implemented"
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
