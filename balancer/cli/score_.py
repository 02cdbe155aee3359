"""`btrfs-balancer score`: how fragmented the free space is, block group by block group."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from balancer.order import SORTS, ordered
from btrkeep.errors import UsageError
from btrkeep.units import printable

if TYPE_CHECKING:
    from balancer.explain import NotThere

TOP = 20


class _Vaddr(click.ParamType[int]):
    name = "vaddr"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            found = int(str(value), 0)
        except ValueError:
            found = -1
        if not 0 <= found < 1 << 64:
            self.fail(f"{value!r} is no virtual address: write bytes, such as 13631488 or 0xd00000", param, ctx)
        return found


def _complete_mount(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The mount points of btrfs filesystems that begin with what was typed; folders when there is none."""
    from btrkeep.pool.mounts import mounts

    found = {str(mount.target) for mount in mounts() if mount.filesystem == "btrfs"}
    fitting = [CompletionItem(path) for path in sorted(found) if path.startswith(incomplete)]
    return fitting or [CompletionItem(incomplete, type="dir")]


@click.command("score")
@click.argument("path", metavar="MOUNTPOINT", type=click.Path(path_type=Path), shell_complete=_complete_mount)
@click.option(
    "--top", type=click.IntRange(min=1), metavar="N", help=f"Only the first N, with what moving them would cost.  [table: {TOP}]"
)
@click.option("--min-score", type=click.FloatRange(min=0), default=0.0, metavar="S", help="Only those that score S or more.")
@click.option("--sort", "key", type=click.Choice(list(SORTS)), default="score", show_default=True, help="What comes first.")
@click.option("--explain", "vaddr", type=_Vaddr(), metavar="VADDR", help="All about the block group at this virtual address.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_context
def command(ctx: click.Context, path: Path, top: int | None, min_score: float, key: str, vaddr: int | None, as_json: bool) -> None:
    """Score the free space of every data block group of a btrfs.

    MOUNTPOINT may be any folder or file on the filesystem. Nothing is changed.

    \b
    USED      what would move, if the block group was balanced
    FRAGS     free extents, counted as the free space tree has them
    LARGEST   the largest free extent
    SCORE     the higher, the worse; above 250 a block group of 1 GiB is bad
    BENEFIT   score removed per GiB that would move
    EXTENTS   what else makes moving dear: the extents in it,
    REFS      and the references that they have (with --top)

    Then come the sizes of all free extents, and one sentence of judgement.

    \b
    Examples:
      btrfs-balancer score /srv/backup
      btrfs-balancer score /srv/backup --sort benefit --min-score 250 --top 5
      btrfs-balancer score /srv/backup --explain 13631488
      btrfs-balancer score / --json | jq '.block_groups[0]'
    """
    if vaddr is None:
        _score(path, top, min_score, key, as_json)
        return
    others = [name for name in ("top", "min_score", "key") if _is_given(ctx, name)]
    if others:
        raise UsageError("--explain is about one block group", "leave out --top, --min-score and --sort")
    _explain(path, vaddr, as_json)


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _score(path: Path, top: int | None, least_score: float, key: str, as_json: bool) -> None:
    from balancer.survey import cost, identity, opened, survey

    with opened(path) as fd:
        found = survey(fd)
        shown = ordered(found.groups, key, least_score)
        cut = shown[: top or (len(shown) if as_json else TOP)]
        places = zip(found.groups.vaddr[cut].tolist(), found.groups.length[cut].tolist(), strict=True)
        costs = [cost(fd, *place) for place in places] if top else None
        filesystem = identity(path)
    if as_json:
        from balancer.cli.score_json import write_json

        write_json(filesystem, found, cut, costs)
        return
    from balancer.cli.score_view import lines

    click.echo("\n".join(lines(filesystem, found, cut, costs, len(shown) - len(cut), least_score)))


def _explain(path: Path, vaddr: int, as_json: bool) -> None:
    import numpy as np

    from balancer.cli.explain_view import CELLS, lines
    from balancer.explain import NotThere, explain
    from balancer.survey import identity, opened

    with opened(path) as fd:
        found, filesystem = explain(fd, vaddr, CELLS), identity(path)
    if isinstance(found, NotThere):
        raise _no_such(vaddr, found)
    if as_json:
        from balancer.cli.score_json import write_json

        write_json(filesystem, found.survey, np.arange(1), [found.cost])
    else:
        click.echo("\n".join(lines(found)))


def _no_such(vaddr: int, found: "NotThere") -> UsageError:
    message = f"no data block group begins at {vaddr}"
    if found.inside:
        start, profile = found.inside
        message += f": there is one of {profile}" if start == vaddr else f": it lies inside of the one at {start} ({profile})"
    near = ", ".join(map(str, found.nearest))
    return UsageError(printable(message), f"the nearest are at {near}" if near else "the filesystem has none yet")
