"""What an import would make, for `backupd import --dry-run`."""

from collections.abc import Mapping, Set
from typing import Any

import click

from backupd.run.importing.context import named
from backupd.run.importing.formats import OldTree
from backupd.run.importing.tree_links import look_at
from backupd.run.importing.tree_walk import UnprovenTree
from btrkeep.cli import echo_json, table
from btrkeep.cli.progress import prose
from btrkeep.errors import UsageError
from btrkeep.process.cancellation import Cancellation
from btrkeep.units import backup_name, counted, format_size, format_time, printable


def planned(
    todo: Mapping[str, list[OldTree]], known: Mapping[str, Set[str]], cancellation: Cancellation, *, reads: bool = True
) -> list[dict[str, Any]]:
    """Returns by host how many trees have no backup yet, from when to when, and how much data in each is not in the tree before.

    `known`: the names of the backups that each host has. Without `reads` nothing is copied, so files and data are not counted.
    """
    said = []
    for host, trees in todo.items():
        new = [one for one in trees if backup_name(one.started) not in known[host]]
        if not new:
            continue
        before, digests, files, size = None, None, 0, 0
        for tree in trees if reads else ():
            if tree in new:
                try:
                    found = look_at(tree.folder, before, lambda: not cancellation, digests)
                except UnprovenTree as error:
                    raise named(tree, error) from error
                files, size, digests = found.files, size + found.new_bytes, found.digests
            else:
                digests = None
            before = tree.folder
        first, last = (format_time(one.started) for one in (new[0], new[-1]))
        said.append({"host": host, "backups": len(new), "first": first, "last": last, "files": files, "bytes": size})
    return said


def say_plan(
    said: list[dict[str, Any]], here: int, left_out: Mapping[str, str], suggestion: str | None, *, reads: bool, as_json: bool
) -> None:
    """Prints it. `suggestion`: TOML; None if the history has no configuration. Without `reads` files and data are not known."""
    if as_json:
        more = {} if suggestion is None else {"suggested_configuration": suggestion}
        echo_json({"hosts": said, "here_already": here, "left_out": left_out} | more)
        return
    if not said and not here:
        raise UsageError("there is nothing to import")
    rows = [
        (
            printable(one["host"]),
            f"{one['backups']:,}",
            one["first"],
            one["last"],
            f"{one['files']:,}" if reads else "-",
            format_size(one["bytes"]) if reads else "-",
        )
        for one in said
    ]
    if rows:
        headers = ["HOST", "TREES", "OLDEST", "NEWEST", "FILES", "DATA"]
        click.echo(table(rows, headers, right=["TREES", "FILES", "DATA"], spare=["FILES"]))
    if here:
        prose(f"{counted(here, 'tree')} more {'is' if here == 1 else 'are'} here already")
    if suggestion:
        prose("a configuration for these hosts, from rsnapshot.conf; read it before you use it:")
        click.echo(suggestion, nl=False)
