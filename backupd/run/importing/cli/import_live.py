"""The live display of an import on a terminal: a line for each host whose trees are being made."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rich.table import Table
from rich.text import Text

from backupd.run.importing.context import TreeProgress
from btrkeep.cli.live import LiveDisplay
from btrkeep.cli.progress import prose
from btrkeep.units import printable

_WIDEST_BAR, _BESIDE = 30, 64


@dataclass(frozen=True, slots=True)
class _HostLine:
    """The tree that is being made, as a number from 1 to `trees`, and how far it is."""

    tree: int
    trees: int
    words: str = "reading folders"
    files: int = 0
    of: int = 1


class ImportDisplay(LiveDisplay):
    """Shows nothing but finished items unless `is_shown`."""

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
        """Notes that a tree begins."""
        self._hosts[host] = _HostLine(tree, trees)
        self.draw()

    def note(self, now: TreeProgress) -> None:
        """Draws how far a tree is."""
        if line := self._hosts.get(now.host):
            words = f"{now.files:,} of about {now.of:,} new files" if now.of else "reading folders"
            self._hosts[now.host] = replace(line, words=words, files=now.files, of=max(1, now.of))
            self.draw()

    def compares(self, host: str) -> None:
        """Notes that the host's backup is being compared with its tree."""
        line = self._hosts.get(host, _HostLine(1, 1))
        self._hosts[host] = replace(line, words="comparing by content", files=line.of)
        self.draw()

    def say(self, text: str) -> None:
        """Prints a line above the display."""
        self.line(text) if self._is_shown else prose(text)

    def picture(self) -> Table:
        """One row for each host at work."""
        table = Table.grid(padding=(0, 2), pad_edge=False)
        for host, one in self._hosts.items():
            drawn = self.bar(one.files, one.of, widest=_WIDEST_BAR, beside=_BESIDE, style="green")
            table.add_row(Text(printable(host)), Text(f"tree {one.tree:,} of {one.trees:,}"), drawn, Text(one.words))
        return table
