"""Alarms that stand, and what to do about each."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from btrkeep.catalogue import StoredAlarm
from btrkeep.catalogue.model_alarm import (
    BALANCE,
    CATALOGUE,
    CONDITION,
    DAMAGED,
    DEVICES,
    DRILL,
    EXPIRY,
    FAILURE,
    FETCHED_BY,
    HOST_KEY,
    MIN_FREE,
    OFFSITE,
    POOL,
    PUSH,
    READ_ONLY,
    REPLICA,
    ROOM,
    SERVICE,
    SILENT,
    STEP,
    SUSPECT,
    UNALLOCATED,
    UNIT,
    USED,
    VERIFICATION,
)
from btrkeep.decisions.alarm_patience import AlarmPatience
from btrkeep.serving.viewer import Viewer
from web.data.same_names import of_row
from web.redaction import host_alarm
from web.source import RequestContext

_BAD = (DEVICES, ROOM, FAILURE)
_ORDER = (*_BAD, SUSPECT, SILENT, SERVICE)
_SHOWN = 5
_UNIT_NAME = re.compile(r"[A-Za-z0-9@:_.\\-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice in words, and a command that gives details; `page`: the page of the dashboard, or "" if there is none."""

    words: str
    command: str = ""
    page: str = ""


@dataclass(frozen=True, slots=True)
class OpenAlarm:
    """One open alarm. `host`: its host, None if it concerns none; `tone`: bad or warn; `told`: the notification was sent."""

    what: str
    subject: str
    host: str | None
    text: str
    tone: str
    since: datetime
    times: int
    told: bool
    advice: Advice


@dataclass(frozen=True, slots=True)
class AlarmGroup:
    """Alarms of one kind that want the same done: `first` are some of them, `count` is how many there are."""

    what: str
    tone: str
    words: str
    page: str
    count: int
    first: tuple[OpenAlarm, ...]


_OF_HOST = {
    FAILURE: Advice("Look at its last run. When the reason is mended, let it run again.", "backupd log {host}"),
    SUSPECT: Advice("See what is missing. If it was deleted on purpose, accept the backup.", "backupd list {host}"),
    SILENT: Advice("Is the machine switched on, and is its window long enough?", "backupd run {host}"),
}
_OF_POOL = {
    (FAILURE, POOL): Advice("See that the pool is mounted, writable, and the right filesystem.", "backupd doctor", "doctor"),
    (FAILURE, EXPIRY): Advice(
        "See why it ended; nothing is deleted meanwhile, so the pool grows.", "backupd expire --dry-run", "jobs"
    ),
    (FAILURE, BALANCE): Advice(
        "See why it ended; fragmented free space is not given back meanwhile.", "btrfs-balancer plan", "jobs"
    ),
    (FAILURE, DRILL): Advice(
        "A backup did not come back as it was, or none was restored for long: see what differs, and try it again.", "backupd drill"
    ),
    (FAILURE, VERIFICATION): Advice(
        "Is the timer btrkeep-verify@ or btrkeep-scrub@ enabled? What is not read is not known to be there.", "backupd verify"
    ),
    (ROOM, MIN_FREE): Advice(
        "Nothing is backed up until there is room: keep less, balance, or add a device.", "backupd forecast", "pool"
    ),
    (FAILURE, READ_ONLY): Advice(
        "Look at the kernel's messages (dmesg) for what made it so, before it is mounted read-write again.",
        "backupd doctor",
        "doctor",
    ),
    (FAILURE, CATALOGUE): Advice("Set another `state` for this pool, or rebuild the catalogue from it.", "backupd rebuild"),
    (ROOM, UNALLOCATED): Advice(
        "Expire, then balance what is sparsely used: metadata needs unallocated space.", "backupd doctor", "doctor"
    ),
    (ROOM, USED): Advice("Keep less, or add a device, before it is full.", "backupd forecast", "pool"),
}
_OF_KIND = {
    DEVICES: Advice(
        "Look at the device's health (smartctl) and scrub the pool; replace it before a second one fails.",
        "backupd doctor",
        "doctor",
    ),
    SERVICE: Advice("Alarms do not reach anybody by this service: see its URL in [notify].", "backupd notify --test"),
}
_OF_REPLICA = Advice(
    "See why it cannot be updated; the other pool may be away or full.", "backupd replicate {name} --dry-run", "copies"
)
_OF_FETCHED_BY = Advice("Nobody has fetched from this pool: the other server, or the disk, stays away.", "backupd status", "copies")
_OF_OFFSITE = Advice(
    "See why it cannot be updated; the repository may be away or full.", "backupd offsite run {name} --dry-run", "copies"
)
_OF_DAMAGED = Advice("Other backups of the host, or a copy elsewhere, may have these files.", "backupd list {name}")
_OF_COPY = {
    REPLICA: _OF_REPLICA,
    PUSH: _OF_REPLICA,
    FETCHED_BY: _OF_FETCHED_BY,
    OFFSITE: _OF_OFFSITE,
    DAMAGED: _OF_DAMAGED,
}
_OF_NAMED = {
    CONDITION: Advice(
        "It has lasted for several nights: let root read it on the host, or exclude it. What was deleted there may still be here.",
        "backupd status {name}",
    ),
    HOST_KEY: Advice(
        "Compare the key with the host's own before you remove the recorded one: somebody else may answer there.",
        "backupd host test {name}",
    ),
    STEP: Advice("It has not come to its end several times in a row. The alarm has the command; see its log.", "", "log"),
}
_ELSE = Advice("See what the doctor says.", "backupd doctor", "doctor")


def open_alarms(source: RequestContext, viewer: Viewer) -> tuple[OpenAlarm, ...]:
    """Returns the open alarms that the viewer may see: the worst kind first, then the oldest."""
    patience = AlarmPatience.of_published(source.site)
    return standing((row for row in source.catalogue.alarms() if patience.stands(row, source.now)), viewer)


def standing(rows: Iterable[StoredAlarm], viewer: Viewer) -> tuple[OpenAlarm, ...]:
    """Returns those of the given open alarms that the viewer may see."""
    found = [_alarm(row) for row in rows]
    mine = [one for one in found if (viewer.may_see(one.host) if one.host is not None else not viewer.limited)]
    return tuple(sorted(mine, key=lambda one: (_place(one.what), one.since, one.subject)))


def grouped(alarms: Iterable[OpenAlarm]) -> tuple[AlarmGroup, ...]:
    """Keeps the order, and puts alarms of one kind together: 500 hosts fail together if the network fails."""
    found: dict[tuple[str, str], list[OpenAlarm]] = {}
    for one in alarms:
        found.setdefault((one.what, one.advice.words), []).append(one)
    return tuple(
        AlarmGroup(what, some[0].tone, words, some[0].advice.page, len(some), tuple(some[:_SHOWN]))
        for (what, words), some in found.items()
    )


def _place(what: str) -> int:
    return _ORDER.index(what) if what in _ORDER else len(_ORDER)


def _alarm(row: StoredAlarm) -> OpenAlarm:
    host = row.host
    text, tone = row.text if host is None else host_alarm(row, host), "bad" if row.what in _BAD else "warn"
    return of_row(OpenAlarm, row, host=host, text=text, tone=tone, told=row.known, advice=advice(row))


def advice(row: StoredAlarm) -> Advice:
    """Returns the advice for an alarm of that kind and subject."""
    if of_kind := _OF_NAMED.get(row.about.kind):
        return Advice(of_kind.words, of_kind.command.format(name=row.about.name), of_kind.page)
    if row.host is not None and row.what in _OF_HOST:
        found = _OF_HOST[row.what]
        return Advice(found.words, found.command.format(host=row.host))
    about = row.about
    if about.kind == UNIT:
        named = about.name if _UNIT_NAME.fullmatch(about.name) else "UNIT"
        return Advice("Read what it said last, mend that, and start it again.", f"journalctl -u {named} -n 50", "log")
    if copy := _OF_COPY.get(about.kind):
        return Advice(copy.words, copy.command.format(name=about.name), copy.page)
    return _OF_POOL.get((row.what, about.kind)) or _OF_KIND.get(row.what) or _ELSE
