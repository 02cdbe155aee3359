"""The pages of hosts equal `backupd`'s output for a real pool: states, lists, and the reason why each backup is kept."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from btrkeep.serving.viewer import Viewer
from btrkeep.units import format_time
from tests.beds.history import every, make_histories, moment, write_down
from tests.beds.nights import Nights
from tests.web.made import client
from web.dashboard_settings import Settings
from web.hosts.data import Query, host_list
from web.hosts.host import HostPage, host_page
from web.page_verdict import overall
from web.source import Caches, RequestContext

pytestmark = [pytest.mark.btrfs]
LAST = moment("2026-11-19 22:00")
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
POLICY = {"daily": 5, "weekly": 3, "monthly": 4, "min_keep": 2, "grace": "2d"}
HOSTS = ("web1", "web2", "gone")
EVERYBODY = Viewer("olga", "operator")


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Nights:
    """Thirty days of three hosts, one of which is no longer configured; two expiries; holds, one of which has ended."""
    nights = Nights(module_btrfs, "--rehearsal")
    nights.settings("pool", zone="America/New_York")
    nights.tables["retention"] = POLICY
    nights.host("web1", nights.source, window="22:00-06:00")
    nights.tables["host.web2.retention"] = {"daily": 3, "min_keep": 1}
    nights.host("web2", nights.source, every="2d")
    moments = [*every(1, 12, LAST), *every(7, 4, LAST - timedelta(days=15))]
    make_histories(nights, HOSTS, sorted(moments), {14: "suspect", 15: "failed"})
    nights.backupd("run", "web1", "--now", "2026-11-20T03:30:00Z")
    (oldest, second, *_) = nights.names("web1")
    nights.backupd("hold", "web1", second, "--why", "the audit: <b>", "--now", "2026-11-20T08:00:00Z")
    nights.backupd("hold", "web2", second, "--until", "2026-11-20T09:00:00Z", "--now", "2026-11-20T08:00:00Z")
    nights.backupd("hold", "web2", oldest, "--until", "2026-12-20T09:00:00Z", "--why", "move", "--now", "2026-11-20T08:00:00Z")
    nights.backupd("expire", "--now", "2026-11-20T10:00:00Z", "--force", "pool", "--force", "hosts")
    return nights


@pytest.fixture(autouse=True)
def _noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestContext, "now", NOW)


@pytest.fixture
def source(pool: Nights) -> Iterator[RequestContext]:
    request_context = RequestContext(Settings("main", pool.state, pool.state, pool.state), Caches())
    yield request_context
    request_context.close()


def pool_json(pool: Nights, *words: str) -> Any:
    return pool.json(*words, "--now", format_time(NOW))


def page_of(source: RequestContext, host: str) -> HostPage:
    result = host_page(source, EVERYBODY, host, time_words=lambda moment: moment.astimezone(source.config.zone).isoformat())
    assert result
    return result


def test_hosts_are_as_status_says(pool: Nights, source: RequestContext) -> None:
    rows = {row.host: row for row in host_list(source, EVERYBODY, Query()).rows}
    for host in pool_json(pool, "status")["hosts"]:
        row = rows.pop(host["host"])
        assert row.state == host["state"]
        assert row.last_complete is not None
        assert format_time(row.last_complete) == host["last_complete"]
        assert row.age is not None
        assert round(row.age) == host["age"]
        assert row.next_due is not None
        assert format_time(row.next_due) == host["next_due"]
        assert (row.words if row.tone == "error" else None) == host["error"]
    assert [(row.host, row.state) for row in rows.values()] == [("gone", "unconfigured")]


@pytest.mark.parametrize("host", HOSTS)
def test_backups_are_as_list_says(pool: Nights, source: RequestContext, host: str) -> None:
    answer = pool_json(pool, "list", host)
    shown = list(reversed(page_of(source, host).backups))
    assert [(row.name, row.state, format_time(row.started), row.duration) for row in shown] == [
        (row["name"], row["state"], row["started"], row["duration"]) for row in answer
    ]
    assert [(row.files, row.size, row.new_bytes) for row in shown] == [
        (row["files"], row["bytes"], row["new_bytes"]) for row in answer
    ]
    assert [row.held is not None for row in shown] == [row["held"] is not None for row in answer]
    assert any(row.state == "expired" for row in shown) or host == "gone"


@pytest.mark.parametrize("host", HOSTS)
def test_each_backup_is_kept_for_the_reasons_of_retention_explain(pool: Nights, source: RequestContext, host: str) -> None:
    page = page_of(source, host)
    shown = {backup.name: backup for backup in page.backups}
    answer = pool_json(pool, "retention", "explain", host)
    assert [row["name"] for row in answer] == sorted(filter(None, shown))
    for decision in answer:
        row = shown[decision["name"]]
        assert row.keep == decision["keep"], decision
        assert (format_time(row.goes) if row.goes else None) == decision["expires"], decision
        assert row.why == ", ".join(decision["reasons"])
    assert (page.kept, page.going) == (sum(row["keep"] for row in answer), sum(not row["keep"] for row in answer))
    assert not page.in_doubt
    assert host != "web1" or {row["keep"] for row in answer} == {True, False}


def test_the_calendar_has_the_letters_of_the_strip_on_a_terminal(pool: Nights, source: RequestContext) -> None:
    """Rows such as `2026-11  ...ddd`, the oldest first, with blanks before the first backup and after today."""
    lines = pool.backupd("retention", "explain", "web1", "--now", format_time(NOW)).stdout.splitlines()
    strip = {line[:7]: line[9:40].rstrip() for line in lines if line[:4] == "2026" and line[7:9] == "  " and line[4] == "-"}
    months = page_of(source, "web1").calendar.months
    assert {month.month: "".join(cell.letter or " " for cell in month.cells).rstrip() for month in months} == strip
    assert len(strip) >= 2


def test_runs_are_as_log_says(pool: Nights, source: RequestContext) -> None:
    (answer,) = pool_json(pool, "log", "web1")
    (shown,) = page_of(source, "web1").runs
    assert (shown.outcome, shown.exit_code, shown.meaning, shown.error, shown.attempts, shown.literal_bytes) == tuple(
        answer[key] for key in ("outcome", "exit_code", "meaning", "error", "attempts", "literal_bytes")
    )
    assert shown.backup == answer["backup"]


def test_a_host_that_was_given_up_is_in_doubt_until_the_pool_is_asked(pool: Nights) -> None:
    """Only the pool has that note; the root service's answer equals `retention explain --json`."""
    before = pool.json("list", "gone")
    write_down(pool, "gone", forgotten={"at": "2026-11-20T10:30:00Z"})
    pool.backupd("expire", "--now", "2026-11-20T11:00:00Z", "--force", "pool")
    try:
        source = RequestContext(Settings("main", pool.state, pool.state, pool.state), Caches())
        assert page_of(source, "gone").in_doubt
        asked = host_page(source, EVERYBODY, "gone", pool_json(pool, "retention", "explain", "gone"))
        source.close()
        assert asked
        assert not asked.in_doubt
        assert {(backup.goes, backup.why) for backup in asked.backups} == {
            (datetime(2026, 11, 22, 11, tzinfo=UTC), "host forgotten")
        }
        page = client(pool.state).get("/hosts/gone").text
        assert "the host was forgotten" in page
        assert "exact=1" in page
    finally:
        (pool.pool / "hosts" / "gone" / "notes.json").unlink()
        pool.backupd("rebuild")
    assert [row["state"] for row in pool.json("list", "gone")] == [row["state"] for row in before]


def test_the_verdict_is_that_of_status_and_of_the_metrics(
    pool: Nights, source: RequestContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of the module: its alarms stay."""
    later = NOW + timedelta(days=5)
    monkeypatch.setattr(RequestContext, "now", later)
    pool.backupd("notify", "--now", format_time(later), check=False)
    verdict = pool.json("status", "--now", format_time(later))["verdict"]
    assert verdict["sentence"] == "Needs attention: 2 hosts late"
    assert pool.backupd("status", "--now", format_time(later)).stdout.splitlines()[-2] == verdict["sentence"]
    shown = overall(source, EVERYBODY)
    assert (shown.level, shown.sentence) == (verdict["level"], verdict["sentence"])
    metrics = pool.backupd("metrics", "--now", format_time(later))
    assert 'btrkeep_verdict{level="warning",pool="main"} 1.0' in metrics.stdout.splitlines(), metrics
