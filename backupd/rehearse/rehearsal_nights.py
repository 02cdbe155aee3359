"""Runs all nights of a rehearsal: each variant with each seed on its own filesystem, one after the other.

A night is written (fill.py); then the real programs work on the pool as processes: `backupd expire`, `btrfs-balancer run`,
`btrfs-balancer score`, `btrfs-heatmap`. The variants of a seed alternate in which comes first.
"""

import errno
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from backupd.rehearse.fill import HostFiles, NightWriter
from backupd.rehearse.fleet import largest_file
from backupd.rehearse.pool import Place, throwaway
from backupd.rehearse.rehearsal_types import NightReading, RehearsalPlan, RehearsedRun, Variant
from btrkeep.catalogue import Catalogue
from btrkeep.config.config_model import PERIOD_NAMES
from btrkeep.errors import OperatorError
from btrkeep.pool.activity import written_bytes
from btrkeep.pool.allocation import Allocation, read_allocation
from btrkeep.pool.marker import create_pool
from btrkeep.pool.mounts import mount_of, set_allocator
from btrkeep.pool.subvolume import commit
from btrkeep.process.group import ENDS_WITH_US
from btrkeep.process.programs import ProgramStopped, our_command, run_watched
from btrkeep.process.progress import Cancellation, Cancelled, ProgressSinks
from btrkeep.units import format_time

FIRST = datetime(2024, 1, 1, 22, 0, tzinfo=UTC)
_MORNING = timedelta(hours=5)
_LONG = 3600.0
_FLOOR = "15%"
"""A balance ends if less is unallocated. A block group is a tenth of a small pool, so this is one and a half of them. With less, a
balance may end without space for metadata, and the kernel makes the filesystem read-only.
"""
_EXPIRE_EVERY = 3  # nights, while a pool ages
_WELL = (0, 1)
"""Exit statuses that are results: an expiry or a balance that skipped something has 1."""


@dataclass(frozen=True, slots=True)
class NightDone:
    """An event: a night has ended."""

    done: int
    """Number of completed nights, of all."""
    of: int
    """Number of all nights."""
    variant: str
    """The name of the variant."""
    seed: int
    """The seed of its random numbers."""
    night: int
    """Its number, from 1."""


class Rehearsal:
    """All nights. `work` is a folder for this rehearsal alone, `place` the place of filesystems."""

    def __init__(
        self, plan: RehearsalPlan, work: Path, place: Place, cancellation: Cancellation, sinks: "ProgressSinks[NightDone]"
    ) -> None:
        self._plan, self._work, self._place = plan, work, place
        self._cancellation, self._sinks = cancellation, sinks
        self._done = 0

    def run(self) -> Iterator[RehearsedRun]:
        """Yields each run when it has ended. Ends early if cancelled, without the unfinished run."""
        self._make_catalogue()
        try:
            for seed in range(1, self._plan.seeds + 1):
                variants = self._plan.variants if seed % 2 else list(reversed(self._plan.variants))
                for variant in variants:
                    yield self._run(variant, seed)
        except Cancelled:
            return

    def _make_catalogue(self) -> None:
        """Creates an empty catalogue, to be copied, because creating one takes a second."""
        with Catalogue.open(self._work / "catalogue"):
            pass

    def _run(self, variant: Variant, seed: int) -> RehearsedRun:
        with (
            throwaway(self._work, self._place, variant.settings, self._plan.size, self._sinks.notice) as mount,
            closing(_PoolNights(self._plan, variant, seed, mount, self._work, self._cancellation)) as pool_nights,
        ):
            nights: list[NightReading] = []
            full: int | None = None
            for number in range(-self._plan.age, self._plan.days + 1):
                try:
                    nights += pool_nights.night(number)
                except (OSError, OperatorError) as error:
                    if not _is_full(error, mount):
                        raise
                    full = number
                    break
                self._done += 1
                self._sinks(NightDone(self._done, self._plan.nights, variant.name, seed, number))
            return RehearsedRun(variant.name, seed, tuple(nights), pool_nights.timelapse() if nights else b"", full)


class _PoolNights:
    """One variant with one seed."""

    def __init__(
        self, plan: RehearsalPlan, variant: Variant, seed: int, mount: Path, work: Path, cancellation: Cancellation
    ) -> None:
        self._plan, self._variant, self._mount, self._cancellation = plan, variant, mount, cancellation
        self._pictures = work / "pictures"
        self._draws = plan.heatmaps and seed == 1
        self._config = work / "rehearsal.toml"
        set_allocator(mount, plan.aged_with)
        self._pool = create_pool(mount / "pool", rehearsal=True, now=FIRST)
        state = work / "state"
        for folder in (state, self._pictures):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(work / "catalogue", state)
        self._state = state
        self._config.write_text(configuration(plan, variant, self._pool.path, state), encoding="utf-8")
        largest = largest_file(plan.size)
        hosts = {model.name: (plan.hosts[model.name], HostFiles(model, seed, largest)) for model in plan.fleet.hosts}
        self._catalogue = Catalogue.open(state)
        self._writer = NightWriter(self._pool, self._catalogue, hosts, variant.settings.inplace)

    def night(self, number: int) -> tuple[NightReading, ...]:
        """Runs a night. Returns its reading if it is measured: from number 1 on. Raises OSError (ENOSPC),
        OperatorError, Cancelled.
        """
        self._cancellation.raise_if_cancelled()
        started = FIRST + timedelta(days=number + self._plan.age)
        if number > 0:
            return (self._measured(number, started),)
        self._writer.write(started, self._plan.concurrency)
        if number == 0:
            self._expire(self._plan.age, started + _MORNING)
            set_allocator(self._mount, self._variant.settings.allocator)
        elif number % _EXPIRE_EVERY == 0:
            self._expire(number + self._plan.age, started + _MORNING)
        return ()

    def _measured(self, number: int, started: datetime) -> NightReading:
        night, new = _Span(self._mount), self._writer.write(started, self._plan.concurrency)
        night.end()
        expiry, expired = _Span(self._mount), self._expire(number + self._plan.age, started + _MORNING)
        expiry.end()
        balance, balanced = _Span(self._mount), self._balance()
        if balanced:
            balance.end()
        if self._draws:
            self._draw(number)
        scores = self._program("balancer", "score", str(self._mount), "--json")["block_groups"]
        allocation = read_allocation(self._mount)
        return NightReading(
            number=number,
            size=allocation.size,
            allocated=allocation.allocated,
            used=allocation.used,
            data_allocated=_sum(allocation, "total", "data"),
            data_used=_sum(allocation, "used", "data"),
            metadata_used=_sum(allocation, "used", "metadata"),
            score=sum(score["score"] for score in scores),
            fragments=sum(score["fragments"] for score in scores),
            new=new,
            night_written=night.written,
            expiry_written=expiry.written,
            balance_written=balance.written,
            night_seconds=night.seconds,
            expiry_seconds=expired.get("seconds", 0.0),
            balance_seconds=balanced.get("seconds", 0.0),
            deleted=expired.get("deleted", 0),
            moved=balanced.get("moved", 0),
        )

    def _expire(self, number: int, now: datetime) -> Mapping[str, Any]:
        """Expires, except in the first nights, in which some rule keeps every backup. Safety limits do not apply."""
        if number < min(_kept_at_least(self._plan, self._variant, name) for name in self._plan.hosts):
            return {}
        words = (
            "--config",
            str(self._config),
            "expire",
            "--json",
            "--wait",
            "--force",
            "hosts",
            "--force",
            "pool",
            "--now",
            format_time(now),
        )
        expired: Mapping[str, Any] = self._program("backupd", *words)
        return expired

    def _balance(self) -> Mapping[str, Any]:
        how = self._variant.settings.balance
        if how is None:
            return {}
        budget = max(int(_sum(read_allocation(self._mount), "used", "data") * how.budget), 1)
        words = ("--policy", how.policy, "--budget", f"{budget}B", "--no-yield", "--max-pressure", "none", "--json", "-q")
        balanced: Mapping[str, Any] = self._program(
            "balancer", "run", str(self._mount), *words, "--time", "none", "--min-unallocated", _FLOOR
        )
        return balanced

    def _draw(self, number: int) -> None:
        self._pictures.mkdir(exist_ok=True)
        words = ("--extents", "--size", "8", "-q", "-o", str(self._pictures / f"{number:05}.png"))
        self._program("heatmap", str(self._mount), *words)

    def timelapse(self) -> bytes:
        """Returns the heatmaps of all nights as an animation; b"" if there are none."""
        if not self._draws:
            return b""
        file = self._pictures / "timelapse.webp"
        self._program("heatmap", "timelapse", str(self._pictures), "-o", str(file), "-q", "--fps", "4", "--no-dates")
        return file.read_bytes()

    def _program(self, package: str, *words: str) -> Any:
        """Runs one of our programs and returns its JSON. Raises Cancelled, ProgramFailed."""
        command = (*ENDS_WITH_US, *our_command(package), *words)
        try:
            done = run_watched(command, timeout=_LONG, gone=lambda: bool(self._cancellation))
        except ProgramStopped:
            self._cancellation.raise_if_cancelled()
            raise
        if done.returncode not in _WELL:
            raise done.failed()
        return json.loads(done.stdout) if "--json" in words else None

    def close(self) -> None:
        """Closes the catalogue."""
        self._catalogue.close()


class _Span:
    """Measures the bytes written to the filesystem, and the time; includes a commit at the end."""

    def __init__(self, mount: Path) -> None:
        self._mount = mount
        self._before, self._begun = written_bytes(mount), time.monotonic()
        self.written, self.seconds = 0, 0.0

    def end(self) -> None:
        """Ends the span."""
        commit(self._mount)
        self.seconds = time.monotonic() - self._begun
        self.written = written_bytes(self._mount) - self._before


def _is_full(error: Exception, mount: Path) -> bool:
    """Returns True if there was no free space, also within a commit, which makes the filesystem read-only."""
    return (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EROFS)) or "ro" in mount_of(mount).super_options


def _sum(allocation: Allocation, field: str, kind: str) -> int:
    return sum(getattr(space, field) for space in allocation.spaces if space.type == kind)


def _kept_at_least(plan: RehearsalPlan, variant: Variant, host: str) -> int:
    policy = replace(plan.hosts[host].retention, **variant.settings.retention)
    return max(policy.min_keep, policy.daily)


def configuration(plan: RehearsalPlan, variant: Variant, pool: Path, state: Path) -> str:
    """Returns the configuration file of a throwaway pool, with the hosts' own retention."""
    settings = variant.settings
    sections: list[tuple[str, dict[str, Any]]] = [
        ("pool", {"path": str(pool), "state": str(state), "zone": plan.zone, "min_free": "0%"}),
        ("expiry", {"mount_option": settings.expiry, "max_orphans": plan.max_orphans, "pace": "off"}),
    ]
    for name in (model.name for model in plan.fleet.hosts):
        policy = replace(plan.hosts[name].retention, **settings.retention)
        rules = {key: getattr(policy, key) for key in (*PERIOD_NAMES, "min_keep")}
        sections.append((f"host.{json.dumps(name)}", {"address": "rehearsal", "paths": ["/data"]}))
        sections.append((f"host.{json.dumps(name)}.retention", {**rules, "grace": f"{round(policy.grace)}s"}))
    return "\n".join(
        f"[{title}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()) for title, keys in sections
    )
