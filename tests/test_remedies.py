"""The table of remedies: each command that a program prints as advice is typed by a test, or has one of a few fixed reasons.

tests/btrfs/test_remedies.py types most of those that change something, in the state that prints them. What only reads is known by
its name and is not typed. A command that is printed from now on has to be added to one of them.
"""

import ast
import re
from enum import Enum
from functools import cache
from importlib import import_module

import click
import pytest

from heatmap.cli import PICTURE
from tests.beds import TOP
from tests.beds.printed import COMMANDS, is_command, printed_commands

READS = {  # commands of ours that change nothing but samples and caches
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
    r"|journalctl|losetup --list|ls -la|ps -fp|ssh-keygen -lf|systemctl status|timedatectl|getent|sysctl user|ulimit -[anu]$"
)


class Reason(Enum):
    """Why no test types a command."""

    NAMED = "names a command; its arguments are for the reader to choose, and the text has no room for them"
    MACHINE = "changes the machine beyond a pool: packages, units, limits, another user's files"
    HARDWARE = "needs another disk"
    ELSEWHERE = "is typed on another server, or is what sshd is told to run"
    PREFIX = "is how a program is called, to which the command is added"
    MOMENT = "is printed when two commands meet within milliseconds"


REASONS = {
    Reason.NAMED: {
        "backupd delete",
        "backupd expire HOST --skip-grace",
        "backupd forget",
        "backupd forget NAME",
        "backupd hold",
        "backupd host add",
        "backupd host add NAME",
        "backupd host set HOST KEY=VALUE",
        "backupd host set {}",
        "backupd host set {} KEY=VALUE",
        "backupd host set {} address=USER@HOST",
        "backupd host test HOST",
        "backupd import tree",
        "backupd init",
        "backupd init --rehearsal",
        "backupd promote",
        "backupd quota",
        "backupd replicate --seed-to",
        "backupd replicate NAME [HOST...] --damaged",
        "backupd restore",
        "backupd restore {}@{} PATH --to DIR",
        "backupd delete --now-without-grace {}",
        "btrfs balance cancel",
        "btrfs scrub cancel",
        "btrfs-balancer run",
        "btrfs-balancer score --record",
        "btrkeep-web token add",
        "btrkeep-web user add",
        "ssh-keygen",
    },
    Reason.MACHINE: {
        "apt install bubblewrap",
        "apt install chrony",
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
        "mkfs.btrfs",
        "sudo ./install.sh --enable {}",
        "systemctl edit {}",
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
        "backupd --pool {} send-only --",
        "backupd replicate",
        "backupd send-only",
        "{} run --scheduled",
    },
    Reason.PREFIX: {"backupd --config {}", "backupd --pool {}"},
    Reason.MOMENT: {"backupd discard {} --dry-run"},
}

TYPED_BY = {  # tests of other modules that type a command where it is printed, or in that state
    "backupd delete --now-without-grace {}": "tests/btrfs/test_delete_future.py::test_its_day_names_it_and_its_name_deletes_it",
    "backupd doctor --fix NAME": "tests/btrfs/test_doctor_commands.py::test_every_rule_is_tried_here_or_listed_with_the_reason",
    "backupd doctor --fix {}": "tests/btrfs/test_doctor_commands.py::test_every_rule_is_tried_here_or_listed_with_the_reason",
    "backupd doctor --fix room": "tests/btrfs/test_fix_room.py::"
    "test_after_a_restart_in_the_middle_it_attaches_the_file_again_and_goes_on",
    "backupd promote {}": "tests/btrfs/test_demoted.py::test_promote_takes_it_back",
    "backupd notify": "tests/backupd/test_cli_notify.py::test_a_failure_is_told_once_and_so_is_its_end",
    "btrfs balance cancel {}": "tests/btrfs/test_doctor_commands.py::test_a_paused_balance",
    "btrfs balance resume {}": "tests/btrfs/test_doctor_commands.py::test_a_paused_balance",
    "backupd notify --test": "tests/backupd/test_cli_notify.py::test_the_test_says_which_work_and_which_do_not",
    "backupd offsite check": "tests/btrfs/test_offsite.py::test_check_reads_back_and_finds_what_is_damaged_there",
    "backupd replicate {}": "tests/btrfs/test_replicate_damaged.py::test_what_is_damaged_here_comes_again_and_takes_its_place",
    "backupd scrub": "tests/btrfs/test_damaged.py::test_a_scrub_names_the_file_and_all_backups_that_share_what_was_spoilt",
    "backupd verify --after-crash": "tests/btrfs/test_after_crash.py::"
    "test_what_the_last_minutes_wrote_is_read_at_once_and_nothing_else",
    "backupd drill": "tests/btrfs/test_drill.py::test_status_says_when_a_restore_was_proven_last",
    "backupd drill HOST --boot": "tests/btrfs/test_boot_drill.py::"
    "test_a_system_that_was_backed_up_boots_answers_its_checks_and_is_gone",
    "backupd drill HOST --boot --as-root": "tests/btrfs/test_boot_drill.py::"
    "test_a_system_that_was_backed_up_boots_answers_its_checks_and_is_gone",
    "backupd setup": "tests/backupd/test_cli_setup.py::test_a_new_host_is_trusted_and_let_in_step_by_step",
    "backupd host add web1 --address root@web1.example.org --path /etc": "tests/backupd/test_cli_host.py::"
    "test_a_host_over_ssh_is_added_tested_backed_up_and_removed_with_its_backups_left",
    "backupd run web1": "tests/backupd/test_cli_host.py::"
    "test_a_host_over_ssh_is_added_tested_backed_up_and_removed_with_its_backups_left",
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

NOT_YET = {
    "backupd replicate --damaged",
    "backupd demote {} {}",
    "backupd rename {} {}",
    "backupd run --all",
    "backupd verify {}@{}",
    "btrkeep-web user export",
    "btrkeep-web user move",
    "btrkeep-web --pool %s user move",
    "{} verify {}",
}
"""What neither a test types nor a reason covers. It may only become shorter."""
LONGEST_NOT_YET = 9


@cache
def typed_here() -> frozenset[str]:
    """What the tests of tests/btrfs/test_remedies.py say that they type; the fixture of these tests holds them to it."""
    module = import_module("tests.btrfs.test_remedies")
    return frozenset(command for name, test in vars(module).items() if name.startswith("test_") for command in test.types)


def only_reads(command: str) -> bool:
    program, _, rest = command.partition(" ")
    if program not in COMMANDS:
        return LOOKS_OF_OTHERS.match(command) is not None
    words = rest.split()
    if "--help" in words or "--dry-run" in words:
        return True
    return bool(words) and words[0] in READS.get(program, set()) and "--fix" not in words and "--record" not in words[1:]


def covered(command: str) -> bool:
    return command in typed_here() or command in TYPED_BY or only_reads(command) or any(command in one for one in REASONS.values())


def test_each_printed_command_is_typed_or_has_a_reason() -> None:
    printed = printed_commands()
    assert len(printed) > 150
    missing = {command: places for command, places in printed.items() if not covered(command) and command not in NOT_YET}
    assert missing == {}, "type it in tests/btrfs/test_remedies.py"


def test_what_is_not_typed_yet_becomes_less() -> None:
    assert len(NOT_YET) <= LONGEST_NOT_YET
    assert {command for command in NOT_YET if command not in printed_commands()} == set(), "it is printed no more"
    assert {command for command in NOT_YET if covered(command)} == set(), "it is covered"


def test_no_entry_of_the_table_is_left_over() -> None:
    printed = printed_commands()
    entries = {command for commands in REASONS.values() for command in commands} | {*TYPED_BY}
    assert {command for command in entries if command not in printed} == set()
    assert {command for command in typed_here() if command not in printed} == set()


@pytest.mark.parametrize("test", sorted(set(TYPED_BY.values())))
def test_the_tests_of_the_table_are_there(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((TOP / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


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
    """Returns the word that a program of ours does not have, "" if it has all of them."""
    program, *words = command.split()
    if program not in COMMANDS or not is_command(command):
        return ""
    package = {"backupd": "backupd", "btrfs-balancer": "balancer", "btrfs-heatmap": "heatmap", "btrkeep-web": "web"}[program]
    current: click.Command = import_module(f"{package}.cli").group
    context = click.Context(current, info_name=program)
    if program == "btrfs-heatmap" and words[0] not in COMMANDS[program]:
        words.insert(0, PICTURE)
    while words:
        word = words.pop(0)
        if word == "--" or (word.startswith("{") and isinstance(current, click.Group)):
            return ""
        if word.startswith("-"):
            options = [one for one in current.get_params(context) if isinstance(one, click.Option) and word in one.opts]
            if not options:
                return word
            if not options[0].is_flag and not options[0].count and words:
                words.pop(0)
        elif isinstance(current, click.Group) and not word.startswith("{"):
            found = current.get_command(context, word)
            if found is None:
                return word
            current, context = found, click.Context(found, info_name=word, parent=context)
    return ""
