"""The list of problems on the overview: what it has, in which order, and whether it agrees with the verdict."""

import html
import json
import re
from pathlib import Path
from time import sleep

import pytest

from btrkeep.backup_states import Cause, CauseCode
from btrkeep.config.config_model import Config
from btrkeep.config.published import publish
from btrkeep.config.settings import NotifySettings, PoolSettings
from btrkeep.config.values import Url, parse_window
from btrkeep.decisions.findings import FACT, Finding, PoolVerdict, StoredVerdict, as_text
from tests.beds.copied import copied
from tests.web.made import BERLIN, DAY, EVENING, FILESYSTEM, NOW, backup, client, run, write
from tests.web.test_overview_page import alarm, host, text_of
from web.source import RequestContext

WINDOW = parse_window("22:00-06:00")
MARKUP = "<script>alert(1)</script>\x1b[2J\u202e"


@pytest.fixture(autouse=True)
def _morning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestContext, "now", NOW)


def test_problems_are_listed_worst_first_with_what_to_do_and_others_are_not(tmp_path: Path) -> None:
    failed = run("web1", EVENING, "failed", error="no route to web1")
    catalogue = write(tmp_path / "state", [host("web1"), host("web9")], [backup("web1", EVENING - DAY)], [failed])
    catalogue.put_alarms(
        [
            alarm("failure", "host web1", "web1: the backup failed: no route"),
            alarm("devices", "device 2", "device 2 has counted 3 read errors", recovered=NOW),
            alarm("silent", "host web9", "web9: no complete backup yet, 2h after the first check", told=None, since=NOW),
            alarm("failure", "unit btrkeep-backup@main.service", "btrkeep-backup@main.service failed: exit-code"),
        ]
    )
    full = Finding("room", "error", "no further transfer starts", "`backupd expire` deletes backups that are due")
    catalogue.set_fact(FACT, as_text(StoredVerdict(NOW, PoolVerdict((full,)), NOW)))
    catalogue.close()
    words = text_of(client(tmp_path / "state").get("/").text)
    assert "1 host failing : no route to * web1 Check the log of its last run. Fix the cause, then run it again." in words
    assert "backupd log web1 since 24 hours ; notified 24 hours ago Run now Open" in words
    assert "journalctl -u btrkeep-backup@main.service" in words
    assert words.index("no further transfer starts") < words.index("no route") < words.index("exit-code")
    assert "device 2" not in words  # it is over
    assert "web9" not in words.partition("Night of")[0]  # it is only waited for yet


def test_a_host_without_its_first_backup_is_a_problem_when_that_is_late(tmp_path: Path) -> None:
    catalogue = write(tmp_path / "state", [host("web1"), host("web9"), host("web10", enabled=False)])
    catalogue.put_alarms([alarm("silent", f"host {name}", f"{name}: no complete backup yet") for name in ("web9", "web10")])
    catalogue.close()
    for hosts in (None, ("web9",)):
        words = text_of(client(tmp_path / "state", hosts=hosts).get("/").text)
        assert "Needs attention: 1 host without a first backup" in words
        assert "1 host without a first backup : no complete backup yet web9" in words


def test_hosts_whose_first_run_failed_are_a_problem_with_its_cause_and_a_button(tmp_path: Path) -> None:
    names, words = ("web8", "web9"), "no route to the host"
    runs = [run(name, EVENING, "failed", error=words) for name in names]
    with write(tmp_path / "state", [host(name) for name in names], (), runs) as catalogue:
        catalogue.put_alarms([alarm("failure", f"host {name}", f"{name}: the backup failed: {words}") for name in names])
    page = client(tmp_path / "state").get("/").text
    assert "All is well" not in page
    assert f"2 hosts without a first backup : {words} web8 , web9" in text_of(page)
    assert ">Run all 2</a>" in page
    assert "Problems 2" in text_of(client(tmp_path / "state").get("/hosts?state=problems").text)


def test_the_lines_of_a_problem_add_up_to_its_number_in_the_verdict(tmp_path: Path) -> None:
    """Hosts that fail for the same reason are one line, whatever else their errors say."""
    hosts, backups, runs = [], [], []
    causes = [
        Cause(CauseCode.RSYNC_FAILED, facts={"exit_cause": "no-route", "exit_code": 255, "line": f"ssh: {number}"})
        for number in range(91)
    ]
    causes += [Cause(CauseCode.UNREADABLE, facts={"missed": number, "below": 0, "files": 99, "limit": 0.1}) for number in range(14)]
    for number, cause in enumerate(causes):
        name = f"h{number:03}"
        hosts.append(host(name))
        backups.append(backup(name, EVENING - DAY))
        runs.append(run(name, EVENING, "failed", error=f"{name} failed", cause=cause))
    write(tmp_path / "state", hosts, backups, runs).close()
    page = client(tmp_path / "state")
    answer = json.loads(page.get("/api/v1/overview").text)
    lines = [(line["kind"], line["count"], line["words"], line["cause"]) for line in answer["problems"]]
    assert lines == [
        ("failing", 91, "91 hosts failing", "there is no route to the host"),
        ("failing", 14, "14 hosts failing", "too many files could not be read or kept"),
    ]
    assert [(problem["kind"], problem["count"]) for problem in answer["verdict"]["problems"]] == [("failing", 105)]
    words = text_of(page.get("/").text)
    assert "h000 , h001 , h002 , h003 , h004 and 86 more" in words
    (address,) = re.findall(r'<a class="button second" href="(/hosts[^"]*kept)"', page.get("/").text)
    assert "14 hosts: too many files could not be read or kept" in text_of(page.get(html.unescape(address)).text)


def test_the_list_names_the_services_that_notified_but_no_address(tmp_path: Path) -> None:
    runs = [run("web1", EVENING, "failed")]
    catalogue = write(tmp_path / "state", [host("web1")], [backup("web1", EVENING - DAY)], runs)
    urls = ("mailto://root:secret@mail.example.org", "ntfy://secret-topic")
    cases = (((), "not notified: no service is configured in [notify]"), (urls, "notified by mail, ntfy 24 hours ago"))
    for services, words in cases:
        catalogue.put_alarms([alarm("failure", "host web1", "web1: failed", told=NOW - DAY if services else None)])
        config = Config(
            Path("/etc/btrkeep/main.toml"),
            "main",
            PoolSettings(Path("/srv/backup"), tmp_path, BERLIN),
            notify=NotifySettings(urls=tuple(map(Url, services))),
            hosts={"web1": host("web1")},
        )
        publish(config, catalogue, rehearsal=False, filesystem=FILESYSTEM)
        copied(tmp_path / "state")
        sleep(1.1)  # a page is kept for a second
        page = client(tmp_path / "state").get("/").text
        assert words in text_of(page)
        assert "secret" not in page
    catalogue.close()
