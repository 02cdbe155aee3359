"""How far `backupd verify` is: a line that changes on a terminal, and the line of `systemctl status`."""

import time
from dataclasses import replace
from typing import Self

from backupd.actions.verify_pass import ReadCount
from backupd.files.backup_selector import Restorable
from btrkeep.cli.progress import ProgressLine
from btrkeep.process.service import Status
from btrkeep.units import format_size, printable


class VerifyProgress:
    """Is told the counts of a pass, and which backup is read."""

    def __init__(self, *, is_shown: bool) -> None:
        """Shows nothing on a terminal unless `is_shown`."""
        self._status, self._line, self._begun = Status(), ProgressLine(is_shown=is_shown), time.monotonic()
        self._head, self._before = "", ReadCount()
        self._files: int | None = None

    def begin(self, count: ReadCount, backup: Restorable, number: int, of: int) -> None:
        """From now on `backup` is read, which is that `number` of so many; `count` has what was read before."""
        self._head, self._files = f"[{number}/{of}] {printable(backup.host)} {backup.name}", backup.record.files
        self._before = replace(count)

    def begin_in_doubt(self) -> None:
        """From now on what was written before a crash is read."""
        self._head, self._files = "written before a crash", None

    def __call__(self, count: ReadCount) -> None:
        """Shows the counts, if it is time to."""
        self._line.go_on(lambda: self._text(count))
        self._status.go_on(lambda: self._text(count))

    def clear(self) -> None:
        """Takes the line away: before any other output."""
        self._line.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def _text(self, count: ReadCount) -> str:
        done, spent = count.bytes + count.under_way, max(0.001, time.monotonic() - self._begun)
        names = count.names - self._before.names
        files = f"{names:,} of {max(names, self._files):,} files" if self._files else f"{names:,} files"
        damaged = f", {count.damaged:,} damaged" if count.damaged else ""
        return f"{self._head}: {files}{damaged}; {format_size(done)} read, {format_size(round(done / spent))}/s"
