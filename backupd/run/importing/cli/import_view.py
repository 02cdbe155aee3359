"""The output of an import: the plan of `backupd import --dry-run`, and on a terminal a line for each host that is being
imported.
"""

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from backupd.run.importing.formats import OldTree
from backupd.run.importing.import_context import TreeProgress, with_folder
from backupd.run.importing.tree_links import scan_links
from backupd.run.importing.tree_walk import UnprovenTree
from btrkeep.cli import print_answer, print_listing
from btrkeep.cli.listings import Column
from btrkeep.cli.live import LiveDisplay
from btrkeep.cli.output import print_wrapped
from btrkeep.errors import UsageError
from btrkeep.process.progress import Cancellation
from btrkeep.units import backup_name, counted, format_size, format_time, printable

if TYPE_CHECKING:  # importing it takes 50 ms, and only a terminal needs it
    from rich.table import Table

_WIDEST_BAR, _BESIDE = 30, 64


def planned(
    todo: Mapping[str, list[OldTree]], names_by_host: Mapping[str, Set[str]], cancellation: Cancellation, *, reads: bool = True
) -> list[dict[str, Any]]:
    """Returns for each host the number of trees without a backup, the first and last time, and the amount of data in each tree that
    is not in the tree before it.

    `names_by_host`: the names of the backups of each host. Without `reads` no tree is read, so files and data are not counted.
    """
    plans = []
    for host, trees in todo.items():
        new = [tree for tree in trees if backup_name(tree.started) not in names_by_host[host]]
        if not new:
            continue
        before, digests, files, size = None, None, 0, 0
        for tree in trees if reads else ():
            if tree in new:
                try:
                    tree_links = scan_links(tree.folder, before, lambda: not cancellation, digests)
                except UnprovenTree as error:
                    raise with_folder(tree, error) from error
                files, size, digests = tree_links.files, size + tree_links.new_bytes, tree_links.digests
            else:
                digests = None
            before = tree.folder
        first, last = (format_time(old_tree.started) for old_tree in (new[0], new[-1]))
        plans.append({"host": host, "backups": len(new), "first": first, "last": last, "files": files, "bytes": size})
    return plans


def say_plan(
    plans: list[dict[str, Any]], here: int, skipped: Mapping[str, str], suggestion: str | None, *, reads: bool, as_json: bool
) -> None:
    """Prints the plan. `suggestion`: TOML; None if the history has no configuration. Without `reads` files and data are unknown."""
    more = {} if suggestion is None else {"suggested_configuration": suggestion}
    text = partial(_show_plan, plans, here, suggestion, reads=reads)
    print_answer({"hosts": plans, "here_already": here, "left_out": skipped} | more, text, as_json=as_json)


def _show_plan(plans: list[dict[str, Any]], here: int, suggestion: str | None, *, reads: bool) -> None:
    if not plans and not here:
        raise UsageError("the history has no tree to import")
    columns: tuple[Column[dict[str, Any]], ...] = (
        Column("", itemgetter("host"), "HOST"),
        Column("", itemgetter("backups"), "TREES", "{:,}".format, right=True),
        Column("", itemgetter("first"), "OLDEST"),
        Column("", itemgetter("last"), "NEWEST"),
        Column("", itemgetter("files"), "FILES", lambda files: f"{files:,}" if reads else "-", right=True, spare=True),
        Column("", itemgetter("bytes"), "DATA", lambda size: format_size(size) if reads else "-", right=True),
    )
    print_listing(columns, plans)
    if here:
        print_wrapped(f"{counted(here, 'tree')} {'was' if here == 1 else 'were'} imported already")
    if suggestion:
        print_wrapped("a configuration for these hosts, from rsnapshot.conf; check it before you use it:")
        click.echo(suggestion, nl=False)


@dataclass(frozen=True, slots=True)
class _HostLine:
    """The progress of a host."""

    tree: int
    """The number of the tree that is being made, from 1."""
    trees: int
    """Number of trees."""
    words: str = "reading folders"
    """The present step."""
    files: int = 0
    """Number of files made so far."""
    of: int = 1
    """Number of files in all."""


class ImportDisplay(LiveDisplay):
    """The display of an import. Without `is_shown` it prints only finished items."""

    def __init__(self, *, is_shown: bool) -> None:
        super().__init__()
        self._is_shown = is_shown
        self._hosts: dict[str, _HostLine] = {}

    def __enter__(self) -> None:
        if self._is_shown:
            self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def host(self, host: str) -> Iterator[None]:
        """Shows a line for the host until the context ends."""
        try:
            yield
        finally:
            self._hosts.pop(host, None)
            self.draw()

    def begin(self, host: str, tree: int, trees: int) -> None:
        """Records that a tree starts."""
        self._hosts[host] = _HostLine(tree, trees)
        self.draw()

    def note(self, now: TreeProgress) -> None:
        """Shows the progress of a tree."""
        if line := self._hosts.get(now.host):
            words = f"{now.files:,} of about {now.of:,} new files" if now.of else "reading folders"
            self._hosts[now.host] = replace(line, words=words, files=now.files, of=max(1, now.of))
            self.draw()

    def compares(self, host: str) -> None:
        """Records that the host's backup is being compared with its tree."""
        line = self._hosts.get(host, _HostLine(1, 1))
        self._hosts[host] = replace(line, words="comparing by content", files=line.of)
        self.draw()

    def say(self, text: str) -> None:
        """Prints a line above the display."""
        self.line(text) if self._is_shown else print_wrapped(text)

    def picture(self) -> "Table":
        """Returns one row for each host in progress."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2), pad_edge=False)
        for host, host_line in self._hosts.items():
            drawn = self.bar(host_line.files, host_line.of, widest=_WIDEST_BAR, beside=_BESIDE, style="green")
            table.add_row(
                Text(printable(host)), Text(f"tree {host_line.tree:,} of {host_line.trees:,}"), drawn, Text(host_line.words)
            )
        return table
