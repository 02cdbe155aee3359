"""The dashboard's copy of the catalogue: who may read which file, when it is renewed, which locks a reader without
rights can hold.
"""

import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from btrkeep.catalogue import Catalogue, CatalogueBusy, CatalogueUnready, dashboard_copy, tables
from btrkeep.catalogue.dashboard_copy import COPIED, PROBLEM, interval, old_after, seldom_interval
from btrkeep.units import parse_time
from tests.beds import work
from tests.beds.anyone import readable
from tests.beds.copied import copied
from tests.beds.leftout import needs_root
from tests.beds.strangers import STRANGER, entered_state, holding

READ = """import pathlib, sys
from btrkeep.catalogue import Catalogue
with Catalogue.open_copy(pathlib.Path(sys.argv[1])) as catalogue: print(catalogue.get_fact('a'))"""


@pytest.fixture
def state() -> Iterator[Path]:
    with entered_state("copy-") as folder:
        yield folder


def in_copy(state: Path, name: str = "a") -> str | None:
    with Catalogue.open_copy(state) as catalogue:
        return catalogue.get_fact(name)


def modes(state: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}


def opened_by(process: subprocess.Popen[str]) -> set[str]:
    process.kill()
    return set(process.communicate()[0].split())


@needs_root
def test_live_files_are_roots_alone_and_the_group_reads_the_copy(state: Path) -> None:
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "1")
        assert {modes(state)[f"catalogue.sqlite{suffix}"] for suffix in ("", "-wal", "-shm")} == {0o600}
    assert modes(state) == {"catalogue.sqlite": 0o600, "catalogue.lock": 0o600, "dashboard.sqlite": 0o640, "dashboard.lock": 0o600}
    assert (state / "dashboard.sqlite").stat().st_gid == STRANGER
    code = readable()
    assert work(*code.run_as(STRANGER, "-c", READ, state), env=code.environment).stdout == "1\n"


@needs_root
def test_modes_that_are_too_wide_are_mended_by_the_next_program_of_roots(state: Path) -> None:
    with Catalogue.open(state) as first:
        first.set_fact("a", "1")
        for path in state.glob("catalogue.sqlite*"):
            os.chown(path, 0, STRANGER)
            path.chmod(0o640)
        Catalogue.open(state).close()
        assert {modes(state)[f"catalogue.sqlite{suffix}"] for suffix in ("", "-wal", "-shm")} == {0o600}


@needs_root
def test_a_copy_that_was_made_while_the_folder_was_closed_becomes_readable_when_it_is_open_again(state: Path) -> None:
    state.chmod(0o700)
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "1")
    assert modes(state)["dashboard.sqlite"] == 0o600
    state.chmod(0o750)
    Catalogue.open(state).close()
    assert modes(state)["dashboard.sqlite"] == 0o640


@needs_root
def test_who_holds_all_locks_that_it_can_get_stops_no_writer_and_no_later_copy(state: Path) -> None:
    Catalogue.open(state).close()
    with holding(state, STRANGER) as process:
        for value in ("1", "2", "3"):
            begun = time.monotonic()
            with Catalogue.open(state) as catalogue:
                catalogue.wait_at_most(1)
                catalogue.set_fact("a", value)
                time.sleep(0.05)
            assert time.monotonic() - begun < 60
            assert in_copy(state) == value
            assert not list(state.glob("catalogue.sqlite-*"))
        # A new copy is complete and readable for the group a moment before it gets its name.
        assert opened_by(process) - {"dashboard.sqlite.tmp"} == {"dashboard.sqlite"}


@needs_root
def test_who_could_read_the_live_file_makes_writers_say_that_it_is_held(state: Path) -> None:
    """SQLite's error for a held lock of the -shm file is SQLITE_PROTOCOL, which btrkeep used to report as its own bug."""
    with Catalogue.open(state) as catalogue:
        catalogue.wait_at_most(0.2)
        catalogue.set_fact("a", "0")
        for path in (state / "catalogue.sqlite", state / "catalogue.sqlite-shm"):
            path.chmod(0o644)
        with holding(state, STRANGER):
            time.sleep(0.3)
            with pytest.raises(CatalogueBusy, match="locked by another program"):
                catalogue.set_fact("a", "1")


def test_the_copy_is_complete_without_a_journal_and_has_its_time(state: Path) -> None:
    with Catalogue.open(state) as catalogue:
        for number in range(300):
            catalogue.set_fact(f"fact{number}", "x" * 2000)
    copy = state / "dashboard.sqlite"
    with closing(sqlite3.connect(f"file:{copy}?mode=ro", uri=True)) as plain:
        assert plain.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert plain.execute("SELECT count(*) FROM about WHERE name LIKE 'fact%'").fetchone() == (300,)
    assert copy.read_bytes()[18:20] == b"\1\1"  # neither read nor written with a -wal
    assert abs(parse_time(in_copy(state, COPIED) or "").timestamp() - time.time()) < 60
    with Catalogue.open(state) as catalogue:
        assert catalogue.get_fact(COPIED) is None
    assert sorted(path.name for path in state.iterdir() if "tmp" in path.name) == []


def test_what_changed_nothing_makes_no_copy(state: Path) -> None:
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "1")
    before = (state / "dashboard.sqlite").stat()
    for _ in range(3):
        with Catalogue.open(state) as catalogue:
            assert catalogue.get_fact("a") == "1"
    after = (state / "dashboard.sqlite").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_an_old_copy_is_renewed_although_nothing_changed(state: Path) -> None:
    """The pages warn after an hour, and advise a command that only reads."""
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "1")
    copy = state / "dashboard.sqlite"
    for seconds in (3000, -3000):  # a clock may have leapt back
        os.utime(copy, times=(moment := time.time() - seconds, moment))
        Catalogue.open(state).close()
        assert abs(copy.stat().st_mtime - time.time()) < 60
    assert in_copy(state) == "1"


@needs_root
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_in_the_copys_place_opens_no_other_file_to_the_group(state: Path, link: Callable[[Path, Path], None]) -> None:
    """The dashboard can create such a link if its group may write to the folder."""
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "1")
    secret = state.parent / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    (state / "dashboard.sqlite").unlink()
    link(secret, state / "dashboard.sqlite")
    with Catalogue.open(state) as catalogue:
        status = secret.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o600, 0)
        catalogue.set_fact("a", "2")
    assert (in_copy(state), secret.read_text()) == ("2", "secret")


def test_a_fifo_instead_of_the_copy_blocks_no_program(state: Path) -> None:
    os.mkfifo(state / "dashboard.sqlite")
    program = "import pathlib, sys; from btrkeep.catalogue import Catalogue; Catalogue.open(pathlib.Path(sys.argv[1])).close()"
    work(sys.executable, "-c", program, state, timeout=120)
    assert stat.S_ISREG((state / "dashboard.sqlite").lstat().st_mode)


def test_who_closes_after_writing_leaves_a_copy_of_it_while_others_have_the_catalogue_open(state: Path) -> None:
    with Catalogue.open(state) as other, Catalogue.open(state) as catalogue:
        other.set_fact("a", "0")
        catalogue.set_fact("a", "1")
        catalogue.close()
        assert in_copy(state) == "1"


def test_a_catalogue_that_stays_open_is_copied_at_intervals(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_copy, "_SHORTEST", 0.3)
    monkeypatch.setattr(dashboard_copy, "_RATE", 1 << 30)
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "0")
        seen, copies = set[str | None](), set[int]()
        begun = time.monotonic()
        while len(copies) < 4:
            assert time.monotonic() - begun < 60
            catalogue.set_fact("a", str(len(seen)))
            copies.add((state / "dashboard.sqlite").stat().st_mtime_ns)
            seen.add(in_copy(state))
            time.sleep(0.01)
        assert time.monotonic() - begun > 0.8, "more often"
    assert len(seen) >= 3


SIZES = [0, 1, 100 << 10, 1 << 20, 4 << 20, (4 << 20) + 1, 8 << 20, 64 << 20, 133 << 20, 300 << 20, 1 << 30, 10 << 30]


def test_the_interval_grows_with_the_size() -> None:
    assert [round(interval(size)) for size in (0, 1 << 20, 4 << 20, 133 << 20, 1 << 30)] == [2, 12, 49, 1621, 12483]


@pytest.mark.parametrize("size", SIZES)
def test_a_day_of_runs_samples_and_checks_for_alarms_copies_ten_gigabytes_at_most(size: int) -> None:
    """The test counts single copies: a run writes each second, timers write every five minutes, and the copy is made when due."""
    copied, last = 0, -1e9
    for second in range(0, 86400, 1 if size <= 8 << 20 else 60):
        for _timer in range(2 if second % 300 == 0 else 0):
            is_timers = size <= 4 << 20 or second - last >= seldom_interval(size)
            copied, last = (copied + size, second) if is_timers else (copied, last)
        copied, last = (copied + size, second) if second - last >= interval(size) else (copied, last)
    assert copied <= 10 * 10**9 + size


@pytest.mark.parametrize("size", SIZES)
def test_a_copy_that_is_made_in_time_is_not_called_old(size: int) -> None:
    assert max(interval(size), seldom_interval(size), 1800) + 600 < old_after(size)
    if size <= 133 << 20:
        assert old_after(size) == 3600


def test_a_large_catalogue_without_a_change_is_copied_as_seldom(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "1")
    copy = state / "dashboard.sqlite"
    monkeypatch.setattr(dashboard_copy, "_SMALL", 1)
    monkeypatch.setattr(dashboard_copy, "_SELDOM_RATE", copy.stat().st_size / 5000)
    for seconds, is_renewed in ((4900, False), (5100, True)):
        os.utime(copy, times=(moment := time.time() - seconds, moment))
        Catalogue.open(state).close()
        assert (abs(copy.stat().st_mtime - time.time()) < 60) is is_renewed


def test_what_a_timer_starts_all_day_copies_a_large_catalogue_at_its_interval_and_others_copy_it_at_once(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(value: str, *, is_periodic: bool) -> str | None:
        with Catalogue.open(state) as catalogue:
            if is_periodic:
                catalogue.copy_seldom()
            catalogue.set_fact("a", value)
        return in_copy(state)

    assert written("small", is_periodic=True) == "small"
    monkeypatch.setattr(dashboard_copy, "_SMALL", 1)
    monkeypatch.setattr(dashboard_copy, "_SELDOM_RATE", 1)
    assert written("sample", is_periodic=True) == "small"
    Catalogue.open(state).close()  # a process that only reads
    assert in_copy(state) == "small"
    assert written("hold", is_periodic=False) == "hold"
    assert written("sample", is_periodic=True) == "hold"
    old = time.time() - 100 * 86400
    os.utime(state / "dashboard.sqlite", (old, old))
    assert written("sample", is_periodic=True) == "sample"


def test_a_page_sees_one_copy_although_newer_ones_replace_it(state: Path) -> None:
    with Catalogue.open(state) as writer:
        writer.set_fact("a", "old")
        copied(state)
        with Catalogue.open_copy(state) as reader:
            writer.set_fact("a", "new")
            copied(state)
            assert reader.get_fact("a") == "old"
            assert in_copy(state) == "new"


@pytest.mark.parametrize("torn", [b"", b"no database at all" * 400])
def test_a_torn_copy_is_made_again_by_the_next_program_and_a_remaining_part_does_no_harm(state: Path, torn: bytes) -> None:
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "1")
    (state / "dashboard.sqlite").write_bytes(torn)
    (state / "dashboard.sqlite.tmp").write_bytes(b"half")
    Catalogue.open(state).close()
    assert in_copy(state) == "1"
    assert not (state / "dashboard.sqlite.tmp").exists()


def test_a_copy_of_an_older_schema_is_renewed_although_nothing_changed(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present = tables.SCHEMA_VERSION
    Catalogue.open(state).close()
    with closing(sqlite3.connect(state / "catalogue.sqlite")) as live, live:
        live.execute(f"PRAGMA user_version = {present + 1}")
    monkeypatch.setattr(tables, "SCHEMA_VERSION", present + 1)  # the copy has the present version
    with pytest.raises(CatalogueUnready, match=f"older schema {present},"):
        Catalogue.open_copy(state)
    Catalogue.open(state).close()
    assert in_copy(state) is None


@pytest.mark.parametrize("header", ["application_id = 0", "user_version = 9999"])
def test_a_copy_that_is_none_of_this_version_is_made_again_and_its_hint_does_not_move_it_away(state: Path, header: str) -> None:
    Catalogue.open(state).close()
    with closing(sqlite3.connect(state / "dashboard.sqlite")) as copy, copy:
        copy.execute(f"PRAGMA {header}")
    with pytest.raises(CatalogueUnready, match="the dashboard's copy cannot be read") as raised:
        Catalogue.open_copy(state)
    assert "`backupd check` makes a new copy" in raised.value.hint
    Catalogue.open(state).close()
    assert in_copy(state) is None


def test_a_copy_that_cannot_be_made_fails_no_write(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_copy, "_SPARE", 1 << 60)
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "1")
    with Catalogue.open(state) as catalogue:
        assert catalogue.get_fact("a") == "1"
    with pytest.raises(CatalogueUnready, match="there is no catalogue"):
        Catalogue.open_copy(state)


@pytest.mark.slow
def test_a_program_that_locks_the_catalogue_blocks_no_copy(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `backup` function of sqlite3 waits for a locked catalogue without end."""
    monkeypatch.setattr(dashboard_copy, "_PATIENCE", 0.3)
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "1")
    with closing(sqlite3.connect(state / "catalogue.sqlite", isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("UPDATE about SET value = '2' WHERE name = 'a'")
        begun = time.monotonic()
        assert not dashboard_copy.renew(state / "catalogue.sqlite", is_urgent=True)
        assert time.monotonic() - begun < 60
    assert in_copy(state) == "1"


def test_a_rebuilt_catalogue_is_copied(state: Path) -> None:
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "old")
    with Catalogue.rebuilt(state) as (catalogue, _):
        catalogue.set_fact("a", "new")
    assert in_copy(state) == "new"


def test_a_fault_of_the_catalogue_stands_in_the_copy_until_the_next_one(state: Path) -> None:
    """The dashboard cannot read the catalogue itself, so it would not know of the fault until its copy is old."""
    copy, now = state / "dashboard.sqlite", parse_time("2026-11-29T12:00:00Z")
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "1")
    live = (state / "catalogue.sqlite").read_bytes()
    (state / "catalogue.sqlite").write_bytes(b"?" * 8192 + live[8192:])
    dashboard_copy.report_problem(state, "it is damaged", now)
    assert (in_copy(state, PROBLEM), in_copy(state)) == ("2026-11-29T12:00:00Z it is damaged", "1")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o640
    first = copy.stat().st_ino
    dashboard_copy.report_problem(state, "it is damaged", now + timedelta(minutes=5))
    assert copy.stat().st_ino == first
    dashboard_copy.report_problem(state, "it is newer", now + timedelta(minutes=10))
    assert in_copy(state, PROBLEM) == "2026-11-29T12:00:00Z it is newer"
    (state / "catalogue.sqlite").write_bytes(live)
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "2")
    assert (in_copy(state, PROBLEM), in_copy(state)) == (None, "2")


def test_without_a_copy_nothing_is_made_for_a_fault(state: Path) -> None:
    dashboard_copy.report_problem(state, "it is damaged", parse_time("2026-11-29T12:00:00Z"))
    assert not (state / "dashboard.sqlite").exists()
