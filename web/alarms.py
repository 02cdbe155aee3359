"""Open alarms, and what to do about each."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from btrkeep.catalogue import Silence, StoredAlarm
from btrkeep.catalogue.model_alarm import DEVICES, FAILURE, ROOM, SERVICE, SILENT, SUSPECT
from btrkeep.decisions.alarm_advice import Advice, AlarmPatience, advice
from btrkeep.decisions.silences import Silences, read_silences, silence_words
from btrkeep.serving.viewer import Viewer
from web.api import STATE, ApiRequest, Endpoint
from web.filters import absolute
from web.mapping import from_row
from web.redaction import host_alarm
from web.source import RequestContext, source

_BAD = (DEVICES, ROOM, FAILURE)
_ORDER = (*_BAD, SUSPECT, SILENT, SERVICE)


@dataclass(frozen=True, slots=True)
class OpenAlarm:
    """One open alarm."""

    what: str
    """Its kind."""
    subject: str
    """What it is about."""
    host: str | None
    """The host that it concerns; null: none."""
    text: str
    """What is wrong."""
    tone: str
    """bad or warn."""
    since: datetime
    """When it started."""
    times: int
    """How often its notification was sent."""
    told: bool
    """Whether its notification was sent."""
    advice: Advice
    """What to do."""


def open_alarms(source: RequestContext, viewer: Viewer) -> tuple[OpenAlarm, ...]:
    """Returns the open alarms that the viewer may see: the worst kind first, then the oldest."""
    return visible_alarms(active_alarms(source), viewer, source.settings.pool, "" if viewer.limited else source.config.call)


def active_alarms(source: RequestContext) -> list[StoredAlarm]:
    """Returns all open alarms."""
    patience = AlarmPatience.of_published(source.config)
    return [row for row in source.catalogue.alarms() if patience.is_active(row, source.now)]


def silences(source: RequestContext) -> Silences:
    """Returns the present silences; cached between requests. The caller must filter it by viewer."""
    return source.cached("silences", lambda: read_silences(source.catalogue, source.config.hosts, source.now))


def silence_remark(silence: Silence, viewer: Viewer) -> str:
    """Returns until when a host is silenced, by whom and why. A silence of its group may name hosts of others: a viewer who
    is limited to hosts sees only the date.
    """
    if viewer.limited and silence.kind != "host":
        silence = replace(silence, who="the administrator", why="")
    return silence_words(silence, lambda moment: absolute(moment, source().config.zone, source().now))


def visible_alarms(rows: Iterable[StoredAlarm], viewer: Viewer, pool: str, call: str = "") -> tuple[OpenAlarm, ...]:
    """Returns the open alarms that the viewer may see. `call`: as for `advice`."""
    members = [_alarm(row, pool, call) for row in rows]
    mine = [
        open_alarm
        for open_alarm in members
        if (viewer.may_see(open_alarm.host) if open_alarm.host is not None else not viewer.limited)
    ]
    return tuple(sorted(mine, key=lambda open_alarm: (_place(open_alarm.what), open_alarm.since, open_alarm.subject)))


def _place(event: str) -> int:
    return _ORDER.index(event) if event in _ORDER else len(_ORDER)


def _alarm(row: StoredAlarm, pool: str, call: str) -> OpenAlarm:
    host = row.host
    text, tone = row.text if host is None else host_alarm(row, host), "bad" if row.what in _BAD else "warn"
    return from_row(OpenAlarm, row, host=host, text=text, tone=tone, told=row.is_notified, advice=advice(row, pool, call))


@dataclass(frozen=True, slots=True)
class Alarms:
    """The open alarms."""

    alarms: tuple[OpenAlarm, ...]
    """The worst kind first."""


def alarms(asked: ApiRequest) -> Alarms:
    """Returns the open alarms."""
    return Alarms(open_alarms(asked.source, asked.viewer))


ENDPOINTS = (Endpoint("GET", "/alarms", "alarms", STATE, "Open alarms, and what to do about them", Alarms, alarms),)
