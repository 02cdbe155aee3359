"""What the catalogue gives out and takes in about alarms. As in model.py."""

from dataclasses import dataclass
from datetime import datetime

_SILENT = "silent"
HOST, UNIT = "host ", "unit "
"""How subjects begin that are hosts or units."""


@dataclass(frozen=True, slots=True)
class StoredAlarm:
    """What is, or was, wrong with one subject, and what people have heard of it. The order of the fields is that of the columns."""

    what: str
    """The event, as in [notify] on: failure, suspect, silent, room, devices; or one of the program's own."""
    subject: str
    """What it is about: "host web1", "unit btrkeep-backup@main.service", "pool", ..."""
    text: str
    """It in words, as it was seen last."""
    grade: int
    """How bad it was when it was told; an alarm whose grade has grown is told again."""
    since: datetime
    """When it came, the last time that it came."""
    times: int
    """How often it came since its recovery was told last."""
    told: datetime | None
    """When people were told of it last; None: never."""
    recovered: datetime | None
    """When it was first seen gone; None: it stands."""
    cleared: datetime | None
    """When people were told last that it is gone; None: never."""

    @property
    def key(self) -> tuple[str, str]:
        return self.what, self.subject

    @property
    def known(self) -> bool:
        """Whether the last that people heard of it is that it is there."""
        return self.told is not None and (self.cleared is None or self.cleared < self.told)

    @property
    def host(self) -> str | None:
        """The host that it is about; None for anything else."""
        return _name(self.subject, HOST)

    @property
    def unit(self) -> str | None:
        """The unit of systemd that it is about; None for anything else."""
        return _name(self.subject, UNIT)

    def stands(self, ripe: datetime) -> bool:
        """Whether it is an alarm now. A silent host that is waited for since after `ripe`, and nobody was told of, is none yet."""
        is_waiting = self.what == _SILENT and self.told is None and self.since > ripe
        return self.recovered is None and not is_waiting


def _name(subject: str, kind: str) -> str | None:
    return subject.removeprefix(kind) if subject.startswith(kind) else None
