"""Exit statuses in real situations. (Those of signals, 130 and 143, are tested where runs are stopped.)"""

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from btrkeep.catalogue import Catalogue, StoredAlarm
from tests.beds import TOP, backupd, work
from tests.beds.cli import BACKUPD
from tests.beds.exit_statuses import EXIT_MEANING
from tests.beds.nights import Nights


def status(nights: Nights, *words: str | Path) -> int:
    done = nights.backupd(*words, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode


def nothing(_: Nights) -> None:
    """The site in its initial state: one local host that was never backed up."""


def backed_up(nights: Nights) -> None:
    nights.run("here")


def missing_path(nights: Nights) -> None:
    nights.host("here", nights.source / "missing", address=None)


def unreachable(nights: Nights) -> None:
    nights.host("here", nights.source)
    nights.ssh("sh -c 'echo \"ssh: connect to host x port 22: Connection refused\" >&2; exit 255'")


def unreachable_laptop(nights: Nights) -> None:
    unreachable(nights)
    nights.host("here", nights.source, optional=True)


def dies_midway(nights: Nights) -> None:
    (nights.source / "big").write_bytes(os.urandom(1 << 20))
    nights.host("here", nights.source)
    nights.in_the_middle(300_000, "kill -9 $PPID")


def shrunk(nights: Nights) -> None:
    for number in range(10):
        (nights.source / f"file{number}").write_text("x")
    nights.run("here")
    for number in range(10):
        (nights.source / f"file{number}").unlink()


def failing_hook(nights: Nights) -> None:
    nights.host("here", nights.source, address=None, before=["false"])


def skipping_hook(nights: Nights) -> None:
    nights.host("here", nights.source, address=None, before=["sh", "-c", "exit 75"])


def broken_configuration(nights: Nights) -> None:
    nights.settings("backup", concurrency=-1)


def no_pool(nights: Nights) -> None:
    nights.settings("pool", path=str(nights.top / "elsewhere"))


def no_room(nights: Nights) -> None:
    nights.settings("pool", min_free="100%")


def damaged_catalogue(nights: Nights) -> None:
    nights.state.mkdir(exist_ok=True)
    (nights.state / "catalogue.sqlite").write_text("no database " * 100)


def group_may_enter(nights: Nights) -> None:
    nights.pool.chmod(0o750)


# exit status, situation, words
TABLE: tuple[tuple[int, Callable[[Nights], None], tuple[str, ...]], ...] = (
    (0, nothing, ("run",)),
    (0, nothing, ("run", "here")),
    (0, nothing, ("run", "--dry-run")),
    (0, nothing, ("status",)),
    (0, nothing, ("list",)),
    (0, nothing, ("log",)),
    (0, nothing, ("check",)),
    (0, nothing, ("rebuild",)),
    (0, backed_up, ("run",)),
    (0, unreachable_laptop, ("run",)),
    (0, skipping_hook, ("run",)),
    (0, missing_path, ("status",)),
    (1, missing_path, ("run",)),
    (1, missing_path, ("check",)),
    (1, unreachable, ("run",)),
    (1, unreachable, ("check", "--connect")),
    (1, dies_midway, ("run",)),
    (1, shrunk, ("run", "here")),
    (1, failing_hook, ("run",)),
    (1, group_may_enter, ("check",)),
    (1, damaged_catalogue, ("status",)),
    (1, damaged_catalogue, ("check",)),
    (2, nothing, ("run", "nobody")),
    (2, nothing, ("run", "--all", "here")),
    (2, nothing, ("accept", "here", "latest")),
    (2, broken_configuration, ("run",)),
    (2, broken_configuration, ("status",)),
    (2, broken_configuration, ("check",)),
    (4, no_pool, ("run",)),
    (4, no_pool, ("status",)),
    (4, no_pool, ("check",)),
    (4, no_room, ("run",)),
    (4, no_room, ("check",)),
)


@pytest.mark.parametrize(("expected", "situation", "words"), TABLE, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_situation_has_its_exit_status(
    nights: Nights, expected: int, situation: Callable[[Nights], None], words: tuple[str, ...]
) -> None:
    nights.settings("ssh", command="ssh")
    nights.host("here", nights.source, address=None)
    situation(nights)
    assert status(nights, *words) == expected


def test_a_held_lock_is_3_and_its_holder_is_named(nights: Nights, backupd_running: Any, badssh: Any) -> None:
    (nights.source / "big").write_bytes(os.urandom(1 << 20))
    nights.host("slow", nights.source)
    nights.settings("ssh", command=str(badssh("hangs", 300_000)))
    night = backupd_running("--config", nights.config, "run")
    while not nights.json("status")["running"]:
        assert night.poll() is None
    for words in (["run"], ["run", "slow"], ["rebuild"], ["accept", "slow", "latest"]):
        done = nights.backupd(*words, check=False)
        assert done.returncode == 3, done.stdout + done.stderr
        assert f"process {night.pid} (" in done.stdout + done.stderr
    assert status(nights, "status") == status(nights, "list") == 0
    night.terminate()
    assert night.wait(timeout=60) == 143


def test_a_lock_that_one_of_several_hosts_meets_is_something_to_look_at(nights: Nights) -> None:
    nights.host("a", nights.source, address=None)
    nights.host("b", nights.source, address=None)
    nights.run("a", "b")
    lock = nights.pool / ".btrkeep" / "locks" / "host-a"
    line = f"{shlex.join(BACKUPD)} --config {nights.config} run a b"
    done = work("flock", lock, "sh", "-c", line, check=False, env={"PYTHONPATH": str(TOP)})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "b: complete" in done.stdout


def test_every_status_of_the_table_is_met_here_or_is_that_of_a_signal() -> None:
    met = {status for status, _, _ in TABLE} | {3}
    assert met | {130, 143} == set(EXIT_MEANING)


def test_the_words_of_init_have_statuses_too(tmp_path: Path) -> None:
    assert backupd("--config", tmp_path / "x.toml", "init", tmp_path / "pool", check=False).returncode == 4
    assert backupd("--config", tmp_path / "x.toml", "init", check=False).returncode == 2


def test_status_names_jobs_that_failed_until_they_have_recovered(nights: Nights) -> None:
    nights.host("here", nights.source, address=None)
    nights.run("here")
    since, later = datetime(2026, 11, 20, 9, tzinfo=UTC), datetime(2026, 11, 20, 10, tzinfo=UTC)
    scrub = StoredAlarm(
        "failure", "unit btrkeep-scrub@main.service", "btrkeep-scrub@main.service failed", 1, since, 1, since, None, None
    )
    mail = StoredAlarm("service", "1, mailto", "number 1 takes no message", 0, since, 1, since, None, None)
    over = replace(scrub, subject="unit btrkeep-verify@main.service", text="btrkeep-verify@main.service failed", recovered=later)
    host = replace(scrub, subject="host here", text="here is shown in the table")
    with Catalogue.open(nights.state) as catalogue:
        catalogue.put_alarms([scrub, mail, over, host])
    assert [alarm["subject"] for alarm in nights.json("status")["failed"]] == [scrub.subject, mail.subject]
    shown = nights.backupd("status").stdout
    assert "failed: btrkeep-scrub@main.service failed (since 2026-11-20T09:00:00Z)" in shown
    assert "failed: number 1 takes no message" in shown
    assert "btrkeep-verify" not in shown


def test_status_lists_when_each_host_was_last_proven_and_only_a_limit_makes_that_ok(nights: Nights) -> None:
    def proofs() -> dict[str, dict[str, Any]]:
        answer = nights.json("status", "--proof")["proof"]
        assert [row["host"] for row in answer["hosts"]] == ["here"]
        assert {proof["kind"] for proof in answer["pool"]} == {proof["kind"] for proof in answer["hosts"][0]["proofs"]}
        return {proof["kind"]: proof for proof in answer["hosts"][0]["proofs"]}

    (nights.source / "file").write_text("x")
    nights.host("here", nights.source, address=None)
    backed_up(nights)
    assert {proof["state"] for kind, proof in proofs().items() if kind != "repaired"} == {"never"}
    began = datetime.now(UTC).replace(microsecond=0)
    nights.backupd("verify", "here")
    verified = proofs()["verified"]
    assert (verified["state"], verified["limit"]) == ("done", None)
    assert began <= datetime.fromisoformat(verified["at"]) <= datetime.now(UTC)
    nights.tables["verify"] = {"max_age": "30d"}
    nights.write()
    assert (proofs()["verified"]["state"], proofs()["verified"]["limit"]) == ("ok", 30 * 86400)
    text = nights.backupd("status", "--proof").stdout
    assert "pool copied: never, limit: no limit set" in text
    assert "proof" not in nights.json("status")
