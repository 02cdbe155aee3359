"""A year of the pool of a made-up site: samples, scores, balances and expiries, as they go together.

Holes gather until balance begins in the year's second half; every night there are backups, every morning an expiry, and every third
morning a balance.
"""

import math
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

from btrkeep.catalogue import BalanceStep, Catalogue, FreeSpaceScore, Sample

GIB, TIB = 1 << 30, 1 << 40
FILESYSTEM = "99bee88d-b5e5-478b-86f3-6f67e12ca5a1"
POOL = Path("/srv/backup")
SIZE = 40 * TIB
YEAR, RAW = timedelta(days=365), timedelta(days=14)
_PID = (4243, "1234568")


def fill(catalogue: Catalogue, now: datetime, hostile: Sequence[str] = ()) -> None:
    """Writes the whole history, up to `now`."""
    catalogue.replace_samples([], samples(now))
    for score in scores(now):
        catalogue.add_score(score)
    for ago in range(60, -1, -1):
        morning = datetime.combine(now.date() - timedelta(days=ago), time(3, 30), UTC)
        if morning + timedelta(hours=8) < now:
            _expiry(catalogue, morning, ago, hostile)
            if ago % 3 == 0:
                _balance(catalogue, morning + timedelta(hours=3), ago, hostile)


def used(days: float) -> float:
    """Returns the used TiB that many days ago."""
    return 36.56 - days * 0.021 + 0.25 * math.sin(days / 1.1)


def waste(days: float) -> float:
    """Returns the TiB that are allocated and not used."""
    return 4.6 - abs(days - 150) * 0.017 if days < 150 else 4.6 - (days - 150) * 0.012


def score_of(days: float) -> float:
    """Returns the sum over all block groups."""
    return 18_000 + waste(days) * 11_000


def samples(now: datetime) -> Iterator[Sample]:
    """Yields a sample per hour for a year, then one for each five minutes of two weeks."""
    chance, first = random.Random(7), now - RAW
    hour = (now - YEAR).replace(minute=0, second=0, microsecond=0)
    while hour < first:
        yield sample(hour, now, "hour", 3600.0, chance)
        hour += timedelta(hours=1)
    moment = first
    while moment <= now:
        yield sample(moment, now, "raw", 300.0, chance)
        moment += timedelta(minutes=5)


def sample(taken: datetime, now: datetime, span: str, seconds: float, chance: random.Random) -> Sample:
    """Returns the pool's state at that moment, and the activity of its disks before."""
    days = (now - taken).total_seconds() / 86400
    of_used, allocated = used(days), used(days) + waste(days)
    metadata, activity = of_used * 0.012, ""
    read, written = _rates(taken.hour + taken.minute / 60, 1 + 0.2 * chance.random())
    if 6.5 <= taken.hour < 9 and taken.day % 3 == 0:
        activity = "balance"
    pressure = {"io some": round(seconds * min(written / 9e7, 0.8), 3), "io full": round(seconds * min(written / 2e8, 0.6), 3)}
    return Sample(
        FILESYSTEM,
        taken,
        span,
        SIZE,
        round(allocated * TIB),
        round(of_used * TIB),
        {
            "data raid1": (round((allocated - 2 * metadata) * TIB / 2), round((of_used - metadata) * TIB / 2), 2000),
            "metadata raid1": (round(metadata * TIB), round(metadata * TIB / 2), 2000),
            "system raid1": (32 << 20, 1 << 20, 2000),
        },
        {"1": (SIZE // 2, round(allocated * TIB / 2), 0, 0, 0, 0, 0), "2": (SIZE // 2, round(allocated * TIB / 2), 0, 3, 0, 0, 0)},
        round(90 * chance.random()) if 3.5 <= taken.hour < 6 else 0,
        score_of(days),
        taken.replace(hour=6, minute=0, second=0, microsecond=0) - timedelta(days=taken.hour < 6),
        "rw,noatime,compress=zstd:3,nossd,discard=async,space_cache=v2,commit=60,subvolid=5,subvol=/",
        activity,
        seconds,
        round(read * seconds),
        round(written * seconds),
        read * 1.4,
        written * 1.4,
        pressure,
    )


def _rates(hour: float, wave: float) -> tuple[float, float]:
    """Returns the bytes per second read and written at that hour of the day: backups, expiry, balance, and little else."""
    mib = float(1 << 20)
    if hour >= 22 or hour < 3.5:
        return 24 * wave * mib, 52 * wave * mib
    if hour < 6:
        return 38 * wave * mib, 27 * wave * mib
    if hour < 9:
        return 14 * wave * mib, 41 * wave * mib
    return 0.6 * wave * mib, 0.4 * wave * mib


def scores(now: datetime) -> Iterator[FreeSpaceScore]:
    """Yields a score for each morning."""
    for ago in range(365, -1, -1):
        taken = datetime.combine(now.date() - timedelta(days=ago), time(6), UTC)
        if taken > now:
            return
        length, of_used = (used(ago) + waste(ago)) * TIB / 2, used(ago) * TIB / 2
        free = length - of_used
        classes = tuple((4096 << number, round(60_000 / 1.6**number), round(free * (number + 1) / 136)) for number in range(16))
        yield FreeSpaceScore(
            FILESYSTEM,
            taken,
            round(length / GIB),
            round(length),
            round(of_used),
            round((SIZE - length * 2) / 2),
            sum(count for _, count, _ in classes),
            score_of(ago),
            round(waste(ago) * 90),
            1 << 30,
            round(free * 0.3),
            classes,
        )


def _expiry(catalogue: Catalogue, started: datetime, ago: int, hostile: Sequence[str]) -> None:
    outcome = {17: "partial", 29: "failed", 41: "stopped"}.get(ago, "complete")
    deleted = 2400 + ago * 37 % 300 if outcome == "complete" else 310
    finished = started + timedelta(minutes=95 + ago % 20)
    catalogue.start_expiry(
        started,
        *_PID,
        finished=finished,
        updated=finished,
        outcome=outcome,
        planned=2700,
        marked=2650,
        revived=ago % 3,
        deleted=deleted,
        left_out=ago % 4,
        waiting=0,
        most_waiting=100,
        rate=0.45,
        eta=None,
        written_bytes=180 * GIB,
        mount_option="ssd",
        paused=None,
        error=None
        if outcome == "complete"
        else f"{outcome}: {hostile[ago % len(hostile)] if hostile else 'too many would go at once'}",
    )


def _balance(catalogue: Catalogue, started: datetime, ago: int, hostile: Sequence[str]) -> None:
    before = _numbers(ago)
    key = catalogue.start_balance(
        FILESYSTEM, str(POOL), started, *_PID, policy="benefit", budget=12 * GIB, before=before, updated=started
    )
    moment, moved, written, gained = started, 0, 0, 0.0
    for number in range(1, 13):
        outcome = "no space" if (ago, number) == (30, 7) else "done"
        step = _step(key, number, moment, ago, outcome)
        moment += timedelta(seconds=step.seconds)
        moved, written, gained = moved + step.moved, written + (step.written or 0), gained + step.gained
        catalogue.add_step(step)
    catalogue.finish_balance(
        key,
        finished=moment,
        updated=moment,
        outcome="budget",
        why=hostile[ago % len(hostile)] if hostile else "the budget of 12.0 GiB is used",
        block_groups=12,
        moved=moved,
        written=written,
        gained=gained,
        failed=int(ago == 30),
        after={**before, "score": before["score"] - gained},
    )


def _step(key: int, number: int, started: datetime, ago: int, outcome: str) -> BalanceStep:
    place = ago * 131 + number * 17
    moved = (300 + place % 500) << 20
    return BalanceStep(
        balance=key,
        number=number,
        vaddr=(place % 19_000) * GIB,
        length=GIB,
        used=moved,
        extents=2000 + place % 700,
        refs=64_000 + place % 9000,
        fragments=400 + place % 90,
        score=250.0 + place % 200,
        started=started,
        seconds=240.0 + place % 300,
        moved=moved if outcome == "done" else 0,
        written=moved * (9 + place % 30),
        estimate_written=moved * 20,
        estimate_seconds=300.0,
        gained=200.0 + place % 150 if outcome == "done" else 0.0,
        outcome=outcome,
        error=None if outcome == "done" else "No space left on device",
    )


def _numbers(ago: int) -> dict[str, float]:
    length, of_used = (used(ago) + waste(ago)) * TIB / 2, used(ago) * TIB / 2
    return {
        "block_groups": round(length / GIB),
        "allocated": round(length),
        "used": round(of_used),
        "unallocated": round((SIZE - length * 2) / 2),
        "fragments": 160_000,
        "score": score_of(ago),
        "largest_free": GIB,
        "free_in_large": round((length - of_used) * 0.3),
    }
