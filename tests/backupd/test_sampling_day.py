"""A day of the disks: rates, phases and the ratio of metadata to data, compared with sums calculated manually."""

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from backupd.observe.cli.day import lines, sum_lines
from btrkeep.catalogue import Job
from btrkeep.decisions.day_phases import DayData, Phase, PhaseSum, Slot, phases, slots, sums, unknown_spans, within
from btrkeep.decisions.trend import hour_ticks
from tests.backupd.made_samples import GIB, START, every_five_minutes, sample

HOUR, MIB = timedelta(hours=1), 1 << 20


def at(hours: float) -> datetime:
    return START + timedelta(hours=hours)


def test_the_rate_of_a_slot_is_what_its_samples_say() -> None:
    actual_slots = slots(every_five_minutes(12), START, at(2), 24)
    assert [slot.written for slot in actual_slots[:12]] == [pytest.approx(2 * MIB)] * 12
    assert [slot.read for slot in actual_slots[:12]] == [pytest.approx(MIB)] * 12
    assert [(slot.known, slot.written) for slot in actual_slots[12:]] == [(0.0, None)] * 12
    assert unknown_spans(actual_slots) == [(at(1), at(2))]
    assert unknown_spans(actual_slots[:12]) == []


def test_a_sample_of_hours_is_spread_over_them_and_adds_up_to_the_same() -> None:
    long_sample = sample(at(3), seconds=7200.0, read=0, written=7200 * MIB)
    actual_slots = slots([long_sample], START, at(4), 48)
    assert sum((slot.written or 0) * slot.known for slot in actual_slots) == pytest.approx(7200 * MIB)
    assert {slot.start.hour for slot in actual_slots if slot.known} == {1, 2}
    assert list(within([long_sample], at(2.5), at(9))) == pytest.approx([1800.0, 0.0, 1800 * MIB])


def test_hosts_that_follow_each_other_are_one_backup_and_what_lies_outside_is_cut() -> None:
    jobs = [
        Job("backup", at(-2), at(0.5), None, 1),
        Job("backup", at(0.6), at(1), None, 1),
        Job("expire", at(0.9), at(1.4), None, 0),
        Job("backup", at(3), at(3.2), None, 1),
        Job("balance", at(7.9), at(30), None, 1),
    ]
    assert phases(jobs, [], START, at(8)) == [
        Phase("backup", START, at(1)),
        Phase("backup", at(3), at(3.2)),
        Phase("balance", at(7.9), at(8)),
        Phase("expire", at(0.9), at(1.4)),
    ]


def test_what_the_kernel_was_seen_doing_is_a_phase_but_not_what_is_paused() -> None:
    seen = ["", "scrub", "scrub", "scrub, balance paused", "balance paused", "", "scrub"]
    samples = [replace(blank_sample, activity=word) for blank_sample, word in zip(every_five_minutes(7), seen, strict=True)]
    assert phases([], samples, START, at(1)) == [Phase("scrub", samples[1].taken, samples[3].taken)]


def test_the_ratio_is_what_was_written_besides_data_with_all_copies_counted() -> None:
    """An hour of 2 MiB/s is 7200 MiB; raid1, so 1800 MiB of files are 3600 MiB of devices, and as much again is metadata."""
    raid1 = {"data raid1": (9 * GIB, 8 * GIB, 2000), "metadata raid1": (GIB, GIB, 2000)}
    samples = every_five_minutes(24, spaces=raid1)
    jobs = [Job("backup", at(0), at(1), None, 1800 * MIB), Job("expire", at(1), at(1.5), None, 0)]
    whole, backup, expire = sums(samples, jobs, phases(jobs, samples, START, at(2)), START, at(2))
    assert (backup.kind, backup.known, backup.written, backup.data) == ("backup", 3600.0, 7200 * MIB, 3600 * MIB)
    assert (backup.metadata, backup.ratio) == (3600 * MIB, 1.0)
    assert (expire.data, expire.metadata, expire.ratio) == (0, 3600 * MIB, None)
    assert (whole.kind, whole.written, whole.ratio) == ("", 14400 * MIB, 3.0)


def test_less_written_than_data_has_no_ratio_and_a_job_over_the_edge_counts_in_part() -> None:
    samples = every_five_minutes(12)
    jobs = [Job("balance", at(-3), at(1), None, 4 * 9000 * MIB)]
    phase_sum = sums(samples, jobs, phases(jobs, samples, START, at(1)), START, at(1))[1]
    assert phase_sum.data == 9000 * MIB
    assert (phase_sum.metadata, phase_sum.ratio) == (None, None)


def test_hours_are_those_of_the_zones_clock_on_the_day_that_it_changes() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    start, end = datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 10, 25, 23, tzinfo=UTC)
    actual_hour_ticks = hour_ticks(start, end, berlin)
    assert [words for _, words in actual_hour_ticks] == [
        "00:00",
        "03:00",
        "06:00",
        "09:00",
        "12:00",
        "15:00",
        "18:00",
        "21:00",
        "00:00",
    ]
    assert actual_hour_ticks[1][0] - actual_hour_ticks[0][0] == 4 * HOUR


@pytest.fixture(autouse=True)
def _on_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width of a pipe, regardless of pytest's output."""
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


def made_day() -> DayData:
    read = [0.0] * 12 + [float(MIB)] * 12
    shown = [Slot(at(number), at(number + 1), 3600.0, rate, 2 * rate) for number, rate in enumerate(read)]
    ran = [Phase("backup", at(12), at(18)), Phase("expire", at(18), at(24))]
    table = [
        PhaseSum("", 86400, 86400, 10 * GIB, 20 * GIB, 5 * GIB, 15 * GIB, 3.0),
        PhaseSum("backup", 21600, 21600, GIB, 12 * GIB, 5 * GIB, 7 * GIB, 1.4),
    ]
    return DayData("/srv/backup", START, at(24), ZoneInfo("UTC"), shown, ran, table)


def test_the_text_has_the_bars_in_the_half_of_the_day_in_which_something_was_written() -> None:
    text = "\n".join(lines(made_day())).splitlines()
    assert max(map(len, text)) <= 80
    (foot,) = [line for line in text if line.endswith("█") and "1.00 MiB/s" not in line][-1:]
    bars = foot[12:]
    assert (bars[: len(bars) // 2 - 1].strip(), set(bars[len(bars) // 2 + 1 :])) == ("", {"█"})
    (backup,) = [line for line in text if line.strip().startswith("backup") and "━" in line]
    assert abs(backup.index("━") - 12 - len(bars) // 2) <= 1
    assert abs(backup.count("━") - len(bars) // 4) <= 1


def test_the_table_says_what_was_written_for_what() -> None:
    head, whole, backup = sum_lines(made_day())[0].splitlines()
    assert head.split() == ["TIME", "READ", "WRITTEN", "DATA", "METADATA", "RATIO"]
    assert whole.split()[-1] == "3.00"
    assert backup.split() == ["backup", "6h", "1.00", "GiB", "12.0", "GiB", "5.00", "GiB", "7.00", "GiB", "1.40"]
