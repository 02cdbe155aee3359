"""Expiry on a real pool: which backups are marked, which are deleted and when, and which are always kept."""

import fcntl
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.beds.expiries import LAST, LATER, NOW, Expiries, at, dump, fingerprint
from tests.beds.history import every, make_history, name_of
from tests.beds.watch import rows, subvolumes


@pytest.fixture
def pool(shared_btrfs: Path) -> Expiries:
    return Expiries(shared_btrfs)


def test_what_no_rule_keeps_is_marked_first_and_deleted_when_its_grace_is_over(pool: Expiries) -> None:
    names = pool.history("web", 5)
    first = pool.expire(NOW)
    assert (first["marked"], first["deleted"], first["waiting_for_grace"]) == (2, 0, 2)
    assert pool.left("web") == names
    assert pool.marked("web") == names[:2]
    assert pool.states("web") == {**dict.fromkeys(names, "complete"), **dict.fromkeys(names[:2], "expired")}
    early = pool.expire(NOW + timedelta(hours=23, minutes=59))
    assert (early["marked"], early["deleted"], early["waiting_for_grace"]) == (0, 0, 2)
    assert pool.left("web") == names
    last = pool.expire(NOW + timedelta(days=1))
    assert (last["marked"], last["deleted"]) == (0, 2)
    assert pool.left("web") == names[2:]
    assert pool.notes("web")["backups"] == {}
    assert pool.consistent() == []
    assert pool.expire(LATER)["deleted"] == 0


def test_without_a_policy_everything_stays_and_that_is_said(pool: Expiries) -> None:
    names = pool.history("web", 5)
    pool.tables["retention"] = {"grace": "1s"}
    pool.write()
    done = pool.backupd("expire", *at(NOW))
    assert "no retention policy, so everything is kept: web" in done.stdout
    assert pool.left("web") == names
    del pool.tables["host"]
    pool.tables["retention"] = {"daily": 1, "grace": "1s"}
    pool.write()
    done = pool.backupd("expire", *at(NOW))
    assert "not configured, so everything is kept: web" in done.stdout
    assert pool.left("web") == names


def test_raising_the_limit_during_the_grace_brings_a_backup_back(pool: Expiries) -> None:
    names = pool.history("web", 5)
    pool.expire()
    pool.settings("retention", daily=4)
    done = pool.backupd("expire", *at(NOW + timedelta(hours=1)))
    assert f"web {names[1]} is kept again: daily 4 of 4" in done.stdout
    assert pool.marked("web") == names[:1]
    pool.expire(LATER)
    assert pool.left("web") == names[1:]
    assert pool.consistent() == []


def test_a_limit_deletes_so_many_and_the_next_run_the_rest(pool: Expiries) -> None:
    names = {host: pool.history(host, 5) for host in ("a", "b")}
    pool.expire()
    done = pool.expire(LATER, "--limit", "3")
    assert (done["deleted"], done["rest"], done["outcome"]) == (3, 1, "partial")
    assert pool.left("a") == names["a"][2:]
    assert pool.left("b") == names["b"][1:]
    assert pool.consistent() == []
    assert pool.expire(LATER, "--limit", "0")["deleted"] == 0
    assert pool.expire(LATER)["deleted"] == 1
    assert pool.left("b") == names["b"][2:]


def test_a_rehearsal_changes_not_one_byte_and_says_all_with_reasons(pool: Expiries) -> None:
    names = pool.history("web", 5)
    pool.history("other", 4)
    pool.expire()
    pool.settings("retention", daily=2)
    before, catalogue = fingerprint(pool.pool), dump(pool)
    done = pool.expire(LATER, "--dry-run")
    assert [step["name"] for step in done["delete"] if step["host"] == "web"] == names[:2]
    assert [(step["name"], step["why"]) for step in done["mark"] if step["host"] == "web"] == [(names[2], "no rule keeps it")]
    assert done["total"] == 9
    text = pool.backupd("expire", "--dry-run", *at(LATER)).stdout
    assert f"web {names[0]}: would be deleted: no rule keeps it" in text
    assert f"web {names[2]}: would be marked as expired: no rule keeps it" in text
    assert fingerprint(pool.pool) == before
    assert dump(pool) == catalogue


def test_a_rehearsal_does_what_the_run_after_it_does(pool: Expiries) -> None:
    pool.history("web", 6)
    pool.expire()
    pool.settings("retention", daily=2)
    answer = pool.expire(LATER, "--dry-run")
    before = pool.left("web")
    pool.expire(LATER)
    assert pool.left("web") == [name for name in before if name not in {step["name"] for step in answer["delete"]}]
    assert set(pool.marked("web")) == {step["name"] for step in answer["mark"]}


def test_the_last_complete_backup_stays_whatever_comes_after_it(pool: Expiries) -> None:
    pool.settings("retention", daily=1)
    pool.host("web", pool.source)
    names = make_history(pool, "web", every(1, 6, LAST), {1: "failed", 2: "suspect", 3: "failed", 4: "failed", 5: "suspect"})
    for days in (0, 30, 3000):
        pool.expire_twice(NOW + timedelta(days=days))
    assert names[0] in pool.left("web")
    assert pool.left("web") == [names[0], *names[4:]]  # the newest failed and the newest suspect one


def test_suspect_and_failed_ones_go_when_two_complete_ones_are_newer(pool: Expiries) -> None:
    pool.settings("retention", daily=9)
    pool.host("web", pool.source)
    names = make_history(pool, "web", every(1, 6, LAST), {1: "failed", 2: "suspect", 4: "failed"})
    pool.expire_twice()
    assert pool.left("web") == [names[0], *names[3:]]
    assert pool.consistent() == []


def test_an_accepted_backup_counts_as_complete_until_it_is_deleted(pool: Expiries) -> None:
    pool.host("web", pool.source)
    names = make_history(pool, "web", every(1, 5, LAST), {1: "suspect"})
    pool.backupd("accept", "web", names[1], *at(NOW))
    pool.settings("retention", daily=4)
    pool.expire()
    assert pool.marked("web") == names[:1]
    pool.settings("retention", daily=3)
    pool.expire(NOW + timedelta(hours=1))
    assert pool.marked("web") == names[:2]
    pool.settings("retention", daily=4)
    pool.expire(NOW + timedelta(hours=2))
    assert pool.states("web")[names[1]] == "complete"
    assert pool.notes("web")["backups"][names[1]]["accepted"]


def test_a_held_backup_stays_as_long_as_its_hold_lasts(pool: Expiries) -> None:
    names = pool.history("web", 6)
    pool.backupd("hold", "web", names[0], "--why", "audit", *at(NOW))
    pool.backupd("hold", "web", names[1], "--until", "2026-04-01T00:00:00Z", *at(NOW))
    pool.expire()
    pool.expire(LATER)
    assert pool.left("web") == [names[0], names[1], *names[3:]]
    pool.expire(NOW + timedelta(days=20))
    pool.expire(NOW + timedelta(days=22))
    assert pool.left("web") == [names[0], *names[3:]]


def test_an_expired_backup_that_was_taken_back_stays(pool: Expiries) -> None:
    names = pool.history("web", 5)
    pool.expire()
    pool.backupd("unexpire", "web", names[0], *at(NOW + timedelta(hours=3)))
    pool.expire(LATER)
    assert pool.left("web") == [names[0], *names[2:]]
    assert pool.consistent() == []


def test_a_wrong_row_deletes_no_backup_that_must_stay_by_the_pool(pool: Expiries) -> None:
    """The pool is authoritative: in the catalogue a suspect backup is complete, so that an older good one seems unnecessary."""
    pool.settings("retention", daily=1)
    pool.host("web", pool.source)
    names = make_history(pool, "web", every(1, 3, LAST), {1: "suspect", 2: "failed"})
    with closing(sqlite3.connect(pool.state / "catalogue.sqlite")) as connection, connection:
        connection.execute("update backup set state = 'complete', outcome = 'complete'")
    pool.expire()
    assert pool.marked("web") == []
    pool.expire(LATER)
    assert pool.left("web") == names
    assert pool.marked("web") == []


@contextmanager
def lock_held(pool: Expiries, name: str) -> Iterator[None]:
    """Lets another process hold that lock."""
    with (pool.pool / ".btrkeep" / "locks" / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_two_expiries_do_not_run_at_a_time_and_a_rehearsal_is_not_kept_from_it(pool: Expiries) -> None:
    pool.history("web", 5)
    with lock_held(pool, "expire"):
        assert pool.expire(NOW, status=3) == {}
        assert pool.marked("web") == []
        assert len(pool.expire(NOW, "--dry-run")["mark"]) == 2
    assert pool.expire(NOW)["marked"] == 2


def test_a_host_whose_backup_runs_is_left_to_the_next_run(pool: Expiries) -> None:
    names = {host: pool.history(host, 5) for host in ("a", "b")}
    with lock_held(pool, "host-a"):
        done = pool.expire(NOW)
    assert (done["busy"], done["marked"]) == (["a"], 2)
    assert pool.marked("a") == []
    pool.expire(NOW)
    with lock_held(pool, "host-a"):
        done = pool.expire(LATER)
    assert (done["busy"], done["deleted"], done["rest"]) == (["a"], 2, 2)
    assert pool.left("a") == names["a"]
    assert pool.left("b") == names["b"][2:]
    assert pool.expire(LATER)["deleted"] == 2
    assert pool.consistent() == []


def test_the_catalogue_tells_of_the_run(pool: Expiries) -> None:
    pool.history("web", 5)
    pool.expire()
    pool.expire(LATER)
    actual_rows = rows(pool, "select outcome, planned, marked, deleted, left_out, error from expiry order by id")
    assert actual_rows == [("complete", 0, 2, 0, 0, None), ("complete", 2, 0, 2, 0, None)]
    (written,) = rows(pool, "select written_bytes from expiry where deleted > 0")[0]
    assert written > 0


def test_a_forgotten_host_goes_with_everything_it_has(pool: Expiries) -> None:
    pool.history("web", 5)
    others = pool.history("other", 3)
    pool.host("web", pool.source, enabled=False)
    pool.backupd("forget", "web", "--yes", *at(NOW))
    pool.expire(NOW)
    assert len(pool.left("web")) == 5
    assert len(pool.marked("web")) == 5
    done = pool.expire(LATER)
    assert (done["deleted"], done["hosts_gone"]) == (5, ["web"])
    assert not (pool.pool / "hosts" / "web").exists()
    assert not list((pool.pool / ".btrkeep" / "gone").iterdir())
    assert rows(pool, "select count(*) from backup where host = 'web'") == [(0,)]
    assert pool.left("other") == others
    assert pool.consistent() == []


def test_foreign_files_in_the_folder_of_a_forgotten_host_stay_and_are_named(pool: Expiries) -> None:
    pool.history("web", 3)
    pool.host("web", pool.source, enabled=False)
    mine = pool.pool / "hosts" / "web" / "mine.txt"
    mine.write_text("mine")
    pool.backupd("forget", "web", "--yes", *at(NOW))
    pool.expire(NOW)
    done = pool.expire(LATER, status=1)
    assert any("mine.txt" in problem for problem in done["problems"])
    assert mine.read_text() == "mine"
    assert pool.left("web") == []
    mine.unlink()
    assert pool.expire(LATER)["hosts_gone"] == ["web"]
    assert not (pool.pool / "hosts" / "web").exists()


def test_the_text_for_people_says_what_was_done(pool: Expiries) -> None:
    pool.history("web", 5)
    assert "2 marked as expired, 0 deleted" in pool.backupd("expire", *at(NOW)).stdout
    text = pool.backupd("expire", *at(LATER)).stdout
    assert "deleting 2 backups" in text
    assert "2 of 2 deleted" in text
    assert "per deleted subvolume" in text


def test_the_years_last_day_is_like_any_other(pool: Expiries) -> None:
    """The names of the kept ones follow the golden rule: the first of each of the newest days."""
    pool.host("web", pool.source)
    moments = sorted([*every(1, 6, LAST), *(moment + timedelta(hours=1) for moment in every(1, 6, LAST))])
    names = make_history(pool, "web", moments)
    pool.expire_twice()
    kept = [name_of(moment) for moment in every(1, 3, LAST)]
    assert pool.left("web") == sorted({*kept, names[-1]})


def test_json_is_one_object(pool: Expiries) -> None:
    pool.history("web", 5)
    done = pool.backupd("expire", "--json", *at(NOW))
    assert isinstance(json.loads(done.stdout), dict)
    assert subvolumes(pool)
