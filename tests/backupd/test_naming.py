"""The backup to which `latest`, a name or a day refers in commands that change a backup; and that nothing else is deleted."""

import pytest

from backupd.actions.hold import DayMeaning, resolve_name
from btrkeep.errors import UsageError

NAMES = ["2026-11-29T030000Z", "2026-11-28T220000Z", "2026-11-28T030000Z", "2026-11-27T030000Z"]
DAYS = [DayMeaning.NEWEST, DayMeaning.ONLY]
FITS = {"2026-11-28T030000Z", "2026-11-27T030000Z"}


def resolved(name: str, *, day: DayMeaning, others: tuple[str, ...] = ()) -> str:
    return resolve_name("web1", name, NAMES, FITS.__contains__, "held", day=day, others=others)


@pytest.mark.parametrize("day", DAYS)
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("latest", "2026-11-28T030000Z"),
        ("2026-11-29T030000Z", "2026-11-29T030000Z"),
        ("2026-11-27", "2026-11-27T030000Z"),
    ],
)
def test_a_shortened_name_that_fits_one_backup_selects_it(name: str, chosen: str, day: DayMeaning) -> None:
    assert resolved(name, day=day) == chosen


def test_a_day_with_two_backups_is_the_newest_that_fits_or_refused_with_the_list() -> None:
    assert resolved("2026-11-28", day=DayMeaning.NEWEST) == "2026-11-28T030000Z"
    with pytest.raises(UsageError) as error:
        resolved("2026-11-28", day=DayMeaning.ONLY)
    assert error.value.message == "web1 has 2 backups of 2026-11-28: 2026-11-28T220000Z, 2026-11-28T030000Z"
    assert error.value.hint == "give the full name of one of these backups"


def test_an_unreadable_backup_of_the_same_day_makes_the_day_ambiguous() -> None:
    with pytest.raises(UsageError, match="2 backups"):
        resolved("2026-11-27", day=DayMeaning.ONLY, others=("2026-11-27T220000Z",))
    assert resolved("2026-11-26", day=DayMeaning.ONLY, others=("2026-11-26T220000Z",)) == "2026-11-26T220000Z"


@pytest.mark.parametrize("name", ["2026-11-30", "2026-11", "2026-11-28T22", "", "*", "2026-11-2?", "/", ".", "late"])
@pytest.mark.parametrize("day", DAYS)
def test_a_pattern_or_a_day_without_a_backup_selects_nothing(name: str, day: DayMeaning) -> None:
    with pytest.raises(UsageError, match="web1 has no backup"):
        resolved(name, day=day)


def test_latest_of_nothing_that_fits_is_refused() -> None:
    with pytest.raises(UsageError, match="web1 has no held backup"):
        resolve_name("web1", "latest", NAMES, lambda _: False, "held", day=DayMeaning.ONLY)


def test_a_command_that_deletes_takes_no_day_and_names_its_backups() -> None:
    for day, listed in (("2026-11-27", "2026-11-27T030000Z"), ("2026-11-28", "2026-11-28T220000Z, 2026-11-28T030000Z")):
        with pytest.raises(UsageError, match=f"web1 has no backup {day}") as error:
            resolved(day, day=DayMeaning.NONE)
        assert error.value.hint == f"give the full name of a backup of that day: {listed}"
    assert resolved("2026-11-27T030000Z", day=DayMeaning.NONE) == "2026-11-27T030000Z"
    assert resolved("latest", day=DayMeaning.NONE) == "2026-11-28T030000Z"
