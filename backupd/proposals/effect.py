"""What a proposed change does to the backups of its host: decided by the functions of `expire`, from what an expiry reads."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backupd.expire.host_backups import read_hosts
from backupd.expire.report import skip_words
from backupd.proposals.planned_change import PlannedChange, host_after
from backupd.proposals.proposal_store import ChangeEffect
from backupd.repo.pool_context import PoolContext
from btrkeep.config import Config
from btrkeep.decisions.expiry_plan import HostPlan, UnreadableHost, plan_host
from btrkeep.decisions.safety_limits import DeletedShare, Forced, too_many
from btrkeep.errors import ConfigError
from btrkeep.units import counted, format_duration, format_size, names_in_words, printable


@dataclass(frozen=True, slots=True)
class HostExpiry:
    """What an expiry would do to one host."""

    total: int = 0
    """Number of its backups."""
    due: frozenset[str] = frozenset()
    """Names of the backups that no rule keeps, those in their grace included."""
    skipped: DeletedShare | UnreadableHost | None = None
    """Why the host is skipped; None: it is not."""


def read_effect(context: PoolContext, planned: PlannedChange) -> ChangeEffect:
    """Returns the effect now. Raises OperatorError and OSError if the pool or the catalogue cannot be read."""
    now, host = context.clock.now(), planned.host
    before = _host_expiry(context, context.config, host, now)
    after = _host_expiry(context, planned.config, host, now)
    sizes = {backup.name: backup.new_bytes for backup in context.catalogue.backups(host) if backup.name}
    return effect_of(planned, before, after, sizes)


def _host_expiry(context: PoolContext, config: Config, host: str, now: datetime) -> HostExpiry:
    if config.unread:
        raise ConfigError(config.unread, "nothing is deleted until that file can be read, so there is no effect to show")
    for facts in read_hosts(context.pool, context.catalogue, config, {host}):
        if facts.problem:
            return HostExpiry(skipped=facts.problem)
        return expiry_of(plan_host(facts, config.pool.zone, now, clock_waits=False))
    return HostExpiry()  # no backup yet


def expiry_of(plan: HostPlan) -> HostExpiry:
    """Returns what an expiry does by this plan, with the limit of the host but not with that of the whole pool."""
    due = frozenset(step.name for step in (*plan.mark, *plan.delete, *plan.wait))
    skipped = {} if plan.forgotten else too_many({plan.host: DeletedShare(plan.going, plan.total)}, Forced(pool=True)).skipped_hosts
    return HostExpiry(plan.total, due, skipped.get(plan.host))


def effect_of(planned: PlannedChange, before: HostExpiry, after: HostExpiry, sizes: Mapping[str, int | None]) -> ChangeEffect:
    """Returns the effect of a change that makes an expiry do `after` instead of `before`. `sizes`: bytes that rsync wrote for each
    backup. Pure.
    """
    more, fewer = after.due - before.due, before.due - after.due
    written = [size for name in more if (size := sizes.get(name)) is not None]
    total = sum(written) if len(written) == len(more) else None
    sentences = (*_retention_sentences(planned, after, more, len(fewer), total), *_other_sentences(planned))
    return ChangeEffect(after.total, len(more), total, len(fewer), tuple(map(printable, sentences)))


def _retention_sentences(
    planned: PlannedChange, after: HostExpiry, more: Set[str], kept_again: int, written: int | None
) -> Iterator[str]:
    grace = format_duration(host_after(planned).retention.grace)
    if more:
        size = f", for which rsync wrote {format_size(written)}" if written is not None else ""
        yield (
            f"would expire {counted(len(more), 'backup')} of {after.total:,}{size}: {min(more)} to {max(more)}. "
            f"Each can be kept again for {grace} after the next expiry."
        )
    if kept_again:
        yield f"would keep {counted(kept_again, 'backup')} that {'is' if kept_again == 1 else 'are'} due for deletion."
    if after.skipped:
        yield f"The next expiry would skip {planned.host}: {skip_words(planned.host, after.skipped)}."
    if any(key.startswith("retention.") for key in planned.keys) and not more and not kept_again and not after.skipped:
        yield "No backup would expire or be kept because of this now."


def _other_sentences(planned: PlannedChange) -> Iterator[str]:
    keys, host = planned.keys, host_after(planned)
    if not planned.text:
        yield (
            f"{host.name} at {host.address} would be backed up, once the server has its host key and the host the backup key: "
            f"`backupd host test {host.name}` on the server shows both."
        )
        if host.before or host.after:
            yield f"Its group {host.group} runs commands on this server before or after each backup of it."
        return
    if "paths" in keys:
        old, new = (_items(value) for value in keys["paths"])
        if added := [path for path in new if path not in old]:
            yield f"From the next run on, {names_in_words(added)} would be backed up."
        if removed := [path for path in old if path not in new]:
            yield f"From the next run on, {names_in_words(removed)} would not be backed up; earlier backups keep their files."
    if "exclude" in keys:
        old, new = (_items(value) for value in keys["exclude"])
        if set(new) - set(old):
            yield "From the next run on, files that match the new patterns would not be backed up; earlier backups keep them."
        if set(old) - set(new):
            yield "From the next run on, files that only the removed patterns exclude would be backed up."
    if "window" in keys:
        yield f"Its backups would start {f'between {host.window}' if host.window else 'at any time'}, when they are due."


def _items(value: Any) -> list[str]:
    return list(value) if isinstance(value, list) else []
