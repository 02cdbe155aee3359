"""Finds all current alarms in a status report. Pure.

An alarm is a problem, whether or not a notification is sent. Facts that are unknown now (such as the used space of a pool that is
not mounted) neither raise nor end alarms: `unknown` names such events.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from backupd.alarms import alarm_messages
from backupd.health.status_report import StatusReport
from backupd.hosts.ssh_keys import other_key_hint
from btrkeep.catalogue import StoredAlarm
from btrkeep.catalogue import model_alarm as kinds
from btrkeep.catalogue.model_alarm import DEVICES, FAILURE, ROOM, SILENT, SUSPECT, AlarmSubject
from btrkeep.config import HostConfig
from btrkeep.config.reading import backupd_command
from btrkeep.decisions import findings as health
from btrkeep.decisions.alarm_advice import message_from
from btrkeep.decisions.cause_words import altered_words
from btrkeep.decisions.copy_status import CopyState
from btrkeep.decisions.drills import DrillState, failure_words, repeat_arguments
from btrkeep.decisions.findings import PoolVerdict
from btrkeep.decisions.host_state import COPY, SKIPPED, UNKNOWN, HostStatus, has_other_key
from btrkeep.decisions.lasting import host_words, lasting
from btrkeep.decisions.overall import ALARM_OF_CHECK
from btrkeep.decisions.pool_health import HealthLimits, judge_pool
from btrkeep.decisions.repeated import Step, repeated_hint, repeated_words
from btrkeep.units import seconds_between

_BUSY = timedelta(minutes=15)  # a program may hold the catalogue that long

Key = tuple[str, str]
_UNKNOWN: dict[str, str | Key] = {
    check: event if event == DEVICES else (event, kind) for check, (event, kind) in ALARM_OF_CHECK.items()
}
Known = Mapping[Key, StoredAlarm]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A problem that an administrator is notified of."""

    event: str
    """Its kind."""
    subject: AlarmSubject
    """Its subject, such as a host."""
    text: str
    """The problem, in words."""
    since: datetime
    """When it started."""
    grade: int = 0
    """The severity: if it rises, the alarm is sent again."""
    is_due: bool = True
    """True if it has lasted long enough to be sent; before that it is only recorded."""
    topics: tuple[str, ...] = ()
    """Parts of the text. If one of them is missing in the text that was sent last, the alarm is sent again."""

    @property
    def key(self) -> Key:
        return self.event, str(self.subject)


@dataclass(frozen=True, slots=True)
class FoundAlarms:
    """All alarms found at one time."""

    alarms: tuple[Alarm, ...]
    """The current alarms."""
    unknown: frozenset[str | Key] = frozenset()
    """Events (with all their subjects) and keys of alarms of which it is unknown whether they are current."""
    dropped: frozenset[str] = field(default_factory=frozenset)
    """Subjects that no longer matter, such as hosts that were removed."""

    def is_known(self, key: Key) -> bool:
        """Returns True if the report shows whether that alarm is current."""
        return key[0] not in self.unknown and key not in self.unknown


def find(report: StatusReport, recorded: Known, units: Mapping[str, bool | None]) -> FoundAlarms:
    """Finds all problems.

    `units`: for each reported failed unit, whether it still fails; None: unknown. `recorded`: the stored alarms, which have the
    time since which a host has had no backup at all, and the fill level that was reported.
    """
    verdict = _verdict(report, recorded)
    alarms = [
        *_reporting(report, recorded),
        *_pool(verdict, report.now),
        *_hosts(report, recorded),
        *_copies(report, recorded),
        *_damages(report),
        *_altered(report),
        *_jobs(report),
    ]
    alarms += _drills(report)
    alarms += _unverified(report)
    alarms += _repeated(report)
    unknown: set[str | Key] = {_UNKNOWN[check] for check in verdict.unlooked}
    if report.fault:
        unknown |= {
            (FAILURE, str(subject))
            for subject in (AlarmSubject(kinds.CLOCK), AlarmSubject(kinds.BALANCE), AlarmSubject(kinds.STEP, Step.BALANCE))
        }
    unknown.update(_unseen_keys(report))
    unknown |= {key for key, row in recorded.items() if _is_left_out(row, report)}
    unknown |= {(FAILURE, str(AlarmSubject(kinds.HOST, status.host))) for status in report.hosts if status.state == UNKNOWN}
    if not report.is_catalogue_read:
        unknown |= {key for key, row in recorded.items() if not row.about.traits.without_catalogue}
    for unit, failed in units.items():
        subject = AlarmSubject(kinds.UNIT, unit)
        stored = recorded.get((FAILURE, str(subject)))
        if failed and stored:
            alarms.append(Alarm(FAILURE, subject, stored.text, stored.since, stored.grade))
        elif failed is None:
            unknown.add((FAILURE, str(subject)))
    watched = {host.name for host in report.config.every_host.values() if host.enabled}
    dropped = {row.subject for row in recorded.values() if row.host is not None and row.host not in watched}
    return FoundAlarms(tuple(alarms), frozenset(unknown), frozenset(dropped))


@dataclass(frozen=True, slots=True)
class UnitFailure:
    """The failure of a unit."""

    unit: str
    """The unit's name."""
    result: str
    """systemd's result, with the exit status if it is not 0."""
    status: int
    """The exit status."""
    lines: tuple[str, ...]
    """The last lines of its output, unchanged: other programs wrote them."""


def unit_failed(failure: UnitFailure, now: datetime) -> Alarm:
    """Returns the alarm for a unit that systemd reports as failed. A higher exit status is worse: 1, some host; 4, the pool."""
    text = alarm_messages.unit_failed(failure.unit, failure.result)
    return Alarm(FAILURE, AlarmSubject(kinds.UNIT, failure.unit), text, now, failure.status)


def _is_left_out(row: StoredAlarm, report: StatusReport) -> bool:
    """Returns True for an alarm of a host or copy that is skipped because of a mistake in the configuration: such an alarm is not
    resolved.
    """
    about = row.about
    if about.traits.of_host:
        return about.name in report.config.excluded and row.what != SILENT
    return about.traits.of_copy and about.name in report.config.excluded_copies


def _verdict(report: StatusReport, recorded: Known) -> PoolVerdict:
    """Returns the verdict, with the pool counted as full until the used space is well below the limit."""
    full = recorded.get((ROOM, kinds.USED))
    return judge_pool(replace(report.pool, was_full=full is not None and full.recovered is None), HealthLimits.of(report.config))


def _reporting(report: StatusReport, recorded: Known) -> Iterator[Alarm]:
    """Finds the problems on which other alarms depend: the configuration, the catalogue and the clock."""
    if report.faults:
        text = alarm_messages.configuration(report.faults, backupd_command(report.config.name, report.config.file))
        topics = (
            report.faults if len(report.faults) <= alarm_messages.MISTAKES else report.faults[:1]
        )  # the text lists no more than these
        yield Alarm(FAILURE, AlarmSubject(kinds.CONFIGURATION), text, report.now, len(report.faults), topics=tuple(topics))
    if report.catalogue_fault:
        subject = (
            AlarmSubject(kinds.STATE_FULL, str(report.config.pool.state)) if report.is_state_full else AlarmSubject(kinds.CATALOGUE)
        )
        before = recorded.get((FAILURE, str(subject)))
        since = before.since if before and before.recovered is None else report.now
        is_due = not report.is_catalogue_busy or report.now - since >= _BUSY
        yield Alarm(FAILURE, subject, report.catalogue_fault, since, is_due=is_due)
    if report.clock:
        yield Alarm(FAILURE, AlarmSubject(kinds.CLOCK), report.clock, report.now)


def _pool(verdict: PoolVerdict, now: datetime) -> Iterator[Alarm]:
    for finding in verdict.findings:
        event, kind = ALARM_OF_CHECK[finding.check]
        text = alarm_messages.unusable(finding.text) if finding.check == health.UNUSABLE else finding.text
        grade = finding.count or (finding.check == health.UNALLOCATED and finding.level == health.ERROR)
        yield Alarm(event, AlarmSubject(kind, "" if finding.device is None else str(finding.device)), text, now, int(grade))


def _hosts(report: StatusReport, recorded: Known) -> Iterator[Alarm]:
    for status in report.hosts:
        host = report.config.host_named(status.host)
        if host.enabled and status.state != COPY:
            if not host.fault:  # a fault is already an alarm about the configuration
                yield from _failing(status, report)
            yield from _silent(host, status, report, recorded)
            yield from _host_key(host, report)
            yield from _lasting(status, report)


def _failing(status: HostStatus, report: StatusReport) -> Iterator[Alarm]:
    facts = report.facts.get(status.host)
    if facts is None:
        return
    since = facts.last_run_started or report.now
    reason = status.error or facts.last_run_error or "no reason was recorded"
    if status.state == "suspect":
        yield Alarm(SUSPECT, AlarmSubject(kinds.HOST, status.host), alarm_messages.suspect(status.host, reason), since)
    elif status.state == "failing" or (status.state == "never" and facts.last_run_outcome in ("failed", "partial")):
        text = alarm_messages.failing(status.host, facts.last_run_outcome, reason)
        yield Alarm(FAILURE, AlarmSubject(kinds.HOST, status.host), text, since)


def _host_key(host: HostConfig, report: StatusReport) -> Iterator[Alarm]:
    """Finds hosts that answer with another key. This is a separate alarm, because a host that was failing already has one."""
    facts = report.facts.get(host.name)
    if facts and has_other_key(facts):
        command = backupd_command(report.config.name, report.config.file)
        text = alarm_messages.other_key(host.name, other_key_hint(host, [report.config.ssh.known_hosts], command))
        yield Alarm(FAILURE, AlarmSubject(kinds.HOST_KEY, host.name), text, facts.last_run_started or report.now)


def _unseen_keys(report: StatusReport) -> Iterator[Key]:
    """Yields the keys of alarms about host keys that the newest run did not check: it did not connect, for another reason."""
    for status in report.hosts:
        facts = report.facts.get(status.host)
        if facts and facts.last_run_outcome not in ("complete", "suspect") and not has_other_key(facts):
            yield FAILURE, str(AlarmSubject(kinds.HOST_KEY, status.host))


def _lasting(status: HostStatus, report: StatusReport) -> Iterator[Alarm]:
    """Finds hosts with lasting conditions: one alarm for each host, sent again when their number has doubled."""
    facts = report.facts.get(status.host)
    if facts and (conditions := lasting(facts.lasting, facts.last_complete)):
        text = host_words(status.host, conditions, backupd_command(report.config.name, report.config.file))
        since = min(condition.since for condition in conditions)
        yield Alarm(FAILURE, AlarmSubject(kinds.CONDITION, status.host), text, since, len(conditions).bit_length())


def _silent(host: HostConfig, status: HostStatus, report: StatusReport, recorded: Known) -> Iterator[Alarm]:
    """Finds silent hosts. For a host that never had a complete backup, the time counts from when it was first seen. The text
    repeats why the newest backup or run is not complete, because the alarm about that was sent many days ago.
    """
    if host.optional and host.max_absence is None:
        return
    subject, zone, wait = AlarmSubject(kinds.HOST, host.name), report.config.pool.zone, report.config.notify.silent
    reason = status.error or next((warning for warning in status.warnings if warning.startswith(SKIPPED)), None)
    if status.last_complete is not None:
        if report.now > message_from(status.last_complete, host, zone, wait):
            text = alarm_messages.silent(host.name, (report.now - status.last_complete).total_seconds(), reason)
            yield Alarm(SILENT, subject, text, status.last_complete)
        return
    before = recorded.get((SILENT, str(subject)))
    since = before.since if before and before.recovered is None else report.now
    text = alarm_messages.never_complete(host.name, seconds_between(since, report.now) or 0.0, reason)
    yield Alarm(SILENT, subject, text, since, is_due=report.now > message_from(since, host, zone, wait))


def _copies(report: StatusReport, recorded: Known) -> Iterator[Alarm]:
    """Finds copies that fail or are late; only the copy is the subject, and hosts are named in the text. The time of a copy that
    was never made counts from when it was first seen.
    """
    for copy in report.copies:
        kind, name = copy.replica.kind, copy.replica.name
        subject = AlarmSubject(kind, name)
        if copy.state == CopyState.NEVER:
            before = recorded.get((SILENT, str(subject)))
            since = before.since if before and before.recovered is None else report.now
            waited = report.now - since
            is_due = waited > timedelta(seconds=copy.replica.oldest)
            yield Alarm(SILENT, subject, alarm_messages.never_copied(kind, name, waited.total_seconds()), since, is_due=is_due)
        elif copy.state == CopyState.FAILING and copy.session:
            text = alarm_messages.copy_fails(
                kind, name, copy.error, [(host_behind.host, host_behind.error) for host_behind in copy.behind]
            )
            yield Alarm(FAILURE, subject, text, copy.session.at or copy.session.tried, len(copy.behind))
        elif copy.state == CopyState.LATE and copy.session and copy.session.at:
            yield Alarm(FAILURE, subject, alarm_messages.copy_is_late(kind, name, copy.age or 0.0), copy.session.at)


def _drills(report: StatusReport) -> Iterator[Alarm]:
    """Returns one alarm for all drills: restores that differed, or no proof for too long."""
    drills = report.drills
    if drills and drills.state == DrillState.FAILING:
        texts = [failure_words(drill) for drill in drills.failed]
        command = f"{backupd_command(report.config.name, report.config.file)} drill {repeat_arguments(drills.failed[0])}"
        text = alarm_messages.drills_fail(texts, command)
        yield Alarm(FAILURE, AlarmSubject(kinds.DRILL), text, drills.failed[0].at, len(texts))
    elif drills and drills.state == DrillState.LATE:
        since = drills.last.at if drills.last else report.now
        yield Alarm(FAILURE, AlarmSubject(kinds.DRILL), alarm_messages.drills_are_late(drills.age), since)


def _repeated(report: StatusReport) -> Iterator[Alarm]:
    """Returns an alarm for each optional step that did not complete several times in a row."""
    command = backupd_command(report.config.name, report.config.file)
    for failure in report.repeated:
        text = f"{repeated_words(failure)}; {repeated_hint(failure, command)}"
        yield Alarm(FAILURE, AlarmSubject(kinds.STEP, failure.subject), text, failure.since)


def _unverified(report: StatusReport) -> Iterator[Alarm]:
    """Returns one alarm for all hosts, because the usual reason is that the timer is not running."""
    if report.unverified:
        last_reads = [last for host in report.unverified if (last := report.last_reads[host])]
        text = alarm_messages.not_verified(report.unverified, report.config.verify.oldest)
        yield Alarm(FAILURE, AlarmSubject(kinds.VERIFICATION), text, min(last_reads, default=report.now), len(report.unverified))


def _damages(report: StatusReport) -> Iterator[Alarm]:
    """Finds hosts with damaged backups, including hosts that are no longer configured, of which only the backups remain.
    Verification finds damage gradually, so the alarm is sent again when the number has doubled.
    """
    for host, (backups, files) in sorted(report.damaged.items()):
        grade = (backups * files).bit_length()
        yield Alarm(DEVICES, AlarmSubject(kinds.DAMAGED, host), alarm_messages.damaged(host, backups, files), report.now, grade)


def _altered(report: StatusReport) -> Iterator[Alarm]:
    """Returns one alarm for all altered backups, sent again when there are more."""
    if report.altered:
        yield Alarm(FAILURE, AlarmSubject(kinds.ALTERED_BACKUPS), altered_words(report.altered), report.now, len(report.altered))


def _jobs(report: StatusReport) -> Iterator[Alarm]:
    expiry, balance = report.expiry, report.balance
    if expiry and (expiry.finished is None or expiry.outcome in ("failed", "stopped", "killed")):
        text = alarm_messages.job_failed(kinds.EXPIRY, expiry.outcome, expiry.error)
        yield Alarm(FAILURE, AlarmSubject(kinds.EXPIRY), text, expiry.finished or expiry.updated)
    if balance and (balance.finished is None or balance.outcome in ("failed", "killed")):
        text = alarm_messages.job_failed(kinds.BALANCE, balance.outcome, balance.why)
        yield Alarm(FAILURE, AlarmSubject(kinds.BALANCE), text, balance.finished or balance.updated)
