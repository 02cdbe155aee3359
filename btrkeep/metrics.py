"""Metrics: their table, their samples, and the one writer of Prometheus' text format.

Names are as Prometheus wants them (https://prometheus.io/docs/practices/naming/), the text is
https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format. Every sample has the label `pool` before those given
here, so that one Prometheus can watch several pools of one machine. No sample has a time of its own: node_exporter refuses a
textfile with any, and Prometheus takes the time at which it reads.

The table is of the pool and its hosts; web/health.py has the metrics of the dashboard's own process.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family."""

    name: str
    """Its name in Prometheus."""
    kind: Literal["gauge", "counter", "histogram"]
    """Its type."""
    meaning: str
    """Its help text."""
    labels: tuple[str, ...] = ()
    """The names of its labels."""

    def __str__(self) -> str:
        return self.name


INFO = Metric("btrkeep_info", "gauge", "Always 1; its labels have the running version.", ("version",))
LOOKED = Metric("btrkeep_look_timestamp_seconds", "gauge", "When these metrics were collected.")
USABLE = Metric("btrkeep_pool_usable", "gauge", "1 if the right pool is mounted, else 0.")
LOST = Metric("btrkeep_catalogue_lost", "gauge", "1 if the catalogue has none of the backups in the pool, else 0.")

CONFIG_FAULTS = Metric(
    "btrkeep_config_faults", "gauge", "Mistakes in the configuration; the hosts or copies concerned are skipped, or nothing runs."
)
CATALOGUE_USABLE = Metric(
    "btrkeep_catalogue_usable", "gauge", "1 if the catalogue can be read, else 0: then hosts have no samples."
)
POOL_LOOKED = Metric("btrkeep_pool_look_timestamp_seconds", "gauge", "When the pool could last be read.")

HOST_INFO = Metric(
    "btrkeep_host_info", "gauge", "Always 1; its labels have the host's configuration.", ("host", "group", "enabled", "optional")
)
HOST_STATE = Metric(
    "btrkeep_host_state", "gauge", "1 for the state of the host, 0 for the others, as in backupd status.", ("host", "state")
)
HOST_SUCCESS = Metric(
    "btrkeep_host_last_success_timestamp_seconds",
    "gauge",
    "When the newest complete backup started; no sample without one.",
    ("host",),
)
HOST_AGE = Metric(
    "btrkeep_host_last_success_age_seconds",
    "gauge",
    "Seconds since the newest complete backup started. Alert rules should use the timestamp instead.",
    ("host",),
)
HOST_DURATION = Metric(
    "btrkeep_host_last_success_duration_seconds", "gauge", "How long the newest complete backup took.", ("host",)
)
HOST_SIZE = Metric("btrkeep_host_last_success_size_bytes", "gauge", "Size of all files in the newest complete backup.", ("host",))
HOST_NEW = Metric(
    "btrkeep_host_last_success_new_bytes", "gauge", "New data that rsync wrote for the newest complete backup.", ("host",)
)
HOST_FILES = Metric("btrkeep_host_last_success_files", "gauge", "Files in the newest complete backup.", ("host",))
HOST_LIVE = Metric(
    "btrkeep_host_live_paths",
    "gauge",
    "Source paths of the newest complete backup that were not read from a snapshot; no sample without `snapshots`.",
    ("host",),
)
HOST_ALIVE = Metric(
    "btrkeep_host_alive_bytes",
    "gauge",
    "Bytes that a host wrote and that still exist; no sample without simple quotas.",
    ("host",),
)
HOST_QUOTA = Metric(
    "btrkeep_host_quota_bytes", "gauge", "The host's `quota` for its existing bytes; no sample without one.", ("host",)
)
HOST_DAMAGED = Metric(
    "btrkeep_host_damaged_backups", "gauge", "Backups in which a verification or a scrub found damaged files.", ("host",)
)
HOST_VERIFIED = Metric(
    "btrkeep_host_last_verified_timestamp_seconds",
    "gauge",
    "When data of the host's backups were last read, by verify or a scrub; no sample if never.",
    ("host",),
)
HOSTS = Metric("btrkeep_hosts", "gauge", "Enabled hosts, by state.", ("state",))

BACKUPS = Metric("btrkeep_backups", "gauge", "Backups in the pool, by state.", ("state",))
RUNNING = Metric("btrkeep_transfers_running", "gauge", "Running transfers.")
DUE = Metric("btrkeep_hosts_due", "gauge", "Enabled hosts that are due and have no running transfer: the queue.")

POOL_SIZE = Metric("btrkeep_pool_size_bytes", "gauge", "Bytes of data that fit into the pool when it is empty.")
POOL_AVAILABLE = Metric(
    "btrkeep_pool_available_bytes",
    "gauge",
    'Bytes of data that still fit: "allocated" in existing block groups, "unallocated" in new ones.',
    ("where",),
)
DEVICES_SIZE = Metric(
    "btrkeep_devices_size_bytes", "gauge", "Bytes of all devices that data can use; data stored twice count twice."
)
DEVICES_ALLOCATED = Metric("btrkeep_devices_allocated_bytes", "gauge", "Bytes of all devices that are allocated to block groups.")
DEVICES_USED = Metric("btrkeep_devices_used_bytes", "gauge", "Bytes of all devices that are used within block groups.")
SPACE_ALLOCATED = Metric(
    "btrkeep_space_allocated_bytes",
    "gauge",
    "Bytes allocated to block groups of one type; data stored twice counts once.",
    ("type",),
)
SPACE_USED = Metric(
    "btrkeep_space_used_bytes", "gauge", "Used bytes in block groups of one type; data stored twice counts once.", ("type",)
)
COPIES = Metric(
    "btrkeep_stored_bytes",
    "gauge",
    "Bytes in use, by type and number of good copies on the present devices; 0: unreadable.",
    ("type", "copies"),
)
DEVICE_ERRORS = Metric("btrkeep_device_errors_total", "counter", "Errors that btrfs has counted on a device.", ("devid", "error"))
MISSING = Metric("btrkeep_devices_missing", "gauge", "Missing devices of the mounted pool.")
ORPHANS = Metric("btrkeep_orphans", "gauge", "Deleted subvolumes that wait for the kernel's cleaner.")
SAMPLED = Metric("btrkeep_pool_timestamp_seconds", "gauge", "When the numbers of devices, space and orphans were measured.")

SCORE = Metric("btrkeep_free_space_score", "gauge", "Fragmentation of free space: the sum of all data block groups' scores.")
BAD = Metric("btrkeep_free_space_bad_block_groups", "gauge", "Data block groups whose score is above 250.")
FRAGMENTS = Metric("btrkeep_free_space_fragments", "gauge", "Free extents in data block groups.")
FREE_LARGE = Metric("btrkeep_free_space_large_bytes", "gauge", "Bytes that are free in extents of 16 MiB and more.")
SCORED = Metric("btrkeep_free_space_timestamp_seconds", "gauge", "When free space was scored.")

BALANCE_RUNS = Metric("btrkeep_balance_runs_total", "counter", "Runs of balance.")
BALANCE_GROUPS = Metric("btrkeep_balance_block_groups_total", "counter", "Block groups that balance has relocated.")
BALANCE_MOVED = Metric("btrkeep_balance_moved_bytes_total", "counter", "Bytes of data that balance has moved.")
BALANCE_WRITTEN = Metric("btrkeep_balance_written_bytes_total", "counter", "Bytes that all devices wrote while balance ran.")
BALANCE_AMPLIFICATION = Metric(
    "btrkeep_balance_amplification_ratio", "gauge", "Bytes written for each byte moved, in the newest run of balance."
)
BALANCE_END = Metric("btrkeep_balance_last_end_timestamp_seconds", "gauge", "When the newest run of balance ended.")
BALANCE_OK = Metric("btrkeep_balance_last_success", "gauge", "1 if the newest run of balance succeeded, else 0.")

EXPIRY_RUNS = Metric("btrkeep_expiry_runs_total", "counter", "Runs of expire.")
EXPIRY_DELETED = Metric("btrkeep_expiry_deleted_backups_total", "counter", "Backups that expire has deleted.")
EXPIRY_DURATION = Metric("btrkeep_expiry_last_duration_seconds", "gauge", "How long the newest run of expire for all hosts took.")
EXPIRY_END = Metric("btrkeep_expiry_last_end_timestamp_seconds", "gauge", "When the newest run of expire for all hosts ended.")
EXPIRY_OK = Metric("btrkeep_expiry_last_success", "gauge", "1 if the newest run of expire for all hosts did not fail, else 0.")

REPLICA_STATE = Metric(
    "btrkeep_replica_state",
    "gauge",
    "1 for the state of a replica or an offsite repository, 0 for the others, as in backupd status.",
    ("replica", "state"),
)
REPLICA_FETCHED = Metric(
    "btrkeep_replica_last_fetch_timestamp_seconds",
    "gauge",
    "When a replica was last fetched, or an offsite repository last sent to; no sample if never.",
    ("replica",),
)
REPLICA_MAX_AGE = Metric(
    "btrkeep_replica_max_age_seconds", "gauge", "The age at which a replica or repository counts as late.", ("replica",)
)
REPLICA_BYTES = Metric(
    "btrkeep_replica_last_fetch_bytes",
    "gauge",
    "Bytes of all streams of the newest replication, or added to the repository by the newest run.",
    ("replica",),
)
REPLICA_DURATION = Metric(
    "btrkeep_replica_last_fetch_duration_seconds", "gauge", "How long the newest replication or sending took.", ("replica",)
)
REPLICA_NEWEST = Metric(
    "btrkeep_replica_host_newest_timestamp_seconds",
    "gauge",
    "When the newest copied backup of a host started.",
    ("replica", "host"),
)
REPLICA_GONE = Metric("btrkeep_replica_hosts_gone", "gauge", "Fetched hosts that the other pool no longer lists.", ("replica",))
REPLICA_BEHIND = Metric("btrkeep_replica_hosts_behind", "gauge", "Hosts with incomplete copies.", ("replica",))

DRILL_STATE = Metric(
    "btrkeep_drill_state", "gauge", "1 for the state of restore drills, 0 for the others, as in backupd status.", ("state",)
)
DRILL_PROVEN = Metric(
    "btrkeep_drill_last_proven_timestamp_seconds",
    "gauge",
    "When a restore was last proven; no sample if never.",
)
UNVERIFIED = Metric("btrkeep_unverified_hosts", "gauge", "Hosts whose data were not read for longer than [verify] max_age.")
IN_DOUBT = Metric(
    "btrkeep_hosts_in_doubt",
    "gauge",
    "Hosts with a backup that a crash of this server may have damaged and that was not read since.",
)
VERIFIED = Metric("btrkeep_backups_verified", "gauge", "Backups in the pool, by verification state.", ("state",))
DRILL_FAILED = Metric("btrkeep_drill_failed_hosts", "gauge", "Hosts whose newest drill has failed.")

HEALTH = Metric(
    "btrkeep_pool_health",
    "gauge",
    "State of the pool, by check: 0 ok, 1 a warning, 2 an error. A check that could not run has no sample.",
    ("check",),
)

ALARMS = Metric(
    "btrkeep_alarms", "gauge", "Open alarms, sent or not, by event; no sample before the first run of backupd notify.", ("event",)
)
VERDICT = Metric(
    "btrkeep_verdict",
    "gauge",
    "1 for the level of the verdict of backupd status (ok, unknown, warning, error), 0 for the others.",
    ("level",),
)
ALARMS_LOOKED = Metric("btrkeep_alarms_timestamp_seconds", "gauge", "When backupd notify last checked for alarms.")

METRICS = tuple(value for value in list(vars().values()) if isinstance(value, Metric))
"""All of them, in the order in which they are printed."""


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_INFINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


class MetricSample(NamedTuple):
    """One value. `suffix`: what a part of a histogram has behind the metric's name."""

    labels: Sequence[tuple[str, str]]
    value: float
    suffix: str = ""


class MetricSamples:
    """Samples by metric, in the order of `metrics`. With a `pool` all of them have it as a label. In the text, labels are sorted by
    name.
    """

    def __init__(self, pool: str | None, metrics: Sequence[Metric] = METRICS) -> None:
        self._common = () if pool is None else (("pool", pool),)
        self._samples: dict[Metric, list[MetricSample]] = {metric: [] for metric in metrics}

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Adds one sample; for None, which means unknown, it adds none."""
        if value is not None:
            self._samples[metric].append(MetricSample(self._pairs(metric, labels), float(value)))

    def add_histogram(self, metric: Metric, bounds: Sequence[float], counts: Sequence[int], total: float, *labels: str) -> None:
        """Adds a histogram. `counts`: values up to each bound that are above the one before, then those above all bounds."""
        pairs, reached = self._pairs(metric, labels), 0
        for bound, count in zip([*bounds, float("inf")], counts, strict=True):
            reached += count
            self._samples[metric].append(MetricSample((*pairs, ("le", _number(bound))), float(reached), "_bucket"))
        self._samples[metric] += [MetricSample(pairs, float(reached), "_count"), MetricSample(pairs, total, "_sum")]

    def families(self) -> Iterator[tuple[Metric, Sequence[MetricSample]]]:
        """Yields each metric that has samples, with these."""
        return ((metric, samples) for metric, samples in self._samples.items() if samples)

    def text(self) -> bytes:
        """Returns all samples in the format of Prometheus. A character that UTF-8 cannot represent becomes a question mark."""
        return "".join(line for metric, samples in self.families() for line in _lines(metric, samples)).encode("utf-8", "replace")

    def _pairs(self, metric: Metric, labels: Sequence[str]) -> Sequence[tuple[str, str]]:
        return (*self._common, *zip(metric.labels, labels, strict=True))


def _lines(metric: Metric, samples: Sequence[MetricSample]) -> Iterator[str]:
    meaning = metric.meaning.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {metric.name} {meaning}\n# TYPE {metric.name} {metric.kind}\n"
    for sample in samples:
        pairs = ",".join([f'{name}="{_escaped(label)}"' for name, label in sorted(sample.labels)])
        yield (
            f"{metric.name}{sample.suffix}{{{pairs}}} {_number(sample.value)}\n"
            if pairs
            else (f"{metric.name}{sample.suffix} {_number(sample.value)}\n")
        )


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    text = repr(value)
    return _INFINITE.get(text, text)
