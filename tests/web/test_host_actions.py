"""The real root service does an operator's actions on a host's page; the tests check the pool's files."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.beds.history import every, make_history, notes_of
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from tests.web.made import client, login_of, token

pytestmark = [pytest.mark.btrfs]


@pytest.fixture
def service(shared_btrfs: Path) -> Iterator[tuple[Nights, Service]]:
    nights = Nights(shared_btrfs)
    (nights.source / "file").write_text("text\n")
    nights.host("web1", nights.source)
    with serving(nights.config, "--login", login_of()) as result:
        yield nights, result


def sent(olga: FlaskClient, path: str, **words: str) -> str:
    """Sends the form and returns the next page, which must report that the action is done."""
    csrf = token(olga.get(f"{path}?backup={words.get('backup', '')}").text)
    answer = olga.post(path, data={"csrf_token": csrf, **words})
    assert answer.status_code == 303, answer.text
    return olga.get(answer.location).text


def test_hold_release_and_accept_are_written_in_the_pool(service: tuple[Nights, Service]) -> None:
    nights, result = service
    last = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    first, second, third = make_history(nights, "web1", every(1, 3, last), {2: "suspect"})
    olga = client(nights.state, socket=result.socket)

    page = sent(olga, "/hosts/web1/hold", backup=first, why="the <audit>", until="2040-02-01")
    assert f"{first} of web1 is held." in page
    assert "held until 1 Feb 2040 00:00: the &lt;audit&gt;" in page
    hold = notes_of(nights, "web1")["backups"][first]["hold"]
    assert (hold["until"], hold["why"]) == ("2040-02-01T00:00:00Z", "the <audit> (somebody)")

    sent(olga, "/hosts/web1/release", backup=first)
    assert "hold" not in notes_of(nights, "web1")["backups"].get(first, {})

    assert "state-suspect" in olga.get("/hosts/web1").text
    sent(olga, "/hosts/web1/accept", backup=third, why="moved to web2")
    accepted = notes_of(nights, "web1")["backups"][third]["accepted"]
    assert accepted["why"] == "moved to web2 (somebody)"
    assert {row["name"]: row["state"] for row in nights.listed("web1")} == dict.fromkeys((first, second, third), "complete")


def test_a_reason_may_be_as_long_as_in_the_api_and_a_longer_one_is_refused_not_cut(service: tuple[Nights, Service]) -> None:
    nights, result = service
    (first,) = make_history(nights, "web1", every(1, 1, datetime.now(UTC) - timedelta(hours=3)))
    olga = client(nights.state, socket=result.socket)
    described = maximum_lengths(olga.get("/api/v1/openapi.json").json)
    limits = [part["maxLength"] for part in described if "reason" in part["description"]]
    page = olga.get(f"/hosts/web1/hold?backup={first}").text
    assert f'name="why" maxlength="{limits[0]}"' in page
    form = {"csrf_token": token(page), "backup": first, "why": "y" * (limits[0] + 1)}
    refused = olga.post("/hosts/web1/hold", data=form)
    assert (refused.status_code, f"longer than {limits[0]} characters" in refused.text) == (400, True)
    sent(olga, "/hosts/web1/hold", backup=first, why="x" * limits[0])
    assert notes_of(nights, "web1")["backups"][first]["hold"]["why"] == "x" * limits[0] + " (somebody)"


def maximum_lengths(part: Any) -> Iterator[dict[str, Any]]:
    """Yields the described parts of an OpenAPI document that have a maximum length."""
    if isinstance(part, dict) and {"maxLength", "description"} <= part.keys():
        yield part
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from maximum_lengths(inner)


def test_run_now_makes_a_backup_and_leads_to_its_job(service: tuple[Nights, Service]) -> None:
    nights, result = service
    nights.backupd("check", check=False)  # the configuration is published regardless of its findings
    olga = client(nights.state, socket=result.socket)
    csrf = token(olga.get("/hosts/web1/run").text)
    answer = olga.post("/hosts/web1/run", data={"csrf_token": csrf})
    assert answer.status_code == 303
    assert answer.location.startswith("/jobs/")
    job = answer.location.rsplit("/", 1)[1]
    assert _ended(result, job)["exit"] == 0
    (name,) = nights.names("web1")
    assert (nights.data("web1", nights.source) / "file").read_text() == "text\n"
    assert name in olga.get("/hosts/web1").text
    assert json.loads((nights.backup("web1") / "backup.json").read_text())["state"] == "complete"


def _ended(service: Service, job: str) -> dict[str, Any]:
    import time

    end = time.monotonic() + 60
    while True:
        answer: dict[str, Any] = service.agent().ask("job", job=job)
        if answer["state"] in ("done", "failed"):
            return answer
        assert time.monotonic() < end, answer
        time.sleep(0.1)
