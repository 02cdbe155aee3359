"""Broken connections: the number of attempts, which files are kept, and when another attempt is pointless."""

import os
import shlex
from pathlib import Path

import pytest

from tests.beds import ssh as sshbed
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, rows

SIZE = 2_000_000


@pytest.fixture
def trees(nights: Nights) -> list[Path]:
    trees = [nights.source / name for name in ("one", "two", "three")]
    for tree in trees:
        tree.mkdir()
        (tree / "file").write_bytes(os.urandom(SIZE))
    return trees


def counted(nights: Nights, then: str) -> Path:
    """Each start of the remote shell adds to a file the source path that it was started for."""
    log = nights.top / "starts"
    script = nights.top / "counting"
    script.write_text(f'#!/bin/sh\necho "$*" | grep -o "/source/[a-z]*" | tail -1 >> {log}\nexec {then} "$@"\n')
    script.chmod(0o755)
    nights.settings("ssh", command=str(script))
    return log


def test_a_cut_connection_is_tried_again_and_only_what_is_unfinished_is_repeated(nights: Nights, trees: list[Path]) -> None:
    nights.host("web", *trees, attempts=3)
    once = nights.top / "cut"
    script = nights.top / "cuts-two"
    nights.in_the_middle(1_000_000, end=f"dies-once:{once}")
    dying = nights.tables["ssh"]["command"]
    script.write_text(f'#!/bin/sh\ncase "$*" in */source/two*) exec {dying} "$@";; *) exec tests/fakessh "$@";; esac\n')
    fakessh = shlex.quote(str(Path(__file__).resolve().parents[1] / "fakessh"))
    script.write_text(script.read_text().replace("tests/fakessh", fakessh))
    script.chmod(0o755)
    log = counted(nights, str(script))
    (result,) = nights.night("web")
    assert (result.outcome, result.attempts) == ("complete", 2)
    assert log.read_text().split() == ["/source/one", "/source/two", "/source/three", "/source/two"]
    assert all(nights.differences("web", tree) == [] for tree in trees)
    two = nights.record("web")["paths"][1]
    assert two["numbers"]["literal"] < SIZE * 1.4, "what had arrived was sent again"
    assert disagreements(nights) == []


@pytest.mark.parametrize("attempts", [1, 3])
def test_as_many_attempts_as_are_asked_for_and_what_came_is_kept(nights: Nights, trees: list[Path], attempts: int) -> None:
    nights.host("web", trees[0], attempts=attempts)
    nights.in_the_middle(1_000_000, end="dies")
    log = counted(nights, nights.tables["ssh"]["command"])
    (result,) = nights.night("web")
    assert (result.outcome, result.attempts) == ("partial", attempts)
    assert len(log.read_text().split()) == attempts
    assert sum(path.stat().st_size for path in nights.working("web").rglob("*") if path.is_file()) > 500_000
    assert rows(nights, "select outcome, attempts from run") == [("partial", attempts)]
    nights.ssh("")
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", trees[0]) == []


def over_ssh(nights: Nights, sshd: sshbed.Sshd, tree: Path, **keys: object) -> None:
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web", tree, **{"address": sshd.address, "port": sshd.port, "attempts": 3, **keys})


def test_a_key_that_the_host_does_not_accept_is_tried_once(nights: Nights, trees: list[Path], sshd: sshbed.Sshd) -> None:
    over_ssh(nights, sshd, trees[0])
    stranger = nights.top / "stranger"
    sshbed._make_key(stranger)
    nights.settings("ssh", key=str(stranger))
    (result,) = nights.night("web")
    assert (result.outcome, result.attempts) == ("failed", 1)
    assert "does not accept the key" in str(result.error)
    assert not nights.backup("web", ".working").exists()
    assert nights.backupd("run", "web", check=False).returncode == 1


def test_a_changed_host_key_is_tried_once_and_nothing_is_fetched(nights: Nights, trees: list[Path], sshd: sshbed.Sshd) -> None:
    over_ssh(nights, sshd, trees[0])
    stranger = nights.top / "stranger"
    sshbed._make_key(stranger)
    path = nights.top / "known_hosts"
    path.write_text(f"[127.0.0.1]:{sshd.port} {Path(f'{stranger}.pub').read_text()}")
    nights.settings("ssh", known_hosts=str(path))
    (result,) = nights.night("web")
    assert (result.outcome, result.attempts) == ("failed", 1)
    assert "host key" in str(result.error)
    assert not nights.backup("web", ".working").exists()


def test_a_port_without_a_listener_leaves_nothing_behind(nights: Nights, trees: list[Path], sshd: sshbed.Sshd) -> None:
    over_ssh(nights, sshd, trees[0], port=sshbed._free_port(), attempts=2)
    (result,) = nights.night("web")
    assert (result.outcome, result.attempts) == ("failed", 2)
    assert "refuses the connection" in str(result.error)
    assert not nights.backup("web", ".working").exists()
    assert nights.json("list", "web") == []
    assert nights.status("web")["state"] == "never"
    assert disagreements(nights) == []


def test_an_absent_laptop_is_no_failure(nights: Nights, trees: list[Path], sshd: sshbed.Sshd) -> None:
    over_ssh(nights, sshd, trees[0], port=sshbed._free_port(), optional=True)
    assert nights.run("web")["web"]["outcome"] == "skipped"
