"""A catalogue with damaged values: a page that fails because of them reports it, and no other error counts as damage."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from btrkeep.config import HostConfig
from tests.web.made import EVENING, backup, client, run, write


@pytest.fixture
def state(tmp_path: Path) -> Path:
    write(tmp_path, [HostConfig("web1")], [backup("web1", EVENING)], [run("web1", EVENING)]).close()
    return tmp_path


def in_database(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            database.execute(statement)


def take_away_a_time(file: Path) -> None:
    """Simulates a damaged database page: a run without its start, which the table does not allow."""
    schema = "UPDATE sqlite_schema SET sql = replace(sql, {}) WHERE name = 'run'"
    in_database(file, schema.format("'started TEXT NOT NULL', 'started TEXT'"))
    in_database(file, "UPDATE run SET started = NULL", schema.format("'started TEXT', 'started TEXT NOT NULL'"))


@pytest.mark.parametrize(("page", "status"), [("/jobs", 500), ("/api/v1/jobs", 503)])
def test_what_damage_brought_about_is_told_as_damage(state: Path, page: str, status: int) -> None:
    take_away_a_time(state / "catalogue.sqlite")
    browser = client(state)
    browser.application.config["PROPAGATE_EXCEPTIONS"] = False  # as in production
    response = browser.get(page)
    assert (response.status_code, "damaged: NULL value in run.started" in response.text) == (status, True), response.text
    assert "backupd rebuild" in response.text


def test_another_fault_is_an_internal_error_when_the_catalogue_is_whole(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("web.jobs.data._of_kind")
    browser = client(state)
    browser.application.config["PROPAGATE_EXCEPTIONS"] = False
    response = browser.get("/jobs")
    assert (response.status_code, "Internal error" in response.text, "damaged" in response.text) == (500, True, False)
