"""Balances block groups, one at a time. Each time the next one is chosen, read and scored again, then balanced or skipped.

The kernel relocates in a thread of this program. The main thread waits for it, checks the conditions that may end the run, and
reports progress.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from balancer import stop_rules as stops
from balancer.balance_plan import (
    BestBlockGroup,
    Costs,
    FilesystemReading,
    choose_block_group,
    excluded_by_device,
    is_filled,
    plan_all,
    read_filesystem,
    recheck_group,
)
from balancer.contention import (
    backups_at_work,
    lock_folders,
    lock_out_expiries,
    operation_and_who,
    require_balanceable,
    under_way_error,
)
from balancer.cost_model import DEFAULT, Model
from balancer.relocation import Attempt, RunSoFar, attempt
from balancer.run_types import (
    BalanceEvent,
    BalanceOutcome,
    BalanceStarted,
    PlannedBlockGroup,
    Report,
    RunSettings,
    StepDone,
    StopReason,
)
from balancer.stop_rules import Stop, StopFacts
from balancer.survey import filesystem_uuid
from btrkeep.errors import LockHeld
from btrkeep.pool.activity import written_bytes
from btrkeep.pool.allocation import read_room
from btrkeep.pool.mounts import open_btrfs
from btrkeep.pool.subvolume import commit
from btrkeep.process.progress import Cancellation, ProgressSink, ProgressSinks, Waiting
from btrkeep.procfs import IoPressure
from btrkeep.units import counted, format_duration, format_size

_LOOK_FOR_OTHERS = 2.0
_LOOK_AGAIN = 5.0
_SHORTEST_QUIET, _LONGEST_QUIET, _QUIET = 0.3, 3.0, 0.05  # seconds, and the share of the step before
_MOST_DROPPED = 50


class Balancing:
    """One run on the filesystem of `path`, a folder or file. `cancellation` also ends the current balance."""

    def __init__(
        self, path: Path, settings: RunSettings, model: Model = DEFAULT, sinks: Iterable[ProgressSink[BalanceEvent]] = ()
    ) -> None:
        self._path, self._settings, self._model = path, settings, model
        self._folder = path if path.is_dir() else path.resolve().parent
        self._tell = ProgressSinks[BalanceEvent](*sinks)
        self.cancellation = Cancellation()
        self._steps: list[StepDone] = []
        self._set_aside: set[int] = set()
        self._originals: set[int] | None = None

    def run(self) -> Report:
        """Runs until there is a reason to end. Raises PoolUnusable if it cannot be balanced, LockHeld if another balance has it."""
        with open_btrfs(self._path) as self._fd:
            require_balanceable(self._path)
            self._begun, self._started = time.monotonic(), datetime.now(UTC)
            self._filesystem = filesystem_uuid(self._path)
            self._require_no_other()
            self._locks = lock_folders(self._path, self._filesystem, self._settings.locks)
            self._pressure, self._costs = IoPressure(), Costs(self._fd)
            self._seen = self._before = self._read_filesystem()
            self._tell(BalanceStarted(self._before.numbers(), self._settings))
            report = self._rehearse() if self._settings.dry_run else self._balance()
            self._tell(report)
            return report

    def _require_no_other(self) -> None:
        exclusive, by = operation_and_who(self._folder)
        if exclusive != "none" and (exclusive == "balance paused" or not self._settings.wait_for_others):
            raise under_way_error(self._fd, self._path, exclusive, by)

    def _rehearse(self) -> Report:
        obstacle = stops.first_stop(stops.BEFORE, self._settings, self._facts())
        steps = plan_all(self._fd, self._seen, self._settings, self._model)
        number = sum(step.is_within for step in steps)
        why = f"the run would not start: {obstacle.why}" if obstacle else f"{number} of {len(steps)} block groups would be balanced"
        return self._report(Stop(obstacle.reason if obstacle else StopReason.DONE, why), planned=tuple(steps))

    def _balance(self) -> Report:
        if self._settings.max_pressure is not None and not self._pressure.is_known:
            self._tell.notice("this kernel has no I/O pressure information (boot with psi=1): --max-pressure has no effect")
        while not (stop := self._obstacle()):
            group = self._next()
            if isinstance(group, Stop):
                stop = group
                break
            if stop := self._after(group):
                break
        return self._report(stop)

    def _after(self, group: PlannedBlockGroup) -> Stop | None:
        """Balances the block group, perhaps after waiting for backups; returns the reason if the run ends with it."""
        try:
            with lock_out_expiries(self._locks if self._settings.yield_to_backups else (), datetime.now(UTC)):
                stop = self._step(group)
        except LockHeld as error:
            stop = self._kept_out(error)
        if stop is not None and not stop.passes:
            return stop
        ended = stops.stop_after_steps(self._steps, self._settings.policy)
        # Filling a device is a gain that is visible neither in the score nor in the total unallocated space.
        return None if ended and ended.reason is StopReason.NO_GAIN and self._settings.fill is not None else ended

    def _kept_out(self, error: LockHeld) -> Stop:
        """Returns why the block group cannot be started: an expiry has started to delete, or another run balances a block group."""
        stop = Stop(StopReason.BACKUPS, f"backups come first: {error.message}", self._settings.wait_for_others)
        if stop.passes:
            self._tell(Waiting(stop.why))
            self.cancellation.sleep(_LOOK_AGAIN)
            self._seen = self._read_filesystem()
        return stop

    def _report(self, stop: Stop, planned: tuple[PlannedBlockGroup, ...] = ()) -> Report:
        return Report(
            filesystem=self._filesystem,
            before=self._before.numbers(),
            after=self._seen.numbers(),
            steps=tuple(self._steps),
            started=self._started,
            seconds=time.monotonic() - self._begun,
            reason=stop.reason,
            why=stop.why,
            planned=planned,
            signal=(self.cancellation.signal or None) if stop.reason is StopReason.SIGNAL else None,
        )

    # --- reasons to wait or stop

    def _facts(self, pressure: float | None = None) -> StopFacts:
        room = read_room(self._folder)
        exclusive, by = operation_and_who(self._folder)
        facts = self._light_facts(backups=self._backups())
        return replace(
            facts, unallocated=room.unallocated, total=room.total, exclusive=exclusive, exclusive_by=by, pressure=pressure
        )

    def _backups(self) -> str | None:
        """Returns which backups or expiry come first."""
        if not self._settings.yield_to_backups:
            return None
        return backups_at_work(self._locks, only_expiry=self._settings.only_to_expiry)

    def _light_facts(self, backups: str | None) -> StopFacts:
        """Returns the facts that can be read ten times a second."""
        elapsed = time.monotonic() - self._begun
        return StopFacts(datetime.now(UTC), elapsed, self._moved, 0, 0, backups=backups, signal=self.cancellation.signal or None)

    @property
    def _moved(self) -> int:
        return sum(step.moved for step in self._steps)

    @property
    def _left(self) -> int | None:
        return None if self._settings.budget is None else self._settings.budget - self._moved

    def _obstacle(self) -> Stop | None:
        """Waits for conditions that may end; returns why no block group may be started, None if one may."""
        stop = stops.first_stop(stops.BEFORE, self._settings, self._facts(self._quiet_pressure()))
        if stop is None or not stop.passes:
            return stop
        begun = time.monotonic()
        while time.monotonic() - begun < self._settings.patience:
            self._tell(Waiting(stop.why))
            self._pressure.restart()
            self.cancellation.sleep(min(_LOOK_AGAIN, self._settings.patience))
            now = stops.first_stop(stops.BEFORE, self._settings, self._facts(self._pressure.share()))
            if now is None:
                self._seen = self._read_filesystem()  # other programs were active in between
            if now is None or not now.passes:
                return now
            stop = now
        return replace(stop, why=f"{stop.why}, after {format_duration(self._settings.patience)} of waiting")

    def _quiet_pressure(self) -> float | None:
        """Measures the pressure while nothing is balanced: a balance makes others wait, and waits itself."""
        if self._settings.max_pressure is None or not self._pressure.is_known:
            return None
        last = self._steps[-1].seconds if self._steps else 0.0
        self._pressure.restart()
        self.cancellation.sleep(min(max(_SHORTEST_QUIET, _QUIET * last), _LONGEST_QUIET))
        return self._pressure.share()

    # --- one block group

    def _read_filesystem(self) -> FilesystemReading:
        """Commits earlier changes, so that they are visible, then reads the filesystem."""
        with suppress(OSError):  # after an error it is read-only, but can still be read
            commit(self._folder)
        reading = read_filesystem(self._fd, self._folder)
        addresses = set(reading.survey.groups.vaddr.tolist())
        self._originals = addresses if self._originals is None else self._originals & addresses
        return reading

    def _made_since(self) -> set[int]:
        """Returns the block groups that were made since the run started: this run does not balance them.

        They are recognised by their addresses. If the kernel uses the address of a deleted block group again, the block group
        counts as new.
        """
        return set(self._seen.survey.groups.vaddr.tolist()) - (self._originals or set())

    def _next(self) -> PlannedBlockGroup | Stop:
        """Returns the block group to balance now, or the reason if there is none."""
        dropped: set[int] = set()
        while len(dropped) < _MOST_DROPPED and not self.cancellation:
            if self._settings.fill is not None and is_filled(self._folder, self._settings.fill):
                return Stop(
                    StopReason.DONE, f"device {self._settings.fill} no longer has more unallocated space than the other devices"
                )
            excluded = self._set_aside | self._made_since() | dropped | excluded_by_device(self._fd, self._settings)
            choice = choose_block_group(self._seen, self._settings, self._costs, excluded, self._left)
            if choice.index is None:
                return self._nothing(choice)
            group = recheck_group(self._fd, self._seen, choice, self._settings, self._model, self._steps)
            if group:
                return stops.too_long(self._settings, self._light_facts(None), group.estimate.seconds) or group
            dropped.add(int(self._seen.survey.groups.vaddr[choice.index]))
            self._seen = self._read_filesystem()
        busy = Stop(StopReason.DONE, "the filesystem changes faster than a block group can be chosen")
        return stops.first_stop({StopReason.SIGNAL}, self._settings, self._light_facts(None)) or busy

    def _nothing(self, choice: BestBlockGroup) -> Stop:
        if choice.no_place:
            count = counted(choice.candidates - choice.beyond, "block group")
            return Stop(StopReason.NO_SPACE, f"{count} worth balancing cannot be moved: {choice.no_place}")
        if worth := choice.beyond:
            others = "the only other block group" if worth == 1 else f"none of the {worth:,} other block groups"
            rest = f"{others} worth balancing {'does not fit' if worth == 1 else 'fits'}"
            return Stop(StopReason.BUDGET, f"{format_size(self._moved)} moved; {rest} into the rest of the budget")
        aside = f"; {counted(len(self._set_aside), 'block group')} failed and are skipped" if self._set_aside else ""
        return Stop(StopReason.DONE, f"no {'further ' if self._steps else ''}block group is worth it{aside}")

    def _step(self, group: PlannedBlockGroup) -> Stop | None:
        """Balances it; returns the reason if no other may follow."""
        self._tell(group)
        written = sum(step.written for step in self._steps)
        started, before = datetime.now(UTC), RunSoFar(self._moved, written, written_bytes(self._folder))
        self._looked = time.monotonic()
        self._seen_backups: str | None = None
        tried = attempt(self._fd, self._folder, group, before, self._meanwhile, self._tell)
        done = self._done(group, started, tried, before.counter)
        self._steps.append(done)
        if done.outcome in (BalanceOutcome.NO_SPACE, BalanceOutcome.FAILED):
            self._set_aside.add(group.vaddr)
        elif done.outcome in (BalanceOutcome.DONE, BalanceOutcome.GONE) and self._originals:
            self._originals.discard(group.vaddr)
        self._tell(done)
        return tried.stop

    def _meanwhile(self) -> Stop | None:
        """Returns the reason to cancel the present block group. Backups count at the second check, because some locks are held only
        for a moment.
        """
        backups = None
        if self._settings.yield_to_backups and time.monotonic() - self._looked >= _LOOK_FOR_OTHERS:
            self._looked = time.monotonic()
            seen = self._backups()
            backups, self._seen_backups = seen if self._seen_backups else None, seen
        return stops.first_stop(stops.DURING, self._settings, self._light_facts(backups))

    def _done(self, group: PlannedBlockGroup, started: datetime, tried: Attempt, counter: int) -> StepDone:
        before, self._seen = self._seen, self._read_filesystem()
        return StepDone(
            group=group,
            started=started,
            seconds=tried.seconds,
            outcome=tried.outcome,
            moved=0 if tried.outcome is BalanceOutcome.GONE else max(0, group.used - tried.left),
            written=written_bytes(self._folder) - counter,
            gained=before.score - self._seen.score,
            score=self._seen.score,
            unallocated=self._seen.room.unallocated,
            error=tried.error,
            obstacle=tried.obstacle,
            freed=self._seen.room.unallocated - before.room.unallocated,
        )
