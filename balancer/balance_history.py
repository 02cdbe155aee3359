"""The history of free space and balances over months: how a run is recorded in the catalogue, and which of many samples are shown.

The catalogue is that of the btrkeep pool on the filesystem. Without one, everything works but nothing is recorded. Importing the
modules for configuration and catalogue takes longer than scanning a whole filesystem, so they are imported only when needed. A
Recorder is a sink of a run's progress. An error of the catalogue does not stop the run: it is reported once, and recording ends.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from balancer.cost_model import MeasuredBalance
from balancer.run_types import BalanceEvent, BalanceOutcome, BalanceStarted, PlannedBlockGroup, Report, StepDone, StopReason
from balancer.score import BAD
from balancer.survey import Survey, filesystem_uuid
from btrkeep.errors import ConfigError, OperatorError, UsageError
from btrkeep.pool.mounts import open_btrfs
from btrkeep.process.proc import start_time
from btrkeep.units import printable, show_times_in

if TYPE_CHECKING:
    from btrkeep.catalogue import Balance, BalanceStep, Catalogue, FreeSpaceScore
    from btrkeep.config import Config


LARGE = 16 << 20
"""Balancing is done to get free extents of at least this size: most files of backups fit into one."""

_log = logging.getLogger(__name__)


def catalogue_of(path: Path, pool: str | None = None, config: Path | None = None) -> Path | None:
    """Returns the state folder of the pool on the btrfs of `path`, or None.

    Without `pool` (a name) and `config` (a file), all configurations in /etc/btrkeep are tried: an invalid one is skipped with a
    warning, and two matching pools count as none. Raises PoolUnusable if `path` is on no btrfs; for a named pool ConfigError if its
    configuration is invalid, PoolUnusable if it is missing, and UsageError if it is on another filesystem.
    """
    with open_btrfs(path):
        filesystem = filesystem_uuid(path)
    if pool is not None or config is not None:
        return _named(path, filesystem, pool, config)
    configs = {config.pool.state: config for config in _configured() if _filesystem_of(config) == filesystem}
    if len(configs) > 1:
        files = ", ".join(sorted(str(config.file) for config in configs.values()))
        _log.warning("%s", printable(f"several pools are on the filesystem of {path} ({files}): name one with --pool"))
        return None
    for usable in configs.values():
        show_times_in(usable.pool.zone)
    return next(iter(configs), None)


def needed_catalogue_of(path: Path, pool: str | None = None, config: Path | None = None) -> Path:
    """Like `catalogue_of`, but raises UsageError if there is none."""
    if catalogue := catalogue_of(path, pool, config):
        return catalogue
    if os.geteuid() != 0:
        raise UsageError(f"no pool of btrkeep can be seen on the filesystem of {path}", "run this as root")
    raise UsageError(
        f"the filesystem of {path} has no btrkeep pool: the scores and balances would be in the pool's catalogue",
        "mount the pool if it is not mounted; otherwise create one with `backupd init`, or name the pool: --pool NAME or "
        "--config FILE",
    )


def _named(path: Path, filesystem: str, pool: str | None, file: Path | None) -> Path:
    from btrkeep.config import load_usable
    from btrkeep.pool.marker import open_pool

    config = load_usable(pool or "main", file)
    pool_filesystem = open_pool(config.pool.path).filesystem
    if pool_filesystem != filesystem:
        raise UsageError(
            f"the pool {config.pool.path} is on filesystem {pool_filesystem}, {path} is on {filesystem}",
            f"name the pool's filesystem: {config.pool.path}",
        )
    return config.pool.state


def _configured() -> "list[Config]":
    """Returns every pool of the configuration folder whose files are valid."""
    from btrkeep.config import reading

    configs = []
    for file in sorted(reading.FOLDER.glob("[!.]*.toml")):  # hidden files are temporary files of editors
        try:
            configs.append(reading.load_usable(file=file))
        except ConfigError as error:
            more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
            _log.warning("%s", printable(f"skipped an invalid configuration: {error.problems[0]}{more}"))
    return configs


def _filesystem_of(config: "Config") -> str | None:
    """Returns the UUID of the btrfs that contains the pool; None if no pool is mounted there."""
    from btrkeep.pool.marker import open_pool

    try:
        return open_pool(config.pool.path).filesystem
    except OperatorError as error:
        _log.info("%s", printable(error.message))
        return None


def open_catalogue(state: Path) -> "Catalogue":
    """Opens the catalogue in a state folder; creates or migrates it if necessary. The caller closes it. Raises OperatorError."""
    from btrkeep.catalogue import Catalogue

    return Catalogue.open(state)


@contextmanager
def catalogue_with_history(state: Path) -> "Iterator[Catalogue | None]":
    """Yields the catalogue for reading; None if it does not exist, because reading must not create it. Raises OperatorError."""
    from btrkeep.catalogue.migrate import FILE

    if not os.path.exists(state / FILE):  # noqa: PTH110  Path.exists raises where it has no permission
        yield None
        return
    with open_catalogue(state) as catalogue:
        yield catalogue


def sample(filesystem: str, taken: datetime, survey: Survey, unallocated: int) -> "FreeSpaceScore":
    """Returns a survey in the form of the catalogue. `unallocated`: from `btrkeep.pool.allocation.read_room`."""
    from btrkeep.catalogue import FreeSpaceScore

    groups = survey.groups
    used_classes = np.flatnonzero(survey.extents)
    return FreeSpaceScore(
        filesystem=filesystem,
        taken=taken,
        block_groups=len(groups.vaddr),
        length=int(groups.length.sum()),
        used=int(groups.used.sum()),
        unallocated=unallocated,
        fragments=int(groups.fragments.sum()),
        score=float(groups.score.sum()),
        bad=int((groups.score > BAD).sum()),
        largest_free=int(groups.largest_free.max(initial=0)),
        free_in_large=int(survey.bytes[LARGE.bit_length() - 1 :].sum()),
        histogram=tuple(
            (1 << size_class, int(survey.extents[size_class]), int(survey.bytes[size_class]))
            for size_class in used_classes.tolist()
        ),
    )


def record_sample(state: Path, sample: "FreeSpaceScore") -> None:
    """Records the sample in the catalogue of the state folder. Raises OperatorError."""
    with open_catalogue(state) as catalogue:
        catalogue.add_score(sample)


def measured_balances(state: Path, filesystem: str) -> list[MeasuredBalance]:
    """Returns the costs of the last balanced block groups of a filesystem, newest first. Raises OperatorError."""
    with catalogue_with_history(state) as catalogue:
        steps = catalogue.measured(filesystem) if catalogue else []
    return [
        MeasuredBalance(step.moved, step.extents, step.refs, step.written, step.seconds)
        for step in steps
        if step.extents is not None and step.refs is not None and step.written is not None
    ]


def thinned(moments: Sequence[datetime], count: int) -> list[int]:
    """Returns which of these times, in order, to show in `count` lines, at least two: the first, and the last of each slot.

    Slots have equal length, so that a week with many samples takes no more lines than one with few; an empty slot takes none.
    """
    if len(moments) <= count:
        return list(range(len(moments)))
    first, slots = moments[0], count - 1
    whole = (moments[-1] - first) / slots
    last_of = {min(int((moment - first) / whole), slots - 1) if whole else 0: at for at, moment in enumerate(moments) if at}
    return [0, *last_of.values()]


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One displayed sample."""

    scoring: "FreeSpaceScore"
    """The score."""
    moved: int | None
    """Bytes moved by balances since the sample displayed above it; None for the first."""


def thinned_history(scorings: "Sequence[FreeSpaceScore]", balances: "Sequence[Balance]", count: int) -> list[HistoryLine]:
    """Returns the samples, oldest first, reduced to `count`. A balance counts at its end or its last sign of life."""
    kept = [scorings[at] for at in thinned([scoring.taken for scoring in scorings], count)]
    lines = []
    for before, scoring in zip([None, *kept], kept, strict=False):
        since = [
            balance.moved
            for balance in balances
            if before and before.taken < (balance.finished or balance.updated) <= scoring.taken
        ]
        lines.append(HistoryLine(scoring, sum(since) if before else None))
    return lines


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of some balances."""

    count: int
    """Number of balances."""
    moved: int
    """Bytes of data."""
    written: int
    """Bytes written to the devices, by the balances that recorded them."""
    gained: float
    """Score removed."""


def sums(balances: "Sequence[Balance]") -> Sums:
    """Returns the totals of all balances, including stopped and killed ones, because their moves are effective."""
    moved, written = sum(balance.moved for balance in balances), sum(balance.written or 0 for balance in balances)
    return Sums(len(balances), moved, written, sum(balance.gained for balance in balances))


class Recorder:
    """Records one run on `filesystem` (its UUID) in the catalogue of the state folder. `warn` gets the errors that prevent it.

    A context manager: if it is left before the run has ended, it records that the run failed.
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
            why = f"{kind.__name__}: {error}" if kind else "the process ended without a report"
            self._keep(lambda catalogue: self._finish(catalogue, StopReason.FAILED, why, None))
        self._close()

    def __call__(self, event: BalanceEvent) -> None:
        """Records the run, its current block group, its steps and its end."""
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
        """Adds the row of this run, and closes the rows of killed runs."""
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
        self._warn(f"the rest of this run is not recorded: {error.message}")

    def _close(self) -> None:
        if self._catalogue is not None:
            self._catalogue.close()
            self._catalogue = None


def recorded_outcome(reason: StopReason) -> str:
    """Returns the reason in the form of the catalogue. A run that ended because it gained nothing is recorded as done; `why` shows
    more.
    """
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
    """Ends the runs whose process has ended, with the time of their last sign of life."""
    for unfinished_balance in catalogue.unfinished_balances():
        if start_time(unfinished_balance.pid) != unfinished_balance.pid_started:
            catalogue.finish_balance(
                unfinished_balance.id, finished=unfinished_balance.updated, outcome="killed", why="its process no longer exists"
            )
