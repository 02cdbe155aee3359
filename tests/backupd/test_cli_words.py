"""Help, and errors of the command line for invalid arguments. No pool is needed."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from backupd.cli import COMMANDS, group
from btrkeep.cli import echo_json, stream_json
from btrkeep.cli.output import print_commands_as
from tests.beds import TOP, backupd
from tests.beds.cli import BACKUPD
from tests.beds.completing import completing_bash
from tests.beds.work import error_and_hint


def context() -> click.Context:
    return click.Context(group, info_name="backupd", **group.context_settings)


def commands() -> dict[str, click.Command]:
    by_name = {name: group.get_command(context(), name) for name in group.list_commands(context())}
    return {name: command for name, command in by_name.items() if command}


def doers() -> dict[str, click.Command]:
    """Returns the commands that do something: of a group, its commands."""
    by_name: dict[str, click.Command] = {}
    for name, command in commands().items():
        within = command.commands if isinstance(command, click.Group) else {}
        by_name |= {f"{name} {inner}": command for inner, command in within.items()} or {name: command}
    return by_name


def fails(*words: str | Path, status: int = 2) -> tuple[str, str]:
    return error_and_hint(backupd(*words, check=False), status)


def help_text(words: list[str], option: str) -> str:
    """Returns the help as this process makes it. In a terminal of 80 columns click fills 78."""
    done = CliRunner().invoke(group, [*words, option], prog_name="backupd", terminal_width=78, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS), ["retention", "explain"]], ids=str)
def test_help_fits_a_terminal_of_80_columns_and_names_every_option(words: list[str]) -> None:
    text = help_text(words, "--help")
    assert help_text(words, "-h") == text
    assert max(map(len, text.splitlines())) <= 80
    command = {**commands(), **doers()}[" ".join(words)] if words else group
    for param in command.get_params(context()):
        if isinstance(param, click.Option) and not param.hidden:
            assert all(name in text for name in param.opts)
            assert param.help or param.name == "help", param.name


def test_a_process_prints_the_help_that_the_other_tests_make_here() -> None:
    words = ["retention", "explain"]
    assert backupd(*words, "--help", env={"COLUMNS": "80"}).stdout == help_text(words, "--help")


def test_help_lists_every_command_with_what_it_does() -> None:
    text = backupd("--help").stdout
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.help)}$", text, re.MULTILINE)
    assert set(commands()) == set(COMMANDS)


def test_every_command_that_prints_results_has_json_and_takes_another_time() -> None:
    without = {"completion", "serve"}  # one prints a script, the other answers on a socket
    # init and setup make the pool that allows --now, host edits files, progress, scrub and quota show watch the kernel, offsite
    # reads a repository, and rehearse has nights of its own pool.
    timeless = {
        "init",
        "setup",
        "progress",
        "scrub",
        "quota show",
        "quota disable",
        "offsite init",
        "offsite list",
        "offsite check",
        "rehearse",
    }
    for name, command in doers().items():
        options = {option for param in command.params for option in param.opts}
        assert ("--json" in options) == (name not in without), name
        assert ("--now" in options) == (name not in (without | timeless) - {"serve"} and not name.startswith("host ")), name


def test_without_words_the_help_is_shown_and_the_status_is_that_of_wrong_usage() -> None:
    done = backupd(check=False)
    assert done.returncode == 2
    assert "Commands:" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["stauts"], "there is no command stauts", "did you mean status?"),
        (["xyzzy"], "there is no command xyzzy", "`backupd --help` lists them"),
        (["--pol", "x", "status"], "backupd has no option --pol", "did you mean --pool?"),
        (["status", "--jsn"], "backupd status has no option --jsn", "did you mean --json?"),
        (["status", "-v"], "backupd status has no option -v", "put it before the command: backupd -v status"),
        (["list", "--pool", "x"], "backupd list has no option --pool", "put it before the command: backupd --pool NAME list"),
        (["status", "--config", "x"], "backupd status has no option --config", "the command: backupd --config FILE status"),
        (["log", "-n", "many"], "'many' is not a valid integer", "`backupd log --help` explains it"),
        (["log", "-n", "0"], "0 is not in the range", "`backupd log --help` explains it"),
        (["init"], "missing argument 'PATH'", "usage: backupd init [OPTIONS] PATH; --help explains it"),
        (["accept", "web1"], "missing argument 'NAME'", "usage: backupd accept [OPTIONS] HOST NAME; --help explains it"),
        (["usage", "web1", "web2"], "unexpected extra argument", "`backupd usage --help` explains it"),
        (["run", "web1", "--all"], "name hosts or give --all, not both", "`backupd run --help` explains both"),
        (["replicate", "office", "--damaged", "--due"], "--damaged excludes --due", "`backupd replicate NAME [HOST...] --damaged`"),
        (["replicate", "office", "--damaged", "--seed-to", "/mnt"], "--damaged excludes --due, --seed-to", "--damaged`"),
        (["replicate", "office", "--damaged", "--seed-from", "/mnt"], "--damaged excludes --due, --seed-to and --seed-from", ""),
        (
            ["replicate", "office", "--seed-to", "/mnt", "--part-size", "65535"],
            "a part needs at least 64.0 KiB",
            "--help` explains it",
        ),
        (["status", "--now", "yesterday"], "'yesterday' is not a time", "`backupd status --help` explains it"),
        (["status", "--now", "2026-11-20T22:00:00"], "names no zone", "`backupd status --help` explains it"),
        (["--config", "", "status"], "--config is empty", "leave it out for /etc/btrkeep/main.toml"),
        (
            ["--config", "x.toml", "--pool", "main", "status"],
            "--pool and --config exclude each other",
            "give only one: a configuration file has the name of its pool",
        ),
        (["completion", "tcsh"], "'tcsh' is not one of", "`backupd completion --help` explains it"),
        (["stat\x1b[31mus"], r"there is no command stat\x1b[31mus", "did you mean status?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_word_that_is_not_understood_is_an_error_of_one_line_and_a_hint(words: list[str], error: str, hint: str) -> None:
    failure_text = fails(*words)
    assert error in failure_text[0]
    assert hint in failure_text[1]


def test_a_missing_configuration_names_the_file_and_how_one_is_made(tmp_path: Path) -> None:
    assert fails("--config", tmp_path / "main.toml", "status") == (
        f"{tmp_path}/main.toml: no such file",
        "run `backupd init PATH` to make a pool and an example configuration",
    )
    assert fails("--pool", "no-such-pool", "status")[0] == "/etc/btrkeep/no-such-pool.toml: no such file"


def test_all_problems_of_a_broken_configuration_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text('[pool]\npth = "/x"\nzone = "Mars/Base"\n[host.a]\npaths = ["/etc", "/etc/ssl"]\n[backup]\nevry = "1d"\n')
    for command in ("status", "list", "log", "check", "run", "rebuild"):
        done = backupd("--config", file, command, check=False)
        assert done.returncode == 2
        assert done.stdout == ""
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        for words in ("pool.path", "pth", "Mars/Base", "/etc/ssl", "evry"):
            assert sum(words in line for line in errors) >= 1, (words, done.stderr)
        assert done.stderr.splitlines()[-1].startswith("hint: ")


def completions(shell: str) -> "subprocess.CompletedProcess[str]":
    return backupd("completion", shell)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_of_that_shell(shell: str) -> None:
    script = completions(shell).stdout
    assert f"_BACKUPD_COMPLETE={shell}_complete" in script
    assert "backupd" in script


@pytest.mark.slow
def test_bash_completes_commands_options_and_hosts_with_the_printed_script(tmp_path: Path) -> None:
    config = tmp_path / "main.toml"
    config.write_text(
        '[pool]\npath = "/srv/x"\n[host.web1]\npaths=["/etc"]\n[host.web2]\npaths=["/etc"]\n[host.db]\npaths=["/etc"]\n'
    )
    complete = completing_bash(tmp_path, "backupd", BACKUPD, completions("bash").stdout)

    assert complete("backupd st") == {"status"}
    assert complete("backupd run --d") == {"--dry-run"}
    assert complete(f"backupd --config {config} run w") == {"web1", "web2"}
    assert complete(f"backupd --config {config} accept d") == {"db"}
    assert complete(f"backupd --config {tmp_path}/none.toml run w") == set()


def test_every_command_of_the_units_is_there_and_run_job_is_hidden() -> None:
    units = [unit.read_text(encoding="utf-8") for unit in (TOP / "systemd").glob("*.service")]
    lines = [shlex.split(line)[1:] for unit in units for line in re.findall(r"^ExecStart=\S*/(backupd .*)$", unit, re.MULTILINE)]
    words = {next(word for word in line if word in {*COMMANDS, "run-job"}) for line in lines}
    assert {"run", "run-job", "serve", "expire"} <= words
    assert "run-job" not in backupd("--help").stdout


def test_commands_that_are_printed_name_the_pool_of_the_command_line() -> None:
    error, hint = fails("--pool", "no-such-pool", "status")
    assert error == "/etc/btrkeep/no-such-pool.toml: no such file"
    assert "`backupd --pool no-such-pool init PATH`" in hint
    _, hint = fails("--config", "/nowhere/main.toml", "status")
    assert "`backupd init PATH`" in hint


@pytest.mark.parametrize(
    ("file", "call"),
    [
        ("/nowhere/main.toml", "backupd --config /nowhere/main.toml"),
        ("/no where/main.toml", "backupd --config '/no where/main.toml'"),
        ("nowhere.toml", f"backupd --config {shlex.quote(f'{TOP}/nowhere.toml')}"),  # it can be typed in any folder
        ("/etc/btrkeep/no-such-pool.toml", "backupd --pool no-such-pool"),
    ],
)
def test_commands_that_are_printed_name_the_configuration_of_the_command_line(file: str, call: str) -> None:
    done = backupd("--config", file, "status", check=False, cwd=TOP, as_printed=True)
    assert f"`{call} init PATH`" in done.stderr


def test_only_sentences_of_json_are_changed(capsys: pytest.CaptureFixture[str]) -> None:
    print_commands_as("backupd", "backupd --pool archive")
    try:
        echo_json({"path": "`backupd run`", "reason": "`backupd run`", "hint": "`backupd run`", "warnings": ["`backupd list` x"]})
        stream_json([{"path": "`backupd run`", "error": "`backupd run`"}])
    finally:
        print_commands_as("backupd", "backupd")
    out = capsys.readouterr().out
    first, end = json.JSONDecoder().raw_decode(out)
    assert first == {
        "path": "`backupd run`",
        "reason": "`backupd run`",
        "hint": "`backupd --pool archive run`",
        "warnings": ["`backupd --pool archive list` x"],
    }
    assert json.loads(out[end:]) == [{"path": "`backupd run`", "error": "`backupd --pool archive run`"}]
