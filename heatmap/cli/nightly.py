"""`btrfs-heatmap nightly`: a picture of a pool for its timelapse, and the state that it was drawn from, for a timer."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from btrkeep.capabilities import privilege_hint
from btrkeep.cli.arguments import pool_options, require_one_pool
from btrkeep.errors import OperatorError, UsageError
from btrkeep.hung_storage import HINT, answers
from btrkeep.units import counted, printable, show_times_in

PICTURES = "pictures"
_POOL = "main"


@click.command("nightly")
@pool_options(_POOL)
def command(pool: str | None, config: Path | None) -> None:
    """Draw a pool as it is, and record its state.

    Both go into the folder pictures/ of the pool's state folder, under automatic names: a picture by virtual address, which shows
    best what balance and expiry do, and the state, of which any other picture can be drawn later. All of two weeks are kept, then
    one a day for a year, then one a week.

    \b
    Examples:
      btrfs-heatmap nightly --pool main
      btrfs-heatmap timelapse /var/lib/btrkeep/main/pictures -o year.gif
    """
    require_one_pool(pool, config, _POOL)
    from btrkeep.config import load_usable
    from btrkeep.pool.marker import open_pool

    found = load_usable(pool or _POOL, config)
    show_times_in(found.pool.zone)
    folder = found.pool.state / PICTURES
    if not answers(found.pool.state):
        raise OperatorError(f"{found.pool.state} does not answer", HINT)
    with _readable_for_the_group():
        _make_folder(folder)
        _draw(open_pool(found.pool.path).path, folder)
    if gone := thin(folder, datetime.now(UTC)):
        click.echo(f"thinned: {counted(gone, 'file')}")


@contextmanager
def _readable_for_the_group() -> Iterator[None]:
    """Creates files readable by the state folder's group, whatever the umask, because the dashboard shows them."""
    before = os.umask(0o077)
    os.umask(before & ~0o050)
    try:
        yield
    finally:
        os.umask(before)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{printable(str(folder))} cannot be made: {error.strerror}", privilege_hint("CAP_DAC_OVERRIDE")) from None


def _draw(path: Path, folder: Path) -> None:
    from heatmap.cli.drawing import draw
    from heatmap.cli.request import Extras, PictureRequest

    draw(
        PictureRequest(path, None, None, "virtual", None, "hilbert", str(folder), "png", "usage", (), False, 0, Extras(record=True))
    )


def thin(folder: Path, now: datetime) -> int:
    """Removes the files that are no longer kept and returns their number."""
    from heatmap.thinning import superfluous

    goes = superfluous((path.name for path in folder.iterdir()), now)
    for name in goes:
        with suppress(FileNotFoundError):
            (folder / name).unlink()
    return len(goes)
