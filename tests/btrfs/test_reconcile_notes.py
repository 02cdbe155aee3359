"""Remains of a kill between notes.json and the row, and one host with an unreadable folder: other hosts, and the next start,
correct them.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.beds import work
from tests.beds.expiries import NOW, Expiries, at
from tests.beds.nights import Nights
from tests.beds.watch import does_at, killed, rows, subvolumes


@pytest.fixture
def pool(shared_btrfs: Path) -> Expiries:
    return Expiries(shared_btrfs)


def row(pool: Nights, host: str, name: str) -> tuple[Any, ...]:
    """Returns state, outcome, hold and mark, the mark to the second."""
    columns = "state, outcome, held_why, substr(expired, 1, 19)"
    actual_rows = rows(pool, f"select {columns} from backup where host = '{host}' and name = '{name}'")
    return tuple(actual_rows[0])


STEPS = {
    "hold": (("hold", "web", "NAME", "--why", "court"), ("complete", "complete", "court", None)),
    "release": (("release", "web", "HELD"), ("complete", "complete", None, None)),
    "accept": (("accept", "web", "SUSPECT", "--why", "right"), ("complete", "complete", None, None)),
}


@pytest.mark.parametrize("step", list(STEPS))
@pytest.mark.parametrize("start", ["run", "expire"])
def test_a_kill_between_the_notes_and_the_row_is_mended_by_the_next_start(pool: Expiries, step: str, start: str) -> None:
    names = dict(zip(("NAME", "HELD", "SUSPECT"), pool.history("web", 3, states={2: "suspect"}), strict=True))
    pool.host("other", pool.source)
    pool.backupd("hold", "web", names["HELD"])
    words, wanted = STEPS[step]
    before = row(pool, "web", names[words[2]])
    killed(pool, "before", "backup row written", *(names.get(word, word) for word in words))
    assert row(pool, "web", names[words[2]]) == before
    output = pool.backupd("run", "other").stdout if start == "run" else json.dumps(pool.expire())
    assert row(pool, "web", names[words[2]]) == wanted
    assert start == "expire" or "1 row updated from notes.json" in output
    assert "notes.json" not in pool.backupd("run", "other").stdout


def test_a_kill_between_the_marks_and_the_rows_is_mended_by_the_next_run(pool: Expiries) -> None:
    names = pool.history("web", 5)
    pool.host("other", pool.source)
    killed(pool, "before", "states of backups written", "expire", *at(NOW))
    assert pool.marked("web") == names[:2]
    assert row(pool, "web", names[0])[0] == "complete"
    pool.backupd("run", "other")
    stamp = datetime.fromisoformat(pool.notes("web")["backups"][names[0]]["expired"]["at"])
    assert row(pool, "web", names[0]) == ("expired", "complete", None, f"{stamp:%Y-%m-%dT%H:%M:%S}")


def test_a_hold_that_is_set_while_the_catalogue_is_rebuilt_is_not_lost(pool: Expiries) -> None:
    """The rebuild has read the hosts when a backup is held, but has not written its rows yet."""
    name = pool.history("a", 1)[0]
    pool.history("b", 1)
    hold = shlex.join([sys.executable, "-m", "backupd", "--config", str(pool.config), "hold", "a", name])
    done = does_at(pool, hold, "after", "backups listed", "rebuild", "--json")
    assert '"locked": []' in done.stdout
    assert row(pool, "a", name)[2] == ""


@pytest.mark.parametrize("step", [("before", "backup.json replaced"), ("after", "snapshot made")])
def test_what_a_killed_run_was_making_goes_also_when_its_host_is_configured_no_more(pool: Expiries, step: tuple[str, str]) -> None:
    pool.host("web", pool.source)
    pool.host("other", pool.source)
    pool.run("web")
    killed(pool, *step, "run", "web")
    staged = ".btrkeep/new/web/.working"
    assert staged in subvolumes(pool)
    del pool.tables["host"]["web"]
    pool.write()
    output = pool.backupd("run", "other").stdout
    assert "1 unfinished subvolume of a killed run removed" in output
    assert staged not in subvolumes(pool)


def test_something_else_that_lies_where_runs_make_theirs_stays(pool: Expiries) -> None:
    pool.host("other", pool.source)
    for host in ("mine", "empty"):
        (pool.pool / ".btrkeep" / "new" / host).mkdir(parents=True)
        work("btrfs", "-q", "subvolume", "create", pool.pool / ".btrkeep" / "new" / host / ".working")
    (pool.pool / ".btrkeep/new/mine/.working/thesis").write_text("the only copy")
    pool.run("other")
    left = [path for path in subvolumes(pool) if path.startswith(".btrkeep/new/")]
    assert left == [".btrkeep/new/mine/.working"]


DEEP = "[" * 200_000 + "]" * 200_000


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 << 30)


BAD_NOTES: dict[str, Callable[[Path], object]] = {
    "a pipe": fifo,
    "a folder": Path.mkdir,
    "two gigabytes": endless,
    "a symlink to nowhere": lambda path: path.symlink_to("/nowhere"),
    "nested too deeply": lambda path: path.write_text(f'{{"format": 1, "backups": {DEEP}}}'),
    "a time before time": lambda path: path.write_text(
        '{"format": 1, "backups": {"x": {"hold": {"until": "0001-01-01T00:00:00+14:00"}}}}'
    ),
}


@pytest.mark.parametrize("bad", list(BAD_NOTES))
def test_unreadable_notes_do_not_affect_other_hosts(pool: Expiries, bad: str) -> None:
    """And no backup of this host is deleted."""
    for host in ("bad", "good"):
        pool.history(host, 5)
    BAD_NOTES[bad](pool.pool / "hosts" / "bad" / "notes.json")
    pool.host("good", pool.source)
    done = pool.expire(NOW, status=1)
    assert set(done["left_out"]) == {"bad"}
    assert len(pool.marked("good")) == 2
    assert "not changed: bad: " in pool.backupd("run", "good").stdout
    rebuilt = pool.backupd("rebuild", "--json", check=False)
    assert (rebuilt.returncode, "Traceback" in rebuilt.stderr) == (1, False)
    assert rows(pool, "select host, count(*) from backup where host = 'good' group by host") == [("good", 6)]
    assert len(pool.left("bad")) == 5


BAD_RECORDS: dict[str, dict[str, Any]] = {
    "an infinite number": {"paths": [{"path": "/", "outcome": "complete", "numbers": {"bytes": float("inf")}}]},
    "a time before time": {"started": "0001-01-01T00:00:00+14:00"},
    "a list instead of a number": {"duration": [1]},
    "a number instead of a text": {"error": 7},
}


@pytest.mark.parametrize("bad", [*BAD_RECORDS, "nested too deeply", "two gigabytes"])
def test_an_unreadable_record_does_not_affect_other_backups(pool: Expiries, bad: str) -> None:
    names = pool.history("web", 3)
    path = pool.backup("web", names[0]) / "backup.json"
    work("btrfs", "property", "set", "-f", "-ts", path.parent, "ro", "false")
    if bad == "two gigabytes":
        endless(path)
    else:
        changed = BAD_RECORDS.get(bad)
        path.write_text(json.dumps({**json.loads(path.read_text()), **changed}) if changed else DEEP)
    work("btrfs", "property", "set", "-ts", path.parent, "ro", "true")
    done = pool.backupd("rebuild", "--json", check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    answer = json.loads(done.stdout)
    assert (answer["backups"], [line.split(":")[0] for line in answer["trouble"]]) == (2, [f"web/{names[0]}"])
    assert pool.backupd("run", "web").returncode == 0
    assert pool.backupd("browse", f"web@{names[1]}", "/").returncode == 0
