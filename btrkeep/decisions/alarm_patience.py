"""Decides when the alarm about a host or copy without any complete backup is ripe: until then it is recorded, and is none. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from btrkeep.catalogue import StoredAlarm
from btrkeep.catalogue.model_alarm import SILENT
from btrkeep.config import Config, HostConfig
from btrkeep.config.published import Published
from btrkeep.decisions.due import DAY, host_late_from

_NEVER = datetime.max.replace(tzinfo=UTC)
_TWO_DAYS = 2 * DAY  # for a copy that is not configured any more


def message_from(since: datetime, host: HostConfig, zone: ZoneInfo, silent: float | None) -> datetime:
    """Returns when the message about a host is due whose newest complete backup started at `since`, or that waits since then for
    its first. `silent`: the age that [notify] sets.
    """
    late = host_late_from(host, since, zone)
    if host.optional:
        return late or _NEVER
    assert late is not None
    return max(late, since + timedelta(seconds=silent)) if silent is not None else late


@dataclass(frozen=True, slots=True)
class AlarmPatience:
    """How long an alarm about a host or copy that has never been complete waits. `copies`: the allowed age by name, in seconds."""

    hosts: Mapping[str, HostConfig]
    zone: ZoneInfo
    silent: float | None
    copies: Mapping[str, float]

    @classmethod
    def of(cls, config: Config) -> "AlarmPatience":
        """Returns that of a configuration."""
        copies = {copy.name: copy.oldest for copy in config.copies.values()}
        return cls(config.every_host, config.pool.zone, config.notify.silent, copies)

    @classmethod
    def of_published(cls, site: Published) -> "AlarmPatience":
        """Returns that of the published configuration."""
        return cls(site.hosts, site.zone, site.silent, {name: copy.oldest for name, copy in site.replicas.items()})

    def stands(self, alarm: StoredAlarm, now: datetime) -> bool:
        """Returns True if this is an alarm now."""
        if alarm.recovered is not None:
            return False
        if alarm.what != SILENT or alarm.told is not None:
            return True
        name = alarm.about.name
        if alarm.host is not None:
            host = self.hosts.get(name) or HostConfig(name)
            return now > message_from(alarm.since, host, self.zone, self.silent)
        return now > alarm.since + timedelta(seconds=self.copies.get(name, _TWO_DAYS))
