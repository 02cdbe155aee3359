"""What is wrong now: alarms from one look at everything. Pure.

What cannot be known now (how full a pool is that is not mounted) is neither there nor gone: `unknown` names such events.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from backupd.seen import DeviceErrors, Seen
from backupd.status import HostStatus
from btrkeep.catalogue import StoredAlarm
from btrkeep.config import HostConfig
from btrkeep.units import counted, elapsed, format_duration, format_share, format_size

FAILURE, SUSPECT, SILENT, ROOM, DEVICES = "failure", "suspect", "silent", "room", "devices"
HOST, UNIT = "host ", "unit "
"""How subjects begin that are hosts or units."""
POOL = "pool"
_SLACK = 0.02  # how far below its limit the pool's use must come, for a level that sways must not ring twice a day

Key = tuple[str, str]
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
class Found:
    """All alarms of a look. Nothing is known of `unknown`: events (all their subjects) and keys; `dropped` is nobody's business."""

    alarms: tuple[Alarm, ...]
    unknown: frozenset[str | Key] = frozenset()
    dropped: frozenset[str] = field(default_factory=frozenset)

    def tells_of(self, key: Key) -> bool:
        """Whether this look knows if that alarm holds."""
        return key[0] not in self.unknown and key not in self.unknown


def find(seen: Seen, known: Known, units: Mapping[str, bool | None]) -> Found:
    """All that is wrong. `units`: of each unit whose failure was told, whether it has failed still; None: not known.

    `known` are the alarms as they are remembered: since when a host that never had a backup is waited for, and how full counts as
    full once that was told.
    """
    alarms = [*_pool(seen), *_hosts(seen, known), *_room(seen, known), *_devices(seen), *_jobs(seen)]
    unknown: set[str | Key] = {ROOM, DEVICES, (FAILURE, "balance")} if seen.fault is not None else set()
    for unit, failed in units.items():
        stored = known.get((FAILURE, UNIT + unit))
        if failed and stored:
            alarms.append(Alarm(FAILURE, UNIT + unit, stored.text, stored.since, stored.grade))
        elif failed is None:
            unknown.add((FAILURE, UNIT + unit))
    watched = {HOST + host.name for host in seen.config.hosts.values() if host.enabled}
    dropped = {subject for _, subject in known if subject.startswith(HOST) and subject not in watched}
    return Found(tuple(alarms), frozenset(unknown), frozenset(dropped))


def unit_failed(unit: str, text: str, status: int, now: datetime) -> Alarm:
    """The alarm of a unit that systemd says has failed. A higher exit status is worse: 1, some host; 4, the pool."""
    return Alarm(FAILURE, UNIT + unit, text, now, status)


def _pool(seen: Seen) -> Iterator[Alarm]:
    if seen.fault is not None:
        yield Alarm(FAILURE, POOL, f"the pool cannot be used: {seen.fault}", seen.now)


def _hosts(seen: Seen, known: Known) -> Iterator[Alarm]:
    for status in seen.hosts:
        host = seen.config.hosts[status.host]
        if host.enabled:
            yield from _failing(status, seen)
            yield from _silent(host, status, seen, known)


def _failing(status: HostStatus, seen: Seen) -> Iterator[Alarm]:
    facts = seen.facts.get(status.host)
    if facts is None:
        return
    since = facts.last_run_started or seen.now
    reason = status.error or facts.last_run_error or "no reason is known"
    if status.state == "suspect":
        yield Alarm(SUSPECT, HOST + status.host, f"{status.host}: the newest backup is suspect: {reason}", since)
    elif status.state == "failing" or (status.state == "never" and facts.last_run_outcome in ("failed", "partial")):
        yield Alarm(FAILURE, HOST + status.host, f"{status.host}: the backup is {facts.last_run_outcome}: {reason}", since)


def _silent(host: HostConfig, status: HostStatus, seen: Seen, known: Known) -> Iterator[Alarm]:
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


def _room(seen: Seen, known: Known) -> Iterator[Alarm]:
    room = seen.room
    if room is None or not room.total:
        return
    used, limit = 1 - room.available / room.total, seen.config.notify.used_limit
    stored = known.get((ROOM, "used"))
    if used >= (limit - _SLACK if stored and stored.recovered is None else limit):
        text = f"{format_share(used)} of the pool's {format_size(room.total)} are used, the limit is {format_share(limit)}: {room}"
        yield Alarm(ROOM, "used", text, seen.now)
    if room.available < seen.config.pool.min_free.bytes_of(room.total):
        text = f"no transfer starts any more: {room}, below min_free = {seen.config.pool.min_free}"
        yield Alarm(ROOM, "min_free", text, seen.now)


def _devices(seen: Seen) -> Iterator[Alarm]:
    for device in seen.numbers.devices if seen.numbers else ():
        if device.total:
            yield Alarm(DEVICES, f"device {device.devid}", _errors(device), seen.now, device.total)
    for devid in seen.missing:
        yield Alarm(DEVICES, f"missing device {devid}", f"device {devid} is missing: the pool is mounted without it", seen.now)


def _errors(device: DeviceErrors) -> str:
    kinds = ", ".join(counted(count, f"{name} error") for name, count in device.errors.items() if count)
    return f"device {device.devid} has counted {kinds}"


def _jobs(seen: Seen) -> Iterator[Alarm]:
    expiry, balance = seen.expiry, seen.balance
    if expiry and (expiry.finished is None or expiry.outcome in ("failed", "stopped", "killed")):
        text = f"expiry {expiry.outcome or 'killed'}: {expiry.error or 'see its log'}"
        yield Alarm(FAILURE, "expiry", text, expiry.finished or expiry.updated)
    if balance and (balance.finished is None or balance.outcome in ("failed", "killed")):
        text = f"balance {balance.outcome or 'killed'}: {balance.why or 'see its log'}"
        yield Alarm(FAILURE, "balance", text, balance.finished or balance.updated)
