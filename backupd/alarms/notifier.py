"""Does the work of `backupd notify`: finds alarms, stores them, and sends what is new.

systemd is asked whether a unit has failed, and for its last lines in the journal.
"""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from backupd.alarms import alarm_messages, digest
from backupd.alarms.alarm_memory import AlarmMemory
from backupd.alarms.alarm_messages import Message
from backupd.alarms.deduplication import AlarmChanges, by_key, changes, remembered
from backupd.alarms.events import Key, UnitFailure, find, unit_failed
from backupd.alarms.send import Delivery, send, service_of
from backupd.health.status_report import StatusReport, read_status
from btrkeep.catalogue import Catalogue, StoredAlarm
from btrkeep.catalogue.model_alarm import FAILURE, SERVICE, UNIT
from btrkeep.config import Config
from btrkeep.config.reading import backupd_command
from btrkeep.decisions.findings import CATALOGUE, FACT, StoredVerdict, as_text
from btrkeep.decisions.pool_health import HealthLimits, PoolFacts, judge_pool
from btrkeep.decisions.schedule import SCHEDULE_FACT, schedule_text
from btrkeep.decisions.silences import Silences, read_silences
from btrkeep.errors import OperatorError, UsageError
from btrkeep.process.programs import ProgramFailed, run
from btrkeep.units import format_time, parse_time

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NotifyReport:
    """The notifications that were sent, or would be sent in a dry run."""

    alarms: Sequence[StoredAlarm] = ()
    """Alarms that were sent as new."""
    recoveries: Sequence[StoredAlarm] = ()
    """Alarms that were sent as resolved."""
    open_alarms: Sequence[StoredAlarm] = ()
    """All active alarms."""
    digest: bool = False
    """True if the digest was sent."""
    messages: Sequence[Message] = ()
    """The messages."""
    services: Sequence[Delivery] = field(default_factory=list)
    """The result for each URL."""
    first: Sequence[StoredAlarm] = ()
    """The alarms that occurred for the first time."""

    @property
    def arrived(self) -> bool:
        """Returns True if at least one service accepted all messages, or there was no message to send; always False without a
        service.
        """
        return not self.messages or any(service.arrived for service in self.services)


def notify(memory: AlarmMemory, report: StatusReport, *, want_digest: bool, dry_run: bool) -> NotifyReport:
    """Stores the alarms of the report, and sends the new ones, with the digest if it is requested or due.

    Without [notify] urls alarms are stored and not sent; once there are urls, all current alarms are new. Raises OperatorError if
    the catalogue cannot be read.
    """
    config, now = report.config, report.now
    every = memory.rows()
    stored = {row.key: row for row in every if row.what != SERVICE}
    recorded = by_key(stored.values(), now)
    alarm_changes = changes(recorded, find(report, recorded, _units(recorded)), config.notify.on, now)
    alarm_changes = _without_silenced(alarm_changes, report.silences)
    last = memory.last_digest()
    is_due = digest.is_due(config.notify.digest, config.pool.zone, parse_time(last) if last else None, now)
    can_wait = not report.is_catalogue_read and report.is_catalogue_busy  # the next check, in five minutes, may be able to read it
    with_digest = want_digest or (is_due and bool(config.notify.urls) and not can_wait)
    messages = (
        [alarm_messages.changes_message(config.name, _machine(), alarm_changes.alarms, alarm_changes.recoveries, _call(config))]
        if alarm_changes.any
        else []
    )
    if with_digest:
        broken = [row for row in every if row.what == SERVICE]
        messages.append(digest.digest_message(config.name, _machine(), report, [*alarm_changes.open_alarms, *broken]))
    first = [row for row in alarm_changes.alarms if row.key not in stored or stored[row.key].recovered]
    notify_report = NotifyReport(
        alarm_changes.alarms, alarm_changes.recoveries, alarm_changes.open_alarms, with_digest, messages, first=first
    )
    if dry_run:
        return notify_report
    notify_report = replace(notify_report, services=_deliver(memory, messages, every, now))
    sent = format_time(now) if with_digest and notify_report.arrived else last
    memory.keep(alarm_changes.changed({}, now, arrived=notify_report.arrived), sent)
    memory.write(lambda catalogue: _forget_services(config, catalogue))
    memory.write(lambda catalogue: catalogue.set_fact(FACT, as_text(StoredVerdict(now, report.verdict, report.pool_looked))))
    memory.write(lambda catalogue: catalogue.set_fact(SCHEDULE_FACT, schedule_text(report.pool.schedule, now)))
    return notify_report


def _without_silenced(alarm_changes: AlarmChanges, silences: Silences) -> AlarmChanges:
    """Returns the changes without messages about silenced subjects. Their rows stay as if nothing had been sent, so a problem that
    is still there when the silence ends is sent then.
    """
    return replace(
        alarm_changes,
        alarms=tuple(alarm for alarm in alarm_changes.alarms if not silences.of_alarm(alarm)),
        recoveries=tuple(alarm for alarm in alarm_changes.recoveries if not silences.of_alarm(alarm)),
    )


def read_live_status(config: Config, catalogue: Catalogue, faults: tuple[str, ...], now: datetime) -> StatusReport:
    """Returns the report in which alarms are found. Raises OperatorError if the catalogue cannot be read or belongs to another
    pool.
    """
    report = read_status(config, catalogue, now, live=True, faults=faults)
    require_own_catalogue(report.pool, config)
    return report


def require_own_catalogue(facts: PoolFacts, config: Config) -> None:
    """Raises OperatorError if the catalogue belongs to another pool. A lost catalogue of this pool is an alarm instead."""
    if facts.foreign:
        (wrong,) = judge_pool(facts, HealthLimits.of(config)).of(CATALOGUE)
        raise OperatorError(wrong.text, wrong.hint)


def _units(recorded: Mapping[Key, StoredAlarm]) -> dict[str, bool | None]:
    units = [
        stored_alarm.about.name
        for stored_alarm in recorded.values()
        if stored_alarm.what == FAILURE and stored_alarm.about.kind == UNIT
    ]
    return {unit: has_failed(unit) for unit in units}


def _call(config: Config) -> str:
    return backupd_command(config.name, config.file)


def notify_failure(
    memory: AlarmMemory, failure: UnitFailure, faults: tuple[str, ...], now: datetime, *, dry_run: bool
) -> NotifyReport:
    """Reports a failed unit, unless that failure was reported already. `faults`: mistakes of the configuration that may have caused
    it.
    """
    config = memory.config
    message = alarm_messages.unit_message(
        config.name, _machine(), failure.unit, failure.result, failure.lines, now, faults, _call(config)
    )
    alarm = unit_failed(failure, now)
    every = memory.rows()
    others = [row for row in every if row.what != SERVICE and row.key != alarm.key]
    row = remembered(by_key(every, now).get(alarm.key), alarm)
    before = row.grade
    silences = read_silences(memory.catalogue, config.every_host, now) if memory.catalogue else Silences()
    if (row.is_notified and alarm.grade <= row.grade) or FAILURE not in config.notify.on or silences.of_alarm(row):
        if not dry_run:
            memory.keep([*others, row], memory.last_digest())
        return NotifyReport(open_alarms=[row])
    row = replace(row, grade=alarm.grade)
    report = NotifyReport([row], (), [row], False, [message], first=[row])
    if dry_run:
        return report
    report = replace(report, services=_deliver(memory, [message], every, now))
    last = replace(row, told=now) if report.arrived else replace(row, grade=before)
    memory.keep([*others, last], memory.last_digest())
    return report


def notify_test(config: Config, *, dry_run: bool) -> NotifyReport:
    """Sends a test message, which states that nothing is wrong."""
    message = alarm_messages.test_message(config.name, _machine())
    return NotifyReport(messages=[message], services=[] if dry_run else send(config.notify.urls, message))


def _machine() -> str:
    return os.uname().nodename


def _deliver(memory: AlarmMemory, messages: Sequence[Message], every: Sequence[StoredAlarm], now: datetime) -> list[Delivery]:
    """Sends the messages, and returns one result for each service."""
    config = memory.config
    by_number: dict[int, Delivery] = {}
    for message in messages:
        for new_delivery in send(config.notify.urls, message):
            if new_delivery.number not in by_number or not new_delivery.arrived:
                by_number[new_delivery.number] = new_delivery
    deliveries = list(by_number.values())
    begun = _log_service_changes(deliveries, memory, {row.subject: row for row in every if row.what == SERVICE}, now)
    working = [config.notify.urls[delivery.number - 1] for delivery in deliveries if delivery.arrived]
    if begun and working and memory.writable:  # the memory records the notification
        send(working, alarm_messages.broken_services_message(config.name, _machine(), begun))
    return deliveries


def _forget_services(config: Config, catalogue: Catalogue) -> None:
    """Removes the alarms of services that are no longer in [notify] urls."""
    broken = [row for row in catalogue.alarms() if row.what == SERVICE]
    if not broken:
        return
    urls = enumerate(config.notify.urls, 1)
    names = {str(Delivery(number, service_of(url) or url.scheme, arrived=True)) for number, url in urls}
    if gone := [row.key for row in broken if row.subject not in names]:
        catalogue.put_alarms([], gone)


def _log_service_changes(
    deliveries: Sequence[Delivery], memory: AlarmMemory, broken: Mapping[str, StoredAlarm], now: datetime
) -> list[StoredAlarm]:
    """Logs once that a service does not work, and once that it works again. Returns the services that are new."""
    begun, ended = [], []
    for delivery in deliveries:
        if delivery.arrived and str(delivery) in broken:
            ended.append((SERVICE, str(delivery)))
            log.warning("%s works again", delivery)
        elif not delivery.arrived and str(delivery) not in broken:
            begun.append(
                StoredAlarm(
                    SERVICE,
                    str(delivery),
                    alarm_messages.service_broken(str(delivery), delivery.reason),
                    0,
                    now,
                    1,
                    now,
                    None,
                    None,
                )
            )
            log.warning("%s", begun[-1].text)
    if begun or ended:
        memory.write(lambda catalogue: catalogue.put_alarms(begun, ended))
    return begun


_UNIT = re.compile(r"[A-Za-z0-9:_.@\\][A-Za-z0-9:_.@\\-]{0,254}", re.ASCII)  # systemd.unit(5)
_LINES = 15
_SECONDS = 10.0


def validate_unit(name: str) -> str:
    """Returns the name of a unit. Raises UsageError if it is invalid."""
    if not _UNIT.fullmatch(name):
        raise UsageError(
            f"{name[:100]!r} is not the name of a systemd unit",
            "give a full name, such as btrkeep-backup@main.service; in units: %n",
        )
    return name


def journal_command(unit: str) -> tuple[str, ...]:
    """The last lines of the unit's output, of earlier starts too: if it failed at once, these may have the cause."""
    return ("journalctl", f"--unit={unit}", f"--lines={_LINES}", "--output=cat", "--no-pager", "--quiet")


def show_command(unit: str) -> tuple[str, ...]:
    """The command that shows whether the unit failed, and how."""
    return ("systemctl", "show", "--property=ActiveState", "--property=Result", "--property=ExecMainStatus", "--", unit)


def read_failure(unit: str) -> UnitFailure:
    """Returns systemd's record of the failure. If systemd cannot be asked, the fields are empty."""
    try:
        lines = run(journal_command(unit), timeout=_SECONDS).stdout.splitlines()
    except ProgramFailed as error:
        lines = [f"(the journal cannot be read: {error.message})"]
    shown = _show(unit)
    status = int(shown.get("ExecMainStatus", 0))
    result = f"{shown.get('Result') or 'unknown result'}{f', exit status {status}' if status else ''}"
    return UnitFailure(unit, result, status, tuple(line for line in lines if line.strip()))


def has_failed(unit: str) -> bool | None:
    """Returns True if the last completed run of the unit failed; None while it runs again, or if systemd cannot be asked."""
    shown = _show(unit)
    state, result = shown.get("ActiveState"), shown.get("Result")
    if state == "failed":
        return True
    if state in ("inactive", "active") and result == "success":
        return False
    return None


def _show(unit: str) -> dict[str, str]:
    try:
        lines = run(show_command(unit), timeout=_SECONDS).stdout.splitlines()
    except ProgramFailed:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)
