"""Records a run of balances in the catalogue while it goes on: a sink of its progress.

An error of the catalogue does not stop the run: it is reported once, and recording ends.
"""

import os
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from balancer.history import open_catalogue
from balancer.run_types import BalanceEvent, BalanceOutcome, BalanceStarted, PlannedBlockGroup, Report, StepDone, StopReason
from btrkeep.errors import OperatorError
from btrkeep.process.proc import start_time

if TYPE_CHECKING:
    from btrkeep.catalogue import BalanceStep, Catalogue


class Recorder:
    """Keeps one run on `filesystem` (its UUID) in the catalogue of the state folder. `warn` gets the errors that prevent it.

    A context manager: left before the run has ended, it records that the run failed.
    """

    def __init__(self, state: Path, filesystem: str, mountpoint: Path, warn: Callable[[str], None]) -> None:
        self._state, self._filesystem, self._mountpoint, self._warn = state, filesystem, mountpoint, warn
        self._catalogue: Catalogue | None = None
        self._balance = 0
        self._is_over = False
        self._sums: dict[str, Any] = {"block_groups": 0, "moved": 0, "written": 0, "gained": 0.0, "failed": 0}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._is_over:
            why = f"{kind.__name__}: {error}" if kind else "it ended without a report"
            self._keep(lambda catalogue: self._finish(catalogue, StopReason.FAILED, why, None))
        self._close()

    def __call__(self, event: BalanceEvent) -> None:
        """Keeps the run, its current block group, its steps and its end."""
        match event:
            case BalanceStarted():
                try:
                    self._catalogue = open_catalogue(self._state)
                except OperatorError as error:
                    self._give_up(error)
                self._keep(lambda catalogue: self._begin(catalogue, event))
            case PlannedBlockGroup():
                fields = {"current": event.vaddr, "updated": datetime.now(UTC)}
                self._keep(lambda catalogue: catalogue.update_balance(self._balance, **fields))
            case StepDone():
                self._add_step(event)
            case Report():
                after = asdict(event.after)
                self._keep(lambda catalogue: self._finish(catalogue, event.reason, event.why, after))

    def _begin(self, catalogue: "Catalogue", event: BalanceStarted) -> None:
        """Begins the row of the run, and ends the rows of processes that are gone."""
        me, settings = os.getpid(), event.settings
        end_killed(catalogue)
        self._balance = catalogue.start_balance(
            self._filesystem,
            str(self._mountpoint),
            datetime.now(UTC),
            me,
            start_time(me),
            policy=settings.policy,
            budget=settings.budget,
            before=asdict(event.numbers),
        )

    def _add_step(self, done: StepDone) -> None:
        """Adds a step and updates the totals."""
        sums = self._sums
        sums["block_groups"] += done.outcome is BalanceOutcome.DONE
        sums["failed"] += done.outcome in (BalanceOutcome.NO_SPACE, BalanceOutcome.FAILED)
        sums["moved"], sums["written"] = sums["moved"] + done.moved, sums["written"] + done.written
        sums["gained"] += done.gained
        now = datetime.now(UTC)
        self._keep(lambda catalogue: catalogue.add_step(_row(self._balance, done), **sums, current=None, updated=now))

    def _finish(self, catalogue: "Catalogue", reason: StopReason, why: str, after: dict[str, Any] | None) -> None:
        now = datetime.now(UTC)
        fields: dict[str, Any] = {"finished": now, "outcome": recorded_outcome(reason), "why": why, "updated": now}
        if after:
            fields["after"] = after
        catalogue.finish_balance(self._balance, **fields)
        self._is_over = True

    def _keep(self, write: "Callable[[Catalogue], None]") -> None:
        if self._catalogue is None:
            return
        try:
            write(self._catalogue)
        except OperatorError as error:
            self._give_up(error)

    def _give_up(self, error: OperatorError) -> None:
        self._close()
        self._warn(f"what this run does is not recorded from here on: {error.message}")

    def _close(self) -> None:
        if self._catalogue is not None:
            self._catalogue.close()
            self._catalogue = None


def recorded_outcome(reason: StopReason) -> str:
    """Returns the reason as the catalogue has it. To end because nothing is gained is recorded as done; `why` shows more."""
    return (StopReason.DONE if reason is StopReason.NO_GAIN else reason).value


def _row(balance: int, done: StepDone) -> "BalanceStep":
    from btrkeep.catalogue import BalanceStep

    group = done.group
    return BalanceStep(
        balance=balance,
        number=group.number,
        vaddr=group.vaddr,
        length=group.length,
        used=group.used,
        extents=group.cost.extents,
        refs=group.cost.references,
        fragments=group.fragments,
        score=group.score,
        started=done.started,
        seconds=done.seconds,
        moved=done.moved,
        written=done.written,
        estimate_written=group.estimate.moved + group.estimate.metadata,
        estimate_seconds=group.estimate.seconds,
        gained=done.gained,
        outcome=done.outcome.value,
        error=done.error,
    )


def end_killed(catalogue: "Catalogue") -> None:
    """Give an end to the runs whose process is gone: when they were heard of last."""
    for unfinished_balance in catalogue.unfinished_balances():
        if start_time(unfinished_balance.pid) != unfinished_balance.pid_started:
            catalogue.finish_balance(
                unfinished_balance.id, finished=unfinished_balance.updated, outcome="killed", why="its process is gone"
            )
