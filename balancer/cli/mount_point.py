"""The argument that names a filesystem, and what a shell offers for it."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem


def complete_mount(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The mount points of btrfs filesystems that begin with what was typed; folders when there is none."""
    from btrkeep.procfs import mounts

    found = {str(mount.target) for mount in mounts() if mount.filesystem == "btrfs"}
    fitting = [CompletionItem(path) for path in sorted(found) if path.startswith(incomplete)]
    return fitting or [CompletionItem(incomplete, type="dir")]


mount_point = click.argument(
    "path", metavar="MOUNTPOINT", required=False, type=click.Path(path_type=Path), shell_complete=complete_mount
)
"""For every command that looks at a filesystem. Without it `which_pool.meant` finds that of the pool that is named."""
