"""backup.json and notes.json: their guarantees for later versions, and how unreadable ones must never be interpreted."""

import json
import os
import socket
import sqlite3
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.repo.backup_json import FORMAT, PathOutcome, PathResult, Record, UnreadableRecord, parse, read, write
from backupd.repo.notes_json import Notes, effective_state, read_notes, write_notes
from btrkeep.backup_states import COMPLETE, FAILED, FINAL, SUSPECT, Cause, CauseCode, Condition, ConditionKey, ConditionKind
from btrkeep.consistency import LIVE, HostDump, PathConsistency
from tests.beds import btrfs as beds
from tests.beds import work

# As written by the first release. The format may be extended; this must stay readable for ever.
FORMAT_1 = """\
{"format": 1, "host": "web1", "uuid": "a0c8e3b5-5a3b-4c58-9f3c-3d1f9d9ad3c1", "state": "complete",
 "started": "2026-11-20T22:00:03Z", "name": "2026-11-20T220003Z", "base": "2026-11-19T220001Z",
 "base_uuid": "5e0d6ad4-4de5-4b11-8e1e-0a2f3c1d7a55", "finished": "2026-11-20T22:01:04Z", "duration": 61.25, "attempts": 2,
 "paths": [{"path": "/etc", "outcome": "complete", "reason": "", "exit_code": 23, "meaning": "some files could not be transferred",
   "numbers": {"files": 1500, "regular": 1200, "bytes": 4000000, "literal": 1234, "matched": 5678, "received": 9999},
   "seconds": 60.5, "unreadable": 1, "vanished": 2, "not_kept": 0, "deletions_skipped": true,
   "warnings": ["/etc: 1 could not be read"], "samples": ["rsync: [sender] ..."]},
  {"path": "/srv", "outcome": "complete", "numbers": {"files": 5, "bytes": 10, "literal": 1}}],
 "warnings": ["/etc: 1 could not be read"], "error": null, "settings": {"paths": ["/etc", "/srv"], "inplace": "always"},
 "rsync_version": "3.5.0", "protocol": 32, "seconds": {"rsync": 60.5}, "version": "0.1",
 "totals": {"files": 1505}, "something_newer": {"that": "we do not know"}}
"""


def test_a_record_of_the_first_format_is_read_for_ever() -> None:
    record = parse(FORMAT_1)
    assert (record.host, record.name, record.state) == ("web1", "2026-11-20T220003Z", COMPLETE)
    assert (record.base, record.base_uuid) == ("2026-11-19T220001Z", "5e0d6ad4-4de5-4b11-8e1e-0a2f3c1d7a55")
    assert record.started == datetime(2026, 11, 20, 22, 0, 3, tzinfo=UTC)
    assert record.finished == datetime(2026, 11, 20, 22, 1, 4, tzinfo=UTC)
    assert (record.duration, record.attempts, record.protocol, record.rsync_version) == (61.25, 2, 32, "3.5.0")
    assert [path.path for path in record.paths] == ["/etc", "/srv"]
    assert (record.total("files"), record.total("literal"), record.total("matched"), record.total("sent")) == (
        1505,
        1235,
        5678,
        None,
    )
    etc = record.path("/etc")
    assert etc
    assert (etc.outcome, etc.unreadable, etc.vanished, etc.deletions_skipped) == (PathOutcome.COMPLETE, 1, 2, True)
    assert record.path("/home") is None
    assert record.settings == {"paths": ["/etc", "/srv"], "inplace": "always"}


def test_what_is_read_is_written_again_as_it_was_but_for_what_was_not_known() -> None:
    fields, again = json.loads(FORMAT_1), parse(FORMAT_1).to_fields()
    again["paths"] = [
        {name: value for name, value in path.items() if value not in ("", 0, 0.0, None, (), False)} for path in again["paths"]
    ]
    answer = json.loads(json.dumps(again))
    assert {name: answer[name] for name in fields if name not in ("paths", "totals", "something_newer")} == {
        name: value for name, value in fields.items() if name not in ("paths", "totals", "something_newer")
    }
    assert [set(old) - {"reason", "not_kept"} - set(new) for old, new in zip(fields["paths"], answer["paths"], strict=True)] == [
        set(),
        set(),
    ]
    assert answer["totals"] == {"files": 1505, "bytes": 4000010, "literal": 1235, "matched": 5678, "received": 9999}


TEXTS = st.text(st.characters(codec="utf-8") | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF), max_size=10)
TIMES = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001 - hypothesis adds the zone
    lambda moment: moment.replace(microsecond=0)
)
COUNTS = st.integers(0, 2**60)
PATHS = st.builds(
    PathResult,
    path=TEXTS,
    outcome=st.sampled_from(PathOutcome),
    reason=TEXTS,
    exit_code=st.none() | st.integers(-64, 255),
    numbers=st.dictionaries(st.sampled_from(("files", "bytes", "literal")), COUNTS),
    seconds=st.floats(0, 1e9),
    deletions_skipped=st.booleans(),
    warnings=st.lists(TEXTS, max_size=2).map(tuple),
    samples=st.lists(TEXTS, max_size=2).map(tuple),
)
RECORDS = st.builds(
    Record,
    host=TEXTS,
    uuid=st.uuids().map(str),
    state=st.sampled_from(("running", "partial", *FINAL)),
    started=TIMES,
    name=st.none() | TEXTS,
    finished=st.none() | TIMES,
    duration=st.none() | st.floats(0, 1e9),
    attempts=COUNTS,
    paths=st.lists(PATHS, max_size=3).map(tuple),
    warnings=st.lists(TEXTS, max_size=2).map(tuple),
    error=st.none() | TEXTS,
    settings=st.dictionaries(TEXTS, st.lists(TEXTS) | st.booleans() | TEXTS, max_size=2),
    unread_bases=st.lists(TEXTS, max_size=2).map(tuple),
    ancestors=st.dictionaries(TEXTS, COUNTS, max_size=2),
)


@given(RECORDS)
def test_every_record_comes_back_as_it_was_whatever_a_host_calls_its_files(record: Record) -> None:
    assert parse(json.dumps(record.to_fields())) == record


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_whatever_else_json_may_hold_is_an_unreadable_record(anything: object) -> None:
    with pytest.raises(UnreadableRecord):
        parse(json.dumps(anything))


@given(
    st.sampled_from(sorted(set(json.loads(FORMAT_1)) - {"totals", "something_newer"})),
    st.sampled_from((None, 5, [], {}, "x", [[]], [5])),
)
def test_a_field_of_another_kind_is_unreadable_or_does_no_harm(name: str, value: object) -> None:
    """Every accepted record can be summarised and written again: a listing must not stop at one bad record."""
    fields: dict[str, Any] = {**json.loads(FORMAT_1), name: value}
    harmless_or_unreadable(fields)


@given(
    st.sampled_from(("path", "outcome", "numbers", "warnings", "samples", "reason")),
    st.sampled_from((None, 5, [], {}, "x", [5], {"files": "x"})),
)
def test_the_same_holds_for_what_is_said_of_a_path(name: str, value: object) -> None:
    fields = json.loads(FORMAT_1)
    fields["paths"][0][name] = value
    harmless_or_unreadable(fields)


def harmless_or_unreadable(fields: dict[str, Any]) -> None:
    try:
        record = parse(json.dumps(fields))
    except UnreadableRecord:
        return
    json.dumps(record.to_fields())


@pytest.mark.parametrize("missing", ["format", "host", "uuid", "state", "started"])
def test_a_record_without_what_names_it_is_unreadable(missing: str) -> None:
    fields = json.loads(FORMAT_1)
    del fields[missing]
    with pytest.raises(UnreadableRecord):
        parse(json.dumps(fields))


def test_a_newer_format_is_left_to_the_newer_program() -> None:
    with pytest.raises(UnreadableRecord) as caught:
        parse(json.dumps({**json.loads(FORMAT_1), "format": FORMAT + 1}))
    assert "newer" in caught.value.hint
    assert str(FORMAT + 1) in caught.value.message


def test_a_time_without_a_zone_is_unreadable() -> None:
    with pytest.raises(UnreadableRecord):
        parse(json.dumps({**json.loads(FORMAT_1), "started": "2026-11-20T22:00:03"}))


# Files


def test_a_subvolume_without_a_record_has_none_and_what_is_no_file_is_none(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    (tmp_path / "elsewhere").write_text(FORMAT_1, encoding="utf-8")
    (tmp_path / "backup.json").symlink_to("elsewhere")
    assert read(tmp_path) is None
    (tmp_path / "backup.json").unlink()
    (tmp_path / "backup.json").mkdir()
    assert read(tmp_path) is None
    (tmp_path / "backup.json").rmdir()
    os.mkfifo(tmp_path / "backup.json")  # no process ever writes into it
    assert read(tmp_path) is None
    (tmp_path / "backup.json").unlink()
    with socket.socket(socket.AF_UNIX) as present:
        present.bind(str(tmp_path / "backup.json"))
        assert read(tmp_path) is None
    (tmp_path / "loop").symlink_to("loop")
    assert read(tmp_path / "loop") is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"format": 1', b"[]", b"null"])
def test_a_damaged_record_is_unreadable_and_not_missing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "backup.json").write_bytes(content)
    with pytest.raises(UnreadableRecord):
        read(tmp_path)


def test_a_record_is_replaced_as_a_whole_and_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched", encoding="utf-8")
    (tmp_path / "backup.json.new").symlink_to("victim")
    (tmp_path / "backup.json").symlink_to("victim")
    write(tmp_path, parse(FORMAT_1))
    assert (tmp_path / "victim").read_text(encoding="utf-8") == "untouched"
    assert read(tmp_path) == parse(FORMAT_1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.json", "victim"]
    assert json.loads(work(sys.executable, "-m", "json.tool", tmp_path / "backup.json").stdout)["host"] == "web1"


# Notes

ACCEPTED = {"why": "half was moved to web2", "when": "2026-11-21T08:00:00Z"}


def test_notes_come_back_and_none_are_none(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == Notes()
    notes = Notes().with_note("a", "accepted", ACCEPTED).with_note("a", "hold", {"why": "\udcff"}).with_note("b", "hold", {})
    write_notes(tmp_path, notes)
    assert read_notes(tmp_path) == notes
    assert set(notes.backups["a"]) == {"accepted", "hold"}
    assert (tmp_path / "notes.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"\xff", b'{"format": 1}', b'{"format": 1, "backups": []}', b'{"backups": {}}',
        b'{"format": 1, "backups": {"a": {"expired": {"why": "daily"}}}}',
        b'{"format": 1, "backups": {"a": 5}}', b'{"format": 2, "backups": {}}', b'{"format": "1", "backups": {}}',
    ],
)  # fmt: skip
def test_notes_that_cannot_be_read_are_never_taken_for_no_notes(tmp_path: Path, content: bytes) -> None:
    """They may have holds of backups that must not be deleted."""
    (tmp_path / "notes.json").write_bytes(content)
    with pytest.raises(UnreadableRecord):
        read_notes(tmp_path)


def test_notes_that_are_no_file_are_unreadable(tmp_path: Path) -> None:
    (tmp_path / "notes.json").mkdir()
    with pytest.raises(UnreadableRecord):
        read_notes(tmp_path)


def test_only_a_suspect_backup_becomes_complete_by_being_accepted() -> None:
    record, notes = parse(FORMAT_1), Notes().with_note("2026-11-20T220003Z", "accepted", ACCEPTED)
    for state, expected in ((SUSPECT, COMPLETE), (FAILED, FAILED), (COMPLETE, COMPLETE), ("partial", "partial")):
        assert effective_state(replace(record, state=state), notes) == expected
    suspect = replace(record, state=SUSPECT)
    assert effective_state(suspect, Notes()) == SUSPECT
    assert effective_state(suspect, Notes().with_note("2026-11-19T220003Z", "accepted", ACCEPTED)) == SUSPECT
    assert effective_state(replace(suspect, name=None), notes) == SUSPECT


def test_notes_survive_a_power_cut_as_soon_as_they_are_written(btrfs_mount: Path) -> None:
    """The content of the disk at that moment, mounted afterwards: it has the newer notes, not the replaced ones."""
    work("mount", "-o", "remount,commit=300", btrfs_mount)
    write_notes(btrfs_mount, Notes().with_note("a", "hold", {"why": "older"}))
    work("btrfs", "filesystem", "sync", btrfs_mount)
    write_notes(btrfs_mount, Notes().with_note("a", "hold", {"why": "newer"}))
    (btrfs_mount / "never synced").write_text("lost", encoding="utf-8")
    [device] = beds.devices_of(btrfs_mount)
    image = btrfs_mount.parent / "disk0"
    work("cp", "--sparse=always", image, btrfs_mount.parent / "after the cut")
    beds.unmount(btrfs_mount)
    work("losetup", "-d", device)
    (btrfs_mount.parent / "after the cut").rename(image)
    work("mount", "-o", "loop", image, btrfs_mount)
    assert not (btrfs_mount / "never synced").exists()  # it was a cut indeed
    assert read_notes(btrfs_mount).backups == {"a": {"hold": {"why": "newer"}}}


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 10**400, -5])
def test_a_number_that_no_host_can_have_comes_back_as_one_that_sqlite_can_keep_however_many_add_up(number: int) -> None:
    """A host may make our rsync print any number."""
    fields = json.loads(FORMAT_1)
    fields["paths"] = [{"path": f"/{each}", "outcome": "complete", "numbers": {"literal": number}} for each in range(3)]
    total = parse(json.dumps(fields)).total("literal")
    with sqlite3.connect(":memory:") as database:
        assert database.execute("SELECT ?", (total,)).fetchone() == (total,)
    assert total is not None
    assert total >= 0


def test_a_number_that_is_no_number_makes_the_record_unreadable_and_nothing_worse() -> None:
    for word in ("Infinity", "-Infinity", "NaN", "1e999"):
        with pytest.raises(UnreadableRecord):
            parse(FORMAT_1.replace("5678", word))


@pytest.mark.parametrize("nothing", ["[]", '""', "{}"])
@pytest.mark.parametrize("name", ["written", "shared_bytes", "duration", "protocol", "attempts"])
def test_an_empty_list_or_text_is_no_number(name: str, nothing: str) -> None:
    fields = {**json.loads(FORMAT_1), name: json.loads(nothing)}
    with pytest.raises(UnreadableRecord):
        parse(json.dumps(fields))


@pytest.mark.parametrize(("name", "value"), [("path", 5), ("path", None), ("reason", []), ("exit_code", "0"), ("seconds", {})])
def test_a_field_of_a_path_that_is_of_another_kind_makes_the_record_unreadable(name: str, value: object) -> None:
    fields = json.loads(FORMAT_1)
    fields["paths"][0][name] = value
    with pytest.raises(UnreadableRecord):
        parse(json.dumps(fields))


def test_of_deletions_by_hand_the_newest_500_of_a_host_are_remembered_and_of_others_none(tmp_path: Path) -> None:
    notes = Notes(deleted={"damaged": {}})  # as an editor may leave it
    for number in range(510):
        asked = {"at": "2026-01-01T00:00:00Z", "why": str(number), "asked": {}} | ({"asked": {"last": False}} if number % 2 else {})
        gone = f"2026-01-02T{number // 60:02}:{number % 60:02}:00Z"
        notes = notes.with_note(str(number), "expired", asked).after_deletion(str(number), gone)
    assert [int(name) for name in notes.deleted if name != "damaged"] == list(range(1, 510, 2))
    for number in range(1000, 1500):
        notes = notes.with_note(str(number), "expired", {"at": "2026-01-01T00:00:00Z", "asked": {"last": False}})
        notes = notes.after_deletion(str(number), "2026-02-02T00:00:00Z")
    write_notes(tmp_path, notes)
    assert sorted(map(int, read_notes(tmp_path).deleted)) == list(range(1000, 1500))


def test_the_cause_of_a_path_comes_back() -> None:
    record = parse(FORMAT_1)
    cause = Cause(CauseCode.NO_FILE_LEFT, "/srv", {"before": 9})
    written = replace(record, paths=(replace(record.paths[0], cause=cause),))
    assert parse(json.dumps(written.to_fields())).paths[0].cause == cause


def test_a_record_with_endless_details_can_be_read_again(tmp_path: Path) -> None:
    started = datetime(2026, 3, 1, tzinfo=UTC)
    path = PathResult("/srv", PathOutcome.COMPLETE, warnings=("x" * 1000,) * 20_000, left_out=("/mnt",) * 1000)
    write(tmp_path, Record("web", "u", "complete", started, "2026-03-01T000000Z", warnings=("first",), paths=(path,)))
    record = read(tmp_path)
    assert record is not None
    assert (record.state, record.started, record.paths[0].outcome) == ("complete", started, PathOutcome.COMPLETE)
    assert record.warnings[1:] == ("first",)


CONDITION = Condition(ConditionKey(ConditionKind.DELETIONS_SKIPPED, "/srv"), datetime(2026, 2, 1, tzinfo=UTC), 28)


@pytest.mark.parametrize(
    ("long", "left_out", "lasting"),
    [
        ({"warnings": ("x" * 1000,) * 20_000}, ("/mnt",), (CONDITION,)),
        ({"samples": ("x" * 1000,) * 20_000}, ("/mnt",), (CONDITION,)),
        ({"warnings": ("x" * 1000,) * 20_000, "left_out": ("/" + "y" * 1000,) * 20_000}, None, (CONDITION,)),
    ],
)
def test_of_a_record_that_is_too_long_the_lasting_facts_go_last(
    tmp_path: Path, long: dict[str, Any], left_out: tuple[str, ...] | None, lasting: tuple[Condition, ...]
) -> None:
    """Records that later nights need: folders that are left out, and since when a condition lasts."""
    path = PathResult("/srv", PathOutcome.COMPLETE, **{"left_out": ("/mnt",), **long})
    write(tmp_path, Record("web", "u", "complete", datetime(2026, 3, 1, tzinfo=UTC), paths=(path,), lasting=(CONDITION,)))
    record = read(tmp_path)
    assert record is not None
    assert (record.paths[0].left_out, record.lasting) == (left_out, lasting)
    assert record.warnings == ("the details of this backup were too long, so they are not stored",)


def test_a_short_record_keeps_everything(tmp_path: Path) -> None:
    read_live = PathConsistency(LIVE, reason="ext4 on a plain partition")
    path = PathResult("/srv", PathOutcome.COMPLETE, warnings=("w",), samples=("s",), left_out=("/mnt",), consistency=read_live)
    dumps = (HostDump("shop", "/srv/shop.sql", 0, True, 1.5, 4096),)
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    written = Record("web", "u", "complete", moment, paths=(path,), lasting=(CONDITION,), dumps=dumps)
    write(tmp_path, written)
    assert read(tmp_path) == written
    assert written.live_paths == 1
