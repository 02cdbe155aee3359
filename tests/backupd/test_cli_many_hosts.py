"""Patterns and lists of hosts, and errors of many hosts in one line."""

import json
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backupd.alarms.alarm_messages import changes_message
from backupd.cli.names import expand_hosts
from backupd.doctor.cli.check import merged
from backupd.health.cli.status_view import show_all
from backupd.hosts.assigning import ListedHost, read_host_list
from backupd.run.cli.night_view import NightLines
from backupd.run.run_context import HostResult, NightEnded, NightStarted, RunningTransfer
from btrkeep.catalogue import StoredAlarm
from btrkeep.config.problems import Problems, dotted
from btrkeep.decisions.cause_words import without_host
from btrkeep.decisions.host_state import HostStatus
from btrkeep.errors import UsageError
from tests.beds import backupd
from tests.beds.nights import Nights

HOSTS = ["web1", "web2", "db1"]


def test_a_pattern_is_the_hosts_that_match_and_a_name_stays() -> None:
    assert expand_hosts(["web*"], HOSTS) == ["web1", "web2"]
    assert expand_hosts(["db1", "*"], HOSTS) == ["db1", "web1", "web2"]
    assert expand_hosts(["none", "web1"], HOSTS) == ["none", "web1"]
    assert expand_hosts([], HOSTS) == []
    with pytest.raises(UsageError, match=r"no host matches mail\*"):
        expand_hosts(["web1", "mail*"], HOSTS)


def test_a_list_of_hosts_is_read_line_by_line() -> None:
    text = "# the shop\nweb1 address=root@web1 'paths=/etc /srv'  # in the cellar\n\nweb2 group=debian\n"
    assert read_host_list(text, "list", {}) == {
        "web1": ListedHost(2, {"address": "root@web1", "paths": ["/etc", "/srv"]}),
        "web2": ListedHost(4, {"group": "debian"}),
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("web1\nweb1", "list:2: web1 is named twice"),
        ("web1 'paths", "list:1: No closing quotation"),
        ("\nport=22", "list:2: 'port=22' is not a host's name"),
        ("web1 colour=red", "list:1: 'colour' is not a key of a host"),
        ("# nothing", "list has no host"),
        ("db1 port=22", "list:1: the host db1 is in main.toml already"),
        ("ok\nw/1\nok2\nweb1 colour=red", 'list:2: "w/1" cannot be'),
    ],
)
def test_a_list_that_is_wrong_names_the_line(text: str, error: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_host_list(text, "list", {"db1": Path("main.toml")})
    assert raised.value.message.startswith(error)


def test_a_problem_of_three_hosts_is_one_line() -> None:
    problems = Problems()
    names = [f"web{number}" for number in range(200)]
    for name in names:
        problems.add(Path(f"/etc/{name}.toml"), f'{dotted("host", name, "group")} = "debian"', "there is no such group")
    problems.add(Path("/etc/main.toml"), "pool.zone", "no zone")
    for name in names[:2]:
        problems.add(Path(f"/etc/{name}.toml"), dotted("host", name, "port"), "no port")
    assert problems.merged() == [
        '200 hosts: host.*.group = "debian": there is no such group (web0, web1, web2 and 197 more; the first in /etc/web0.toml)',
        "/etc/main.toml: pool.zone: no zone",
        "/etc/web0.toml: host.web0.port: no port",
        "/etc/web1.toml: host.web1.port: no port",
    ]
    assert len(problems.lines) == 203


def test_a_finding_of_three_subjects_is_one_line() -> None:
    lines = [("a", "x"), ("b", "y"), ("c", "x"), ("d", "x"), ("e", "y"), ("f", "x")]
    assert merged(lines) == [("a, c, d and 1 more", "x"), ("b", "y"), ("e", "y")]


@pytest.fixture
def main(tmp_path: Path) -> Path:
    path = tmp_path / "main.toml"
    path.write_text(
        '[pool]\npath = "/nowhere/pool"\n[group.debian]\npaths = ["/etc"]\n[host.db1]\npaths = ["/srv"]\naddress = "root@db1"\n'
    )
    return path


def test_hosts_of_a_list_are_added_all_or_none_and_changed_by_a_pattern(main: Path, tmp_path: Path) -> None:
    listed = tmp_path / "hosts.txt"
    listed.write_text("web1 address=root@web1\nweb2 address=root@web2 port=2222\n")
    done = backupd("--config", main, "host", "add", "--from", listed, "--group", "debian", "--json")
    assert [row["host"] for row in json.loads(done.stdout)] == ["web1", "web2"]
    rows = {row["host"]: row for row in json.loads(backupd("--config", main, "host", "list", "--json").stdout)}
    assert (rows["web2"]["port"], rows["web2"]["group"], rows["web1"]["address"]) == (2222, "debian", "root@web1")
    listed.write_text("web3 address=root@web3\nweb1 address=root@web1\n")
    assert backupd("--config", main, "host", "add", "--from", listed, check=False).returncode == 2
    assert not (main.with_suffix(".d") / "web3.toml").exists()
    before = main.read_text()
    changed = json.loads(backupd("--config", main, "host", "set", "web*", "every=2d", "--json").stdout)
    assert [(row["host"], row["written"]) for row in changed] == [("web1", True), ("web2", True)]
    assert main.read_text() == before
    tried = json.loads(backupd("--config", main, "host", "test", "web*", "--json", check=False).stdout)
    assert {"web1", "web2"} <= {row["subject"] for row in tried if row["level"] == "error"}
    text = backupd("--config", main, "host", "set", "web1", "db1", "every=2d").stdout
    assert text == 'db1: every: not set -> "2d"\n1 host changed; 1 host already had these values\n'
    wrong = backupd("--config", main, "host", "set", "*", "group=none", check=False)
    assert wrong.returncode == 2
    assert '3 hosts: host.*.group = "none": there is no such group' in wrong.stderr
    assert len(wrong.stderr.splitlines()) == 2


@pytest.mark.slow
def test_two_hundred_hosts_in_files_of_their_own(tmp_path: Path) -> None:
    """Their list is added, changed, removed by a pattern or by names, and completed; all its mistakes are listed at once."""
    main, listed = tmp_path / "main.toml", tmp_path / "hosts.txt"
    main.write_text('[pool]\npath = "/nowhere/pool"\n[group.dmz]\npaths = ["/etc"]\n')
    names = [f"web{number:03}" for number in range(200)]

    def host(*words: str | Path, status: int = 0) -> "subprocess.CompletedProcess[str]":
        done = backupd("--config", main, "host", *words, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def add(lines: list[str], status: int = 0) -> list[str]:
        listed.write_text("".join(f"{line}\n" for line in lines))
        return host("add", "--from", listed, "--group", "dmz", status=status).stderr.splitlines()

    for bad, reasons in (
        (("a b=", "b port"), ("'b' is not a key of a host", "'port' is not a KEY=VALUE")),
        (
            ("a port=99999", "b group=none"),
            ("host.a.port = 99999: expected a port", 'host.b.group = "none": there is no such group'),
        ),
    ):
        *errors, hint = add([*names[:3], bad[0], *names[3:], bad[1]], status=2)
        for number, reason, error in zip((4, 202), reasons, errors, strict=True):
            assert error.startswith(f"error: {listed}:{number}: {reason}"), error
        assert hint.startswith("hint: ")
        assert not main.with_suffix(".d").exists() or not list(main.with_suffix(".d").iterdir())
    assert add(names) == []
    changed = json.loads(host("set", "web*", "every=2d", "--json").stdout)
    assert [row["host"] for row in changed if row["written"]] == names
    removed = json.loads(host("remove", "web00*", "web199", "--json").stdout)
    assert [row["host"] for row in removed] == [*names[:10], "web199"]
    assert all(row["file_removed"] for row in removed)
    assert "no host matches db*" in host("remove", "web01*", "db*", status=2).stderr
    assert "no host web199 is configured" in host("remove", "web010", "web199", status=2).stderr
    left = names[10:199]
    assert [row["host"] for row in json.loads(host("list", "--json").stdout)] == left
    words = {"_BACKUPD_COMPLETE": "bash_complete", "COMP_WORDS": f"backupd --config {main} host set web1", "COMP_CWORD": "5"}
    completed = backupd(env=words).stdout.split()
    assert completed == [f"plain,{name}" for name in left if name.startswith("web1")]
    for name in left:
        file = main.with_suffix(".d") / f"{name}.toml"
        file.write_text(file.read_text().replace('"dmz"', '"gone"'))
    errors = host("list", status=1).stderr.splitlines()
    assert len(errors) <= 2, errors
    assert 'host.*.group = "gone": there is no such group (189 hosts: web010, ' in " ".join(errors)


def test_a_name_of_a_command_is_completed_without_loading_the_command() -> None:
    words = {"_BACKUPD_COMPLETE": "bash_complete", "COMP_WORDS": "backupd ho", "COMP_CWORD": "1", "PYTHONPROFILEIMPORTTIME": "1"}
    done = backupd(env=words)
    assert done.stdout.split() == ["plain,host", "plain,hold"]
    assert "backupd.cli" in done.stderr
    assert "backupd.hosts.cli.host" not in done.stderr
    assert "plain,--pool" in backupd(env=words | {"COMP_WORDS": "backupd --"}).stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["host set", "host remove", "status"])
def test_a_name_of_a_host_is_completed_without_loading_what_tests_hosts(main: Path, command: str) -> None:
    typed = f"backupd --config {main} {command} d"
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    done = backupd(env={"_BACKUPD_COMPLETE": "bash_complete", "PYTHONPROFILEIMPORTTIME": "1", **words})
    assert done.stdout.split() == ["plain,db1"]
    for module in ("tomlkit", "asyncio", "backupd.doctor.checks"):
        assert not re.search(rf"\b{re.escape(module)}\n", done.stderr), module


@pytest.mark.btrfs
def test_status_and_run_take_patterns_states_and_groups(nights: Nights) -> None:
    nights.tables["group"] = {"dmz": {}}
    for name in HOSTS:
        nights.host(name, nights.source / name, **({"group": "dmz"} if name == "web1" else {}))
        (nights.source / name).mkdir(parents=True, exist_ok=True)
    nights.night("web2")

    def shown(*words: str) -> list[str]:
        return [host["host"] for host in json.loads(nights.backupd("status", "--json", *words).stdout)["hosts"]]

    assert sorted(shown("web*")) == ["web1", "web2"]
    assert shown("--group", "dmz") == ["web1"]
    assert sorted(shown("--state", "never")) == ["db1", "web1"]
    assert shown("--state", "never", "--state", "ok", "web*", "--group", "dmz") == ["web1"]
    assert sorted(shown("db1", "web2")) == ["db1", "web2"]
    assert "1 host: 1 ok" in nights.backupd("status", "web2", "--state", "ok").stdout
    nights.host("web2", nights.source / "gone", group="dmz")
    nights.backupd("run", "web2", check=False)
    assert shown("--state", "failing", "--group", "dmz") == ["web2"]
    nights.host("web2", nights.source / "web2")
    wrong = nights.backupd("status", "--group", "none", check=False)
    assert wrong.returncode == 2
    assert "there is no group none" in wrong.stderr
    assert nights.backupd("status", "mail*", check=False).returncode == 2
    assert nights.backupd("verify", "mail*", check=False).returncode == 2
    assert nights.backupd("verify", "web*").returncode == 0
    planned = json.loads(nights.backupd("run", "--dry-run", "--json", "web*").stdout)
    assert [row["host"] for row in planned] == ["web1", "web2"]


def failing(host: str, error: str, **more: Any) -> HostStatus:
    return HostStatus(host, "failing", None, None, None, error, **more)


def test_hosts_that_fail_for_the_same_reason_are_one_line_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime(2026, 11, 29, tzinfo=UTC)
    excluded = [
        failing(f"h{number}", f"not backed up: /etc/btrkeep/main.d/h{number}.toml:3: no such group") for number in range(200)
    ]
    others = [
        failing("db1", "h7 has another error"),
        failing("db2", "db2: it does not answer"),
        failing("db3", "db3: it does not answer"),
    ]
    show_all([*excluded, *others], [], now, has_copies=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 1 + len(others) + 2, "headers, one for all of them, the others, how to list them, the sum"
    [line] = [line for line in lines if line.startswith("200 hosts")]
    assert line.endswith("no such group; these hosts: h0, h1, h2, h3, h4 and 195 more")
    assert lines[-2] == "`backupd status --state failing` lists each of these hosts"
    assert lines[-1] == "203 hosts: 203 failing"
    show_all([*excluded, *others], [], now, has_copies=False, each=True)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 203 + 1


def test_hosts_with_the_same_error_and_warnings_are_one_line_and_one_named_like_a_part_of_it_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    alike = [failing(f"h{number}", "no source", warnings=["/srv: 1 unreadable", f"h{number} is slow"]) for number in range(60)]
    show_all([*alike, failing("a", "bad"), failing("u", "bud")], [], datetime.now(UTC), has_copies=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-2]] == ["60", "a", "u"]
    assert without_host("u: no bud, u", "u") == "*: no bud, *"
    assert without_host("web1.example.org and web1-old, not web1.", "web1") == "web1.example.org and web1-old, not *."


def run_lines(results: list[HostResult], capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = NightLines()
    lines(NightStarted(tuple(result.host for result in results)))
    for number, result in enumerate(results):
        lines(RunningTransfer(result.host, number))
        lines(result)
    lines(NightEnded())
    return capsys.readouterr().out.splitlines()


def test_a_run_in_which_sixty_hosts_fail_for_the_same_reason_has_one_line_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    failed = [HostResult(f"h{number}", "failed", f"h{number}: no route") for number in range(60)]
    lines = run_lines(
        [*failed, HostResult("db1", "complete"), HostResult("db2", "failed", "full"), HostResult("db3", "complete")], capsys
    )
    assert len(lines) < 20
    [together] = [line for line in lines if line.startswith("60 hosts")]
    assert together.startswith("60 hosts: failed; h0: no route (h0, h1, h2, h3, h4 and 55 more)")
    assert any(line.startswith("[62/63] db2: failed; full") for line in lines)
    assert "db3: started" in lines
    assert lines[-1].startswith("2 complete, 61 failed")


def test_a_message_about_sixty_hosts_with_the_same_reason_has_one_line_for_them() -> None:
    since = datetime(2026, 11, 29, tzinfo=UTC)

    def alarm(host: str, text: str, minute: int) -> StoredAlarm:
        return StoredAlarm("failure", f"host {host}", text, 0, since.replace(minute=minute), 1, None, None, None)

    alarms = [alarm(f"h{number}", f"h{number}: no route", 59 - number) for number in range(60)]
    body = changes_message("main", "vm", [*alarms, alarm("db1", "db1: full", 7)], []).body.splitlines()
    assert body[1] == "- 60 hosts: no route (h0, h1, h2, h3, h4 and 55 more) (since 2026-11-29T00:00:00Z; backupd status)"
    assert body[2].startswith("- db1: full (since 2026-11-29T00:07:00Z; ")
    assert len(body) == 6


def test_a_warning_of_a_host_or_another_error_keeps_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    alike = [failing(f"h{number}", f"h{number}: it does not answer") for number in range(4)]
    show_all(
        [*alike, failing("h9", "h9: it does not answer", warnings=["a clock is wrong"])], [], datetime.now(UTC), has_copies=False
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-2]] == ["4", "h9"]
