"""The state of a replica, computed from the catalogue's facts without input or output."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from btrkeep.config.config_model import ReplicaSettings
from btrkeep.decisions.copy_status import (
    CopyState,
    HostBehind,
    ReplicaSession,
    RunningFetch,
    copy_status,
    note_failure,
    note_session,
    read_session,
    running_words,
)
from btrkeep.units import format_duration, format_size

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
OFFICE = ReplicaSettings("office", address="root@backup1")
DISK = ReplicaSettings("disk", folder=Path("/srv/disk"))
FINE = ReplicaSession(
    NOW - HOUR, NOW - HOUR, "", "pool", 3, 2, 100, 4.0, NOW - 5 * HOUR, (HostBehind("db1", None, None, "no room"),)
)


class Facts(dict[str, str | None]):
    def get_fact(self, name: str) -> str | None:
        return self.get(name)

    def set_fact(self, name: str, value: str | None) -> None:
        self[name] = value


def test_what_is_noted_is_what_is_read() -> None:
    facts = Facts()
    note_session(facts, "office", FINE)
    assert read_session(facts, "office") == FINE
    note_failure(facts, "office", NOW, "no route")
    assert read_session(facts, "office") == replace(FINE, tried=NOW, error="no route")
    note_failure(facts, "disk", NOW, "away")
    assert read_session(facts, "disk") == ReplicaSession(NOW, error="away")


@pytest.mark.parametrize("text", [None, "", "[]", "null", "{", '{"at": "yesterday"}', '{"at": null, "tried": null}', '{"at": 7}'])
def test_what_cannot_be_understood_is_nothing(text: str | None) -> None:
    facts = Facts()
    facts["replica:office"] = text
    assert read_session(facts, "office") is None


@pytest.mark.parametrize(
    ("replica", "ago", "error", "expected"),
    [
        (OFFICE, HOUR, "", CopyState.OK),
        (OFFICE, 48 * HOUR, "", CopyState.OK),
        (OFFICE, 49 * HOUR, "", CopyState.LATE),
        (OFFICE, -24 * HOUR, "", CopyState.LATE),  # a clock was wrong
        (OFFICE, HOUR, "no route", CopyState.FAILING),
        (DISK, HOUR, "away", CopyState.OK),
        (DISK, HOUR, "no room", CopyState.FAILING),  # it is there
        (DISK, 49 * HOUR, "away", CopyState.FAILING),
        (OFFICE, None, "", CopyState.NEVER),
        (OFFICE, None, "no route", CopyState.FAILING),
    ],
)
def test_the_state_of_a_replica(replica: ReplicaSettings, ago: timedelta | None, error: str, expected: CopyState) -> None:
    session = ReplicaSession(NOW, NOW - ago if ago is not None else None, error, away=error == "away")
    assert copy_status(replica, session, NOW).state == expected


def test_a_replica_of_which_nothing_is_known_was_never_fetched() -> None:
    assert copy_status(OFFICE, None, NOW).state == CopyState.NEVER


def test_a_copy_is_stale_when_even_the_newest_backup_there_was_old() -> None:
    whole = replace(FINE, behind=())
    assert not copy_status(OFFICE, whole, NOW).is_stale
    assert copy_status(OFFICE, replace(whole, newest=NOW - 50 * HOUR), NOW).is_stale


def test_the_time_left_of_a_running_fetch_is_estimated_from_the_backups_that_are_done() -> None:
    began = datetime(2026, 3, 1, 22, tzinfo=UTC)
    running = RunningFetch(1, "1", began, began + timedelta(seconds=30), 40, done=10, bytes=3 << 20, announced=4 << 20)
    assert running.left == 90
    words = running_words(running)
    assert f"{format_size(3 << 20)} of {format_size(4 << 20)} announced" in words
    assert f"about {format_duration(90)} left" in words
    assert RunningFetch(1, "1", began, began, 40).left is None
