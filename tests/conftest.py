"""Fixtures with cleanup, and rules of the session: it reports the tests that it cannot run, and removes everything that
it creates.
"""

import atexit
import contextlib
import fcntl
import gc
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from btrkeep.cli.output import print_commands_as
from btrkeep.units import show_times_in
from tests.beds import anyone, backupd_start, btrfs, cli, dealing, leftout, session, ssh
from tests.beds.badssh import FAKESSH

HERE = Path(__file__).resolve().parent

# The machine is busy with other tests: the duration of an example proves nothing.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
for name, examples in (("unit", 8), ("gate", 25)):
    hypothesis.settings.register_profile(name, hypothesis.settings.get_profile("busy"), max_examples=examples)
hypothesis.settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unit", action="store_true", help="only what is quick, without root, btrfs, servers, browsers")
    parser.addoption("--gate", action="store_true", help="what --unit runs, and the tests named in tests/beds/gate.py")
    parser.addoption("--also", action="append", default=[], metavar="MODULE", help="with --gate: this module of tests too")
    parser.addoption(
        "--passed", type=Path, metavar="FILE", help="with --unit: writes there which tests passed; with --gate: leaves these out"
    )
    parser.addoption("--long", action="store_true", help="only the long forms: a whole year, each Debian")


def pytest_configure(config: pytest.Config) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)
        # A shell's background job inherits that Ctrl-C is ignored; so would our commands, and their tests could not end them.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o022)  # a test that is about another one sets it
    # Where the environment forbids compiled modules, every worker and each of a thousand commands compiles all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ[session.MARK] = session.own_name()
    atexit.register(session.end_session, session.own_name())
    if config.getoption("--unit") or (config.getoption("--gate") and not config.getoption("--passed")):  # CI tries all examples
        hypothesis.settings.load_profile("unit" if config.getoption("--unit") else "gate")
        # With so few examples, no test profits from the constants of our modules, for which it parses them all, in each worker.
        vars(providers)["_get_local_constants"] = Constants
    if not hasattr(config, "workerinput"):
        config.stash[_CLEARED] = session.clear_dead_sessions()
        if config.getoption("--unit") and not config.option.basetemp and session.has_attributes(session.folder(_UNIT)):
            config.option.basetemp = session.folder(_UNIT) / "t"  # in memory: thousands of small catalogues wait for no disk


def pytest_unconfigure(config: pytest.Config) -> None:
    session.end_session(session.own_name(), patience=2)
    if not hasattr(config, "workerinput"):
        session.clear_dead_sessions()


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [f"cleared away after a killed session: {name}" for name in config.stash.get(_CLEARED, [])]


_CLEARED = pytest.StashKey[list[str]]()
_UNIT = 1 << 30  # bytes; its tests leave less than a third of that


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """A SIGTERM ends the session as Ctrl-C does, with the end of every fixture."""
    raise KeyboardInterrupt


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Returns None, which leaves the decision to pytest. Each worker would import all modules only to skip their tests."""
    if config.getoption("--unit") and (collection_path.is_dir() or collection_path.match("test_*.py")):
        return None if leftout.has_unit(collection_path) else True
    if config.getoption("--gate") and collection_path.match("test_*.py"):
        return None if leftout.has_gate(collection_path) or _is_also(collection_path, config) else True
    if config.getoption("--long") and collection_path.match("test_*.py"):
        return None if leftout.has_long(collection_path) else True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for need in leftout.NEEDS:
            if need.fixtures.intersection(getattr(item, "fixturenames", ())):
                item.add_marker(need.marker)
            if item.get_closest_marker(need.marker) and (why := need.why_not()):
                item.add_marker(pytest.mark.skip(reason=leftout.reason(need.words, why)))
        if item.get_closest_marker("long") and not config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason=leftout.reason("long", "--long")))
    if config.getoption("--unit"):
        _only(leftout.is_unit, config, items)
    if config.getoption("--gate"):
        _only(lambda item: leftout.is_gate(item) or _is_also(item.path, config), config, items)
    if config.getoption("--gate") and (file := config.getoption("--passed")):
        passed = set(file.read_text(encoding="utf-8").splitlines())
        _only(lambda item: not leftout.passed_before(item, passed), config, items)
    if config.getoption("--long"):
        _only(lambda item: item.get_closest_marker("long") is not None, config, items)
    items[:] = dealing.dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Excludes all modules and tests from further searches for garbage, because they stay until the end."""
    gc.collect()
    gc.freeze()


def _is_also(module: Path, config: pytest.Config) -> bool:
    return module.relative_to(HERE.parent).as_posix() in config.getoption("--also")


def _only(is_wanted: Callable[[pytest.Item], bool], config: pytest.Config, items: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    items[:] = filter(is_wanted, items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    if line := leftout.summary(str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple)):
        terminalreporter.write_line(line)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where the tests decide whether a change lands, none that is asked for is left out for a program that could be installed.

    Nor because there is no btrfs, ssh server or root: where no loop device was free, all of the gate was left out and passed.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    if session.config.getoption("--unit") and (file := session.config.getoption("--passed")):
        file.write_text("".join(f"{report.nodeid}\n" for report in reporter.stats.get("passed", [])), encoding="utf-8")
    if not os.environ.get("CI"):
        return
    has_long = session.config.getoption("--long")
    skipped = [report for report in reporter.stats.get("skipped", []) if has_long or "long" not in report.keywords]
    missing = {text for report in skipped if leftout.must_run(text := str(report.longrepr[2]))}
    for words in sorted(missing):
        reporter.write_line(f"must not be left out here: {words}")
    if missing:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_ROOM = pytest.StashKey[BinaryIO]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tests share the machine; a test that has to be alone locks it, also against workers and sessions beside this one."""
    if session.PLACE in os.environ:  # a session within a test: that test has passed the door already
        return (yield)
    with (HERE / "__init__.py").open("rb") as room:
        _enter(room, fcntl.LOCK_SH)
        item.stash[_ROOM] = room
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Runs a timed test beside the others, which delays no test. Only if it fails twice is it run once more, alone.

    Between two tries, each of its fixtures that can restart does so.
    """
    if not item.get_closest_marker("alone"):
        return (yield)
    try:
        return (yield)
    except AssertionError:
        pass
    with contextlib.suppress(AssertionError):
        return _again(item)
    if _ROOM not in item.stash:
        return _again(item)
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)  # its time limit does not run while it waits for the others
    _enter(item.stash[_ROOM], fcntl.LOCK_EX)
    signal.setitimer(signal.ITIMER_REAL, left)
    try:
        return _again(item)
    finally:
        _enter(item.stash[_ROOM], fcntl.LOCK_SH)


def _again(item: pytest.Item) -> None:
    for fixture in getattr(item, "funcargs", {}).values():
        if hasattr(fixture, "begin_anew"):
            fixture.begin_anew()
    item.runtest()


def _enter(room: BinaryIO, how: int) -> None:
    """Every worker takes the door's lock before the room's, so that a worker that waits for the empty room is not overtaken for
    ever.

    Both locks are on files that exist anyway. A worker in the room leaves it first: otherwise two that want it for themselves would
    wait for each other.
    """
    fcntl.flock(room, fcntl.LOCK_UN)
    with (HERE / "conftest.py").open("rb") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, how)


@pytest.fixture(scope="session", autouse=True)
def hangups(no_leftovers: None) -> None:
    """Restores the default for SIGHUP: under nohup, commands would inherit that it is ignored, and respect that. The session itself
    continues to ignore it.

    Only where tests run: a worker has to inherit it, in order to know.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _ignore)


def _ignore(signum: int, frame: FrameType | None) -> None:
    """A handler, unlike SIG_IGN, is not inherited by started programs."""


@pytest.fixture(autouse=True)
def zone_of_words() -> Iterator[None]:
    """Resets the zone and the pool: a btrkeep process serves one pool, but a process of tests many. The next test has times in UTC,
    and commands without a pool.
    """
    yield
    show_times_in(UTC)
    for program in ("backupd", "btrfs-balancer", "btrfs-heatmap", "btrkeep-web"):
        print_commands_as(program, program)


@pytest.fixture(scope="session", autouse=True)
def no_leftovers() -> Iterator[None]:
    """Fails the session's last test if a process, mount or loop device of the session is left; they are removed in any case.

    The first fixture of all, so the last to end.
    """
    yield
    cli.close()
    anyone.close()
    left = session.end_session(session.own_name(), patience=3)
    assert not left, "left behind by tests:\n" + "\n".join(left)


@pytest.fixture
def make_btrfs() -> Iterator[Callable[..., Path]]:
    """`make_btrfs(size="2G", devices=1, mkfs=(), options="")` mounts a btrfs for this test and returns its mount point."""
    points: list[Path] = []

    def make(**wishes: object) -> Path:
        points.append(btrfs.make(**wishes))  # type: ignore[arg-type]
        return points[-1]

    yield make
    problems = [problem for point in reversed(points) for problem in session.remove(point.parent)]
    assert not problems, "\n".join(problems)


@pytest.fixture
def btrfs_mount(make_btrfs: Callable[..., Path]) -> Path:
    """The mount point of a btrfs for this test, 2 GiB on one device. `shared_btrfs` is cheaper where it suffices."""
    return make_btrfs()


@pytest.fixture(scope="session")
def _shared_mount(no_leftovers: None) -> Iterator[Path]:
    point = btrfs.make(size="6G")
    yield point
    problems = session.remove(point.parent)
    assert not problems, "\n".join(problems)


@pytest.fixture
def shared_btrfs(_shared_mount: Path) -> Iterator[Path]:
    """A fresh subvolume on a filesystem that all tests of the session share: a few milliseconds instead of a few hundred.

    Not for tests that fill, remount or break the filesystem, nor for those that count its free bytes.
    """
    top = Path(tempfile.mkdtemp(prefix="test-", dir=_shared_mount)) / "top"
    subprocess.run(["btrfs", "-q", "subvolume", "create", top], check=True)
    yield top
    btrfs.delete_subvolume(top, _shared_mount)
    top.parent.rmdir()


@pytest.fixture(scope="module")
def module_btrfs(_shared_mount: Path) -> Iterator[Path]:
    """A folder on that shared filesystem for one module, whose tests share the things that they make in it."""
    top = Path(tempfile.mkdtemp(prefix="module-", dir=_shared_mount))
    yield top
    for path in btrfs.subvolumes_below(top, _shared_mount):
        btrfs.delete_subvolume(path, _shared_mount)
    shutil.rmtree(top)


@pytest.fixture(scope="session")
def sshd(no_leftovers: None) -> Iterator[ssh.Sshd]:
    """A real ssh server on 127.0.0.1: port, key, known_hosts, address, ssh() for the client's command line, authorize() for more
    keys.
    """
    folder = Path(tempfile.mkdtemp(prefix="sshd-", dir=session.folder()))
    server = ssh.start(folder)
    yield server
    server.stop()


@pytest.fixture
def fakessh() -> Path:
    """A stand-in for ssh as one word, for rsync's -e: the code path of the network, without a server."""
    return FAKESSH


@pytest.fixture
def badssh(tmp_path: Path) -> Callable[[str, object], Path]:
    """`badssh("dies", 5000)` is a fakessh with a fault, as a script; tests/beds/badssh.py lists the faults."""

    def make(fault: str, value: object) -> Path:
        script = tmp_path / f"ssh-{fault}"
        words = (sys.executable, HERE / "beds" / "badssh.py", fault, value)
        script.write_text(f'#!/bin/sh\nexec {shlex.join(str(word) for word in words)} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        return script

    return make


@pytest.fixture
def backupd_running() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`backupd_running(*words, env=...)` starts our command and returns its Popen; commands still running are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str | Path, **wishes: Any) -> subprocess.Popen[str]:
        started.append(backupd_start(*words, **wishes))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
