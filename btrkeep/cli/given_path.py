"""The click type of a path: looked up by another process before click, or the command, waits for ever where nothing answers."""

import errno
import os
from pathlib import Path

import click

from btrkeep.errors import UsageError
from btrkeep.hung_storage import require_lookup
from btrkeep.units import printable

_SHOWN = 60  # characters of a path that is too long


class GivenPath(click.Path):
    """As click.Path, which itself looks at the path for `exists` or `resolve_path`. Raises OperatorError for a dead one, and for
    one that no filesystem can have.
    """

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if os.fspath(value) not in ("", "-"):
            path = Path(value).absolute()
            require_lookup(path)
            _require_possible(path)
        return super().convert(value, param, ctx)


def _require_possible(path: Path) -> None:
    """Raises UsageError if the path, or a name in it, is longer than the kernel or its filesystem accepts."""
    try:
        path.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(
                f"{printable(str(path)[:_SHOWN])}...: the path is too long", "a name has at most 255 bytes, and a path 4,095"
            ) from None
