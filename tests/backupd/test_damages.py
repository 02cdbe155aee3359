"""damaged.json: all entries are read back, however many there are, and foreign content stops nothing."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.repo import pool_files
from backupd.repo.pool_files import DAMAGED, LARGEST
from backupd.repo.verification_files import enter_damages, read_damaged, replace_damaged
from btrkeep.catalogue import Catalogue, Damage
from btrkeep.pool.marker import Pool
from btrkeep.units import backup_name

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    result = Pool(tmp_path, "1", "11111111-2222-4333-8444-555555555555", rehearsal=False)
    result.host("web1").mkdir(parents=True)
    return result


def backups(pool: Pool, count: int) -> list[str]:
    names = [backup_name(NOW - timedelta(days=day)) for day in range(count)]
    for name in names:
        (pool.host("web1") / name).mkdir()
    return names


TABLE, LONG = "/var/lib/postgresql/16/main/base/16384/table-{:06}.dat", "/" + "\udce9" * 4000 + "{}"


@pytest.mark.parametrize(
    ("count", "files", "path", "largest"),
    [
        pytest.param(100, 1000, TABLE, LARGEST, marks=pytest.mark.slow),
        pytest.param(800, 1, LONG, LARGEST, marks=pytest.mark.slow),
        pytest.param(20, 300, TABLE, LARGEST // 16, marks=pytest.mark.slow, id="a twentieth of a pool"),
        pytest.param(50, 1, LONG, LARGEST // 16, marks=pytest.mark.slow, id="long paths"),
    ],
)
def test_every_damaged_backup_is_read_again_however_much_is_damaged(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, count: int, files: int, path: str, largest: int
) -> None:
    monkeypatch.setattr(pool_files, "LARGEST", largest)
    names = backups(pool, count)
    damages = [Damage("web1", name, path.format(number), 0, 4096, "scrub", NOW) for name in names for number in range(files)]
    with Catalogue.open(pool.path) as catalogue:
        enter_damages(pool, catalogue, ["web1"], damages)
        assert len(catalogue.damages("web1")) == len(damages)
    again = read_damaged(pool.host("web1"), "web1")
    assert not set(damages) <= set(again)  # there is no room for all
    assert {damage.name for damage in again} == set(names)
    assert {damage.name for damage in again if damage.path == "/"} == set(names)  # no repair of the files that are named is all


@pytest.mark.slow
def test_all_places_of_a_backup_come_back_while_there_is_room(pool: Pool) -> None:
    (name,) = backups(pool, 1)
    damages = {Damage("web1", name, f"/file-{number:05}", 0, 4096, "scrub", NOW) for number in range(10_001)}
    with Catalogue.open(pool.path) as catalogue:
        enter_damages(pool, catalogue, ["web1"], damages)
        enter_damages(pool, catalogue, ["web1"], [])
    assert set(read_damaged(pool.host("web1"), "web1")) == damages


@pytest.mark.parametrize("path", ["/\ud800", 5, None])
def test_a_path_that_no_file_can_have_stops_nothing(pool: Pool, path: Any) -> None:
    (name,) = backups(pool, 1)
    place = {"path": path, "start": 0, "length": 1, "found_by": "scrub", "found_at": "2026-11-20T22:00:00Z"}
    (pool.host("web1") / DAMAGED).write_text(json.dumps({"format": 1, "backups": {name: [place]}}))
    damage = Damage("web1", name, "/file", 0, 4096, "scrub", NOW)
    with Catalogue.open(pool.path) as catalogue:
        enter_damages(pool, catalogue, ["web1"], [damage])
    assert damage in read_damaged(pool.host("web1"), "web1")


def test_what_a_later_version_wrote_is_left_as_it_is(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    (name,) = backups(pool, 1)
    path = pool.host("web1") / DAMAGED
    path.write_text(later := json.dumps({"format": 2, "backups": {name: {"places": ["of which we know nothing"]}}}))
    with Catalogue.open(pool.path) as catalogue:
        enter_damages(pool, catalogue, ["web1"], [Damage("web1", name, "/file", 0, 4096, "scrub", NOW)])
        assert [damage.path for damage in catalogue.damages("web1")] == ["/file"]
    replace_damaged(pool, "web1", name, ())
    assert path.read_text() == later
    assert "later version" in caplog.text
