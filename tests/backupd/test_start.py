"""The imports of a command before it does anything: its start is part of every command's time."""

import sys

import pytest

from backupd.cli import COMMANDS
from tests.beds import TOP, work

HEAVY = {"numpy", "PIL", "flask", "apprise", "requests", "prometheus_client", "pydantic"}
RARE = {"serve", "setup", "init", "doctor"}  # they run long, are interactive, or read the whole filesystem


def loaded(*modules: str) -> set[str]:
    look = (
        "import sys\n"
        + "".join(f"import {module}\n" for module in modules)
        + "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    return set(work(sys.executable, "-c", look, cwd=TOP).stdout.split())


@pytest.mark.slow
def test_no_command_of_backupd_begins_with_a_large_library() -> None:
    """All in one process: a library that any command imports is noticed."""
    assert loaded(*(command.place.partition(":")[0] for name, command in COMMANDS.items() if name not in RARE)) & HEAVY == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "backupd.health.cli.status",
        "backupd.health.cli.log",
        "backupd.expire.cli.progress",
        "backupd.health.cli.list",
        "backupd.files.cli.restore",
    ],
)
def test_what_only_reads_begins_without_a_loop_of_events(module: str) -> None:
    assert loaded(module) & {"asyncio", "rich", "ssl", "tempfile", "multiprocessing"} == set()


@pytest.mark.parametrize("module", ["browse", "restore", "versions", "compare"])
def test_what_reads_backups_begins_without_the_catalogue(module: str) -> None:
    """Its classes took a fifth of the time before the first byte of a tar, and a sixth of a restore to a folder."""
    modules = f"backupd.files.cli.{module}, backupd.files.restore_request"
    look = f"import sys, {modules}; print('btrkeep.catalogue' in sys.modules, 'sqlite3' in sys.modules)"
    assert work(sys.executable, "-c", look, cwd=TOP).stdout.split() == ["False", "False"]


def test_the_commands_about_users_begin_without_the_catalogue() -> None:
    """It was imported for the name of a group, and took a third of their start."""
    look = "import sys, web.cli.user; print('btrkeep.catalogue' in sys.modules, 'btrkeep.config' in sys.modules)"
    assert work(sys.executable, "-c", look, cwd=TOP).stdout.split() == ["False", "False"]
