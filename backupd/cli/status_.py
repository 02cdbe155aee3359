"""`backupd status`: how every host is doing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from backupd.cli import colours
from backupd.cli.context import complete_host, opened, pass_context, require_host
from backupd.expire.clocks import clock_synchronised
from backupd.expire.words import names_in_words
from backupd.health.look import look_at_pool
from backupd.health.status_report import damaged_hosts, drills_of, last_dedupe, looks_of
from backupd.repo.context import PoolContext
from btrkeep.catalogue import KILLED, Dedupe, Progress
from btrkeep.cli import echo_json, json_option, table
from btrkeep.config.model import CopySettings
from btrkeep.decisions import findings as health
from btrkeep.decisions.copies import COPIES, FETCHED_BY, CopyStatus, RunningFetch, copies_of, copy_statuses, read_running
from btrkeep.decisions.copy_words import running_words
from btrkeep.decisions.crash import BackupsInDoubt, in_doubt_words, read_in_doubt
from btrkeep.decisions.dedupe_words import dedupe_words
from btrkeep.decisions.drills import DrillState, DrillStatus, drill_object, failure_words, proven_words
from btrkeep.decisions.due import latest
from btrkeep.decisions.host_state import COPY, STATES, HostStatus, host_statuses
from btrkeep.decisions.pool_health import HealthLimits, clock_findings, judge
from btrkeep.decisions.verification import VerificationState, verification_counts
from btrkeep.pool import quota
from btrkeep.process.proc import start_time
from btrkeep.units import counted, format_duration, format_share, format_size, format_time, printable

_MOST_BEHIND = 20


@click.command("status")
@click.argument("host", required=False, shell_complete=complete_host)
@click.option("--copies", "with_copies", is_flag=True, help="Also list the newest backup of each host in each copy.")
@json_option
@pass_context
def command(ctx: click.Context, host: str | None, with_copies: bool, as_json: bool) -> int:
    """How every host is doing: ok, late, failing, suspect, never or copy.

    late: the newest complete backup is older than 1.5 times `every`. failing: the newest run brought no complete backup. suspect:
    the newest backup lost or missed too much. never: there is no complete backup yet. copy: it is configured, and fetched from
    another pool all the same, so nothing is backed up here.

    Below the hosts stand those that have backups but are not configured, as after an import; the replicas that are fetched into
    this pool: ok, late, failing or never; and what is wrong with the pool itself, as `backupd check` has it.

    With HOST, that one alone and at length, with its newest backup in each copy. --copies lists these of all hosts.
    """
    synchronised = clock_synchronised()
    with opened(ctx) as site:
        if host:
            require_host(site.config, site.catalogue, host)
        status = _read_status(site, host, synchronised)
        alive = quota.live_bytes(site.pool) if as_json else {}
    if as_json:
        echo_json(status.as_json(alive))
    else:
        status.show(host, with_copies=with_copies)
    return 0


@dataclass(frozen=True, slots=True)
class _Status:
    """What the command shows, of all hosts or of one."""

    site: PoolContext
    moment: datetime
    hosts: list[HostStatus]
    unconfigured: Mapping[str, int]
    running: list[Progress]
    copies: list[CopyStatus[CopySettings]]
    fetching: Mapping[str, RunningFetch]
    drills: DrillStatus
    looks: Mapping[str, datetime | None]
    unverified: Sequence[str]
    verified: Mapping[VerificationState, int]
    damaged: Mapping[str, tuple[int, int]]
    in_doubt: BackupsInDoubt | None
    dedupe: Dedupe | None
    verdict: health.PoolVerdict
    synchronised: bool | None

    def as_json(self, alive: Mapping[str, int]) -> dict[str, Any]:
        """`alive`: the bytes of each host by simple quotas."""
        hosts = [
            {**_as_json(one), "verified": _moment(self.looks.get(one.host)), "alive_bytes": alive.get(one.host)}
            for one in self.hosts
        ]
        return {
            "hosts": hosts,
            "unconfigured": [{"host": name, "backups": count} for name, count in self.unconfigured.items()],
            "running": [_progress_as_json(entry) for entry in self.running],
            "copies": [_copy_as_json(copy, self.fetching.get(copy.replica.name)) for copy in self.copies],
            "drill": _drill_as_json(self.drills),
            "verification": {
                "max_age": round(self.site.config.verify.oldest),
                "unverified": list(self.unverified),
                "states": {str(state): self.verified[state] for state in VerificationState},
                "damaged": [{"host": name, "backups": some, "files": most} for name, (some, most) in sorted(self.damaged.items())],
            },
            "in_doubt": _in_doubt_as_json(self.in_doubt),
            "dedupe": _dedupe_as_json(self.dedupe) if self.dedupe else None,
            "pool": health.as_json(self.verdict),
            "lost": self.site.lost,
            "clock": self.site.clock_doubt,
            "clock_synchronised": self.synchronised,
        }

    def show(self, host: str | None, *, with_copies: bool) -> None:
        """Prints it, at length for one host."""
        if host:
            if self.hosts:
                _show_one(self.hosts[0], self.running, self.moment, self.looks.get(host))
            else:
                has = counted(self.unconfigured[host], "backup") if host in self.unconfigured else "backups"
                click.echo(f"{printable(host)} has {has} but is not configured")
            _show_damaged({name: one for name, one in self.damaged.items() if name == host})
            _show_lags(self.copies, host)
        else:
            _show_all(self.hosts, self.running, self.moment, has_copies=bool(self.copies))
            _show_unconfigured(self.unconfigured)
            _show_copies(self.copies, self.fetching)
            if with_copies:
                _show_lags(self.copies)
            _show_drills(self.drills)
            _show_verification(self.verified)
            _show_damaged(self.damaged)
            _show_unverified(self.unverified, self.site.config.verify.oldest)
            if self.dedupe:
                click.echo(f"last dedupe: {format_time(self.dedupe.started)}, {dedupe_words(self.dedupe)}")
            if self.in_doubt:
                words = f"{in_doubt_words(self.in_doubt)}: `backupd verify --after-crash` does that"
                click.echo(click.style("in doubt: ", fg="yellow") + words)
        for one in clock_findings(self.site.clock_doubt, self.synchronised):
            click.echo(click.style("clock: ", fg=colours.LEVEL[one.level]) + printable(one.text))
        _show_pool(self.verdict)


def _read_status(site: PoolContext, host: str | None, synchronised: bool | None) -> _Status:
    moment = site.clock.now()
    looks, unverified = looks_of(site.config, site.catalogue, moment)
    return _Status(
        site,
        moment,
        hosts=_statuses(site, host, moment),
        unconfigured=_unconfigured(site, host),
        running=[entry for entry in site.catalogue.progress() if _alive(entry) and host in (None, entry.host)],
        copies=copy_statuses(site.config.copies, site.catalogue, moment),
        fetching={name: it for name in site.config.replicas if (it := read_running(site.catalogue, name)) and _alive(it)},
        drills=drills_of(site.config, site.catalogue, moment),
        looks=looks,
        unverified=unverified,
        verified=verification_counts(site.catalogue, moment),
        damaged=damaged_hosts(site.catalogue),
        in_doubt=read_in_doubt(site.catalogue),
        dedupe=last_dedupe(site.catalogue),
        verdict=judge(look_at_pool(site.config, site.catalogue), HealthLimits.of(site.config)),
        synchronised=synchronised,
    )


def _statuses(site: PoolContext, host: str | None, moment: datetime) -> list[HostStatus]:
    fetched = copies_of(site.catalogue.get_fact(COPIES)).fetched
    found = host_statuses(site.config, site.catalogue.host_facts(latest(moment)), fetched, moment)
    return [status for status in found if host in (None, status.host)]


def _unconfigured(site: PoolContext, host: str | None) -> dict[str, int]:
    """Returns how many backups each host has that is not configured, and that no replica fetches from another pool."""
    known = site.config.hosts.keys() | copies_of(site.catalogue.get_fact(COPIES)).fetched.keys()
    counts = site.catalogue.backup_counts()
    return {name: counts[name] for name in sorted(counts.keys() - known) if host in (None, name)}


def _alive(entry: Progress | RunningFetch) -> bool:
    return start_time(entry.pid) == entry.pid_started


def _as_json(status: HostStatus) -> dict[str, Any]:
    return {
        "host": status.host,
        "state": status.state,
        "last_complete": _moment(status.last_complete),
        "age": round(status.age) if status.age is not None else None,
        "next_due": _moment(status.next_due),
        "error": status.error,
        "warnings": list(status.warnings),
    }


def _moment(when: datetime | None) -> str | None:
    return format_time(when) if when else None


def _copy_as_json(copy: CopyStatus[CopySettings], running: RunningFetch | None) -> dict[str, Any]:
    """A copy, as `status --json` has it."""
    session = copy.session
    return {
        "replica": copy.replica.name,
        "kind": copy.replica.kind,
        "from": copy.replica.source,
        "state": copy.state,
        "age": round(copy.age) if copy.age is not None else None,
        "max_age": round(copy.replica.oldest),
        "fetched_at": format_time(session.at) if session and session.at else None,
        "tried_at": format_time(session.tried) if session else None,
        "error": copy.error or None,
        "hosts": session.hosts if session else 0,
        "backups": session.fetched if session else 0,
        "bytes": session.bytes if session else 0,
        "seconds": session.seconds if session else None,
        "newest": format_time(session.newest) if session and session.newest else None,
        "behind": [{"host": one.host, "there": one.there, "here": one.here, "error": one.error} for one in copy.behind],
        "lag": [{"host": one.host, "newest": one.newest, "age": round(one.age), "listed": not one.gone} for one in copy.lags],
        "running": _running_as_json(running) if running else None,
    }


def _running_as_json(running: RunningFetch) -> dict[str, Any]:
    return {
        "pid": running.pid,
        "began": format_time(running.began),
        "updated": format_time(running.updated),
        "backups": running.done,
        "backups_planned": running.planned,
        "bytes": running.bytes,
        "bytes_announced": running.announced or None,
        "rate": round(running.rate) if running.rate is not None else None,
        "left": round(running.left) if running.left is not None else None,
        "hosts": list(running.hosts),
    }


def _progress_as_json(entry: Progress) -> dict[str, Any]:
    return {
        "host": entry.host,
        "path": entry.path,
        "pid": entry.pid,
        "files": entry.files_done,
        "files_total": entry.files_total,
        "bytes": entry.bytes,
        "rate": round(entry.rate) if entry.rate is not None else None,
        "share": entry.share,
        "updated": format_time(entry.updated),
    }


def _show_all(found: list[HostStatus], running: list[Progress], now: datetime, *, has_copies: bool) -> None:
    rows = [
        (
            printable(status.host),
            click.style(status.state, fg=colours.HOST[status.state]),
            format_duration(status.age),
            _due(status.next_due, now),
            _remark(status),
        )
        for status in found
    ]
    if rows:
        click.echo(table(rows, ["HOST", "STATE", "AGE", "NEXT DUE", "REMARK"], right=["AGE"]))
    for entry in running:
        click.echo(_running_line(entry))
    states = [f"{count} {state}" for state in (*STATES, COPY) if (count := sum(status.state == state for status in found))]
    if found:
        click.echo(f"{counted(len(found), 'host')}: {', '.join(states)}")
    elif not has_copies:
        click.echo("no host is configured")


def _show_unconfigured(hosts: Mapping[str, int]) -> None:
    """Prints the hosts that have backups and get no more, in one line; nothing if there are none."""
    if hosts:
        shown = names_in_words([f"{printable(name)} ({counted(count, 'backup')})" for name, count in hosts.items()])
        head = click.style("not configured, so not backed up: ", fg="yellow")
        click.echo(f"{head}{shown}; `backupd host add NAME` goes on from them, `backupd forget NAME` gives them up")


def _show_copies(copies: list[CopyStatus[CopySettings]], fetching: Mapping[str, RunningFetch]) -> None:
    """Prints a line for each copy, one for its running update, and one for each host that is not completely copied."""
    rows = [
        (
            printable(copy.replica.name),
            click.style(copy.state, fg=colours.HOST[copy.state]),
            format_duration(copy.age),
            f"{copy.session.hosts:,}" if copy.session else "-",
            _last_time(copy),
            _copy_remark(copy),
        )
        for copy in copies
    ]
    if rows:
        click.echo(table(rows, ["COPY", "STATE", "AGE", "HOSTS", "LAST TIME", "REMARK"], right=["AGE", "HOSTS"]))
    for name, running in fetching.items():
        click.echo(f"fetching: {name}: {running_words(running)}")
    for copy in copies:
        lines = [f"{one.host}: {one.error}" for one in copy.behind]
        lines += [f"{one.host}: not listed there any more; its newest copy is {one.newest}" for one in copy.gone]
        for line in lines[:_MOST_BEHIND]:
            click.echo(f"{copy.replica.name}: {printable(line)}")
        if len(lines) > _MOST_BEHIND:
            click.echo(f"{copy.replica.name}: and {counted(len(lines) - _MOST_BEHIND, 'more host')}")


def _last_time(copy: CopyStatus[CopySettings]) -> str:
    """Formats the bytes, backups and rate of the newest update."""
    session = copy.session
    if session is None or copy.age is None or copy.replica.kind == FETCHED_BY:
        return "-"
    rate = f", {format_size(round(session.rate))}/s" if session.rate else ""
    return f"{format_size(session.bytes)}, {counted(session.fetched, 'backup')}{rate}"


def _show_lags(copies: list[CopyStatus[CopySettings]], host: str | None = None) -> None:
    """Prints the newest backup of each host, or of one, in each copy, the oldest first."""
    rows = [
        (printable(copy.replica.name), printable(lag.host), lag.newest, format_duration(lag.age), "not listed any more" * lag.gone)
        for copy in copies
        for lag in copy.lags
        if host in (None, lag.host)
    ]
    if rows:
        click.echo(table(rows, ["COPY", "HOST", "NEWEST IN BOTH", "AGE", "REMARK"], right=["AGE"]))


def _copy_remark(copy: CopyStatus[CopySettings]) -> str:
    if copy.error:
        return printable(copy.error)
    if copy.session and copy.session.newest and copy.is_stale:
        return f"the newest backup there began {format_time(copy.session.newest)}"
    return "fetches from here" if copy.replica.kind == FETCHED_BY else ""


def _show_drills(drills: DrillStatus) -> None:
    """Prints when a restore was last proven and which failed; nothing if there was none and none is required."""
    if drills.last and drills.age is not None:
        late = click.style(", which is long ago", fg="yellow") if drills.state == DrillState.LATE else ""
        click.echo(f"last proven restore: {printable(proven_words(drills.last))}, {format_duration(drills.age)} ago{late}")
    elif drills.state == DrillState.LATE:
        click.echo(click.style("no restore was ever proven", fg="yellow") + ": `backupd drill` does that")
    for one in drills.failed[:_MOST_BEHIND]:
        click.echo(click.style("drill failed: ", fg="red") + printable(failure_words(one)))


def _show_verification(states: Mapping[VerificationState, int]) -> None:
    """Prints how many backups there are in each verification state; nothing if none was ever verified."""
    if any(count for state, count in states.items() if state != VerificationState.NEVER):
        click.echo("verified backups: " + ", ".join(f"{states[state]:,} {state}" for state in VerificationState if states[state]))


def _show_damaged(damaged: Mapping[str, tuple[int, int]]) -> None:
    """Prints the hosts with damaged backups; nothing if there are none."""
    for host, (backups, files) in sorted(damaged.items())[:_MOST_BEHIND]:
        each = "each" if backups > 1 else "it"
        head = click.style("damaged: ", fg="red") + printable(host)
        click.echo(f"{head}: {counted(backups, 'backup')}, up to {counted(files, 'file')} in {each}; `backupd damaged` names them")
    if len(damaged) > _MOST_BEHIND:
        click.echo(f"{click.style('damaged: ', fg='red')}backups of {counted(len(damaged) - _MOST_BEHIND, 'more host')}")


def _show_unverified(hosts: Sequence[str], seconds: float) -> None:
    """Prints the hosts whose data has not been read for too long; nothing if there are none."""
    if hosts:
        shown = ", ".join(map(printable, hosts[:_MOST_BEHIND]))
        more = f" and {counted(len(hosts) - _MOST_BEHIND, 'more host')}" if len(hosts) > _MOST_BEHIND else ""
        head = click.style(f"not verified for {format_duration(seconds)}: ", fg="yellow")
        click.echo(f"{head}{shown}{more}; `backupd verify` does that")


def _in_doubt_as_json(found: BackupsInDoubt | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"since": format_time(found.since), "backups": [{"host": host, "name": name} for host, name in sorted(found.backups)]}


def _dedupe_as_json(one: Dedupe) -> dict[str, Any]:
    return {
        "started": format_time(one.started),
        "finished": _moment(one.finished),
        "outcome": one.outcome or KILLED,
        "backups": one.backups,
        "left": one.left_out,
        "files": one.files,
        "shared_bytes": one.shared_bytes,
        "read_bytes": one.read_bytes,
        "data_saved": one.data_saved,
        "metadata_added": one.metadata_added,
    }


def _drill_as_json(drills: DrillStatus) -> dict[str, Any]:
    return {
        "state": drills.state,
        "age": round(drills.age) if drills.age is not None else None,
        "max_age": round(drills.oldest),
        "last": drill_object(drills.last) if drills.last else None,
        "failed": [drill_object(one) for one in drills.failed],
    }


def _due(due: datetime | None, now: datetime, *, at_length: bool = False) -> str:
    """Formats when it is due; if it is due, also since when."""
    if due is None or due > now:
        return format_time(due) if due else "-"
    return f"now, since {format_time(due)}" if at_length else "now"


def _show_pool(verdict: health.PoolVerdict) -> None:
    """Prints nothing if everything was checked and is well."""
    for one in verdict.findings:
        click.echo(f"pool: {click.style(one.level, fg=colours.LEVEL[one.level], bold=True)}: {printable(one.text)}")
    if verdict.unlooked:
        click.echo(f"pool: {click.style('not looked at', fg=colours.LEVEL[health.UNKNOWN])}: {', '.join(verdict.unlooked)}")
    if verdict.level != health.OK:
        click.echo("`backupd check` says what to do")


def _remark(status: HostStatus) -> str:
    if status.state == COPY:
        return printable(" ".join(status.warnings))
    said = [printable(status.error)] if status.error else []
    if status.warnings:
        more = f" (and {len(status.warnings) - 1} more)" if len(status.warnings) > 1 else ""
        said.append(f"warning: {printable(status.warnings[0])}{more}")
    return "; ".join(said)


def _running_line(entry: Progress) -> str:
    share = f", {format_share(entry.share)} of the names" if entry.share is not None else ""
    names, size = counted(entry.files_done, "name"), format_size(entry.bytes)
    return f"running: {printable(entry.host)} {printable(entry.path)}: {names}, {size}{share}"


def _show_one(status: HostStatus, running: list[Progress], now: datetime, verified: datetime | None) -> None:
    rows = [
        ("host", printable(status.host)),
        ("state", click.style(status.state, fg=colours.HOST[status.state])),
        (
            "last complete",
            f"{format_time(status.last_complete)} ({format_duration(status.age)} ago)" if status.last_complete else "never",
        ),
        ("next due", _due(status.next_due, now, at_length=True)),
        ("verified", format_time(verified) if verified else "never"),
        ("error", printable(status.error) if status.error else "-"),
        *(("warning", printable(warning)) for warning in status.warnings),
    ]
    click.echo(table(rows, []))
    for entry in running:
        click.echo(_running_line(entry))
