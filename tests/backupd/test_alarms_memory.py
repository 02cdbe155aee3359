"""Messages of alarms, hour by hour: one at the start, one at the end, and no storm if a value fluctuates."""

import stat
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.alarms import alarm_memory
from backupd.alarms.deduplication import QUIET, AlarmChanges, by_key, changes
from backupd.alarms.digest import digest_message, is_due
from backupd.alarms.events import Alarm, FoundAlarms, find
from btrkeep.catalogue import Silence, StoredAlarm
from btrkeep.catalogue.model_alarm import AlarmSubject
from btrkeep.config.value_types import EVENT_WORDS
from btrkeep.decisions.silences import Silences
from tests.backupd.facts import NOW
from tests.backupd.seen import config, seen

HOUR = timedelta(hours=1)


class Story:
    """Runs checks one after the other; `heard` has the messages: "+ subject" of an alarm, "- subject" of its end."""

    def __init__(self, events: tuple[str, ...] = EVENT_WORDS) -> None:
        self.rows: dict[tuple[str, str], StoredAlarm] = {}
        self.events = events
        self.heard: list[tuple[datetime, str]] = []

    def look(self, now: datetime, *alarms: Alarm, arrived: bool = True, found_alarms: FoundAlarms | None = None) -> AlarmChanges:
        fresh = changes(self.rows, found_alarms or FoundAlarms(alarms), self.events, now)
        for row in fresh.changed(self.rows, now, arrived=arrived):
            self.rows[row.key] = row
        for key in fresh.gone:
            del self.rows[key]
        if arrived:
            self.heard += [(now, f"+ {row.subject}") for row in fresh.alarms] + [
                (now, f"- {row.subject}") for row in fresh.recoveries
            ]
        return fresh

    def sent(self) -> list[str]:
        return [words for _, words in self.heard]


def alarm(subject: str = "host a", name: str = "failure", grade: int = 0, is_due: bool = True, since: datetime = NOW) -> Alarm:
    return Alarm(name, AlarmSubject.of(subject), f"{subject} is bad", since, grade, is_due)


def play(pattern: str, step: timedelta = HOUR) -> list[str]:
    """A check for each letter: `x` the problem exists, `.` it does not. Returns the message of each check: +, - or nothing."""
    story = Story()
    for number, letter in enumerate(pattern):
        story.look(NOW + number * step, *([alarm(since=NOW + number * step)] if letter == "x" else []))
    heard = {when: words[0] for when, words in story.heard}
    return [heard.get(NOW + number * step, " ") for number in range(len(pattern))]


@pytest.mark.parametrize(
    ("looks", "heard"),
    [
        ("xxxxxxx", "+      "),
        ("..xxx..", "  +  - "),
        ("x.", "+-"),
        ("x.x.x.x.x.", "+-+       "),
        ("xxx" + "." * 30, "+  -" + " " * 29),
        ("x.x" + "." * 30, "+-+" + " " * 24 + "-" + " " * 5),
        ("x.x.x" + "." * 30, "+-+  " + " " * 24 + "-" + " " * 5),
    ],
)
def test_what_is_heard_hour_by_hour(looks: str, heard: str) -> None:
    assert "".join(play(looks)) == heard


def test_nights_that_fail_every_other_day_are_each_told() -> None:
    assert "".join(play("x.x.x.", timedelta(hours=25))) == "+-+-+-"


@given(st.lists(st.booleans(), max_size=60), st.sampled_from([timedelta(minutes=15), HOUR, timedelta(hours=7)]))
def test_whatever_happens_nothing_is_told_twice_in_a_row_and_never_more_than_thrice_a_day(
    looks: list[bool], step: timedelta
) -> None:
    story = Story()
    for number, bad in enumerate(looks):
        story.look(NOW + number * step, *([alarm(since=NOW + number * step)] if bad else []))
    assert all(name != other for name, other in zip(story.sent(), story.sent()[1:], strict=False))
    assert story.sent()[:1] in ([], ["+ host a"])
    for when, _ in story.heard:
        assert sum(when <= other < when + QUIET for other, _ in story.heard) <= 3


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_reader_of_all_messages_has_the_right_state_at_the_end(looks: list[bool]) -> None:
    story = Story()
    for number, bad in enumerate(looks):
        story.look(NOW + number * HOUR, *([alarm()] if bad else []))
    end = NOW + len(looks) * HOUR
    for hour in range(26):
        story.look(end + hour * HOUR, *([alarm()] if looks[-1] else []))
    assert story.sent()[-1:] == (["+ host a"] if looks[-1] else ["- host a"] if any(looks) else [])


def test_what_did_not_arrive_is_told_by_a_later_look_both_ways() -> None:
    story = Story()
    story.look(NOW, alarm(), arrived=False)
    story.look(NOW + HOUR, alarm())
    story.look(NOW + 2 * HOUR, arrived=False)
    story.look(NOW + 3 * HOUR)
    assert story.sent() == ["+ host a", "- host a"]


def test_what_never_arrived_is_not_told_when_it_is_over() -> None:
    story = Story()
    story.look(NOW, alarm(), arrived=False)
    story.look(NOW + HOUR)
    assert (story.sent(), story.rows) == ([], {})


def test_an_alarm_that_grows_is_told_again_and_one_that_shrinks_is_not() -> None:
    story = Story()
    for hour, grade in enumerate((3, 3, 5, 4, 5, 6)):
        story.look(NOW + hour * HOUR, alarm("device 2", "devices", grade))
    assert [int((when - NOW) / HOUR) for when, _ in story.heard] == [0, 2, 5]


def test_each_new_mistake_is_a_message_also_the_third_of_a_day() -> None:
    """A mistake soon after the end of another one is the same alarm, whose message about the end waits for a day."""
    by_name: dict[tuple[str, str], StoredAlarm] = {}
    sent: list[str] = []
    looks = (
        ("1st",),
        (),
        ("2nd",),
        (),
        ("3rd",),
        ("3rd",),
        ("3rd", "1st"),
        ("3rd",),
        ("4th",),
        ("4th",),
        ("4th", "5th"),
        ("4th", "6th"),
    )
    for number, faults in enumerate(looks):
        now = NOW + HOUR * number
        alarm_changes = changes(by_name, find(seen(config(), faults=faults), by_name, {}), EVENT_WORDS, now)
        arrived = number != 8  # the message about the fourth does not arrive at first
        sent += [row.text for row in alarm_changes.alarms if arrived]
        by_name |= {row.key: row for row in alarm_changes.changed(by_name, now, arrived=arrived)}
    prefix = "the configuration is wrong: "
    assert [text.removeprefix(prefix) for text in sent] == ["1st", "2nd", "3rd", "3rd; 1st", "4th", "4th; 5th", "4th; 6th"]


def test_an_alarm_that_is_not_ripe_is_remembered_from_its_beginning_and_not_told() -> None:
    story = Story()
    assert not story.look(NOW, alarm(is_due=False)).any
    assert story.rows["failure", "host a"].since == NOW
    assert story.look(NOW + HOUR, alarm()).any


def test_events_that_are_not_configured_are_recorded_and_not_sent() -> None:
    story = Story(("suspect",))
    assert len(story.look(NOW, alarm(), alarm(name="suspect")).open_alarms) == 2
    assert len(story.heard) == 1
    story.look(NOW + HOUR)
    assert story.sent() == ["+ host a"]  # recoveries were not configured either
    story.look(NOW + 30 * HOUR, alarm(name="suspect"))
    assert story.sent() == ["+ host a", "+ host a"]


def test_a_host_is_over_when_all_that_was_wrong_with_it_is() -> None:
    story = Story()
    story.look(NOW, alarm())
    story.look(NOW + HOUR, alarm(name="suspect"))
    assert story.sent() == ["+ host a", "+ host a"]
    story.look(NOW + 2 * HOUR)
    assert story.sent()[2:] == ["- host a", "- host a"]


def test_what_cannot_be_known_stays_as_it_is() -> None:
    story = Story()
    story.look(NOW, alarm("used", "room"))
    story.look(NOW + HOUR, found_alarms=FoundAlarms((), frozenset({"room"})))
    story.look(NOW + 2 * HOUR, alarm("used", "room"))
    assert story.sent() == ["+ used"]


def test_a_host_that_is_gone_from_the_configuration_is_forgotten_without_a_word() -> None:
    story = Story()
    story.look(NOW, alarm())
    story.look(NOW + HOUR, found_alarms=FoundAlarms((), dropped=frozenset({"host a"})))
    assert (story.sent(), story.rows) == (["+ host a"], {})


def test_nothing_is_remembered_for_ever() -> None:
    story = Story()
    story.look(NOW, alarm())
    story.look(NOW + HOUR)
    assert story.rows
    story.look(NOW + 26 * HOUR)
    assert story.rows == {}


def test_an_alarm_that_a_wrong_clock_told_of_in_the_future_is_over_when_it_is_over() -> None:
    """Its end was recorded by the wrong clock as well, so the message about the end was due in 2031."""
    ahead = NOW + timedelta(days=1800)
    row = StoredAlarm("failure", "host a", "it is bad", 1, ahead, 1, ahead, ahead + HOUR, None)
    fresh = changes(by_key([row], NOW), FoundAlarms(()), EVENT_WORDS, NOW)
    assert [recovery.subject for recovery in fresh.recoveries] == ["host a"]
    (kept,) = fresh.changed({row.key: row}, NOW, arrived=True)
    assert max(moment for moment in (kept.since, kept.told, kept.recovered, kept.cleared) if moment) == NOW


def test_by_key_is_how_rows_are_found() -> None:
    row = StoredAlarm("room", "used", "", 0, NOW, 1, None, None, None)
    assert by_key([row], NOW) == {("room", "used"): row}


def test_the_digest_has_what_is_silenced_the_widest_first() -> None:
    """Otherwise who steals a session of an operator ends all messages, and nobody who only reads them ever knows."""
    hosts = [Silence("host", f"web{number:02}", NOW + HOUR, "mallory", "", NOW, False) for number in range(60)]
    kind = Silence("problem", "schedule", NOW + 90 * 24 * HOUR, "mallory", "later", NOW, False)
    of = config()
    text = digest_message("main", "server", seen(of, silences=Silences.of([*hosts, kind], {}, NOW)), ()).body
    _head, *lines = text[text.index("Silenced") :].splitlines()
    assert "problem schedule: silenced until" in lines[0]
    assert "by mallory: later" in lines[0]


def test_the_digest_is_due_once_a_day_at_its_time_in_the_pools_zone() -> None:
    of = config()
    at, zone = of.notify.digest, of.pool.zone
    eight = datetime(2026, 11, 20, 8, 0, tzinfo=zone)
    assert [is_due(at, zone, None, eight + minutes) for minutes in (timedelta(minutes=-1), timedelta(), HOUR)] == [
        False,
        True,
        True,
    ]
    assert not is_due(at, zone, eight, eight + 10 * HOUR)
    assert is_due(at, zone, eight, eight + 24 * HOUR)
    assert not is_due(None, zone, None, eight)
    assert is_due(at, zone, eight + 40000 * HOUR, eight)  # sent under a clock that was years ahead
    summer = datetime(2026, 10, 25, 8, 0, tzinfo=zone)  # clocks were set back that night
    assert not is_due(at, zone, summer - 24 * HOUR, datetime.fromisoformat("2026-10-25T06:59:59Z"))
    assert is_due(at, zone, summer - 24 * HOUR, datetime.fromisoformat("2026-10-25T07:00:00Z"))


def test_who_makes_the_folder_in_memory_first_neither_reads_nor_hides_what_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm_memory, "_MEMORY", tmp_path)
    usual = tmp_path / "btrkeep-alarms-name"
    for squat in (lambda: usual.symlink_to("/etc"), lambda: usual.mkdir(mode=0o755), lambda: usual.write_text("x")):
        squat()
        assert alarm_memory._folder_in_memory(usual.name, make=False) is None
        ours = alarm_memory._folder_in_memory(usual.name, make=True)
        assert ours
        assert (ours.parent, ours != usual, stat.S_IMODE(ours.lstat().st_mode)) == (tmp_path, True, 0o700)
        assert alarm_memory._folder_in_memory(usual.name, make=True) == ours, "the next process finds it again"
        ours.rmdir()
        usual.rmdir() if usual.is_dir() and not usual.is_symlink() else usual.unlink()
    assert alarm_memory._folder_in_memory(usual.name, make=True) == usual
