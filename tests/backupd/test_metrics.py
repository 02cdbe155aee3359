"""The numbers for Prometheus: read by Prometheus' own tool and parser, compared with btrfs and with `status`."""

import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from backupd.observe.cli.metrics import samples_of
from btrkeep import metrics as table
from btrkeep.catalogue import FreeSpaceScore, StoredAlarm
from btrkeep.config import HostConfig
from btrkeep.config.config_model import ReplicaSettings
from btrkeep.decisions.copy_status import COPIES, KnownCopies, ReplicaSession, copies_text, copy_statuses, note_session
from btrkeep.decisions.drills import DrillOutcome, DrillResult, drill_status
from btrkeep.decisions.pool_health import PoolFacts, redundancy
from btrkeep.metrics import METRICS, Metric, MetricSamples
from btrkeep.pool.space_by_profile import ChunkUse
from btrkeep.units import backup_name
from tests.backupd.facts import NOW, ago, facts
from tests.backupd.seen import balance, config, expiry, numbers, seen, well
from tests.beds import TOP, work
from tests.beds.nights import Nights

WEB = HostConfig("web1", group="debian", quota=2000)
SCORE = FreeSpaceScore("u", NOW, 10, 100, 60, 5, 33, 12.5, 2, 9, 8, ())
promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)")


class Copied(dict[str, str | None]):
    """A catalogue with a replica that has fetched two hosts, one of which was removed there."""

    def get_fact(self, name: str) -> str | None:
        return self.get(name)

    def set_fact(self, name: str, value: str | None) -> None:
        self[name] = value


PROVEN = DrillResult("web1", "2026-11-20T220003Z", NOW, DrillOutcome.PROVEN)
COPIED = Copied()
note_session(COPIED, "office", ReplicaSession(ago(2), ago(2), bytes=70, seconds=7.0, gone=("old1",)))
COPIED[COPIES] = copies_text(
    KnownCopies(
        {"web1": "office", "old1": "office"},
        {"office": {"web1": backup_name(ago(3)), "old1": backup_name(ago(90)), "taken-over": backup_name(ago(3))}},
    )
)


def everything() -> bytes:
    """Returns all metrics, each with at least one sample."""
    of_web1 = facts(
        complete=10,
        run=10,
        outcome="complete",
        last_complete_finished=ago(9),
        last_complete_files=7,
        last_complete_bytes=1000,
        last_complete_new_bytes=10,
        last_complete_live_paths=0,
    )
    look = seen(
        config(WEB, HostConfig('b\\"\n', optional=True)),
        {"web1": of_web1},
        pool=well(redundancy=redundancy((ChunkUse("data", "raid1", 5, (1, 2)),), ())),
        backups={"complete": 31},
        expiry=expiry("complete"),
        balance=balance("done"),
        score=SCORE,
        numbers=numbers(write=3),
        referenced_bytes={"web1": 1500},
        last_reads={"web1": ago(48), "old1": None},
        unverified=("old1",),
        drills=drill_status({"web1": (PROVEN,)}, {"web1"}, 3e6, NOW),
        copies=tuple(copy_statuses({"office": ReplicaSettings("office", address="a")}, COPIED, NOW)),
    )
    alarm = StoredAlarm("failure", "host web1", "", 0, NOW, 1, None, None, None)
    return samples_of(look, [alarm], NOW).text()


def samples(text: bytes | str) -> dict[str, float]:
    """Returns the samples by name and labels, from Prometheus' own parser; the label of the pool is left out."""
    by_name = {}
    for family in text_string_to_metric_families(text if isinstance(text, str) else text.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if name != "pool")
            by_name[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return by_name


@promtool
def test_prometheus_has_nothing_to_say_against_the_metrics() -> None:
    done = subprocess.run(["promtool", "check", "metrics"], input=everything(), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    wrong = everything().replace(b"btrkeep_pool_size_bytes", b"btrkeep_pool_size_kilobytes")
    assert subprocess.run(["promtool", "check", "metrics"], input=wrong, capture_output=True, check=False).returncode != 0


def test_every_metric_of_the_table_is_told_with_its_labels_and_no_other() -> None:
    parsed = text_string_to_metric_families(everything().decode())
    by_name = {sample.name: set(sample.labels) for family in parsed for sample in family.samples}
    assert by_name == {metric.name: {"pool", *metric.labels} for metric in METRICS}


def test_values_are_those_of_the_facts() -> None:
    actual_samples = samples(everything())
    host = "{host=web1}"
    assert actual_samples[f"btrkeep_host_last_success_timestamp_seconds{host}"] == ago(10).timestamp()
    assert actual_samples[f"btrkeep_host_last_success_age_seconds{host}"] == 36000
    assert actual_samples[f"btrkeep_host_last_success_duration_seconds{host}"] == 3600
    assert actual_samples[f"btrkeep_host_last_success_new_bytes{host}"] == 10
    assert actual_samples["btrkeep_host_state{host=web1,state=ok}"] == 1
    assert actual_samples["btrkeep_host_state{host=web1,state=late}"] == 0
    assert actual_samples["btrkeep_hosts{state=never}"] == 1
    assert actual_samples[f"btrkeep_host_last_verified_timestamp_seconds{host}"] == ago(48).timestamp()
    assert actual_samples["btrkeep_unverified_hosts"] == 1
    assert actual_samples["btrkeep_balance_amplification_ratio"] == 1.3
    assert actual_samples["btrkeep_device_errors_total{devid=2,error=write}"] == 3
    assert actual_samples["btrkeep_alarms{event=failure}"] == 1
    assert actual_samples["btrkeep_orphans"] == 3


def test_each_copy_of_a_host_has_its_age_and_what_is_none_has_not() -> None:
    actual_samples = samples(everything())
    newest = {name: value for name, value in actual_samples.items() if name.startswith("btrkeep_replica_host_newest")}
    assert newest == {
        "btrkeep_replica_host_newest_timestamp_seconds{host=web1,replica=office}": ago(3).timestamp(),
        "btrkeep_replica_host_newest_timestamp_seconds{host=old1,replica=office}": ago(90).timestamp(),
    }
    assert actual_samples["btrkeep_replica_hosts_gone{replica=office}"] == 1


def test_what_is_not_known_has_no_sample() -> None:
    look = seen(config(WEB), pool=PoolFacts("not mounted"), numbers=None)
    actual_samples = samples(samples_of(look, [], None).text())
    assert actual_samples["btrkeep_pool_usable"] == 0
    assert not any(
        re.match("btrkeep_(pool_size|devices|space|orphans|host_last|balance|free_space)", name) for name in actual_samples
    )


label_text = st.text(st.sampled_from('"\\\n,={} ') | st.characters(exclude_categories=["Cs"]))


@given(label_text, label_text, st.floats())
@example("a \\n b", '"\n\\', float("inf"))
def test_prometheus_parser_reads_back_any_label_and_any_value(pool: str, label: str, value: float) -> None:
    """Compared with another parser, also for values that btrkeep never writes: infinite, or not a number."""
    written = MetricSamples(pool)
    written.add(table.HOST_SIZE, value, label)
    [family] = text_string_to_metric_families(written.text().decode())
    [sample] = family.samples
    assert (family.name, family.type, family.documentation) == (table.HOST_SIZE.name, "gauge", table.HOST_SIZE.meaning)
    assert (sample.labels, repr(sample.value)) == ({"pool": pool, "host": label}, repr(value))
    assert sample.timestamp is None


def test_a_histogram_counts_what_is_up_to_each_bound_and_a_meaning_may_have_two_lines() -> None:
    metric = Metric("x_seconds", "histogram", "a \\ b\nc", ("view",))
    written = MetricSamples(None, (metric,))
    written.add_histogram(metric, (0.5, 10.0), (2, 0, 1), 31.5, "hosts")
    [family] = text_string_to_metric_families(written.text().decode())
    assert (family.type, family.documentation) == ("histogram", metric.meaning)
    assert {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples} == {
        ("x_seconds_bucket", "0.5"): 2,
        ("x_seconds_bucket", "10.0"): 2,
        ("x_seconds_bucket", "+Inf"): 3,
        ("x_seconds_count", None): 3,
        ("x_seconds_sum", None): 31.5,
    }


@pytest.mark.btrfs
def test_a_pools_numbers_are_those_of_btrfs_and_of_status(nights: Nights) -> None:
    (nights.source / "file").write_bytes(b"x" * 5000)
    nights.host("web1", nights.source)
    nights.host("new", nights.source, optional=True)
    nights.night("web1")
    actual_samples = samples(nights.backupd("metrics").stdout)
    usage = work("btrfs", "filesystem", "usage", "--raw", nights.pool).stdout
    size = int(re.search(r"Device size:\s+(\d+)", usage)[1])  # type: ignore[index]
    allocated = int(re.search(r"Device allocated:\s+(\d+)", usage)[1])  # type: ignore[index]
    assert (actual_samples["btrkeep_devices_size_bytes"], actual_samples["btrkeep_devices_allocated_bytes"]) == (size, allocated)
    room = sum(actual_samples[f"btrkeep_pool_available_bytes{{where={where}}}"] for where in ("allocated", "unallocated"))
    assert actual_samples["btrkeep_space_used_bytes{type=data}"] > 0
    assert abs(room - shutil.disk_usage(nights.pool).free) < 64 << 20  # other tests write at the same time
    assert actual_samples["btrkeep_device_errors_total{devid=1,error=corruption}"] == 0
    assert actual_samples["btrkeep_host_last_success_size_bytes{host=web1}"] == 5000
    assert actual_samples["btrkeep_host_state{host=web1,state=ok}"] == 1
    assert actual_samples["btrkeep_host_info{enabled=true,group=,host=new,optional=true}"] == 1
    assert "btrkeep_host_last_success_timestamp_seconds{host=new}" not in actual_samples
    assert (actual_samples["btrkeep_backups{state=complete}"], actual_samples["btrkeep_hosts_due"]) == (1, 1)


@pytest.mark.btrfs
def test_the_textfile_is_replaced_as_a_whole_and_can_be_read_by_all(nights: Nights, tmp_path: Path) -> None:
    file = tmp_path / "btrkeep.prom"
    file.write_text("old")
    file.chmod(0o600)
    before = file.stat().st_ino
    command = f"umask 077; exec {shlex.quote(sys.executable)} -m backupd --config {nights.config} metrics --textfile {file}"
    subprocess.run(["sh", "-c", command], cwd=TOP, check=True)
    assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_ino == before) == (0o644, False)
    assert samples(file.read_text())["btrkeep_pool_usable"] == 1
    assert list(tmp_path.iterdir()) == [file]
    (tmp_path / "null").symlink_to("/dev/null")
    nights.backupd("metrics", "--textfile", tmp_path / "null")
    assert (tmp_path / "null").is_symlink()
    (tmp_path / "null").unlink()
    done = nights.backupd("metrics", "--textfile", tmp_path / "missing" / "x.prom", check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)


@pytest.mark.btrfs
def test_json_has_the_same_samples(nights: Nights) -> None:
    answer = {family["name"]: family["type"] for family in nights.json("metrics")}
    assert answer == dict(re.findall(r"^# TYPE (\w+) (\w+)$", nights.backupd("metrics").stdout, re.MULTILINE))
