"""`backupd status`: shows the state of every host. After two seconds it prints on a terminal why it is waiting."""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from backupd.cli import colours
from backupd.cli.command_context import complete_group, complete_host, given_now, load_reporting, opened, pass_context, require_host
from backupd.cli.names import expand_hosts
from backupd.expire.trust import clock_synchronised
from backupd.health.cli import status_view as view
from backupd.health.status_report import StatusReport, is_alive, read_report
from backupd.proposals.proposal_store import ProposalStore
from backupd.repo.pool_files import is_pattern
from btrkeep.catalogue import Catalogue, StoredAlarm
from btrkeep.catalogue.migrate import FILE
from btrkeep.catalogue.model_alarm import SERVICE
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.output import print_wrapped
from btrkeep.config import Config, ReportingConfig
from btrkeep.config.reading import backupd_command
from btrkeep.decisions import findings as health
from btrkeep.decisions.copy_status import COPIES, RunningFetch, copies_of, read_running
from btrkeep.decisions.findings import StoredVerdict, from_text
from btrkeep.decisions.host_state import COPY, STATES
from btrkeep.decisions.overall import Overall, overall_as_json
from btrkeep.decisions.pool_health import clock_findings
from btrkeep.decisions.proofs import Proofs, read_proofs
from btrkeep.decisions.repeated import dedupe_words, repeated_object, repeated_words
from btrkeep.decisions.silences import silence_object
from btrkeep.decisions.verification import VerificationState, in_doubt_words
from btrkeep.errors import Exit, OperatorError, UsageError, did_you_mean
from btrkeep.pool import qgroups
from btrkeep.pool.marker import Pool
from btrkeep.units import counted, format_duration, local_time, printable

_OLD = timedelta(hours=1)
_MOST = 20


@dataclass(slots=True)
class StatusReading:
    """The result of one reading."""

    reporting: ReportingConfig
    """The configuration."""
    now: datetime | None = None
    """The time; None if the catalogue could not be read."""
    error: OperatorError | None = None
    """The reason why the pool or the catalogue cannot be read; None: both can be."""
    checked: StoredVerdict | None = None
    """When `backupd notify` last checked; None: never."""

    @property
    def is_old(self) -> bool:
        """Returns True if alarms were checked, but not in the last hour. A time in the future counts too."""
        return self.checked is not None and self.now is not None and abs(self.now - self.checked.looked) > _OLD

    @property
    def exit_status(self) -> int:
        """Returns the result for a pool that could be read."""
        if self.reporting.error:
            return Exit.USAGE
        return Exit.ATTENTION if self.reporting.faults or self.is_old else Exit.OK

    def fields(self) -> dict[str, Any]:
        """Returns it for --json."""
        return {
            "now": self.now,
            "alarms": self.checked.looked if self.checked else None,
            "pool": self._pool_read_at(),
            "unknown": self.error is not None or self.is_old,
            "faults": list(self.reporting.faults),
            "configuration_of": self.reporting.kept,
        }

    def show(self) -> None:
        """Prints it; nothing if everything is known and the configuration is valid."""
        faults = self.reporting.faults
        for fault in faults[:_MOST]:
            _print_line("configuration", fault)
        if len(faults) > _MOST:
            _print_line("configuration", f"{len(faults) - _MOST:,} more mistakes; `backupd check` lists them")
        if self.reporting.kept:
            _print_line(
                "configuration", f"the following is based on the last valid configuration, {local_time(self.reporting.kept)}"
            )
        if self.error:
            looked = self._pool_read_at()
            last = f"; the pool was last readable {local_time(looked)}" if looked else ""
            _print_line("unknown", f"{self.error.message}{last}")
        if self.is_old and self.checked and self.now:
            ago = format_duration((self.now - self.checked.looked).total_seconds())
            unit = f"btrkeep-news@{self.reporting.config.name}.timer"
            _print_line(
                "unknown", f"alarms were last checked {local_time(self.checked.looked)}, {ago} ago; check `systemctl status {unit}`"
            )

    def show_end(self) -> None:
        """Prints when alarms were checked."""
        if self.checked and not self.is_old:
            click.echo(f"alarms were last checked {local_time(self.checked.looked)}")

    def _pool_read_at(self) -> datetime | None:
        if self.error is None:
            return self.now
        return self.checked.pool_looked if self.checked else None


def _print_line(topic: str, text: str) -> None:
    print_wrapped(f"{click.style(f'{topic}:', fg='red', bold=True)} {printable(text)}")


_AFTER = 2.0  # seconds


@contextmanager
def waiting_for_catalogue(state: Path) -> Iterator[None]:
    """Waits while the catalogue in that folder is opened, which another program may hold for half a minute."""
    if not sys.stderr.isatty():
        yield
        return
    path = printable(str(state / FILE))
    text = f"waiting for the catalogue {path}, which another program may hold (fuser -v {path})"
    timer = threading.Timer(_AFTER, lambda: click.echo(text, err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@click.command("status")
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_host)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice((*STATES, COPY)),
    help="Only hosts in this state; may be given several times.",
)
@click.option("--group", metavar="GROUP", shell_complete=complete_group, help="Only hosts of this group.")
@click.option("--copies", "with_copies", is_flag=True, help="Also list the newest backup of each host in each copy.")
@click.option(
    "--proof", "with_proof", is_flag=True, help="Also list when each host was last verified, drilled and copied, the worst first."
)
@json_option
@pass_context
def command(
    ctx: click.Context,
    hosts: tuple[str, ...],
    states: tuple[str, ...],
    group: str | None,
    with_copies: bool,
    with_proof: bool,
    as_json: bool,
) -> int:
    """Show the state of every host: ok, late, failing, suspect, never, unknown or copy.

    late: the newest complete backup is older than `late` in the configuration, by default 1.5 times `every` and at least one
    missed window. failing: the newest run made no complete backup. suspect: the newest backup lost or missed too much.
    never: there is no complete backup yet. unknown: it was due when no runs were recorded, because the catalogue was lost since.
    copy: configured here, but replicated from another pool, so this server does not back it up.

    Below the hosts, the output has hosts that have backups but are not configured, as after an import; the replicas that are
    fetched into this pool, with the state ok, late, failing or never; failed jobs; and problems of the pool, as in `backupd check`.

    --proof lists when each host, and the pool, was last verified, scrubbed, drilled, booted, compared with the host, copied
    elsewhere and repaired. ok: within a limit of the configuration; done: no limit is set.

    With one HOST: only that host, in detail, with its newest backup in each copy. --copies lists these of all hosts. With
    several hosts, a pattern such as 'web*', --state or --group: a table of these hosts only.

    Mistakes in the configuration, and unknown states, come first. If there are any, the hosts are shown according to the last valid
    configuration and the catalogue.

    Exit status 1: a host is skipped because of a mistake in its configuration, the catalogue cannot be used, or `backupd
    notify` has not checked anything for over an hour; 2: the configuration cannot be used; 4: the pool cannot be read.
    """
    synchronised = clock_synchronised()
    reading = StatusReading(load_reporting(ctx))
    if reading.reporting.is_bare and reading.reporting.error:
        raise reading.reporting.error
    with ExitStack() as held:
        context = _opened(ctx, reading, held)
        host = hosts[0] if len(hosts) == 1 and not is_pattern(hosts[0]) and not states and group is None else None
        chosen = None
        if host:
            require_host(context.config, context.catalogue, host)
        elif hosts or states or group is not None:
            chosen = _chosen(context, hosts, group)
        reading.now, reading.checked = context.moment, from_text(context.catalogue.get_fact(health.FACT))
        status = _read_status(context, host, synchronised, reading.checked)
        if chosen is not None:
            status = replace(_only(status, chosen, states), overall=None)
        proofs = _proofs(context, status) if with_proof else None
        alive = qgroups.live_bytes(context.pool) if as_json and context.pool else {}

    def show() -> None:
        reading.show()
        status.show(host, with_copies=with_copies, chosen=chosen, proofs=proofs)
        reading.show_end()

    def answer() -> dict[str, Any]:
        proof = {"proof": view.proofs_as_json(proofs)} if proofs else {}
        return {**status.fields(alive), **proof, "looked": reading.fields()}

    print_answer(answer, show, as_json=as_json)
    if reading.error:
        raise reading.error
    return reading.exit_status


@dataclass(frozen=True, slots=True)
class _StatusSources:
    """The data that the command reads."""

    config: Config
    """The configuration."""
    catalogue: Catalogue
    """The catalogue."""
    moment: datetime
    """The time of the status."""
    pool: Pool | None = None
    """The pool; None if it cannot be read."""
    lost: bool = False
    """The same as in PoolContext."""
    clock_doubt: str | None = None
    """The same as in PoolContext."""


def _opened(ctx: click.Context, reading: StatusReading, held: ExitStack) -> _StatusSources:
    """Opens everything; only the catalogue, for reading, if the pool or the catalogue's folder is unusable: then `reading` has the
    reason.

    Raises OperatorError if the catalogue cannot be read.
    """
    config = reading.reporting.config
    try:
        with waiting_for_catalogue(config.pool.state):
            context = held.enter_context(opened(ctx, config=config))
    except UsageError:
        raise
    except OperatorError as error:
        reading.error = error
        try:
            if given_now(ctx):
                raise error
            catalogue = held.enter_context(Catalogue.open_readonly(config.pool.state))
            catalogue.pool_id()
        except OperatorError:
            reading.show()
            raise error from None
        return _StatusSources(config, catalogue, datetime.now(UTC))
    return _StatusSources(config, context.catalogue, context.clock.now(), context.pool, context.lost, context.clock_doubt)


@dataclass(frozen=True, slots=True)
class _Status:
    """The output of the command, for all hosts or one."""

    context: _StatusSources
    """The data that was read."""
    report: StatusReport
    """The report."""
    unconfigured: Mapping[str, int]
    """Number of backups of hosts that are not configured, by name."""
    fetching: Mapping[str, RunningFetch]
    """The running replications, by replica."""
    alarms: Sequence[StoredAlarm]
    """The open alarms."""
    synchronised: bool | None
    """True if the clock is synchronised; None: unknown."""
    overall: Overall | None
    """The verdict; None: the status is only about some hosts."""

    @property
    def command(self) -> str:
        """Returns the command that calls `backupd` for this pool."""
        return backupd_command(self.context.config.name, self.context.config.file)

    @property
    def proposals(self) -> int:
        """Returns the number of proposed changes that wait; 0 if the folder cannot be read."""
        return ProposalStore(self.context.config.pool.state).count()

    @property
    def failed_jobs(self) -> list[StoredAlarm]:
        """Returns the alarms about units that failed."""
        return [alarm for alarm in self.alarms if _is_of_job(alarm)]

    def fields(self, alive: Mapping[str, int]) -> dict[str, Any]:
        """`alive`: the bytes of each host by simple quotas."""
        report = self.report
        hosts = [
            {**view.host_as_json(host), "verified": report.last_reads.get(host.host), "alive_bytes": alive.get(host.host)}
            for host in report.hosts
        ]
        return {
            "hosts": hosts,
            "unconfigured": [{"host": name, "backups": count} for name, count in self.unconfigured.items()],
            "running": [view.progress_as_json(entry) for entry in report.running],
            "copies": view.copies_as_json(report.copies, self.fetching),
            "drill": view.drill_as_json(report.drills) if report.drills else None,
            "verification": {
                "max_age": round(self.context.config.verify.oldest),
                "unverified": list(report.unverified),
                "states": {str(state): report.verifications[state] for state in VerificationState},
                "damaged": [
                    {"host": name, "backups": backups, "files": files} for name, (backups, files) in sorted(report.damaged.items())
                ],
            },
            "altered": [{"host": name, "name": backup} for name, backup in report.altered],
            "in_doubt": view.in_doubt_as_json(report.in_doubt),
            "dedupe": view.dedupe_as_json(report.dedupe) if report.dedupe else None,
            "repeated": [repeated_object(failure) for failure in report.repeated],
            "silenced": [silence_object(silence) for silence in report.silences.active],
            "failed": [view.failed_job_as_json(alarm) for alarm in self.failed_jobs],
            "proposals": self.proposals,
            "verdict": overall_as_json(self.overall) if self.overall else None,
            "pool": health.as_json(report.verdict),
            "lost": self.context.lost,
            "clock": self.context.clock_doubt,
            "clock_synchronised": self.synchronised,
        }

    def show(
        self, host: str | None, *, with_copies: bool, chosen: frozenset[str] | None = None, proofs: Proofs | None = None
    ) -> None:
        """Prints it, in detail for one host; with `chosen` only the table of hosts and the problems of the pool."""
        report = self.report
        if chosen is not None:
            view.show_all(report.hosts, report.running, report.now, has_copies=True, each=True)
            view.show_unconfigured(self.unconfigured)
            if not report.hosts and not self.unconfigured:
                click.echo("no host is in that state" if chosen else "no host is in that group")
            view.show_damaged(report.damaged)
            view.show_altered(report.altered, self.command)
            view.show_silences(report.silences.active)
        elif host:
            if report.hosts:
                view.show_one(report.hosts[0], report.running, report.now, report.last_reads.get(host))
            else:
                has = counted(self.unconfigured[host], "backup") if host in self.unconfigured else "backups"
                click.echo(f"{printable(host)} has {has} but is not configured")
            view.show_damaged({name: damage for name, damage in report.damaged.items() if name == host})
            view.show_altered([backup for backup in report.altered if backup[0] == host], self.command)
            view.show_lags(report.copies, host)
            view.show_silences(report.silences.active)
        else:
            view.show_all(report.hosts, report.running, report.now, has_copies=bool(report.copies))
            view.show_unconfigured(self.unconfigured)
            view.show_copies(report.copies, self.fetching)
            if with_copies:
                view.show_lags(report.copies)
            if report.drills:
                view.show_drills(report.drills)
            view.show_verification(report.verifications)
            view.show_damaged(report.damaged)
            view.show_altered(report.altered, self.command)
            view.show_unverified(report.unverified, self.context.config.verify.oldest)
            for failure in report.repeated:
                click.echo(click.style("repeated: ", fg="yellow") + repeated_words(failure))
            view.show_failed_jobs(self.failed_jobs)
            view.show_proposals(self.proposals)
            view.show_silences(report.silences.active)
            if report.dedupe:
                click.echo(f"last dedupe: {local_time(report.dedupe.started)}, {dedupe_words(report.dedupe)}")
            if report.in_doubt:
                words = f"{in_doubt_words(report.in_doubt)}: `backupd verify --after-crash` reads them"
                print_wrapped(click.style("in doubt: ", fg="yellow") + words)
        if proofs:
            view.show_proofs(proofs, report.now)
        for clock_finding in clock_findings(self.context.clock_doubt, self.synchronised):
            click.echo(click.style("clock: ", fg=colours.LEVEL[clock_finding.level]) + printable(clock_finding.text))
        view.show_pool(report.verdict)
        if self.overall:
            view.show_overall(self.overall)


def _proofs(context: _StatusSources, status: _Status) -> Proofs:
    """Returns the proofs of the hosts in the status; those of the pool only if it is about all hosts."""
    report, config = status.report, context.config
    last = {name: facts.last_complete for name, facts in report.facts.items()}
    proofs = read_proofs(context.catalogue, config.verify, config.drill, config.copies, last, report.now)
    if status.overall:
        return proofs
    names = {host.host for host in report.hosts} | status.unconfigured.keys()
    return Proofs(tuple(row for row in proofs.hosts if row.host in names), ())


def _chosen(context: _StatusSources, hosts: Sequence[str], group: str | None) -> frozenset[str]:
    """Returns the hosts that the words, patterns and the group select. Raises UsageError."""
    config = context.config
    if group is not None and group not in config.groups:
        raise UsageError(f"there is no group {group}", did_you_mean(group, config.groups, f"check {config.file}"))
    known_hosts = {*config.every_host, *context.catalogue.hosts()}
    names = expand_hosts(hosts, sorted(known_hosts)) if hosts else sorted(known_hosts)
    for name in names:
        require_host(config, context.catalogue, name)
    if group is None:
        return frozenset(names)
    return frozenset(name for name in names if name in config.every_host and config.every_host[name].group == group)


def _only(status: _Status, chosen: frozenset[str], states: Sequence[str]) -> _Status:
    """Returns the status of the chosen hosts; with `states`, only of hosts in one of these states."""
    report = status.report
    hosts = tuple(host for host in report.hosts if host.host in chosen and (not states or host.state in states))
    names = {host.host for host in hosts}
    silences = map(report.silences.of_host, sorted(names))
    return replace(
        status,
        report=replace(
            report,
            hosts=hosts,
            running=tuple(progress for progress in report.running if progress.host in names),
            unverified=tuple(name for name in report.unverified if name in names),
            damaged={name: damage for name, damage in report.damaged.items() if name in names},
            altered=tuple(backup for backup in report.altered if backup[0] in names),
            silences=replace(report.silences, active=tuple({silence.key: silence for silence in silences if silence}.values())),
        ),
        unconfigured={name: count for name, count in status.unconfigured.items() if name in chosen} if not states else {},
    )


def _read_status(context: _StatusSources, host: str | None, synchronised: bool | None, checked: StoredVerdict | None) -> _Status:
    catalogue, config = context.catalogue, context.config
    report = read_report(config, catalogue, context.moment, context.pool.filesystem if context.pool else None)
    alarms = [alarm for alarm in catalogue.alarms() if alarm.is_open]
    overall = None if host else report.overall(alarms, checked.looked if checked else None)
    if host is not None:
        hosts = tuple(status for status in report.hosts if status.host == host)
        silence = report.silences.of_host(host)
        silences = replace(report.silences, active=(silence,) if silence else ())
        running = tuple(progress for progress in report.running if progress.host == host)
        report = replace(report, hosts=hosts, running=running, silences=silences)
    return _Status(
        context,
        report,
        unconfigured=_unconfigured(context, host),
        fetching={name: fetch for name in config.replicas if (fetch := read_running(catalogue, name)) and is_alive(fetch)},
        alarms=alarms,
        synchronised=synchronised,
        overall=overall,
    )


def _is_of_job(alarm: StoredAlarm) -> bool:
    """Returns True for a finding that no other line of the status shows."""
    return alarm.about.traits.of_job or alarm.what == SERVICE


def _unconfigured(context: _StatusSources, host: str | None) -> dict[str, int]:
    """Returns the number of backups of each host that is neither configured nor fetched from another pool."""
    known_hosts = context.config.every_host.keys() | copies_of(context.catalogue.get_fact(COPIES)).fetched.keys()
    counts = context.catalogue.backup_counts()
    return {name: counts[name] for name in sorted(counts.keys() - known_hosts) if host in (None, name)}
