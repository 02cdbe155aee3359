"""verified.json and compared.json: all entries are read back, and foreign content stops no rebuild."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.repo.pool_files import COMPARED, DAMAGED, VERIFIED, damaged_paths
from backupd.repo.verification_files import (
    Comparison,
    HostComparisons,
    read_compared,
    read_verified,
    recall_verifications,
    replace_damaged,
    write_compared,
    write_verified,
)
from btrkeep.catalogue import Catalogue, Damage
from btrkeep.decisions.verification import Verification
from btrkeep.pool.marker import Pool
from btrkeep.units import backup_name

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
NAME = backup_name(NOW)
LONG = [f"/{number:04}" + "\udce9" * 4000 for number in range(1000)]  # a byte of a name takes six in JSON


@pytest.mark.slow
def test_what_was_verified_is_read_again_however_long_the_names_of_damaged_files_are(tmp_path: Path) -> None:
    verification = Verification(NOW, NOW, 5, 4, 3, NOW, tuple(LONG[:100]), 100)
    result = {backup_name(NOW - timedelta(days=day)): verification for day in range(60)}
    write_verified(tmp_path, result)
    again = read_verified(tmp_path)
    assert set(again) == set(result)
    assert {(each.damages, each.whole, each.damaged[:1]) for each in again.values()} == {(100, NOW, verification.damaged[:1])}


@pytest.mark.parametrize("name", [VERIFIED, COMPARED])
def test_what_a_later_version_wrote_is_left_as_it_is(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / name).write_text(later := json.dumps({"format": 2, "backups": {NAME: "of which we know nothing"}}))
    if name == VERIFIED:
        write_verified(tmp_path, read_verified(tmp_path) | {NAME: Verification(NOW, NOW)})
    else:
        write_compared(tmp_path, read_compared(tmp_path))
    assert (tmp_path / name).read_text() == later
    assert "later version" in caplog.text


@pytest.mark.slow
def test_what_differs_is_read_again_however_long_its_names_are(tmp_path: Path) -> None:
    """A host chooses the names: a thousand files that it changes without changing their times."""
    backups = {backup_name(NOW - timedelta(days=day)): Comparison(NOW, 5000, 4000, 0, 1000, tuple(LONG)) for day in range(10)}
    write_compared(tmp_path, HostComparisons({}, backups))
    again = read_compared(tmp_path)
    assert set(again.backups) == set(backups)
    assert {(each.differing, each.differs[0]) for each in again.backups.values()} == {(1000, LONG[0])}


VERIFIED_ONE = {"begun": "2026-11-20T22:00:00Z", "at": "2026-11-20T22:00:00Z", "read": 1, "compared": 1, "bytes": 1, "whole": None}
COMPARED_ONE = {"at": "2026-11-20T22:00:00Z", "files": 1, "alike": 1, "changed": 0}
DAMAGED_ONE = {"path": "/x", "start": 0, "length": 1, "found_by": "scrub", "found_at": "2026-11-20T22:00:00Z"}


@pytest.mark.parametrize(
    ("file", "is_true"),
    [
        (VERIFIED, VERIFIED_ONE | {"damages": 1, "damaged": ["/\ud800"]}),
        (VERIFIED, VERIFIED_ONE | {"damages": 1 << 70, "damaged": []}),
        (VERIFIED, VERIFIED_ONE | {"damages": 0, "damaged": [], "bytes": 1 << 64}),
        (COMPARED, COMPARED_ONE | {"differing": 1, "differs": ["/\ud800"]}),
        (COMPARED, COMPARED_ONE | {"differing": 1 << 63}),
        (DAMAGED, [DAMAGED_ONE | {"start": 1 << 63}]),
        (DAMAGED, [DAMAGED_ONE | {"length": -1 << 64}]),
        (DAMAGED, [DAMAGED_ONE | {"path": "/a\0b"}]),
    ],
)
def test_what_no_catalogue_can_have_counts_as_nothing(tmp_path: Path, file: str, is_true: Any) -> None:
    pool = Pool(tmp_path, "1", "11111111-2222-4333-8444-555555555555", rehearsal=False)
    pool.host("web1").mkdir(parents=True)
    (pool.host("web1") / file).write_text(json.dumps({"format": 1, "next": {}, "backups": {NAME: is_true}}))
    with Catalogue.open(pool.path) as catalogue:
        recall_verifications(pool, catalogue, "web1", {NAME})
        assert catalogue.damages("web1") == []


def test_a_restore_is_given_all_files_that_are_recorded_as_damaged(tmp_path: Path) -> None:
    pool = Pool(tmp_path, "1", "11111111-2222-4333-8444-555555555555", rehearsal=False)
    folder, other = pool.host("web1"), backup_name(NOW - timedelta(days=1))
    folder.mkdir(parents=True)
    assert damaged_paths(folder, NAME) == set()
    verified = {NAME: ("/read", "/both"), other: ("/o",)}
    write_verified(folder, {name: Verification(NOW, NOW, damaged=paths) for name, paths in verified.items()})
    write_compared(folder, HostComparisons({}, {NAME: Comparison(NOW, 2, 1, 0, 1, ("/differs\udce9", "/both"))}))
    replace_damaged(pool, "web1", NAME, [Damage("web1", NAME, "/scrubbed", 4096, 4096, "scrub", NOW)])
    assert damaged_paths(folder, NAME) == {b"/read", b"/both", b"/differs\xe9", b"/scrubbed"}
    assert damaged_paths(folder, other) == {b"/o"}


@pytest.mark.parametrize("file", [VERIFIED, COMPARED, DAMAGED])
@pytest.mark.parametrize("text", ['{"format": 2, "backups": 5}', f'{{"format": 1, "backups": {{"{NAME}": 5}}}}', "{", "[]"])
def test_a_restore_needs_no_record_of_damages(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    assert damaged_paths(tmp_path, NAME) == set()
