"""No writer makes notes.json too large to be read again, whatever another pool sends."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backupd.replicate.fetch_plan import take_notes
from backupd.replicate.wire import StreamInfo
from backupd.repo import notes_json, pool_files
from backupd.repo.backup_json import UnreadableRecord
from backupd.repo.notes_json import HOLD, NOTES, RULES, Notes, NotesFull, hold_of, read_notes, write_notes
from backupd.repo.pool_files import LARGEST
from btrkeep.backup_states import EXPIRED
from btrkeep.config.config_model import ReplicaSettings
from btrkeep.decisions.retention import Hold
from btrkeep.units import parse_time

AT = "2026-03-01T00:00:00Z"
OFFICE, NOW = ReplicaSettings("office"), parse_time("2026-03-02T00:00:00Z")


def pool(top: Path) -> Any:
    (top / "hosts/web1").mkdir(parents=True)
    return cast("Any", SimpleNamespace(path=top, host=lambda name: top / "hosts" / name))


def sent(why: str, until: str | None = None) -> StreamInfo:
    return StreamInfo({HOLD: {"at": AT, "until": until, "why": why}}, None, 1, None)


@pytest.mark.parametrize("part", [pytest.param(1, marks=pytest.mark.slow), 16])
def test_notes_of_another_pool_leave_half_of_the_file_to_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    largest = LARGEST // part
    monkeypatch.setattr(pool_files, "LARGEST", largest)
    monkeypatch.setattr(notes_json, "LARGEST", largest)
    here = pool(tmp_path)
    folder = here.host("web1")
    hold = {"at": AT, "until": None, "why": "x" * 1000, "from": "office"}
    many = Notes({f"n{number}": {HOLD: hold} for number in range(7_350 // part)})
    write_notes(folder, many)

    def take_many() -> None:
        for number in range(200):
            take_notes(here, "web1", f"new{number}", sent("\u2603" * 64_000), OFFICE, NOW)

    with pytest.raises(NotesFull, match="more than half"):
        take_many()
    assert (folder / NOTES).stat().st_size <= largest // 2
    write_notes(folder, read_notes(folder).with_note("own", HOLD, {"at": AT, "until": None, "why": "y" * (7 * largest // 16)}))
    assert hold_of(read_notes(folder), "own")


def test_a_long_reason_of_another_pool_is_cut_and_its_hold_holds(tmp_path: Path) -> None:
    here = pool(tmp_path)
    take_notes(here, "web1", "n1", sent("x" * 60_000), OFFICE, NOW)
    hold = hold_of(read_notes(here.host("web1")), "n1")
    assert hold is not None
    assert (hold.until, hold.why) == (None, "x" * 1000)


def test_notes_too_large_to_be_read_again_are_not_written(tmp_path: Path) -> None:
    folder = pool(tmp_path).host("web1")
    write_notes(folder, Notes({"n1": {HOLD: {"at": AT, "until": None, "why": ""}}}))
    with pytest.raises(NotesFull):
        write_notes(folder, read_notes(folder).with_note("n2", HOLD, {"at": AT, "until": None, "why": "x" * LARGEST}))
    assert read_notes(folder).backups.keys() == {"n1"}


@pytest.mark.parametrize(
    ("settings", "until", "expected"),
    [
        ({}, None, Hold(None, "mine")),
        ({"take_holds": False}, None, None),
        ({"longest_hold": 86400.0}, None, Hold(parse_time("2026-03-03T00:00:00Z"), "mine")),
        ({"longest_hold": 86400.0}, "2026-04-01T00:00:00Z", Hold(parse_time("2026-03-03T00:00:00Z"), "mine")),
        ({"longest_hold": 86400.0}, "2026-03-02T06:00:00Z", Hold(parse_time("2026-03-02T06:00:00Z"), "mine")),
    ],
)
def test_holds_of_another_pool_can_be_refused_or_limited(
    tmp_path: Path, settings: dict[str, Any], until: str | None, expected: Hold | None
) -> None:
    """An attacker on the first server could fill the second with backups that are never deleted."""
    here = pool(tmp_path)
    take_notes(here, "web1", "n1", sent("mine", until), replace(OFFICE, **settings), NOW)
    assert hold_of(read_notes(here.host("web1")), "n1") == expected


@pytest.mark.parametrize(("rules", "is_read"), [(["forgotten"], True), (None, True), ("forgotten", False), (5, False)])
def test_a_mark_whose_rules_are_no_list_makes_the_notes_unreadable(tmp_path: Path, rules: object, is_read: bool) -> None:
    folder = pool(tmp_path).host("web1")
    write_notes(folder, Notes({"n1": {EXPIRED: {"at": AT, "why": "", RULES: rules}}}))
    if is_read:
        assert read_notes(folder).expired_at("n1") == parse_time(AT)
    else:
        with pytest.raises(UnreadableRecord, match="not a list"):
            read_notes(folder)
