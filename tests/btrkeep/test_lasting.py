"""Conditions that last: when they raise an alarm, how their records are bounded, and the pattern that excludes a name."""

from datetime import UTC, datetime, timedelta

import pytest

from btrkeep.backup_states import LONGEST_NAME, MOST, Condition, ConditionKey, ConditionKind, conditions_of
from btrkeep.decisions.lasting import exclude_pattern, follow, host_words, lasting, standing_words

START = datetime(2026, 11, 1, 22, tzinfo=UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
KEY = ConditionKey(ConditionKind.UNREADABLE, "/srv", "/srv/mount")


def after(*nights: tuple[timedelta, bool]) -> tuple[tuple[Condition, ...], datetime]:
    """Returns the record after backups at these times, each with or without the condition."""
    conditions: tuple[Condition, ...] = ()
    for offset, has_it in nights:
        conditions = follow(conditions, [KEY] if has_it else [], START + offset)
    return conditions, START + nights[-1][0]


@pytest.mark.parametrize(
    ("nights", "lasts"),
    [
        ([(0 * DAY, True), (1 * DAY, True)], False),
        ([(0 * DAY, True), (1 * DAY, True), (2 * DAY, True)], True),
        ([(0 * HOUR, True), (1 * HOUR, True), (2 * HOUR, True), (3 * HOUR, True)], False),
        ([(0 * DAY, True), (1 * DAY, False), (2 * DAY, True), (3 * DAY, True)], False),
        ([(0 * DAY, True), (7 * DAY, True), (14 * DAY, True)], True),
        ([(0 * DAY, True), (1 * DAY, True), (2 * DAY, True), (3 * DAY, False)], False),
    ],
)
def test_three_nights_running_are_an_alarm(nights: list[tuple[timedelta, bool]], lasts: bool) -> None:
    conditions, newest = after(*nights)
    assert bool(lasting(conditions, newest)) == lasts
    if lasts:
        assert conditions[0].since == START
        assert conditions[0].times == len(nights)


def test_a_memory_of_the_future_is_begun_again() -> None:
    assert follow([Condition(KEY, START + DAY, 9)], [KEY], START) == (Condition(KEY, START),)


def test_a_hostile_host_cannot_fill_it_nor_push_out_skipped_deletions() -> None:
    many = [ConditionKey(ConditionKind.UNREADABLE, "/srv", f"/srv/{'x' * 5000}{number}") for number in range(5)]
    many += [ConditionKey(ConditionKind.VANISHED, "/srv", f"/srv/{number}") for number in range(1000)]
    skipped = ConditionKey(ConditionKind.DELETIONS_SKIPPED, "/srv")
    conditions = follow((), [*many, skipped], START)
    assert len(conditions) == MOST
    assert conditions[0].key == skipped
    assert max(len(condition.key.name) for condition in conditions) <= LONGEST_NAME + 3
    assert conditions_of([condition.as_json() for condition in conditions]) == conditions


def test_what_the_configuration_leaves_out_is_no_alarm_and_pushes_nothing_out() -> None:
    left_out = [ConditionKey(ConditionKind.LEFT_OUT, "/", f"/mnt/{number}") for number in range(50)]
    unreadable = [ConditionKey(ConditionKind.UNREADABLE, "/srv", f"/srv/{number}") for number in range(50)]
    followed: tuple[Condition, ...] = ()
    for day in range(4):
        followed = follow(followed, [*left_out, *unreadable], START + day * DAY)
    assert {condition.kind for condition in lasting(followed, START + 3 * DAY)} == {ConditionKind.UNREADABLE}
    assert [condition.kind for condition in followed] == [ConditionKind.UNREADABLE] * MOST + [ConditionKind.LEFT_OUT] * MOST
    assert conditions_of([condition.as_json() for condition in followed]) == followed
    (words,) = standing_words(followed)
    assert words.startswith("/mnt/0 has been excluded by `one_file_system` since 2026-11-01T22:00:00Z (4 backups in a row)"), words
    assert words.endswith("(and 19 more folders)"), words
    assert standing_words(follow((), left_out, START)) == []  # the warnings of its backup name it


@pytest.mark.parametrize(
    "entries", [None, 3, "x", [3], [{}], [{"kind": "new-kind"}], [{**Condition(KEY, START).as_json(), "times": "x"}]]
)
def test_a_damaged_memory_is_no_memory(entries: object) -> None:
    assert conditions_of(entries) == ()


@pytest.mark.parametrize(
    ("path", "name", "pattern"),
    [
        ("/srv", "/srv/u/.gvfs", "/srv/u/.gvfs"),
        ("/srv/", "/srv/u/", "/srv/u"),
        ("/", "/root/mnt", "/root/mnt"),
        ("/srv", "/folder/of/rrsync/srv/u", "/srv/u"),
        ("/srv", "/srv/a `b`", "/srv/a??b?"),
        ("/srv", "/srv/*[x]?\\", "/srv/??x???"),
        ("/srv", "/srv/\udce9t\xe9", "/srv/?t\xe9"),
        ("/srv", "/srv", ""),
        ("/srv", "/srvx/u", ""),
        ("/srv", "srv/u", ""),
        ("/srv", "", ""),
        ("/srv", "/srv/" + "x" * 600, ""),
    ],
)
def test_the_pattern_of_a_name(path: str, name: str, pattern: str) -> None:
    assert exclude_pattern(ConditionKey(ConditionKind.UNREADABLE, path, name)) == pattern


def test_the_alarm_names_the_command_that_leaves_the_unreadable_name_out() -> None:
    skipped = ConditionKey(ConditionKind.DELETIONS_SKIPPED, "/srv")
    text = host_words("web1", [Condition(skipped, START, 3), Condition(KEY, START, 3)], "backupd --pool big")
    assert text.endswith("exclude it: backupd --pool big host set web1 exclude+=/srv/mount"), text
    assert "deletions have been skipped since 2026-11-01T22:00:00Z (3 backups in a row)" in text


@pytest.mark.parametrize(
    ("key", "words", "remedy"),
    [
        (
            ConditionKey(ConditionKind.DUMP_FAILED, "", "shop"),
            "the host could not make the dump shop since 2026-11-01T22:00:00Z (3 backups in a row)",
            "Correct [dump shop] in /etc/btrkeep-source.conf on the host, then: backupd --pool big run web1",
        ),
        (
            ConditionKey(ConditionKind.NO_SNAPSHOT, ""),
            "the host has made no snapshots since 2026-11-01T22:00:00Z (3 backups in a row), so its files were read live",
            "The reason: backupd --pool big status web1",
        ),
        (
            ConditionKey(ConditionKind.NO_SNAPSHOT, "/srv"),
            "/srv has not been read from a snapshot since 2026-11-01T22:00:00Z (3 backups in a row)",
            "It became full: raise lvm_size in /etc/btrkeep-source.conf on the host, then: backupd --pool big run web1",
        ),
    ],
    ids=["dump", "host", "path"],
)
def test_a_dump_or_a_snapshot_that_fails_for_three_nights_is_an_alarm_with_its_remedy(
    key: ConditionKey, words: str, remedy: str
) -> None:
    conditions: tuple[Condition, ...] = ()
    for day in range(3):
        assert lasting(conditions, START + day * DAY) == ()
        conditions = follow(conditions, [key], START + day * DAY)
    assert host_words("web1", lasting(conditions, START + 2 * DAY), "backupd --pool big") == f"web1: {words}. {remedy}"
