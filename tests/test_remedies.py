"""The table of remedies: each command that a program prints as advice is typed by a test, or has one of a few fixed reasons.

tests/*/test_remedies*.py type most of those that change something, in the state that prints them. Commands that only read are
listed by name; tests/btrfs/test_remedies_looks.py types all of them on one site. A command that is printed from now on has to be
added to one of them.

Otherwise an administrator types what a message advises and gets an error.
"""

import ast
import re
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path

import click
import pytest

from heatmap.cli import PICTURE
from tests.beds import TOP
from tests.beds.printed import COMMANDS, is_command, printed_commands
from tests.beds.remedies import pattern

READS = {  # btrkeep commands that change only samples and caches
    "backupd": {
        "browse",
        "check",
        "compare",
        "damaged",
        "doctor",
        "forecast",
        "list",
        "log",
        "progress",
        "proposals",
        "status",
        "trend",
        "usage",
    }
    | {"versions", "retention"},
    "btrfs-balancer": {"plan", "score", "history"},
    "btrfs-heatmap": {"draw", "nightly"},
}
LOOKS_OF_OTHERS = re.compile(
    r"btrfs (check --readonly|device stats|filesystem show|qgroup show|scrub status|subvolume list)|df |findmnt|fuser -v|dmesg"
    r"|journalctl|losetup --list|ls -la|ps -fp|ssh-keygen -lf|systemctl (status|list-timers)|timedatectl|getent|sysctl user"
    r"|ulimit -[afnu]$"
)


class Reason(Enum):
    """The reason why no test executes a command."""

    NAMED = "names a command; its arguments are for the reader to choose, and the text has no room for them"
    MACHINE = "changes the machine beyond a pool: packages, units, limits, another user's files"
    HARDWARE = "needs another disk"
    ELSEWHERE = "is typed on another server, or is what sshd is told to run"
    PREFIX = "is how a program is called, to which the command is added"
    SYSTEM_CALL = "is the name of a system call"
    MOMENT = "is printed when two commands meet within milliseconds"


REASONS = {
    Reason.NAMED: {
        "backupd compare",
        "backupd delete",
        "backupd expire HOST --skip-grace",
        "backupd forget",
        "backupd forget NAME",
        "backupd hold",
        "backupd host add",
        "backupd host add NAME",
        "backupd host set HOST KEY=VALUE",
        "backupd host set {} KEY=VALUE",
        "backupd host set {} address=USER@HOST",
        "backupd host test HOST",
        "backupd import rsnapshot FOLDER",
        "backupd import tree FOLDER --host NAME",
        "backupd init",
        "backupd init --rehearsal",
        "backupd promote",
        "backupd quota",
        "backupd replicate --seed-to",
        "backupd replicate --seed-to FOLDER NAME",
        "backupd replicate NAME [HOST...] --damaged",
        "backupd restore",
        "backupd restore {}@{} PATH --to DIR",
        "backupd versions --content",
        "backupd delete --now-without-grace {}",
        "btrfs balance cancel",
        "btrfs scrub cancel",
        "btrfs subvolume create",
        "btrfs subvolume delete",
        "btrfs-balancer run --pool {}",
        "btrfs-balancer score --record --pool {}",
        "btrkeep-web token add",
        "backupd silence --group GROUP --end",
        "backupd silence HOST --until 2027-01-01 --why TEXT",
        "backupd verify HOST --against-source",
        "backupd verify HOST@BACKUP",
        "btrkeep-web token",
        "btrkeep-web user",
        "btrkeep-web user add",
        "ssh-keygen",
    },
    Reason.MACHINE: {
        "apt install bubblewrap",
        "apt install chrony",
        "apt install ffmpeg",
        "apt install openssh-client",
        "apt install rsync",
        "apt install {}",
        "backupd serve",
        "backupd serve --restore-below DIR",
        "backupd serve --restore-elsewhere",
        "backupd serve --restore-to DIR",
        "btrfstune --remove-simple-quota",
        "chmod go-w it",
        "chown root {}",
        "chown root {}; chmod 644 {}",
        "mkfs.btrfs",
        "sudo ./install.sh --enable {}",
        "systemctl edit btrkeep-serve@{}",
        "systemctl edit {}",
        "systemctl enable --now btrkeep-sample@POOL.timer",
        "systemctl revert {}",
        "systemctl start {}",
        "ulimit -n 100000",
    },
    Reason.HARDWARE: {"btrfs replace start"},
    Reason.ELSEWHERE: {
        "backupd delete {}@{} --why damaged",
        "backupd repair {}",
        "backupd verify {}",
        "backupd --pool {} receive-only --replica {}",
        "backupd --pool {} send-only",
        "backupd replicate",
        "backupd send-only",
        "{} run --scheduled",
    },
    Reason.PREFIX: {"backupd --config {}", "backupd --pool {}"},
    Reason.SYSTEM_CALL: {"umount2"},
    Reason.MOMENT: {"backupd discard {} --dry-run"},
}

TYPED_BY = {  # tests of other modules that type a command where it is printed, or in that state
    "backupd delete --now-without-grace {}": "tests/btrfs/test_delete_future.py::test_its_day_names_it_and_its_name_deletes_it",
    "backupd delete {}": "tests/btrfs/test_delete_future.py::test_its_day_names_it_and_its_name_deletes_it",
    "backupd apply {}": "tests/btrfs/test_proposals.py::test_root_applies_what_was_shown_and_nothing_else",
    "backupd silence": "tests/backupd/test_cli_silence.py::"
    "test_nothing_is_sent_about_a_silenced_host_and_what_is_still_there_is_sent_when_the_date_has_passed",
    "btrkeep-web user passwd NAME": "tests/web/test_gate_cli.py::test_users_come_are_listed_changed_and_go",
    "backupd accept {}": "tests/btrfs/test_altered.py::test_a_change_by_hand_is_no_damage",
    "backupd delete {}@{}": "tests/btrfs/test_replicate_unreadable.py::"
    "test_a_backup_of_which_nothing_can_be_read_is_named_after_a_rebuild_too_and_can_be_given_up",
    "backupd doctor --fix atime": "tests/btrfs/test_doctor.py::test_the_command_says_what_is_wrong_and_mends_what_it_is_told_to",
    "backupd doctor --fix NAME": "tests/btrfs/test_doctor.py::test_the_command_says_what_is_wrong_and_mends_what_it_is_told_to",
    "backupd doctor --fix {}": "tests/btrfs/test_doctor.py::test_the_command_says_what_is_wrong_and_mends_what_it_is_told_to",
    "backupd doctor --fix room": "tests/btrfs/test_fix_room.py::"
    "test_after_a_restart_in_the_middle_it_attaches_the_file_again_and_goes_on",
    "backupd promote {}": "tests/btrfs/test_demoted.py::test_promote_takes_it_back",
    "backupd notify": "tests/backupd/test_cli_notify.py::test_a_failure_is_told_once_and_so_is_its_end",
    "btrfs balance cancel {}": "tests/btrfs/test_doctor_commands.py::test_a_paused_balance",
    "btrfs balance resume {}": "tests/btrfs/test_doctor_commands.py::test_a_paused_balance",
    "btrfs balance start {} {}": "tests/btrfs/test_doctor_commands.py::test_those_of_one_device",
    "backupd notify --test": "tests/backupd/test_cli_notify.py::test_the_test_says_which_work_and_which_do_not",
    "backupd replicate {}": "tests/btrfs/test_replicate_damaged.py::test_what_is_damaged_here_comes_again_and_takes_its_place",
    "backupd scrub": "tests/btrfs/test_damaged.py::test_a_scrub_names_the_file_and_all_backups_that_share_what_was_spoilt",
    "backupd verify --after-crash": "tests/btrfs/test_after_crash.py::"
    "test_what_the_last_minutes_wrote_is_read_at_once_and_nothing_else",
    "backupd drill": "tests/btrfs/test_drill.py::test_status_says_when_a_restore_was_proven_last",
    "backupd drill HOST --boot": "tests/btrfs/test_boot_drill.py::"
    "test_a_system_that_was_backed_up_boots_answers_its_checks_and_is_gone",
    "backupd drill HOST --boot --as-root": "tests/btrfs/test_boot_drill_hostile.py::"
    "test_without_users_of_its_own_it_is_booted_only_when_that_is_said",
    "chmod go-w {}": "tests/btrfs/test_hooks.py::test_hooks_of_a_configuration_that_others_may_write_are_not_run",
    "backupd verify --against-source {}": "tests/btrfs/test_verify_source.py::test_of_a_host_that_fails_nothing_is_recorded",
    "backupd dedupe": "tests/btrfs/test_dedupe.py::test_equal_files_share_whatever_they_are_called_and_nothing_else_changes",
    "{} host test {}": "tests/btrfs/test_fetched_twice.py::test_a_bind_mount_is_named_by_connect_and_after_the_night",
    "backupd setup --host {} --no-run": "tests/btrfs/test_source_restores.py::"
    "test_with_the_two_lines_that_setup_prints_a_host_is_backed_up_and_files_come_back",
    "backupd setup": "tests/backupd/test_cli_setup.py::test_a_new_host_is_trusted_and_let_in_step_by_step",
    "{} setup --host {} --accept-host-key --no-run": "tests/backupd/test_cli_host.py::"
    "test_a_host_over_ssh_is_added_tested_backed_up_and_removed_with_its_backups_left",
    "{} host set {} {}": "tests/btrfs/test_lasting.py::"
    "test_an_unreadable_folder_is_an_alarm_on_the_third_night_whose_command_ends_it",
    "ssh-keygen -R {} -f {}": "tests/btrfs/test_absence.py::"
    "test_another_host_key_is_sent_at_once_though_the_host_was_failing_and_the_hint_works",
    "systemctl enable --now {}": "tests/systemd/test_starts.py::test_the_hint_is_the_command_that_was_typed",
    "btrkeep-web user add NAME": "tests/web/test_gate_cli.py::test_users_come_are_listed_changed_and_go",
    "btrkeep-web user change {}": "tests/web/test_gate_cli.py::test_users_come_are_listed_changed_and_go",
    "btrkeep-web user list": "tests/web/test_gate_cli.py::test_users_come_are_listed_changed_and_go",
    "btrkeep-web token remove {}": "tests/web/test_gate_cli.py::test_a_token_is_printed_once_and_only_its_digest_is_kept",
    "btrkeep-web token list": "tests/web/test_gate_cli.py::test_a_token_is_printed_once_and_only_its_digest_is_kept",
}

FOLLOWED = {
    "btrfs balance cancel {}",
    "btrfs balance resume {}",
    "btrfs balance start {} {}",
    "{} host set {} {}",
    "{} setup --host {} --accept-host-key --no-run",
}
"""The messages whose tests type the command from the output, and so do not contain its words."""


@cache
def typed_here() -> frozenset[str]:
    """Returns what the tests of tests/*/test_remedies*.py say that they type; the fixture of these tests holds them to it."""
    modules = [import_module(f"tests.{file.parent.name}.{file.stem}") for file in sorted(TOP.glob("tests/*/test_remedies*.py"))]
    tests = [test for module in modules for name, test in vars(module).items() if name.startswith("test_")]
    return frozenset(command for test in tests for command in getattr(test, "types", ()))


def only_reads(command: str) -> bool:
    program, _, rest = command.partition(" ")
    if program not in COMMANDS:
        return LOOKS_OF_OTHERS.match(command) is not None
    words = rest.split()
    if "--help" in words or "--dry-run" in words:
        return True
    return bool(words) and words[0] in READS.get(program, set()) and "--fix" not in words and "--record" not in words[1:]


def covered(command: str) -> bool:
    return (
        command in typed_here()
        or command in TYPED_BY
        or only_reads(command)
        or any(command in typed_commands for typed_commands in REASONS.values())
    )


@pytest.mark.slow
def test_each_printed_command_is_typed_or_has_a_reason() -> None:
    printed = printed_commands()
    assert len(printed) > 150
    missing = {command: places for command, places in printed.items() if not covered(command)}
    assert missing == {}, "type it in tests/btrfs/test_remedies.py"


@pytest.mark.slow
def test_no_entry_of_the_table_is_left_over() -> None:
    printed = printed_commands()
    entries = {command for commands in REASONS.values() for command in commands} | {*TYPED_BY}
    assert {command for command in entries if command not in printed} == set()
    assert {command for command in typed_here() if command not in printed} == set()


@pytest.mark.parametrize(("command", "test"), sorted(TYPED_BY.items()))
def test_the_test_that_an_entry_names_is_there_and_has_the_words_of_the_command(command: str, test: str) -> None:
    file, _, name = test.partition("::")
    words = _words_of((TOP / file).read_text(encoding="utf-8"), name)
    if command in FOLLOWED:
        assert {"follow", "shlex"} & words
        return
    assert [word for word in command.split()[1:] if not word.startswith("{") and not word.isupper() and word not in words] == []


def test_an_entry_whose_test_types_something_else_is_found() -> None:
    text = (
        'def helper():\n    run("drill --boot")\n\n'
        'def test_it(place):\n    helper()\n    run(f"{place} verify")\n\n'
        'def test_other():\n    run("list")\n'
    )
    assert _words_of(text, "test_it") == {"drill", "--boot", "verify"}
    with pytest.raises(KeyError):
        _words_of(text, "test_gone")


_parsed = cache(ast.parse)


def _words_of(text: str, name: str) -> set[str]:
    """Returns the words of all strings in a function, and in what it uses of its module: helpers, fixtures and constants."""
    places: dict[str, ast.AST] = {}
    for part in _parsed(text).body:
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            places[part.name] = part
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            places |= {target.id: part for target in targets if isinstance(target, ast.Name)}
        elif isinstance(part, ast.ImportFrom) and (part.module or "").startswith("tests.") and (file := _file_of(part.module)):
            places |= {name.asname or name.name: _parsed(file.read_text(encoding="utf-8")) for name in part.names}
    words, seen = set[str](), {name}
    ahead: list[ast.AST] = [places[name]]
    while ahead:
        for node in ast.walk(ahead.pop()):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words |= {word.strip("`'.,:;") for word in node.value.split()}
            used = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
            words |= {used} & {"follow", "shlex"}
            if used in places and used not in seen:
                seen.add(used)
                ahead.append(places[used])
    return words


def _file_of(module: str | None) -> Path | None:
    file = TOP / f"{(module or '').replace('.', '/')}.py"
    return file if file.is_file() else None


@pytest.mark.slow
def test_each_command_of_the_page_what_to_do_is_in_the_table() -> None:
    text = (TOP / "docs" / "what-to-do.rst").read_text(encoding="utf-8")
    programs = "|".join([*COMMANDS, "timedatectl", "journalctl", "systemctl", "btrfs", "mount", "restic"])
    commands = set(re.findall(rf"``((?:{programs}) [^`]+)``", text)) | set(re.findall(r"``(timedatectl)``", text))
    table = [pattern(command) for command in printed_commands() if covered(command)]
    assert {command for command in commands if not any(re.fullmatch(pattern, command) for pattern in table)} == set()
    assert len(commands) >= 20


@pytest.mark.slow
def test_each_printed_command_of_ours_is_a_command_with_options_that_it_has() -> None:
    faults = {command: fault for command in printed_commands() if (fault := misspelt(command))}
    assert faults == {}


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("backupd list {} --alll", "--alll"),
        ("backupd quota enabl", "enabl"),
        ("backupd list --pool {}", "--pool"),
        ("btrfs-balancer plan --pol {}", "--pol"),
        ("backupd expire {} --skip-grace", ""),
        ("backupd --pool {} log {}", ""),
    ],
)
def test_a_command_that_is_misspelt_is_found(command: str, fault: str) -> None:
    assert misspelt(command) == fault


def misspelt(command: str) -> str:
    """Returns the first word that btrkeep's program does not have, or ""."""
    program, *words = command.split()
    if program not in COMMANDS or not is_command(command):
        return ""
    package = {"backupd": "backupd", "btrfs-balancer": "balancer", "btrfs-heatmap": "heatmap", "btrkeep-web": "web"}[program]
    current: click.Command = import_module(f"{package}.cli").group
    context = click.Context(current, info_name=program, **current.context_settings)  # a command keeps the options for help
    if program == "btrfs-heatmap" and words[0] not in COMMANDS[program]:
        words.insert(0, PICTURE)
    while words:
        word = words.pop(0)
        if word == "--" or (word.startswith("{") and isinstance(current, click.Group)):
            return ""
        if word.startswith("-"):
            options = [param for param in current.get_params(context) if isinstance(param, click.Option) and word in param.opts]
            if not options:
                return word
            if not options[0].is_flag and not options[0].count and words:
                words.pop(0)
        elif isinstance(current, click.Group) and not word.startswith("{"):
            result = current.get_command(context, word)
            if result is None:
                return word
            current, context = result, click.Context(result, info_name=word, parent=context)
    return ""
