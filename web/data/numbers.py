"""The numbers of /metrics: the families of `backupd metrics` that depend on the catalogue alone, under the same names.

Metrics that need access to the pool itself (whether it is mounted, how much still fits, missing devices) are not among them: the
dashboard has no rights for that, and an unreliable number is worse than none. The state of the pool and the open alarms are those
that `backupd notify` found; once they are an hour old they are left out.

The text is written here, because there are eleven numbers for each host, and prometheus_client takes 8 us for each.
"""

from dataclasses import dataclass, field
from datetime import timedelta

from btrkeep import __version__
from btrkeep import metric_table as table
from btrkeep.backup_states import BACKUP_STATES
from btrkeep.catalogue.model_sample import read_space_name
from btrkeep.config.value_types import EVENT_WORDS
from btrkeep.decisions.findings import CHECKS, FACT, from_text, grade
from btrkeep.decisions.host_state import STATES
from btrkeep.metric_table import Metric
from web.data.health import STALE
from web.data.hosts import NOT_OURS, HostRow, every_row
from web.source import RequestContext

ERRORS = ("write", "read", "flush", "corruption", "generation")
"""The counters of a device, in the order in which a sample has them after size and allocated bytes."""


@dataclass(slots=True)
class _Samples:
    """Lines of each family. All have the pool's name as their first label."""

    pool: str
    found: dict[str, list[str]] = field(default_factory=dict)

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Adds one value; None is unknown and adds none."""
        if value is None:
            return
        if (lines := self.found.get(metric.name)) is None:
            lines = self.found[metric.name] = [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}"]
        pairs = [f'{name}="{_escaped(label)}"' for name, label in zip(metric.labels, labels, strict=True)]
        lines.append(f"{metric.name}{{{','.join([self.pool, *pairs])}}} {float(value)!r}")


def text(source: RequestContext) -> str:
    """Returns all of them in the order of the table, in Prometheus's text format.

    https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
    """
    samples = _Samples(f'pool="{_escaped(source.site.name)}"')
    for collect in (_itself, _hosts, _backups, _pool, _score, _jobs, _alarms):
        collect(samples, source)
    return "".join(f"{line}\n" for metric in table.METRICS for line in samples.found.get(metric.name, ()))


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _itself(samples: _Samples, source: RequestContext) -> None:
    samples.add(table.INFO, 1, __version__)
    samples.add(table.LOOKED, source.now.timestamp())


def _hosts(samples: _Samples, source: RequestContext) -> None:
    rows = [row for row in every_row(source) if row.state not in NOT_OURS]
    for row in rows:
        _host(samples, row)
    for state in STATES:
        samples.add(table.HOSTS, sum(row.enabled and row.state == state for row in rows), state)


def _host(samples: _Samples, row: HostRow) -> None:
    samples.add(table.HOST_INFO, 1, row.host, row.group or "", str(row.enabled).lower(), str(row.optional).lower())
    for state in STATES:
        samples.add(table.HOST_STATE, state == row.state, row.host, state)
    samples.add(table.HOST_SUCCESS, row.last_complete.timestamp() if row.last_complete else None, row.host)
    samples.add(table.HOST_AGE, row.age, row.host)
    samples.add(table.HOST_SIZE, row.size, row.host)
    samples.add(table.HOST_NEW, row.new_bytes, row.host)
    samples.add(table.HOST_FILES, row.files, row.host)


def _backups(samples: _Samples, source: RequestContext) -> None:
    counts = source.catalogue.state_counts()
    for state in BACKUP_STATES:
        samples.add(table.BACKUPS, counts.get(state, 0), state)
    samples.add(table.RUNNING, len(source.catalogue.progress()))


def _pool(samples: _Samples, source: RequestContext) -> None:
    filesystem = source.site.filesystem
    sample = source.catalogue.newest_sample(filesystem) if filesystem else None
    if sample is None:
        return
    samples.add(table.DEVICES_SIZE, sample.size)
    samples.add(table.DEVICES_ALLOCATED, sample.allocated)
    samples.add(table.DEVICES_USED, sample.used)
    sums: dict[str, tuple[int, int]] = {}  # while a filesystem is converted a type has two profiles
    for name, (allocated, used, *_) in sample.spaces.items():
        type_ = read_space_name(name).type
        before = sums.get(type_, (0, 0))
        sums[type_] = (before[0] + allocated, before[1] + used)
    for kind, (allocated, used) in sorted(sums.items()):
        samples.add(table.SPACE_ALLOCATED, allocated, kind)
        samples.add(table.SPACE_USED, used, kind)
    for devid, (_size, _allocated, *errors) in sample.devices.items():
        for error, count in zip(ERRORS, errors, strict=False):  # none of a device that has none to tell
            samples.add(table.DEVICE_ERRORS, count, devid, error)
    samples.add(table.ORPHANS, sample.orphans)
    samples.add(table.SAMPLED, sample.taken.timestamp())


def _score(samples: _Samples, source: RequestContext) -> None:
    filesystem = source.site.filesystem
    score = source.catalogue.newest_score(filesystem) if filesystem else None
    if score:
        samples.add(table.SCORE, score.score)
        samples.add(table.BAD, score.bad)
        samples.add(table.FRAGMENTS, score.fragments)
        samples.add(table.FREE_LARGE, score.free_in_large)
        samples.add(table.SCORED, score.taken.timestamp())


def _jobs(samples: _Samples, source: RequestContext) -> None:
    expiries = source.catalogue.expiry_totals()
    samples.add(table.EXPIRY_RUNS, expiries.runs)
    samples.add(table.EXPIRY_DELETED, expiries.deleted)
    if filesystem := source.site.filesystem:
        balances = source.catalogue.balance_totals(filesystem)
        samples.add(table.BALANCE_RUNS, balances.runs)
        samples.add(table.BALANCE_GROUPS, balances.block_groups)
        samples.add(table.BALANCE_MOVED, balances.moved)
        samples.add(table.BALANCE_WRITTEN, balances.written)


def _alarms(samples: _Samples, source: RequestContext) -> None:
    kept, ripe = from_text(source.catalogue.get_fact(FACT)), source.now - timedelta(seconds=source.site.silent)
    if kept is None:
        return
    samples.add(table.ALARMS_LOOKED, kept.looked.timestamp())
    if abs(source.now - kept.looked) > STALE:
        return
    for check in CHECKS:
        samples.add(table.HEALTH, grade(kept.verdict.level_of(check)), check)
    standing = [row.what for row in source.catalogue.alarms() if row.stands(ripe)]
    for event in (*EVENT_WORDS[:-1], "service"):
        samples.add(table.ALARMS, standing.count(event), event)
