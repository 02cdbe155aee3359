"""Alert rules for Prometheus, as data. Their expressions name metrics only through the table."""

import json
from dataclasses import dataclass

from btrkeep import metric_table as m

DAY = 86400
# A host that matters: enabled, and no laptop.
_COUNTS = f'and on (pool, host) {m.HOST_INFO}{{enabled="true", optional="false"}}'


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One alert. `lasts`: how long the expression must hold, as Prometheus writes it. Texts are templates of Prometheus."""

    name: str
    expression: str
    lasts: str
    severity: str
    summary: str
    description: str


RULES = (
    AlertRule(
        "BtrkeepHostSilent",
        f"time() - {m.HOST_SUCCESS} > {3 * DAY} {_COUNTS}",
        "0m",
        "critical",
        "No complete backup of {{ $labels.host }} for three days",
        "The newest complete backup is {{ $value | humanizeDuration }} old. See: backupd --pool {{ $labels.pool }} status "
        "{{ $labels.host }}",
    ),
    AlertRule(
        "BtrkeepHostNever",
        f'{m.HOST_STATE}{{state="never"}} == 1 {_COUNTS}',
        "1d",
        "warning",
        "{{ $labels.host }} has never been backed up",
        "It has been configured for a day and has no complete backup.",
    ),
    AlertRule(
        "BtrkeepHostFailing",
        f'{m.HOST_STATE}{{state="failing"}} == 1 {_COUNTS}',
        "2h",
        "warning",
        "The backup of {{ $labels.host }} fails",
        "The newest run brought no complete backup. See: backupd --pool {{ $labels.pool }} log {{ $labels.host }}",
    ),
    AlertRule(
        "BtrkeepHostSuspect",
        f'{m.HOST_STATE}{{state="suspect"}} == 1 {_COUNTS}',
        "0m",
        "warning",
        "The newest backup of {{ $labels.host }} lost or missed too much",
        "Look at it, then accept it or mend the host: backupd --pool {{ $labels.pool }} accept {{ $labels.host }}",
    ),
    AlertRule(
        "BtrkeepManyHostsFailing",
        f'sum by (pool) ({m.HOSTS}{{state=~"failing|never"}}) / sum by (pool) ({m.HOSTS}) > 0.1',
        "1h",
        "critical",
        "More than a tenth of the hosts of pool {{ $labels.pool }} have no backup",
        "{{ $value | humanizePercentage }} of them. So many at once have one cause: the network, the key, the pool.",
    ),
    AlertRule(
        "BtrkeepPoolUnusable",
        f"{m.USABLE} == 0",
        "5m",
        "critical",
        "Pool {{ $labels.pool }} cannot be used",
        "It is not mounted, or not the one it should be. See: backupd --pool {{ $labels.pool }} check",
    ),
    AlertRule(
        "BtrkeepPoolUnwell",
        f"{m.HEALTH} == 2",
        "5m",
        "critical",
        "Pool {{ $labels.pool }} is not well: {{ $labels.check }}",
        "See: backupd --pool {{ $labels.pool }} check",
    ),
    AlertRule(
        "BtrkeepPoolWarning",
        f"{m.HEALTH} == 1",
        "1h",
        "warning",
        "Something is to be done about pool {{ $labels.pool }}: {{ $labels.check }}",
        "See: backupd --pool {{ $labels.pool }} check",
    ),
    AlertRule(
        "BtrkeepCatalogueLost",
        f"{m.LOST} == 1",
        "0m",
        "critical",
        "The catalogue of pool {{ $labels.pool }} was lost",
        "It knows none of the backups that are in the pool. Make it again: backupd --pool {{ $labels.pool }} rebuild",
    ),
    AlertRule(
        "BtrkeepPoolNearlyFull",
        f"sum by (pool) ({m.POOL_AVAILABLE}) / {m.POOL_SIZE} < 0.1",
        "30m",
        "warning",
        "Pool {{ $labels.pool }} is nearly full",
        "{{ $value | humanizePercentage }} of its room are left.",
    ),
    AlertRule(
        "BtrkeepPoolFullSoon",
        f"predict_linear({m.DEVICES_USED}[14d], {30 * DAY}) > {m.DEVICES_SIZE}",
        "6h",
        "warning",
        "Pool {{ $labels.pool }} is full within a month",
        "If it goes on as in the last two weeks.",
    ),
    AlertRule(
        "BtrkeepUnallocatedLow",
        f'{m.POOL_AVAILABLE}{{where="unallocated"}} / on (pool) {m.POOL_SIZE} < 0.02',
        "1h",
        "warning",
        "Pool {{ $labels.pool }} has hardly anything unallocated",
        "Metadata may find no room though data would. See: btrfs-balancer --pool {{ $labels.pool }} plan",
    ),
    AlertRule(
        "BtrkeepDeviceErrors",
        f"increase({m.DEVICE_ERRORS}[1d]) > 0",
        "0m",
        "critical",
        "Device {{ $labels.devid }} of pool {{ $labels.pool }} has new {{ $labels.error }} errors",
        "See: btrfs device stats, and the kernel's messages.",
    ),
    AlertRule(
        "BtrkeepDeviceMissing",
        f"{m.MISSING} > 0",
        "0m",
        "critical",
        "Pool {{ $labels.pool }} is mounted without a device",
        "{{ $value }} of its devices are missing. See: btrfs filesystem show",
    ),
    AlertRule(
        "BtrkeepOrphansStay",
        f"min_over_time({m.ORPHANS}[12h]) > 0",
        "0m",
        "warning",
        "Deleted subvolumes of pool {{ $labels.pool }} do not go away",
        "For twelve hours the kernel's cleaner has had some to do. See: backupd --pool {{ $labels.pool }} progress",
    ),
    AlertRule(
        "BtrkeepExpiryFailed",
        f"{m.EXPIRY_OK} == 0",
        "0m",
        "warning",
        "Expiry of pool {{ $labels.pool }} failed, or a guard stopped it",
        "See: backupd --pool {{ $labels.pool }} expire --dry-run",
    ),
    AlertRule(
        "BtrkeepExpiryOverdue",
        f"time() - {m.EXPIRY_END} > {3 * DAY}",
        "0m",
        "warning",
        "Pool {{ $labels.pool }} has not been expired for three days",
        "Look at the timer btrkeep-expire@{{ $labels.pool }}.timer.",
    ),
    AlertRule(
        "BtrkeepBalanceFailed",
        f"{m.BALANCE_OK} == 0",
        "0m",
        "warning",
        "The last balance of pool {{ $labels.pool }} failed",
        "See: btrfs-balancer --pool {{ $labels.pool }} history --balances",
    ),
    AlertRule(
        "BtrkeepNotifierBroken",
        f'{m.ALARMS}{{event="service"}} > 0',
        "1h",
        "warning",
        "A service that tells of pool {{ $labels.pool }} does not work",
        "See: backupd --pool {{ $labels.pool }} notify --test",
    ),
    AlertRule(
        "BtrkeepAlarmsOld",
        f"time() - {m.ALARMS_LOOKED} > 3600 or {m.LOOKED} unless on (pool) {m.ALARMS_LOOKED}",
        "1h",
        "warning",
        "Nobody looks for alarms of pool {{ $labels.pool }}",
        "Look at the timer btrkeep-news@{{ $labels.pool }}.timer.",
    ),
    AlertRule(
        "BtrkeepMetricsOld",
        f"time() - {m.LOOKED} > 3600",
        "0m",
        "warning",
        "The numbers of pool {{ $labels.pool }} are an hour old",
        "Whatever runs backupd metrics does not run any more; all other alerts are blind.",
    ),
    AlertRule(
        "BtrkeepSamplesOld",
        f"time() - {m.SAMPLED} > {2 * 3600}",
        "0m",
        "warning",
        "Nobody has looked at pool {{ $labels.pool }} for two hours",
        "Look at the timer btrkeep-sample@{{ $labels.pool }}.timer.",
    ),
)


def as_yaml() -> str:
    """A file of rules. Every text stands in double quotes as JSON has it, which YAML reads the same way."""
    lines = [
        "# Alert rules of btrkeep. Made by `python -m backupd.metrics docs`; do not edit, copy what you want to change.",
        "groups:",
        "  - name: btrkeep",
        "    rules:",
    ]
    for rule in RULES:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {json.dumps(rule.expression)}",
            f"        for: {rule.lasts}",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {json.dumps(rule.summary)}",
            f"          description: {json.dumps(rule.description)}",
        ]
    return "\n".join(lines) + "\n"
