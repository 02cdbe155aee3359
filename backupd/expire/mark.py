"""Marks what no rule keeps any more, and removes the marks of what is kept again: notes first, on disk, then the rows.

Hosts are locked in batches, so that one commit serves them all and nobody changes their notes in between.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from backupd.expire.batch import write_many
from backupd.expire.context import ExpiryContext
from backupd.expire.look import HostOnPool, gone_names
from backupd.repo.final_backups import point_latest
from backupd.repo.notes_json import ASKED, RULES, Notes, read_notes
from btrkeep.backup_states import EXPIRED
from btrkeep.decisions.expiry_plan import ExpiryStep, HostPlan
from btrkeep.decisions.retention_words import reasons_words
from btrkeep.units import format_time

_AT_ONCE = 100  # hosts locked together: a tenth of a second or two, and below everybody's limit of open files

Row = tuple[str, str | None, str, datetime | None]


@dataclass(slots=True)
class _Batch:
    notes: dict[Path, Notes] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    marked: int = 0
    revived: list[str] = field(default_factory=list)


def mark(context: ExpiryContext, plans: Sequence[HostPlan]) -> None:
    """Carries out the marks and revivals of all plans. Raises PoolUnusable."""
    for some in _batches([plan for plan in plans if plan.changes_notes]):
        if context.cancellation:
            return
        batch = _Batch()
        with ExitStack() as held:
            for plan in some:
                if context.locked(plan.host, held):
                    with context.spared(plan.host):
                        _decide(context, plan, batch)
            write_many(context.pool.path, batch.notes)
            _write_rows(context, batch.rows)
            for folder in batch.notes:
                point_latest(context.pool, folder.name)
        context.summary.marked += batch.marked
        context.summary.revived += len(batch.revived)
        for text in batch.revived:
            context.sinks.notice(text)


def _write_rows(context: ExpiryContext, rows: Sequence[Row]) -> None:
    context.rows.write(lambda catalogue: catalogue.set_states(rows))


def _batches(plans: Sequence[HostPlan]) -> Iterator[list[HostPlan]]:
    source = iter(plans)
    while some := list(islice(source, _AT_ONCE)):
        yield some


def _decide(context: ExpiryContext, plan: HostPlan, batch: _Batch) -> None:
    on_pool, todo = context.look_again(plan)
    notes = on_pool.notes
    for step in todo.mark:
        notes = notes.with_note(step.name, EXPIRED, _expired(on_pool.notes.note(step.name, EXPIRED), step, context.now))
        batch.rows.append((plan.host, step.name, EXPIRED, context.now))
    for step in todo.revive:
        notes = notes.without(step.name, EXPIRED)
        batch.rows.append((plan.host, step.name, _state(on_pool, step.name), None))
        batch.revived.append(f"{plan.host} {step.name} is kept again: {reasons_words(step.reasons)}")
    batch.rows += [(plan.host, name, state, on_pool.notes.expired_at(name)) for name, state in todo.amend]
    batch.marked += len(todo.mark)
    if notes is not on_pool.notes:
        batch.notes[context.pool.host(plan.host)] = notes


def _expired(before: Mapping[str, Any] | None, step: ExpiryStep, now: datetime) -> Mapping[str, Any]:
    """Returns the note of a backup that is marked now. A request of somebody's stays as it is; only its time was wrong."""
    if before and before.get(ASKED):
        return {**before, "at": format_time(now)}
    return {"at": format_time(now), "why": reasons_words(step.reasons), RULES: [reason.code for reason in step.reasons]}


def _state(on_pool: HostOnPool, name: str) -> str:
    return next(one.state for one in on_pool.facts.candidates if one.name == name)


def drop_stale_notes(context: ExpiryContext, hosts: Sequence[str]) -> None:
    """Removes the notes of deleted backups. Nothing depends on them: a host that is locked is left to the next run."""
    source = iter(hosts)
    while some := list(islice(source, _AT_ONCE)):
        left: dict[Path, Notes] = {}
        with ExitStack() as held:
            for host in some:
                folder = context.pool.host(host)
                with context.spared(host):
                    if folder.is_dir() and context.locked(host, held):
                        _drop_stale(folder, left, format_time(context.now))
            write_many(context.pool.path, left, renamed_for_good=False)


def _drop_stale(folder: Path, left: dict[Path, Notes], now: str) -> None:
    notes = read_notes(folder)
    if gone := gone_names(folder, notes):
        for name in gone:
            notes = notes.gone(name, now)
        left[folder] = notes
