"""`btrfs-balancer score`: show how fragmented the free space of each block group is."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from balancer.cli.options import balance_target, mount_point, which_pool
from btrkeep.cli import json_option, print_error
from btrkeep.cli.arguments import VADDR, require_one_pool
from btrkeep.errors import Exit, OperatorError, UsageError
from btrkeep.units import local_time, printable

if TYPE_CHECKING:
    from balancer.explain import NoSuchBlockGroup
    from balancer.score import Array
    from balancer.survey import DataBlockGroups
    from btrkeep.catalogue import FreeSpaceScore

SORTS = {
    "score": True,
    "benefit": True,
    "fragments": True,
    "largest_free": False,
    "used": False,
    "used_pct": False,
    "length": True,
    "vaddr": False,
}
"""The sort keys, and whether the highest value comes first: the worst block groups, the emptiest, the lowest address."""
TOP = 20


@dataclass(frozen=True, slots=True)
class ListingOptions:
    """The options of `score` for a list, which `--explain` does not have."""

    top: int | None
    """Number of listed block groups; None: a few in the table, all in JSON."""
    min_score: float
    """Block groups with a lower score are left out."""
    key: str
    """A key of SORTS."""
    record: bool
    """Also record the sample in the catalogue."""


@click.command("score")
@mount_point
@click.option(
    "--top", type=click.IntRange(min=1), metavar="N", help=f"Only the first N, with the cost of moving them.  [table: {TOP}]"
)
@click.option(
    "--min-score", type=click.FloatRange(min=0), default=0.0, metavar="S", help="Only block groups with a score of at least S."
)
@click.option(
    "--sort", "key", type=click.Choice(list(SORTS)), default="score", show_default=True, help="The order of block groups."
)
@click.option(
    "--explain", "vaddr", type=VADDR, metavar="VADDR", help="Show everything about the block group at this virtual address."
)
@click.option("--record", is_flag=True, help="Record the scores in the catalogue of the pool on the filesystem, for `history`.")
@which_pool
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    path: Path | None,
    vaddr: int | None,
    pool: str | None,
    config: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Score the free space of every data block group of a btrfs.

    MOUNTPOINT may be any folder or file on the filesystem; with --pool it may be left out. Nothing is changed.

    \b
    USED      data that a balance of the block group would move
    FRAGS     free extents, as the free space tree counts them
    LARGEST   the largest free extent
    SCORE     the higher, the worse; above 250 a block group of 1 GiB is bad
    BENEFIT   score removed per GiB moved
    EXTENTS   extents in it, and
    REFS      references to them; both make moving slower (with --top)

    Below the table are the sizes of all free extents, and a judgement in one sentence.

    \b
    Examples:
      btrfs-balancer score /srv/backup
      btrfs-balancer score /srv/backup --sort benefit --min-score 250 --top 5
      btrfs-balancer score /srv/backup --explain 13631488
      btrfs-balancer score / --json | jq '.block_groups[0]'
      btrfs-balancer score /srv/backup --record
    """
    given = ListingOptions(**options)
    require_one_pool(pool, config)
    if not given.record and path is not None and (pool or config):
        raise UsageError("--pool and --config only choose where to record the scores", "add --record, or leave both out")
    path = balance_target(path, pool, config).path
    if vaddr is None:
        state = None
        if given.record:
            from balancer.balance_history import needed_catalogue_of

            state = needed_catalogue_of(path, pool, config)
        return _score(path, given, as_json, state)
    if any(ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE for name in options):
        raise UsageError("--explain is about one block group", "leave out --top, --min-score, --sort and --record")
    _explain(path, vaddr, as_json)
    return Exit.OK


def _score(path: Path, given: ListingOptions, as_json: bool, state: Path | None) -> int:
    from balancer.cli.score_view import lines, write_json
    from balancer.survey import cost, filesystem_uuid, survey
    from btrkeep.pool.mounts import open_btrfs

    with open_btrfs(path) as fd:
        taken = datetime.now(UTC)
        surveyed = survey(fd)
        shown = ordered(surveyed.groups, given.key, given.min_score)
        cut = shown[: given.top or (len(shown) if as_json else TOP)]
        places = zip(surveyed.groups.vaddr[cut].tolist(), surveyed.groups.length[cut].tolist(), strict=True)
        costs = [cost(fd, *place) for place in places] if given.top else None
        filesystem = filesystem_uuid(path)
        if state:
            from balancer.balance_history import sample
            from btrkeep.pool.allocation import read_room

            taken_sample = sample(filesystem, taken, surveyed, read_room(path).unallocated)
    if as_json:
        write_json(filesystem, surveyed, cut, costs)
    else:
        click.echo("\n".join(lines(filesystem, surveyed, cut, costs, len(shown) - len(cut), given.min_score)))
    return _record(state, taken_sample) if state else Exit.OK


def _record(state: Path, sample: "FreeSpaceScore") -> int:
    """Records the sample and reports that on standard error, because standard output has the requested result."""
    from balancer.balance_history import record_sample

    try:
        record_sample(state, sample)
    except OperatorError as error:
        print_error(OperatorError(f"the scores are not recorded: {error.message}", error.hint))
        return Exit.ATTENTION
    click.echo(f"recorded in the catalogue {printable(str(state))} as of {local_time(sample.taken)}", err=True)
    return Exit.OK


def _explain(path: Path, vaddr: int, as_json: bool) -> None:
    import numpy as np

    from balancer.cli.score_view import CELLS, explain_lines
    from balancer.explain import NoSuchBlockGroup, explain
    from balancer.survey import filesystem_uuid
    from btrkeep.pool.mounts import open_btrfs

    with open_btrfs(path) as fd:
        explained, filesystem = explain(fd, vaddr, CELLS), filesystem_uuid(path)
    if isinstance(explained, NoSuchBlockGroup):
        raise _no_such(vaddr, explained)
    if as_json:
        from balancer.cli.score_view import write_json

        write_json(filesystem, explained.survey, np.arange(1), [explained.cost])
    else:
        click.echo("\n".join(explain_lines(explained)))


def _no_such(vaddr: int, missing: "NoSuchBlockGroup") -> UsageError:
    message = f"no data block group begins at {vaddr}"
    if missing.inside:
        start, profile = missing.inside
        message += (
            f": the block group there is {profile}" if start == vaddr else f": it is inside the block group at {start} ({profile})"
        )
    near = ", ".join(map(str, missing.nearest))
    return UsageError(printable(message), f"the nearest begin at {near}" if near else "the filesystem has no data block groups yet")


def ordered(groups: "DataBlockGroups", key: str, least_score: float = 0.0) -> "Array":
    """Returns i64[m]: indices of the block groups that score `least_score` or more, sorted; ties by address. NaN comes last."""
    import numpy as np

    shown = np.flatnonzero(groups.score >= least_score)
    values = getattr(groups, key)[shown].astype(np.float64)  # beyond 2**53 neighbours are equal, and stay in order
    return shown[np.argsort(-values if SORTS[key] else values, kind="stable")]
