"""The numbers of /metrics: the families of `backupd metrics` that depend on the catalogue alone, under the same names.

Metrics that need access to the pool itself (whether it is mounted, how much still fits, missing devices) are not among them: the
dashboard has no rights for that, and an unreliable number is worse than none. The state of the pool and the open alarms are those
that `backupd notify` found; once they are an hour old they are left out.
"""

from collections import Counter

from btrkeep import __version__
from btrkeep import metrics as table
from btrkeep.backup_states import BACKUP_STATES
from btrkeep.decisions import metric_samples
from btrkeep.decisions.alarm_advice import AlarmPatience
from btrkeep.decisions.findings import FACT, from_text
from btrkeep.decisions.host_state import STATES
from btrkeep.decisions.trend import numbers_of_sample
from btrkeep.metrics import MetricSamples
from web.data.hosts import NOT_OURS, HostRow, every_row
from web.source import RequestContext, stale_after


def text(source: RequestContext) -> bytes:
    """Returns all of them in the order of the table, in Prometheus's text format."""
    samples = MetricSamples(source.site.name)
    for collect in (_itself, _hosts, _backups, _filesystem, _expiries, _alarms):
        collect(samples, source)
    return samples.text()


def _itself(samples: MetricSamples, source: RequestContext) -> None:
    samples.add(table.INFO, 1, __version__)
    samples.add(table.LOOKED, source.now.timestamp())


def _hosts(samples: MetricSamples, source: RequestContext) -> None:
    rows = [row for row in every_row(source) if row.state not in NOT_OURS]
    for row in rows:
        _host(samples, row)
    metric_samples.add_counts(samples.add, table.HOSTS, STATES, Counter(row.state for row in rows if row.enabled))


def _host(samples: MetricSamples, row: HostRow) -> None:
    samples.add(table.HOST_INFO, 1, row.host, row.group or "", str(row.enabled).lower(), str(row.optional).lower())
    metric_samples.add_state(samples.add, table.HOST_STATE, STATES, row.state, row.host)
    samples.add(table.HOST_SUCCESS, row.last_complete.timestamp() if row.last_complete else None, row.host)
    samples.add(table.HOST_AGE, row.age, row.host)
    samples.add(table.HOST_SIZE, row.size, row.host)
    samples.add(table.HOST_NEW, row.new_bytes, row.host)
    samples.add(table.HOST_FILES, row.files, row.host)


def _backups(samples: MetricSamples, source: RequestContext) -> None:
    metric_samples.add_counts(samples.add, table.BACKUPS, BACKUP_STATES, source.catalogue.state_counts())
    samples.add(table.RUNNING, len(source.catalogue.progress()))


def _filesystem(samples: MetricSamples, source: RequestContext) -> None:
    if not (filesystem := source.site.filesystem):
        return
    if sample := source.catalogue.newest_sample(filesystem):
        metric_samples.add_numbers(samples.add, numbers_of_sample(sample))
    if score := source.catalogue.newest_score(filesystem):
        metric_samples.add_score(samples.add, score)
    metric_samples.add_balance_totals(samples.add, source.catalogue.balance_totals(filesystem))


def _expiries(samples: MetricSamples, source: RequestContext) -> None:
    metric_samples.add_expiry_totals(samples.add, source.catalogue.expiry_totals())


def _alarms(samples: MetricSamples, source: RequestContext) -> None:
    kept = from_text(source.catalogue.get_fact(FACT))
    if kept is None:
        return
    samples.add(table.ALARMS_LOOKED, kept.looked.timestamp())
    if abs(source.now - kept.looked) > stale_after(source):
        return
    metric_samples.add_health(samples.add, kept.verdict)
    metric_samples.add_alarms(samples.add, source.catalogue.alarms(), source.now, AlarmPatience.of_published(source.site))
