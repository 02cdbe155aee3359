"""The speed of the reading commands with 3,000 hosts and 96,000 backups, as whole processes; normally with a tenth of them.

The limits are twice the goals, because test machines are shared; bench/catalogue_commands.py measures. With a tenth of the
backups they are of processor time, and twice as long again: a machine may be slow and busy.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import catalogue_commands
from bench.catalogue_commands import COMMANDS, MEMORY
from tests.beds import TOP, btrfs, session, work
from tests.beds.made_catalogue import EACH, HOSTS, WHOLE, many_backups

pytestmark = [pytest.mark.slow, pytest.mark.btrfs]


@pytest.fixture(scope="module", params=HOSTS)
def hosts(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def large(no_leftovers: None, hosts: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration of a large site."""
    mount = btrfs.make(size="4G")
    yield catalogue_commands.make_site(mount / "pool", tmp_path_factory.mktemp("large"), hosts, EACH, state=many_backups(hosts))
    problems = session.remove(mount.parent)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_quick_and_small_with_a_large_catalogue(large: Path, hosts: int, name: str) -> None:
    words, limit = COMMANDS[name]
    taken: list[float] = []
    while not taken or min(taken) >= 2 * limit:
        assert len(taken) < 3, taken
        measured = catalogue_commands.measure(large, words)
        assert measured.memory < MEMORY
        assert measured.printed > 1000
        taken.append(measured.seconds if hosts == WHOLE else measured.cpu / 2)


def test_the_list_of_all_is_whole_and_streamed(large: Path, hosts: int) -> None:
    argv = [sys.executable, "-m", "backupd", "--config", str(large), "list", "--json"]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=TOP)
    assert process.stdout is not None
    first = process.stdout.read(1000)
    assert first.startswith(b"[{")
    assert process.poll() is None  # its output exceeds a pipe, and was written without waiting for the end
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait() == 0
    assert len({(entry["host"], entry["name"]) for entry in json.loads(first + rest)}) == hosts * EACH


@pytest.mark.parametrize("more", [(), ("--json",), ("host0007.example.org",)], ids=["all", "as JSON", "one"])
def test_the_retention_of_all_hosts_is_explained_in_time(large: Path, hosts: int, tmp_path: Path, more: tuple[str, ...]) -> None:
    config = tmp_path / "explained.toml"
    config.write_text(f"{large.read_text()}\n[retention]\ndaily = 14\nweekly = 13\nmonthly = 12\n")
    explain = ("retention", "explain", "--now", catalogue_commands.NOW, *more)
    taken: list[float] = []
    while not taken or min(taken) >= 5:  # twice the goal
        assert len(taken) < 3, taken
        before = _seconds_of_children()
        done = work(sys.executable, "-m", "backupd", "--config", config, *explain, cwd=TOP, env={"NO_COLOR": "1"})
        taken.append(_seconds_of_children() - before)
    if more == ("--json",):
        assert len(json.loads(done.stdout)) == hosts * EACH


def _seconds_of_children() -> float:
    """Processor time of all programs that this process has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_dry_run_of_all_hosts_has_every_command(large: Path, hosts: int) -> None:
    argv = [sys.executable, "-m", "backupd", "--config", str(large), "run", "--dry-run", "--json", "--now", catalogue_commands.NOW]
    planned = json.loads(subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=TOP, check=True).stdout)
    assert len(planned) == hosts
    assert all(len(entry["commands"]) == 4 and "--inplace" in entry["commands"][0] for entry in planned)  # they have a base
