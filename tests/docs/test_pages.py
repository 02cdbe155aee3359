"""The pages are built without a warning, and what they say of the code is what the code does."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import click
import pytest

from backupd.cli import COMMANDS, group
from backupd.rsync.command import passes, rsync_command, ssh_command
from backupd.rsync.meaning import _SHELL_SAYS, _SSH_SAYS, MEANING, Kind
from backupd.status import STATES
from btrkeep.catalogue.model import RUN_OUTCOMES
from btrkeep.config import HostConfig, load
from btrkeep.config.keys import DEFAULTS, TABLE
from btrkeep.config.model import SshSettings
from btrkeep.errors import EXIT_MEANING
from btrkeep.units import format_share
from tests.beds import TOP, work
from tests.docs.pages import DOCS, Page

Read = Callable[[str], Page]
OURS = ("index", "getting-started", "restricted-keys", "how-a-backup-becomes-complete", "states-and-exit-codes", "json")
README = (TOP / "README.rst").read_text(encoding="utf-8")


def test_the_pages_load_nothing_from_elsewhere_and_all_are_there(html: Path) -> None:
    names = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.rst") if "_build" not in path.parts}
    pages = {path.relative_to(html): path.read_text(encoding="utf-8") for path in html.rglob("*.html")}
    assert names <= set(pages)
    loaded = r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"((?:https?:)?//[^\"]*)"
    assert {str(name): re.findall(loaded, text) for name, text in pages.items() if re.search(loaded, text)} == {}
    styles = [path for path in html.rglob("*.css") if re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", path.read_text())]
    assert styles == []


def test_the_table_of_exit_statuses_is_the_codes(page: Read) -> None:
    rows = page("states-and-exit-codes").section("Exit status").table()
    assert rows == [[str(int(status)), words] for status, words in EXIT_MEANING.items()]


FOLLOWS = {
    Kind.FINISHED: "looked through",
    Kind.STOPPED: "partial",
    Kind.RETRY: "tried again",
    Kind.HOST: "given up",
    Kind.BROKEN: "broken",
}


def test_the_tables_of_rsyncs_exit_statuses_and_of_sshs_words_are_the_codes(page: Read) -> None:
    section = page("states-and-exit-codes").section("What rsync’s exit status means")  # noqa: RUF001
    assert section.table() == [[str(status), _typed(words), FOLLOWS[kind]] for status, (kind, words) in MEANING.items()]
    assert section.table(1) == [[_typed(words), FOLLOWS[kind]] for _, kind, words in (*_SSH_SAYS, *_SHELL_SAYS)]
    told = {
        text.strip() for text in re.findall(r"^(\w+(?: \w+)?)$", (DOCS / "states-and-exit-codes.rst").read_text(), re.MULTILINE)
    }
    assert set(FOLLOWS.values()) <= told


def _typed(words: str) -> str:
    """As Sphinx sets an apostrophe."""
    return words.replace("'", "’")  # noqa: RUF001


def test_the_states_are_all_told(page: Read) -> None:
    states = page("states-and-exit-codes")
    assert sorted(row[0] for row in states.section("States of a host").table()) == sorted(STATES)
    outcomes = {row[0] for row in states.section("What became of a run").table()}
    assert outcomes == {*RUN_OUTCOMES, "locked", "running", "killed"}
    backups = [row[0] for row in states.section("States of a backup").table()]
    assert backups == ["running", "partial", "complete", "suspect", "failed"]


def all_commands() -> list[tuple[str, ...]]:
    """The rsync commands of hosts that have everything set between them."""
    ssh = SshSettings()
    remote = HostConfig(
        "a", address="root@a", port=22, rsync_path="sudo rsync", ssh_options=("A=b",), paths=("/srv",), one_file_system=True
    )
    kinds = [(inplace, based) for inplace in ("always", "large", "never") for based in (True, False)]
    return [
        rsync_command(remote, ssh, "/srv", "/data", one, ()) for inplace, based in kinds for one in passes(inplace, based=based)
    ]


def test_every_option_of_rsync_that_is_used_is_explained_and_no_other(page: Read) -> None:
    section = page("how-a-backup-becomes-complete").section("rsync’s options")  # noqa: RUF001
    explained = {
        word for number in (0, 1) for row in section.table(number) for word in re.findall(r"--[a-z][^, ]*(?:,\w+)?", row[0])
    }
    used = {re.sub(r"^(--(?:timeout|filter|min-size|max-size))=.*", r"\1", word) for line in all_commands() for word in line}
    assert explained == {word for word in used if word.startswith("--")}
    always = {row_word for row in section.table(0) for row_word in re.findall(r"--[a-z-]+", row[0])}
    for line in all_commands():
        assert always <= {word.partition("=")[0] for word in line}


def test_every_option_of_ssh_that_is_used_is_explained_and_no_other(page: Read) -> None:
    explained = {word for row in page("restricted-keys").section("What ssh is told").table() for word in row[0].split(", ")}
    words = ssh_command(HostConfig("a", address="root@a", port=22), SshSettings())[1:]
    used = {re.sub(r"^(IdentityFile|UserKnownHostsFile)=.*", r"\1", word) for word in words} - {"-o", "22"}
    assert explained == used


# --- names -----------------------------------------------------------------------------------------------------------------------


def options_of(command: click.Command) -> dict[str, click.Parameter]:
    named = {name: param for param in command.params for name in (*param.opts, *param.secondary_opts) if name.startswith("-")}
    return {**named, "--help": click.Option(["--help"])}


def faults(call: str) -> list[str]:
    """What is wrong with the words after `backupd`: a command or an option that there is not, or arguments that do not fit."""
    words, known = call.split(), options_of(group)
    while words and words[0].startswith("-"):
        if words[0] not in known:
            return [f"backupd has no option {words[0]}"]
        words = words[2:] if words[0] in ("--pool", "--config") else words[1:]
    if not words:
        return []
    if words[0] not in COMMANDS:
        return [f"there is no command {words[0]}"]
    command = group.get_command(click.Context(group), words[0])
    assert command is not None
    return [f"{words[0]} has no option {word}" for word in words[1:] if word.startswith("-") and word not in options_of(command)]


@pytest.mark.parametrize("name", OURS)
def test_every_call_of_our_command_on_a_page_can_be_made(page: Read, name: str) -> None:
    calls = page(name).commands()
    assert {call: wrong for call in calls if (wrong := faults(call))} == {}
    assert calls or name == "index"


def test_every_call_of_our_command_in_the_readme_can_be_made() -> None:
    calls = re.findall(r"``backupd ([^`]+)``|^ +backupd(.*)$", README, re.MULTILINE)
    assert len(calls) > 10
    assert {call: wrong for pair in calls if (wrong := faults(call := "".join(pair)))} == {}


def test_a_wrong_call_is_found() -> None:
    assert faults("restore web1") == ["there is no command restore"]
    assert faults("run --dryrun") == ["run has no option --dryrun"]
    assert faults("--quiet run") == ["backupd has no option --quiet"]
    assert faults("--pool x run --dry-run web1") == []


# Words between double backticks that are no names of ours: programs, files, letters and values of examples.
FOREIGN = {
    "backupd",
    "rsync",
    "rrsync",
    "ssh",
    "sudo",
    "cp",
    "ls",
    "rm",
    "dmesg",
    "noatime",
    "btrkeep",
    "restrict",
    "a",
    "b",
    "Z",
    "*",
}


def own_words(pages: dict[str, Page]) -> set[str]:
    keys = {key for page in pages.values() for block in page.blocks("json") for key in re.findall(r'"(\w+)":', block)}
    states = {*STATES, *RUN_OUTCOMES, "locked", "running", "killed", "partial", "note", "warning", "error"}
    files = {"data", "latest", ".working", "night", ".btrkeep", "backup.json", "notes.json", "pool.json", "null"}
    return {key.name for key in TABLE} | {*COMMANDS} | keys | states | files


@cache
def is_ssh_option(literal: str) -> bool:
    """Whether ssh knows it: ControlMaster=no, IdentityFile."""
    name, _, value = literal.partition("=")
    return work("ssh", "-G", "-F", "none", "-o", f"{name}={value or 1}", "x", check=False).returncode == 0


def is_option(literal: str) -> bool:
    """Whether one of our commands has it, or rsync names it in its help."""
    name = re.match(r"--(?:no-(?=human))?[a-z-]+", literal)
    commands = [group.get_command(click.Context(group), command) for command in COMMANDS]
    return bool(name) and (any(name[0] in options_of(command) for command in commands if command) or name[0] in rsync_help())


@cache
def rsync_help() -> str:
    return work("rsync", "--help").stdout


KEYS = {key.name for key in TABLE}
SHAPES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    (r"--.*", is_option),
    (r"[a-z_]+ = .*", lambda literal: literal.split()[0] in KEYS),
    (r"(?:[A-Z][a-z0-9]+){2,}(?:=\w+)?", is_ssh_option),
    (r"BTRKEEP_\w+", lambda literal: f'"{literal}"' in (TOP / "backupd" / "hooks.py").read_text(encoding="utf-8")),
    (r"\d{4}-\d\d-\d\dT\d{6}Z|-\w|NEW|NAME=VALUE|[\d./]+", lambda _: True),
)


@pytest.mark.parametrize("name", OURS)
def test_every_name_on_a_page_is_one_that_there_is(page: Read, name: str) -> None:
    """A literal is an option, a setting, an option of ssh, a variable for hooks, a word that we know, or no word at all."""
    words = own_words({one: page(one) for one in OURS}) | FOREIGN
    wrong = []
    for literal in page(name).literals():
        known = [check(literal) for shape, check in SHAPES if re.fullmatch(shape, literal)]
        is_word = re.fullmatch(r"[\w.*-]+", literal)
        if not (any(known) or literal in words or (not known and not is_word)):
            wrong.append(literal)
    assert wrong == []


def test_what_hooks_find_in_their_environment_is_what_is_told(page: Read) -> None:
    told = {word for word in page("how-a-backup-becomes-complete").literals() if word.startswith("BTRKEEP_")}
    assert told == set(re.findall(r'"(BTRKEEP_\w+)"', (TOP / "backupd" / "hooks.py").read_text(encoding="utf-8")))


# --- configurations, README ------------------------------------------------------------------------------------------------------


def test_the_defaults_that_are_told_are_the_codes(page: Read) -> None:
    text = " ".join("".join(page("states-and-exit-codes").root.itertext()).split())
    shares = [format_share(DEFAULTS[key]) for key in ("shrink_limit", "unreadable_limit")]
    hours, minutes = int(DEFAULTS["deadline"] / 3600), int(DEFAULTS["stall"] / 60)
    wanted = [*shares, f"({DEFAULTS['attempts']}", f"({minutes} minutes", f"({hours} hours", f"\u201c{DEFAULTS['min_free']}\u201d"]
    text = text.replace('"', "\u201d").replace("(\u201d", "(\u201c")
    assert [f"{words} unless set" for words in wanted if f"{words} unless set" not in text] == []
    assert text.count(" unless set)") == len(wanted)


def test_every_configuration_on_the_pages_loads(page: Read, tmp_path: Path) -> None:
    count = 0
    for name in OURS:
        for block in page(name).blocks("toml"):
            count += 1
            pool = "" if "[pool]" in block else '[pool]\npath = "/srv/backup"\n'
            folder = tmp_path / str(count)
            folder.mkdir()
            (folder / "main.toml").write_text(pool + block)
            assert load(folder=folder).hosts
    assert count >= 4


def test_the_whole_configuration_is_the_sum_of_what_was_added(page: Read) -> None:
    *added, whole = page("getting-started").tables_of_keys()
    hosts = {name: keys for part in added for name, keys in part["host"].items()}
    assert whole["host"] == hosts
    assert whole["pool"]["path"] == "/srv/backup"


def test_cron_starts_what_the_installation_has_linked(page: Read) -> None:
    start = page("getting-started")
    (line,) = start.section("Every night").blocks("none")
    assert re.fullmatch(r"\d+ [\d,]+ \* \* \* root (/usr/local/bin/backupd) run >/dev/null \|\| \1 status", line)
    assert start.section("Install").block("sh").splitlines()[-1] == "ln -s /opt/btrkeep/bin/backupd /usr/local/bin/"


def test_readme_and_pages_say_the_same_of_installation_key_and_line(page: Read) -> None:
    start = page("getting-started")
    first = start.section("The first real host")
    for line in [
        *start.section("Install").block("sh").splitlines(),
        first.block("none"),
        *"\n".join(first.blocks("sh")[:2]).splitlines(),
    ]:
        assert f" {line}\n" in README, line


def test_every_document_that_the_readme_names_is_there() -> None:
    named = set(re.findall(r"``((?:docs|man)/[\w./-]*|[A-Z]+\.rst|\./\w+\.sh)", README))
    assert {"docs/configuration.rst", "docs/", "CHANGES.rst"} <= named
    assert [name for name in named if not (TOP / name).exists()] == []


def test_readme_changes_and_contributing_have_no_faults_of_markup() -> None:
    for name in ("README.rst", "CHANGES.rst", "CONTRIBUTING.rst"):
        text = (TOP / name).read_text(encoding="utf-8")
        command = [sys.executable, "-m", "docutils", "--report=info", "--halt=info", "-", os.devnull]
        run = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        assert (run.returncode, run.stderr) == (0, ""), name
