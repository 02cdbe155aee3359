"""The click type of a path: looked up by another process before click, or the command, waits for ever where nothing answers."""

import os
from pathlib import Path

import click

from btrkeep.hung_storage import require_lookup


class GivenPath(click.Path):
    """As click.Path, which itself looks at the path for `exists` or `resolve_path`. Raises OperatorError for a dead one."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if os.fspath(value) not in ("", "-"):
            require_lookup(Path(value).absolute())
        return super().convert(value, param, ctx)
