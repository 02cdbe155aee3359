""" "Verified" is true whatever happens between checks: a lost catalogue, or a scrub that did not read everything."""

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backupd.proof.read_errors import record_scrub_damage
from backupd.proof.scrub import ScrubResult
from backupd.repo.pool_context import PoolContext
from btrkeep.catalogue import Catalogue, Damage
from btrkeep.clock import Clock
from btrkeep.config import load
from btrkeep.pool.marker import open_pool
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.watch import checkpoints, killed, rows

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


@pytest.fixture
def nights(shared_btrfs: Path, tmp_path: Path) -> Nights:
    """A host with one backup."""
    nights = Nights(shared_btrfs, "--rehearsal")
    (tmp_path / "file").write_bytes(b"as it was")
    nights.host("web", tmp_path)
    nights.run("web")
    return nights


def test_what_is_verified_while_the_catalogue_knows_no_backup_stops_no_status(nights: Nights) -> None:
    (nights.state / "catalogue.sqlite").unlink()
    nights.backupd("verify", "web")
    assert rows(nights, "select count(*) from verification") == [(1,)]
    done = nights.backupd("status", check=False)
    assert "Traceback" not in done.stderr, done.stderr
    nights.backupd("rebuild")
    assert nights.json("list", "web")[0]["verified"]["state"] == "whole"


def test_a_look_that_came_to_no_file_is_no_look(nights: Nights) -> None:
    """The check was killed, or its hour passed in pauses, every night."""
    nights.tables["verify"] = {"max_age": "10d", "new_files": "none"}
    nights.write()
    later = tuple(("--now", f"{2100 + year}-01-01T00:00:00Z") for year in range(3))
    for now in later[:2]:
        killed(nights, "after", "verifications written", "verify", "web", *now)
        assert rows(nights, "select read from verification") == [(0,)]
        assert nights.json("list", "web", *now)[0]["verified"] is None
        assert nights.json("status", *now)["verification"]["unverified"] == ["web"]
    nights.backupd("verify", "web", *later[0])
    killed(nights, "after", "verifications written", "verify", "web", *later[1])
    (answer,) = nights.json("list", "web", *later[1])
    assert (answer["verified"]["state"], answer["verified"]["at"]) == ("whole", later[0][1])
    assert nights.json("status", *later[1])["verification"]["unverified"] == ["web"]


@pytest.mark.parametrize("kind", ["malloc", "unverified"])
def test_a_scrub_that_could_not_compare_all_takes_back_no_damage(nights: Nights, kind: str) -> None:
    (name,) = nights.names("web")
    now = datetime.now(UTC)
    before = Damage("web", name, "/file", 0, 4096, "scrub", now)
    config = load("main", nights.config)
    with Catalogue.open(nights.state) as catalogue:
        site = PoolContext(config, open_pool(nights.pool), catalogue, Clock(None))
        site.catalogue.put_damages([before])
        done = ScrubResult(
            "finished", False, 1, dict.fromkeys(("uncorrectable", "malloc", "unverified"), 0) | {kind: 1}, 1.0, begun=now
        )
        record_scrub_damage(site, done, now)
        assert [damage.path for damage in site.catalogue.damages()] == ["/file"]
        record_scrub_damage(site, replace(done, errors={}), now)
        assert site.catalogue.damages() == []


@pytest.mark.slow
def test_after_a_rebuild_every_damaged_file_is_known_and_what_differs_from_the_host_is_fetched(
    make_btrfs: Callable[..., Path], tmp_path: Path
) -> None:
    """verified.json names only some of the damaged files, which the test simulates; `checksums` marks each of them."""
    nights = Nights(make_btrfs(size="300M", options="nodatasum"))
    nights.tables["verify"] = {"new_files": "none"}
    contents = [os.urandom(64 << 10) for _ in range(3)]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}").write_bytes(content)
    (tmp_path / "moved").write_bytes(b"as it was")
    nights.host("web", tmp_path)
    nights.run("web")
    nights.backupd("verify", "web")
    before = (tmp_path / "moved").stat()
    (tmp_path / "moved").write_bytes(b"is other.")
    os.utime(tmp_path / "moved", ns=(before.st_atime_ns, before.st_mtime_ns))
    nights.backupd("verify", "--against-source", "web", check=False)
    for content in contents:
        damage(nights.top, content[8192:16384])
    nights.backupd("verify", "web", check=False)
    damages = sorted(rows(nights, "select path, found_by from damage"))
    assert [path for path, _ in damages] == [f"{tmp_path}/{name}" for name in ("0", "1", "2", "moved")]
    file = nights.pool / "hosts/web/verified.json"
    fields = json.loads(file.read_text())
    for row in fields["backups"].values():
        assert (row["damages"], len(row.pop("damaged"))) == (3, 3)
        row["damaged"] = [f"{tmp_path}/0"]
    file.write_text(json.dumps(fields))
    (nights.state / "catalogue.sqlite").unlink()
    nights.backupd("rebuild")
    assert sorted(rows(nights, "select path from damage")) == [(path,) for path, _ in damages]
    assert rows(nights, "select path from damage where found_by = 'source' and path like '%moved'") == [(f"{tmp_path}/moved",)]
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tmp_path) == []


@pytest.mark.slow
def test_a_comparison_that_is_killed_anywhere_leaves_out_no_file_and_the_next_one_brings_its_row(nights: Nights) -> None:
    words = ("verify", "--against-source", "web")
    steps = checkpoints(nights, *words)
    assert "after comparisons written" in steps
    file, first = nights.pool / "hosts/web/compared.json", nights.names("web")[0]
    for number, step in enumerate(steps, 1):
        file.unlink(missing_ok=True)
        with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as connection:
            connection.execute("DELETE FROM comparison")
            connection.commit()
        killed(nights, "any", "any", *words, count=number)
        answer = json.loads(file.read_text()) if file.exists() else None
        actual_rows = rows(nights, "select name, alike from comparison")
        assert actual_rows in ([], [(first, 1)]), step
        assert not actual_rows or answer is not None, step
        assert answer is None or answer["backups"][first]["alike"] == 1
        nights.backupd(*words)
        assert rows(nights, "select name, alike from comparison") == [(first, 1)]
        assert json.loads(file.read_text())["backups"][first]["alike"] == 1


def test_a_comparison_that_cannot_be_written_down_is_one_line_and_its_damage_is_known(nights: Nights, tmp_path: Path) -> None:
    before = (tmp_path / "file").stat()
    (tmp_path / "file").write_bytes(b"is other.")
    os.utime(tmp_path / "file", ns=(before.st_atime_ns, before.st_mtime_ns))
    (nights.pool / "hosts/web/compared.json").mkdir()
    done = nights.backupd("verify", "--against-source", "web", check=False)
    assert done.returncode == 4, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert rows(nights, "select path, found_by from damage") == [(f"{tmp_path}/file", "source")]
