"""Tables: columns by their width on a terminal, and which columns are left out on a narrow one."""

import json
import os
import shutil
import sys
from datetime import datetime, timedelta, timezone

import click
import pytest

from btrkeep.cli import print_answer, print_listing, stream_json
from btrkeep.cli.listings import Column, listing, objects, table

HEADERS = ["HOST", "AGE", "STARTED", "REMARK"]
ROWS = [
    ("web1", "1h", "2026-11-20", "all is well"),
    ("database", "12h", "2026-11-21", "some words that are a good deal longer than the others are"),
]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    return monkeypatch


def lines(monkeypatch: pytest.MonkeyPatch, columns: int) -> list[str]:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24)))
    return table(ROWS, HEADERS, right=["AGE"], spare=["STARTED"]).splitlines()


def test_columns_are_aligned_and_numbers_stand_to_the_right() -> None:
    assert table(ROWS, HEADERS, right=["AGE"]).splitlines() == [
        "HOST      AGE  STARTED     REMARK",
        "web1       1h  2026-11-20  all is well",
        "database  12h  2026-11-21  some words that are a good deal longer than the others are",
    ]


def test_on_a_narrow_terminal_a_spare_column_goes_first(terminal: pytest.MonkeyPatch) -> None:
    assert len(lines(terminal, 90)[0]) == len("HOST      AGE  STARTED     REMARK")
    assert lines(terminal, 80) == [
        "HOST      AGE  REMARK",
        "web1       1h  all is well",
        "database  12h  some words that are a good deal longer than the others are",
    ]


def test_then_the_last_column_wraps(terminal: pytest.MonkeyPatch) -> None:
    assert lines(terminal, 45) == [
        "HOST      AGE  REMARK",
        "web1       1h  all is well",
        "database  12h  some words that are a good",
        "               deal longer than the others",
        "               are",
    ]


def test_then_it_stands_below(terminal: pytest.MonkeyPatch) -> None:
    assert lines(terminal, 34) == [
        "HOST      AGE",
        "web1       1h",
        "    REMARK: all is well",
        "database  12h",
        "    REMARK: some words that are a",
        "    good deal longer than the",
        "    others are",
    ]


def test_no_terminal_is_too_narrow(terminal: pytest.MonkeyPatch) -> None:
    for columns in range(1, 40):
        assert "database" in "\n".join(lines(terminal, columns))


def test_where_several_columns_are_too_wide_each_row_has_a_line_for_each_of_them(terminal: pytest.MonkeyPatch) -> None:
    address = "root@a-rather-long-name-of-a-host.in-a-data-centre.example.org"
    rows = [("database", address, "/etc /srv /home/somebody/with/a-long-path", "main.toml"), ("web1", "(this machine)", "/etc", "")]
    terminal.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((74, 24)))
    assert table(rows, ["HOST", "ADDRESS", "PATHS", "FILE"]).splitlines() == [
        "database",
        f"  ADDRESS  {address}",
        "  PATHS    /etc /srv /home/somebody/with/a-long-path",
        "  FILE     main.toml",
        "web1",
        "  ADDRESS  (this machine)",
        "  PATHS    /etc",
    ]


def test_no_word_that_fits_is_broken_at_a_hyphen(terminal: pytest.MonkeyPatch) -> None:
    remark = "cannot enter /srv/some-customer-of-ours or the like"
    for columns in (38, 40, 44):
        terminal.setattr(shutil, "get_terminal_size", lambda *_, columns=columns, **__: os.terminal_size((columns, 24)))
        assert set(remark.split()) <= set(table([("web1", "1h", remark)], ["HOST", "AGE", "REMARK"]).split())


def test_an_empty_last_column_is_left_out() -> None:
    assert table([("a", "b", ""), ("c", "d", "")], ["X", "Y", "Z"]) == "X  Y\na  b\nc  d"
    assert table([("a", "", "x")], ["X", "Y", "Z"]) == "X  Y  Z\na     x"
    assert table([], ["X", "Y"]) == "X  Y"


def test_colours_and_letters_of_any_width_keep_the_columns_straight() -> None:
    rows = [(click.style("ok", fg="green"), "|"), ("備份", "|"), ("é́", "|"), ("failing", "|")]
    shown = [click.unstyle(line) for line in table(rows, ["STATE", "X"]).splitlines()]
    assert shown == ["STATE    X", "ok       |", "備份     |", "é́        |", "failing  |"]


def test_where_the_numbers_have_no_room_the_names_stand_above_them_once(terminal: pytest.MonkeyPatch) -> None:
    long = "database-primary-0041-of-some-customer"
    rows = [(long, f"2026-11-2{day}T220000Z", "complete", "0.2s", "880 KiB") for day in (0, 1)] + [
        ("lab", "-", "failed", "", "0 B")
    ]
    terminal.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((60, 24)))
    assert table(rows, ["HOST", "NAME", "STATE", "TOOK", "SIZE"], right=["TOOK", "SIZE"]).splitlines() == [
        "HOST",
        "  NAME                STATE     TOOK     SIZE",
        long,
        "  2026-11-20T220000Z  complete  0.2s  880 KiB",
        "  2026-11-21T220000Z  complete  0.2s  880 KiB",
        "lab",
        "  -                   failed              0 B",
    ]


LATE = datetime(2026, 11, 20, 23, 0, 3, 500, tzinfo=timezone(timedelta(hours=1)))
NIGHT = "2026-11-20T22:00:03Z"
COLUMNS: tuple[Column[dict[str, object]], ...] = (
    Column("host", lambda row: row["host"], "HOST"),
    Column("bytes", lambda row: row["bytes"], "SIZE", "{:,}".format, lambda size: size // 10, right=True),
    Column("at", lambda row: row["at"]),
    Column(header="REMARK", cell=lambda row: click.style(f"of {row['host']!a}", fg="red")),
)
HOSTS: list[dict[str, object]] = [{"host": "web\x1b[2J", "bytes": 12345, "at": LATE}, {"host": "db", "bytes": 7, "at": None}]


def test_a_column_has_its_value_in_json_and_its_cell_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_listing(COLUMNS, HOSTS, as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"host": "web\x1b[2J", "bytes": 1234, "at": NIGHT},
        {"host": "db", "bytes": 0, "at": None},
    ]
    assert click.unstyle(listing(COLUMNS, HOSTS)).splitlines() == [
        "HOST          SIZE  REMARK",
        "web\\x1b[2J  12,345  of 'web\\x1b[2J'",
        "db               7  of 'db'",
    ]


def test_a_cell_without_a_format_of_its_own_obeys_no_escape_of_a_host() -> None:
    assert "\x1b[2J" not in listing(COLUMNS, HOSTS)


def test_a_moment_is_the_same_text_in_one_document_and_in_a_stream(capsys: pytest.CaptureFixture[str]) -> None:
    stream_json(objects(COLUMNS, HOSTS))
    assert json.loads(capsys.readouterr().out)[0]["at"] == NIGHT
    stream_json([{"at": LATE, "path": "caf\udce9"}])  # the fast encoder refuses it
    assert json.loads(capsys.readouterr().out)[0]["at"] == NIGHT


def test_a_column_may_be_made_for_a_type_of_rows() -> None:
    assert listing((Column[str]("", str.upper, "HOST"),), ["web1"]) == "HOST\nWEB1"


def test_an_answer_is_made_in_the_form_that_is_printed_only(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer({"done": True}, iter(["done"]), as_json=False)
    assert capsys.readouterr().out == "done\n"
    print_answer(lambda: {"done": True}, lambda: pytest.fail("the text is made"), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"done": True}
    print_answer(lambda: pytest.fail("the JSON is made"), ["done"], as_json=False)
    print_listing(COLUMNS, [], empty="no hosts")
    assert capsys.readouterr().out == "done\nno hosts\n"
