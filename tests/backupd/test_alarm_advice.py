"""Messages have the problem, its start, the remedy and the command, with names that can be copied."""

from dataclasses import fields
from datetime import UTC, datetime

import pytest

from backupd.alarms import alarm_messages
from btrkeep.catalogue import StoredAlarm
from btrkeep.catalogue.model_alarm import AlarmSubject
from btrkeep.decisions.alarm_advice import ELSE, TABLE, advice, command_for

SINCE = datetime(2026, 11, 20, 22, tzinfo=UTC)


def alarm(subject: str, text: str, name: str = "failure") -> StoredAlarm:
    return StoredAlarm(name, subject, text, 0, SINCE, 1, None, None, None)


def body(*alarms: StoredAlarm, pool: str = "main") -> list[str]:
    return alarm_messages.changes_message(pool, "machine", alarms, []).body.splitlines()


def test_a_message_says_since_when_what_to_do_and_the_command() -> None:
    assert body(alarm("host web1", "web1: the backup failed: no answer"))[:3] == [
        "Failed:",
        "- web1: the backup failed: no answer (since 2026-11-20T22:00:00Z; backupd log web1)",
        "  What to do: Check the log of its last run. Fix the cause, then run it again.",
    ]


def test_hosts_with_the_same_advice_have_it_once_and_their_commands_each() -> None:
    lines = body(
        *(alarm(f"host web{number}", f"web{number}: failed: reason {number}") for number in range(5)),
        alarm("expiry", "expiry failed: full"),
    )
    assert sum(line.startswith("  What to do: ") for line in lines) == 2
    assert sum("backupd log web" in line for line in lines) == 5
    assert any(line.endswith("; backupd expire --dry-run)") for line in lines)


def test_commands_name_the_pool() -> None:
    assert "backupd --pool archive log web1" in body(alarm("host web1", "web1: failed"), pool="archive")[1]
    assert "btrfs-balancer plan --pool archive" in body(alarm("balance", "balance failed: x"), pool="archive")[1]
    assert command_for("journalctl -u x", "archive") == "journalctl -u x"


def test_commands_name_a_configuration_that_is_elsewhere() -> None:
    call = "backupd --config '/srv/my pool.toml'"
    rows = [alarm("host web1", "web1: failed"), *[alarm(f"host web{number}", f"failed: {number}") for number in range(30)]]
    text = alarm_messages.changes_message("archive", "machine", rows, [], call).body
    assert f"{call} log web1)" in text
    assert f"more: {call} status" in text
    assert (
        f"; {call} status)"
        in alarm_messages.changes_message("archive", "machine", [alarm(f"host web{n}", "failed") for n in range(9)], [], call).body
    )
    assert "--pool" not in text
    assert advice(alarm("balance", "x"), "archive", call).command == "btrfs-balancer plan --config '/srv/my pool.toml'"
    assert command_for("journalctl -u x", "archive", call) == "journalctl -u x"


def test_the_name_of_our_unit_can_be_copied_and_no_other_text_is_left_as_it_is() -> None:
    unit = "btrkeep-backup@main.service"
    message = alarm_messages.changes_message("main", "machine", [alarm(f"unit {unit}", f"{unit} failed: exit-code")], [])
    assert message.title == f"btrkeep main: {unit} failed: exit-code"
    assert f"- {unit} failed: exit-code (since 2026-11-20T22:00:00Z; journalctl -u {unit} -n 50)" in message.body
    message = alarm_messages.unit_message("main", "machine", unit, "exit-code", ["mail @here"], SINCE)
    assert message.body.splitlines()[0] == f"{unit} failed: exit-code."
    assert f"    journalctl -u {unit} -n 50\n    systemctl start {unit}" in message.body
    assert "mail (at)here" in message.body
    for name in ("x@everyone.service", "btrkeep-x@a b.service", "btrkeep-x@<!here>.service"):
        assert name not in alarm_messages.changes_message("main", "machine", [alarm(f"unit {name}", f"{name} failed: x")], []).body
        assert name not in alarm_messages.unit_message("main", "machine", name, "x", [], SINCE).body


@pytest.mark.parametrize(
    ("name", "subject", "command"),
    [
        ("silent", "offsite cloud", "backupd offsite init cloud"),
        ("failure", "offsite cloud", "backupd offsite run cloud --dry-run"),
        ("devices", "damaged web1", "backupd list web1"),
        ("devices", "device 2", "backupd doctor"),
        ("failure", "unit a b", "journalctl -u UNIT -n 50"),
        ("new", "thing", ELSE.command),
    ],
)
def test_each_alarm_has_its_advice(name: str, subject: str, command: str) -> None:
    assert advice(alarm(subject, "x", name)).command == command


def test_each_entry_of_the_table_is_reached() -> None:
    is_named = {kind: AlarmSubject.of(f"{kind} name").kind == kind for _, kind in TABLE}
    subjects = {kind: f"{kind} name" if named else kind or "x" for kind, named in is_named.items()}
    kinds = {(name, kind): alarm(subjects[kind], "x", name or "failure") for name, kind in TABLE}
    assert {advice(row).words for row in kinds.values()} == {entry.words for entry in TABLE.values()}


def test_an_advice_has_the_fields_of_the_api_and_no_other() -> None:
    """The API and its document have each field. The manual's examples do not count."""
    assert [field.name for field in fields(advice(alarm("host web1", "x")))] == ["words", "command", "page"]
