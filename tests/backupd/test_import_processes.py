"""The processes that copy for an import: the result is the same as without them, and errors, a stop and a killed process are
noticed.

Each test runs in a process of its own: the test's has threads, beside which there are no such processes.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.beds import TOP, differences, manifest
from tests.beds.everything import write

_HEAD = """
import os, signal, sys
from pathlib import Path
from backupd.run.importing.copy_processes import CopyProcesses
from backupd.run.importing.copying import copy_batch, copy_tree
from backupd.run.importing.tree_links import scan_links
from btrkeep.errors import OperatorError

def copied(source, target, links, goes_on=lambda: True):
    fds = [os.open(folder, os.O_RDONLY) for folder in (source, target)]
    return copy_tree(*fds, links, goes_on, processes=processes)

place = Path(sys.argv[1])
source, target = place / "source", place / "target"
links = scan_links(source, None, lambda: True)
with CopyProcesses(copy_batch, 2) as processes:
    assert processes.is_usable
"""
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one processor there are no processes")


def run(place: Path, *lines: str) -> list[str]:
    """Runs the lines after _HEAD, and returns what they print."""
    script = _HEAD + "".join(f"    {line}\n" for line in lines)
    done = subprocess.run(
        [sys.executable, "-c", script, str(place)], cwd=TOP, check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with `source`, a tree with a large folder, and an empty `target`."""
    for number in range(200):
        write(tmp_path / "source/large" / f"name {number}", f"content {number}")
    for number in range(5):
        write(tmp_path / "source/deep" / "/".join(map(str, range(number))) / "file", "x" * number * 50_000)
    (tmp_path / "source/large/link").symlink_to("elsewhere")
    (tmp_path / "source/large/inner").mkdir(mode=0o700)
    for folder in ("source/large", "source/deep/0", "source/deep", "source"):
        os.utime(tmp_path / folder, ns=(10**18, 10**18 + 5))
    (tmp_path / "target").mkdir()
    return tmp_path


@pytest.mark.slow
def test_the_tree_is_the_same_and_all_is_counted(place: Path) -> None:
    printed = run(place, "done = copied(source, target, links)", "print(done.names, done.bytes)")
    assert differences(manifest(place / "source"), manifest(place / "target")) == []
    files = [path for path in (place / "source").rglob("*") if path.is_file() and not path.is_symlink()]
    assert printed == [f"{len(files) + 1} {sum(path.stat().st_size for path in files)}"]


@pytest.mark.slow
def test_an_error_names_the_file_and_the_next_copy_is_whole(place: Path) -> None:
    printed = run(
        place,
        "(place / 'other').write_text('exchanged')",
        "name, was = source / 'large/name 77', (source / 'large').stat()",
        "away = place / 'away'",
        "def exchange():",
        "    if not away.exists():",
        "        name.rename(away)",
        "        (place / 'other').rename(name)",
        "        os.utime(source / 'large', ns=(was.st_atime_ns, was.st_mtime_ns))",
        "    return True",
        "try:",
        "    copied(source, target, links, exchange)",
        "except OSError as error:",
        "    print(error.filename, error.strerror)",
        "links = scan_links(source, None, lambda: True)",
        "processes.stop.clear()",
        "(place / 'second').mkdir()",
        "copied(source, place / 'second', links)",
        "print(processes.is_usable)",
    )
    assert "it was changed during the import" in printed[0] or "replaced during the import" in printed[0]
    assert printed[0].startswith("large")
    assert printed[1:] == ["True"]
    assert differences(manifest(place / "source"), manifest(place / "second")) == []


def test_a_stop_reaches_the_processes(place: Path) -> None:
    """It ends a copy before the next piece of a file, even while the process that requested the stop waits for them."""
    printed = run(place, "processes.stop.set()", "print(copied(source, target, links).bytes, processes.is_usable)")
    assert printed == ["0 True"]
    assert [path for path in (place / "target").rglob("*") if not path.is_dir()] == []


def test_the_other_process_has_ended_when_a_killed_one_is_reported(place: Path) -> None:
    """It would continue to write into a backup that is deleted, or finished, by then."""
    printed = run(
        place,
        "children = Path(f'/proc/self/task/{os.getpid()}/children')",
        "os.kill(int(children.read_text().split()[0]), signal.SIGKILL)",
        "try:",
        "    copied(source, target, links)",
        "except OperatorError as error:",
        "    print(error.message, children.read_text().split())",
    )
    assert printed == ["a process of this command was killed []"]


def test_a_killed_process_is_an_error_and_the_next_copy_needs_none(place: Path) -> None:
    printed = run(
        place,
        "children = Path(f'/proc/self/task/{os.getpid()}/children').read_text().split()",
        "assert len(children) == 2",
        "os.kill(int(children[0]), signal.SIGKILL)",
        "try:",
        "    copied(source, target, links)",
        "except OperatorError as error:",
        "    print(error.message)",
        "processes.stop.clear()",
        "(place / 'second').mkdir()",
        "copied(source, place / 'second', links)",
        "print(processes.is_usable)",
    )
    assert printed == ["a process of this command was killed", "False"]
    assert differences(manifest(place / "source"), manifest(place / "second")) == []
