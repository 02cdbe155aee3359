"""`backupd status` as text and as JSON: hosts, copies, and everything else that it reports."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from backupd.cli import colours
from btrkeep.catalogue import KILLED, Dedupe, Progress, Silence, StoredAlarm
from btrkeep.cli import print_listing
from btrkeep.cli.listings import Column, objects, table
from btrkeep.cli.output import print_wrapped
from btrkeep.config.config_model import CopySettings
from btrkeep.decisions import findings as health
from btrkeep.decisions.cause_words import altered_hint, altered_words, grouped_alike, without_host
from btrkeep.decisions.copy_status import FETCHED_BY, CopyStatus, HostLag, ReplicaSession, RunningFetch, running_words
from btrkeep.decisions.drills import DrillState, DrillStatus, drill_object, failure_words, proven_words, repeat_arguments
from btrkeep.decisions.host_state import COPY, STATES, HostStatus
from btrkeep.decisions.overall import Overall
from btrkeep.decisions.proofs import HostProofs, Proof, ProofKind, Proofs, ProofState, is_problem, limit_words
from btrkeep.decisions.silences import silence_words
from btrkeep.decisions.verification import BackupsInDoubt, VerificationState
from btrkeep.units import counted, format_duration, format_share, format_size, local_time, names_in_words, printable

_MOST_BEHIND = 20
_MOST_FAILED = 10


def show_all(
    shown: Sequence[HostStatus], running: Sequence[Progress], now: datetime, *, has_copies: bool, each: bool = False
) -> None:
    """Prints the table, with the running transfers and the totals. Hosts that fail for the same reason are one line,
    unless `each`.
    """
    groups = [[status] for status in shown] if each else grouped_alike(shown, _reason)
    columns: tuple[Column[Sequence[HostStatus]], ...] = (
        Column(header="HOST", cell=lambda group: printable(group[0].host) if len(group) == 1 else counted(len(group), "host")),
        Column("", lambda group: group[0].state, "STATE", lambda state: click.style(state, fg=colours.HOST[state])),
        Column("", _oldest, "AGE", format_duration, right=True),
        Column(
            header="NEXT DUE",
            cell=lambda group: _due(min((status.next_due for status in group if status.next_due), default=None), now),
        ),
        Column(header="REMARK", cell=_group_remark),
    )
    print_listing(columns, groups)
    for state in dict.fromkeys(group[0].state for group in groups if len(group) > 1):
        print_wrapped(
            f"`backupd status --state {state}` lists each of these hosts"
        )  # below the table, because its cells are wrapped anywhere
    for entry in running:
        click.echo(_running_line(entry))
    states = [f"{count} {state}" for state in (*STATES, COPY) if (count := sum(status.state == state for status in shown))]
    if shown:
        click.echo(f"{counted(len(shown), 'host')}: {', '.join(states)}")
    elif not has_copies:
        click.echo("no host is configured")


def _reason(status: HostStatus) -> tuple[str, ...] | None:
    """Returns the state, the error and the warnings without the name of the host; None without an error."""
    if not status.error:
        return None
    return status.state, *(without_host(text, status.host) for text in (status.error, *status.warnings))


def _oldest(group: Sequence[HostStatus]) -> float | None:
    """Returns the greatest age; None if one of them has no complete backup."""
    ages = [status.age for status in group]
    return max(age for age in ages if age is not None) if None not in ages else None


def _group_remark(group: Sequence[HostStatus]) -> str:
    others = f"; these hosts: {names_in_words([printable(status.host) for status in group])}" if len(group) > 1 else ""
    return f"{_remark(group[0])}{others}"


def show_proposals(waiting: int) -> None:
    """Prints how many proposed changes wait; nothing if none does."""
    if waiting:
        print_wrapped(f"{counted(waiting, 'proposed change')} {'waits' if waiting == 1 else 'wait'}: `backupd proposals`")


def show_unconfigured(hosts: Mapping[str, int]) -> None:
    """Prints the hosts that have backups but are no longer backed up, in one line; nothing if there are none."""
    if hosts:
        shown = names_in_words([f"{printable(name)} ({counted(count, 'backup')})" for name, count in hosts.items()])
        head = click.style("not configured, so not backed up: ", fg="yellow")
        print_wrapped(
            f"{head}{shown}; `backupd host add NAME` continues from their backups, `backupd forget NAME` lets those expire"
        )


def show_copies(copies: Sequence[CopyStatus[CopySettings]], fetching: Mapping[str, RunningFetch]) -> None:
    """Prints a line for each copy, one for its running update, and one for each host that is not completely copied."""
    print_listing(_copy_columns(fetching), copies)
    for name, running in fetching.items():
        click.echo(f"fetching: {name}: {running_words(running)}")
    for copy in copies:
        lines = [f"{host_behind.host}: {host_behind.error}" for host_behind in copy.behind]
        lines += [
            f"{host_lag.host}: no longer listed by the other server; its newest copy is {host_lag.newest}" for host_lag in copy.gone
        ]
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


def show_lags(copies: Sequence[CopyStatus[CopySettings]], host: str | None = None) -> None:
    """Prints the newest backup of each host, or of one, in each copy, the oldest first."""
    columns: tuple[Column[tuple[str, HostLag]], ...] = (
        Column("", lambda row: row[0], "COPY"),
        Column("", lambda row: row[1].host, "HOST"),
        Column("", lambda row: row[1].newest, "NEWEST COPY"),
        Column("", lambda row: row[1].age, "AGE", format_duration, right=True),
        Column("", lambda row: row[1].gone, "REMARK", lambda is_gone: "no longer listed" if is_gone else ""),
    )
    print_listing(columns, [(copy.replica.name, lag) for copy in copies for lag in copy.lags if host in (None, lag.host)])


def _copy_remark(copy: CopyStatus[CopySettings]) -> str:
    if copy.error:
        return printable(copy.error)
    if copy.session and copy.session.newest and copy.is_stale:
        return f"the newest copied backup began {local_time(copy.session.newest)}"
    return "fetches from this pool" if copy.replica.kind == FETCHED_BY else ""


def _proof_columns(now: datetime) -> tuple[Column[HostProofs], ...]:
    return (
        Column("", lambda row: row.host, "HOST"),
        Column("", lambda row: row.state, "PROOF", _coloured),
        *(_proof_column(kind, now) for kind in ProofKind),
    )


def _proof_column(kind: ProofKind, now: datetime) -> Column[HostProofs]:
    return Column(
        "", lambda row: row.of(kind), kind.upper(), lambda proof: _proof_age(proof, now), spare=kind == ProofKind.REPAIRED
    )


def _proof_age(proof: Proof, now: datetime) -> str:
    if proof.kind == ProofKind.DAMAGED:
        return _coloured(proof.state, printable(proof.words))
    age = format_duration(max(0.0, (now - proof.at).total_seconds())) if proof.at else ""
    if proof.kind == ProofKind.REPAIRED:
        return age or "-"
    text = f"{age}, {proof.state}" if age and is_problem(proof.state) else age or str(proof.state)
    return _coloured(proof.state, text)


def _coloured(state: ProofState, text: str = "") -> str:
    return click.style(text or state, fg=_PROOF_COLOURS.get(state))


_PROOF_COLOURS = {ProofState.BAD: "red", ProofState.LATE: "yellow", ProofState.UNKNOWN: "yellow", ProofState.OK: "green"}


def show_proofs(proofs: Proofs, now: datetime) -> None:
    """Prints the proofs of the hosts, the worst first, and those of the pool."""
    print_listing(_proof_columns(now), proofs.hosts)
    for proof in proofs.pool:
        words = f", {printable(proof.words)}" if proof.words and proof.kind != ProofKind.DAMAGED else ""
        limit = "" if proof.kind in (ProofKind.DAMAGED, ProofKind.REPAIRED) else f", limit: {limit_words(proof.limit)}"
        click.echo(f"pool {proof.kind}: {_proof_age(proof, now)}{words}{limit}")


def proofs_as_json(proofs: Proofs) -> dict[str, Any]:
    return {
        "pool": [asdict(proof) for proof in proofs.pool],
        "hosts": [
            {"host": row.host, "state": row.state, "proofs": [asdict(proof) for proof in row.proofs]} for row in proofs.hosts
        ],
    }


def show_drills(drills: DrillStatus) -> None:
    """Prints the last proven restore and the failed ones; nothing if there was none and none is required."""
    if drills.last and drills.age is not None:
        late = click.style(", too long ago", fg="yellow") if drills.state == DrillState.LATE else ""
        click.echo(f"last proven restore: {printable(proven_words(drills.last))}, {format_duration(drills.age)} ago{late}")
    elif drills.state == DrillState.LATE:
        print_wrapped(click.style("no restore was ever proven", fg="yellow") + ": `backupd drill` tests one")
    for drill in drills.failed[:_MOST_BEHIND]:
        click.echo(click.style("drill failed: ", fg="red") + printable(failure_words(drill)))
        print_wrapped(f"correct the cause, then repeat the drill: `backupd drill {repeat_arguments(drill)}`")


def show_verification(states: Mapping[VerificationState, int]) -> None:
    """Prints the number of backups in each verification state; nothing if none was ever verified."""
    if any(count for state, count in states.items() if state != VerificationState.NEVER):
        click.echo("verified backups: " + ", ".join(f"{states[state]:,} {state}" for state in VerificationState if states[state]))


def show_damaged(damaged: Mapping[str, tuple[int, int]]) -> None:
    """Prints the hosts with damaged backups; nothing if there are none."""
    for host, (backups, files) in sorted(damaged.items())[:_MOST_BEHIND]:
        each = "each" if backups > 1 else "it"
        head = click.style("damaged: ", fg="red") + printable(host)
        print_wrapped(
            f"{head}: {counted(backups, 'backup')}, up to {counted(files, 'file')} in {each}; `backupd damaged` lists them"
        )
    if len(damaged) > _MOST_BEHIND:
        click.echo(f"{click.style('damaged: ', fg='red')}backups of {counted(len(damaged) - _MOST_BEHIND, 'more host')}")


def show_altered(altered: Sequence[tuple[str, str]], command: str) -> None:
    """Prints one line for all backups that were changed after they were final; nothing if there are none."""
    if altered:
        click.echo(f"{click.style('altered: ', fg='red')}{altered_words(altered)}")
        print_wrapped(f"  {altered_hint(altered, command)}")


def show_unverified(hosts: Sequence[str], seconds: float) -> None:
    """Prints the hosts whose data has not been read for too long; nothing if there are none."""
    if hosts:
        shown = names_in_words([*map(printable, hosts)], _MOST_BEHIND, "host")
        head = click.style(f"not verified for {format_duration(seconds)}: ", fg="yellow")
        print_wrapped(f"{head}{shown}; `backupd verify` verifies them")


def _due(due: datetime | None, now: datetime, *, at_length: bool = False) -> str:
    """Formats when it is due; if it is due now, also since when, unless it has no complete backup yet."""
    if due is None or due > now:
        return local_time(due) if due else "-"
    return f"now, since {local_time(due)}" if at_length and due < now else "now"


def show_failed_jobs(alarms: Sequence[StoredAlarm]) -> None:
    """Prints a line for each failed job, and for each service that accepts no messages."""
    for alarm in alarms[:_MOST_FAILED]:
        click.echo(click.style("failed: ", fg="red", bold=True) + printable(f"{alarm.text} (since {local_time(alarm.since)})"))
    if len(alarms) > _MOST_FAILED:
        click.echo(f"and {counted(len(alarms) - _MOST_FAILED, 'more failed job')}")


def show_silences(silences: Sequence[Silence]) -> None:
    """Prints a line for each host, group and kind of problem that is silenced; nothing if there are none."""
    for silence in silences[:_MOST_FAILED]:
        subject = silence.name if silence.kind == "host" else f"{silence.kind} {silence.name}"
        print_wrapped(click.style("silenced: ", fg="yellow") + printable(f"{subject}: {silence_words(silence)}"))
    if len(silences) > _MOST_FAILED:
        click.echo(f"and {counted(len(silences) - _MOST_FAILED, 'more silence')}; `backupd silence` lists them")


def show_pool(verdict: health.PoolVerdict) -> None:
    """Prints nothing if everything was checked and no problem was found."""
    for finding in verdict.findings:
        click.echo(f"pool: {click.style(finding.level, fg=colours.LEVEL[finding.level], bold=True)}: {printable(finding.text)}")
    if verdict.unlooked:
        click.echo(f"pool: {click.style('not checked', fg=colours.LEVEL[health.UNKNOWN])}: {', '.join(verdict.unlooked)}")
    if verdict.level != health.OK:
        print_wrapped("`backupd check` shows what to do")


def show_overall(overall: Overall) -> None:
    """Prints the verdict about everything, in one line."""
    print_wrapped(click.style(printable(overall.sentence), fg=colours.LEVEL[overall.level], bold=True))


def _remark(status: HostStatus) -> str:
    if status.state == COPY:
        return printable(" ".join(status.warnings))
    remarks = [printable(status.error)] if status.error else []
    if status.warnings:
        more = f" (and {len(status.warnings) - 1} more)" if len(status.warnings) > 1 else ""
        remarks.append(f"warning: {printable(status.warnings[0])}{more}")
    return "; ".join(remarks)


def _running_line(entry: Progress) -> str:
    share = f", {format_share(entry.share)} of the names" if entry.share is not None else ""
    names, size = counted(entry.files_done, "name"), format_size(entry.bytes)
    return f"running: {printable(entry.host)} {printable(entry.path)}: {names}, {size}{share}"


def show_one(status: HostStatus, running: Sequence[Progress], now: datetime, verified: datetime | None) -> None:
    rows = [
        ("host", printable(status.host)),
        ("state", click.style(status.state, fg=colours.HOST[status.state])),
        (
            "last complete",
            f"{local_time(status.last_complete)} ({format_duration(status.age)} ago)" if status.last_complete else "never",
        ),
        ("next due", _due(status.next_due, now, at_length=True)),
        ("verified", local_time(verified) if verified else "never"),
        ("error", printable(status.error) if status.error else "-"),
        *(("warning", printable(warning)) for warning in status.warnings),
    ]
    click.echo(table(rows, []))
    for entry in running:
        click.echo(_running_line(entry))


def host_as_json(status: HostStatus) -> dict[str, Any]:
    return {
        "host": status.host,
        "state": status.state,
        "last_complete": status.last_complete,
        "age": _rounded(status.age),
        "next_due": status.next_due,
        "error": status.error,
        "warnings": status.warnings,
    }


def copies_as_json(copies: Sequence[CopyStatus[CopySettings]], fetching: Mapping[str, RunningFetch]) -> list[dict[str, Any]]:
    return list(objects(_copy_columns(fetching), copies))


def _copy_columns(fetching: Mapping[str, RunningFetch]) -> tuple[Column[CopyStatus[CopySettings]], ...]:
    def running(copy: CopyStatus[CopySettings]) -> dict[str, Any] | None:
        fetch = fetching.get(copy.replica.name)
        return fetch_as_json(fetch) if fetch else None

    return (
        Column("replica", lambda copy: copy.replica.name, "COPY"),
        Column("kind", lambda copy: copy.replica.kind),
        Column("from", lambda copy: copy.replica.source),
        Column("state", lambda copy: copy.state, "STATE", lambda state: click.style(state, fg=colours.HOST[state])),
        Column("age", lambda copy: copy.age, "AGE", format_duration, _rounded, right=True),
        Column("max_age", lambda copy: round(copy.replica.oldest)),
        Column("fetched_at", lambda copy: copy.session.at if copy.session else None),
        Column("tried_at", lambda copy: copy.session.tried if copy.session else None),
        Column("error", lambda copy: copy.error or None),
        Column("hosts", lambda copy: copy.session, "HOSTS", _hosts, lambda session: session.hosts if session else 0, right=True),
        Column("backups", lambda copy: copy.session.fetched if copy.session else 0),
        Column("bytes", lambda copy: copy.session.bytes if copy.session else 0),
        Column("seconds", lambda copy: copy.session.seconds if copy.session else None),
        Column("newest", lambda copy: copy.session.newest if copy.session else None),
        Column("behind", lambda copy: [asdict(host_behind) for host_behind in copy.behind]),
        Column("lag", lambda copy: [_lag_fields(lag) for lag in copy.lags]),
        Column("running", running),
        Column(header="LAST TRANSFER", cell=_last_time),
        Column(header="REMARK", cell=_copy_remark),
    )


def _hosts(session: ReplicaSession | None) -> str:
    return f"{session.hosts:,}" if session else "-"


def _lag_fields(lag: HostLag) -> dict[str, Any]:
    return {"host": lag.host, "newest": lag.newest, "age": round(lag.age), "listed": not lag.gone}


def _rounded(number: float | None) -> int | None:
    return round(number) if number is not None else None


def fetch_as_json(running: RunningFetch) -> dict[str, Any]:
    return {
        "pid": running.pid,
        "began": running.began,
        "updated": running.updated,
        "backups": running.done,
        "backups_planned": running.planned,
        "bytes": running.bytes,
        "bytes_announced": running.announced or None,
        "rate": _rounded(running.rate),
        "left": _rounded(running.left),
        "hosts": list(running.hosts),
    }


def progress_as_json(entry: Progress) -> dict[str, Any]:
    return {
        "host": entry.host,
        "path": entry.path,
        "pid": entry.pid,
        "files": entry.files_done,
        "files_total": entry.files_total,
        "bytes": entry.bytes,
        "rate": _rounded(entry.rate),
        "share": entry.share,
        "updated": entry.updated,
    }


def in_doubt_as_json(in_doubt: BackupsInDoubt | None) -> dict[str, Any] | None:
    if in_doubt is None:
        return None
    return {"since": in_doubt.since, "backups": [{"host": host, "name": name} for host, name in sorted(in_doubt.backups)]}


def failed_job_as_json(alarm: StoredAlarm) -> dict[str, Any]:
    """An open alarm about a job, or about a service of [notify] urls."""
    return {"subject": alarm.subject, "text": alarm.text, "since": alarm.since}


def dedupe_as_json(dedupe: Dedupe) -> dict[str, Any]:
    return {
        "started": dedupe.started,
        "finished": dedupe.finished,
        "outcome": dedupe.outcome or KILLED,
        "backups": dedupe.backups,
        "left": dedupe.left_out,
        "files": dedupe.files,
        "shared_bytes": dedupe.shared_bytes,
        "read_bytes": dedupe.read_bytes,
        "data_saved": dedupe.data_saved,
        "metadata_added": dedupe.metadata_added,
    }


def drill_as_json(drills: DrillStatus) -> dict[str, Any]:
    return {
        "state": drills.state,
        "age": _rounded(drills.age),
        "max_age": round(drills.oldest),
        "last": drill_object(drills.last) if drills.last else None,
        "failed": [drill_object(drill) for drill in drills.failed],
    }
