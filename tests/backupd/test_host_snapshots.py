"""How the host's report of its snapshots and dumps changes a result; tests/btrfs has runs of real hosts."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from backupd.repo.backup_json import PathOutcome, PathResult
from backupd.rsync.messages import Messages, Output
from backupd.rsync.process import RsyncEnd, RunCancellation
from backupd.rsync.shared_connection import SharedConnection
from backupd.rsync.snapshot_session import NoSnapshots, SnapshotSession
from backupd.run import host_snapshots
from backupd.run.host_snapshots import HostSnapshots, SnapshotsRequired
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
    """Returns the results after transfers of all paths in the last of these sessions, with these dumps each; and the warnings."""

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


REFUSED = "office has 2 sessions on this host already (rsync still reads from them; wait for these runs)"


async def ended_run(
    mode: str, session: SnapshotSession | str, full: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> HostSnapshots:
    """A run whose session starts in this way, or is refused, and in which the snapshots of these filesystems become full."""

    async def begin(*_: object) -> SnapshotSession:
        if isinstance(session, str):
            raise NoSnapshots(session)
        return session

    async def end(*_: object) -> tuple[str, ...]:
        return full

    monkeypatch.setattr(host_snapshots, "begin_session", begin)
    monkeypatch.setattr(host_snapshots, "end_session", end)
    host, ssh = HostConfig("web1", address="web1", paths=tuple(READ), snapshots=mode), SshSettings()
    snapshots = HostSnapshots(host, ssh, SharedConnection(host, ssh, wanted=False), RunCancellation())
    with suppress(SnapshotsRequired):
        await snapshots.begin(None)
        for path in READ:
            snapshots.note_transfer(path, ENDED)
    await snapshots.end()
    return snapshots


@pytest.mark.parametrize(
    ("mode", "session", "full", "expected"),
    [
        ("auto", SnapshotSession("s", READ, ("/",)), (), []),
        ("required", SnapshotSession("s", READ, ("/",)), (), [("no-snapshot", "/srv", "")]),
        ("auto", SnapshotSession("s", READ, ("/",)), ("/",), [("no-snapshot", "/etc", "")]),
        ("auto", SnapshotSession("s", READ, ("/",), (BAD, GOOD)), (), [("dump-failed", "", "shop")]),
        ("auto", SnapshotSession("s", READ, ("/",), (replace(BAD, required=False),)), (), [("dump-failed", "", "shop")]),
        ("auto", REFUSED, (), [("no-snapshot", "", "")]),
        ("required", REFUSED, (), [("no-snapshot", "", "")]),
    ],
    ids=["live as allowed", "live though required", "full", "required dump", "other dump", "refused", "refused and required"],
)
def test_what_fails_on_the_host_is_followed_from_night_to_night(
    mode: str,
    session: SnapshotSession | str,
    full: tuple[str, ...],
    expected: list[tuple[str, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshots = asyncio.run(ended_run(mode, session, full, monkeypatch))
    assert [(str(key.kind), key.path, key.name) for key in snapshots.conditions] == expected
    if full:
        assert snapshots.warnings == ["/etc: not read from a snapshot: the snapshot of / became full: raise lvm_size on the host"]
