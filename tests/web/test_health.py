"""/healthz and /metrics: the facts that a monitor may know, and numbers that equal those of the catalogue."""

import json
import re
import shutil
import sqlite3
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from btrkeep import metrics as table
from btrkeep.config import HostConfig
from tests.beds.copied import copied
from tests.beds.dashboard import CUSTOMER, OPERATOR, VIEWER, Dashboard, own_folder, serving
from tests.beds.made_catalogue import made_catalogue
from tests.web.made import EVENING, backup, client, write
from web import health
from web.dashboard_settings import Settings
from web.source import Caches, RequestContext


def samples(web: Dashboard, who: str = OPERATOR) -> dict[tuple[str, tuple[str, ...]], float]:
    """Returns the samples by name and label values, in the order of the labels' names, without the pool's."""
    answer = web.get("/metrics", who)
    assert answer.status == 200, answer.text
    return {
        (sample.name, tuple(value for name, value in sorted(sample.labels.items()) if name != "pool")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_numbers_are_those_of_the_catalogue(site: Dashboard) -> None:
    actual_samples = samples(site, VIEWER)
    with sqlite3.connect(f"file:{site.state}/catalogue.sqlite?mode=ro", uri=True) as connection:
        backups = connection.execute("SELECT state, count(*) FROM backup GROUP BY state").fetchall()
        [[runs, deleted]] = connection.execute("SELECT count(*), sum(deleted) FROM expiry").fetchall()
        [[moved]] = connection.execute("SELECT sum(moved) FROM balance").fetchall()
        [[used]] = connection.execute("SELECT used FROM sample WHERE span = 'raw' ORDER BY id DESC LIMIT 1").fetchall()
    assert {state: actual_samples["btrkeep_backups", (state,)] for state, _ in backups} == dict(backups)
    assert (actual_samples["btrkeep_expiry_runs_total", ()], actual_samples["btrkeep_expiry_deleted_backups_total", ()]) == (
        runs,
        deleted,
    )
    assert actual_samples["btrkeep_balance_moved_bytes_total", ()] == moved
    assert actual_samples["btrkeep_devices_used_bytes", ()] == used
    assert actual_samples["btrkeep_device_errors_total", ("2", "read")] == 3
    assert actual_samples["btrkeep_hosts", ("failing",)] == 3
    assert actual_samples["btrkeep_host_state", ("database0041.example.org", "failing")] == 1


def test_what_is_answered_is_counted(site: Dashboard) -> None:
    def count() -> float:
        return samples(site).get(("btrkeep_web_requests_total", ("GET", "404", "none")), 0.0)

    before = count()
    for _ in range(3):
        site.ask("GET", "/no/such/page", Cookie=site.cookie)
    assert count() == before + 3
    site.ask("GET", "/hosts", Cookie=site.cookie)
    assert samples(site)["btrkeep_web_request_seconds_count", ("hosts.index",)] >= 1


def test_prometheus_own_tool_has_nothing_against_the_page_and_the_process_is_measured(site: Dashboard) -> None:
    """Compared with the kernel's figures of the process, read from outside."""
    actual_samples = samples(site)
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{site.pid}/status").read_text().splitlines())
    assert actual_samples["btrkeep_web_process_resident_memory_bytes", ()] == pytest.approx(
        int(fields["VmRSS"].split()[0]) * 1024, rel=0.2
    )
    assert actual_samples["btrkeep_web_process_open_fds", ()] == pytest.approx(
        len(list(Path(f"/proc/{site.pid}/fd").iterdir())), abs=5
    )
    assert actual_samples["btrkeep_web_process_cpu_seconds_total", ()] > 0
    assert 0 <= time.time() - actual_samples["btrkeep_web_process_start_time_seconds", ()] < 3600
    if shutil.which("promtool"):
        text = site.get("/metrics").text
        done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_family_has_the_name_and_the_meaning_of_the_one_table(site: Dashboard) -> None:
    by_name = {metric.name.removesuffix("_total"): metric.meaning for metric in table.METRICS}
    for family in text_string_to_metric_families(site.get("/metrics").text):
        if not family.name.startswith("btrkeep_web_"):
            assert family.documentation == by_name[family.name]


def test_no_numbers_are_shown_without_a_token(site: Dashboard) -> None:
    answer = site.ask("GET", "/metrics")
    assert answer.status == 401
    assert "Bearer" in answer.headers["WWW-Authenticate"]
    assert "example" not in answer.text


def test_the_health_check_needs_no_login_and_shows_nothing_else(site: Dashboard) -> None:
    answer = site.ask("GET", "/healthz")
    shown = {"ok": True, "catalogue": True, "sample": True, "level": "error", "verdict": None}
    assert (answer.status, json.loads(answer.body)) == (200, shown)


def test_the_health_check_has_the_verdict_of_the_overview_for_whoever_has_a_token(site: Dashboard) -> None:
    for who in (OPERATOR, CUSTOMER):
        verdict = json.loads(site.get("/healthz", who).body)["verdict"]
        shown = json.loads(site.get("/api/v1/overview", who).body)["verdict"]
        assert (verdict["level"], verdict["sentence"]) == (shown["level"], shown["sentence"])
    assert "pool" not in verdict["sentence"], "the customer may see only some hosts"
    refused = site.ask("GET", "/healthz", Authorization="Bearer btrkeep_wrong")
    assert (refused.status, json.loads(refused.body)["verdict"]) == (200, None)


@pytest.mark.slow
def test_ill_health_is_503_and_names_no_place() -> None:
    with own_folder() as folder:
        made = made_catalogue(folder / "state", 10, hostile=False)
        with serving(folder, made.state) as web:
            (made.state / "dashboard.sqlite").rename(made.state / "elsewhere")
            lost = web.ask("GET", "/healthz")
            (made.state / "elsewhere").rename(made.state / "dashboard.sqlite")
            assert web.ask("GET", "/healthz").status == 200
            with sqlite3.connect(made.state / "catalogue.sqlite") as connection:
                connection.execute("DELETE FROM sample WHERE id > (SELECT max(id) - 30 FROM sample)")
            connection.close()
            copied(made.state)
            stale = web.ask("GET", "/healthz")
            with sqlite3.connect(made.state / "catalogue.sqlite") as connection:
                connection.execute("DELETE FROM sample")
            connection.close()
            copied(made.state)
            never = web.ask("GET", "/healthz")
    seen = {"ok": False, "catalogue": True, "level": "warning", "verdict": None}
    assert (lost.status, json.loads(lost.body)) == (
        503,
        {"ok": False, "catalogue": False, "sample": None, "level": None, "verdict": None},
    )
    assert (stale.status, json.loads(stale.body)) == (503, {**seen, "sample": False})
    assert (never.status, json.loads(never.body)) == (503, {**seen, "sample": None})


def test_a_label_may_have_anything_in_it(tmp_path: Path) -> None:
    """prometheus_client's parser returns the group of a host unchanged."""
    odd = 'a "b" \\n c\\\nd ü'
    write(tmp_path, [HostConfig("web1", group=odd)], [backup("web1", EVENING)]).close()
    source = RequestContext(Settings("main", tmp_path, tmp_path, tmp_path), Caches())
    families = {family.name: family for family in text_string_to_metric_families(health.metrics_text(source).decode())}
    source.close()
    assert [sample.labels["group"] for sample in families["btrkeep_host_info"].samples] == [odd]
    assert [sample.value for sample in families["btrkeep_host_last_success_files"].samples] == [1000]


def test_a_page_says_of_when_it_is_and_warns_when_no_program_has_renewed_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with write(tmp_path, [HostConfig("web1")], [backup("web1", EVENING)]):
        browser = client(tmp_path)
        page = browser.get("/hosts").text
        assert re.search(r'As of <time datetime="\d{4}-[^"]+Z"', page)
        assert "These pages are out of date" not in page
        monkeypatch.setattr("web.source.STALE", timedelta(seconds=-1))
        page = browser.get("/hosts").text
        assert "These pages are out of date" in page
        assert "backupd check" in page
