"""The result of a source path with trees that real rsyncs transfer."""

import os
from pathlib import Path

import pytest

from backupd.repo.backup_json import PathOutcome, PathResult
from backupd.run.verdict import PathEvidence, SuspectLimits, judge_path
from tests.backupd.pulls import UNPRIVILEGED, Pulled, meanwhile, pull

LIMITS = SuspectLimits(shrink=0.5, unreadable=0.01)


def of(source: Path, pulled: Pulled, base: PathResult | None = None, limits: SuspectLimits = LIMITS) -> PathResult:
    numbers = base.numbers if base else None
    return judge_path(PathEvidence(str(source), pulled.exit_code, pulled.messages, pulled.output.numbers, numbers, limits, 1.0))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for number in range(200):
        (tmp_path / "source" / f"file{number:03}").write_text("content", encoding="utf-8")
    return tmp_path / "source"


def test_a_source_that_was_unmounted_is_suspect_though_rsync_says_all_is_well(source: Path, tmp_path: Path) -> None:
    first = of(source, pull(source, tmp_path / "backup"))
    for path in source.iterdir():
        path.unlink()
    pulled = pull(source, tmp_path / "backup", based=True)
    assert pulled.exit_code == 0
    result = of(source, pulled, first)
    assert result.outcome is PathOutcome.SUSPECT
    assert "may not be mounted" in result.reason


def test_a_source_that_is_missing_is_broken(source: Path, tmp_path: Path) -> None:
    first = of(source, pull(source, tmp_path / "backup"))
    source.rename(tmp_path / "elsewhere")
    pulled = pull(source, tmp_path / "backup", based=True)
    result = of(source, pulled, first)
    assert (result.outcome, result.not_kept, result.unreadable) == (PathOutcome.BROKEN, 0, 0)
    assert "missing" in result.reason


def test_one_unreadable_file_of_two_hundred_is_a_warning_and_ten_are_suspect(source: Path, tmp_path: Path) -> None:
    (source / "file000").chmod(0)
    result = of(source, pull(source, tmp_path / "backup", rsync_path=UNPRIVILEGED))
    assert (result.outcome, result.unreadable) == (PathOutcome.COMPLETE, 1)
    assert "file000" in result.samples[0]
    for number in range(10):
        (source / f"file{number:03}").chmod(0)
    result = of(source, pull(source, tmp_path / "backup2", rsync_path=UNPRIVILEGED))
    assert (result.outcome, result.unreadable) == (PathOutcome.SUSPECT, 10)


def test_a_source_of_which_nothing_can_be_read_is_suspect_whatever_the_limit(source: Path, tmp_path: Path) -> None:
    lenient = SuspectLimits(1, 1)
    for path in source.iterdir():
        path.chmod(0)
    assert of(source, pull(source, tmp_path / "backup", rsync_path=UNPRIVILEGED), limits=lenient).outcome is PathOutcome.SUSPECT


def test_a_source_that_cannot_be_opened_is_broken_as_a_missing_one_is(source: Path, tmp_path: Path) -> None:
    source.chmod(0)
    result = of(source, pull(source, tmp_path / "backup", rsync_path=UNPRIVILEGED), limits=SuspectLimits(1, 1))
    source.chmod(0o755)
    assert result.outcome is PathOutcome.BROKEN
    assert "cannot be entered" in result.reason


def test_a_file_that_cannot_be_read_tonight_leaves_a_warning_that_deletions_were_skipped(source: Path, tmp_path: Path) -> None:
    first = of(source, pull(source, tmp_path / "backup"))
    (source / "closed").mkdir(0)
    (source / "file199").unlink()
    result = of(source, pull(source, tmp_path / "backup", based=True, rsync_path=UNPRIVILEGED), first)
    assert (result.outcome, result.deletions_skipped) == (PathOutcome.COMPLETE, True)


def test_files_and_a_folder_that_vanish_in_mid_transfer_leave_a_complete_backup(source: Path, tmp_path: Path) -> None:
    (source / "aaa").write_bytes(os.urandom(3_000_000))
    (source / "zzz").mkdir()
    (source / "zzz" / "file").write_text("content", encoding="utf-8")
    shell = meanwhile(tmp_path / "ssh", 500_000, f"cd {source}; rm -r file19? zzz")
    pulled = pull(source, tmp_path / "backup", shell=shell)
    result = of(source, pulled)
    assert pulled.exit_code == 24
    assert (result.outcome, result.vanished) == (PathOutcome.COMPLETE, 11)


def test_a_path_that_is_too_long_for_rsync_is_named_by_a_real_one(source: Path, tmp_path: Path) -> None:
    for number in range(200):
        (source / str(number)).touch()
    before = Path.cwd()
    try:
        os.chdir(source)
        for _ in range(21):
            Path("d" * 200).mkdir()
            os.chdir("d" * 200)
    finally:
        os.chdir(before)
    pulled = pull(source, tmp_path / "backup")
    assert pulled.exit_code == 23
    result = judge_path(PathEvidence(str(source), 23, pulled.messages, pulled.output.numbers, None, LIMITS, 1.0))
    assert (result.outcome, result.unreadable) == (PathOutcome.COMPLETE, 1)
    assert f"{source}/ddd".lstrip("/") in result.warnings[0]
