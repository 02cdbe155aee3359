"""An expiry without a terminal: one line per batch, one JSON object at the end, the status line of `systemctl status`."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from backupd.expire.report import PAUSES, ExpiryEvent, ExpiryProgress, Summary, expiry_words, skip_words
from btrkeep.cli.output import print_wrapped, say
from btrkeep.decisions.expiry_plan import ExpiryStep, HostPlan, Plan
from btrkeep.decisions.retention_words import reasons_words
from btrkeep.process.progress import Notice, Status
from btrkeep.units import counted, format_duration, format_size, local_time, names_in_words, printable

LISTS = {
    "mark": "would be marked as expired",
    "revive": "would be kept again",
    "delete": "would be deleted",
    "wait": "is restorable {until}",
}
_JSON = (
    *("outcome", "planned", "marked", "revived", "deleted", "rest", "waiting_for_grace", "left_out", "busy", "problems"),
    *("hosts_gone", "stop", "clock", "mount_option", "most_waiting", "still_waiting", "written_bytes"),
)


def progress_line(now: ExpiryProgress) -> str:
    """Returns the progress in one line."""
    parts = [f"{now.deleted:,} of {now.planned:,} deleted", f"{now.waiting:,} of at most {now.most:,} waiting for the cleaner"]
    if now.rate:
        parts.append(f"{now.rate:.3g}/s")
    if now.left is not None:
        parts.append(f"about {format_duration(now.left)} left")
    if now.paused:
        parts.append(f"paused: {PAUSES[now.paused]}")
    return ", ".join(parts)


def plan_notices(plan: Plan) -> Iterator[str]:
    """Yields the notices of a plan, before it runs."""
    for host, reason in plan.skipped_hosts.items():
        yield f"{host} is skipped: {skip_words(host, reason)}"
    if plan.unruled:
        yield f"no retention policy, so everything is kept: {names_in_words(plan.unruled)}"
    if plan.unconfigured:
        yield f"not configured, so everything is kept: {names_in_words(plan.unconfigured)}"


def summary_lines(summary: Summary) -> Iterator[str]:
    """Yields the result in lines, without the lines that were already printed."""
    if summary.stop:
        yield f"nothing was done: {expiry_words(summary.stop)}"
    if summary.error:
        yield f"stopped early: {summary.error}"
    yield ", ".join(_counts(summary)) + f" in {format_duration(summary.seconds)}"
    if summary.busy:
        yield f"skipped until the next run, because other commands use them: {names_in_words(summary.busy)}"
    if summary.rest:
        yield f"due backups left for the next run: {summary.rest:,}"
    if summary.written_each is not None:
        written = f"{format_size(summary.written_bytes)} were written to the pool's devices during the run, by all programs"
        yield f"{written}: {format_size(summary.written_each)} per deleted subvolume"
    if summary.mount_option:
        yield f"mount option during the run: {summary.mount_option}"
    if summary.still_waiting:
        waits = f"still {'waits' if summary.still_waiting == 1 else 'wait'} for the cleaner (`backupd progress` watches it)"
        yield f"{counted(summary.still_waiting, 'deleted subvolume')} {waits}"


def _counts(summary: Summary) -> Iterator[str]:
    yield f"{summary.marked:,} marked as expired"
    if summary.revived:
        yield f"{summary.revived:,} kept again"
    yield f"{summary.deleted:,} deleted"
    yield f"{summary.waiting_for_grace:,} waiting for their grace to end"
    if summary.skipped_hosts:
        yield f"{counted(len(summary.skipped_hosts), 'host')} skipped"


def summary_fields(summary: Summary) -> dict[str, Any]:
    """Returns one object for --json."""
    obstacles = _obstacles(summary)
    fields = {name: obstacles[name] if name in obstacles else getattr(summary, name) for name in _JSON}
    return fields | {"written_bytes_each": summary.written_each, "seconds": round(summary.seconds, 3)}


def _obstacles(summary: Summary) -> dict[str, Any]:
    return {
        "left_out": {host: skip_words(host, why) for host, why in summary.skipped_hosts.items()},
        "stop": summary.stop and expiry_words(summary.stop),
        "clock": summary.clock and expiry_words(summary.clock),
    }


def expiry_lines(event: ExpiryEvent) -> None:
    """Prints one line per batch: to a pipe, a file or the journal."""
    match event:
        case Plan():
            for text in plan_notices(event):
                say(f"note: {printable(text)}")
            if (count := event.count("delete")) and not event.stop:
                say(f"deleting {counted(count, 'backup')}")
        case ExpiryProgress(batch=True):
            say(progress_line(event))
        case Notice():
            say(f"note: {printable(event.text)}")
        case Summary():
            for line in summary_lines(event):
                say(printable(line))


class ExpiryStatus:
    """Sends systemd a status line: the number of deletions, the length of the cleaner's queue, the reason of a pause."""

    def __init__(self) -> None:
        self._status = Status()

    def __call__(self, event: ExpiryEvent) -> None:
        """Sends the line, except for notices, which are not a status."""
        match event:
            case Plan():
                counts = f"{counted(event.count('delete'), 'backup')} to delete, {event.count('mark'):,} to mark as expired"
                self._status.say(counts)
            case ExpiryProgress():
                self._status.go_on(lambda: progress_line(event))
            case Summary():
                self._status.say(f"{event.outcome}: {event.deleted:,} deleted in {format_duration(event.seconds)}")


# --- a dry run


def listed(plan: Plan, list_name: str, limit: int | None = None) -> list[tuple[HostPlan, ExpiryStep]]:
    """Returns the steps of one kind in their order; of deletions the first `limit`."""
    steps = [(host, step) for host in plan.hosts for step in getattr(host, list_name)]
    return steps[:limit] if list_name == "delete" else steps


def echo_dry_run(plan: Plan, summary: Summary, limit: int | None, now: datetime) -> None:
    """Prints the planned steps and their reasons."""
    for text in plan_notices(plan):
        print_wrapped(f"note: {printable(text)}")
    if summary.clock:
        print_wrapped(f"note: {expiry_words(summary.clock)}")
    for list_name, words in LISTS.items():
        for host, step in listed(plan, list_name, limit):
            until = _until(step.expires, now) if step.expires else ""
            print_wrapped(f"{host.host} {step.name}: {words.format(until=until)}: {printable(reasons_words(step.reasons))}", "    ")
    counts = {list_name: len(listed(plan, list_name, limit)) for list_name in LISTS}
    stop = f"nothing would be done: {expiry_words(summary.stop)}; otherwise " if summary.stop else ""
    print_wrapped(
        f"{stop}{counts['mark']:,} would be marked, {counts['revive']:,} kept again, {counts['delete']:,} deleted now, "
        f"{counts['wait']:,} wait for their grace to end; {counted(plan.total, 'backup')} in all"
    )


def _until(expires: datetime, now: datetime) -> str:
    """Formats until when it can be restored. While the clock is in doubt, a grace that has ended by this clock does not end yet."""
    if expires > now:
        return f"until {local_time(expires)}, then it is deleted"
    return f"until the clock is right: by this clock its grace period ended at {local_time(expires)}"


def dry_run_fields(plan: Plan, summary: Summary, limit: int | None) -> Mapping[str, Any]:
    """Returns the plan as one object."""
    lists = {
        list_name: [
            {
                "host": host.host,
                "name": step.name,
                "why": reasons_words(step.reasons),
                "expires": step.expires,
            }
            for host, step in listed(plan, list_name, limit)
        ]
        for list_name in LISTS
    }
    kept = {"unruled": list(plan.unruled), "unconfigured": list(plan.unconfigured)}
    return {"dry_run": True, **lists, **kept, **_obstacles(summary), "total": plan.total}
