"""One host: its state, its settings, its backups and why each is kept, its runs.

The rules of expiry decide, from the catalogue's rows, why a backup is kept. Two facts are only in the pool: that an administrator
forgot a host (`backupd forget`), or deleted a backup. Then rows and rules disagree, `in_doubt` reports it, and the page can ask the
root service (`exact`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from btrkeep.backup_states import FINAL, GOING
from btrkeep.catalogue import Run
from btrkeep.config import HostConfig, Retention
from btrkeep.config.published import ALIVE
from btrkeep.decisions.alarm_advice import command_for
from btrkeep.decisions.copy_status import COPIES, copied_backups, copies_of
from btrkeep.decisions.host_state import COPY, UNKNOWN
from btrkeep.decisions.retention_words import policy_words
from btrkeep.decisions.verification import VerifiedBackups
from btrkeep.serving.viewer import Viewer
from btrkeep.units import format_duration, format_time
from web.alarms import OpenAlarm, open_alarms
from web.copies import CopyElsewhere, also_on
from web.hosts import data
from web.hosts.backup_rows import BackupRow, Calendar, Mark, backup_row, by_service, calendar, decided, strip_letter
from web.hosts.data import UNCONFIGURED, HostRow
from web.hosts.nights import explained
from web.log import LogRun, as_shown
from web.mapping import from_row
from web.running import Transfer, alive_runs, running
from web.source import RequestContext

RUNS = 20
_HISTORY = 400
_NAMED = 5  # damaged files


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The settings of a host."""

    paths: tuple[str, ...]
    """The source paths."""
    exclude: tuple[str, ...]
    """The exclude patterns."""
    every: float
    """Seconds between two backups."""
    window: str | None
    """When backups may run; null: always."""
    optional: bool
    """Whether it may be absent."""
    enabled: bool
    """Whether it is backed up."""
    bandwidth: int | None
    """Bytes per second; null: no limit."""
    quota: int | None
    """Bytes; null: no limit."""
    attempts: int
    """How many times a failed transfer is attempted in one run."""
    deadline: float
    """Seconds after which a run is stopped."""
    one_file_system: bool
    """Whether filesystems that are mounted below the paths are left out."""
    snapshots: str
    """Whether the files are read from snapshots of the host: off, auto or required."""
    retention: str
    """The rules, in words."""


@dataclass(frozen=True, slots=True)
class DamagedFiles:
    """The known damages of a host."""

    files: int
    """Number of damaged files."""
    backups: int
    """Number of backups that have them."""
    paths: tuple[str, ...]
    """The first of them."""
    replica: str | None
    """The replica that fetches the host and can fetch it again; null: it is backed up here."""


@dataclass(frozen=True, slots=True)
class HostPage:
    """The page of a host."""

    row: HostRow
    """The host."""
    sentence: str
    """Its state in one sentence."""
    settings: HostSettings | None
    """Its settings; null: it is no longer configured."""
    running: tuple[Transfer, ...]
    """Its running transfers."""
    alarms: tuple[OpenAlarm, ...]
    """Its open alarms."""
    backups: tuple[BackupRow, ...]
    """Newest first."""
    kept: int
    """Number of backups that the retention keeps."""
    going: int
    """Number of backups that it deletes."""
    retention: str
    """The rules, in words."""
    in_doubt: bool
    """Whether a backup has expired although the rules would keep it now: only the pool itself shows why."""
    calendar: Calendar
    """Its calendar."""
    runs: tuple[LogRun, ...]
    """Its last runs, newest first."""
    history: tuple[LogRun, ...]
    """Its runs that made a backup, oldest first, for the chart."""
    night_words: str
    """The meaning of a night of its strip."""
    also: tuple[CopyElsewhere, ...] = ()
    """Its copies in other pools; for a fetched host the backups in common with its origin."""
    alive: int | None = None
    """Bytes that it wrote and that still exist, as of the last sample; null: simple quotas do not count them."""
    damaged: DamagedFiles | None = None
    """Its damaged files; null: none."""

    @property
    def newest(self) -> str | None:
        """Returns the newest backup whose files can be restored, a complete one if possible."""
        backup_rows = [backup for backup in self.backups if backup.restorable]
        backup_rows.sort(key=lambda row: (row.ahead, row.state != "complete"))
        return backup_rows[0].name if backup_rows else None

    @property
    def failed_run(self) -> LogRun | None:
        """Returns the last run that ended, if it made no complete backup."""
        ended = next((run for run in self.runs if run.outcome not in ("running", "skipped")), None)
        return ended if ended and ended.outcome != "complete" else None

    @property
    def to_accept(self) -> str | None:
        """Returns the newest backup that an operator may accept."""
        return next((backup.name for backup in self.backups if backup.may_accept), None)


def known_names(source: RequestContext, viewer: Viewer) -> list[str]:
    """Returns all hosts that the viewer may see, in order, including those that only have runs."""
    names = {row.host for row in data.every_row(source)} | set(source.catalogue.hosts())
    return sorted(name for name in names if viewer.may_see(name))


def near_names(source: RequestContext, viewer: Viewer, host: str) -> list[str]:
    """Returns similar names, of hosts that the viewer may see."""
    return get_close_matches(host, known_names(source, viewer), 5)


def host_row(source: RequestContext, host: str) -> HostRow | None:
    """Returns the state of the host; None if it is unknown."""
    config, facts = source.config.hosts.get(host), data.every_facts(source).get(host)
    if config is None and facts is None:
        return None
    replica, backups = copies_of(source.catalogue.get_fact(COPIES)).fetched.get(host), len(source.catalogue.backup_outcomes([host]))
    unknown = source.catalogue.unknown_spans()
    return data.row_of(host, config, facts, backups, source.config.zone, source.now, replica, unknown)


def host_page(
    source: RequestContext,
    viewer: Viewer,
    host: str,
    exact: Sequence[Mapping[str, Any]] | None = None,
    time_words: Callable[[datetime], str] = format_time,
) -> HostPage | None:
    """Returns everything about a host that the viewer may see; None if the host is unknown. `exact`: the root service's answer to
    `retention`, which then replaces the decisions from the catalogue. `time_words`: formats the end of a hold for a sentence.
    """
    row = host_row(source, host)
    if row is None:
        return None
    row = replace(row, flags=data.flags_of(source, row))
    config = source.config.hosts.get(host)
    host_backups = list(source.catalogue.backups(host))
    policy = _policy(source, row, config)
    decisions = by_service(exact) if exact is not None else decided(host_backups, policy, source, host)
    looks = VerifiedBackups(source.catalogue, source.now)
    also = also_on(source, host)
    elsewhere = {
        copy_elsewhere.replica: {copy_elsewhere.backup, *copied_backups(source.catalogue, copy_elsewhere.replica).get(host, ())}
        for copy_elsewhere in also
    }
    backups = [
        backup_row(
            backup,
            decisions.get(backup.name or ""),
            source.now,
            time_words,
            looks.of(backup) if backup.name else None,
            tuple(name for name, names in elsewhere.items() if backup.name in names),
        )
        for backup in host_backups
    ]
    runs = [run_row(run, {backup.name for backup in host_backups}, alive) for run, alive in _runs(source, host)]
    zone = source.config.zone
    marks = [
        Mark(backup.started.astimezone(zone).date(), strip_letter(backup, decisions[backup.name]), backup.name)
        for backup in host_backups
        if backup.name in decisions and backup.name
    ]
    return HostPage(
        row=data.with_strips(source, [row])[0],
        sentence=sentence(row, config),
        settings=settings_of(config) if config and row.state != COPY else None,
        running=tuple(transfer for transfer in running(source, viewer).transfers if transfer.host == host),
        alarms=tuple(open_alarm for open_alarm in open_alarms(source, viewer) if open_alarm.host == host),
        backups=tuple(reversed(backups)),
        kept=sum(backup.keep is True for backup in backups),
        going=sum(backup.keep is False for backup in backups),
        retention=_retention(
            row, policy, command_for("backupd retention explain", source.config.name, "" if viewer.limited else source.config.call)
        ),
        in_doubt=exact is None and any(backup.keep and backup.state in GOING for backup in backups),
        calendar=calendar(marks, source.now.astimezone(zone).date()),
        runs=tuple(runs[:RUNS]),
        history=tuple(run for run in reversed(runs) if run.seconds is not None and run.outcome in FINAL),
        night_words=explained(config.window if config else None),
        also=also,
        alive=json.loads(source.catalogue.get_fact(ALIVE) or "{}").get(host),
        damaged=_damaged(source, host),
    )


def _damaged(source: RequestContext, host: str) -> DamagedFiles | None:
    count = sum(name == host for name, _ in source.catalogue.unrepaired_files())
    if not count:
        return None
    files, paths = source.catalogue.damaged_paths(host, _NAMED)
    return DamagedFiles(files, count, tuple(paths), copies_of(source.catalogue.get_fact(COPIES)).fetched.get(host))


def _policy(source: RequestContext, row: HostRow, config: HostConfig | None) -> Retention | None:
    """Returns the host's policy; for a copy, the replica's. None if there is none, or if it is unknown."""
    if row.state != COPY:
        return config.retention if config else None
    replica = source.config.copies.get(copies_of(source.catalogue.get_fact(COPIES)).fetched.get(row.host, ""))
    return replica.retention if replica else None


def _retention(row: HostRow, policy: Retention | None, command: str) -> str:
    if policy:
        return f"{policy_words(policy)}, set by the replica" if row.state == COPY else policy_words(policy)
    if row.state == COPY:
        return f"set by the replica, and not known to the dashboard: `{command} {row.host}` shows it, and which backups expire"
    return "not configured, so everything is kept"


def backup_of(page: HostPage, name: str) -> BackupRow | None:
    """Returns the backup of that name."""
    return next((backup for backup in page.backups if backup.name is not None and backup.name == name), None)


def _runs(source: RequestContext, host: str) -> list[tuple[Run, bool]]:
    alive = alive_runs(source.catalogue, source.now)
    return [(run, run.id in alive) for run in source.catalogue.runs(host, _HISTORY)]


def run_row(run: Run, names: set[str | None], alive: bool) -> LogRun:
    """Returns one run; its `backup` is None after it is deleted."""
    shown = as_shown(run, alive)
    return shown if shown.backup in names else replace(shown, backup=None)


def settings_of(config: HostConfig) -> HostSettings:
    """Returns the part of the configuration that the page shows."""
    window = str(config.window) if config.window else None
    return from_row(HostSettings, config, window=window, retention=policy_words(config.retention))


def sentence(row: HostRow, config: HostConfig | None) -> str:
    """Returns the state of the host in one sentence."""
    ago = (
        f"the newest complete backup began {format_duration(row.age)} ago"
        if row.age is not None
        else "there is no complete backup yet"
    )
    if row.state == COPY:
        return f"This host is a copy: its backups are fetched from another pool, and nothing is backed up here; {ago}."
    if row.state == UNCONFIGURED or config is None:
        return f"This host is not configured: nothing is backed up, and its backups are kept; {ago}."
    if config.fault:
        return f"This host is not backed up until its configuration is corrected; {ago}."
    if row.state == "suspect":
        return f"The newest backup lost or missed too much, so it does not count until an operator accepts it; {ago}."
    if row.state == "failing":
        return f"The newest run made no complete backup; {ago}."
    if row.state == "late":
        return f"This host is late: {ago}, and a backup is due every {format_duration(config.every)}."
    if row.state == UNKNOWN:
        return f"A backup was due at a time whose runs are unknown, because the catalogue was lost; it may have failed; {ago}."
    end = "" if config.enabled else ", and it is not enabled, so nothing is due"
    return f"{ago[0].upper()}{ago[1:]}{end}."
