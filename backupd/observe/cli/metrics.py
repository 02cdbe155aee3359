"""`backupd metrics`: prints numbers for Prometheus."""

import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from backupd.alarms.alarm_memory import AlarmMemory
from backupd.cli.command_context import complain_of_faults, load_reporting, pass_context, present
from backupd.health.status_report import StatusReport, opened_catalogue, read_status, status_without_catalogue
from btrkeep import __version__
from btrkeep import metrics as table
from btrkeep.backup_states import BACKUP_STATES
from btrkeep.catalogue import StoredAlarm
from btrkeep.cli import echo_json, json_option, print_error
from btrkeep.cli.arguments import GivenPath
from btrkeep.config import ReportingConfig
from btrkeep.decisions import metric_samples
from btrkeep.decisions.alarm_advice import AlarmPatience
from btrkeep.decisions.copy_status import FETCHED_BY, CopyState
from btrkeep.decisions.drills import DrillState
from btrkeep.decisions.due import is_due
from btrkeep.decisions.findings import FACT, from_text
from btrkeep.decisions.host_state import COPY, STATES
from btrkeep.decisions.verification import VerificationState
from btrkeep.errors import Exit, OperatorError
from btrkeep.fs.output_file import whole_file
from btrkeep.metrics import Metric, MetricSample, MetricSamples
from btrkeep.units import parse_backup_name, seconds_between


@click.command("metrics")
@click.option(
    "--textfile", type=GivenPath(dir_okay=False), metavar="FILE", help="Write to FILE, for node_exporter's textfile collector."
)
@json_option
@pass_context
def command(ctx: click.Context, textfile: str | None, as_json: bool) -> int:
    """Print metrics of the pool and its hosts in the format of Prometheus.

    --textfile writes them to FILE instead, which all users can read. For node_exporter, the name of FILE must end in .prom, and its
    folder must be that of --collector.textfile.directory.

    If the configuration is invalid, the last valid one is used. If the catalogue cannot be read, only the metrics of the pool and
    of the faults are printed. In both cases the exit status is 1.
    """
    reporting = load_reporting(ctx)
    moment = present(ctx, reporting.config)
    complain_of_faults(reporting.faults)
    seen, alarms, looked = _read(reporting, moment)
    samples = samples_of(seen, alarms, looked)
    if as_json:
        echo_json([_as_json(metric, of_metric) for metric, of_metric in samples.families()])
        return 0
    text = samples.text()
    if textfile is None:
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
    else:
        # Written under a temporary name that does not end in .prom, because node_exporter reads those. It runs as another user.
        with whole_file(textfile, mode=0o644) as file:
            file.write(text)
    return 0 if seen.is_catalogue_read and reporting.error is None else Exit.ATTENTION


def _read(reporting: ReportingConfig, now: datetime) -> tuple[StatusReport, list[StoredAlarm], datetime | None]:
    """Returns the report, the alarms, and when they were checked; without a catalogue, the facts that do not need it."""
    config, faults = reporting.config, reporting.faults
    if not reporting.is_bare:
        try:
            catalogue, problem = opened_catalogue(config.pool.state)
            if problem:
                print_error(problem)
            with catalogue:
                report = read_status(config, catalogue, now, live=False, faults=faults)
                kept = from_text(catalogue.get_fact(FACT))
                return report, AlarmMemory(config, catalogue, problem).rows(), kept.looked if kept else None
        except OperatorError as error:
            print_error(error)
    memory = AlarmMemory(config, None)
    return status_without_catalogue(config, now, faults=faults, is_bare=reporting.is_bare), memory.rows(), None


def _as_json(metric: Metric, samples: Sequence[MetricSample]) -> dict[str, Any]:
    return {
        "name": metric.name,
        "type": metric.kind,
        "help": metric.meaning,
        "samples": [{"labels": dict(sample.labels), "value": sample.value} for sample in samples],
    }


_GOOD_EXPIRY, _BAD_BALANCE = ("complete", "partial"), ("failed", "killed", None)


def samples_of(report: StatusReport, alarms: Sequence[StoredAlarm], looked: datetime | None) -> MetricSamples:
    """Returns all samples. `looked`: when alarms were last checked."""
    samples = MetricSamples(report.config.name)
    for collect in (_itself, _pool, _filesystem, *(_OF_CATALOGUE if report.is_catalogue_read else ())):
        collect(samples, report)
    if looked:
        metric_samples.add_alarms(samples.add, alarms, report.now, AlarmPatience.of(report.config))
    metric_samples.add_verdict(samples.add, report.overall(alarms, looked))
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
        samples.add(table.HOST_ALIVE, report.referenced_bytes.get(host.name), host.name)
        samples.add(table.HOST_VERIFIED, _seconds(report.last_reads.get(host.name)), host.name)
        samples.add(table.HOST_DAMAGED, report.damaged.get(host.name, (0, 0))[0], host.name)
        samples.add(table.HOST_QUOTA, host.quota, host.name)
        if facts := report.facts.get(host.name):
            samples.add(table.HOST_DURATION, seconds_between(facts.last_complete, facts.last_complete_finished), host.name)
            samples.add(table.HOST_SIZE, facts.last_complete_bytes, host.name)
            samples.add(table.HOST_NEW, facts.last_complete_new_bytes, host.name)
            samples.add(table.HOST_FILES, facts.last_complete_files, host.name)
            samples.add(table.HOST_LIVE, facts.last_complete_live_paths, host.name)
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
    if not report.fault:  # only the filesystem's UUID shows which balances are this pool's
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
