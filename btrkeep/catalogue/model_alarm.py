"""The catalogue's data types for alarms. See model.py for conventions."""

from dataclasses import dataclass
from datetime import datetime

from btrkeep.choices import ALARM_EVENTS

FAILURE, SUSPECT, SILENT, ROOM, DEVICES = ALARM_EVENTS
"""Events, as in [notify] on."""
SERVICE = "service"
"""The event of rows that remember which services do not work, so that the log says it once."""

HOST, UNIT, DEVICE, MISSING_DEVICE = "host", "unit", "device", "missing device"
REPLICA, PUSH, FETCHED_BY, OFFSITE = "replica", "push", "fetched_by", "offsite"
DAMAGED = "damaged"  # a host some of whose backups are
CONDITION, HOST_KEY = "condition", "hostkey"  # a host with lasting conditions; one that answers with another key
STATE_FULL = "full"  # the state folder, by its path
STEP = "step"  # an optional step that fails again and again
"""Kinds of subjects that there are several of, each with a name or a number."""
OF_HOST = (HOST, CONDITION, HOST_KEY)
"""Those that are about a host's present state, and end when it is no longer configured."""
_NAMED = (HOST, UNIT, DEVICE, MISSING_DEVICE, REPLICA, PUSH, FETCHED_BY, OFFSITE, DAMAGED, CONDITION, HOST_KEY, STATE_FULL, STEP)
POOL, CATALOGUE, READ_ONLY, EXPIRY, BALANCE = "pool", "catalogue", "read-only", "expiry", "balance"
DRILL, VERIFICATION = "drill", "verification"
CONFIGURATION, CLOCK, ALTERED_BACKUPS = "configuration", "clock", "altered"
MIN_FREE, UNALLOCATED, USED, SCHEDULE = "min_free", "unallocated", "used", "schedule"
"""Subjects of which there is one."""
OF_JOBS = (UNIT, EXPIRY, BALANCE)
"""Those that are about a job, not about hosts, copies or the pool."""


@dataclass(frozen=True, slots=True)
class AlarmSubject:
    """The subject of an alarm. `name` is the name of the host, unit or copy, or the device's number; "" if there is only one of its
    kind.
    """

    kind: str
    name: str = ""

    @classmethod
    def of(cls, text: str) -> "AlarmSubject":
        """Parses the text of a row of the catalogue."""
        kind = next((one for one in _NAMED if text.startswith(f"{one} ")), text)
        return cls(kind, text.removeprefix(kind).removeprefix(" "))

    def __str__(self) -> str:
        """Returns the text stored in the catalogue and shown by `notify --json`."""
        return f"{self.kind} {self.name}" if self.name else self.kind


@dataclass(frozen=True, slots=True)
class StoredAlarm:
    """A problem with one subject, current or past, and the notifications sent for it. The fields are in the order of the
    columns.
    """

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
        """True if people were told that it stands, and not that it has ended."""
        return self.told is not None and (self.cleared is None or self.cleared < self.told)

    @property
    def about(self) -> AlarmSubject:
        """`subject`, typed."""
        return AlarmSubject.of(self.subject)

    @property
    def is_open(self) -> bool:
        """True if it was not seen gone."""
        return self.recovered is None

    @property
    def host(self) -> str | None:
        """The configured host that it is about; None for anything else."""
        return self.about.name if self.about.kind in OF_HOST else None
