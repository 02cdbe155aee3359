"""The versions of a path over all backups of a host: backups that are real snapshots, and backups that real runs made.

One host is made once for all that only look. The truth is stat, sha256sum and the script that made the backups.
"""

import os
import resource
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backupd.files.backup_selector import restorable
from backupd.files.versions import versions
from btrkeep.pool.marker import open_pool
from tests.beds import TOP, work
from tests.beds.history import every, moment, write_down
from tests.beds.lineage import make_lineage, read_only, writable
from tests.beds.nights import Nights
from tests.beds.opens import watched
from tests.beds.within import Within

pytestmark = [pytest.mark.btrfs]
LAST = moment("2026-11-20 22:00")
BIG = 20_000  # not inline, so its extents can be compared


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    return Within(shared_btrfs)


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Nights:
    nights = Within(module_btrfs, "--rehearsal")
    make_lineage(nights, "web1", every(1, 12, LAST), life, states={4: "suspect"})
    return nights


def nothing(_data: Path) -> None:
    """Changes nothing: a night without changes."""


def write(path: Path, text: str, mtime: int) -> None:
    path.write_text(text)
    os.utime(path, (mtime, mtime))


def life(number: int, data: Path) -> None:
    """Changes the source as in that one of the host's twelve nights."""
    etc = data / "etc"
    if number == 0:
        etc.mkdir()
        (etc / "sub").mkdir()
        write(etc / "never", "always the same", 100)
        (etc / "link").symlink_to("one")
        os.mkfifo(etc / "fifo")
    if number in (0, 3, 7):
        write(etc / "passwd", f"version {number}", 1000 + number)
    if number == 9:
        write(etc / "passwd", "version 3", 1003)  # the earlier content
    if number == 1:
        write(etc / "comes", "hello" * 1000, 5)
    if number == 4:
        (etc / "comes").unlink()  # a suspect backup
    if number == 5:
        write(etc / "comes", "hello" * 1000, 5)
    if number == 6:
        (etc / "comes").unlink()
    if number == 10:
        write(etc / "comes", "other", 6)
    if number == 11:
        (etc / "comes").unlink()
    if number == 2:
        (etc / "link").unlink()
        (etc / "link").symlink_to("two")
    if number == 5:
        (etc / "never").chmod(0o600)
        write(etc / "sub" / "deep", "x", 9)
    if number == 8:
        work("mv", etc / "sub", etc / "was")
        (etc / "sub").symlink_to("was")


def history(pool: Nights, path: str, *more: str) -> dict[str, Any]:
    return dict(pool.json("versions", *more, "web1", path))


def spans(answer: dict[str, Any], names: list[str]) -> list[tuple[int, int, int]]:
    """Returns the numbers of the first and last backup of each version, and how many backups have it."""
    return [(names.index(version["first"]), names.index(version["last"]), version["backups"]) for version in answer["versions"]]


def test_every_version_is_there_with_where_it_was_first_and_last_seen(pool: Nights) -> None:
    names = pool.names("web1")
    answer = history(pool, "/etc/passwd")
    assert spans(answer, names) == [(0, 2, 3), (3, 11, 7), (7, 8, 2)]
    assert [version["entry"]["size"] for version in answer["versions"]] == [9, 9, 9]
    assert [version["names"] for version in answer["versions"]][1] == [*names[3:7], *names[9:]]
    assert [version["changed"] for version in answer["versions"]] == [[], ["mtime", "content"], ["mtime", "content"]]
    assert answer["gone"] == []
    assert [backup["version"] for backup in answer["backups"]] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 1, 1, 1]
    assert answer["versions"][0]["first_seen"] == "2026-11-09T22:00:00Z"
    assert answer["versions"][1]["last_seen"] == "2026-11-20T22:00:00Z"


def test_the_versions_are_those_that_stat_sees(pool: Nights) -> None:
    for path in ("etc/passwd", "etc/never", "etc/link", "etc/comes", "etc", "etc/fifo"):
        seen: dict[str, list[str]] = {}
        for name in pool.names("web1"):
            if os.path.lexists(pool.data("web1", path, name)):
                fields = "%F %.9Y %a %u %g" + (" %s" if path != "etc" else "")
                words = work("stat", "-c", fields, pool.data("web1", path, name)).stdout
                if path == "etc/link":
                    words += work("readlink", pool.data("web1", path, name)).stdout
                seen.setdefault(words, []).append(name)
        answer = history(pool, f"/{path}")
        assert [version["names"] for version in answer["versions"]] == list(seen.values()), path
        assert all(version["certain"] for version in answer["versions"]) == (path != "etc/comes"), path  # it was written again


def test_a_path_that_went_and_came_back_says_when(pool: Nights) -> None:
    names = pool.names("web1")
    answer = history(pool, "/etc/comes")
    assert spans(answer, names) == [(1, 5, 4), (10, 10, 1)]
    assert [
        (names.index(absence["first"]), names.index(absence["last"]), absence["backups"], absence["doubtful"])
        for absence in answer["gone"]
    ] == [
        (4, 4, 1, True),
        (6, 9, 4, False),
        (11, 11, 1, False),
    ]
    assert [absence["came_back"] for absence in answer["gone"]] == [names[5], names[10], None]
    assert [absence["until"] for absence in answer["gone"]] == ["2026-11-14T22:00:00Z", "2026-11-19T22:00:00Z", None]
    assert [version["vanished"] for version in answer["versions"]] == ["2026-11-15T22:00:00Z", "2026-11-20T22:00:00Z"]
    assert [backup["found"] for backup in answer["backups"]].count("missing") == 7


def test_only_the_mode_changed_is_said(pool: Nights) -> None:
    first, second = history(pool, "/etc/never")["versions"]
    assert (second["changed"], second["same_content_as"]) == (["mode"], first["first"])
    (only,) = history(pool, "/etc/never", "--content")["versions"]
    assert (only["backups"], only["certain"]) == (12, True)


def test_a_folder_behind_what_became_a_symlink_is_not_said_to_be_gone(pool: Nights) -> None:
    answer = history(pool, "/etc/sub/deep")
    assert [backup["found"] for backup in answer["backups"]] == ["missing"] * 5 + ["there"] * 3 + ["behind a symlink"] * 4
    assert (answer["gone"], answer["versions"][0]["vanished"]) == ([], None)


def test_a_folder_is_told_apart_by_its_own_names_and_with_content_by_all_below(pool: Nights) -> None:
    names = pool.names("web1")
    by_names, by_all = history(pool, "/etc"), history(pool, "/etc", "--content")
    assert len(by_all["versions"]) > len(by_names["versions"]) - 2
    listed: dict[str, list[str]] = {}
    for name in names:  # the same by find
        fields = ("-printf", "%P %y %l", "(", "-type", "f", "-printf", " %s %T@", "-o", "-true", ")", "-printf", "\\n")
        words = work("find", ".", *fields, cwd=pool.data("web1", "etc", name)).stdout
        listed.setdefault("\n".join(sorted(words.splitlines())), []).append(name)
    assert [version["names"] for version in by_all["versions"]] == list(listed.values())


def test_the_terminal_shows_versions_and_gaps_in_order(pool: Nights) -> None:
    lines = pool.backupd("versions", "web1", "/etc/comes").stdout.splitlines()
    assert lines[0] == "/etc/comes of web1, file: 2 versions in 12 backups"
    assert [line.split()[0][:10] for line in lines[2:-1]] == ["2026-11-10", "2026-11-13", "2026-11-15", "2026-11-19", "2026-11-20"]
    assert lines[3].endswith("gone, again in 2026-11-14T220000Z; only suspect or failed backups show this")
    assert lines[6].endswith("gone, no longer there")


def test_a_path_that_no_backup_has_names_the_nearest(pool: Nights) -> None:
    done = pool.backupd("versions", "web1", "/etc/paswd", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: web1 has no /etc/paswd\nhint: did you mean /etc/passwd?\n"
    done = pool.backupd("versions", "web1@2026-11-20", "/etc/passwd", check=False)
    assert done.returncode == 2
    assert "`versions` reads all backups of the host" in done.stderr


def test_another_day_sees_what_was_there_by_then(pool: Nights) -> None:
    answer = history(pool, "/etc/passwd", "--now", "2026-11-12T23:00:00Z")
    assert (len(answer["backups"]), len(answer["versions"])) == (4, 2)


# --- equal versions


def lineage(nights: Nights, *changes: Callable[[Path], object], **more: Any) -> list[str]:
    """A host h1 with a large file /f that changes night after night."""

    def change(number: int, data: Path) -> None:
        if number == 0:
            write(data / "f", "a" * BIG, 50)
        else:
            changes[number - 1](data)

    return make_lineage(nights, "h1", every(1, len(changes) + 1, LAST), change, **more)


def checksums(nights: Nights) -> list[str]:
    return [work("sha256sum", nights.data("h1", "f", name)).stdout.split()[0] for name in nights.names("h1")]


def anew(text: str) -> Callable[[Path], object]:
    """Makes a backup without a base: with new inodes and new extents."""
    return lambda data: write(data / "f", text * BIG, 50)


def test_a_copy_that_shares_its_extents_is_known_to_be_the_same_and_is_not_read(nights: Nights) -> None:
    def split(data: Path) -> None:  # as the hard link guard does every night
        work("cp", "-p", "--reflink=always", data / "f", data / "g")
        (data / "g").rename(data / "f")

    lineage(nights, split, split)
    inodes = {nights.data("h1", "f", name).stat().st_ino for name in nights.names("h1")}
    assert len(inodes) == 3
    for more in ((), ("--content",)):
        (answer,) = nights.json("versions", "h1", "/f", *more)["versions"]
        assert (answer["backups"], answer["certain"], answer["sha256"]) == (3, True, None)


def test_a_copy_of_compressed_data_is_only_known_to_be_the_same_when_it_was_read(nights: Nights) -> None:
    """The kernel does not tell which part of a compressed extent a file uses, so two different files could look the same."""

    def compressed(data: Path) -> None:
        (data / "f").unlink()
        (data / "f").touch()
        work("btrfs", "property", "set", data / "f", "compression", "zstd")
        write(data / "f", "a" * BIG, 50)
        work("sync", "-f", data)

    def split(data: Path) -> None:
        work("cp", "-p", "--reflink=always", data / "f", data / "g")
        (data / "g").rename(data / "f")

    names = lineage(nights, compressed, split)
    assert "encoded" in work("filefrag", "-v", nights.data("h1", "f", names[-1])).stdout
    (answer,) = nights.json("versions", "h1", "/f")["versions"]
    assert (answer["backups"], answer["certain"]) == (3, False)
    (answer,) = nights.json("versions", "h1", "/f", "--content")["versions"]
    assert (answer["backups"], answer["certain"], answer["sha256"]) == (3, True, checksums(nights)[0])


def test_a_backup_from_nothing_is_the_same_by_size_and_time_and_only_reading_makes_it_certain(nights: Nights) -> None:
    lineage(nights, anew("a"), anew("b"), anew=(1, 2))
    (answer,) = nights.json("versions", "h1", "/f")["versions"]
    assert (answer["backups"], answer["certain"]) == (3, False)
    assert "\n~: same size and time" in nights.backupd("versions", "h1", "/f").stdout
    first, second = nights.json("versions", "h1", "/f", "--content")["versions"]
    assert [first["sha256"], first["sha256"], second["sha256"]] == checksums(nights)
    assert (second["changed"], first["certain"], second["certain"]) == (["content"], True, True)


def test_a_file_changed_in_place_with_its_time_put_back_is_not_called_certain(nights: Nights) -> None:
    def hidden(data: Path) -> None:
        with (data / "f").open("r+b") as file:
            file.write(b"evil")
        os.utime(data / "f", (50, 50))

    lineage(nights, hidden)
    assert len({nights.data("h1", "f", name).stat().st_ino for name in nights.names("h1")}) == 1
    (answer,) = nights.json("versions", "h1", "/f")["versions"]
    assert answer["certain"] is False
    assert [version["sha256"] for version in nights.json("versions", "h1", "/f", "--content")["versions"]] == checksums(nights)


def test_short_files_that_differ_in_spite_of_size_and_time_are_two_versions(nights: Nights) -> None:
    lineage(nights, lambda data: write(data / "s", "one", 7), lambda data: write(data / "s", "two", 7))
    answer = nights.json("versions", "h1", "/s")["versions"]
    assert [(row["changed"], row["certain"]) for row in answer] == [([], True), (["content"], True)]


def test_a_file_that_was_only_touched_has_the_same_content(nights: Nights) -> None:
    lineage(nights, lambda data: os.utime(data / "f", (99, 99)))
    first, second = nights.json("versions", "h1", "/f")["versions"]
    assert (second["changed"], second["same_content_as"]) == (["mtime"], first["first"])
    assert len(nights.json("versions", "h1", "/f", "--content")["versions"]) == 1


@pytest.mark.parametrize(("path", "counts"), [("f", [2, 3, 1]), ("folder", [1, 3, 1])])
def test_another_acl_or_attribute_alone_is_another_version(nights: Nights, path: str, counts: list[int]) -> None:
    """Attributes that are set to their old values make no new version."""
    lineage(
        nights,
        lambda data: (data / "folder").mkdir(),
        lambda data: work("setfacl", "-m", "u:1234:rX", data / path),
        nothing,
        lambda data: os.chown(data / path, 0, 0),
        lambda data: os.setxattr(data / path, "user.why", b"because"),
    )
    answer = nights.json("versions", "h1", f"/{path}")["versions"]
    assert [(row["backups"], row["changed"], row["certain"]) for row in answer] == [
        (counts[0], [], True),
        (counts[1], ["xattrs"], True),
        (counts[2], ["xattrs"], True),
    ]
    assert len(nights.json("versions", "h1", f"/{path}", "--content")["versions"]) == 1


def test_what_is_the_same_inode_untouched_is_not_opened(nights: Nights) -> None:
    names = lineage(nights, *[nothing] * 5)
    with watched(*(nights.data("h1", "f", name) for name in names)) as opens:
        (answer,) = nights.json("versions", "h1", "/f", "--content")["versions"]
        assert (answer["backups"], opens.count()) == (6, 0)


def test_a_version_that_came_back_as_it_was_and_stayed_has_not_vanished(nights: Nights) -> None:
    def back(data: Path) -> None:
        work("cp", "-p", "--reflink=always", nights.data("h1", "f", nights.names("h1")[0]), data / "f")

    lineage(nights, lambda data: (data / "f").unlink(), back)
    document = nights.json("versions", "h1", "/f")
    ((answer,), (gone,)) = document["versions"], document["gone"]
    assert (answer["backups"], answer["vanished"], answer["certain"]) == (2, None, True)
    assert (gone["backups"], gone["came_back"]) == (1, nights.names("h1")[2])


# --- unreadable or missing parts of a backup


def test_only_a_source_path_that_was_looked_through_says_that_something_is_gone(nights: Nights) -> None:
    def records(outcome: str) -> dict[str, Any]:
        return {
            "settings": {"paths": ["/srv", "/etc"]},
            "paths": [{"path": "/srv", "outcome": outcome}, {"path": "/etc", "outcome": "complete"}],
        }

    def change(number: int, data: Path) -> None:
        if number == 0:
            (data / "srv").mkdir()
            (data / "srv" / "f").touch()
        if number == 1:
            (data / "srv" / "f").unlink()

    rows = [records("complete"), records("broken"), {"settings": {"paths": ["/etc"]}}, records("suspect"), records("complete")]
    states = {1: "failed", 3: "suspect"}
    make_lineage(nights, "h1", every(1, 5, LAST), change, states=states, records=dict(enumerate(rows)))
    answer = nights.json("versions", "h1", "/srv/f")
    assert [backup["found"] for backup in answer["backups"]] == ["there", "not finished", "not backed up", "missing", "missing"]
    (gone,) = answer["gone"]
    assert (gone["first"], gone["doubtful"]) == (nights.names("h1")[3], False)
    assert "not backed up in 1 backup: 2026-11-18T220000Z" in nights.backupd("versions", "h1", "/srv/f").stdout


def test_states_say_where_a_version_is_still_to_be_had(nights: Nights) -> None:
    names = lineage(nights, anew("b"), nothing, lambda data: write(data / "f", "c", 3), states={2: "suspect"})
    write_down(nights, "h1", backups={names[0]: {"expired": {"at": "2026-11-20T22:00:00Z", "why": "no rule keeps it"}}})
    expired, mixed, last = nights.json("versions", "h1", "/f", "--content")["versions"]
    assert (expired["states"], expired["best"]) == (["expired"], names[0])
    assert (mixed["states"], mixed["best"], mixed["last"]) == (["complete", "suspect"], names[1], names[2])
    assert "only in expired backups" in nights.backupd("versions", "h1", "/f", "--content").stdout
    assert last["changed"] == ["size", "mtime", "content"]


def test_a_planted_symlink_and_a_broken_record_leave_the_others_to_be_told(nights: Nights, tmp_path: Path) -> None:
    names = lineage(nights, nothing, nothing, nothing)
    (tmp_path / "f").write_text("secret")
    planted, damaged = nights.backup("h1", names[1]), nights.backup("h1", names[2])
    for path in (planted, damaged):
        writable(path)
    shutil.rmtree(planted / "data")
    (planted / "data").symlink_to(tmp_path)
    (damaged / "backup.json").write_text("{")
    for path in (planted, damaged):
        read_only(path)
    with watched(tmp_path / "f") as opens:
        answer = nights.json("versions", "h1", "/f", "--content")
        assert opens.count() == 0
    assert [(backup["name"], backup["found"]) for backup in answer["backups"]] == [
        (names[0], "there"),
        (names[1], "unreadable"),
        (names[3], "there"),
    ]


def test_a_backup_that_is_deleted_meanwhile_is_passed_over(nights: Nights) -> None:
    names = lineage(nights, nothing, nothing)
    restorables = list(restorable(open_pool(nights.pool), "h1"))
    work("btrfs", "subvolume", "delete", nights.backup("h1", names[1]))
    history = versions(restorables, b"/f")
    assert [backup.name for backup in history.backups] == [names[0], names[2]]
    assert [version.backups for version in history.versions] == [2]


# --- how long it takes


def test_34_backups_take_less_than_a_fifth_of_a_second_and_no_library_of_databases(nights: Nights) -> None:
    """Processor time of the whole process, because the machine is busy; bench.files measures the wall clock."""

    def change(number: int, data: Path) -> None:
        write(data / "f", f"{number}", number)

    make_lineage(nights, "h1", every(1, 34, LAST), change)
    for path, count in (("/f", 34), ("/", 34)):
        used = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            output = nights.backupd("versions", "h1", path).stdout
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert f"{count} versions in 34 backups" in output or path == "/"
        assert min(used) < 0.2
    loaded = work(sys.executable, "-X", "importtime", "-m", "backupd", "versions", "--help", cwd=TOP).stderr
    assert "backupd.files.versions" in loaded
    assert not [name for name in ("asyncio", "rich", "numpy") if f" {name}\n" in loaded]


# --- real runs


def test_versions_of_real_backups_are_those_of_the_source(nights: Nights) -> None:
    source = nights.source / "www"
    (source / "sub").mkdir(parents=True)
    write(source / "page", "<p>" * 4000, 1000)
    write(source / "linked", "x" * BIG, 77)
    os.link(source / "linked", source / "also")
    write(source / "hostile\n\udcff\x1b[31m", "y" * 10, 5)
    nights.host("web1", source)
    nights.run()
    write(source / "page", "<b>" * 5000, 2000)
    nights.run()
    (source / "page").unlink()
    nights.run()
    nights.run()
    write(source / "page", "<i>" * 10, 3000)
    nights.run()
    names, path = nights.names("web1"), str(source)
    answer = nights.json("versions", "web1", f"{path}/page")
    assert [(version["entry"]["size"], version["first"], version["last"]) for version in answer["versions"]] == [
        (12000, names[0], names[0]),
        (15000, names[1], names[1]),
        (30, names[4], names[4]),
    ]
    assert [(absence["first"], absence["came_back"], absence["backups"]) for absence in answer["gone"]] == [(names[2], names[4], 2)]
    (linked,) = nights.json("versions", "web1", f"{path}/linked")["versions"]
    assert (linked["backups"], linked["certain"]) == (5, True)
    assert len({nights.data("web1", source / "linked", name).stat().st_ino for name in names}) > 1  # the guard split them
    (hostile,) = nights.json("versions", "web1", f"{path}/hostile\n\udcff\x1b[31m")["versions"]
    assert (hostile["backups"], os.fsencode(hostile["entry"]["name"])) == (5, b"hostile\n\xff\x1b[31m")
    shown = nights.backupd("versions", "web1", f"{path}/hostile\n\udcff\x1b[31m").stdout
    assert shown.startswith(f"{path}/hostile\\n\\xff\\x1b[31m of web1, file: 1 version in 5 backups\n")
    assert datetime.now(UTC).strftime("%Y-%m-%d") in shown
