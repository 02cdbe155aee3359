"""The overview as it is shown: new installations, users who see only some hosts, present runs, alarms, hostile text."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from time import sleep

import pytest

from bench.make_catalogue import add_runs
from btrkeep.catalogue import Balance, Catalogue, ComparedBackup, Damage, Progress, Run, Sample, StoredAlarm, VerifiedBackup
from btrkeep.catalogue.dashboard_copy import report_problem
from btrkeep.config import HostConfig, Window
from btrkeep.config.config_model import Config
from btrkeep.config.published import publish
from btrkeep.config.settings import PoolSettings
from btrkeep.config.values import parse_window
from btrkeep.decisions.findings import FACT, Finding, PoolVerdict, StoredVerdict, as_text
from btrkeep.decisions.schedule import SCHEDULE_FACT, ScheduleVerdict, schedule_text
from btrkeep.serving.viewer import Viewer
from tests.web.made import BERLIN, DAY, EVENING, FILESYSTEM, HOUR, ME, MY_START, NOW, backup, client, run, write
from web.dashboard_settings import Settings
from web.health import metrics_text
from web.hosts.data import Query, host_list
from web.overview import overview
from web.source import Caches, RequestContext

WINDOW = parse_window("22:00-06:00")
MARKUP = "<script>alert(1)</script>\x1b[2J\u202e"


@pytest.fixture(autouse=True)
def _morning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestContext, "now", NOW)


def host(name: str, window: Window | None = WINDOW, **more: object) -> HostConfig:
    return HostConfig(name, address=f"root@{name}", paths=("/etc",), window=window, **more)  # type: ignore[arg-type]


def text_of(page: str) -> str:
    """Returns the text of a page, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.partition('id="main"')[2]).split())


def test_without_any_host_it_says_how_to_begin(tmp_path: Path) -> None:
    write(tmp_path / "state").close()
    page = client(tmp_path / "state").get("/")
    assert page.status_code == 200
    assert "No host yet" in page.text
    assert "backupd host add" in page.text


def test_before_the_first_night_it_says_when_that_begins(tmp_path: Path) -> None:
    verdict = ScheduleVerdict(first=NOW + timedelta(hours=13), starters=("btrkeep-backup@main.timer",))
    catalogue = write(tmp_path / "state", [host("web1")])
    catalogue.set_fact(SCHEDULE_FACT, schedule_text(verdict, NOW))
    catalogue.close()
    words = text_of(client(tmp_path / "state").get("/").text)
    assert "No night yet." in words
    assert "The next run with a due host begins about 22:00 ( in 13 hours ): btrkeep-backup@main.timer starts it." in words
    assert "not tried" not in words
    assert "Needs attention" not in words
    assert "No backup, verification, expiry or balance is running. Jobs has restores" in words


@pytest.mark.slow
def test_a_viewer_who_is_limited_to_hosts_reads_nothing_of_what_starts_runs(tmp_path: Path) -> None:
    verdict = ScheduleVerdict(first=NOW + timedelta(hours=13), starters=("/etc/cron.d/customer-b", "btrkeep-backup@main.timer"))
    catalogue = write(tmp_path / "state", [host("web1"), host("customer-b")])
    catalogue.set_fact(SCHEDULE_FACT, schedule_text(verdict, NOW))
    catalogue.set_fact(FACT, as_text(StoredVerdict(NOW - 3 * HOUR, PoolVerdict(()), NOW - 5 * HOUR)))
    catalogue.close()
    page = text_of(client(tmp_path / "state", hosts=("web1",)).get("/").text)
    assert "No night yet." in page
    assert "alarms not checked in the last hour : the state of the pool and of its alarms is unknown now since 3 hours" in page
    for words in ("customer-b", "cron", "begins about", "systemctl", "backupd check"):
        assert words not in page
    assert "/etc/cron.d/customer-b" in text_of(client(tmp_path / "state").get("/").text)


@pytest.mark.parametrize(
    ("verdict", "looked", "sentence"),
    [
        (ScheduleVerdict(missed=("web1",)), NOW, "Nothing starts backups automatically"),
        (ScheduleVerdict(by_hand=True), NOW, "Nothing starts backups automatically"),
        (ScheduleVerdict(unknown="systemctl: timed out"), NOW, "It is unknown what starts the next run"),
        (ScheduleVerdict(first=NOW + HOUR, starters=("a.timer",)), NOW - 2 * HOUR, "It is unknown what starts the next run"),
        (None, NOW, "It is unknown what starts the next run"),
    ],
)
def test_it_invents_no_first_night(tmp_path: Path, verdict: ScheduleVerdict | None, looked: datetime, sentence: str) -> None:
    catalogue = write(tmp_path / "state", [host("web1")])
    if verdict:
        catalogue.set_fact(SCHEDULE_FACT, schedule_text(verdict, looked))
    catalogue.close()
    words = text_of(client(tmp_path / "state").get("/").text)
    assert sentence in words
    assert "begins about" not in words


def installed_this_morning(state: Path, names: Sequence[str], runs: Sequence[Run] = ()) -> None:
    """Makes hosts that were configured an hour ago, and their runs since."""
    write(state, [], [], []).close()
    with Catalogue.open(state) as catalogue:
        settings = PoolSettings(Path("/srv/backup"), state, zone=BERLIN)
        config = Config(Path("/etc/btrkeep/main.toml"), "main", settings, hosts={name: host(name) for name in names})
        publish(config, catalogue, rehearsal=False, filesystem=FILESYSTEM, now=NOW - HOUR)
        catalogue.know_since(NOW - HOUR)
        for run in runs:
            catalogue.put_backup(backup(run.host, run.started))
        add_runs(catalogue, runs)


def test_on_the_first_day_what_was_run_by_hand_is_told_and_no_night_before(tmp_path: Path) -> None:
    runs = [run(name, NOW - HOUR / 2, night=False) for name in ("web1", "web2")]
    installed_this_morning(tmp_path / "state", ["web1", "web2", "web3"], runs)
    page = client(tmp_path / "state")
    words = text_of(page.get("/").text)
    assert "Manual runs Sat 21 Nov 2 of 2 hosts complete between 08:30 and 08:40." in words
    assert "not tried" not in words
    assert "Last night" not in words
    assert "A night is the 24 hours from 22:00" in words
    assert "No night yet. It is unknown what starts the next run" in words
    strips = re.findall(r'aria-label="([^"]*night[^"]*)"', page.get("/hosts?sort=host").text)
    assert strips == ["the only night so far: 1 complete"] * 2 + ["no night yet"]


def test_after_a_rebuild_there_is_no_night_without_a_run_but_what_the_backups_tell(tmp_path: Path) -> None:
    evenings = [EVENING, EVENING - 2 * DAY, EVENING - 3 * DAY]
    catalogue = write(tmp_path / "state", [host("web1")])
    catalogue.know_since(NOW - HOUR / 2)
    catalogue.replace_backups("pool", [backup("web1", evening) for evening in evenings])
    catalogue.close()
    page = client(tmp_path / "state")
    assert 'aria-label="all 4 nights: 3 complete, 1 not known"' in page.get("/hosts").text
    assert "1 of 1 host complete between 22:00 and 22:10" in text_of(page.get("/").text)


def test_after_a_rebuild_on_the_first_day_no_night_is_told_of_that_never_was(tmp_path: Path) -> None:
    """It is unknown whether web3, which has no backup, existed in the night."""
    catalogue = write(tmp_path / "state", [host(name) for name in ("web1", "web2", "web3")])
    catalogue.know_since(NOW - HOUR / 6)
    catalogue.replace_backups("pool", [backup(name, NOW - HOUR / 2) for name in ("web1", "web2")])
    catalogue.close()
    words = text_of(client(tmp_path / "state").get("/").text)
    assert "Manual runs Sat 21 Nov 2 of 2 hosts complete between 08:30 and 08:40." in words
    assert "Last night" not in words


def test_a_night_is_named_by_both_its_dates_also_on_the_day_on_which_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a window a night begins at noon; here it is one o'clock."""
    monkeypatch.setattr(RequestContext, "now", NOW + 4 * HOUR)
    write(tmp_path / "state", [host("web1", window=None)], [], [run("web1", NOW + 3.5 * HOUR)]).close()
    words = text_of(client(tmp_path / "state").get("/").text)
    assert "Night of 21 to 22 November 1 of 1 host complete between 12:30 and 12:40." in words
    assert "Last night" not in words


@pytest.mark.slow
def test_what_makes_the_catalogue_doubtful_stands_on_every_page(tmp_path: Path) -> None:
    catalogue = write(tmp_path / "state", [host("web1")])
    page = client(tmp_path / "state")
    assert "backupd rebuild" not in page.get("/").text
    catalogue.set_fact("lost", "1")
    catalogue.set_fact("clock_doubt", "the clock went <b>")
    for path in ("/", "/hosts", "/hosts/web1", "/log", "/jobs", "/pool"):
        output = page.get(path).text
        assert "<code>backupd rebuild</code>" in output, path
        assert "The clock may be wrong: the clock went &lt;b&gt;." in output, path
    catalogue.close()


def test_what_is_stamped_in_the_future_was_not_and_is_not_to_come(tmp_path: Path) -> None:
    ahead = NOW + 1800 * DAY
    runs = [run("web1", EVENING), run("web1", ahead), run("web1", NOW - HOUR, finished=NOW - 2 * HOUR)]
    catalogue = write(tmp_path / "state", [host("web1")], [backup("web1", EVENING), backup("web1", ahead)], runs)
    catalogue.put_alarms([alarm("failure", "host web1", "web1: failed", since=ahead)])
    catalogue.close()
    page = client(tmp_path / "state")
    for path in ("/", "/hosts", "/hosts/web1", "/log", "/jobs"):
        text = page.get(path).text
        assert not re.search(r"in [\d,]+ days", text), path
        assert not re.search(r"-\d[\d.]*(s|m|h|d)\b", text_of(text)), path
    assert "1,800 days ahead of the clock" in page.get("/hosts/web1").text


def test_the_night_is_one_sentence_with_links_and_the_counts_lead_to_the_hosts(tmp_path: Path) -> None:
    names = ["db1", "web1", "web2"]
    backups = [backup(name, EVENING) for name in ("web1", "web2")] + [backup("db1", EVENING - 3 * DAY)]
    runs = [run("db1", EVENING, "failed"), run("web1", EVENING), run("web2", EVENING + timedelta(hours=5))]
    write(tmp_path / "state", [host(name) for name in names], backups, runs).close()
    page = client(tmp_path / "state").get("/").text
    assert "2 of 3 hosts complete between 22:00 and 03:10; 1 failed : db1 ." in text_of(page)
    assert '<a href="/hosts/db1">db1</a>' in page
    for state, count in (("ok", 2), ("failing", 1), ("late", 0), ("suspect", 0), ("never", 0)):
        assert re.search(rf'<a href="/hosts\?state={state}"><b>{count}</b>', page), state


@pytest.mark.parametrize(("poor", "tone"), [(0, "good"), (1, "warning"), (3, "bad")])
def test_a_finished_night_has_its_numbers_in_the_colour_of_its_level(tmp_path: Path, poor: int, tone: str) -> None:
    names = [f"h{number:02}" for number in range(20)]
    runs = [run(name, EVENING, "failed" if number < poor else "complete") for number, name in enumerate(names)]
    backups = [backup(name, EVENING) for name in names[poor:]] + [backup(name, EVENING - DAY) for name in names[:poor]]
    write(tmp_path / "state", [host(name) for name in names], backups, runs).close()
    web = client(tmp_path / "state")
    assert f'<span class="state state-{tone}">{20 - poor} of 20 hosts complete</span> between 22:00' in web.get("/").text
    (night,) = json.loads(web.get("/api/v1/jobs?days=366&kind=night").text)["jobs"]
    assert night["state"] == {"good": "complete", "warning": "mostly", "bad": "failed"}[tone]


@pytest.mark.slow
def test_who_sees_some_hosts_only_is_told_of_no_other(tmp_path: Path) -> None:
    names = ["mine1", "mine2", "secret1"]
    runs = [run("mine1", EVENING), run("mine2", EVENING), run("secret1", EVENING, "failed")]
    catalogue = write(tmp_path / "state", [host(name) for name in names], [backup(name, EVENING) for name in names[:2]], runs)
    catalogue.put_alarms([alarm("failure", "host secret1", "secret1: failed"), alarm("room", "used", "the pool is full")])
    began = catalogue.start_run("secret1", NOW, ME, MY_START, night=False)
    catalogue.put_progress(progress("secret1", began))
    catalogue.add_sample(FILESYSTEM, lambda _: sample())
    catalogue.close()
    limited = client(tmp_path / "state", "viewer", ("mine*",))
    pages = [limited.get(path).text for path in ("/", "/overview/night", "/overview/running")]
    assert "2 of 2 hosts complete" in text_of(pages[0])
    for page in pages:
        assert "secret" not in page
        assert "the pool is full" not in page
        assert "TiB" not in page


@pytest.mark.slow
def test_one_sentence_tells_when_the_hosts_were_verified_and_only_of_those_that_one_may_see(tmp_path: Path) -> None:
    names = ["mine1", "mine2", "secret1"]
    state = tmp_path / "state"
    backups = [backup(name, EVENING - 9 * DAY) for name in names]
    catalogue = write(state, [host(name) for name in names], backups, [run("mine1", EVENING)])
    assert "Verified:" not in text_of(client(state).get("/").text)
    name, read = backups[0].name or "", NOW - 2 * DAY
    catalogue.put_verifications([VerifiedBackup(host, name, read, read, 7, 0, read) for host in ("mine1", "mine2")])
    catalogue.put_comparisons([ComparedBackup("secret1", name, NOW, 5, 5, 0, 0)])
    catalogue.put_damages([Damage("secret1", name, "/etc/passwd", 0, 0, "verify", NOW)])
    catalogue.put_damages([Damage("secret1", name, f"/srv/{number}", 0, 0, "verify", NOW, "no copy") for number in range(2)])
    catalogue.close()
    everything = "Verified: data of 2 of 3 hosts was read within the last 2d, of 1 host never."
    assert everything in text_of(client(state).get("/").text)
    assert "1 backup damaged : on 1 host secret1" in text_of(client(state).get("/").text)
    page = text_of(client(state, "viewer", ("mine*",)).get("/").text)
    assert "Verified: data of every host was read within the last 2d." in page
    page = client(state).get("/hosts/secret1").text
    assert "damaged: /etc/passwd; 5 files equal when compared with the host on" in page
    assert (
        "1 file is damaged, in 1 backup: /etc/passwd . To list what can be repaired: backupd repair secret1 --dry-run"
        in text_of(page)
    )
    assert "damaged" not in text_of(client(state).get("/hosts/mine1").text)


def test_the_page_of_a_host_names_the_first_of_many_damaged_files_and_counts_all(tmp_path: Path) -> None:
    both = [backup("web1", EVENING), backup("web1", EVENING - DAY)]
    catalogue = write(tmp_path, [host("web1")], both, [run("web1", EVENING)])
    names = [backup.name or "" for backup in both]
    catalogue.put_damages([Damage("web1", names[0], f"/srv/{number:03}\x1b", 0, 9, "scrub", NOW) for number in range(200)])
    catalogue.put_damages([Damage("web1", names[1], "/srv/000\x1b", start, 9, "scrub", NOW) for start in (0, 4096)])
    catalogue.close()
    page = text_of(client(tmp_path).get("/hosts/web1").text)
    assert "200 files are damaged, in 2 backups: /srv/000\\x1b , /srv/001\\x1b , " in page
    assert "/srv/004\\x1b and 195 more" in page
    assert "/srv/005" not in page


def test_what_is_kept_for_one_is_not_shown_to_another(tmp_path: Path) -> None:
    names = ["mine1", "secret1"]
    runs = [run("mine1", EVENING), run("secret1", EVENING, "failed")]
    write(tmp_path, [host(name) for name in names], [backup("mine1", EVENING)], runs).close()
    sleep(0.1)  # a file written just now is not cached
    kept, settings = Caches(), Settings("main", tmp_path, tmp_path, tmp_path)
    everything, mine = Viewer("olga", "operator"), Viewer("carol", "viewer", ("mine*",))
    for who, hosts in ((everything, 2), (mine, 1), (everything, 2)):
        source = RequestContext(settings, kept)
        (night,) = overview(source, who).nights
        assert night.expected == hosts
        assert host_list(source, who, Query()).total == hosts
        source.close()


def progress(name: str, run_id: int, **more: object) -> Progress:
    values = {"path": "/srv", "files_done": 50, "files_total": 200, "bytes": 3 << 30, "rate": 12e6, "share": 0.25, "updated": NOW}
    return Progress(name, run_id, ME, MY_START, **{**values, **more})  # type: ignore[arg-type]


def alarm(name: str, subject: str, text: str, **more: object) -> StoredAlarm:
    values = {"grade": 0, "since": NOW - DAY, "times": 1, "told": NOW - DAY, "recovered": None, "cleared": None}
    return StoredAlarm(name, subject, text, **{**values, **more})  # type: ignore[arg-type]


def sample(**more: object) -> Sample:
    values = {"size": 10 << 40, "allocated": 8 << 40, "used": 6 << 40, "orphans": 3}
    rest = {"score": None, "scored": None, "options": "", "activity": "", "seconds": 0.0, "read": 0, "written": 0}
    peaks = {"peak_read": 0.0, "peak_written": 0.0, "pressure": {}}
    return Sample(FILESYSTEM, NOW, "raw", spaces={}, devices={}, **{**values, **rest, **peaks, **more})  # type: ignore[arg-type]


def test_what_runs_is_shown_with_how_far_it_is(tmp_path: Path) -> None:
    catalogue = write(tmp_path / "state", [host("web1")])
    began = catalogue.start_run("web1", NOW - timedelta(minutes=10), ME, MY_START, night=True)
    catalogue.put_progress(progress("web1", began))
    catalogue.close()
    words = text_of('id="main"' + client(tmp_path / "state").get("/overview/running").text)
    assert "25% of the files, 50 files, 3.00 GiB, 11.4 MiB/s, since 08:50" in words, "without earlier runs no time is known"


def test_a_row_whose_process_is_gone_does_not_run(tmp_path: Path) -> None:
    catalogue = write(tmp_path / "state", [host("web1")])
    began = catalogue.start_run("web1", NOW, ME, "1", night=True)
    catalogue.put_progress(replace(progress("web1", began), pid_started="1"))
    catalogue.start_expiry(NOW, ME, "1", planned=10)
    catalogue.close()
    page = client(tmp_path / "state").get("/overview/running").text
    assert "No backup, verification, expiry or balance is running." in page
    assert "Nothing is running" not in page  # a restore may be: only the root service knows


def test_an_expiry_and_a_balance_in_progress_are_shown(tmp_path: Path) -> None:
    catalogue = write(tmp_path / "state", [host("web1")])
    catalogue.start_expiry(NOW, ME, MY_START, planned=2500, deleted=1000, waiting=42, rate=0.5, eta=3000.0, updated=NOW)
    balance = catalogue.start_balance(FILESYSTEM, "/srv", NOW, ME, MY_START, policy="benefit", budget=10 << 30)
    catalogue.update_balance(balance, block_groups=3, moved=2 << 30, current=1234567, updated=NOW)
    assert isinstance(catalogue.unfinished_balances()[0], Balance)
    catalogue.close()
    words = text_of('id="main"' + client(tmp_path / "state").get("/overview/running").text)
    assert "1,000 of 2,500 backups deleted, 30.0 a minute, about 50m left; 42 wait for the kernel's cleaner" in words
    assert "3 block groups, 2.00 GiB of 10 GiB moved; now at vaddr 1234567" in words


def numbers_of(state: Path) -> str:
    """Returns the metrics that a monitor would read."""
    source = RequestContext(Settings("main", state, state, state), Caches())
    try:
        return metrics_text(source).decode()
    finally:
        source.close()


FULL = Finding("room", "error", "no further transfer starts: <b>full", "`backupd expire` deletes backups that are due")


@pytest.mark.slow
def test_what_is_wrong_with_the_pool_is_on_the_page_and_in_the_metrics(tmp_path: Path) -> None:
    catalogue = write(tmp_path / "state", [host("web1")])
    page = client(tmp_path / "state")
    assert "no further transfer starts" not in page.get("/").text
    catalogue.set_fact(FACT, as_text(StoredVerdict(NOW - timedelta(minutes=4), PoolVerdict((FULL,), ("missing-device",)))))
    sleep(1.1)  # a page is kept for a second
    words = text_of(page.get("/").text)
    assert "pool almost full no further transfer starts: &lt;b&gt;full backupd expire deletes backups that are due" in words
    assert "1 check of the pool not made missing-device" in words
    limited = text_of(client(tmp_path / "state", hosts=("web1",)).get("/").text)
    assert "no transfer starts" not in limited
    catalogue.close()
    numbers = numbers_of(tmp_path / "state")
    assert 'btrkeep_pool_health{check="room",pool="main"} 2.0' in numbers
    assert 'btrkeep_pool_health{check="read-only",pool="main"} 0.0' in numbers
    assert 'check="missing-device"' not in numbers


@pytest.mark.parametrize("looked", [None, NOW - timedelta(hours=2), NOW + timedelta(days=300)])
def test_alarms_that_were_not_checked_lately_are_not_shown_as_none(tmp_path: Path, looked: datetime | None) -> None:
    catalogue = write(tmp_path / "state", [host("web1")])
    catalogue.set_fact(FACT, as_text(StoredVerdict(looked, PoolVerdict())) if looked else None)
    catalogue.close()
    words = text_of(client(tmp_path / "state").get("/").text)
    assert f"{'alarms not checked in the last hour' if looked else 'alarms never checked'} : the state of the pool" in words
    assert "All is well" not in words
    numbers = numbers_of(tmp_path / "state")
    assert "btrkeep_alarms{" not in numbers
    assert "btrkeep_pool_health{" not in numbers
    assert ("btrkeep_alarms_timestamp_seconds{" in numbers) == (looked is not None)


def test_the_pool_is_told_in_numbers_and_without_a_forecast_why_not(tmp_path: Path) -> None:
    catalogue = write(tmp_path / "state", [host("web1")])
    catalogue.add_sample(FILESYSTEM, lambda _: sample())
    catalogue.close()
    words = text_of(client(tmp_path / "state").get("/").text)
    assert "used 6.00 TiB 60%" in words
    assert "allocated, not used 2.00 TiB 20%" in words
    assert "unallocated 2.00 TiB 20%" in words
    assert "No forecast yet:" in words
    assert "3 deleted backups wait for the kernel" in words


@pytest.mark.slow
def test_text_of_hosts_is_text_and_nothing_else(tmp_path: Path) -> None:
    failed = run("web1", EVENING, "failed", error=MARKUP, last_lines=(MARKUP,))
    catalogue = write(tmp_path / "state", [host("web1")], [backup("web1", EVENING - 3 * DAY)], [failed])
    catalogue.put_alarms([alarm("failure", "host web1", f"web1: {MARKUP}"), alarm("failure", f"unit {MARKUP}", MARKUP)])
    began = catalogue.start_run("web1", NOW, ME, MY_START, night=True)
    catalogue.put_progress(progress("web1", began, path=MARKUP))
    catalogue.close()
    logged_in = client(tmp_path / "state")
    for path in ("/", "/overview/running", "/overview/night", "/hosts", "/hosts/web1", "/hosts/web1/running"):
        page = logged_in.get(path).text
        assert "<script>alert" not in page, path
        assert "\x1b" not in page, path
        assert "\u202e" not in page, path
        assert "style=" not in page, path
        assert not re.search(r"\son\w+=", page), path
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J\\u202e" in logged_in.get("/hosts/web1").text


def test_it_is_not_shown_without_a_login(tmp_path: Path) -> None:
    write(tmp_path / "state", [host("web1")]).close()
    stranger = client(tmp_path / "state").application.test_client()
    for path in ("/", "/hosts", "/hosts/web1", "/hosts/web1/run", "/overview/night", "/overview/running"):
        answer = stranger.get(path)
        assert answer.status_code == 303, path
        assert answer.location.startswith("/login"), path
    assert stranger.get("/overview/running", headers={"X-Live": "1"}).status_code == 401


def test_what_is_unknown_and_mistakes_of_the_configuration_stand_above_the_night(tmp_path: Path) -> None:
    hosts = [host("web1"), replace(host("web2"), fault="main.toml:3: x")]
    catalogue = write(tmp_path / "state", hosts, [backup("web1", EVENING)], [run("web1", EVENING)])
    fault = Finding("unusable", "error", "/srv/backup is not mounted", unusable=True)
    words = "the configuration is wrong: main.toml:3: x"
    catalogue.put_alarms([StoredAlarm("failure", "configuration", words, 1, NOW - HOUR, 1, NOW, None, None)])
    catalogue.set_fact(FACT, as_text(StoredVerdict(NOW - 3 * HOUR, PoolVerdict((fault,)), NOW - 5 * HOUR)))
    catalogue.close()
    shown = text_of(client(tmp_path / "state").get("/").text)
    problems = ("/srv/backup is not mounted", "the configuration is wrong", "alarms not checked in the last hour : the state of")
    places = [shown.index(words, shown.index("Problems")) for words in (*problems, "1 of 2 hosts complete")]
    assert places == sorted(places)
    assert "not mounted since 5 hours" in shown
    assert "The pool has problems" in text_of(client(tmp_path / "state").get("/pool").text)
    assert "1 failing" in shown
    limited = text_of(client(tmp_path / "state", hosts=("web1",)).get("/").text)
    assert "the pool cannot be read" in limited
    assert "/srv/backup" not in limited
    assert "main.toml" not in limited


def test_a_catalogue_that_cannot_be_used_stands_above_the_night(tmp_path: Path) -> None:
    write(tmp_path / "state", [host("web1")], [backup("web1", EVENING)], [run("web1", EVENING)]).close()
    visitors = client(tmp_path / "state"), client(tmp_path / "state", hosts=("web1",))
    visitors[0].get("/")
    (tmp_path / "state" / "catalogue.sqlite").write_bytes(b"?" * 8192)
    report_problem(tmp_path / "state", "the catalogue /var/lib/btrkeep/main/catalogue.sqlite is damaged", NOW - HOUR)
    sleep(1.1)  # a page is kept for a second
    shown, limited = (text_of(visitor.get("/").text) for visitor in visitors)
    assert "this page is not up to date: the catalogue /var/lib/btrkeep/main/catalogue.sqlite is damaged" in shown
    assert "backupd doctor" in shown
    assert "this page is not up to date" in limited
    assert "/var/lib" not in limited


def test_with_a_recent_look_and_nothing_wrong_nothing_stands_above_the_night(tmp_path: Path) -> None:
    write(tmp_path / "state", [host("web1")], [backup("web1", EVENING)], [run("web1", EVENING)]).close()
    words = text_of(client(tmp_path / "state").get("/").text)
    assert "All is well" in words
    assert "Problems" not in words


def test_a_question_in_a_mistake_has_no_full_stop_behind_it(tmp_path: Path) -> None:
    catalogue = write(tmp_path / "state", [host("web1")], [backup("web1", EVENING)], [run("web1", EVENING)])
    words = 'the configuration is wrong: main.toml:3: dayly: unknown key; did you mean "daily"?'
    catalogue.put_alarms([StoredAlarm("failure", "configuration", words, 1, NOW - HOUR, 1, NOW, None, None)])
    catalogue.close()
    shown = text_of(client(tmp_path / "state").get("/").text)
    assert "unknown key; did you mean" in shown
    assert "?." not in shown
