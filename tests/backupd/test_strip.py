"""The strip of days: the letter of each day, compared with `calendar` and with hand-drawn rows."""

import calendar
import re
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from btrkeep.config import Retention
from btrkeep.decisions import retention_words
from btrkeep.decisions.calendar_strip import (
    GOES,
    HELD,
    KEPT,
    KINDS,
    NARROWEST,
    SUSPECT,
    StripBackup,
    StripLetter,
    kind_of,
    strip,
)
from btrkeep.decisions.expiry_plan import HostBackups
from btrkeep.decisions.retention import Candidate
from btrkeep.decisions.retention_words import cells, explain

YEARLY, MONTHLY, WEEKLY, DAILY = KINDS[1:5]
TODAY = date(2026, 11, 20)
ROW = re.compile(r"(\d{4})-(\d\d)  ([ .HYMWdk?x]*)(?:  .*)?")


def shown(*pairs: tuple[str, StripLetter]) -> list[StripBackup]:
    return [StripBackup(date.fromisoformat(day), kind) for day, kind in pairs]


def letters(lines: list[str]) -> dict[date, str]:
    """The letters of the strip, by day."""
    answer = {}
    for line in lines:
        if match := ROW.fullmatch(line):
            for number, letter in enumerate(match[3], start=1):
                if letter != " ":
                    answer[date(int(match[1]), int(match[2]), number)] = letter
    return answer


def test_a_short_history_as_it_is_drawn() -> None:
    backups = shown(
        ("2026-10-28", MONTHLY),
        ("2026-10-30", SUSPECT),
        ("2026-11-01", GOES),
        ("2026-11-02", WEEKLY),
        ("2026-11-19", HELD),
        ("2026-11-20", DAILY),
    )
    assert strip(backups, TODAY, 80) == [
        "         1   5    10   15   20   25   30",
        "2026-10                             M.?.  2 kept",
        "2026-11  xW................Hd             3 kept, 1 to delete",
        "         H held  M monthly  W weekly  d daily  ? suspect or failed",
        "         x to be deleted  . none",
    ]


def test_the_ruler_stands_above_its_days() -> None:
    every_day = [StripBackup(date(2026, 10, day), DAILY if day in (1, 5, 10, 15, 20, 25, 30) else GOES) for day in range(1, 32)]
    ruler, row, *_ = strip(every_day, date(2026, 10, 31), 80)
    days = [ruler[at : at + 2].strip() for at, letter in enumerate(row.partition(" kept")[0]) if letter == "d"]
    assert days == [str(day) for day in (1, 5, 10, 15, 20, 25, 30)]


def test_of_a_days_backups_the_one_that_lasts_longest_is_shown() -> None:
    assert [kind.letter for kind in KINDS] == list("HYMWdk?x")
    order = [HELD, YEARLY, MONTHLY, WEEKLY, DAILY, KEPT, SUSPECT, GOES]
    for place, kind in enumerate(order):
        for other in order[place:]:
            for pair in ((other, kind), (kind, other)):
                lines = strip([StripBackup(TODAY, strip_letter) for strip_letter in pair], TODAY, 80)
                assert letters(lines) == {TODAY: kind.letter}


@pytest.mark.parametrize(
    ("keep", "rules", "state", "kind"),
    [
        (True, ["daily"], "complete", DAILY),
        (True, ["daily", "weekly"], "complete", WEEKLY),
        (True, ["daily", "weekly", "monthly", "yearly", "newest-complete"], "complete", YEARLY),
        (True, ["monthly", "held"], "complete", HELD),
        (True, ["held"], "suspect", HELD),
        (True, ["newest-complete", "min_keep"], "complete", KEPT),
        (True, ["no-policy"], "complete", KEPT),
        (True, ["of a later version"], "complete", KEPT),
        (True, ["daily", "newest"], "suspect", SUSPECT),
        (True, ["newest"], "failed", SUSPECT),
        (False, ["no-rule"], "complete", GOES),
        (False, ["replaced"], "suspect", GOES),
    ],
)
def test_the_letter_follows_from_the_rules(keep: bool, rules: list[str], state: str, kind: StripLetter) -> None:
    assert kind_of(keep, rules, state) is kind


def test_the_letters_are_the_same_whatever_the_reasons_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    zone, now = ZoneInfo("UTC"), datetime(2026, 11, 20, 23, tzinfo=UTC)
    days = [datetime(2026, 11, day, 22, tzinfo=UTC) for day in range(1, 21)]
    backups = [Candidate(f"{day:%Y-%m-%dT%H%M%SZ}", day, "suspect" if day.day == 20 else "complete") for day in days]

    def row() -> str:
        facts = HostBackups("web1", backups, Retention(daily=3, weekly=2, monthly=1))
        return strip(cells(explain(facts, facts.policy, zone, now), zone), TODAY, 80)[1]

    before = row()
    assert set("MWdx?") <= set(before)
    retention_words.reason_words.cache_clear()
    monkeypatch.setattr(retention_words, "REASONS", dict.fromkeys(retention_words.REASONS, "yearly {number} of {of}"))
    assert row() == before


def test_months_without_a_backup_are_told_in_words_and_a_single_one_is_drawn() -> None:
    lines = strip(shown(("2025-12-31", YEARLY), ("2026-07-01", MONTHLY), ("2026-09-01", MONTHLY)), date(2026, 9, 3), 80)
    assert lines[1:-1] == [
        "2025-12                                Y  1 kept",
        "         (6 months without a backup)",
        "2026-07  M..............................  1 kept",
        "2026-08  ...............................",
        "2026-09  M..                              1 kept",
    ]


def test_what_is_stamped_later_than_today_is_not_shown() -> None:
    assert letters(strip(shown(("2026-11-20", DAILY), ("2028-01-01", KEPT)), TODAY, 80)) == {TODAY: "d"}
    assert strip(shown(("2028-01-01", KEPT)), TODAY, 80) == []
    assert strip([], TODAY, 80) == []


def test_a_leap_day_has_its_place_and_an_ordinary_february_has_none() -> None:
    assert letters(strip(shown(("2028-02-29", DAILY)), date(2028, 3, 1), 80))[date(2028, 2, 29)] == "d"
    row = strip(shown(("2027-02-01", DAILY)), date(2027, 3, 1), NARROWEST)[1]
    assert row == "2027-02  d" + "." * 27


@given(
    st.lists(st.tuples(st.integers(0, 900), st.sampled_from(KINDS)), min_size=1, max_size=60),
    st.integers(NARROWEST, 200),
    st.dates(date(1990, 1, 1), date(2090, 1, 1)),
)
def test_every_day_has_its_letter_and_no_line_is_too_wide(pairs: list[tuple[int, StripLetter]], width: int, today: date) -> None:
    backups = [StripBackup(today - timedelta(days=ago), kind) for ago, kind in pairs]
    lines = strip(backups, today, width)
    assert max(map(len, lines)) <= width
    assert all(line.isascii() for line in lines)
    drawn = letters(lines)
    assert {day for day, letter in drawn.items() if letter != "."} == {backup.day for backup in backups}
    assert all(min(backup.day for backup in backups) <= day <= today for day in drawn)
    for line in lines:
        if match := ROW.fullmatch(line):
            assert len(match[3].rstrip()) <= calendar.monthrange(int(match[1]), int(match[2]))[1]
    if width >= 65:
        counts = [
            tuple(map(int, pair))
            for pair in re.findall(r"(\d+) kept(?:, (\d+) to delete)?", "\n".join(lines).replace("kept\n", "kept, 0 to delete\n"))
        ]
        assert sum(kept + gone for kept, gone in counts) == len(backups)
        assert sum(gone for _, gone in counts) == sum(backup.kind is GOES for backup in backups)


def test_where_a_month_has_no_room_there_is_no_strip() -> None:
    assert strip(shown(("2026-11-20", DAILY)), TODAY, NARROWEST - 1) == []
    assert len(strip(shown(("2026-11-20", DAILY)), TODAY, NARROWEST)) >= 3


def test_colours_change_nothing_but_the_letters_and_every_letter_has_one() -> None:
    backups = [StripBackup(TODAY - timedelta(days=number), kind) for number, kind in enumerate(KINDS)]
    painted = strip(backups, TODAY, 80, lambda text, colour: f"<{colour}>{text}</>")
    assert (
        [re.sub(r"<\d*>|</>", "", line) for line in painted]
        == strip(backups, TODAY, 80)
        == [re.sub(r"<\d+>|</>", "", line) for line in painted]
    )
    for kind in KINDS:
        assert sum(f"<{kind.colour}>{kind.letter}</>" in line for line in painted) >= 2  # in its day, and in the legend


def luminance(colour: int) -> float:
    """Of one of xterm's 256 colours, by the formula of WCAG 2."""
    if colour < 232:
        levels = (0, 95, 135, 175, 215, 255)
        number = colour - 16
        rgb = (levels[number // 36], levels[number // 6 % 6], levels[number % 6])
    else:
        rgb = (8 + 10 * (colour - 232),) * 3
    linear = [value / 255 / 12.92 if value / 255 <= 0.04045 else ((value / 255 + 0.055) / 1.055) ** 2.4 for value in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.words)
def test_a_colour_stands_out_from_black_and_from_white(kind: StripLetter) -> None:
    count = luminance(kind.colour)
    assert (count + 0.05) / 0.05 > 3.5
    assert 1.05 / (count + 0.05) > 3.5
