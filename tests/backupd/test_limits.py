"""Which limit the new data of a host exceeds, and whether a stopped backup is continued."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.run.limits import LimitWatch, exceeded, exceeds_memory, still_exceeds
from btrkeep.backup_states import Cause, CauseCode, cause_of
from btrkeep.config import HostConfig, load
from btrkeep.decisions.cause_words import cause_words
from btrkeep.process.group import GroupCancellation
from btrkeep.treescan import SubvolumeGrowth

GIB = 1 << 30
HOST = HostConfig("web", paths=("/srv",), max_files=1000, max_new_bytes=10 * GIB)
numbers = st.integers(0, 1 << 62)


@pytest.mark.parametrize(
    ("subvolume_growth", "code"),
    [
        (SubvolumeGrowth(1000, 10 * GIB), None),  # what is exactly at the limit is allowed
        (SubvolumeGrowth(1001, 0), CauseCode.MAX_FILES),
        (SubvolumeGrowth(0, 10 * GIB + 1), CauseCode.MAX_NEW_BYTES),
    ],
)
def test_more_than_a_limit_is_too_much(subvolume_growth: SubvolumeGrowth, code: CauseCode | None) -> None:
    cause = exceeded(HOST, subvolume_growth)
    assert (cause and cause.code) == code


@given(names=numbers, size=numbers)
def test_without_limits_a_host_may_bring_what_it_has(names: int, size: int) -> None:
    assert exceeded(HostConfig("web"), SubvolumeGrowth(names, size)) is None


@given(names=numbers, size=numbers, raised=st.none() | numbers)
def test_what_was_stopped_is_continued_only_when_it_would_not_be_stopped_again(names: int, size: int, raised: int | None) -> None:
    cause = exceeded(HOST, SubvolumeGrowth(names, size))
    assert still_exceeds(cause, HOST) == (cause is not None)
    if cause:
        read = cause_of(cause.as_json())
        host = replace(HOST, max_files=raised, max_new_bytes=raised)
        assert still_exceeds(read, host) == (raised is not None and raised < cause.facts["found"])


@given(limit=numbers, raised=st.none() | numbers)
def test_what_used_up_its_quota_is_continued_only_when_that_was_raised(limit: int, raised: int | None) -> None:
    cause = cause_of(Cause(CauseCode.QUOTA, facts={"found": limit - 1, "limit": limit}).as_json())
    assert still_exceeds(cause, replace(HOST, quota=raised)) == (raised is not None and raised <= limit)


@pytest.mark.parametrize("cause", [None, Cause(CauseCode.DEADLINE), Cause(CauseCode.MAX_MEMORY, facts={"found": 2, "limit": 1})])
def test_what_was_stopped_for_something_else_is_continued(cause: Cause | None) -> None:
    assert not still_exceeds(cause, HOST)


@pytest.mark.parametrize(("limit", "allowed"), [("50%", 4 * GIB), ("1GiB", GIB)])
def test_memory_is_a_share_of_the_machine_or_a_size(tmp_path: Path, limit: str, allowed: int) -> None:
    (tmp_path / "main.toml").write_text(f'[pool]\npath = "/srv"\n[host.web]\npaths = ["/etc"]\nmax_memory = "{limit}"\n')
    host = load(file=tmp_path / "main.toml").hosts["web"]
    assert exceeds_memory(host, allowed, 8 * GIB) is None
    assert exceeds_memory(host, allowed + 1, 8 * GIB) == Cause(CauseCode.MAX_MEMORY, facts={"found": allowed + 1, "limit": allowed})


def test_the_words_name_the_number_the_limit_and_what_to_do() -> None:
    cause = exceeded(HOST, SubvolumeGrowth(1_234_567, 0))
    assert cause
    assert cause_words(cause) == (
        "1,234,567 files and folders are new, more than `max_files` allows (1,000): raise it, or `exclude` some files; "
        "until it allows more, the next run starts from the beginning"
    )


def test_a_tree_is_read_again_early_only_when_what_was_written_may_be_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The written bytes are an upper bound of the new ones, so below the limit no search is necessary."""
    commits, readings = list[Path](), list[int]()

    def read(_fd: int, _since: int) -> SubvolumeGrowth:
        readings.append(len(commits))
        return SubvolumeGrowth(0, 4 * GIB)

    monkeypatch.setattr("backupd.run.limits.commit", commits.append)
    monkeypatch.setattr("backupd.run.limits.describe", lambda _path: SimpleNamespace(created=1))
    monkeypatch.setattr("backupd.run.limits.growth", read)
    monkeypatch.setattr("backupd.run.limits._PATIENCE", 0.0)

    async def watch() -> None:
        cancellation: GroupCancellation[Cause] = GroupCancellation()
        limits = LimitWatch(replace(HOST, max_files=None), Path("/"), cancellation)
        for written in (0, 5 * GIB, 6 * GIB, 7 * GIB, 7 * GIB):
            limits.check(written, 0)
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
            await asyncio.sleep(0.05)  # for many times as long as a reading took
        assert await limits.at_end() is None
        assert cancellation.reason is None

    asyncio.run(watch())
    assert readings == [1, 2, 3]  # at first, at 7 GiB, and at the end: each after a commit
