"""What is wrong now: alarms from one look at everything. Pure.

An alarm is what is wrong, whether or not anybody is told of it. What cannot be known now (how full a pool is that is not mounted)
is neither there nor gone: `unknown` names such events.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from backupd.health.status_report import StatusReport
from btrkeep.catalogue import StoredAlarm
from btrkeep.catalogue.model_alarm import HOST, UNIT
from btrkeep.config import HostConfig
from btrkeep.decisions import findings as health
from btrkeep.decisions.findings import PoolVerdict
from btrkeep.decisions.host_state import HostStatus
from btrkeep.decisions.pool_health import HealthLimits, judge
from btrkeep.units import elapsed, format_duration

FAILURE, SUSPECT, SILENT, ROOM, DEVICES = "failure", "suspect", "silent", "room", "devices"
POOL = "pool"
_OF_CHECK = {
    health.UNUSABLE: (FAILURE, POOL),
    health.CATALOGUE: (FAILURE, "catalogue"),
    health.READ_ONLY: (FAILURE, "read-only"),
    health.MISSING: (DEVICES, "missing device"),
    health.ERRORS: (DEVICES, "device"),
    health.ROOM: (ROOM, "min_free"),
    health.UNALLOCATED: (ROOM, "unallocated"),
    health.USED: (ROOM, "used"),
}
"""Event and subject of what is wrong with the pool."""

Key = tuple[str, str]
_UNKNOWN: dict[str, str | Key] = {check: what if what == DEVICES else (what, name) for check, (what, name) in _OF_CHECK.items()}
Known = Mapping[Key, StoredAlarm]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that is wrong with `subject`, in words, since when. `grade`: when it grows it is told again.

    `ripe`: whether it has lasted long enough to be told; until then it is only remembered.
    """

    what: str
    subject: str
    text: str
    since: datetime
    grade: int = 0
    ripe: bool = True

    @property
    def key(self) -> Key:
        return self.what, self.subject


@dataclass(frozen=True, slots=True)
class FoundAlarms:
    """All alarms of a look. Nothing is known of `unknown`: events (all their subjects) and keys; `dropped` is nobody's business."""

    alarms: tuple[Alarm, ...]
    unknown: frozenset[str | Key] = frozenset()
    dropped: frozenset[str] = field(default_factory=frozenset)

    def tells_of(self, key: Key) -> bool:
        """Whether this look knows if that alarm holds."""
        return key[0] not in self.unknown and key not in self.unknown


def find(seen: StatusReport, known: Known, units: Mapping[str, bool | None]) -> FoundAlarms:
    """All that is wrong. `units`: of each unit whose failure was told, whether it has failed still; None: not known.

    `known` are the alarms as they are remembered: since when a host that never had a backup is waited for, and how full counts as
    full once that was told.
    """
    verdict = _verdict(seen, known)
    alarms = [*_pool(verdict, seen.now), *_hosts(seen, known), *_jobs(seen)]
    unknown: set[str | Key] = {_UNKNOWN[check] for check in verdict.unlooked}
    if seen.fault:
        unknown.add((FAILURE, "balance"))
    for unit, failed in units.items():
        stored = known.get((FAILURE, UNIT + unit))
        if failed and stored:
            alarms.append(Alarm(FAILURE, UNIT + unit, stored.text, stored.since, stored.grade))
        elif failed is None:
            unknown.add((FAILURE, UNIT + unit))
    watched = {HOST + host.name for host in seen.config.hosts.values() if host.enabled}
    dropped = {subject for _, subject in known if subject.startswith(HOST) and subject not in watched}
    return FoundAlarms(tuple(alarms), frozenset(unknown), frozenset(dropped))


def unit_failed(unit: str, text: str, status: int, now: datetime) -> Alarm:
    """The alarm of a unit that systemd says has failed. A higher exit status is worse: 1, some host; 4, the pool."""
    return Alarm(FAILURE, UNIT + unit, text, now, status)


def _verdict(seen: StatusReport, known: Known) -> PoolVerdict:
    """What stands is known here, of whatever look."""
    full = known.get((ROOM, "used"))
    return judge(replace(seen.pool, was_full=full is not None and full.recovered is None), HealthLimits.of(seen.config))


def _pool(verdict: PoolVerdict, now: datetime) -> Iterator[Alarm]:
    for one in verdict.findings:
        what, subject = _OF_CHECK[one.check]
        text = f"the pool cannot be used: {one.text}" if one.check == health.UNUSABLE else one.text
        grade = one.count or (one.check == health.UNALLOCATED and one.level == health.ERROR)
        yield Alarm(what, subject if one.device is None else f"{subject} {one.device}", text, now, int(grade))


def _hosts(seen: StatusReport, known: Known) -> Iterator[Alarm]:
    for status in seen.hosts:
        host = seen.config.hosts[status.host]
        if host.enabled:
            yield from _failing(status, seen)
            yield from _silent(host, status, seen, known)


def _failing(status: HostStatus, seen: StatusReport) -> Iterator[Alarm]:
    facts = seen.facts.get(status.host)
    if facts is None:
        return
    since = facts.last_run_started or seen.now
    reason = status.error or facts.last_run_error or "no reason is known"
    if status.state == "suspect":
        yield Alarm(SUSPECT, HOST + status.host, f"{status.host}: the newest backup is suspect: {reason}", since)
    elif status.state == "failing" or (status.state == "never" and facts.last_run_outcome in ("failed", "partial")):
        yield Alarm(FAILURE, HOST + status.host, f"{status.host}: the backup is {facts.last_run_outcome}: {reason}", since)


def _silent(host: HostConfig, status: HostStatus, seen: StatusReport, known: Known) -> Iterator[Alarm]:
    """A host that never had a complete backup is waited for from when it was first looked for."""
    if host.optional:
        return
    limit = timedelta(seconds=seen.config.notify.silent)
    if status.last_complete is not None:
        if seen.now - status.last_complete > limit:
            text = f"{host.name}: no complete backup for {format_duration((seen.now - status.last_complete).total_seconds())}"
            yield Alarm(SILENT, HOST + host.name, text, status.last_complete)
        return
    before = known.get((SILENT, HOST + host.name))
    since = before.since if before and before.recovered is None else seen.now
    waited = format_duration(elapsed(since, seen.now) or 0.0)
    text = f"{host.name}: no complete backup ever, {waited} after it was first looked for"
    yield Alarm(SILENT, HOST + host.name, text, since, ripe=seen.now - since > limit)


def _jobs(seen: StatusReport) -> Iterator[Alarm]:
    expiry, balance = seen.expiry, seen.balance
    if expiry and (expiry.finished is None or expiry.outcome in ("failed", "stopped", "killed")):
        text = f"expiry {expiry.outcome or 'killed'}: {expiry.error or 'see its log'}"
        yield Alarm(FAILURE, "expiry", text, expiry.finished or expiry.updated)
    if balance and (balance.finished is None or balance.outcome in ("failed", "killed")):
        text = f"balance {balance.outcome or 'killed'}: {balance.why or 'see its log'}"
        yield Alarm(FAILURE, "balance", text, balance.finished or balance.updated)
