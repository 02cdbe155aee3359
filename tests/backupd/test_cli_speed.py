"""The commands that read, with 3,000 hosts and 96,000 backups, as whole processes.

The limits are twice what was agreed, since test machines are shared; bench/catalogue_commands.py measures.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import catalogue_commands
from bench.catalogue_commands import COMMANDS, MEMORY
from tests.beds import TOP, btrfs, session, work
from tests.beds.made_catalogue import many_backups

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.takes(60), pytest.mark.btrfs, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def large(no_leftovers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration of a large site."""
    mount = btrfs.make(size="4G")
    yield catalogue_commands.make_site(mount / "pool", tmp_path_factory.mktemp("large"), state=many_backups())
    problems = session.remove(mount.parent)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_quick_and_small_with_a_large_catalogue(large: Path, name: str) -> None:
    words, limit = COMMANDS[name]
    taken: list[float] = []
    while not taken or min(taken) >= 2 * limit:
        assert len(taken) < 3, taken
        found = catalogue_commands.measure(large, words)
        assert found.memory < MEMORY
        assert found.printed > 1000
        taken.append(found.seconds)


def test_the_list_of_all_is_whole_and_streamed(large: Path) -> None:
    argv = [sys.executable, "-m", "backupd", "--config", str(large), "list", "--json"]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=TOP)
    assert process.stdout is not None
    first = process.stdout.read(1000)
    assert first.startswith(b"[{")
    assert process.poll() is None  # it has more to say than a pipe holds, and has not waited with it
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait() == 0
    assert len({(entry["host"], entry["name"]) for entry in json.loads(first + rest)}) == 96_000


@pytest.mark.parametrize("more", [(), ("--json",), ("host0007.example.org",)], ids=["all", "as JSON", "one"])
def test_the_retention_of_all_hosts_is_explained_in_time(large: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    config = tmp_path / "explained.toml"
    config.write_text(f"{large.read_text()}\n[retention]\ndaily = 14\nweekly = 13\nmonthly = 12\n")
    explain = ("retention", "explain", "--now", catalogue_commands.NOW, *more)
    taken: list[float] = []
    while not taken or min(taken) >= 5:  # twice what was agreed
        assert len(taken) < 3, taken
        begun = time.monotonic()
        done = work(sys.executable, "-m", "backupd", "--config", config, *explain, cwd=TOP, env={"NO_COLOR": "1"})
        taken.append(time.monotonic() - begun)
    if more == ("--json",):
        assert len(json.loads(done.stdout)) == 96_000


def test_a_dry_run_of_all_hosts_has_every_command(large: Path) -> None:
    argv = [sys.executable, "-m", "backupd", "--config", str(large), "run", "--dry-run", "--json", "--now", catalogue_commands.NOW]
    planned = json.loads(subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=TOP, check=True).stdout)
    assert len(planned) == 3000
    assert all(len(entry["commands"]) == 4 and "--inplace" in entry["commands"][0] for entry in planned)  # they have a base
