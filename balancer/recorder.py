"""A run of balances, written into the catalogue while it goes on: an observer of it.

Nothing that is wrong with the catalogue ends a run: it is told once, and from then on no more is kept.
"""

import os
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from balancer.recording import open_catalogue
from balancer.run_types import (
    BalanceOutcome,
    BalanceProgress,
    Ending,
    PlannedBlockGroup,
    Report,
    RunSettings,
    SpaceNumbers,
    StepDone,
)
from btrkeep.errors import OperatorError
from btrkeep.process.proc import start_time

if TYPE_CHECKING:
    from btrkeep.catalogue import BalanceStep, Catalogue


class Recorder:
    """Keeps one run on `filesystem` (its UUID) in the catalogue of the state folder. `warn` is told what keeps it from that.

    A context manager: left without an end of the run, it says that the run failed.
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
            self._keep(lambda catalogue: self._finish(catalogue, Ending.FAILED, why, None))
        self._close()

    def begins(self, numbers: SpaceNumbers, settings: RunSettings) -> None:
        """The run gets its row. Those of processes that are gone get their end."""
        try:
            self._catalogue = open_catalogue(self._state)
        except OperatorError as error:
            self._give_up(error)
        self._keep(lambda catalogue: self._begin(catalogue, numbers, settings))

    def _begin(self, catalogue: "Catalogue", numbers: SpaceNumbers, settings: RunSettings) -> None:
        me = os.getpid()
        end_killed(catalogue)
        self._balance = catalogue.start_balance(
            self._filesystem,
            str(self._mountpoint),
            datetime.now(UTC),
            me,
            start_time(me),
            policy=settings.policy,
            budget=settings.budget,
            before=asdict(numbers),
        )

    def step_begins(self, group: PlannedBlockGroup) -> None:
        """This block group is the current one."""
        self._keep(lambda catalogue: catalogue.update_balance(self._balance, current=group.vaddr, updated=datetime.now(UTC)))

    def step_ends(self, done: StepDone) -> None:
        """One more step, and the sums with it."""
        sums = self._sums
        sums["block_groups"] += done.outcome is BalanceOutcome.DONE
        sums["failed"] += done.outcome in (BalanceOutcome.NO_SPACE, BalanceOutcome.FAILED)
        sums["moved"], sums["written"] = sums["moved"] + done.moved, sums["written"] + done.written
        sums["gained"] += done.gained
        now = datetime.now(UTC)
        self._keep(lambda catalogue: catalogue.add_step(_row(self._balance, done), **sums, current=None, updated=now))

    def ends(self, report: Report) -> None:
        """The run has its end."""
        after = asdict(report.after)
        self._keep(lambda catalogue: self._finish(catalogue, report.ending, report.why, after))

    def _finish(self, catalogue: "Catalogue", ending: Ending, why: str, after: dict[str, Any] | None) -> None:
        now = datetime.now(UTC)
        fields: dict[str, Any] = {"finished": now, "outcome": ending.value, "why": why, "updated": now}
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

    def progress(self, progress: BalanceProgress) -> None:
        """Not kept."""

    def waits(self, why: str) -> None:
        """Not kept."""

    def stopping(self, why: str) -> None:
        """Not kept: `ends` says it."""

    def warns(self, text: str) -> None:
        """Not kept."""


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
    for one in catalogue.unfinished_balances():
        if start_time(one.pid) != one.pid_started:
            catalogue.finish_balance(one.id, finished=one.updated, outcome="killed", why="its process is gone")
