"""Help, completion, and errors of the command line for invalid arguments. No btrfs is needed here."""

import re
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from balancer.cli import COMMANDS, group
from balancer.cli.score import SORTS
from tests.balancer.program import balancer
from tests.beds import TOP, work
from tests.beds.completing import completing_bash
from tests.beds.work import error_and_hint


def fails(*words: str | Path, status: int = 2) -> tuple[str, str]:
    return error_and_hint(balancer(*words, check=False), status)


def command_of(name: str) -> click.Command:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    return command


def help_text(words: list[str], option: str) -> str:
    """Returns the help as this process makes it. In a terminal of 80 columns click fills 78."""
    done = CliRunner().invoke(group, [*words, option], prog_name="btrfs-balancer", terminal_width=78, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=str)
def test_help_fits_a_terminal_of_80_columns_and_names_every_option(words: list[str]) -> None:
    text = help_text(words, "--help")
    assert help_text(words, "-h") == text
    assert max(map(len, text.splitlines())) <= 80
    command = command_of(words[0]) if words else group
    for param in command.get_params(click.Context(command)):
        if isinstance(param, click.Option):
            assert all(name in text for name in param.opts)
            assert param.help


def test_a_process_prints_the_help_that_the_other_tests_make_here() -> None:
    assert balancer("plan", "--help", COLUMNS="80").stdout == help_text(["plan"], "--help")


def test_help_lists_every_command_with_what_it_does() -> None:
    text = balancer("--help", COLUMNS="100").stdout
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.help)}$", text, re.MULTILINE)
    assert balancer(check=False).returncode == 2


def test_the_examples_of_the_help_can_be_given() -> None:
    lines = re.findall(r"^ +btrfs-balancer score (.*)$", balancer("score", "--help").stdout, re.MULTILINE)
    assert len(lines) == 5
    names = {name for param in command_of("score").params for name in param.opts}
    for line in lines:
        assert {word for word in line.partition(" |")[0].split() if word.startswith("-")} <= names


def test_help_imports_neither_numpy_nor_python_btrfs() -> None:
    """They take longer to import than all the rest, and help comes at once."""
    script = "import sys, click; from balancer.cli import group; score = group.get_command(None, 'score')"
    script += "; assert '--explain' in score.get_help(click.Context(score)); print({'numpy', 'btrfs'} & {*sys.modules})"
    assert work(sys.executable, "-c", script, cwd=TOP).stdout == "set()\n"


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["scroe", "/"], "there is no command scroe", "did you mean score?"),
        (["frobnicate"], "there is no command frobnicate", "`btrfs-balancer --help` lists them"),
        (["score"], "missing argument 'MOUNTPOINT'", "usage: btrfs-balancer score [OPTIONS] MOUNTPOINT; --help explains it"),
        (["score", "/", "--jsn"], "btrfs-balancer score has no option --jsn", "did you mean --json?"),
        (["score", "/", "--top", "0"], "0 is not in the range", "`btrfs-balancer score --help` explains it"),
        (["score", "/", "--min-score", "-1"], "-1.0 is not in the range", "`btrfs-balancer score --help` explains it"),
        (["score", "/", "--sort", "size"], "'size' is not one of", "`btrfs-balancer score --help` explains it"),
        (["score", "/", "--explain", "one"], "'one' is not a virtual address", "`btrfs-balancer score --help` explains it"),
        (["score", "/", "--explain", "-1"], "'-1' is not a virtual address", "`btrfs-balancer score --help` explains it"),
        (["score", "/", "--explain", str(2**64)], "is not a virtual address", "`btrfs-balancer score --help` explains it"),
        (["score", "/", "--explain", "1", "--top", "3"], "--explain is about one block group", "leave out --top"),
        (["score", "/", "--explain", "1", "--sort", "score"], "--explain is about one block group", "leave out --top"),
        (["completion", "tcsh"], "'tcsh' is not one of", "`btrfs-balancer completion --help` explains it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_word_that_is_not_understood_is_an_error_of_one_line_and_a_hint(words: list[str], error: str, hint: str) -> None:
    failure_text = fails(*words)
    assert error in failure_text[0]
    assert hint in failure_text[1]


def test_what_is_no_btrfs_is_an_error_of_one_line_and_a_hint(tmp_path: Path) -> None:
    assert fails("score", tmp_path / "none", status=4) == (
        f"{tmp_path}/none: No such file or directory",
        "name the mount point of a btrfs: `findmnt -t btrfs` lists them",
    )
    kind = work("findmnt", "-no", "FSTYPE", "--target", "/proc").stdout.strip()
    assert fails("score", "/proc", status=4) == (f"/proc is on {kind}, not on btrfs", "`findmnt -t btrfs` lists what is mounted")
    assert fails("score", "/dev/null", status=4)[0].endswith("not on btrfs")
    assert r"\x1b[31m: No such file" in fails("score", tmp_path / "\x1b[31m", status=4)[0]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_of_that_shell(shell: str) -> None:
    assert f"_BTRFS_BALANCER_COMPLETE={shell}_complete" in balancer("completion", shell).stdout


@pytest.mark.slow
def test_bash_completes_commands_options_and_keys_with_the_printed_script(tmp_path: Path) -> None:
    complete = completing_bash(
        tmp_path, "btrfs-balancer", (sys.executable, "-m", "balancer"), balancer("completion", "bash").stdout
    )

    assert complete("btrfs-balancer sc") == {"score"}
    assert complete("btrfs-balancer score / --ex") == {"--explain"}
    assert complete("btrfs-balancer score / --sort ") == {*SORTS}
    mounted = work("findmnt", "-t", "btrfs", "-rno", "TARGET", check=False).stdout.split()
    if mounted:
        assert mounted[0] in complete(f"btrfs-balancer score {mounted[0][:-1]}")
