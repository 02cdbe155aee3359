"""The verdict on the overview, and hosts with damage: the first line alone names everything that needs attention."""

import json
import re
from pathlib import Path

import pytest

from btrkeep.catalogue import Catalogue, Damage
from btrkeep.decisions.findings import FACT, Finding, PoolVerdict, StoredVerdict, as_text
from tests.web.made import EVENING, NOW, backup, client, write
from tests.web.test_overview_page import host, text_of
from web.dashboard_settings import Settings
from web.health import metrics_text
from web.source import Caches, RequestContext


@pytest.fixture(autouse=True)
def _morning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestContext, "now", NOW)


def checked_now(catalogue: Catalogue, *findings: Finding) -> None:
    catalogue.set_fact(FACT, as_text(StoredVerdict(NOW, PoolVerdict(findings), NOW)))


def icon_of(page: str) -> str:
    (name,) = re.findall(r'<link rel="icon" href="/static/([^"?]*)', page)
    return name


def test_the_page_begins_with_the_verdict_and_its_problems_are_links(tmp_path: Path) -> None:
    catalogue = write(tmp_path / "state", [host("web1"), host("web2"), host("web3", enabled=False)], [backup("web1", EVENING)])
    checked_now(catalogue, Finding("used", "warning", "91.4% of the pool are used"))
    catalogue.replace_backups("pool", [backup("web1", EVENING), backup("web2", EVENING, state="suspect")])
    catalogue.close()
    browser = client(tmp_path / "state")
    page = browser.get("/").text
    sentence = "Needs attention: pool used above its limit , 1 host with a suspect backup checked just now"
    assert f"> Overview {sentence}" in text_of(page)
    assert "<title>Needs attention: pool used above its limit, 1 host" in page
    assert icon_of(page) == icon_of(browser.get("/hosts").text) == "icon-warning.svg"
    assert browser.get(f"/static/{icon_of(page)}").status_code == 200
    for address in re.findall(r'<a href="([^"]*)"', page.partition('class="verdict')[2].partition("</p>")[0]):
        assert browser.get(address).status_code == 200
    assert "web2" in text_of(browser.get("/hosts?state=suspect").text)
    assert json.loads(browser.get("/api/v1/overview").text)["verdict"]["sentence"].startswith("Needs attention: pool used above")
    metrics = metrics_text(RequestContext(Settings("main", tmp_path / "state", tmp_path, tmp_path), Caches())).decode()
    assert re.findall(r'btrkeep_verdict{.*level="(\w+)".*} 1', metrics) == ["warning"], re.findall(".*btrkeep_verdict.*", metrics)


def test_a_viewer_limited_to_hosts_reads_a_verdict_about_these_alone(tmp_path: Path) -> None:
    catalogue = write(tmp_path / "state", [host("web1"), host("web2")], [])
    catalogue.replace_backups("pool", [backup("web1", EVENING), backup("web2", EVENING, state="suspect")])
    checked_now(catalogue, Finding("used", "warning", "91.4% of the pool are used"))
    catalogue.close()
    page = client(tmp_path / "state", hosts=("web1",)).get("/").text
    assert "> Overview All is well" in text_of(page)
    assert icon_of(page) == "icon.svg"


def test_damaged_and_disabled_hosts_have_a_tile_and_a_filter(tmp_path: Path) -> None:
    catalogue = write(tmp_path / "state", [host("web1"), host("web2"), host("web3", enabled=False)], [])
    made = [backup(name, EVENING) for name in ("web1", "web2")]
    catalogue.replace_backups("pool", made)
    catalogue.put_damages([Damage("web1", str(made[0].name), "/etc/passwd", 0, 0, "verify", NOW)])
    checked_now(catalogue)
    catalogue.close()
    browser = client(tmp_path / "state")
    page = browser.get("/").text
    assert "Needs attention: 1 backup damaged" in text_of(page)
    assert "1 damaged 1 disabled 3 in all" in text_of(page)
    for flag, name in (("damaged", "web1"), ("disabled", "web3")):
        words = text_of(browser.get(f"/hosts?state={flag}").text)
        assert [each for each in ("web1", "web2", "web3") if each in words] == [name]
        answer = json.loads(browser.get(f"/api/v1/hosts?state={flag}").text)
        assert [row["host"] for row in answer["rows"]] == [name]
