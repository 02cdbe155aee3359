"""`before` and `after`, and hosts that may be absent: how the administrator's own programs affect a night."""

import os
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.nights import Nights


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "file").write_text("content")
    return tree


def hook(nights: Nights, name: str, script: str) -> str:
    path = nights.top / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_hook_gets_the_host_and_its_address_and_runs_before_the_transfer(nights: Nights, tree: Path) -> None:
    path = nights.top / "said"
    before = hook(nights, "before", f'echo "$@" >> {path}; env >> {path}; echo dumped > {tree}/dump')
    nights.host("web", tree, address="root@web1.example.org", before=[before, "{address}", "{host}", "x{host}y", "{other}", "a b"])
    nights.run("web")
    lines = path.read_text().splitlines()
    assert lines[0] == "root@web1.example.org web xweby {other} a b"
    assert "BTRKEEP_HOST=web" in lines
    assert "BTRKEEP_ADDRESS=root@web1.example.org" in lines
    assert f"BTRKEEP_POOL={nights.pool}" in lines
    assert (nights.data("web", tree) / "dump").read_text() == "dumped\n"


def test_the_hook_after_is_told_how_it_went_and_runs_after_a_transfer_that_failed_too(nights: Nights, tree: Path) -> None:
    path = nights.top / "said"
    after = hook(nights, "after", f'echo "$1 $BTRKEEP_STATE" >> {path}')
    nights.host("web", tree, after=[after, "{host}"])
    nights.run("web")
    nights.host("web", tree, nights.source / "missing", after=[after, "{host}"])
    nights.run("web", status=1)
    nights.ssh("sh -c 'exit 255' ssh")
    nights.run("web", status=1)
    assert path.read_text().splitlines()[:2] == ["web complete", "web failed"]
    assert len(path.read_text().splitlines()) == 3


def test_a_hook_that_ends_with_75_skips_the_host_and_that_is_no_failure(nights: Nights, tree: Path) -> None:
    path = nights.top / "said"
    before = hook(nights, "before", "echo the laptop sleeps >&2; exit 75")
    nights.host("web", tree, before=[before], after=[hook(nights, "after", f"touch {path}")])
    result = nights.run("web")["web"]
    assert result["outcome"] == "skipped"
    assert "the laptop sleeps" in result["error"]
    assert nights.json("log", "web")[0]["outcome"] == "skipped"
    assert not (nights.pool / "hosts" / "web").exists()
    assert not path.exists()


@pytest.mark.parametrize("script", ["echo the database is down; exit 1", "kill -9 $$", "exit 74"])
def test_a_hook_that_fails_fails_the_host_and_nothing_is_transferred(nights: Nights, tree: Path, script: str) -> None:
    other = nights.source / "other"
    other.mkdir()
    nights.host("web", tree, before=[hook(nights, "before", script)])
    nights.host("other", other)
    results = nights.run(status=1)
    assert {name: result["outcome"] for name, result in results.items()} == {"web": "failed", "other": "complete"}
    assert "before" in results["web"]["error"]
    assert not (nights.pool / "hosts" / "web").exists()
    assert nights.json("log", "web")[0]["exit_code"] is None


def test_a_hook_that_is_not_there_fails_the_host(nights: Nights, tree: Path) -> None:
    nights.host("web", tree, before=["/no/such/program"])
    assert "/no/such/program" in nights.run("web", status=1)["web"]["error"]


def test_a_hook_after_that_fails_fails_the_host_but_the_backup_stays_complete(nights: Nights, tree: Path) -> None:
    nights.host("web", tree, after=[hook(nights, "after", "exit 3")])
    result = nights.run("web", status=1)["web"]
    assert result["outcome"] == "failed"
    assert "after failed (exit status 3)" in result["error"]
    assert nights.record("web")["state"] == nights.listed("web")[0]["state"] == "complete"
    assert nights.differences("web", tree) == []


def test_what_a_hook_says_is_escaped(nights: Nights, tree: Path) -> None:
    nights.host("web", tree, before=[hook(nights, "before", "printf 'red \\033[31m\\377'; exit 1")])
    shown = nights.backupd("run", "web", check=False).stdout
    assert "\x1b" not in shown
    assert "red \\x1b[31m" in shown


def test_processes_that_a_hook_leaves_do_not_outlive_it(nights: Nights, tree: Path) -> None:
    pid = nights.top / "pid"
    nights.host("web", tree, before=[hook(nights, "before", f"sleep 300 & echo $! > {pid}")])
    nights.run("web")
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


@pytest.mark.parametrize("output", ["ssh: connect to host web port 22: No route to host", "ssh: Could not resolve hostname web"])
def test_the_absence_of_an_optional_host_is_no_failure(nights: Nights, tree: Path, output: str) -> None:
    nights.host("laptop", tree, optional=True)
    nights.host("server", tree)
    nights.run()
    absent = hook(nights, "absent", f"echo {output!r} >&2; exit 255")
    nights.ssh(absent)
    results = nights.run(status=1)
    assert {name: result["outcome"] for name, result in results.items()} == {"laptop": "skipped", "server": "failed"}
    assert nights.run("laptop")["laptop"]["attempts"] == 1  # no attempt waits for it
    assert nights.status("laptop")["state"] == "ok"
    assert nights.status("server")["state"] == "failing"
    assert len(nights.names("laptop")) == 1
    assert not os.path.lexists(nights.pool / "hosts" / "laptop" / ".working")


def test_an_optional_host_that_was_reached_and_then_failed_has_failed(nights: Nights, tree: Path) -> None:
    nights.host("laptop", tree, nights.source / "missing", optional=True)
    assert nights.run("laptop", status=1)["laptop"]["outcome"] == "failed"


def test_an_optional_host_whose_line_broke_is_partial(nights: Nights, tree: Path) -> None:
    (tree / "large").write_bytes(os.urandom(3_000_000))
    nights.host("laptop", tree, optional=True)
    nights.in_the_middle(1_000_000, end="dies")
    assert nights.run("laptop", status=1)["laptop"]["outcome"] == "partial"


def test_hooks_of_a_configuration_that_others_may_write_are_not_run(nights: Nights, tree: Path) -> None:
    ran = nights.top / "ran"
    nights.host("web", tree, before=[hook(nights, "before", f"touch {ran}")])
    folder = nights.config.parent / "open"
    folder.mkdir(mode=0o755)
    config = folder / nights.config.name
    config.write_text(nights.config.read_text())
    config.chmod(0o600)
    nights.config = config
    for place in (folder, config):
        mode = place.stat().st_mode & 0o777
        place.chmod(mode | 0o020)  # a group of other users
        error = nights.run("web", status=1)["web"]["error"]
        remedy = f"chmod go-w {place}"
        assert f"before: not run: {place} can be written by users other than root" in error
        assert error.endswith(remedy)
        assert remedy in nights.backupd("check", check=False).stdout
        assert not ran.exists()
        work(*remedy.split())
    nights.run("web")
    assert ran.exists()
    assert "no hook is run" not in nights.backupd("check", check=False).stdout
