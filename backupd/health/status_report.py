"""The status report: hosts, pool and jobs at one moment. `backupd status`, alarms, the digest and the metrics use it.

`read_report` and `read_status` read, and return plain data. If the pool is missing, that is reported, and the catalogue has the
rest.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from backupd.expire.report import expiry_words
from backupd.expire.trust import clock_doubt
from backupd.health.pool_facts import read_pool_facts
from backupd.repo.pool_context import open_configured
from btrkeep.catalogue import (
    Balance,
    BalanceTotals,
    Catalogue,
    CatalogueBusy,
    CatalogueFull,
    Dedupe,
    Expiry,
    ExpiryTotals,
    FreeSpaceScore,
    HostFacts,
    Progress,
    RunTotals,
    StoredAlarm,
)
from btrkeep.config import Config
from btrkeep.config.config_model import CopySettings
from btrkeep.decisions.alarm_advice import AlarmPatience
from btrkeep.decisions.copy_status import COPIES, CopyStatus, RunningFetch, copies_of, copy_statuses
from btrkeep.decisions.drills import DrillStatus, drill_status, read_drills
from btrkeep.decisions.due import latest
from btrkeep.decisions.findings import FACT, PoolVerdict, from_text
from btrkeep.decisions.host_state import HostStatus, host_statuses
from btrkeep.decisions.overall import Overall, OverallFacts, judge
from btrkeep.decisions.pool_health import HealthLimits, PoolFacts, judge_pool
from btrkeep.decisions.repeated import RepeatedFailure, read_steps, repeated_failures
from btrkeep.decisions.silences import Silences, read_silences, without_silenced
from btrkeep.decisions.trend import PoolNumbers, errors_by_name, numbers_of_sample, summed_spaces
from btrkeep.decisions.verification import (
    BackupsInDoubt,
    VerificationState,
    last_reads,
    late_reads,
    read_in_doubt,
    verification_counts,
)
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool import qgroups
from btrkeep.pool.allocation import Allocation, read_allocation
from btrkeep.pool.orphans import count_orphans
from btrkeep.pool.space_by_profile import Room
from btrkeep.process.proc import start_time

_FRESH = timedelta(minutes=15)  # three samples
DAY = timedelta(days=1)
_NO_EXPIRY, _NO_BALANCE = ExpiryTotals(0, 0), BalanceTotals(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class StatusReport:
    """The result of `read_status`, or the smaller one of `read_report`. Without `numbers` the pool could not be read."""

    config: Config
    """The configuration."""
    now: datetime
    """When it was read."""
    hosts: tuple[HostStatus, ...]
    """The state of each host."""
    facts: Mapping[str, HostFacts]
    """The facts about each host in the catalogue."""
    pool: PoolFacts
    """The facts about the pool."""
    running: tuple[Progress, ...] = ()
    """The running transfers."""
    numbers: PoolNumbers | None = None
    """The state of the pool's filesystem; None if it could not be read."""
    expiry: Expiry | None = None
    """The newest expiry that has ended or was killed; None: none."""
    expiry_totals: ExpiryTotals = _NO_EXPIRY
    """The totals of all expiries."""
    dedupe: Dedupe | None = None
    """The newest dedupe that has ended or was killed; None: none."""
    score: FreeSpaceScore | None = None
    """The newest score of the free space; None: none."""
    balance: Balance | None = None
    """The newest balance that has ended or was killed; None: none."""
    balance_totals: BalanceTotals = _NO_BALANCE
    """The totals of all balances."""
    backups: Mapping[str, int] = field(default_factory=dict)
    """Number of backups by state."""
    day: tuple[RunTotals, ...] = ()
    """The runs that ended in the last 24 hours."""
    referenced_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes that each host wrote and that still exist; empty without simple quotas."""
    copies: tuple[CopyStatus[CopySettings], ...] = ()
    """The state of each copy."""
    drills: DrillStatus | None = None
    """The results of the drills; None: no drill yet."""
    last_reads: Mapping[str, datetime | None] = field(default_factory=dict)
    """When data of each host was last read by `verify` or a scrub; None: never."""
    unverified: tuple[str, ...] = ()
    """Hosts whose data was last read too long ago."""
    damaged: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By host, the number of backups with damaged files, and the number of files in the worst of them."""
    altered: tuple[tuple[str, str], ...] = ()
    """Host and name of the backups that were changed after they were final."""
    verifications: Mapping[VerificationState, int] = field(default_factory=dict)
    """Number of backups by verification state."""
    repeated: tuple[RepeatedFailure, ...] = ()
    """Optional steps that did not finish several times in a row; balances only if the pool could be read."""
    faults: tuple[str, ...] = ()
    """Mistakes of the configuration: FILE:LINE and the reason."""
    catalogue_fault: str = ""
    """The reason why the catalogue cannot be used; "": it can be."""
    is_catalogue_busy: bool = False
    """True if that is because another program is writing."""
    is_state_full: bool = False
    """True if that is because the state folder's filesystem is full."""
    is_catalogue_read: bool = True
    """False if it could not even be read, so that nothing is known about the hosts."""
    pool_looked: datetime | None = None
    """When the pool could last be read; None: never."""
    clock: str = ""
    """The reason why the clock of this server must be wrong; "": nothing contradicts it, or the pool could not be read."""
    in_doubt: BackupsInDoubt | None = None
    """Backups that a crash of this server may have damaged and that have not been read since; None: none."""

    silences: Silences = field(default_factory=Silences)
    """What users have silenced until a date; nothing if the catalogue could not be read."""

    @property
    def fault(self) -> str:
        """Returns the reason why the pool cannot be used; "" if it can be."""
        return self.pool.fault

    @property
    def lost(self) -> bool | None:
        """Returns True if the catalogue has none of the backups in the pool; None if the pool could not be read."""
        return None if self.fault else self.pool.lost

    @property
    def room(self) -> Room | None:
        return self.pool.room

    @property
    def verdict(self) -> PoolVerdict:
        """Returns the verdict about the pool."""
        return judge_pool(self.pool, HealthLimits.of(self.config))

    def overall(self, alarms: Collection[StoredAlarm], checked: datetime | None) -> Overall:
        """Returns the verdict about the pool and all hosts. `alarms`: the stored alarms; `checked`: when alarms were last checked,
        None: never.
        """
        patience = AlarmPatience.of(self.config)
        enabled = {host.name for host in self.config.every_host.values() if host.enabled}
        states = [(host.host, host.state) for host in self.hosts if host.host in enabled]
        active = (alarm for alarm in alarms if patience.is_active(alarm, self.now))
        hosts = without_silenced(states, active, self.silences)
        facts = OverallFacts(
            hosts.states,
            damaged=sum(backups for backups, _ in self.damaged.values()),
            altered=len(self.altered),
            pool=self.verdict,
            copies=[copy.state for copy in self.copies],
            in_doubt=len(self.in_doubt.backups) if self.in_doubt else 0,
            alarms=hosts.alarms,
            unchecked=() if self.is_catalogue_read else ("hosts unknown without the catalogue",),
            now=self.now,
            alarms_checked=checked,
            never=hosts.never,
            silenced_hosts=len(hosts.silenced),
            silenced_kinds=self.silences.problem_kinds,
        )
        return judge(facts)


def opened_catalogue(state: Path) -> tuple[Catalogue, OperatorError | None]:
    """Opens the catalogue, if necessary only for reading; then also returns the reason. Raises OperatorError if it
    cannot be read.
    """
    try:
        return Catalogue.open(state), None
    except OSError as error:
        hint = f"check that its filesystem is mounted, not read-only and not full: df {state}"
        problem = OperatorError(f"the catalogue in {state} cannot be opened: {error.strerror}", hint)
    except OperatorError as error:
        problem = error
    try:
        return Catalogue.open_readonly(state), problem
    except OperatorError:
        raise problem from None


def with_problem(report: StatusReport, problem: OperatorError) -> StatusReport:
    """Returns the report with the reason why the catalogue cannot be used or cannot be written."""
    is_busy, is_full = isinstance(problem, CatalogueBusy), isinstance(problem, CatalogueFull)
    return replace(report, catalogue_fault=problem.message, is_catalogue_busy=is_busy, is_state_full=is_full)


def status_without_catalogue(config: Config, now: datetime, *, faults: tuple[str, ...], is_bare: bool = False) -> StatusReport:
    """Returns the part of the report that needs no catalogue: the state of the pool; nothing if `is_bare`, because its path is
    unknown.
    """
    pool = PoolFacts() if is_bare else read_pool_facts(config)
    looked = None if is_bare or pool.fault else now
    return StatusReport(config, now, (), {}, pool, faults=faults, is_catalogue_read=False, pool_looked=looked)


def read_report(
    config: Config, catalogue: Catalogue, now: datetime, filesystem: str | None = None, faults: tuple[str, ...] = ()
) -> StatusReport:
    """Returns the content of `backupd status`: the hosts, their copies and proofs, running jobs, and the problems of the pool.

    `filesystem`: the pool's, whose failing balances are listed; None if it cannot be read. `faults`: mistakes of the configuration.
    Raises OperatorError if the catalogue cannot be read.
    """
    facts = catalogue.host_facts(latest(now))
    reads, unverified = last_verified(config, catalogue, now)
    return StatusReport(
        config=config,
        now=now,
        faults=faults,
        hosts=host_statuses(config, facts, copies_of(catalogue.get_fact(COPIES)).fetched, now, catalogue.unknown_spans()),
        facts=facts,
        pool=read_pool_facts(config, catalogue),
        running=tuple(progress for progress in catalogue.progress() if is_alive(progress)),
        dedupe=next((dedupe for dedupe in catalogue.dedupes(2) if _has_ended(dedupe)), None),
        copies=tuple(copy_statuses(config.copies, catalogue, now)),
        drills=_drills(config, catalogue, now),
        last_reads=reads,
        unverified=unverified,
        damaged=_damaged_hosts(catalogue),
        altered=tuple(catalogue.altered_backups()),
        verifications=verification_counts(catalogue, now),
        repeated=repeated_failures(read_steps(catalogue, filesystem), now),
        in_doubt=read_in_doubt(catalogue),
        silences=read_silences(catalogue, config.every_host, now),
    )


def read_status(config: Config, catalogue: Catalogue, now: datetime, *, live: bool, faults: tuple[str, ...] = ()) -> StatusReport:
    """Returns the whole report: `read_report`, totals of jobs and runs, and the numbers of the pool.

    The numbers are those of the newest sample; with `live`, or without a recent sample, the present ones. `faults`: mistakes of the
    configuration. Raises OperatorError if the catalogue cannot be read.
    """
    kept = from_text(catalogue.get_fact(FACT))
    report = replace(
        read_report(config, catalogue, now, faults=faults),
        pool_looked=kept.pool_looked if kept else None,
        expiry=next((expiry for expiry in catalogue.expiries(2, of_all=True) if _has_ended(expiry)), None),
        expiry_totals=catalogue.expiry_totals(),
        backups=catalogue.state_counts(),
        day=tuple(catalogue.run_totals(now - DAY, latest(now))),
    )
    if report.fault:
        return report
    try:
        return replace(_with_pool(report, catalogue, live=live), pool_looked=now)
    except PoolUnusable as error:
        return replace(report, pool=PoolFacts(error.message, error.hint))
    except OSError as error:
        return replace(report, pool=PoolFacts(f"{config.pool.path}: {error.strerror}", "check the kernel's messages (dmesg)"))


def _drills(config: Config, catalogue: Catalogue, now: datetime) -> DrillStatus:
    """Returns the state of drills; having none at all is late if the configuration sets a maximum age."""
    hosts = catalogue.hosts()
    is_asked = config.drill.max_age is not None
    drills, loads = read_drills(catalogue), bool(config.drill.load)
    return drill_status(drills, frozenset(hosts), config.drill.oldest, now, is_asked=is_asked, loads=loads)


def last_verified(config: Config, catalogue: Catalogue, now: datetime) -> tuple[dict[str, datetime | None], tuple[str, ...]]:
    """Returns when data of each host was last read, and the hosts for which that is too long ago."""
    oldest = catalogue.oldest_backups()
    reads = last_reads(catalogue, oldest, now)
    settings = config.verify
    return reads, late_reads(oldest, reads, settings.oldest, now, is_asked=settings.max_age is not None)


def _damaged_hosts(catalogue: Catalogue) -> dict[str, tuple[int, int]]:
    """Returns, by host, the number of its backups with damaged files, and the number of files in the worst of them."""
    by_host: dict[str, tuple[int, int]] = {}
    for (host, _), count in catalogue.unrepaired_files().items():
        backups, most = by_host.get(host, (0, 0))
        by_host[host] = (backups + 1, max(most, count))
    return by_host


def is_alive(entry: Progress | RunningFetch) -> bool:
    """Returns True if the process that writes this progress still runs."""
    return start_time(entry.pid) == entry.pid_started


def _has_ended(job: Expiry | Balance | Dedupe) -> bool:
    """Returns True if the run has ended: a killed run has no end in the catalogue, but its process no longer exists either."""
    return job.finished is not None or start_time(job.pid) != job.pid_started


def _with_pool(report: StatusReport, catalogue: Catalogue, *, live: bool) -> StatusReport:
    """Adds the facts that only the pool, or only its UUID, provides. Raises PoolUnusable, OSError."""
    pool = open_configured(report.config)
    sample = None if live else catalogue.newest_sample(pool.filesystem)
    if sample and timedelta() <= report.now - sample.taken <= _FRESH:
        numbers = numbers_of_sample(sample)
    else:
        numbers = numbers_now(read_allocation(pool.path), count_orphans(pool.path), report.now)
    doubt = clock_doubt(catalogue, report.now, rehearsal=pool.rehearsal)
    return replace(
        report,
        clock=expiry_words(doubt) if doubt else "",
        numbers=numbers,
        score=catalogue.newest_score(pool.filesystem),
        balance=next((balance for balance in catalogue.balances(pool.filesystem, 2) if _has_ended(balance)), None),
        balance_totals=catalogue.balance_totals(pool.filesystem),
        referenced_bytes=qgroups.live_bytes(pool),
        repeated=repeated_failures(read_steps(catalogue, pool.filesystem), report.now),
    )


def numbers_now(allocation: Allocation, waiting: int | None, now: datetime) -> PoolNumbers:
    """Returns the pool's own numbers. `waiting`: the number of deleted subvolumes."""
    errors = {device.devid: errors_by_name(device.errors or ()) for device in allocation.devices}
    spaces = [(space.type, space.total, space.used) for space in allocation.spaces]
    return PoolNumbers(now, allocation.size, allocation.allocated, allocation.used, summed_spaces(spaces), errors, waiting)
