"""Every command, option, key, state and variable that the pages name exists; the truth of foreign ones are ssh and rsync."""

import re
from collections.abc import Callable
from functools import cache

import click
import pytest

from backupd.actions.cli.quota import STATES as QUOTA_STATES
from backupd.cli import COMMANDS, HIDDEN, group
from backupd.observe.usage import METHODS
from backupd.repair.plan import FileFate, RepairProof
from backupd.repo.backup_json import Record
from backupd.repo.synced import MARK
from btrkeep.backup_states import BACKUP_STATES
from btrkeep.catalogue.model import EXPIRY_OUTCOMES, RUN_OUTCOMES
from btrkeep.config.keys import TABLE
from btrkeep.decisions.drills import DrillOutcome
from btrkeep.decisions.findings import CHECKS, LEVELS
from btrkeep.decisions.host_state import STATES
from btrkeep.decisions.replication import Obstacle
from btrkeep.decisions.retention_words import REASONS
from tests.beds import TOP, work
from tests.docs.pages import OURS, Page

Read = Callable[[str], Page]


def options_of(command: click.Command) -> set[str]:
    """The options of a command, those of its own commands included."""
    own = {name for param in command.params for name in (*param.opts, *param.secondary_opts) if name.startswith("-")} | {"--help"}
    below = command.commands.values() if isinstance(command, click.Group) and command is not group else ()
    return own.union(*map(options_of, below))


@cache
def command_of(name: str) -> click.Command:
    found = group.get_command(click.Context(group), name)
    assert found is not None
    return found


def faults(call: str) -> list[str]:
    """What is wrong with the words after `backupd`: an option or a command that there is not."""
    words, known = call.split(), options_of(group)
    while words and words[0].startswith("-"):
        if words[0] not in known:
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
    found = re.findall(r"``(?:sudo )?backupd\s+([^`]+)``|^ +(?:[#$] )?(?:sudo )?backupd +(.*)$", pages, re.MULTILINE)
    calls = {re.split(r"  | \| | >", text.replace("\n", " ") or line)[0] for text, line in found}
    assert len(calls) > 200
    assert {call: wrong for call in calls if (wrong := faults(call))} == {}


def test_a_wrong_call_is_found() -> None:
    assert faults("undelete web1") == ["there is no command undelete"]
    assert faults("run --dryrun") == ["run has no option --dryrun"]
    assert faults("--quiet run") == ["backupd has no option --quiet"]
    assert faults("--pool x run --dry-run web1") == []


# Words between double backticks that are no names of ours: programs, and what examples have.
PROGRAMS = re.findall(r"\w+", "backupd rsync rrsync ssh sudo cp ls rm dmesg noatime nosuid nodev btrkeep restrict")
FOREIGN = {*PROGRAMS, *"abZ*+-", "printf", "os.fsencode"}
KEYS = {key.name for key in TABLE}


def own_words(pages: dict[str, Page]) -> set[str]:
    keys = {key for page in pages.values() for block in page.blocks("json") for key in re.findall(r'"(\w+)":', block)}
    states = {
        *METHODS,
        *STATES,
        *BACKUP_STATES,
        *RUN_OUTCOMES,
        *EXPIRY_OUTCOMES,
        "locked",
        "running",
        "killed",
        "partial",
        "fetched_twice",
        "note",
        *LEVELS,
        *CHECKS,
        *REASONS,
        *QUOTA_STATES.values(),
        *Obstacle,
        *DrillOutcome,
        *FileFate,
        *RepairProof,
    }
    files = {"data", "latest", ".working", "night", ".btrkeep", "backup.json", "notes.json", "pool.json", "SHA256SUMS", "null"}
    return KEYS | {*COMMANDS} | keys | states | files | {*Record.__dataclass_fields__, MARK}


@cache
def is_ssh_option(literal: str) -> bool:
    """Whether ssh knows it: ControlMaster=no, IdentityFile."""
    name, _, value = literal.partition("=")
    return work("ssh", "-G", "-F", "none", "-o", f"{name}={value or 1}", "x", check=False).returncode == 0


@cache
def rsync_help() -> str:
    return work("rsync", "--help").stdout


def is_option(literal: str) -> bool:
    """Whether one of our commands has it, or rsync names it in its help."""
    name = literal.partition("=")[0].replace("--no-human", "--human")
    return any(name in options_of(command_of(command)) for command in COMMANDS) or re.search(rf"{name}\b", rsync_help()) is not None


SHAPES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    (r"--[a-z].*", is_option),
    (r"[a-z_]+ = .*", lambda literal: literal.split()[0] in KEYS),
    (r"(?:[A-Z][a-z0-9]+){2,}(?:=\w+)?", is_ssh_option),
    (r"BTRKEEP_\w+", lambda literal: f'"{literal}"' in (TOP / "backupd" / "run" / "hooks.py").read_text(encoding="utf-8")),
    (r"(?:NAME|path|name|target|place)_encoded", lambda _: True),
    (r"\d{4}-\d\d-\d\dT\d{6}Z|-\w|NEW|NAME=VALUE|[\d./]+", lambda _: True),
)


def unknown(literals: list[str], words: set[str]) -> list[str]:
    """Those that are no option, setting or variable that there is, and no word that we know. What has spaces or slashes passes."""
    wrong = []
    for literal in literals:
        known = [check(literal) for shape, check in SHAPES if re.fullmatch(shape, literal)]
        is_word = re.fullmatch(r"[\w.*+-]+", literal)
        if not (any(known) or literal in words or (not known and not is_word)):
            wrong.append(literal)
    return wrong


@pytest.mark.parametrize("name", OURS)
def test_every_name_on_a_page_is_one_that_there_is(page: Read, name: str) -> None:
    words = own_words({one: page(one) for one in OURS}) | FOREIGN
    assert unknown(page(name).literals(), words) == []


def test_a_name_that_there_is_not_is_found() -> None:
    wrong = ["--dryrun", "--in-place=x", "minfree = 3", "HostkeyChecking=yes", "BTRKEEP_MOOD", "fine"]
    assert (
        unknown([*wrong, "--dry-run", "--inplace", 'every = "1d"', "Compression=no", "BTRKEEP_HOST", "every"], {"every"}) == wrong
    )


def test_what_hooks_find_in_their_environment_is_told(page: Read) -> None:
    told = {word for word in page("how-a-backup-becomes-complete").literals() if word.startswith("BTRKEEP_")}
    assert told == set(re.findall(r'"(BTRKEEP_\w+)"', (TOP / "backupd" / "run" / "hooks.py").read_text(encoding="utf-8")))
