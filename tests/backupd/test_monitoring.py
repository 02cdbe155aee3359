"""Alert rules, dashboard and page, read by Prometheus' own tool."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from btrkeep.config import NotifySettings, load
from btrkeep.metrics import METRICS
from tests.beds import TOP, work

DOCS = TOP / "docs"
RULES = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())["groups"][0]["rules"]
PANELS = json.loads((DOCS / "monitoring" / "grafana.json").read_text())["panels"]
promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)")


@promtool
def test_prometheus_takes_the_rules() -> None:
    done = work("promtool", "check", "rules", "--lint=all", "--lint-fatal", DOCS / "monitoring" / "alerts.yml")
    assert f"{len(RULES)} rules found" in done.stdout


def expressions() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


@promtool
def test_every_expression_of_the_dashboard_is_one_that_prometheus_understands(tmp_path: Path) -> None:
    lines = [
        f"      - {{record: 'a:b{number}', expr: {json.dumps(expression)}}}" for number, expression in enumerate(expressions())
    ]
    (tmp_path / "r.yml").write_text("\n".join(["groups:", "  - name: x", "    rules:", *lines]) + "\n")
    assert f"{len(expressions())} rules found" in work("promtool", "check", "rules", tmp_path / "r.yml").stdout


def test_rules_and_dashboard_name_only_metrics_and_labels_that_there_are() -> None:
    names = {metric.name: {"pool", *metric.labels} for metric in METRICS}
    for expression in [*(rule["expr"] for rule in RULES), *expressions()]:
        matches = re.findall(r"(btrkeep_\w+)(?:\{([^}]*)\})?", expression)
        assert matches, expression
        for name, matchers in matches:
            assert name in names, expression
            assert set(re.findall(r"(\w+)\s*(?:=~|!=|=)", matchers)) <= names[name], expression
    for rule in RULES:
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        given = set().union(*(names[name] for name in re.findall(r"btrkeep_\w+", rule["expr"])))
        assert used <= given, rule["alert"]


def test_panels_lie_beside_each_other_and_not_on_top_of_each_other() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & own, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own


def gauge(name: str, values: str, **labels: str) -> dict[str, str]:
    """One series of the pool main, in promtool's notation: "5x9" is 5 ten times, "0+1x9" is 0 to 9; one value every 5 minutes."""
    given = "".join(f', {label}="{value}"' for label, value in labels.items())
    return {f'btrkeep_{name}{{pool="main"{given}}}': values}


def state(name: str, values: str = "1x400", optional: str = "false") -> dict[str, str]:
    return gauge("host_state", values, host="a", state=name) | gauge(
        "host_info", "1x400", host="a", enabled="true", optional=optional
    )


def success(optional: str) -> dict[str, str]:
    last = gauge("host_last_success_timestamp_seconds", "0x900", host="a")
    return last | gauge("host_info", "1x900", host="a", enabled="true", optional=optional)


def room(allocated: str, unallocated: str) -> dict[str, str]:
    by_name = gauge("pool_available_bytes", allocated, where="allocated") | gauge(
        "pool_available_bytes", unallocated, where="unallocated"
    )
    return by_name | gauge("pool_size_bytes", "100x99")


def hosts(failing: str) -> dict[str, str]:
    return gauge("hosts", failing, state="failing") | gauge("hosts", "9x99", state="ok")


def filling(size: str) -> dict[str, str]:
    return gauge("devices_used_bytes", "0+1x400") | gauge("devices_size_bytes", size)


def lately(*names: str) -> dict[str, str]:
    return {series: values for name in names for series, values in gauge(f"{name}_timestamp_seconds", "0+300x99").items()}


def fetched() -> dict[str, str]:
    """A replica that was fetched at the beginning, and counts as late after two days."""
    of_office = gauge("replica_last_fetch_timestamp_seconds", "0x900", replica="office")
    return of_office | gauge("replica_max_age_seconds", "172800x900", replica="office")


# What happens, when the alert is checked, and whether it is active then. No alert is checked twice at the same time.
CASES = (
    ("BtrkeepHostSilent", success("false"), "3d1h", True),
    ("BtrkeepHostSilent", success("false"), "2d23h", False),
    ("BtrkeepHostSilent", success("true"), "3d2h", False),
    ("BtrkeepHostNever", state("never"), "1d1h", True),
    ("BtrkeepHostNever", state("never"), "23h", False),
    ("BtrkeepHostNever", state("never", optional="true"), "1d2h", False),
    ("BtrkeepHostFailing", state("failing"), "3h", True),
    ("BtrkeepHostFailing", state("failing", "0x400"), "4h", False),
    ("BtrkeepHostFailing", state("failing", optional="true"), "5h", False),
    ("BtrkeepHostSuspect", state("suspect"), "5m", True),
    ("BtrkeepHostSuspect", state("suspect", "0x400"), "10m", False),
    ("BtrkeepHostSuspect", state("suspect", optional="true"), "15m", False),
    ("BtrkeepManyHostsFailing", hosts("2x99"), "2h", True),
    ("BtrkeepManyHostsFailing", hosts("1x99"), "3h", False),
    ("BtrkeepReplicaLate", fetched(), "2d1h", True),
    ("BtrkeepReplicaLate", fetched(), "1d23h", False),
    ("BtrkeepReplicaFailing", gauge("replica_state", "1x400", replica="office", state="failing"), "1d1h", True),
    ("BtrkeepReplicaFailing", gauge("replica_state", "1x400", replica="office", state="late"), "1d2h", False),
    ("BtrkeepReplicaHostsBehind", gauge("replica_hosts_behind", "3x900", replica="office"), "2d1h", True),
    ("BtrkeepReplicaHostsBehind", gauge("replica_hosts_behind", "3x300 0 3x300", replica="office"), "2d2h", False),
    ("BtrkeepBackupDamaged", gauge("host_damaged_backups", "1x9", host="a"), "5m", True),
    ("BtrkeepBackupDamaged", gauge("host_damaged_backups", "0x9", host="a"), "10m", False),
    ("BtrkeepHostsUnverified", gauge("unverified_hosts", "2x400"), "1d1h", True),
    ("BtrkeepHostsUnverified", gauge("unverified_hosts", "0x400"), "1d2h", False),
    ("BtrkeepHostsInDoubt", gauge("hosts_in_doubt", "2x99"), "2h", True),
    ("BtrkeepHostsInDoubt", gauge("hosts_in_doubt", "0x99"), "3h", False),
    ("BtrkeepDrillFailed", gauge("drill_failed_hosts", "1x9"), "5m", True),
    ("BtrkeepDrillFailed", gauge("drill_failed_hosts", "0x9"), "10m", False),
    ("BtrkeepDrillLate", gauge("drill_state", "1x9", state="late"), "5m", True),
    ("BtrkeepDrillLate", gauge("drill_state", "1x9", state="never"), "10m", False),
    ("BtrkeepPoolUnusable", gauge("pool_usable", "0x99"), "10m", True),
    ("BtrkeepPoolUnusable", gauge("pool_usable", "1x99"), "20m", False),
    ("BtrkeepPoolUnwell", gauge("pool_health", "2x99", check="room"), "10m", True),
    ("BtrkeepPoolUnwell", gauge("pool_health", "1x99", check="room"), "20m", False),
    ("BtrkeepPoolWarning", gauge("pool_health", "1x99", check="used"), "2h", True),
    ("BtrkeepPoolWarning", gauge("pool_health", "0x99", check="used"), "3h", False),
    ("BtrkeepConfiguration", gauge("config_faults", "2x99"), "10m", True),
    ("BtrkeepConfiguration", gauge("config_faults", "0x99"), "20m", False),
    ("BtrkeepCatalogueUnusable", gauge("catalogue_usable", "0x99"), "20m", True),
    ("BtrkeepCatalogueUnusable", gauge("catalogue_usable", "1x99"), "30m", False),
    ("BtrkeepCatalogueLost", gauge("catalogue_lost", "1x99"), "1m", True),
    ("BtrkeepCatalogueLost", gauge("catalogue_lost", "0x99"), "20m", False),
    ("BtrkeepPoolNearlyFull", room("5x99", "4x99"), "1h", True),
    ("BtrkeepPoolNearlyFull", room("5x99", "6x99"), "2h", False),
    ("BtrkeepUnallocatedLow", room("50x99", "1x99"), "2h", True),
    ("BtrkeepUnallocatedLow", room("1x99", "50x99"), "3h", False),
    ("BtrkeepPoolFullSoon", filling("5000x400"), "1d", True),
    ("BtrkeepPoolFullSoon", filling("50000x400"), "1d1h", False),
    ("BtrkeepDeviceErrors", gauge("device_errors_total", "7 7 7 8 8 8", devid="1", error="read"), "25m", True),
    ("BtrkeepDeviceErrors", gauge("device_errors_total", "7 7 7 7 7 7", devid="1", error="read"), "20m", False),
    ("BtrkeepDeviceMissing", gauge("devices_missing", "1x9"), "5m", True),
    ("BtrkeepDeviceMissing", gauge("devices_missing", "0x9"), "10m", False),
    ("BtrkeepOrphansStay", gauge("orphans", "100x400"), "13h", True),
    ("BtrkeepOrphansStay", gauge("orphans", "100x100 0 100x100"), "14h", False),
    ("BtrkeepExpiryFailed", gauge("expiry_last_success", "0x9"), "5m", True),
    ("BtrkeepExpiryFailed", gauge("expiry_last_success", "1x9"), "10m", False),
    ("BtrkeepExpiryOverdue", gauge("expiry_last_end_timestamp_seconds", "0x900"), "3d1h", True),
    ("BtrkeepExpiryOverdue", gauge("expiry_last_end_timestamp_seconds", "0x900"), "2d23h", False),
    ("BtrkeepBalanceFailed", gauge("balance_last_success", "0x9"), "5m", True),
    ("BtrkeepBalanceFailed", gauge("balance_last_success", "1x9"), "10m", False),
    ("BtrkeepNotifierBroken", gauge("alarms", "1x99", event="service"), "2h", True),
    ("BtrkeepNotifierBroken", gauge("alarms", "1x99", event="failure"), "3h", False),
    ("BtrkeepAlarmsOld", gauge("alarms_timestamp_seconds", "0x99"), "3h", True),
    ("BtrkeepAlarmsOld", gauge("look_timestamp_seconds", "0+300x99"), "2h", True),
    ("BtrkeepAlarmsOld", lately("look", "alarms"), "4h", False),
    ("BtrkeepMetricsOld", gauge("look_timestamp_seconds", "0x99"), "2h", True),
    ("BtrkeepMetricsOld", gauge("look_timestamp_seconds", "0+300x99"), "3h", False),
    ("BtrkeepSamplesOld", gauge("pool_timestamp_seconds", "0x99"), "3h", True),
    ("BtrkeepSamplesOld", gauge("pool_timestamp_seconds", "0+300x99"), "4h", False),
)


@pytest.mark.slow
@promtool
def test_an_alert_goes_off_when_it_should_and_only_then(tmp_path: Path) -> None:
    """promtool plays the series with the expectation of no alert; the alerts about which it complains were active."""
    tests = [
        {
            "interval": "5m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": []}],
        }
        for alert, series, at, _ in CASES
    ]
    file = tmp_path / "test.yml"
    file.write_text(
        json.dumps({"rule_files": [str(DOCS / "monitoring" / "alerts.yml")], "evaluation_interval": "5m", "tests": tests})
    )
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
    went_off = re.findall(r"alertname: (\w+), time: (\w+)", done.stdout + done.stderr)
    assert sorted(went_off) == sorted((alert, at) for alert, _, at, expected in CASES if expected)


def test_every_alert_is_tried_both_ways() -> None:
    names = sorted(rule["alert"] for rule in RULES)
    for expected in (True, False):
        assert sorted({alert for alert, _, _, whether in CASES if whether is expected}) == names
    assert len({(alert, at) for alert, _, at, _ in CASES}) == len(CASES)


def test_the_configurations_on_the_page_load(tmp_path: Path) -> None:
    blocks = re.findall(r"code-block:: toml\n\n((?:   .*\n|\n)+)", (DOCS / "monitoring.rst").read_text(encoding="utf-8"))
    assert len(blocks) == 2
    for block in blocks:
        (tmp_path / "main.toml").write_text('[pool]\npath = "/p"\n' + re.sub("^   ", "", block, flags=re.MULTILINE))
        assert load(folder=tmp_path).notify != NotifySettings()
