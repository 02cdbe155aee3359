"""`btrfs-heatmap nightly`: draws a picture of a pool for its timelapse, records its state, and deletes old ones.

A picture and the recorded state beside it have the same name except for the extension, and are kept or deleted together.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import click

from btrkeep.cli.arguments import pool_options, require_one_pool
from btrkeep.errors import OperatorError, UsageError
from btrkeep.hung_storage import HINT, answers
from btrkeep.procfs import privilege_hint
from btrkeep.units import counted, printable, show_times_in

ALL = timedelta(days=14)
DAILY = timedelta(days=366)
_NAME = re.compile(r"(?P<of>.+)_at_(?P<at>\d{1,11})\.(?:png|heatmap)")


def series_and_time(name: str) -> tuple[str, datetime] | None:
    """Parses an automatic file name (made by `picture.output_name`): returns its series and time; None for any other file."""
    match = _NAME.fullmatch(name)
    return (match["of"], datetime.fromtimestamp(int(match["at"]), UTC)) if match else None


def superfluous(names: Iterable[str], now: datetime) -> list[str]:
    """Returns the files to delete. The last one of each day or week is kept; files without an automatic name are never deleted."""
    states = sorted(((at, of, name) for name in names if (parsed := series_and_time(name)) for of, at in [parsed]), reverse=True)
    kept: dict[tuple[str, date | tuple[int, int]], datetime] = {}
    goes = []
    for at, of, name in states:
        slot = _slot(at, now)
        if slot is not None and kept.setdefault((of, slot), at) != at:
            goes.append(name)
    return sorted(goes)


def _slot(at: datetime, now: datetime) -> date | tuple[int, int] | None:
    """Returns the day or the week of which one picture is kept; None: all pictures are kept."""
    age = now - at
    if age <= ALL:
        return None
    if age <= DAILY:
        return at.date()
    year, week, _ = at.isocalendar()
    return year, week


PICTURES = "pictures"
_POOL = "main"


@click.command("nightly")
@pool_options(_POOL)
def command(pool: str | None, config: Path | None) -> None:
    """Draw the current state of a pool, and record it.

    Both go into the folder pictures/ of the pool's state folder, under automatic names. The picture is by virtual address, which
    shows balance and expiry best. From the state, any other picture can be drawn later. All pictures of the last two weeks are
    kept, then one a day for a year, then one a week.

    \b
    Examples:
      btrfs-heatmap nightly --pool main
      btrfs-heatmap timelapse /var/lib/btrkeep/main/pictures -o year.gif
    """
    require_one_pool(pool, config, _POOL)
    from btrkeep.config import load_usable
    from btrkeep.pool.marker import open_pool

    usable = load_usable(pool or _POOL, config)
    show_times_in(usable.pool.zone)
    folder = usable.pool.state / PICTURES
    if not answers(usable.pool.state):
        raise OperatorError(f"{usable.pool.state} does not answer", HINT)
    with _readable_for_the_group():
        _make_folder(folder)
        _draw(open_pool(usable.pool.path).path, folder)
    if gone := thin(folder, datetime.now(UTC)):
        click.echo(f"deleted: {counted(gone, 'old file')}")


@contextmanager
def _readable_for_the_group() -> Iterator[None]:
    """Makes files readable for the state folder's group, whatever the umask, because the dashboard shows them."""
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

    goes = superfluous((path.name for path in folder.iterdir()), now)
    for name in goes:
        with suppress(FileNotFoundError):
            (folder / name).unlink()
    return len(goes)
