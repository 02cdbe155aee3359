"""A command on a server behind a mount: it ends although its child does not, but never before the storage has stopped answering for
long.

Real processes. A file simulates the answers of the mount, because a mount that hangs needs root.
"""

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from btrkeep.process.proc import start_time
from tests.beds.cli import TOP
from tests.beds.watch import wait_for

STORAGE_HUNG, LONG = 9, 600.0
PLAYED = """
    import os, signal, sys, threading, time
    from pathlib import Path
    from types import SimpleNamespace
    from btrkeep.process import outliving
    folder, patience = Path(sys.argv[1]), float(sys.argv[2])
    outliving.LOOK = 0.02
    outliving.is_remote = lambda _: True
    parent = os.getpid()
    def answers(_):
        with (folder / "looks").open("a") as looks:
            looks.write(".")
        return not (folder / "silent").exists()
    def monotonic():
        clock = folder / "clock"
        return float(clock.read_text()) if clock.exists() else time.monotonic()
    outliving.answers = answers
    outliving.time = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    def outlive():
        try:
            outliving.outlive(folder, patience, keeps_output={keeps})
        except outliving.StorageHung as error:
            print("hung:", error.message, file=sys.stderr)
            os._exit(9)
"""


class Command:
    """A command in `folder` whose storage does not answer while the file `silent` exists; `code` is its work."""

    def __init__(self, folder: Path, code: str, *, patience: float = LONG, keeps: bool = True) -> None:
        self.folder = folder
        program = textwrap.dedent(PLAYED.format(keeps=keeps)) + textwrap.dedent(code)
        words = [sys.executable, "-c", program, str(folder), str(patience)]
        self.process = subprocess.Popen(
            words, cwd=TOP, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def child(self) -> int:
        """Returns the number of the process that does the work, which it writes to `child` as its first step."""
        file = self.folder / "child"
        wait_for(lambda: file.exists() and file.read_text().endswith("\n"))
        return int(file.read_text())

    def be_silent(self) -> None:
        (self.folder / "silent").touch()

    def set_clock(self, seconds: float) -> None:
        """Stops the command's clock at that time."""
        (self.folder / "clock.new").write_text(str(seconds))
        (self.folder / "clock.new").rename(self.folder / "clock")

    def wait_for_check(self) -> None:
        """Waits until the command has checked the storage's present answer."""
        looks = self.folder / "looks"
        before = looks.stat().st_size
        wait_for(lambda: looks.stat().st_size > before + 1 or self.process.poll() is not None)

    def end(self) -> tuple[int, str]:
        """Returns the exit status (negative: the signal) and all output."""
        try:
            output, _ = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        return self.process.returncode, output


NOTED = '\n(folder / "child").write_text(f"{os.getpid()}\\n")\n'


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os._exit(0)", 0),
    ],
)
def test_the_exit_status_and_all_output_are_those_of_the_work(tmp_path: Path, end: str, status: int) -> None:
    """Otherwise a timer or a script would take a failed backup for a good one. Output to the same pipe stays in order."""
    code = f"""
        print("before", flush=True)
        outlive()
        for number in range(20_000):
            os.write(1 + number % 2, b"%d\\n" % number)
        {end}
    """
    assert Command(tmp_path, code).end() == (status, "before\n" + "".join(f"{number}\n" for number in range(20_000)))


def test_the_work_is_done_in_a_child_that_dies_with_its_command(tmp_path: Path) -> None:
    """After an administrator has killed a command, none of its processes writes to the pool."""
    command = Command(tmp_path, f"outlive(){NOTED}time.sleep(600)")
    child = command.child()
    assert child != command.process.pid
    command.process.kill()
    try:
        wait_for(lambda: start_time(child) is None)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    command.end()


def test_storage_that_is_silent_for_long_ends_the_command_with_one_line_about_it(tmp_path: Path) -> None:
    """Otherwise the timer's next run waits for the command for ever, without a report."""
    command = Command(tmp_path, f"outlive(){NOTED}print('lost', flush=True)\ntime.sleep(60)", patience=0.2)
    child = command.child()
    command.be_silent()
    status, output = command.end()
    assert status == STORAGE_HUNG
    assert output.startswith(f"hung: {tmp_path} no longer answers")
    assert output.count("\n") == 1
    assert not Path(f"/proc/{child}").exists()


def test_a_silence_that_ends_in_time_ends_no_command(tmp_path: Path) -> None:
    """A server that restarts must not end the night's backups. Two silences are not added up."""
    code = f"""
        outlive(){NOTED.replace(chr(10), chr(10) + " " * 8)}
        while not (folder / "go").exists():
            time.sleep(0.01)
        sys.exit(5)
    """
    command = Command(tmp_path, code, patience=100)
    command.set_clock(1)
    command.child()
    for moment in (1, 101, 201):
        command.be_silent()
        command.wait_for_check()
        command.set_clock(moment + 99)
        command.wait_for_check()
        (tmp_path / "silent").unlink()
        command.wait_for_check()
        command.set_clock(moment + 100)
    (tmp_path / "go").touch()
    assert command.end()[0] == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_administrator_who_ends_it_need_not_wait_for_storage_that_hangs(tmp_path: Path, number: signal.Signals) -> None:
    code = f"""
        outlive()
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, lambda *_: (folder / "asked").touch()){NOTED.replace(chr(10), chr(10) + " " * 8)}
        while True:
            time.sleep(60)
    """
    command = Command(tmp_path, code, patience=LONG)
    child = command.child()
    os.kill(command.process.pid, number)
    wait_for((tmp_path / "asked").exists)  # the work may end by itself: it gets a signal first
    assert command.process.poll() is None
    command.be_silent()
    assert command.end()[0] == STORAGE_HUNG
    assert not Path(f"/proc/{child}").exists()


def test_a_signal_that_asks_for_no_end_reaches_the_work_and_ends_no_patience(tmp_path: Path) -> None:
    code = f"""
        outlive()
        signal.signal(signal.SIGUSR1, lambda *_: (folder / "asked").touch()){NOTED.replace(chr(10), chr(10) + " " * 8)}
        while not (folder / "go").exists():
            time.sleep(0.01)
    """
    command = Command(tmp_path, code, patience=LONG)
    command.child()
    command.be_silent()
    os.kill(command.process.pid, signal.SIGUSR1)
    wait_for((tmp_path / "asked").exists)
    command.wait_for_check()
    assert command.process.poll() is None
    (tmp_path / "go").touch()
    assert command.end()[0] == 0


@pytest.mark.parametrize(
    "why",
    [
        "outliving.is_remote = lambda _: False",
        'Path(folder / "silent").touch()',
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "def refuse(): raise OSError(11, 'no more processes')\nos.fork = refuse",
    ],
    ids=["local storage", "silent from the beginning", "a thread beside", "no more processes"],
)
def test_where_no_child_can_help_the_command_does_the_work_itself(tmp_path: Path, why: str) -> None:
    code = f"{why}\noutlive()\nprint(os.getpid() == parent, flush=True)\nos._exit(6)"
    assert Command(tmp_path, code).end() == (6, "True\n")
