"""Honest and malicious answers of a host's btrkeep-source: only data that the protocol allows gets into a record."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.rsync.command import filters
from backupd.rsync.confined import expected_words
from backupd.rsync.snapshot_session import NoSnapshots, SnapshotSession, in_session, parse_session
from btrkeep.config import HostConfig
from btrkeep.consistency import LIVE, LONGEST_TEXT, SNAPSHOT

PATHS = ("/etc", "/srv", "/home")
ANSWER: dict[str, Any] = {
    "format": 1,
    "session": "office-20261130T092400Z-1a2b3c",
    "paths": [
        {"path": "/etc", "consistency": "snapshot", "methods": ["btrfs"], "reason": None},
        {"path": "/srv", "consistency": "snapshot", "methods": ["lvm", "btrfs"], "reason": None},
        {"path": "/home", "consistency": "live", "methods": [], "reason": "ext4 on a plain partition"},
    ],
    "filesystems": [
        {"mount": "/", "method": "btrfs", "taken": "2026-11-30T09:24:00.123Z"},
        {"mount": "/srv/db", "method": "lvm", "taken": "2026-11-30T09:23:59.900Z"},
    ],
    "dumps": [
        {
            "name": "postgresql",
            "path": "/var/lib/btrkeep-source/dumps/postgresql",
            "status": 1,
            "seconds": 1.2,
            "bytes": 123,
            "error": "role \x1b[31mmissing",
            "required": True,
        }
    ],
}


def text(answer: object) -> bytes:
    return json.dumps(answer).encode()


def parsed(**changes: Any) -> SnapshotSession:
    return parse_session(text({**ANSWER, **changes}), PATHS)


def test_an_answer_is_parsed_and_the_oldest_snapshot_of_a_path_counts() -> None:
    session = parsed()
    assert session.name == ANSWER["session"]
    etc, srv, home = (session.paths[path] for path in PATHS)
    assert (etc.kind, etc.methods, etc.taken) == (SNAPSHOT, ("btrfs",), datetime(2026, 11, 30, 9, 24, 0, 123000, tzinfo=UTC))
    assert (srv.kind, srv.taken) == (SNAPSHOT, datetime(2026, 11, 30, 9, 23, 59, 900000, tzinfo=UTC))
    assert (home.kind, home.taken, home.reason) == (LIVE, None, "ext4 on a plain partition")
    (dump,) = session.dumps
    assert (dump.name, dump.status, dump.required, dump.failed, dump.bytes) == ("postgresql", 1, True, True, 123)
    assert dump.error == r"role \x1b[31mmissing"


def test_lines_of_a_login_shell_before_the_answer_are_skipped() -> None:
    assert parse_session(b"Welcome to web1!\n" + text(ANSWER) + b"\n", PATHS).name == ANSWER["session"]


def test_a_path_that_the_host_does_not_report_is_live() -> None:
    session = parsed(paths=ANSWER["paths"][:2])
    assert session.paths["/home"].is_live
    assert session.paths.keys() == set(PATHS)


def test_the_programs_own_folders_are_left_out_and_an_older_program_does_not_name_them() -> None:
    assert parsed().own == ()
    assert parsed(own=["/srv/.btrkeep-source"]).own == ("/srv/.btrkeep-source",)
    for own in (["/srv"], ["srv/.btrkeep-source"], [7], "/srv/.btrkeep-source"):
        with pytest.raises(NoSnapshots):
            parsed(own=own)


def test_paths_that_were_not_asked_for_are_ignored() -> None:
    more = {"path": "/root", "consistency": "snapshot", "methods": ["zfs"], "reason": None}
    assert parsed(paths=[*ANSWER["paths"], more]).paths.keys() == set(PATHS)


def test_a_snapshot_that_became_full_makes_only_its_paths_live() -> None:
    read = parsed().without(["/srv/db"])
    assert [read[path].is_live for path in PATHS] == [False, True, True]
    assert "/srv/db" in read["/srv"].reason
    assert [consistency.is_live for consistency in parsed().without(["/"]).values()] == [True, True, True]
    assert parsed().without(["/elsewhere"]) == parsed().paths


def changed(*place: str | int, value: object) -> Callable[[], Any]:
    def change() -> Any:
        answer = json.loads(json.dumps(ANSWER))
        inner = answer
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = value
        return answer

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed("format", value=2),
        changed("format", value=True),
        changed("session", value="../../etc"),
        changed("session", value="-rf"),
        changed("session", value="a b"),
        changed("session", value="x" * 101),
        changed("session", value=None),
        changed("paths", value={}),
        changed("paths", value=None),
        changed("paths", 0, "path", value=["/etc"]),
        changed("paths", 0, "consistency", value="perfect"),
        changed("paths", 0, "methods", value="btrfs"),
        changed("paths", 0, "methods", value=["\x1b]0;title"]),
        changed("paths", 0, "methods", value=["btrfs"] * 11),
        changed("paths", 2, "reason", value=7),
        changed("filesystems", 0, "mount", value="relative"),
        changed("filesystems", 0, "taken", value="yesterday"),
        changed("filesystems", 0, "taken", value=12),
        changed("dumps", 0, "name", value="a/b"),
        changed("dumps", 0, "path", value="x"),
        changed("dumps", 0, "status", value="0"),
        changed("dumps", 0, "status", value=1 << 40),
        changed("dumps", 0, "seconds", value=float("nan")),
        changed("dumps", 0, "seconds", value=float("inf")),
        changed("dumps", 0, "seconds", value=10**400),
        changed("dumps", 0, "bytes", value=1.5),
        changed("dumps", 0, "error", value=["x"]),
        changed("dumps", 0, "required", value="yes"),
        changed("dumps", value=[[]]),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(change: Callable[[], Any]) -> None:
    with pytest.raises(NoSnapshots, match="answer of btrkeep-source to `begin` is invalid") as caught:
        parse_session(text(change()), PATHS)
    assert "docs/sources.rst" in caught.value.hint


def test_more_databases_than_are_read_are_counted_in_the_error() -> None:
    """Whoever has 1,001 databases learns the limit; an update of the program would not help."""
    many = [f"/etc/dump/{number}" for number in range(1001)]
    with pytest.raises(NoSnapshots, match="has 1,001 streams, and at most 1,000 are supported") as caught:
        parse_session(text(changed("dumps", 0, "streams", value=many)()), PATHS)
    assert "without `stream = yes`" in caught.value.hint


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\n",
        b"garbage",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"format": 1e999}',
        b'{"format": ' + b"9" * 5000,
    ],
    ids=lambda answer: repr(answer[:10]),
)
def test_an_answer_that_is_not_json_of_the_format_is_refused(answer: bytes) -> None:
    with pytest.raises(NoSnapshots):
        parse_session(answer, PATHS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ANSWER, "path", "mount"]), inner, max_size=4),
)


@given(st.fixed_dictionaries({key: st.just(value) | JSON for key, value in ANSWER.items()}))
def test_any_answer_is_a_session_or_is_refused(answer: dict[str, Any]) -> None:
    try:
        session = parse_session(text(answer), PATHS)
    except NoSnapshots:
        return
    assert session.paths.keys() == set(PATHS)
    shown = json.dumps([[consistency.as_json() for consistency in session.paths.values()], [d.as_json() for d in session.dumps]])
    assert "\\u001b" not in shown


def test_a_long_reason_is_shortened_and_shown_in_one_line() -> None:
    paths = [{"path": "/home", "consistency": "live", "methods": [], "reason": "a\nb\x07" * 10_000}]
    reason = parsed(paths=paths).paths["/home"].reason
    assert len(reason) <= LONGEST_TEXT + 3
    assert reason.isprintable()


def test_in_a_session_rsync_is_started_by_btrkeep_source_and_no_other_command_is_expected() -> None:
    host = HostConfig("web1", address="root@web1", paths=("/",), snapshots="auto")
    assert expected_words(in_session(host, "office-1"))[-3:] == ("btrkeep-source rsync office-1", "--server", "--sender")
    assert expected_words(host)[-3:] == ("rsync", "--server", "--sender")


def test_snapshots_are_excluded_only_with_snapshots_and_their_folders_only_in_a_session() -> None:
    with_snapshots = HostConfig("web1", address="web1", paths=("/",), snapshots="auto", exclude=("*.tmp",))
    kept = "--filter=- .btrkeep-source/*=????????T??????Z-??????/"  # of a host that had streams before
    ours = "--filter=- .btrkeep-source/*-????????T??????Z-??????.[0-9]*/"
    assert filters(with_snapshots, "/") == ("--filter=- *.tmp", ours, kept)
    own = in_session(with_snapshots, "office-1", ("/srv/a[b]/.btrkeep-source",))
    assert filters(own, "/") == ("--filter=- /srv/a\\[b]/.btrkeep-source/", "--filter=- *.tmp", ours, kept)
    assert filters(HostConfig("web1", address="web1", paths=("/",), exclude=("*.tmp",)), "/") == ("--filter=- *.tmp", kept)


def test_the_filesystems_below_the_paths_are_parsed_and_an_older_program_does_not_list_them() -> None:
    assert parsed().inner is None
    assert parsed(inner=None).inner is None
    assert parsed(inner=[]).inner == {}
    entries = [{"path": "/srv/\udcff", "type": "xfs", "bytes": 7}, {"path": "/srv/a", "type": "subvolume", "bytes": None}]
    assert parsed(inner=entries).inner == {"/srv/\udcff": 7, "/srv/a": None}


@pytest.mark.parametrize(
    "inner",
    [
        {"path": "/srv"},
        [7],
        [{"path": "srv", "bytes": 7}],
        [{"path": "/srv"}],
        [{"path": "/srv", "bytes": -1}],
        [{"path": "/srv", "bytes": 1 << 64}],
        [{"path": "/srv", "bytes": True}],
        [{"path": "/srv", "bytes": "7"}],
        [{"path": "/\ud800", "bytes": 7}],
        [{"path": f"/{number}", "bytes": 7} for number in range(4001)],
    ],
)
def test_an_invalid_list_of_filesystems_is_refused(inner: object) -> None:
    with pytest.raises(NoSnapshots):
        parsed(inner=inner)


@pytest.mark.parametrize(
    "file",
    ["/srv/d/../../etc/x", "/srv/d//x", "/srv/d/", "/srv/d/.", "srv/d/x", "/srv/dx", "/etc/x", "/srv", "", "/srv/d/x\0",
     "/srv/d/..", "/var/d", "/srv/d" + "/a" * 2050, "/srv/d/" + "\u00e9" * 128, 1, None],
)  # fmt: skip
def test_a_stream_that_would_be_written_elsewhere_is_refused(file: object) -> None:
    dump = {**ANSWER["dumps"][0], "path": "/srv/d", "streams": ["/srv/d/a.sql"]}
    assert parsed(dumps=[dump]).streams == {"postgresql": ("/srv/d/a.sql",)}
    with pytest.raises(NoSnapshots):
        parsed(dumps=[{**dump, "streams": ["/srv/d/a.sql", file]}])


def test_a_stream_needs_a_source_path_that_contains_it() -> None:
    for path in ("/var/d", "/srv"):
        with pytest.raises(NoSnapshots):
            parsed(dumps=[{**ANSWER["dumps"][0], "path": path, "streams": [path]}])
