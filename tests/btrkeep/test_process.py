"""Starting, watching and outliving real processes, checked with /proc, ps and pgrep."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from btrkeep.process.group import Group
from btrkeep.process.proc import groups_of, has_locked, members, start_time
from btrkeep.process.programs import ProgramFailed, environment, piped, run
from tests.beds import TOP, work
from tests.beds.watch import wait_for


class Heard:
    """The output of a group on both streams."""

    def __init__(self) -> None:
        self.out = b""
        self.err = b""

    def take_out(self, data: bytes) -> None:
        self.out += data

    def take_err(self, data: bytes) -> None:
        self.err += data


def start(*command: str, keep_open: tuple[int, ...] = ()) -> tuple[Group, Heard]:
    heard = Heard()
    return Group.start(command, on_stdout=heard.take_out, on_stderr=heard.take_err, keep_open=keep_open), heard


def whole(*command: str) -> tuple[int, Heard]:
    """Runs a group from its start to its end."""

    async def both() -> tuple[int, Heard]:
        group, heard = start(*command)
        status = await group.wait()
        at_the_end, at_the_end.out, at_the_end.err = Heard(), heard.out, heard.err  # later output of the loop does not count
        return status, at_the_end

    return asyncio.run(both())


def reaping(code: str, *arguments: str | Path) -> str:
    """Returns the output of `code` in a separate process that collects ended children, as ours do. The code can call
    `run_group(*command)`.
    """
    head = """
        import asyncio, os, signal, sys, time
        from btrkeep.process.group import Group
        from btrkeep.process.proc import become_reaper, members
        become_reaper()
        children = lambda: open(f"/proc/self/task/{os.getpid()}/children").read().split()
        def run_group(*command, meanwhile=None):
            out = []
            async def both():
                group = Group.start(command, on_stdout=out.append, on_stderr=out.append)
                if meanwhile:
                    asyncio.get_running_loop().call_later(0.3, meanwhile, group)
                return group.pid, await group.wait()
            pid, status = asyncio.run(both())
            return pid, status, b"".join(out).decode()
    """
    program = textwrap.dedent(head) + textwrap.dedent(code)
    return work(sys.executable, "-c", program, *arguments, cwd=TOP, timeout=60).stdout


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`sleeper(*command)` starts a process that ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*command: str | Path, **wishes: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command, start_new_session=True, **wishes))  # type: ignore[call-overload]
        return started[-1]

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# Groups


@pytest.mark.parametrize("status", [0, 1, 23, 255])
def test_the_status_is_that_of_the_program(status: int) -> None:
    assert whole("sh", "-c", f"exit {status}")[0] == status


def test_a_program_that_a_signal_ended_has_the_signal_as_its_status() -> None:
    assert whole("sh", "-c", "kill -TERM $$")[0] == -signal.SIGTERM


def test_everything_that_was_printed_is_heard_also_what_came_last() -> None:
    code = "import os; os.write(2, b'e' * 3_000_000); os.write(1, b'o' * 3_000_000); os.write(1, b'the end')"
    status, heard = whole(sys.executable, "-c", code)
    assert (status, len(heard.err), len(heard.out), heard.out[-7:]) == (0, 3_000_000, 3_000_007, b"the end")


def test_lines_that_come_one_by_one_are_all_heard_in_their_order() -> None:
    """The pipe is read with pauses; the last lines come right before the end."""
    status, heard = whole("sh", "-c", "for i in $(seq 1 300); do echo $i; test $((i % 50)) != 0 || sleep 0.03; done")
    assert status == 0
    assert heard.out.split() == [str(number).encode() for number in range(1, 301)]


def test_who_left_the_group_but_has_its_output_is_heard_to_the_end() -> None:
    assert whole("sh", "-c", "setsid sh -c 'sleep 0.5; echo late' & echo early")[1].out == b"early\nlate\n"


def test_a_program_that_is_not_there_is_said_to_be_missing() -> None:
    async def attempt() -> None:
        start("no-such-program-here")

    with pytest.raises(ProgramFailed, match="no-such-program-here"):
        asyncio.run(attempt())


def test_a_group_is_a_session_of_its_own_with_nothing_on_its_standard_input() -> None:
    status, heard = whole("sh", "-c", "ps -o pgid=,sid=,tty= -p $$; readlink /proc/$$/fd/0")
    group, session, terminal, stdin = heard.out.split()
    assert (status, group == session, terminal, stdin) == (0, True, b"?", b"/dev/null")
    assert int(session) != os.getsid(0)


def test_a_member_inherits_the_lock_and_no_other_file_of_ours(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock, (tmp_path / "other").open("w") as other:
        os.set_inheritable(other.fileno(), False)

        async def look() -> bytes:
            group, heard = start("sh", "-c", "for fd in /proc/$$/fd/*; do readlink $fd; done", keep_open=(lock.fileno(),))
            await group.wait()
            return heard.out

        listed = asyncio.run(look()).decode().splitlines()
    assert [line for line in listed if line.startswith("/") and line != "/dev/null"] == [str(tmp_path / "lock")]


def test_the_end_is_the_end_of_the_whole_group_and_nothing_is_left_unreaped(tmp_path: Path) -> None:
    """A leader that dies leaves a member that still writes, as rsync's receiver does when rsync is killed."""
    output = reaping(
        """
        before = time.monotonic()
        pid, status, out = run_group("sh", "-c", "(sleep 0.7; echo late; echo written >$0) & echo early; kill -9 $$", sys.argv[1])
        print(status, out.split(), open(sys.argv[1]).read().split(), members(pid), children(), time.monotonic() - before > 0.6)
        """,
        tmp_path / "file",
    )
    assert output == "-9 ['early', 'late'] ['written'] [] [] True\n"


def test_an_orphan_of_the_group_becomes_our_child() -> None:
    """Otherwise init would have to collect it, and a container may have no init that does."""
    output = reaping(
        """
        def parents(group):
            (orphan,) = [member for member in members(group.pid) if member.pid != group.pid]
            print(orphan.parent == os.getpid())
            os.kill(orphan.pid, signal.SIGKILL)
        def until_the_leader_ends(group):
            if group.running:
                asyncio.get_running_loop().call_later(0.01, until_the_leader_ends, group)
            else:
                parents(group)
        run_group("sh", "-c", "sleep 60 & exit 0", meanwhile=until_the_leader_ends)
        """
    )
    assert output == "True\n"


def test_members_that_end_together_with_their_leader_leave_no_zombies() -> None:
    output = reaping('print(run_group("sh", "-c", "for i in 1 2 3 4 5; do sleep 0.2 & done; exit 3")[1], children())')
    assert output == "3 []\n"


def test_dead_members_are_not_waited_for_if_no_parent_collects_them() -> None:
    """This happens in a container whose PID 1 collects no children. In the test the process around ours is the subreaper, and
    collects only ours.
    """
    output = reaping(
        """
        ours = os.fork()
        if ours == 0:
            before = time.monotonic()
            pid, status, _ = run_group("sh", "-c", "sleep 0.2 >/dev/null 2>&1 & exit 3")
            print(status, members(pid), time.monotonic() - before < 30, flush=True)
            os._exit(0)
        os.waitpid(ours, 0)
        print(len(children()), "dead child")
        """
    )
    assert output == "3 [] True\n1 dead child\n"


@pytest.mark.slow
def test_who_outlives_the_leader_for_long_is_asked_to_end() -> None:
    output = reaping(
        """
        before = time.monotonic()
        pid, status, out = run_group("sh", "-c", "(trap 'echo asked; exit' TERM; for i in $(seq 999); do sleep 0.2; done) & exit 0")
        print(status, "asked" in out, members(pid), children(), 1.9 < time.monotonic() - before < 100)
        """
    )
    assert output == "0 True [] [] True\n"


@pytest.mark.slow
def test_who_does_not_listen_is_killed() -> None:
    output = reaping(
        """
        pid, status, out = run_group("sh", "-c", "(trap '' TERM; for i in $(seq 999); do sleep 0.2; done) & exit 0")
        print(status, members(pid), children())
        """
    )
    assert output == "0 [] []\n"


def test_a_signal_reaches_every_member() -> None:
    output = reaping(
        """
        stop = lambda group: group.signal(signal.SIGTERM)
        pid, status, out = run_group("sh", "-c", "sleep 20 & (sleep 20; sleep 20) & sleep 20", meanwhile=stop)
        print(status, members(pid), children())
        """
    )
    assert output == "-15 [] []\n"


def test_a_signal_to_a_group_that_is_gone_does_nothing() -> None:
    async def late() -> None:
        group, _ = start("true")
        assert group.running
        await group.wait()
        assert not group.running
        group.signal(signal.SIGKILL)

    asyncio.run(late())


@pytest.mark.slow
def test_a_daemon_that_left_the_group_but_kept_the_pipe_does_not_hold_us_up(tmp_path: Path) -> None:
    """For example ssh's ControlPersist: it is not a member, writes to no backup, and may live."""
    before = time.monotonic()
    status, heard = whole("sh", "-c", f"setsid sh -c 'echo $$ >{tmp_path}/pid; exec sleep 250' & sleep 0.2; echo said")
    pid = int((tmp_path / "pid").read_text())
    try:
        assert (status, heard.out) == (0, b"said\n")
        assert time.monotonic() - before < 100
        os.kill(pid, 0)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_several_groups_in_one_loop_do_not_mix() -> None:
    async def many() -> list[tuple[int, bytes]]:
        started = [start("sh", "-c", f"sleep 0.0{number}; echo {number}; exit {number}") for number in range(9)]
        return [(await group.wait(), heard.out) for group, heard in started]

    assert asyncio.run(many()) == [(number, f"{number}\n".encode()) for number in range(9)]


# Looking at processes


def test_members_are_those_that_pgrep_finds(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = sleeper("sh", "-c", "sleep 60 & sleep 60 & (sleep 60; true) & wait")
    wait_for(lambda: len(work("pgrep", "-g", str(process.pid)).stdout.split()) == 5)
    group_members = members(process.pid)
    assert {member.pid for member in group_members} == set(map(int, work("pgrep", "-g", str(process.pid)).stdout.split()))
    rows = [line.split() for line in work("ps", "-o", "pid=,ppid=,comm=", "-g", str(process.pid)).stdout.splitlines()]
    assert sorted((member.pid, member.parent, member.name) for member in group_members) == sorted(
        (int(pid), int(parent), name) for pid, parent, name in rows
    )


def test_a_zombie_is_no_member_and_has_no_start_time(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = sleeper("true")
    wait_for(lambda: work("ps", "-o", "stat=", "-p", str(process.pid), check=False).stdout.startswith("Z"))
    assert members(process.pid) == []
    assert start_time(process.pid) is None
    process.wait()
    assert start_time(process.pid) is None


@pytest.mark.slow
def test_a_member_counts_what_it_read_and_the_time_it_used(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    code = "import sys, time\nsys.stdin.buffer.read(5_000_000)\nend = time.process_time() + 0.3\n"
    code += "while time.process_time() < end: pass\nprint('done', flush=True)\ntime.sleep(60)"
    process = sleeper(sys.executable, "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"x" * 5_000_000)
    process.stdin.flush()
    process.stdout.readline()
    [member] = members(process.pid)
    assert 5_000_000 <= member.read_bytes < 10_000_000  # its modules too
    assert member.cpu_ticks / os.sysconf("SC_CLK_TCK") >= 0.3
    process.stdin.close()
    process.stdout.close()


@pytest.mark.parametrize("name", ["plain", "a b", "x) R 1 1 (y", "(((", ")"])
def test_a_name_with_blanks_and_brackets_is_parsed_correctly(
    sleeper: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, name: str
) -> None:
    program = Path(shutil.copy(shutil.which("sleep") or "", tmp_path / name))
    process = sleeper(program, "60")
    wait_for(lambda: [member.name for member in members(process.pid)] == [name])
    started = start_time(process.pid)
    assert started is not None
    boot = next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    by_ps = work("date", "-d", work("ps", "-o", "lstart=", "-p", str(process.pid)).stdout.strip(), "+%s").stdout
    assert abs(boot + int(started) / os.sysconf("SC_CLK_TCK") - int(by_ps)) <= 2


def test_who_has_a_file_locked_is_told_by_the_file_not_by_its_name(
    sleeper: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    for name in ("lock", "other"):
        (tmp_path / name).touch()
    (tmp_path / "second name").hardlink_to(tmp_path / "lock")
    with (tmp_path / "lock").open() as lock, (tmp_path / "other").open() as unlocked:
        fcntl.flock(lock, fcntl.LOCK_EX)
        holder = sleeper("sleep", "60", pass_fds=(lock.fileno(), unlocked.fileno()))
    stranger = sleeper("sleep", "60")
    wait_for(lambda: [member.name for pid in (holder.pid, stranger.pid) for member in members(pid)] == ["sleep", "sleep"])
    assert has_locked(holder.pid, (tmp_path / "lock").stat())
    assert has_locked(holder.pid, (tmp_path / "second name").stat())
    assert not has_locked(holder.pid, (tmp_path / "other").stat())
    assert not has_locked(stranger.pid, (tmp_path / "lock").stat())
    assert groups_of("sleep", (tmp_path / "lock").stat()) == {holder.pid}
    assert groups_of("rsync", (tmp_path / "lock").stat()) == set()
    status = (tmp_path / "lock").stat()
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").touch()  # another file of that name
    assert not has_locked(holder.pid, (tmp_path / "lock").stat())
    assert has_locked(holder.pid, status)
    holder.kill()
    holder.wait()
    assert not has_locked(holder.pid, status)


# The environment

HOSTILE = {
    "RSYNC_RSH": "/bin/false", "RSYNC_PROTECT_ARGS": "1", "RSYNC_OLD_ARGS": "1", "RSYNC_MAX_ALLOC": "1k", "RSYNC_ICONV": "x",
    "RSYNC_PARTIAL_DIR": "x", "RSYNC_PASSWORD": "x", "RSYNC_CHECKSUM_LIST": "x", "CVSIGNORE": "*", "LD_PRELOAD": "/x",
    "SSH_AUTH_SOCK": "/x", "SSH_ASKPASS": "/x",
    "BASH_ENV": "/x", "ENV": "/x", "PYTHONPATH": "/x", "LANG": "de_DE.UTF-8", "LC_MESSAGES": "de_DE.UTF-8",
    "LANGUAGE": "de", "TZ": "Asia/Tokyo", "DISPLAY": ":0",
}  # fmt: skip


def test_programs_get_a_built_environment_and_nothing_that_changes_what_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    seen = dict(line.split("=", 1) for line in run(["env"]).stdout.splitlines())
    assert not set(seen) & set(HOSTILE)
    assert seen["LC_ALL"] == "C"
    _, heard = whole("env")
    assert dict(line.split("=", 1) for line in heard.out.decode().splitlines()) == seen
    assert {"/usr/bin", "/bin"} & set(seen["PATH"].split(":"))


def test_without_a_path_of_its_own_a_program_is_found_where_programs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH")
    assert {"/usr/sbin", "/usr/bin", "/sbin", "/bin"} <= set(environment()["PATH"].split(":"))
    assert environment({"BTRKEEP_HOST": "web1"})["BTRKEEP_HOST"] == "web1"


def test_a_setting_of_rsyncs_in_our_environment_reaches_no_rsync(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """RSYNC_RSH would start another program, and RSYNC_PROTECT_ARGS makes rrsync refuse."""
    monkeypatch.setenv("RSYNC_PROTECT_ARGS", "1")
    (tmp_path / "ssh").write_text(f'#!/bin/sh\necho "$*" >{tmp_path}/asked\nexit 1\n')
    (tmp_path / "ssh").chmod(0o755)
    command = ["rsync", "-a", "-e", str(tmp_path / "ssh"), "peer:/etc/hostname", str(tmp_path / "copy")]
    subprocess.run(command, check=False, capture_output=True)
    assert " --server --sender -s" in (tmp_path / "asked").read_text()  # the requested operation
    run(command, check=False)
    assert "/etc/hostname" in (tmp_path / "asked").read_text()


class Beside:
    """A program beside a group, and the reported exit statuses."""

    def __init__(self, group: Group, *command: str) -> None:
        self.statuses: list[int] = []
        with Path(os.devnull).open("r+b") as null:
            group.start_beside(command, [null.fileno()] * 3, self.statuses.append)


@pytest.mark.slow
def test_the_status_of_a_program_beside_is_its_own_however_late_it_is_asked_for() -> None:
    """The loop is busy whenever a process ends, so that all have ended before the first check."""

    async def busy() -> list[int]:
        loop = asyncio.get_running_loop()

        def block() -> None:
            time.sleep(0.3)
            loop.call_soon(block)

        group, _ = start("true")
        beside = Beside(group, "sh", "-c", "sleep 0.7; exit 7")
        block()
        await group.wait()
        await asyncio.sleep(0)
        return beside.statuses

    assert asyncio.run(busy()) == [7]


def test_a_program_beside_that_cannot_be_watched_does_not_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "goes-on"
    script.write_text("#!/bin/sh\nsleep 60\n")
    script.chmod(0o755)

    def no_more(pid: int) -> int:
        raise OSError(24, "Too many open files")

    async def exit_statuses() -> list[int]:
        group, _ = start("sleep", "0.2")
        monkeypatch.setattr(os, "pidfd_open", no_more)
        beside = Beside(group, str(script))
        await group.wait()
        return beside.statuses

    assert asyncio.run(exit_statuses()) == [126]
    wait_for(lambda: str(script) not in work("ps", "-eo", "args").stdout)  # a shell that had forked: its child too


def test_a_program_beside_ends_with_us_however_that_is() -> None:
    code = """
        import asyncio, os, sys, time
        from btrkeep.process.group import Group
        async def main():
            group = Group.start(["sleep", "60"], on_stdout=print, on_stderr=print)
            group.start_beside(["sh", "-c", "echo $$; trap '' TERM HUP PIPE; while :; do sleep 60; done"], [0, 1, 2], print)
            await asyncio.sleep(60)
        asyncio.run(main())
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(words, cwd=TOP, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        beside = int(process.stdout.readline())
        (group,) = (pid for pid in map(int, work("pgrep", "-P", str(process.pid)).stdout.split()) if pid != beside)
        process.kill()
        process.wait()
        try:
            wait_for(lambda: start_time(beside) is None)
        finally:
            os.killpg(group, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(beside, signal.SIGKILL)


def children() -> set[str]:
    return {child for each in Path("/proc/self/task").iterdir() for child in (each / "children").read_text().split()}


def is_dead(child: str) -> bool:
    return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_piped_program_that_another_thread_buries_tells_its_end_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kill` first checks whether the program has ended, and so collects its status between any two steps of `wait`."""
    before = children()
    with piped(("sh", "-c", "exit 3")) as program:
        (child,) = children() - before
        wait_for(lambda: is_dead(child), 60, "it runs")
        opened = os.pidfd_open

        def buried(pid: int, flags: int = 0) -> int:
            program.kill()
            return opened(pid, flags)

        monkeypatch.setattr(os, "pidfd_open", buried)
        assert program.wait(lambda: None) == 3
