"""A year of nights: twenty hosts, the events of each, the actions of the administrator. Facts; nothing here decides anything.

tests/btrfs/test_year.py plays it on a real pool, some of its nights in each run of the tests and all of them in the long form;
tests/btrfs/golden/year.py computes the expected backups. A night is named after the
UTC date of its 22:30, when `backupd run` starts, which in Berlin is half past midnight of the next day in summer and half past
eleven of the same day in winter. Actions of people are at 12:00 UTC, and `backupd expire` runs at 03:30 UTC after each night.

2020 has a leap day, a week 53 and clock changes on 03-29 and 10-25; the year ends 366 nights after it began.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

ZONE = "Europe/Berlin"
FIRST, LAST = date(2020, 1, 15), date(2021, 1, 14)
NIGHT, MORNING, NOON = time(22, 30), time(3, 30), time(12)
AFTERWARDS = "2021-01-20T12:00:00Z"  # one more expiry, when every grace is over

# No grace is a whole number of days, so that it never ends in the same second in which an expiry runs.
RETENTION = {"daily": 14, "weekly": 13, "monthly": 12, "yearly": 0, "min_keep": 3, "grace": "30h"}
GROUPS = {"lean": {"daily": 7, "weekly": 4, "monthly": 3, "grace": "68h"}}

OK = "ok"
SMALL = "small"  # the source has lost more than half of its bytes
HALF = "half"  # one of the two source paths is not there
AWAY = "away"  # ssh does not get through


@dataclass(frozen=True, slots=True)
class Spell:
    """The state of a host from one night to another, both included."""

    first: str
    last: str
    what: str


@dataclass(frozen=True, slots=True)
class Host:
    """A host that is configured from the night `joins` on. `retention` is its own, on top of its group's and the pool's."""

    name: str
    retention: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None
    joins: str = str(FIRST)
    every: int = 1  # days
    remote: bool = False
    optional: bool = False
    spells: tuple[Spell, ...] = ()

    def on(self, night: date) -> str:
        """Returns its state in that night."""
        return next((spell.what for spell in self.spells if spell.first <= str(night) <= spell.last), OK)


HOSTS = (
    Host("anna"),
    Host("bert", remote=True, spells=(Spell("2020-06-10", "2020-08-08", AWAY),)),  # 60 nights
    Host("cora", remote=True, optional=True, spells=(Spell("2020-04-24", "2021-01-14", AWAY),)),  # dies after 100 nights
    Host("dora", group="lean"),
    Host("emil", group="lean", retention={"monthly": 6}, every=2),
    Host("fred", {"daily": 3, "weekly": 0, "monthly": 0, "yearly": 2}),
    Host("gina", {"daily": 0}),
    Host("hans"),
    Host("ines", spells=(Spell("2020-05-11", "2020-12-31", SMALL),)),
    Host(
        "jens",
        {"daily": 1, "weekly": 4, "monthly": 2, "min_keep": 1},
        joins="2020-08-03",
        spells=(Spell("2020-09-22", "2020-09-25", SMALL), Spell("2021-01-13", "2021-01-13", SMALL)),
    ),
    Host("kaja", joins="2020-08-17", spells=(Spell("2020-09-15", "2020-09-15", HALF), Spell("2021-01-14", "2021-01-14", HALF))),
    Host("lars"),
    Host("mona"),
    Host("otto", {"daily": 0, "weekly": 8, "monthly": 0}, every=7),
    Host("pia", {"daily": 0, "weekly": 0, "monthly": 0}, joins="2020-12-11"),
    Host("quin"),
    Host("rosa"),
    Host("sven", {"daily": 30}, joins="2020-07-20"),
    Host("tina", {"daily": 7}, joins="2020-08-17"),
    Host("udo", {"daily": 1, "weekly": 0, "monthly": 0, "min_keep": 10}, joins="2020-09-21"),
)


@dataclass(frozen=True, slots=True)
class Deed:
    """An action of the administrator at noon of a day. `backup` is the label of one of the host's backups.

    run, hold (until, why), release, unexpire, accept; rename (to `new`, in the configuration too); leave (the configuration);
    forget (that, and for ever); set (`retention` changes).
    """

    day: str
    what: str
    host: str
    backup: str = ""
    until: str = ""
    why: str = ""
    new: str = ""
    retention: Mapping[str, Any] = field(default_factory=dict)


DEEDS = (
    *(Deed(day, "run", "rosa") for day in ("2020-03-01", "2020-03-29", "2020-10-25", "2020-12-31", "2021-01-10")),
    Deed("2020-03-02", "hold", "hans", "2020-03-01T2230", why="before the migration"),
    Deed("2020-05-06", "hold", "hans", "2020-05-05T2230", until="2020-07-01T00:00:00Z", why="audit"),
    Deed("2020-05-14", "leave", "quin"),  # after 120 nights
    Deed("2020-05-16", "accept", "ines", "2020-05-15T2230"),
    Deed("2020-06-07", "hold", "hans", "2020-06-06T2230"),
    Deed("2020-06-15", "rename", "mona", new="nora"),
    Deed("2020-08-01", "forget", "lars"),
    Deed("2020-09-01", "release", "hans", "2020-06-06T2230"),
    Deed("2020-09-10", "set", "tina", retention={"daily": 9}),  # the marks of that morning are removed
    Deed("2020-10-01", "set", "sven", retention={"daily": 5}),  # too much at once: left out, until it is forced
    Deed("2020-10-11", "unexpire", "hans", "2020-09-26T2230"),  # holds it until 2020-11-10
)

# The expiry of the morning after these nights: further words, or None where it did not run.
MORNINGS: Mapping[str, tuple[str, ...] | None] = {
    "2020-10-05": ("--force", "sven"),
    **{f"2020-11-0{day}": None for day in range(2, 9)},
    "2020-11-09": ("--limit", "5"),
}
CHECKPOINTS = ("2020-05-16", "2020-08-02", "2020-10-04")  # after the expiry that follows these nights


def every_night() -> list[date]:
    """Returns all nights of the year, in order."""
    return [FIRST + timedelta(days=number) for number in range((LAST - FIRST).days + 1)]


def some_nights() -> list[date]:
    """Those in which something happens or is wanted later, one of ten in summer, and three weeks in full; else the server is off.

    A sixth of the year, in which every rule, state and refusal occurs that occurs in the whole of it.
    """
    days = {text for deed in DEEDS for text in (deed.day, deed.backup[:10])} | {*MORNINGS, *CHECKPOINTS, str(LAST)}
    days |= {text for host in HOSTS for text in (host.joins, *(day for spell in host.spells for day in (spell.first, spell.last)))}
    for day in every_night():
        in_summer, in_full = "2020-07-20" <= str(day) <= "2020-10-01", "2020-09-20" <= str(day) <= "2020-10-12"
        if in_full or (in_summer and (day - FIRST).days % 10 == 0):
            days.add(str(day))
    return [day for day in every_night() if str(day) in days]


def at(day: date, hour: time) -> datetime:
    """Returns a moment in UTC."""
    return datetime.combine(day, hour, UTC)


def label(moment: datetime) -> str:
    """Returns the label of a backup made then: its name without the seconds, which depend on the machine."""
    return moment.strftime("%Y-%m-%dT%H%M")
