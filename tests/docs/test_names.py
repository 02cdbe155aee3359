"""Every command, option, key and variable that the pages name exists; names of other programs are compared with ssh and rsync.

Otherwise a reader who types a command of a page gets "no such option".
"""

import re
from collections.abc import Callable
from functools import cache

import click
import pytest

from backupd.cli import COMMANDS, HIDDEN, group
from btrkeep.config.keys import TABLE
from tests.beds import TOP, work
from tests.beds.ssh import SSHD
from tests.docs.pages import OURS, Page

Read = Callable[[str], Page]


def options_of(command: click.Command) -> set[str]:
    """Returns the options of a command and of its subcommands."""
    own = {name for param in command.params for name in (*param.opts, *param.secondary_opts) if name.startswith("-")} | {"--help"}
    below = command.commands.values() if isinstance(command, click.Group) and command is not group else ()
    return own.union(*map(options_of, below))


@cache
def command_of(name: str) -> click.Command:
    result = group.get_command(click.Context(group), name)
    assert result is not None
    return result


def faults(call: str) -> list[str]:
    """Returns the mistake in the arguments of `backupd`: a missing option or command."""
    words, recorded = call.split(), options_of(group)
    while words and words[0].startswith("-"):
        if words[0] not in recorded:
            return [f"backupd has no option {words[0]}"]
        words = words[2:] if words[0] in ("--pool", "--config") else words[1:]
    if not words:
        return []
    if words[0] not in COMMANDS and words[0] not in HIDDEN:
        return [f"there is no command {words[0]}"]
    options = options_of(command_of(words[0]))
    given = [word.partition("=")[0] for word in words[1:] if word.startswith("-") and word != "-"]
    return [f"{words[0]} has no option {word}" for word in given if word not in options]


@pytest.mark.parametrize("name", OURS)
def test_every_call_of_our_command_on_a_page_can_be_made(page: Read, name: str) -> None:
    calls = page(name).commands()
    assert {call: wrong for call in calls if (wrong := faults(call))} == {}
    assert calls


def test_every_call_of_our_command_in_the_readme_and_on_all_pages_can_be_made() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (TOP / "README.rst", *(TOP / "docs").glob("*.rst")))
    matches = re.findall(r"``(?:sudo )?backupd\s+([^`]+)``|^ +(?:[#$] )?(?:sudo )?backupd +(.*)$", pages, re.MULTILINE)
    calls = {re.split(r"  | \| | >", text.replace("\n", " ") or line)[0] for text, line in matches}
    assert len(calls) > 200
    assert {call: wrong for call in calls if (wrong := faults(call))} == {}


def test_a_wrong_call_is_found() -> None:
    assert faults("undelete web1") == ["there is no command undelete"]
    assert faults("run --dryrun") == ["run has no option --dryrun"]
    assert faults("--quiet run") == ["backupd has no option --quiet"]
    assert faults("--pool x run --dry-run web1") == []


FOREIGN = {"--single-transaction", "--lock-all-tables", "--hosts", "--sender"}
"""Options of mariadb-dump, of btrkeep-web and of rsync between its two sides, each of a command that the page names."""
SOURCE_KEYS = re.findall(r'keys\.pop\("(\w+)"', (TOP / "backupd" / "source" / "btrkeep_source.py").read_text(encoding="utf-8"))
KEYS = {*(key.name for key in TABLE), *SOURCE_KEYS}


@cache
def is_ssh_option(literal: str) -> bool:
    """Tells whether ssh or sshd knows the option, such as ControlMaster=no or MaxStartups."""
    name, _, value = literal.partition("=")
    if work("ssh", "-G", "-F", "none", "-o", f"{name}={value or 1}", "x", check=False).returncode == 0:
        return True
    return "Bad configuration option" not in work(SSHD, "-t", "-f", "/dev/null", "-o", f"{name}={value or 1}", check=False).stderr


@cache
def rsync_help() -> str:
    return work("rsync", "--help").stdout


def is_option(literal: str) -> bool:
    """Tells whether one of our commands has the option, or rsync's help names it."""
    name = literal.partition(" ")[0].partition("=")[0].replace("--no-human", "--human")
    ours = (name in options_of(command_of(command)) for command in COMMANDS)
    return any(ours) or name in FOREIGN or re.search(rf"{name}\b", rsync_help()) is not None


SHAPES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    (r"--[a-z].*", is_option),
    (r"[a-z_]+ = .*", lambda literal: literal.split()[0] in KEYS),
    (r"(?:[A-Z][a-z0-9]+){2,}(?:=\w+)?", is_ssh_option),
    (r"BTRKEEP_\w+", lambda literal: f'"{literal}"' in (TOP / "backupd" / "run" / "hooks.py").read_text(encoding="utf-8")),
)


def unknown(literals: list[str]) -> list[str]:
    """Returns words that look like an option, a setting or a variable, but do not exist."""
    return [literal for literal in literals if any(re.fullmatch(shape, literal) and not check(literal) for shape, check in SHAPES)]


@pytest.mark.parametrize("name", OURS)
def test_every_option_setting_and_variable_on_a_page_is_one_that_there_is(page: Read, name: str) -> None:
    assert unknown(page(name).literals()) == []
    wrong = ["--dryrun", "--in-place=x", "minfree = 3", "HostkeyChecking=yes", "BTRKEEP_MOOD"]
    right = ["--dry-run", "--inplace", 'every = "1d"', "Compression=no", "BTRKEEP_HOST", "fine"]
    assert unknown([*wrong, *right]) == wrong


def test_what_hooks_find_in_their_environment_is_told(page: Read) -> None:
    result = {word for word in page("how-a-backup-becomes-complete").literals() if word.startswith("BTRKEEP_")}
    assert result == set(re.findall(r'"(BTRKEEP_\w+)"', (TOP / "backupd" / "run" / "hooks.py").read_text(encoding="utf-8")))
