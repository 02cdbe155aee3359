"""The first lines of `backupd status`: mistakes of the configuration, what is unknown now, and when it was checked last."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import click

from backupd.health.cli.status_json import time_or_null
from btrkeep.cli.progress import prose
from btrkeep.config import ReportingConfig
from btrkeep.decisions.findings import StoredVerdict
from btrkeep.errors import Exit, OperatorError
from btrkeep.units import format_duration, local_time, printable

_OLD = timedelta(hours=1)
_MOST = 20


@dataclass(slots=True)
class LastLook:
    """`now`: of this look; None if the catalogue could not be read. `error`: why the pool or the catalogue cannot be read.

    `checked`: the last check of `backupd notify`, None if there was none.
    """

    reporting: ReportingConfig
    now: datetime | None = None
    error: OperatorError | None = None
    checked: StoredVerdict | None = None

    @property
    def is_old(self) -> bool:
        """Returns True if alarms were checked, but not in the last hour. A time in the future is as bad."""
        return self.checked is not None and self.now is not None and abs(self.now - self.checked.looked) > _OLD

    @property
    def exit_status(self) -> int:
        """Returns the status of a look at a pool that could be read."""
        if self.reporting.error:
            return Exit.USAGE
        return Exit.ATTENTION if self.reporting.faults or self.is_old else Exit.OK

    def as_json(self) -> dict[str, Any]:
        """Returns it for --json."""
        return {
            "now": time_or_null(self.now),
            "alarms": time_or_null(self.checked.looked if self.checked else None),
            "pool": time_or_null(self._pool_looked()),
            "unknown": self.error is not None or self.is_old,
            "faults": list(self.reporting.faults),
            "configuration_of": time_or_null(self.reporting.kept),
        }

    def show(self) -> None:
        """Prints it; nothing if all is known and the configuration is right."""
        faults = self.reporting.faults
        for fault in faults[:_MOST]:
            _say("configuration", fault)
        if len(faults) > _MOST:
            _say("configuration", f"{len(faults) - _MOST:,} more mistakes; `backupd check` lists them")
        if self.reporting.kept:
            _say("configuration", f"below is how it was when it was valid, {local_time(self.reporting.kept)}")
        if self.error:
            looked = self._pool_looked()
            last = f"; the pool could be read last {local_time(looked)}" if looked else ""
            _say("unknown", f"{self.error.message}{last}")
        if self.is_old and self.checked and self.now:
            ago = format_duration((self.now - self.checked.looked).total_seconds())
            unit = f"btrkeep-news@{self.reporting.config.name}.timer"
            _say("unknown", f"alarms were last checked {local_time(self.checked.looked)}, {ago} ago; see `systemctl status {unit}`")

    def show_end(self) -> None:
        """Prints when alarms were checked."""
        if self.checked and not self.is_old:
            click.echo(f"alarms were last checked {local_time(self.checked.looked)}")

    def _pool_looked(self) -> datetime | None:
        return self.checked.pool_looked if self.error and self.checked else self.now


def _say(what: str, text: str) -> None:
    prose(f"{click.style(f'{what}:', fg='red', bold=True)} {printable(text)}")
