"""Safety limits of an expiry: too many deletions at once, and clocks that cannot be right."""

import json
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.beds.expiries import LAST, LATER, NOW, Expiries, at
from tests.beds.history import every, make_histories, write_down
from tests.beds.nights import Nights
from tests.beds.watch import killed, rows


@pytest.fixture
def pool(shared_btrfs: Path) -> Expiries:
    return Expiries(shared_btrfs)


def test_a_host_of_which_too_much_would_go_is_left_out_until_it_is_named(pool: Expiries) -> None:
    many, few = pool.history("many", 14), pool.history("few", 13)
    done = pool.expire(NOW, status=1)
    assert list(done["left_out"]) == ["many"]
    assert "11 of 14 backups" in done["left_out"]["many"]
    assert pool.marked("many") == []
    assert pool.marked("few") == few[:10]
    assert rows(pool, "select outcome, left_out from expiry") == [("partial", 1)]
    pool.expire(NOW, "--force", "few", status=1)
    assert pool.marked("many") == []
    pool.expire(NOW, "--force", "many")
    assert pool.marked("many") == many[:11]
    pool.expire(LATER)  # the marked ones have passed the guard already
    assert (pool.left("many"), pool.left("few")) == (many[-3:], few[-3:])


def test_a_pool_of_which_too_much_would_go_is_left_alone_until_that_is_asked_for(pool: Expiries) -> None:
    hosts = [f"h{number:02}" for number in range(11)]
    for host in hosts:
        pool.host(host, pool.source)
    make_histories(pool, hosts, every(1, 13, LAST))
    done = pool.expire(NOW, status=1)
    assert "110 of 143 backups" in done["stop"]
    assert [pool.marked(host) for host in hosts] == [[]] * 11
    assert pool.expire(NOW, "--dry-run", status=1)["stop"] == done["stop"]
    assert rows(pool, "select outcome, error from expiry") == [("stopped", done["stop"])]
    assert pool.expire(NOW, "--force", "pool")["marked"] == 110


def test_a_clock_that_went_back_stops_everything_until_it_is_said_to_be_right(pool: Expiries) -> None:
    names = pool.history("web", 5)
    pool.expire(LATER)
    for _ in range(2):  # a stop is not remembered as a time
        done = pool.expire(NOW, status=1)
        assert "the clock went back from" in done["stop"]
    assert pool.left("web") == names
    assert pool.expire(NOW, "--force", "clock")["stop"] is None
    assert pool.expire(NOW)["stop"] is None


def test_a_night_that_was_stopped_stays_an_alarm_whatever_goes_by_hand_after_it(pool: Expiries) -> None:
    first, *_ = pool.history("web", 5)
    pool.expire(LATER)
    pool.expire(NOW, status=1)
    pool.backupd("delete", f"web@{first}", "--now-without-grace", *at(NOW))
    assert rows(pool, "select outcome, hosts from expiry order by id") == [("complete", None), ("stopped", None), ("complete", 1)]
    answer = json.loads(pool.backupd("notify", "--dry-run", "--json", *at(NOW), check=False).stdout)
    assert [alarm["text"][:15] for alarm in answer["alarms"] if alarm["subject"] == "expiry"] == ["expiry stopped:"]


def test_under_a_clock_that_went_back_no_grace_of_a_deletion_by_hand_begins(pool: Expiries) -> None:
    names = pool.history("web", 3)
    pool.expire(LATER)
    for more in ((), ("--dry-run",)):
        done = pool.backupd("delete", f"web@{names[0]}", *more, *at(NOW), check=False)
        assert (done.returncode, "the clock went back, so the end of the grace" in done.stderr) == (1, True), done.stderr
    assert pool.marked("web") == []
    pool.backupd("delete", f"web@{names[0]}", "--now-without-grace", *at(NOW))
    assert pool.left("web") == names[1:]


def test_a_clock_that_was_right_by_five_minutes_is_right(pool: Expiries) -> None:
    pool.history("web", 5)
    pool.expire(LATER)
    assert pool.expire(LATER - timedelta(minutes=5))["stop"] is None


def test_an_unknown_name_is_refused_and_the_nearest_is_named(pool: Expiries) -> None:
    pool.history("web", 5)
    done = pool.backupd("expire", "--force", "wep", *at(NOW), check=False)
    assert done.returncode == 2
    assert "web" in done.stderr
    assert pool.marked("web") == []


@pytest.fixture
def real(shared_btrfs: Path) -> Expiries:
    """A pool that uses the machine's clock."""
    pool = Expiries.__new__(Expiries)
    Nights.__init__(pool, shared_btrfs)
    pool.tables["retention"] = {"daily": 3, "min_keep": 1, "grace": "1s"}
    pool.write()
    return pool


def age_the_clock(pool: Expiries, hours: float) -> None:
    """Makes the last expiry that old by the wall clock, and a moment old by the boot clock. The doubted time is a day older."""
    with closing(sqlite3.connect(pool.state / "catalogue.sqlite")) as connection, connection:
        ((text,),) = connection.execute("select value from about where name = 'expiry_clock'")
        fields = json.loads(text)
        wall = datetime.fromisoformat(fields["wall"]) - timedelta(hours=hours)
        fields["wall"] = wall.strftime("%Y-%m-%dT%H:%M:%SZ")
        if doubted := fields.get("doubted"):
            doubted["wall"] = (datetime.fromisoformat(doubted["wall"]) - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
            doubted["boottime"] -= 86400
        connection.execute("update about set value = ? where name = 'expiry_clock'", (json.dumps(fields),))


def run(pool: Expiries, *words: str) -> dict:
    done = pool.backupd("expire", "--json", *words, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def test_a_clock_that_ran_ahead_ends_no_grace_in_this_run_and_does_a_night_later(real: Expiries) -> None:
    names = real.history("web", 5)
    assert run(real)["marked"] == 2
    time.sleep(1.1)
    age_the_clock(real, 3)
    rehearsal = run(real, "--dry-run")
    assert rehearsal["clock"]
    assert rehearsal["delete"] == []
    output = real.backupd("expire", "--dry-run").stdout
    assert output.count("is restorable until the clock is right: by this clock its grace period ended at ") == 2
    killed(real, "before", "fact written", "expire")  # is not the run that had to be waited for
    done = run(real)
    assert "ahead" in done["clock"]
    assert done["deleted"] == 0
    assert run(real)["clock"]  # however often in one hour
    assert real.left("web") == names
    age_the_clock(real, 24)
    assert run(real)["deleted"] == 2
    assert real.consistent() == []


def test_a_leap_of_the_clock_is_seen_too_when_what_expiries_saw_was_lost_with_the_catalogue(real: Expiries) -> None:
    real.history("web", 5)
    real.host("web", real.source)
    real.run("web")
    assert run(real)["marked"]
    time.sleep(1.1)
    with closing(sqlite3.connect(real.state / "catalogue.sqlite")) as connection, connection:
        connection.execute("delete from about where name = 'expiry_clock'")
        connection.execute("update run set finished = strftime('%Y-%m-%dT%H:%M:%S.000000Z', 'now', '-9 years')")
    for more in ((), ("--dry-run",), ()):
        done = run(real, *more)
        assert "ahead" in done["clock"]
        assert not done.get("deleted")
        assert not done.get("delete")
    age_the_clock(real, 24)
    assert run(real)["deleted"]  # a night later it is believed


def test_a_clock_that_is_ahead_ends_no_hold_of_a_backup_to_be_deleted(real: Expiries) -> None:
    names = real.history("web", 3)
    until = format(datetime.now(UTC) - timedelta(hours=1), "%Y-%m-%dT%H:%M:%SZ")
    write_down(real, "web", backups={names[0]: {"hold": {"at": "2026-03-01T00:00:00Z", "until": until, "why": "court"}}})
    run(real)
    age_the_clock(real, 3)
    for more in ((), ("--now-without-grace",), ("--dry-run",)):
        done = real.backupd("delete", f"web@{names[0]}", *more, check=False)
        assert (done.returncode, f"web {names[0]} is held" in done.stderr) == (1, True), done.stdout + done.stderr
    assert real.left("web") == names
    assert "hold" in real.notes("web")["backups"][names[0]]
    run(real)
    age_the_clock(real, 24)
    run(real)  # a night later it is believed
    real.backupd("delete", f"web@{names[0]}", "--now-without-grace")
    assert real.left("web") == names[1:]


def test_a_wrong_clock_that_was_believed_costs_one_morning_once_it_is_right(real: Expiries) -> None:
    real.host("web", real.source)
    real.run("web")
    assert run(real)["stop"] is None
    age_the_clock(real, -120)
    for _ in range(2):
        done = real.backupd("expire", "--json", check=False)
        assert (done.returncode, "the clock went back" in json.loads(done.stdout)["stop"]) == (1, True)
    real.run("web")
    age_the_clock(real, 24)
    assert run(real)["stop"] is None
    assert run(real)["stop"] is None
