"""Makes samples from one look: pure, so that any program with the facts can serve them."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from backupd.health.status_report import StatusReport
from btrkeep import __version__
from btrkeep import metrics as table
from btrkeep.backup_states import BACKUP_STATES
from btrkeep.catalogue import HostFacts, StoredAlarm
from btrkeep.decisions import metric_samples
from btrkeep.decisions.alarm_advice import AlarmPatience
from btrkeep.decisions.copies import FETCHED_BY, CopyState
from btrkeep.decisions.drills import DrillState
from btrkeep.decisions.due import is_due
from btrkeep.decisions.host_state import COPY, STATES
from btrkeep.decisions.verification import VerificationState
from btrkeep.metrics import MetricSamples
from btrkeep.units import parse_backup_name, seconds_between

_GOOD_EXPIRY, _BAD_BALANCE = ("complete", "partial"), ("failed", "killed", None)


def samples_of(report: StatusReport, alarms: Sequence[StoredAlarm], looked: datetime | None) -> MetricSamples:
    """All samples. `looked`: when alarms were checked last."""
    samples = MetricSamples(report.config.name)
    for collect in (_itself, _pool, _filesystem, *(_OF_CATALOGUE if report.is_catalogue_read else ())):
        collect(samples, report)
    if looked:
        metric_samples.add_alarms(samples.add, alarms, report.now, AlarmPatience.of(report.config))
    samples.add(table.ALARMS_LOOKED, _seconds(looked))
    return samples


def _itself(samples: MetricSamples, report: StatusReport) -> None:
    samples.add(table.INFO, 1, __version__)
    samples.add(table.LOOKED, report.now.timestamp())
    samples.add(table.USABLE, not report.fault)
    samples.add(table.CONFIG_FAULTS, len(report.faults))
    samples.add(table.CATALOGUE_USABLE, report.is_catalogue_read)
    samples.add(table.POOL_LOOKED, _seconds(report.pool_looked))
    samples.add(table.LOST, report.lost)


def _hosts(samples: MetricSamples, report: StatusReport) -> None:
    own = [status for status in report.hosts if status.state != COPY]
    for status in own:
        host = report.config.host_named(status.host)
        samples.add(table.HOST_INFO, 1, host.name, host.group or "", _word(host.enabled), _word(host.optional))
        metric_samples.add_state(samples.add, table.HOST_STATE, STATES, status.state, host.name)
        samples.add(table.HOST_SUCCESS, _seconds(status.last_complete), host.name)
        samples.add(table.HOST_AGE, status.age, host.name)
        samples.add(table.HOST_ALIVE, report.alive.get(host.name), host.name)
        samples.add(table.HOST_VERIFIED, _seconds(report.looks.get(host.name)), host.name)
        samples.add(table.HOST_DAMAGED, report.damaged.get(host.name, (0, 0))[0], host.name)
        samples.add(table.HOST_QUOTA, host.quota, host.name)
        if facts := report.facts.get(host.name):
            samples.add(table.HOST_DURATION, _duration(facts), host.name)
            samples.add(table.HOST_SIZE, facts.last_complete_bytes, host.name)
            samples.add(table.HOST_NEW, facts.last_complete_new_bytes, host.name)
            samples.add(table.HOST_FILES, facts.last_complete_files, host.name)
    enabled = Counter(status.state for status in own if report.config.host_named(status.host).enabled)
    metric_samples.add_counts(samples.add, table.HOSTS, STATES, enabled)


def _replicas(samples: MetricSamples, report: StatusReport) -> None:
    for copy in report.copies:
        name, session = copy.replica.name, copy.session
        metric_samples.add_state(samples.add, table.REPLICA_STATE, CopyState, copy.state, name)
        samples.add(table.REPLICA_FETCHED, _seconds(session.at if session else None), name)
        samples.add(table.REPLICA_MAX_AGE, copy.replica.oldest, name)
        if session and session.at and copy.replica.kind != FETCHED_BY:
            samples.add(table.REPLICA_BYTES, session.bytes, name)
            samples.add(table.REPLICA_DURATION, session.seconds, name)
        samples.add(table.REPLICA_BEHIND, len(copy.behind), name)
        samples.add(table.REPLICA_GONE, len(copy.gone), name)
        for lag in copy.lags:
            samples.add(table.REPLICA_NEWEST, _seconds(parse_backup_name(lag.newest)), name, lag.host)


def _drills(samples: MetricSamples, report: StatusReport) -> None:
    samples.add(table.UNVERIFIED, len(report.unverified))
    samples.add(table.IN_DOUBT, len({host for host, _ in report.in_doubt.backups}) if report.in_doubt else 0)
    metric_samples.add_counts(samples.add, table.VERIFIED, VerificationState, report.verifications)
    drills = report.drills
    if drills is None:
        return
    metric_samples.add_state(samples.add, table.DRILL_STATE, DrillState, drills.state)
    samples.add(table.DRILL_PROVEN, _seconds(drills.last.at if drills.last else None))
    samples.add(table.DRILL_FAILED, len(drills.failed))


def _duration(facts: HostFacts) -> float | None:
    return seconds_between(facts.last_complete, facts.last_complete_finished)


def _queue(samples: MetricSamples, report: StatusReport) -> None:
    metric_samples.add_counts(samples.add, table.BACKUPS, BACKUP_STATES, report.backups)
    running = {entry.host for entry in report.running}
    samples.add(table.RUNNING, len(running))
    samples.add(table.DUE, sum(_is_due(report, name) for name in report.config.hosts if name not in running))


def _is_due(report: StatusReport, name: str) -> bool:
    host, facts = report.config.hosts[name], report.facts.get(name)
    last = facts.last_complete if facts else None
    return host.enabled and is_due(last, host.every, host.window, report.config.pool.zone, report.now).due


def _pool(samples: MetricSamples, report: StatusReport) -> None:
    if report.room:
        samples.add(table.POOL_SIZE, report.room.total)
        samples.add(table.POOL_AVAILABLE, report.room.free, "allocated")
        samples.add(table.POOL_AVAILABLE, report.room.unallocated, "unallocated")
    if report.pool.missing is not None:
        samples.add(table.MISSING, len(report.pool.missing))
    if report.pool.redundancy:
        for kind, copies in sorted(report.pool.redundancy.copies.items()):
            for count, size in sorted(copies.items()):
                samples.add(table.COPIES, size, kind, str(count))
    metric_samples.add_health(samples.add, report.verdict)


def _filesystem(samples: MetricSamples, report: StatusReport) -> None:
    if report.numbers:
        metric_samples.add_numbers(samples.add, report.numbers)
    if report.score:
        metric_samples.add_score(samples.add, report.score)


def _balance(samples: MetricSamples, report: StatusReport) -> None:
    if not report.fault:  # whose balances they are is known by the filesystem's UUID alone
        metric_samples.add_balance_totals(samples.add, report.balance_totals)
    if balance := report.balance:
        if balance.moved and balance.written is not None:
            samples.add(table.BALANCE_AMPLIFICATION, balance.written / balance.moved)
        samples.add(table.BALANCE_END, (balance.finished or balance.updated).timestamp())
        samples.add(table.BALANCE_OK, balance.outcome not in _BAD_BALANCE)


def _expiry(samples: MetricSamples, report: StatusReport) -> None:
    metric_samples.add_expiry_totals(samples.add, report.expiry_totals)
    if expiry := report.expiry:
        end = expiry.finished or expiry.updated
        samples.add(table.EXPIRY_DURATION, seconds_between(expiry.started, end))
        samples.add(table.EXPIRY_END, end.timestamp())
        samples.add(table.EXPIRY_OK, expiry.outcome in _GOOD_EXPIRY)


_OF_CATALOGUE = (_hosts, _queue, _balance, _expiry, _replicas, _drills)


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


def _word(flag: bool) -> str:
    return "true" if flag else "false"
