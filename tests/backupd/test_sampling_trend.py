"""The trend: which samples become points, the chart of characters and the pictures."""

import re
import runpy
import xml.etree.ElementTree as ET
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from backupd.observe.chart import ASCII, BLOCKS, Axis, axis_for, bars, filled, labelled, strip, under
from backupd.observe.cli.trend import lines
from backupd.observe.graph_pictures import TrendData, save, trend_picture
from btrkeep.decisions.trend import Point, data_factor, metadata_share, points, step_for, time_ticks
from btrkeep.errors import OperatorError
from tests.backupd.made_samples import GIB, START, TIB, every_five_minutes, sample
from tests.beds import TOP

DAY = timedelta(days=1)


def point(number: float, allocated: int = 30 * TIB, used: int = 20 * TIB, score: float | None = None) -> Point:
    return Point(START + number * DAY, 40 * TIB, allocated, used, 0.01, 0, score)


def test_a_point_is_the_last_sample_of_its_step_and_a_step_without_one_has_none() -> None:
    raw = [*every_five_minutes(300), sample(START + timedelta(days=4), used=7)]
    actual_points = points(raw, START, DAY)
    assert [point.taken for point in actual_points] == [raw[286].taken, raw[299].taken, raw[300].taken]
    assert actual_points[-1].used == 7


@pytest.mark.parametrize(("days", "minutes"), [(1, 5), (7, 60), (30, 360), (180, 1440), (400, 1440), (3650, 7 * 1440)])
def test_few_days_are_shown_closely_and_many_coarsely(days: int, minutes: int) -> None:
    assert step_for(days * DAY) == timedelta(minutes=minutes)


def test_the_share_of_metadata_counts_copies() -> None:
    sample_of_three_spaces = sample(
        START, spaces={"data raid1": (9, 6, 2000), "system dup": (1, 1, 2000), "metadata raid1c3": (3, 2, 3000)}
    )
    assert metadata_share(sample_of_three_spaces) == pytest.approx(6 / 20)
    assert data_factor(sample_of_three_spaces) == 2.0
    assert data_factor(sample(START, spaces={"mixed single": (9, 6, 1000)})) == 1.0


def test_a_column_is_used_up_to_here_and_allocated_up_to_there() -> None:
    drawn = filled([(2, 3), (0, 4), None], Axis(0, 4), 4, ASCII)
    assert ["".join(column) for column in zip(*drawn[::-1], strict=True)] == ["##: ", "::::", "    "]


def test_bars_end_in_eighths_and_what_is_not_nothing_shows() -> None:
    assert bars([8.0, 4.5, 0.001, 0.0, None], 8.0, 1, BLOCKS) == ["█▄▁ ·"]
    assert bars([8.0, 5.0, 0.001, 0.0, None], 8.0, 2, ASCII) == ["#    ", "### ."]
    assert bars([0.0], 0.0, 1, BLOCKS) == [" "]


def test_the_scale_begins_at_zero_unless_nothing_could_be_seen() -> None:
    assert axis_for([10 * GIB], [20 * GIB]) == Axis(0, 20 * GIB)
    close = axis_for([30 * TIB, 31 * TIB], [32 * TIB, 32 * TIB])
    assert (close.least, close.most) == (29 * TIB, 32 * TIB)
    assert labelled(["##"] * 4, Axis(0, 4 * TIB), 2, 8)[2] == "2.00 TiB ##"


def test_labels_do_not_run_into_each_other_and_short_jobs_are_seen() -> None:
    assert under([(0, "Jun"), (2, "Jul"), (5, "Aug"), (9, "Sep")], 10) == "Jun  Aug"
    assert strip([(0.5, 0.5), (0.9, 1.0)], 10, ASCII) == "     =   ="


def test_axes_of_time_have_a_handful_of_names() -> None:
    for days in (1, 3, 10, 40, 79, 81, 180, 365, 899, 901, 3650):
        assert 0 < len(time_ticks(START, START + days * DAY)) <= 13, days
    assert [words for _, words in time_ticks(START, START + 180 * DAY)][:2] == ["Jul 2026", "Aug 2026"]


def test_an_axis_of_time_has_names_from_the_first_minutes_on() -> None:
    expected = {
        timedelta(minutes=6): ["00:00", "00:01", "00:02"],
        timedelta(hours=1): ["00:00", "00:10", "00:20"],
        timedelta(hours=5): ["00:00", "01:00", "02:00"],
        timedelta(days=1): ["00:00", "03:00", "06:00"],
        timedelta(days=2): ["1 Jun", "06:00", "12:00"],
    }
    assert {length: [words for _, words in time_ticks(START, START + length)][:3] for length in expected} == expected
    assert time_ticks(START, START) == [(START, "00:00")]


def test_the_text_shows_a_gap_and_tells_both_ends() -> None:
    result = [point(number, used=(20 + number) * TIB // 2) for number in range(20) if not 8 <= number < 14]
    text = lines(result, "/srv/backup")
    assert max(map(len, text)) <= 80
    body = [line for line in text if "█" in line and "used" not in line]
    assert " " in body[-1][10:].strip()
    assert "used space from 10.0 TiB to 19.5 TiB" in " ".join(text)
    assert "there is one sample so far" in " ".join(lines(result[:1], "/srv/backup"))


SVG = "{http://www.w3.org/2000/svg}"


def trend_of(*result: Point, name: str = "/srv/backup") -> TrendData:
    return TrendData(name, START, START + 60 * DAY, ZoneInfo("Europe/Amsterdam"), result)


def words_of(picture: bytes) -> list[str]:
    return [text.text or "" for text in ET.fromstring(picture).iter(f"{SVG}text")]


def test_a_picture_has_its_titles_units_dates_and_a_legend() -> None:
    words = words_of(trend_picture(trend_of(*(point(number, score=100.0 + number) for number in range(60)))))
    expected = [
        "/srv/backup: allocated and used",
        "used",
        "allocated, not used",
        "size of the devices",
        "0",
        "20 TiB",
        "40 TiB",
        "Allocated, not used: balance can free this space",
        "Score of the free space: lower means fewer small pieces",
        "100",
    ]
    assert [word for word in words if word in expected and word != "0"] == [word for word in expected if word != "0"]
    assert any(re.fullmatch(r"\d+ (Jul|Jun)", word) for word in words)
    assert "Score" not in " ".join(words_of(trend_picture(trend_of(point(0)))))


def test_a_pool_of_any_name_gives_a_picture_that_a_parser_reads() -> None:
    name = '/srv/<b> & "x" ü'
    assert words_of(trend_picture(trend_of(point(0), name=name)))[0] == f"{name}: allocated and used"


def test_a_picture_that_cannot_be_written_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    picture = trend_picture(trend_of(point(0)))
    with pytest.raises(OperatorError, match="cannot be written"):
        save(picture, tmp_path / "nowhere" / "x.svg")
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(OperatorError, match="cannot be written"):
        save(picture, tmp_path / "folder.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


def test_the_pictures_of_the_documentation_are_those_that_the_script_draws(tmp_path: Path) -> None:
    runpy.run_path(str(TOP / "docs" / "pictures" / "trends.py"))["main"](tmp_path)
    for name in ("trend.svg", "day.svg"):
        assert (tmp_path / name).read_bytes() == (TOP / "docs" / "pictures" / name).read_bytes()
