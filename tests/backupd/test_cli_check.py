"""`backupd check`: each finding is provoked, and has the right hint and exit status."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.beds import ssh, work
from tests.beds.btrfs import remount
from tests.beds.nights import Nights


@pytest.fixture
def healthy(nights: Nights) -> Nights:
    """A site without a problem: one host, which is this machine."""
    nights.settings("ssh", command="ssh")
    nights.host("here", nights.source, address=None)
    return nights


def findings(nights: Nights, *words: str, status: int, env: dict[str, str] | None = None) -> list[dict[str, Any]]:
    done = nights.backupd("check", "--json", *words, check=False, env=env)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return list(json.loads(done.stdout))


def bad(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(finding["level"], finding["subject"]) for finding in rows if finding["level"] in ("warning", "error")]


def the(rows: list[dict[str, Any]], subject: str, level: str) -> dict[str, Any]:
    (finding,) = [finding for finding in rows if (finding["subject"], finding["level"]) == (subject, level)]
    return finding


def test_a_healthy_site_has_nothing_to_do(healthy: Nights) -> None:
    actual_findings = findings(healthy, status=0)
    assert bad(actual_findings) == []
    assert {"configuration", "rsync", "pool", "room", "catalogue"} <= {finding["subject"] for finding in actual_findings}
    assert all(set(finding) == {"level", "subject", "message", "hint"} for finding in actual_findings)
    version = work("rsync", "--version").stdout.split()[2]
    assert the(actual_findings, "rsync", "ok")["message"] == version
    assert "error" not in healthy.backupd("check").stdout


@pytest.mark.parametrize(
    ("version", "level", "words"),
    [
        ("3.4.2", "warning", "older than 3.4.3"),
        ("3.4.3", "ok", "3.4.3"),
        ("3.2.7", "warning", "older than 3.4.3"),
        ("3.1.2", "error", "cannot compare nanoseconds"),
        ("3.10.0", "ok", "3.10.0"),
        ("4.0.0pre1", "ok", "4.0.0pre1"),
    ],
)
def test_the_version_of_rsync_is_judged(healthy: Nights, version: str, level: str, words: str) -> None:
    dumps = json.dumps({"program": "rsync", "version": version, "protocol": "31.0"})
    env = dict(healthy.rsync(f"case $1 in -VV) echo '{dumps}';; *) exec $REAL \"$@\";; esac"))
    actual_findings = findings(healthy, status=0 if level == "ok" else 1, env=env)
    assert words in the(actual_findings, "rsync", level)["message"]


def test_an_rsync_that_speaks_no_json_is_understood(healthy: Nights) -> None:
    env = dict(healthy.rsync('[ "$1" = --version ] || exit 1; echo "rsync  version 3.1.3  protocol version 31"'))
    assert "3.1.3 is older" in the(findings(healthy, status=1, env=env), "rsync", "warning")["message"]


def test_a_missing_rsync_is_an_error(healthy: Nights, tmp_path: Path) -> None:
    actual_findings = findings(healthy, status=1, env={"PATH": str(tmp_path)})
    assert the(actual_findings, "rsync", "error")["hint"] == "`apt install rsync`"


@pytest.mark.root
def test_a_file_that_a_group_may_write_is_noted(healthy: Nights) -> None:
    healthy.config.chmod(0o660)
    assert not [finding for finding in findings(healthy, status=0) if "by its group" in finding["message"]]  # root's
    os.chown(healthy.config, 0, 12345)
    healthy.config.chmod(0o660)
    (answer,) = [finding for finding in findings(healthy, status=0) if "group, 12345" in finding["message"]]
    assert (answer["level"], answer["hint"]) == ("note", f"`chmod g-w {healthy.config}`")


def test_no_host_is_a_warning(nights: Nights) -> None:
    assert bad(findings(nights, status=1)) == [("warning", "configuration")]


@pytest.mark.parametrize("state", ["missing", "open", "good"])
def test_key_and_known_hosts_are_looked_at_where_a_host_needs_them(healthy: Nights, state: str) -> None:
    key, path = healthy.top / "key", healthy.top / "known_hosts"
    healthy.settings("ssh", key=str(key), known_hosts=str(path))
    if state != "missing":
        work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        path.write_text(f"web1 {key.with_suffix('.pub').read_text()}")  # any host's key
        key.chmod(0o644 if state == "open" else 0o600)
    assert bad(findings(healthy, status=0)) == []
    healthy.host("web1", "/etc")
    lines = bad(findings(healthy, status=0 if state == "good" else 1))
    assert lines == {"missing": [("error", "ssh key"), ("error", "known_hosts")], "open": [("error", "ssh key")], "good": []}[state]


def test_the_hint_for_a_missing_key_makes_one(healthy: Nights) -> None:
    healthy.settings("ssh", key=str(healthy.top / "key"), known_hosts=str(healthy.top / "known"))
    healthy.host("web1", "/etc")
    hint = the(findings(healthy, status=1), "ssh key", "error")["hint"]
    work("sh", "-c", hint.strip("`"))
    assert ("error", "ssh key") not in bad(findings(healthy, status=1))


def test_a_check_that_could_not_be_made_is_counted_and_changes_the_exit_status(healthy: Nights) -> None:
    (healthy.top / "file").write_text("")
    known_hosts = healthy.top / "known_hosts"
    known_hosts.write_text("web1 ssh-ed25519 AAAA\n")
    healthy.settings("ssh", key=str(healthy.top / "file" / "key"), known_hosts=str(known_hosts))  # a path below a file
    healthy.host("web1", "/etc")
    actual_findings = findings(healthy, status=1)
    assert bad(actual_findings) == []
    assert the(actual_findings, "ssh key", "unknown")["hint"].startswith("run this as root")
    text = healthy.backupd("check", check=False).stdout
    assert "1 check could not be made" in text
    assert "ssh key: run this as root" in text


def test_a_missing_ssh_is_an_error_when_a_host_needs_it(healthy: Nights) -> None:
    healthy.settings("ssh", command=str(healthy.top / "no-such-ssh"))
    assert bad(findings(healthy, status=0)) == []
    healthy.host("web1", "/etc")
    assert ("error", str(healthy.top / "no-such-ssh")) in bad(findings(healthy, status=1))


def test_a_hook_that_cannot_be_run_is_an_error(healthy: Nights) -> None:
    script = healthy.top / "hook"
    script.write_text("#!/bin/sh\n")
    for mode, wrong in ((0o755, []), (0o644, [("error", "here")])):
        script.chmod(mode)
        healthy.host("here", healthy.source, address=None, before=[str(script)], after=["true"])
        assert bad(findings(healthy, status=len(wrong))) == wrong
    healthy.host("here", healthy.source, address=None, after=["no-such-program"])
    assert "after: no-such-program" in the(findings(healthy, status=1), "here", "error")["message"]
    script.chmod(0o755)
    script.write_text("#!/no/such/shell\n")
    for program in (script, healthy.source):  # a folder may be entered, which is no execution
        healthy.host("here", healthy.source, address=None, before=[str(program)])
        assert f"{program} cannot be run" in the(findings(healthy, status=1), "here", "error")["message"]


def test_a_local_path_that_is_missing_is_an_error_and_a_file_is_none(healthy: Nights) -> None:
    (healthy.source / "file").write_text("x")
    healthy.host("here", healthy.source / "missing", healthy.source / "file", address=None)
    assert bad(findings(healthy, status=1)) == [("error", "here")]


def test_a_path_that_before_may_make_is_no_error(healthy: Nights) -> None:
    healthy.host("here", healthy.source / "snap", address=None, before=["mkdir", str(healthy.source / "snap")])
    assert the(findings(healthy, status=0), "here", "note")["hint"] == "`backupd run here` tries it"
    assert healthy.run("here")["here"]["outcome"] == "complete"


def test_connect_judges_a_source_path_as_a_run_does(nights: Nights) -> None:
    file, made = nights.source / "file", nights.source / "snap"
    file.write_text("x")
    nights.host("file", file)
    nights.host("made", made, before=["mkdir", "-p", str(made)], after=["rm", "-r", str(made)])
    nights.host("gone", nights.source / "gone")
    rows = [finding for finding in findings(nights, "--connect", status=1) if finding["subject"] in ("file", "made", "gone")]
    assert {row["subject"]: row["level"] for row in rows} == {"file": "ok", "made": "note", "gone": "error"}
    outcomes = {host: result["outcome"] for host, result in nights.run(status=1).items()}
    assert outcomes == {"file": "complete", "made": "complete", "gone": "failed"}


@pytest.mark.parametrize(("hosts", "concurrency", "noted"), [(12, 12, True), (12, 4, False), (10, 12, False)])
def test_more_connections_than_an_sshd_accepts_are_noted(healthy: Nights, hosts: int, concurrency: int, noted: bool) -> None:
    healthy.settings("backup", concurrency=concurrency)
    for number in range(hosts):
        healthy.host(f"vm{number}", "/etc", address="root@gate.example", port=2222)
    done = healthy.backupd("check", "--json", check=False).stdout
    assert ("gate.example:2222: a run can open 12 connections" in done) is noted


def test_a_pool_that_others_can_enter_is_an_error_and_the_hint_mends_it(healthy: Nights) -> None:
    healthy.pool.chmod(0o755)
    finding = the(findings(healthy, status=1), "pool", "error")
    assert "0755" in finding["message"]
    work("sh", "-c", finding["hint"].strip("`"))
    assert bad(findings(healthy, status=0)) == []


def test_too_little_room_makes_a_pool_unusable(healthy: Nights) -> None:
    healthy.settings("pool", min_free="100%")
    finding = the(findings(healthy, status=4), "room", "error")
    assert "min_free = 100%" in finding["message"]
    assert "unallocated" in finding["message"]


@pytest.mark.parametrize("policy", [{}, {"daily": 7}])
def test_what_is_advised_for_a_full_pool_works_in_that_state(healthy: Nights, policy: dict[str, int]) -> None:
    healthy.settings("pool", min_free="100%")
    healthy.tables |= {"notify": {"used_limit": "1%"}, **({"retention": policy} if policy else {})}
    healthy.write()
    shown = healthy.backupd("check", check=False).stdout
    assert ("`backupd expire` deletes" in shown, "no host has a retention policy" in shown) == (bool(policy), not policy)
    assert "forecast" not in shown  # there is too little history
    assert "`backupd usage` shows" in shown
    hints = shown.partition("What to do:")[2].splitlines()
    assert len(hints) == len(set(hints))
    refused = healthy.backupd("run", "here", check=False)
    assert refused.returncode == 4
    assert ("`backupd expire`" in refused.stderr) == bool(policy)


def test_mount_options_are_judged(make_btrfs: Any) -> None:
    mount = make_btrfs(size="512M", options="noatime")
    nights = Nights(mount)
    nights.settings("pool", state=str(mount.parent / "state"))
    nights.host("here", nights.source, address=None)
    assert not [finding for finding in findings(nights, status=0) if finding["subject"] == "mount"]
    remount(mount, "nodatacow")
    assert "nodatacow" in the(findings(nights, status=1), "mount", "warning")["message"]
    remount(mount, "datacow,datasum,strictatime")
    assert the(findings(nights, status=0), "mount", "note")["message"] == "access times are kept"
    remount(mount, "ro")
    assert "read-only" in the(findings(nights, status=4), "mount", "error")["message"]
    remount(mount, "rw")


def test_what_a_pattern_leaves_out_is_said_as_a_note(healthy: Nights) -> None:
    healthy.host("here", healthy.top, address=None)
    notes = [finding["message"] for finding in findings(healthy, status=0) if finding["level"] == "note"]
    assert any(str(healthy.pool) in note for note in notes), notes


# --- with --connect


@pytest.fixture
def reached(nights: Nights, sshd: ssh.Sshd) -> Nights:
    """A site whose ssh connects to a real server, with a key that may only read."""
    key = sshd.authorize('restrict,command="rrsync -ro /"')
    nights.settings("ssh", command="ssh -F none", key=str(key), known_hosts=str(sshd.known_hosts))
    nights.host("good", nights.source, address=sshd.address, port=sshd.port)
    return nights


def test_a_host_that_can_be_reached_is_ok_and_nothing_is_copied(reached: Nights) -> None:
    (reached.source / "file").write_text("x")
    actual_findings = findings(reached, "--connect", status=0)
    assert the(actual_findings, "good", "ok")["message"] == "reached, 1 path can be listed"
    assert not (reached.pool / "hosts" / "good").exists()


@pytest.mark.parametrize(
    ("ending", "level", "status"), [("exit 255", "unknown", 1), ("exit 1", "note", 0)], ids=["no connection", "not permitted"]
)
def test_what_a_host_answers_only_now_and_then_is_unknown_and_what_it_never_answers_a_note(
    reached: Nights, sshd: ssh.Sshd, ending: str, level: str, status: int
) -> None:
    forced = reached.top / "forced"
    forced.write_text(f'#!/bin/sh\ncase "$SSH_ORIGINAL_COMMAND" in cat*) {ending};; esac\neval "exec $SSH_ORIGINAL_COMMAND"\n')
    forced.chmod(0o755)
    reached.settings("ssh", key=str(sshd.authorize(f'restrict,command="{forced}"')))
    message = the(findings(reached, "--connect", status=status), "good", level)["message"]
    assert message.startswith("it is unknown whether files are backed up twice")


def test_a_key_that_is_not_accepted_is_an_error(reached: Nights) -> None:
    key = reached.top / "other"
    work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    reached.settings("ssh", key=str(key))
    finding = the(findings(reached, "--connect", status=1), "good", "error")
    assert "does not accept the key" in finding["message"]
    assert "authorized_keys" in finding["hint"]


def test_an_unknown_host_key_is_an_error_and_is_not_learnt(reached: Nights) -> None:
    path = reached.top / "known_hosts"
    path.write_text("")
    reached.settings("ssh", known_hosts=str(path))
    finding = the(findings(reached, "--connect", status=1), "good", "error")
    assert "host key is unknown or changed" in finding["message"]
    assert path.read_text() == ""


def test_a_changed_host_key_is_an_error(reached: Nights, sshd: ssh.Sshd) -> None:
    other = reached.top / "other"
    work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other)
    path = reached.top / "known_hosts"
    path.write_text(f"[127.0.0.1]:{sshd.port} {Path(f'{other}.pub').read_text()}")
    reached.settings("ssh", known_hosts=str(path))
    message = the(findings(reached, "--connect", status=1), "good", "error")["message"]
    assert "unknown or changed: WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!" in message


def test_a_port_without_a_listener_is_an_error_or_for_an_optional_host_a_warning(reached: Nights, sshd: ssh.Sshd) -> None:
    reached.host("gone", reached.source, address=sshd.address, port=1)
    reached.host("laptop", reached.source, address=sshd.address, port=1, optional=True)
    reached.host("off", reached.source, address=sshd.address, port=1, enabled=False)
    actual_findings = findings(reached, "--connect", status=1)
    assert "refuses the connection" in the(actual_findings, "gone", "error")["message"]
    assert "refuses the connection" in the(actual_findings, "laptop", "warning")["message"]
    assert the(actual_findings, "good", "ok")
    assert "off" not in {finding["subject"] for finding in actual_findings}


def test_a_missing_path_is_an_error_that_names_it(reached: Nights, sshd: ssh.Sshd) -> None:
    reached.host("half", reached.source, reached.source.parent / "missing", address=sshd.address, port=sshd.port)
    finding = the(findings(reached, "--connect", status=1), "half", "error")
    assert finding["message"].startswith(f"{reached.source.parent}/missing: ")
    assert "check that the path exists" in finding["hint"]


def test_a_host_without_rsync_is_an_error(nights: Nights, sshd: ssh.Sshd) -> None:
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("bare", nights.source, address=sshd.address, port=sshd.port, rsync_path="no-such-rsync")
    finding = the(findings(nights, "--connect", status=1), "bare", "error")
    assert "rsync was not found" in finding["message"]


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("openrsync: protocol version 29\nrsync version 2.6.9 compatible", "openrsync"),  # macOS 15
        ("rsync  version 2.6.9  protocol version 29\nCopyright (C) 1996-2006", "version 2.6.9"),  # macOS before
    ],
)
def test_a_host_with_the_rsync_of_macos_is_named_before_the_first_run(
    nights: Nights, sshd: ssh.Sshd, version: str, name: str
) -> None:
    """Both stand-ins answer `--version` and refuse btrkeep's options, like the real programs."""
    program = sshd.folder / "mac" / "rsync"
    program.parent.mkdir(exist_ok=True)
    refuses = "printf '\\t[--whole-file, -W]\\n\\tsource ... directory\\n' >&2; exit 1"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = --version ] && exec echo '{version}'\n{refuses}\n")
    program.chmod(0o755)
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("mac", nights.source, address=sshd.address, port=sshd.port, rsync_path=str(program))
    finding = the(findings(nights, "--connect", status=1), "mac", "error")
    assert finding["message"] == f"the host's rsync is {name}, which lacks options that a backup needs"
    assert "install rsync 3 on the host, and set rsync_path" in finding["hint"]
    nights.host("mac", nights.source, address=sshd.address, port=sshd.port)
    assert the(findings(nights, "--connect", status=0), "mac", "ok")


def test_a_host_with_rrsync_and_without_its_interpreter_hears_what_is_missing(nights: Nights, sshd: ssh.Sshd) -> None:
    """As on a Debian with rsync and without python3, which rsync only suggests: the missing program is not rsync."""
    rrsync = sshd.folder / "rrsync"
    rrsync.write_text("#!/usr/bin/no-such-python3\n")
    rrsync.chmod(0o755)
    key = sshd.authorize(f'restrict,command="{rrsync} -ro /"')
    nights.settings("ssh", command="ssh -F none", key=str(key), known_hosts=str(sshd.known_hosts))
    nights.host("bare", nights.source, address=sshd.address, port=sshd.port)
    finding = the(findings(nights, "--connect", status=1), "bare", "error")
    assert "rrsync" in finding["message"]
    assert "python3" in finding["hint"]


def test_a_name_that_does_not_resolve_is_an_error(healthy: Nights) -> None:
    healthy.host("nowhere", "/etc", address="root@host.invalid")
    finding = the(findings(healthy, "--connect", status=1), "nowhere", "error")
    assert finding["message"].startswith("the host's name does not resolve")
