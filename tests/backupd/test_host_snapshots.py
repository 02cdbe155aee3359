"""How results are judged by what the host reported of its snapshots and dumps; runs of real hosts are in tests/btrfs."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from backupd.repo.backup_json import PathOutcome, PathResult
from backupd.rsync.messages import Messages, Output
from backupd.rsync.process import RsyncEnd, RunCancellation
from backupd.rsync.shared_connection import SharedConnection
from backupd.rsync.snapshot_session import SnapshotSession
from backupd.run.host_snapshots import HostSnapshots
from btrkeep.backup_states import Cause, CauseCode
from btrkeep.config import HostConfig, SshSettings
from btrkeep.consistency import LIVE, SNAPSHOT, HostDump, PathConsistency

READ = {"/etc": PathConsistency(SNAPSHOT, ("btrfs",)), "/srv": PathConsistency(LIVE, reason="ext4")}
ENDED = RsyncEnd(0, Output(), Messages(), 1.0, None)
COMPLETE = [PathResult(path, PathOutcome.COMPLETE) for path in READ]
GOOD = HostDump("shop", "/srv/shop.sql", 0, True)
BAD = replace(GOOD, status=3, error="no such role")


def judged(
    mode: str, *sessions: Sequence[HostDump], results: Sequence[PathResult] = COMPLETE
) -> tuple[list[PathResult], list[str]]:
    """The results after transfers of all paths in the last of these sessions, with such dumps each; and the warnings."""

    async def judge() -> tuple[list[PathResult], list[str]]:
        host, ssh = HostConfig("web1", address="web1", paths=tuple(READ), snapshots=mode), SshSettings()
        snapshots = HostSnapshots(host, ssh, SharedConnection(host, ssh, wanted=False), RunCancellation())
        for number, dumps in enumerate(sessions):
            snapshots._begun(SnapshotSession(f"office-{number}", READ, ("/",), tuple(dumps)))
            for path in READ:
                snapshots.note_transfer(path, ENDED)
        return snapshots.judged(results), snapshots.warnings

    return asyncio.run(judge())


def outcomes(results: Sequence[PathResult]) -> dict[str, PathOutcome]:
    return {result.path: result.outcome for result in results}


def test_how_each_path_was_read_is_recorded() -> None:
    results, warnings = judged("auto", ())
    assert {result.path: result.consistency for result in results} == READ
    assert (set(outcomes(results).values()), warnings) == ({PathOutcome.COMPLETE}, [])


def test_without_snapshots_nothing_is_recorded() -> None:
    assert judged("off", ())[0] == COMPLETE


def test_a_required_snapshot_that_is_missing_makes_its_path_suspect() -> None:
    results, _ = judged("required", ())
    assert outcomes(results) == {"/etc": PathOutcome.COMPLETE, "/srv": PathOutcome.SUSPECT}
    assert results[1].cause == Cause(CauseCode.NOT_FROM_SNAPSHOT, "/srv", {"line": "ext4"})
    assert results[1].reason == "/srv: not read from a snapshot: ext4"


@pytest.mark.parametrize("worse", [PathOutcome.SUSPECT, PathOutcome.BROKEN, PathOutcome.UNFINISHED, PathOutcome.FAULT])
def test_a_worse_result_keeps_its_own_cause(worse: PathOutcome) -> None:
    cause = Cause(CauseCode.NOTHING_READ, "/srv", {"line": "x"})
    broken = PathResult("/srv", worse, "its own reason", cause=cause)
    results, _ = judged("required", (BAD,), results=[COMPLETE[0], broken])
    assert results[1] == replace(broken, consistency=READ["/srv"])


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_required_dump_that_failed_makes_the_path_that_has_it_suspect(mode: str) -> None:
    results, warnings = judged(mode, (BAD,))
    assert (outcomes(results)["/etc"], outcomes(results)["/srv"], warnings) == (PathOutcome.COMPLETE, PathOutcome.SUSPECT, [])
    if mode == "auto":
        assert results[1].reason == "the host could not make the dump shop: no such role"


def test_a_required_dump_that_is_in_no_path_makes_all_suspect() -> None:
    missing = HostDump("shop", "/var/lib/dumps/shop", None, True, error="it was not run: no path of this backup contains it")
    assert set(outcomes(judged("auto", (missing,))[0]).values()) == {PathOutcome.SUSPECT}


def test_another_dump_that_failed_is_a_warning() -> None:
    results, warnings = judged("auto", (replace(BAD, required=False, error=""),))
    assert set(outcomes(results).values()) == {PathOutcome.COMPLETE}
    assert warnings == ["the host could not make the dump shop: exit status 3"]


@pytest.mark.parametrize("dumps", [((BAD,), (GOOD,)), ((GOOD,), (BAD,))], ids=["first", "second"])
def test_a_dump_that_failed_in_one_of_several_sessions_has_failed(dumps: tuple[Sequence[HostDump], ...]) -> None:
    assert outcomes(judged("auto", *dumps)[0])["/srv"] is PathOutcome.SUSPECT
