"""Histories of other programs with invalid names, times and texts: they are left out or refused, without a traceback."""

import os
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest

from backupd.offsite.repository import snapshots
from backupd.offsite.restic import Answer, ResticFailed
from backupd.run.importing.formats import HostNames, read_dated, read_dirvish, read_rsnapshot
from btrkeep.errors import UsageError
from btrkeep.pool.marker import Pool
from tests.beds import session

ALONE = HostNames.parse(("web1",))
FAR = 1 << 50  # seconds: no calendar has that year


@pytest.fixture
def _east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zone where the first day of the year 1 begins in the year 0 of UTC."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("root", ["/now\0here", "/" + "x" * 300])
def test_a_configuration_of_rsnapshot_whose_root_is_no_path_is_refused(tmp_path: Path, root: str) -> None:
    (tmp_path / "rsnapshot.conf").write_text(f"snapshot_root\t{root}\n")
    with pytest.raises((UsageError, OSError)):
        read_rsnapshot(tmp_path / "rsnapshot.conf", HostNames())


@pytest.mark.parametrize("text", ["", "retain\tdaily\t7\n", "snapshot_root\t\n", "#snapshot_root\t/srv\n"], ids=repr)
def test_a_configuration_of_rsnapshot_without_a_root_is_refused(tmp_path: Path, text: str) -> None:
    """No other folder of this server is read instead."""
    (tmp_path / "rsnapshot.conf").write_text(text)
    with pytest.raises(UsageError, match="has no snapshot_root") as refused:
        read_rsnapshot(tmp_path / "rsnapshot.conf", HostNames())
    assert "backupd import rsnapshot FOLDER" in refused.value.hint


@pytest.mark.usefixtures("_east")
@pytest.mark.parametrize("name", ["0001-01-01", "0001-01-01T0000"])
def test_a_date_before_all_times_is_none(tmp_path: Path, name: str) -> None:
    for folder in (name, "2026-11-20"):
        (tmp_path / folder).mkdir()
    old_history = read_dated(tmp_path, ALONE)
    assert [tree.folder.name for tree in old_history.trees] == ["2026-11-20"]
    assert list(old_history.skipped) == [str(tmp_path / name)]


def test_trees_of_the_last_year_of_all_are_none(tmp_path: Path) -> None:
    for folder in ("9999-12-31T23:59:59", "99991231T235959", "2026-11-20"):
        (tmp_path / folder).mkdir()
    old_history = read_dated(tmp_path, ALONE)
    assert [tree.folder.name for tree in old_history.trees] == ["2026-11-20"]
    assert len(old_history.skipped) == 2


def test_a_time_that_no_calendar_has_costs_its_own_tree_and_no_other() -> None:
    top = Path(tempfile.mkdtemp(dir=session.folder()))  # in memory, where every time can be kept
    by_date, rsnapshot = top / "dated", top / "rsnapshot"
    for folder in ("backup.0", "2026-11-20"):
        (by_date / folder).mkdir(parents=True)
    for folder in ("daily.0", "daily.1"):
        (rsnapshot / folder / "web1").mkdir(parents=True)
    _stamp(by_date / "backup.0")
    _stamp(rsnapshot / "daily.0")
    assert [tree.folder.name for tree in read_dated(by_date, ALONE).trees] == ["2026-11-20"]
    old_history = read_rsnapshot(rsnapshot, HostNames())
    assert [tree.folder.parent.name for tree in old_history.trees] == ["daily.1"]
    assert list(old_history.skipped) == [str(rsnapshot / "daily.0")]


def test_a_host_that_the_history_does_not_have_is_an_error_and_not_nothing_to_do(tmp_path: Path) -> None:
    (tmp_path / "daily.0" / "web1").mkdir(parents=True)
    names = HostNames.parse(("shop=web1",))
    names.require_found(read_rsnapshot(tmp_path, names), tmp_path)
    names = HostNames.parse(("web1=shop",))  # the wrong way round
    with pytest.raises(UsageError, match="has no tree of a host shop"):
        names.require_found(read_rsnapshot(tmp_path, names), tmp_path)


@pytest.mark.parametrize(
    ("chosen", "by_name"),
    [
        ((), {"db": "db", "web1": "web1", "web2": "web2"}),
        (("web1",), {"web1": "web1"}),
        (("web1", "db"), {"db": "db", "web1": "web1"}),
        (("web1", "shop=web2"), {"web1": "web1", "web2": "shop"}),
        (("web2=web1", "web1=web2"), {"web1": "web2", "web2": "web1"}),
    ],
)
def test_a_host_that_is_named_alone_is_the_one_of_that_name_and_no_other(
    tmp_path: Path, chosen: tuple[str, ...], by_name: dict[str, str]
) -> None:
    """Trees of several machines never become the backups of one."""
    for host in ("web1", "web2", "db"):
        (tmp_path / "daily.0" / host).mkdir(parents=True)
    history = read_rsnapshot(tmp_path, HostNames.parse(chosen))
    assert {tree.folder.name: tree.host for tree in history.trees} == by_name == history.names


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        (("shop",), "no host in the history has this name"),
        (("web1", "shop"), "no host in the history has this name"),
        (("shop", "db=web1"), "no host in the history has this name"),
        (("shop=web1", "shop=web2"), "only one of them can be shop"),
        (("web1", "shop=web1"), "web1 was already given"),
    ],
)
def test_a_choice_that_could_mix_machines_is_refused(tmp_path: Path, chosen: tuple[str, ...], why: str) -> None:
    for day, host in product(("daily.0", "daily.1"), ("web1", "web2")):
        (tmp_path / day / host).mkdir(parents=True)
    with pytest.raises(UsageError, match=why):
        read_rsnapshot(tmp_path, HostNames.parse(chosen))


def test_a_host_that_was_renamed_there_is_one_here(tmp_path: Path) -> None:
    for age, host in ((0, "web"), (1, "web"), (2, "old"), (3, "old")):
        (tmp_path / f"daily.{age}" / host).mkdir(parents=True)
        os.utime(tmp_path / f"daily.{age}", (10**9 - age, 10**9 - age))
    history = read_rsnapshot(tmp_path, HostNames.parse(("web=old", "web")))
    assert [old_tree.folder.name for old_tree in history.of("web")] == ["old", "old", "web", "web"]
    (tmp_path / "daily.0" / "old").mkdir()  # and one of that name is there again
    os.utime(tmp_path / "daily.0", (10**9, 10**9))
    with pytest.raises(UsageError, match="only one of them can be web"):
        read_rsnapshot(tmp_path, HostNames.parse(("web=old", "web")))


def _stamp(folder: Path) -> None:
    os.utime(folder, (FAR, FAR))
    if folder.stat().st_mtime != FAR:
        pytest.skip("this filesystem keeps no such time")


@pytest.mark.usefixtures("_east")
def test_a_summary_of_dirvish_before_all_times_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "dirvish").mkdir()
    (tmp_path / "one" / "tree").mkdir(parents=True)
    (tmp_path / "one" / "summary").write_text("client: web1\nstatus: success\nbackup-begin: 0001-01-01 00:00:00\n")
    assert read_dirvish(tmp_path, HostNames()).trees == ()


def test_each_vault_of_a_client_with_several_is_a_host_for_its_path_is_another(tmp_path: Path) -> None:
    for vault, branch, client, path in (
        ("root", "default", "web1", "/"),
        ("home", "default", "web1", "/home"),
        ("db", "data", "db", "/var"),
        ("db", "logs", "db", "/log"),
        ("alone", "default", "shop", "/srv"),
    ):
        (tmp_path / vault / "dirvish").mkdir(parents=True, exist_ok=True)
        for day in (1, 2):
            (image := tmp_path / vault / f"{branch}-{day}" / "tree").mkdir(parents=True)
            lines = f"client: {client}\ntree: {path}\nbranch: {branch}\nstatus: success\nbackup-begin: 2026-03-0{day} 22:00:00\n"
            (image.parent / "summary").write_text(lines)
    old_history = read_dirvish(tmp_path, HostNames())
    paths = {host: [old_tree.path for old_tree in old_history.of(host)] for host in old_history.hosts}
    expected = {"root": "/", "home": "/home", "db-data": "/var", "db-logs": "/log", "shop": "/srv"}
    assert paths == {host: [path, path] for host, path in expected.items()}
    assert read_dirvish(tmp_path / "root", HostNames()).hosts == ["web1"]


@pytest.mark.parametrize("number", ["ab\x7f" * 3, "--all-of-it", 7, "", None])
def test_an_id_of_a_snapshot_that_is_none_is_not_given_back_to_restic(number: object) -> None:
    tags = ["btrkeep", "pool:x", "backup:2026-11-20T220003Z"]

    class Restic:
        def ask(self, *_: str) -> Answer:
            return Answer([[{"id": number, "hostname": "web1", "tags": tags}]], 0)

    with pytest.raises(ResticFailed, match="is invalid"):
        snapshots(cast("Any", Restic()), Pool(Path("/nowhere"), "x", "", rehearsal=False))
