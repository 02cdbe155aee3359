"""How tables and the live display fit a terminal: measured by rich or by counting characters."""

import io
import os
from collections import deque
from types import SimpleNamespace
from typing import Any

import click
import pytest
from rich.console import Console

from backupd.rsync.messages import MessageClass, Output, classify
from backupd.run import night
from backupd.run.cli.night_live import NightDisplay
from backupd.run.run_context import RunningTransfer
from btrkeep.cli.listings import table
from btrkeep.clock import Clock
from btrkeep.units import counted

HEADERS = ["HOST", "STATE", "STARTED", "NEW", "REMARK"]
WORDS = "some files could not be transferred and this sentence goes on for longer than any terminal is wide, alas"
ROWS = [("web1", click.style("failed", fg="red"), "2026-11-20T22:00:03Z", "1.25 MiB", WORDS)]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes standard output look like a terminal of that many columns to a table."""

    def of(columns: int | None) -> None:
        monkeypatch.setattr("sys.stdout", type("Out", (io.StringIO,), {"isatty": lambda _: columns is not None})())
        monkeypatch.setenv("COLUMNS", str(columns or 1000))

    return of


def lines(text: str) -> list[str]:
    return [click.unstyle(line) for line in text.splitlines()]


def test_a_table_in_a_pipe_is_one_line_per_row(terminal: Any) -> None:
    terminal(None)
    assert len(lines(table(ROWS, HEADERS, right=["NEW"], spare=["STARTED"]))) == 2


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_table_fits_the_terminal_and_loses_no_word_of_its_last_column(terminal: Any, columns: int) -> None:
    terminal(columns)
    shown = lines(table(ROWS, HEADERS, right=["NEW"], spare=["STARTED"]))
    assert max(map(len, shown)) <= columns
    begin = shown[0].index("REMARK")
    assert " ".join(line[begin:].strip() for line in shown[1:]) == WORDS
    assert "STARTED" not in shown[0]


def test_a_table_that_fits_shows_its_spare_columns(terminal: Any) -> None:
    terminal(80)
    shown = lines(table([(*ROWS[0][:4], "short")], HEADERS, right=["NEW"], spare=["STARTED"]))
    assert shown == ["HOST  STATE   STARTED                    NEW  REMARK", "web1  failed  2026-11-20T22:00:03Z  1.25 MiB  short"]


def test_a_last_column_without_a_word_is_left_out(terminal: Any) -> None:
    terminal(None)
    assert lines(table([("web1", "")], ["HOST", "REMARK"])) == ["HOST", "web1"]


def picture(columns: int) -> list[str]:
    observer = NightDisplay()
    observer.console = Console(file=io.StringIO(), width=columns, color_system=None, force_terminal=True)
    observer.tally.hosts = 3
    for host, path, expected in (
        ("warehouse-berlin", "/usr/share/doc", None),
        ("shop", "/var/lib/a/folder/far/away/orders", 1_500_000),
    ):
        running = RunningTransfer(host, 1, expected_files=expected, path=path, done_files=1_234_567, done_bytes=12 << 30)
        running.begun -= 60
        observer.tally.running[host] = running
    with observer.console.capture() as capture:
        observer.console.print(observer.picture())
    return [line for line in capture.get().splitlines() if line.strip()]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_live_display_has_a_line_per_transfer_and_shows_every_number_of_it(columns: int) -> None:
    first, second, overall = picture(columns)
    assert max(len(first), len(second), len(overall)) <= columns
    assert first.startswith("warehouse-berlin")
    assert first.rstrip().endswith("first copy")
    for words in ("1,234,567 names", "12.0 GiB", "205 MiB/s", "82%"):
        assert words in second
    assert "0 of 3 hosts" in overall


def test_a_narrow_live_display_shows_the_end_of_a_long_path() -> None:
    assert "orders" in picture(90)[1]
    assert "/var/lib/a/folder" not in picture(90)[1]


def test_the_rate_is_that_of_the_last_seconds() -> None:
    running = RunningTransfer("shop", 1, done_bytes=5000)
    running.begun -= 1000
    running._seen = deque([(running.begun + 990, 4000)])
    assert 90 < running.rate < 101


def test_the_recorded_progress_says_when_the_numbers_last_grew_and_nothing_while_no_rsync_runs() -> None:
    """rsync prints its numbers again and again, also while no byte comes."""
    clock, output, running = Clock(), Output(), RunningTransfer("shop", 1)
    context: Any = SimpleNamespace(clock=clock)
    assert night._row(context, running).advanced is None
    output.feed(b"  5,000  1%  1.00MB/s  0:00:01 (xfr#1, to-chk=9/10)\r".replace(b",", b"") * 2)
    running.take(output)
    running.advanced -= 720
    for _ in range(3):
        running.take(output)
    row = night._row(context, running)
    assert row.advanced
    assert 719 < (row.updated - row.advanced).total_seconds() < 725
    output.feed(b"  6000  1%  1.00MB/s  0:00:01 (xfr#2, to-chk=8/10)\r" * 2)
    running.take(output)
    row = night._row(context, running)
    assert row.advanced
    assert (row.updated - row.advanced).total_seconds() < 5
    running.finish_path()
    assert night._row(context, running).advanced is None


@pytest.mark.parametrize("role", ["sender", "receiver", "generator"])
def test_a_connection_that_broke_is_no_file_that_could_not_be_read(role: str) -> None:
    assert classify(f"rsync: [{role}] write error: {os.strerror(32)} (32)") is MessageClass.OTHER


def test_one_is_not_counted_in_the_plural() -> None:
    assert [counted(number, "host") for number in (0, 1, 2, 2000)] == ["0 hosts", "1 host", "2 hosts", "2,000 hosts"]
