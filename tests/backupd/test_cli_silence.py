"""`backupd silence` on a real site. Without this, messages about a host in maintenance wake somebody, or a failure is never sent
after the maintenance has ended.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from backupd.cli import group
from btrkeep.errors import UsageError
from tests.beds.nights import Nights
from tests.beds.receivers import Web, web

pytestmark = pytest.mark.btrfs

TOMORROW = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def server() -> Iterator[Web]:
    with web() as result:
        yield result


@pytest.fixture
def site(nights: Nights, server: Web) -> Nights:
    """web1 is failing, web2 is well; the webhook is `server`."""
    (nights.source / "file").write_text("x")
    nights.host("web1", nights.source)
    nights.host("web2", nights.source)
    nights.night("web1")
    nights.host("web1", nights.source, nights.top / "gone")
    nights.tables["notify"] = {"urls": [f"json://127.0.0.1:{server.port}"], "digest": "none"}
    nights.write()
    return nights


def asked(nights: Nights, *words: str) -> Any:
    done = CliRunner().invoke(group, ["--config", str(nights.config), *words, "--json"], standalone_mode=False)
    if done.exception:
        raise done.exception
    return json.loads(done.stdout)


def passes(nights: Nights) -> None:
    """Lets the date of each silence pass."""
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as connection, connection:
        connection.execute("UPDATE silence SET until = '2026-01-01T00:00:00Z'")


def test_nothing_is_sent_about_a_silenced_host_and_what_is_still_there_is_sent_when_the_date_has_passed(
    site: Nights, server: Web
) -> None:
    site.night("web1")
    asked(site, "silence", "web1", "--until", TOMORROW, "--why", "new disk")
    assert asked(site, "notify")["messages"] == []
    status = asked(site, "status")
    assert status["verdict"]["level"] == "ok"
    assert status["verdict"]["sentence"] == "Nothing else needs attention: 1 silenced"
    (silenced,) = status["silenced"]
    assert (silenced["name"], silenced["why"], silenced["disabled"]) == ("web1", "new disk", False)
    assert "silenced: web1: silenced until" in site.backupd("status", check=False).stdout
    assert "new disk" in site.backupd("status", "web1", check=False).stdout
    assert "silence" in site.backupd("log", "--actions").stdout
    passes(site)
    assert len(asked(site, "notify")["messages"]) == 1
    assert asked(site, "status")["verdict"]["sentence"] == "Needs attention: 1 host failing"
    assert asked(site, "silence") == asked(site, "status")["silenced"] == []
    assert len(server.json()) == 1


def test_the_end_of_a_sent_failure_is_sent_after_the_silence(site: Nights, server: Web) -> None:
    site.night("web1")
    assert len(asked(site, "notify")["messages"]) == 1
    asked(site, "silence", "web*", "--until", TOMORROW)
    site.host("web1", site.source)
    site.night("web1")
    assert asked(site, "notify")["messages"] == []
    asked(site, "silence", "web1", "--end")
    assert [row["subject"] for row in asked(site, "notify")["recoveries"]] == ["host web1"]
    assert [message["type"] for message in server.json()] == ["failure", "success"]


def test_a_disabled_host_is_skipped_by_nights_until_the_date_and_runs_when_it_is_named(site: Nights) -> None:
    asked(site, "silence", "web2", "--until", TOMORROW, "--why", "moves", "--disable")
    entries = asked(site, "run", "--dry-run", "--all")
    assert sorted(entry["host"] for entry in entries) == ["web1", "web2"]
    planned = {entry["host"]: entry for entry in entries}
    assert planned["web1"]["runs"]
    assert not planned["web2"]["runs"]
    assert "disabled until" in planned["web2"]["reason"]
    assert "moves" in planned["web2"]["reason"]
    assert {entry["host"]: entry["runs"] for entry in asked(site, "run", "web2", "--dry-run")} == {"web2": True}
    passes(site)
    assert all(entry["runs"] for entry in asked(site, "run", "--dry-run", "--all"))


@pytest.mark.parametrize(
    "words",
    [
        ("web1",),
        ("web1", "--until", "2026-01-01"),
        ("nobody", "--until", TOMORROW),
        ("--until", TOMORROW),
        ("web1", "--until", TOMORROW, "--end"),
    ],
)
def test_a_silence_needs_a_host_and_an_end_in_the_future(site: Nights, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        asked(site, "silence", *words)
    assert asked(site, "silence") == []
