"""The manual page names every command, every option and every exit status, as the program man shows it.

An option that the page does not have is one that its reader does not find.
"""

import re

import click
import pytest

from backupd.cli import COMMANDS, group
from tests.beds import TOP, work
from tests.beds.exit_statuses import EXIT_MEANING


@pytest.fixture(scope="module")
def page() -> str:
    shown = work("groff", "-man", "-Tutf8", "-P-cbou", "-rLL=200n", TOP / "man" / "backupd.8").stdout
    return re.sub(r"\s+", " ", shown).replace("\u2010", "-")


def _commands() -> list[tuple[str, click.Command]]:
    context = click.Context(group)
    return [(name, command) for name in COMMANDS if (command := group.get_command(context, name))]


@pytest.mark.parametrize(("name", "command"), _commands(), ids=list(COMMANDS))
def test_a_command_stands_in_the_manual_with_all_its_options(name: str, command: click.Command, page: str) -> None:
    part = page[page.index("COMMANDS") :]
    assert re.search(rf" {name} (explain |add |init )?[\[{{A-Z]", part), f"{name} has no entry"
    for parameter in command.params:
        for option in parameter.opts if isinstance(parameter, click.Option) and not parameter.hidden else ():
            assert option in page, f"{name} {option} is not in the manual"


def test_the_options_before_the_command_are_there(page: str) -> None:
    for parameter in group.params:
        for option in parameter.opts:
            assert option in page


def test_the_exit_statuses_are_those_of_the_table(page: str) -> None:
    part = page[page.index("EXIT STATUS") : page.index("ENVIRONMENT")]
    assert {
        int(number): words.strip()
        for number, words in re.findall(r"(\d+) ([^0-9]+?)(?= \d+ |$)", part[len("EXIT STATUS") :].strip())
    } == {int(status): words for status, words in EXIT_MEANING.items()}


def test_man_has_nothing_to_complain_about() -> None:
    done = work("groff", "-man", "-Tutf8", "-ww", TOP / "man" / "backupd.8")
    assert not done.stderr


def test_the_manual_of_the_program_for_hosts_has_its_options_commands_and_keys() -> None:
    file = TOP / "man" / "btrkeep-source.8"
    done = work("groff", "-man", "-Tutf8", "-P-cbou", "-ww", "-rLL=200n", file)
    assert not done.stderr
    page = re.sub(r"\s+", " ", done.stdout).replace("\u2010", "-")
    program = TOP / "backupd" / "source" / "btrkeep_source.py"
    shown = work(program, "--help").stdout
    options = {*re.findall(r"--\w+", shown), *re.findall(r"\b(?:check|clean|begin|end|restore)\b", shown)}
    keys = set(re.findall(r"keys\.pop\(\"(\w+)\"", program.read_text(encoding="utf-8")))
    assert len(options) > 8
    assert len(keys) > 10
    assert [word for word in sorted(options | keys) if word not in page] == []
