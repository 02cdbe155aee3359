"""What an action would do with each of many hosts, shown before it is confirmed; the root service decides again."""

from collections.abc import Sequence
from dataclasses import dataclass

from btrkeep.backup_states import SUSPECT
from btrkeep.catalogue import Silence
from btrkeep.serving.viewer import Viewer
from btrkeep.units import backup_name
from web.alarms import silence_remark, silences
from web.hosts.data import NOT_OURS, HostRow
from web.running import running
from web.source import RequestContext


@dataclass(frozen=True, slots=True)
class PlannedAction:
    """One host."""

    row: HostRow
    """The host."""
    target: str
    """The host or HOST@BACKUP for the request; "": nothing would happen."""
    words: str
    """What would happen, or why nothing would."""


def plan_action(source: RequestContext, viewer: Viewer, verb: str, rows: Sequence[HostRow]) -> tuple[PlannedAction, ...]:
    """Returns what would happen with each host, those first with which something would."""
    transfers = frozenset(transfer.host for transfer in running(source, viewer).transfers) if verb == "run" else frozenset[str]()
    suspect = _newest_suspect(source, rows) if verb == "accept" else {}
    if verb in ("silence", "disable", "enable"):
        now_silenced = silences(source)
        plans = [_plan_silence(verb, row, now_silenced.of_host(row.host), viewer) for row in rows]
    else:
        plans = [_plan(verb, row, row.host in transfers, suspect.get(row.host, "")) for row in rows]
    return tuple(sorted(plans, key=lambda plan: not plan.target))


def _plan(verb: str, row: HostRow, is_running: bool, suspect: str) -> PlannedAction:
    if verb == "run":
        if row.state in NOT_OURS:
            return PlannedAction(row, "", "not configured here: it cannot be backed up")
        if is_running:
            return PlannedAction(row, "", "is being backed up now")
        also = "" if row.enabled else "; nightly runs skip this host, because it is not enabled"
        return PlannedAction(row, row.host, f"a backup starts when a slot is free{also}")
    if verb == "hold":
        if row.last_complete is None:
            return PlannedAction(row, "", "has no complete backup")
        name = backup_name(row.last_complete)
        return PlannedAction(row, f"{row.host}@{name}", f"{name} does not expire while it is held")
    if not suspect:
        return PlannedAction(row, "", "has no suspect backup")
    return PlannedAction(row, f"{row.host}@{suspect}", f"{suspect} counts as complete: {row.cause or 'no reason is recorded'}")


def _plan_silence(verb: str, row: HostRow, silence: Silence | None, viewer: Viewer) -> PlannedAction:
    now = f"; now {silence_remark(silence, viewer)}" if silence else ""
    if verb == "enable":
        if silence and silence.kind == "host":
            return PlannedAction(row, row.host, f"ends: {silence_remark(silence, viewer)}")
        why = "its group is silenced: `backupd silence --group GROUP --end`" if silence else "it is not silenced"
        return PlannedAction(row, "", "`enabled = false` is in its configuration" if "disabled" in row.flags else why)
    if verb == "silence":
        return PlannedAction(row, row.host, f"no notifications, except about damage{now}")
    if row.state in NOT_OURS or not row.enabled:
        return PlannedAction(row, "", "nightly runs skip it already")
    return PlannedAction(row, row.host, f"nightly runs skip it, and no notifications, except about damage{now}")


def _newest_suspect(source: RequestContext, rows: Sequence[HostRow]) -> dict[str, str]:
    """Returns the newest suspect backup of each host that has one."""
    names = [row.host for row in rows if row.state == SUSPECT]
    newest: dict[str, str] = {}
    for outcome in source.catalogue.backup_outcomes(names) if names else ():
        if outcome.state == SUSPECT:
            newest[outcome.host] = max(newest.get(outcome.host, ""), outcome.name)
    return newest
