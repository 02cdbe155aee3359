"""The history of free space over months: the catalogue that records it, and which of many samples are shown.

It is that of the btrkeep pool on the filesystem. Without one, everything works but nothing is recorded. Importing the configuration
and the catalogue takes longer than scanning a whole filesystem, so they are imported only when needed.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from balancer.score import BAD
from balancer.survey import Survey, identity
from btrkeep.errors import ConfigError, OperatorError, UsageError
from btrkeep.pool.mounts import open_btrfs
from btrkeep.units import printable, show_times_in

if TYPE_CHECKING:
    from balancer.cost_model import MeasuredBalance
    from btrkeep.catalogue import Balance, Catalogue, FreeSpaceScore
    from btrkeep.config import Config

LARGE = 16 << 20
"""Free extents of this size and more are what balancing is for: a file of backups mostly fits into one."""

_log = logging.getLogger(__name__)


def catalogue_of(path: Path, pool: str | None = None, config: Path | None = None) -> Path | None:
    """Returns the state folder of the pool on the btrfs of `path`, or None.

    Without `pool` (a name) and `config` (a file), all configurations in /etc/btrkeep are tried: an invalid one is skipped with a
    warning, and two matching pools count as none. Raises PoolUnusable if `path` is on no btrfs; for a named pool ConfigError if its
    configuration is invalid, PoolUnusable if it is missing, and UsageError if it is on another filesystem.
    """
    with open_btrfs(path):
        filesystem = identity(path)
    if pool is not None or config is not None:
        return _named(path, filesystem, pool, config)
    found = {config.pool.state: config for config in _configured() if _filesystem_of(config) == filesystem}
    if len(found) > 1:
        files = ", ".join(sorted(str(config.file) for config in found.values()))
        _log.warning("%s", printable(f"several pools are on the filesystem of {path} ({files}): name one with --pool"))
        return None
    for usable in found.values():
        show_times_in(usable.pool.zone)
    return next(iter(found), None)


def needed_catalogue_of(path: Path, pool: str | None = None, config: Path | None = None) -> Path:
    """Like `catalogue_of`, but raises UsageError if there is none."""
    if found := catalogue_of(path, pool, config):
        return found
    if os.geteuid() != 0:
        raise UsageError(f"no pool of btrkeep can be seen on the filesystem of {path}", "run this as root")
    raise UsageError(
        f"no pool of btrkeep is on the filesystem of {path}, and its catalogue is where scores and balances are kept",
        "mount it where its configuration says, if it is not mounted; else make one with `backupd init`, or name the one that is "
        "meant: --pool NAME or --config FILE",
    )


def _named(path: Path, filesystem: str, pool: str | None, file: Path | None) -> Path:
    from btrkeep.config import load_usable
    from btrkeep.pool.marker import open_pool

    config = load_usable(pool or "main", file)
    found = open_pool(config.pool.path).filesystem
    if found != filesystem:
        raise UsageError(
            f"the pool {config.pool.path} is on filesystem {found}, {path} is on {filesystem}",
            f"name the pool's filesystem: {config.pool.path}",
        )
    return config.pool.state


def _configured() -> "list[Config]":
    """Returns every pool in the folder of configurations whose files are valid."""
    from btrkeep.config import reading

    configs = []
    for file in sorted(reading.FOLDER.glob("[!.]*.toml")):  # hidden ones are what editors leave
        try:
            configs.append(reading.load_usable(file=file))
        except ConfigError as error:
            more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
            _log.warning("%s", printable(f"passed over, for it is wrong: {error.problems[0]}{more}"))
    return configs


def _filesystem_of(config: "Config") -> str | None:
    """The UUID of the btrfs that a pool is on; None when it is not there, and so on none that is mounted where it belongs."""
    from btrkeep.pool.marker import open_pool

    try:
        return open_pool(config.pool.path).filesystem
    except OperatorError as error:
        _log.info("%s", printable(error.message))
        return None


def open_catalogue(state: Path) -> "Catalogue":
    """The catalogue in a state folder, to be closed. Made or migrated when it has to be. Raises OperatorError."""
    from btrkeep.catalogue import Catalogue

    return Catalogue.open(state)


@contextmanager
def catalogue_with_history(state: Path) -> "Iterator[Catalogue | None]":
    """Yields the catalogue for reading; None if there is none yet, because reading must not create one. Raises OperatorError."""
    from btrkeep.catalogue.migrate import FILE

    if not os.path.exists(state / FILE):  # noqa: PTH110  Path.exists raises where it may not look
        yield None
        return
    with open_catalogue(state) as catalogue:
        yield catalogue


def sample(filesystem: str, taken: datetime, survey: Survey, unallocated: int) -> "FreeSpaceScore":
    """A survey as the catalogue keeps it. `unallocated` is that of `btrkeep.pool.allocation.read_room`."""
    from btrkeep.catalogue import FreeSpaceScore

    groups = survey.groups
    there = np.flatnonzero(survey.extents)
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
        histogram=tuple((1 << one, int(survey.extents[one]), int(survey.bytes[one])) for one in there.tolist()),
    )


def record_sample(state: Path, sample: "FreeSpaceScore") -> None:
    """Keep it in the catalogue of that state folder. Raises OperatorError."""
    with open_catalogue(state) as catalogue:
        catalogue.add_score(sample)


def measured(state: Path, filesystem: str) -> "list[MeasuredBalance]":
    """Returns the costs of the last balanced block groups of a filesystem, newest first. Raises OperatorError."""
    from balancer.cost_model import MeasuredBalance

    with catalogue_with_history(state) as catalogue:
        steps = catalogue.measured(filesystem) if catalogue else []
    return [
        MeasuredBalance(step.moved, step.extents, step.refs, step.written, step.seconds)
        for step in steps
        if step.extents is not None and step.refs is not None and step.written is not None
    ]


def thinned(moments: Sequence[datetime], count: int) -> list[int]:
    """Returns which of these moments, in order, to show in `count` lines, at least two: the first, and the last of each slot.

    Slots are of equal length, so that a week with many samples takes no more lines than one with few; an empty slot takes none.
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

    look: "FreeSpaceScore"
    """The score."""
    moved: int | None
    """Bytes moved by balances since the sample displayed above it; None for the first."""


def shown(looks: "Sequence[FreeSpaceScore]", balances: "Sequence[Balance]", count: int) -> list[HistoryLine]:
    """The looks, oldest first, thinned to `count`. A balance counts where it ended or was heard of last."""
    kept = [looks[at] for at in thinned([look.taken for look in looks], count)]
    lines = []
    for before, look in zip([None, *kept], kept, strict=False):
        since = [
            balance.moved for balance in balances if before and before.taken < (balance.finished or balance.updated) <= look.taken
        ]
        lines.append(HistoryLine(look, sum(since) if before else None))
    return lines


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of some balances."""

    count: int
    """Number of balances."""
    moved: int
    """Bytes of data."""
    written: int
    """Bytes written to the devices, by the balances of which that is known."""
    gained: float
    """Score removed."""


def sums(balances: "Sequence[Balance]") -> Sums:
    """Returns the totals of all balances, including stopped or killed ones, because what they moved has moved."""
    moved, written = sum(balance.moved for balance in balances), sum(balance.written or 0 for balance in balances)
    return Sums(len(balances), moved, written, sum(balance.gained for balance in balances))
