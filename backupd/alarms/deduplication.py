"""Decides which alarms are new, and which messages are sent about them. Pure.

Each alarm is in one of two states: it was notified (`StoredAlarm.is_notified`), or not. One message is sent when it comes, and one
when it has ended; then it may come again. An alarm that comes and goes causes at most three messages in QUIET: it is there, it has
ended, it is back.

    it is there     it has ended    what happens
    not notified    -               a message is sent; notified from now on
    notified        -               nothing, unless its grade has risen, or it has another topic
    -               not notified    removed after QUIET
    -               notified        the message of its end is sent: at once, or after QUIET if the alarm has come and gone
                                    repeatedly; not as long as something else is wrong with the same subject

The recorded alarms change only after a message was sent, so a message that could not be sent is sent by a later run.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from backupd.alarms.events import Alarm, FoundAlarms, Key, Known
from btrkeep.catalogue import StoredAlarm

QUIET = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class AlarmChanges:
    """What to send and what to store."""

    alarms: tuple[StoredAlarm, ...]
    """Alarms to be sent as new."""
    recoveries: tuple[StoredAlarm, ...]
    """Alarms to be sent as resolved."""
    rows: tuple[StoredAlarm, ...]
    """Rows to be stored, as if nothing were sent."""
    gone: tuple[Key, ...]
    """Keys of rows to be deleted."""
    waiting: frozenset[Key] = frozenset()
    """Keys of alarms in `rows` that have not lasted long enough to be sent."""

    @property
    def any(self) -> bool:
        """Returns True if there is anything to send."""
        return bool(self.alarms or self.recoveries)

    @property
    def open_alarms(self) -> list[StoredAlarm]:
        """Returns all current alarms, sent or not."""
        return [row for row in self.rows if row.recovered is None and row.key not in self.waiting]

    def changed(self, recorded: Known, now: datetime, *, arrived: bool) -> list[StoredAlarm]:
        """Returns the rows to write, without those that are equal in `recorded`; `arrived`: the messages were delivered."""
        rows = {row.key: row for row in self.rows}
        if arrived:
            # A wrong clock may have written a future time for `cleared`: then it would not count as notified.
            rows |= {row.key: replace(row, told=now, cleared=_before(row.cleared, now)) for row in self.alarms}
            rows |= {row.key: replace(row, cleared=now, times=0) for row in self.recoveries}
        return [row for key, row in rows.items() if recorded.get(key) != row]


def _before(moment: datetime | None, now: datetime) -> datetime | None:
    return moment if moment and moment < now else None


def changes(recorded: Known, found_alarms: FoundAlarms, events: Collection[str], now: datetime) -> AlarmChanges:
    """Returns the alarms to send and the rows to store. `events` are those enabled in [notify]; alarms of other events are stored
    and never sent.
    """
    alarms: list[StoredAlarm] = []
    recoveries: list[StoredAlarm] = []
    rows: list[StoredAlarm] = []
    gone: list[Key] = []
    present = {alarm.key: alarm for alarm in found_alarms.alarms}
    unwell = {str(alarm.subject) for alarm in found_alarms.alarms}
    for alarm in present.values():
        before = recorded.get(alarm.key)
        row = remembered(before, alarm)
        is_other = before is not None and row.is_notified and any(topic not in before.text for topic in alarm.topics)
        if alarm.is_due and alarm.event in events and (not row.is_notified or alarm.grade > row.grade or is_other):
            alarms.append(replace(row, grade=alarm.grade))
        rows.append(replace(row, text=before.text) if before and is_other else row)  # the text that was sent
    for key, old in recorded.items():
        if key in present:
            continue
        left = old if not found_alarms.is_known(key) else _gone(old, now)
        if old.subject in found_alarms.dropped or left is None:
            gone.append(key)
            continue
        rows.append(left)
        if left.recovered and left.is_notified and left.subject not in unwell and now - left.recovered >= _patience(left):
            recoveries.append(left)
    if "recovery" not in events:  # recoveries are not configured, so it counts as sent
        cleared_rows = {row.key: replace(row, cleared=now, times=0) for row in recoveries}
        rows, recoveries = [cleared_rows.get(row.key, row) for row in rows], []
    waiting = frozenset(alarm.key for alarm in present.values() if not alarm.is_due)
    return AlarmChanges(tuple(alarms), tuple(recoveries), tuple(rows), tuple(gone), waiting)


def remembered(before: StoredAlarm | None, alarm: Alarm) -> StoredAlarm:
    """Returns the row of a current alarm, with the severity that was sent."""
    if before is None:
        return StoredAlarm(alarm.event, str(alarm.subject), alarm.text, 0, alarm.since, 1, None, None, None)
    grade = before.grade if before.is_notified else 0
    if before.recovered is None:
        return replace(before, text=alarm.text, grade=grade)
    return replace(before, text=alarm.text, grade=grade, since=alarm.since, times=before.times + 1, recovered=None)


def _gone(before: StoredAlarm, now: datetime) -> StoredAlarm | None:
    """Returns the row of an alarm that is no longer current; None if nothing has to be remembered."""
    row = before if before.recovered else replace(before, recovered=now)
    if row.is_notified:
        return row
    if row.cleared is None or now - row.cleared > QUIET:
        return None
    return row


def _patience(row: StoredAlarm) -> timedelta:
    """Returns how long an alarm must be absent before its end is sent: the end of one that came back soon after is not trusted at
    once.
    """
    came_back = row.cleared is not None and row.told is not None and row.told - row.cleared < QUIET
    return QUIET if came_back else timedelta()


def by_key(rows: Iterable[StoredAlarm], now: datetime) -> dict[Key, StoredAlarm]:
    """Returns the stored alarms by key. Times in the future, written with a wrong clock, become `now`."""
    return {row.key: _by_now(row, now) for row in rows}


def _by_now(row: StoredAlarm, now: datetime) -> StoredAlarm:
    def by_now(moment: datetime | None) -> datetime | None:
        return min(moment, now) if moment else None

    return replace(
        row, since=min(row.since, now), told=by_now(row.told), recovered=by_now(row.recovered), cleared=by_now(row.cleared)
    )
