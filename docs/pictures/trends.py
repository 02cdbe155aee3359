"""Draws trend.svg and day.svg beside itself, out of a made up history: `python docs/pictures/trends.py` from the top folder.

The history has what real ones have: a pool of 40 TiB that fills its holes badly until balance comes in August, weeks, a day on
which many hosts were added, six days without samples; and a day with its backups, its expiry and its balance.
"""

import argparse
import math
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))  # the pictures are made in a bare checkout

from backupd.observe.graph_pictures import (  # noqa: E402
    TrendData,
    day_picture,
    save,
    trend_picture,
)
from btrkeep.catalogue import Job, Sample  # noqa: E402
from btrkeep.charts.trend import TrendContext  # noqa: E402
from btrkeep.decisions.day_phases import DayData, phases, slots, sums  # noqa: E402  # noqa: E402
from btrkeep.decisions.trend import FullForecast, forecasts, points  # noqa: E402

GIB, TIB = 1 << 30, 1 << 40
SIZE = 40 * TIB
NOW = datetime(2026, 11, 21, tzinfo=UTC)
FILESYSTEM = "99bee88d-b5e5-478b-86f3-6f67e12ca5a1"
ZONE = ZoneInfo("Europe/Amsterdam")
MIB = float(1 << 20)


def sample(taken: datetime, used: float, allocated: float, score: float, **more: float) -> Sample:
    """One sample; sizes in TiB."""
    metadata = used * 0.012
    spaces = {
        "data raid1": (round((allocated - 2 * metadata) * TIB / 2), round((used - metadata) * TIB / 2), 2000),
        "metadata raid1": (round(metadata * TIB), round(metadata * TIB / 2), 2000),
    }
    rates = {"seconds": 0.0, "read": 0, "written": 0, **more}
    return Sample(
        FILESYSTEM, taken, "raw", SIZE, round(allocated * TIB), round(used * TIB), spaces, {}, 0, score, taken, "rw,noatime", "",
        rates["seconds"], int(rates["read"]), int(rates["written"]), 0.0, 0.0, {},
    )  # fmt: skip


def months() -> list[Sample]:
    """Half a year: waste grows until balance begins, then shrinks."""
    chance, samples = random.Random(7), []
    waste, used, score = 2.6, 26.8, 61_000.0
    for day in range(181):
        moment = NOW - timedelta(days=180 - day)
        is_balanced = day > 74
        used += 0.016 + chance.gauss(0, 0.02) + (0.09 if moment.weekday() < 5 else -0.21) * 0.35 + (1.1 if day == 48 else 0)
        waste = max(waste + (-0.085 if is_balanced else 0.055) * (1 if waste > 1.3 else 0.1) + chance.gauss(0, 0.03), 0.9)
        score = max(score + (-1900 if is_balanced else 900) * (1 if score > 22_000 else 0.05) + chance.gauss(0, 900), 15_000)
        if day not in (113, 114, 115, 116, 117, 118):
            samples.append(sample(moment, used, used + waste, score))
    return samples


def a_day() -> tuple[list[Sample], list[Job]]:
    """Noon to noon."""
    chance, samples = random.Random(3), []
    begin = NOW.replace(hour=12) - timedelta(days=1)

    def at(hours: float) -> datetime:
        return begin + timedelta(hours=hours)

    jobs = [
        Job("backup", at(9), at(14.6), None, round(412 * GIB)),
        Job("expire", at(14.75), at(17.2), None, 0),
        Job("balance", at(18.5), at(22.4), None, round(61 * GIB)),
    ]
    for number in range(289):
        hours = number / 12
        wave = 1 + 0.25 * math.sin(number / 5) + chance.gauss(0, 0.12)
        read, written = 0.6, 0.5
        if 9 <= hours < 14.6:
            strength = min((hours - 9) * 3, 1) * min((14.6 - hours) * 0.8, 1)
            read, written = 24 * strength * wave + 1, 52 * strength * wave + 1
        elif 14.75 <= hours < 17.2:
            read, written = 38 * wave, 27 * wave
        elif 18.5 <= hours < 22.4:
            read, written = 14 * wave, 41 * wave * (1 if number % 9 else 0.3)
        moment = at(hours)
        samples.append(sample(moment, 27, 29, 0, seconds=300.0, read=read * MIB * 300, written=max(written, 0.2) * MIB * 300))
    return samples, jobs


def main(folder: Path) -> None:
    """Both pictures."""
    begin = NOW - timedelta(days=180)
    daily = points(months(), begin, timedelta(days=1))
    used = forecasts(daily)[1]
    assert isinstance(used, FullForecast)
    trend = TrendData("/srv/backup", begin, NOW, ZONE, daily, TrendContext(0.9, (), used))
    save(trend_picture(trend), folder / "trend.svg")
    samples, jobs = a_day()
    start, end = samples[0].taken, samples[-1].taken
    ran = phases(jobs, samples, start, end)
    shown = slots(samples, start, end, 288)
    save(
        day_picture(DayData("/srv/backup", start, end, ZONE, shown, ran, sums(samples, jobs, ran, start, end))), folder / "day.svg"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, metavar="FOLDER", help="another one")
    main(parser.parse_args().folder)
