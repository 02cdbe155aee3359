"""The catalogue's data types for alarms. See model_backup.py for conventions."""

from dataclasses import dataclass
from datetime import datetime

from btrkeep.choices import ALARM_EVENTS

FAILURE, SUSPECT, SILENT, ROOM, DEVICES = ALARM_EVENTS
"""Events, as in [notify] on."""
SERVICE = "service"
"""The event of rows that remember which services do not work, so that the log reports it only once."""


@dataclass(frozen=True, slots=True)
class SubjectKind:
    """A kind of alarm subject, and its properties.

    `named`: there are several of the kind, each with a name or a number. `of_host`: it is a present state of a host, and ends when
    that is no longer configured. `of_copy`: it is a configured copy. `of_job`: it is a job, not a host, a copy or the pool.
    `without_catalogue`: it is also checked without a catalogue. `has_command`: its text has a command, which must not be truncated.
    """

    named: bool = False
    of_host: bool = False
    of_copy: bool = False
    of_job: bool = False
    without_catalogue: bool = False
    has_command: bool = False


KINDS: dict[str, SubjectKind] = {}
"""By the word in the catalogue. What to do about each, and an example: TABLE of btrkeep.decisions.alarm_advice."""


def _kind(word: str, **traits: bool) -> str:
    KINDS[word] = SubjectKind(**traits)
    return word


HOST = _kind("host", named=True, of_host=True)
CONDITION = _kind("condition", named=True, of_host=True, has_command=True)  # a host with lasting conditions
HOST_KEY = _kind("hostkey", named=True, of_host=True, has_command=True)  # a host that answers with another key
DAMAGED = _kind("damaged", named=True)  # a host with damaged backups
REPLICA = _kind("replica", named=True, of_copy=True)
PUSH = _kind("push", named=True, of_copy=True)
FETCHED_BY = _kind("fetched_by", named=True, of_copy=True)
OFFSITE = _kind("offsite", named=True, of_copy=True)
UNIT = _kind("unit", named=True, of_job=True, without_catalogue=True)
STEP = _kind("step", named=True, has_command=True)  # an optional step that fails again and again
DEVICE = _kind("device", named=True, without_catalogue=True)
MISSING_DEVICE = _kind("missing device", named=True, without_catalogue=True)
STATE_FULL = _kind("full", named=True, without_catalogue=True)  # the state folder, by its path
POOL = _kind("pool", without_catalogue=True)
READ_ONLY = _kind("read-only", without_catalogue=True)
MIN_FREE = _kind("min_free", without_catalogue=True)
UNALLOCATED = _kind("unallocated", without_catalogue=True)
USED = _kind("used", without_catalogue=True)
CONFIGURATION = _kind("configuration", without_catalogue=True, has_command=True)
CATALOGUE = _kind("catalogue", without_catalogue=True)
CLOCK = _kind("clock")
SCHEDULE = _kind("schedule")
ALTERED_BACKUPS = _kind("altered")
DRILL = _kind("drill")
VERIFICATION = _kind("verification")
EXPIRY = _kind("expiry", of_job=True)
BALANCE = _kind("balance", of_job=True)


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
        kind = next((word for word, kind in KINDS.items() if kind.named and text.startswith(f"{word} ")), text)
        return cls(kind, text.removeprefix(kind).removeprefix(" "))

    @property
    def traits(self) -> SubjectKind:
        """Returns the properties of the kind; none for a word of another version."""
        return KINDS.get(self.kind, SubjectKind())

    def __str__(self) -> str:
        """Returns the text stored in the catalogue and shown by `notify --json`."""
        return f"{self.kind} {self.name}" if self.name else self.kind


SILENCE_KINDS = ("host", "group", "problem")
"""What can be silenced: a host, the hosts of a group, or a kind of problem of the verdict."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A host, a group or a kind of problem about which no notifications are sent until a date. The fields are in the order of the
    columns.
    """

    kind: str
    """One of SILENCE_KINDS."""
    name: str
    """The name of the host or the group, or the kind of problem."""
    until: datetime
    """When it ends."""
    who: str
    """The user who silenced it."""
    why: str
    """The user's reason."""
    since: datetime
    """When it was silenced."""
    paused: bool
    """True if nightly runs skip the host, too."""

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name


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
    """The problem in words, as last seen."""
    grade: int
    """The grade when it was notified; an alarm whose grade has risen is notified again."""
    since: datetime
    """When it last started."""
    times: int
    """How often it started since its end was last notified."""
    told: datetime | None
    """When it was last notified; None: never."""
    recovered: datetime | None
    """When a check first found that it had ended; None: it is active."""
    cleared: datetime | None
    """When its end was last notified; None: never."""

    @property
    def key(self) -> tuple[str, str]:
        return self.what, self.subject

    @property
    def is_notified(self) -> bool:
        """True if a notification of it was sent, and none of its end."""
        return self.told is not None and (self.cleared is None or self.cleared < self.told)

    @property
    def about(self) -> AlarmSubject:
        """`subject`, typed."""
        return AlarmSubject.of(self.subject)

    @property
    def is_open(self) -> bool:
        """True until a check finds that it has ended."""
        return self.recovered is None

    @property
    def host(self) -> str | None:
        """The configured host that it is about; None for anything else."""
        return self.about.name if self.about.traits.of_host else None
