"""The commands that read, with 3,000 hosts and 96,000 backups, as whole processes.

The limits are twice what was agreed, since test machines are shared; bench/catalogue_commands.py measures.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import catalogue_commands
from bench.catalogue_commands import COMMANDS, MEMORY
from tests.beds import TOP, btrfs, session

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.btrfs, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def large(no_leftovers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration of a large site."""
    mount = btrfs.make(size="4G")
    yield catalogue_commands.make_site(mount / "pool", tmp_path_factory.mktemp("large"))
    problems = session.remove(mount.parent)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_quick_and_small_with_a_large_catalogue(large: Path, name: str) -> None:
    words, limit = COMMANDS[name]
    found = [catalogue_commands.measure(large, words) for _ in range(3)]
    assert min(each.seconds for each in found) < 2 * limit
    assert max(each.memory for each in found) < MEMORY
    assert min(each.printed for each in found) > 1000


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


def test_a_dry_run_of_all_hosts_has_every_command(large: Path) -> None:
    argv = [sys.executable, "-m", "backupd", "--config", str(large), "run", "--dry-run", "--json", "--now", catalogue_commands.NOW]
    planned = json.loads(subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=TOP, check=True).stdout)
    assert len(planned) == 3000
    assert all(len(entry["commands"]) == 4 and "--inplace" in entry["commands"][0] for entry in planned)  # they have a base
