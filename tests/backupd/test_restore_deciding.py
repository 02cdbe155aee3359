"""Decisions for each restored name, its place, and the messages of rsync and tar: pure, with plain data."""

import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.files.attributes import acl_text
from backupd.files.cli.restore_view import result_line
from backupd.files.conflict_policy import (
    ALL,
    ENTERED,
    KEPT,
    NEVER,
    NEW,
    OLDER,
    OVERWRITTEN,
    REFUSED,
    SAME,
    LinkPlacer,
    decide,
    differing,
    same_time,
)
from backupd.files.placing import place_path, placed
from backupd.files.restore_request import command_words
from backupd.files.restore_types import RestoreRequest, RestoreResult, target_of
from backupd.files.tar_headers import DataMap, member, sparse_member
from backupd.files.tree import Entry, outermost
from backupd.files.zip_headers import zip_name
from backupd.rsync.restore_command import CONTENT, parse_item, restore_command
from btrkeep.config import Config, HostConfig
from btrkeep.config.settings import PoolSettings, SshSettings
from btrkeep.errors import UsageError

FILE = Entry(
    path=b"/etc/passwd",
    kind="file",
    size=1000,
    allocated=4096,
    mode=0o644,
    uid=0,
    gid=0,
    mtime=10**18,
    inode=7,
    links=1,
    device=1,
)
FOLDER, LINK = replace(FILE, kind="folder"), replace(FILE, kind="symlink", target=b"x")
NEWER, AGED = replace(FILE, mtime=10**18 + 1), replace(FILE, mtime=10**18 - 1)


@pytest.mark.parametrize(
    ("entry", "present", "overwrite", "wanted"),
    [
        (FILE, None, None, NEW),
        (FILE, FILE, None, SAME),
        (FILE, FILE, ALL, SAME),
        (FILE, NEWER, None, REFUSED),
        (FILE, NEWER, NEVER, KEPT),
        (FILE, NEWER, OLDER, KEPT),
        (FILE, NEWER, ALL, OVERWRITTEN),
        (FILE, AGED, None, REFUSED),
        (FILE, AGED, NEVER, KEPT),
        (FILE, AGED, OLDER, OVERWRITTEN),
        (FILE, replace(FILE, mode=0o600), OLDER, KEPT),
        (FILE, LINK, None, REFUSED),
        (FILE, LINK, ALL, OVERWRITTEN),
        (FOLDER, FOLDER, None, ENTERED),
        (FOLDER, replace(FOLDER, mode=0), ALL, ENTERED),
        *(
            (entry, other, how, REFUSED)
            for how in (None, NEVER, OLDER, ALL)
            for entry, other in ((FOLDER, FILE), (FILE, FOLDER), (FOLDER, LINK))
        ),
    ],
)
def test_what_is_there_and_the_request_decide(entry: Entry, present: Entry | None, overwrite: str | None, wanted: str) -> None:
    assert decide(entry, present, differing(entry, present) if present else (), overwrite).step == wanted


@given(
    st.sampled_from([None, NEVER, OLDER, ALL]), st.sampled_from([FILE, FOLDER, LINK]), st.sampled_from([NEWER, AGED, FOLDER, LINK])
)
def test_nothing_is_overwritten_without_leave(overwrite: str | None, entry: Entry, present: Entry) -> None:
    step = decide(entry, present, differing(entry, present), overwrite)
    if step.step == OVERWRITTEN:
        assert overwrite in (OLDER, ALL)
        assert "folder" not in (entry.kind, present.kind)
        assert overwrite == ALL or present.mtime < entry.mtime


def test_a_time_in_whole_seconds_is_the_same_when_the_destination_knows_no_others() -> None:
    assert same_time(5_999_999_999, 5_000_000_000)
    assert same_time(-1, -1_000_000_000)
    assert not same_time(5_999_999_999, 5_000_000_001)
    assert not same_time(5_999_999_999, 6_000_000_000)


def test_a_file_with_links_is_forgotten_with_the_last_of_them() -> None:
    links, twice = LinkPlacer(), replace(FILE, links=2)
    assert links.first(twice) is None
    links.placed(twice, (b"a",), 9)
    assert links.first(twice) == ((b"a",), 9)
    links.placed(twice, (b"b",), 9)
    assert links.first(twice) is None


@pytest.mark.parametrize(
    ("paths", "parents", "wanted"),
    [
        ([b"/etc/passwd"], False, [(b"passwd",)]),
        ([b"/etc/passwd"], True, [(b"etc", b"passwd")]),
        ([b"/"], False, [()]),
        ([b"/", b"/etc"], True, [()]),
        ([b"/etc/", b"//etc/nginx/"], False, [(b"etc",)]),
        ([b"/a/x", b"/b/x"], True, [(b"a", b"x"), (b"b", b"x")]),
    ],
)
def test_places_are_as_cp_has_them(paths: list[bytes], parents: bool, wanted: list[tuple[bytes, ...]]) -> None:
    assert [root.names for root in placed(paths, parents)] == wanted


def test_two_paths_of_one_place_are_refused() -> None:
    with pytest.raises(UsageError, match="would both become x"):
        placed([b"/a/x", b"/b/x"], parents=False)


def test_what_is_below_a_root_has_its_place_below_it() -> None:
    (root,) = placed([b"/srv/www"], parents=False)
    assert root.place(b"/srv/www/a/b") == (b"www", b"a", b"b")
    (all_of_it,) = placed([b"/"], parents=False)
    assert all_of_it.place(b"/srv/www") == (b"srv", b"www")
    assert place_path("/mnt", (b"a", b"\n")) == b"/mnt/a/\n"
    assert place_path("/", (b"a",)) == b"/a"


def test_doubles_and_paths_below_others_are_dropped() -> None:
    assert outermost([b"/a/b", b"/a", b"/ab", b"/a/"]) == [b"/a", b"/ab"]


@given(st.binary(min_size=1, max_size=40).filter(lambda name: not set(name) & {0, 47}))
def test_a_zip_gets_text_whatever_a_name_is(name: bytes) -> None:
    zip_name(name).encode("utf-8")
    assert "\\" not in zip_name(name)


@given(
    st.binary(min_size=1, max_size=300).filter(lambda name: not set(name) & {0}), st.integers(0, 2**40), st.integers(0, 2**32 - 1)
)
def test_a_members_head_is_whole_blocks_and_has_a_right_checksum(name: bytes, size: int, uid: int) -> None:
    entry = replace(FILE, size=size, uid=uid, mtime=-(10**9) - 5)
    data_map = DataMap.of(size, lambda: iter([(4096, 8192)]))
    assert (sum(map(len, data_map.pieces())) - data_map.length) in range(512)
    for head in (member(entry, name, {"user.a=b": b"\0\n"}), sparse_member(entry, name, {}, data_map)):
        assert len(head) % 512 == 0
        assert int(head[148:154], 8) == sum(head[:148]) + 8 * 32 + sum(head[156:512])


def test_an_acl_reads_as_getfacl_has_it_with_numbers() -> None:
    value = bytes.fromhex("0200000001000600ffffffff02000400d204000004000400ffffffff10000600ffffffff20000000ffffffff")
    assert acl_text(value) == "user::rw-,user:1234:r--,group::r--,mask::rw-,other::---"


@pytest.mark.parametrize(
    ("line", "kind", "new", "fields"),
    [
        (b"<f+++++++++|12|etc/x", "file", True, ()),
        (b"<f.st......|12|etc/x", "file", False, ("size", "time")),
        (b"<fcst......|12|etc/x", "file", False, ("content", "size", "time")),
        (b"cd+++++++++|0|etc/x/", "folder", True, ()),
        (b".d..tp.....|0|etc/x/", "folder", False, ("time", "mode")),
        (b"cLc.t......|5|etc/x", "symlink", False, ("content", "time")),
        (b"hf+++++++++|0|etc/x", "file", True, ()),
        (b".f...pog.ax|7|etc/x", "file", False, ("mode", "owner", "group", "ACL", "attributes")),
    ],
)
def test_an_item_of_rsync_is_understood(line: bytes, kind: str, new: bool, fields: tuple[str, ...]) -> None:
    item = parse_item(line)
    assert item is not None
    assert (item.name, item.kind, item.new, item.fields) == (b"etc/x", kind, new, fields)


def test_names_in_rsyncs_items_are_unescaped_and_other_lines_are_none() -> None:
    item = parse_item(b"<f+++++++++|1|a\\#012b|c")
    assert item is not None
    assert item.name == b"a\nb|c"
    assert parse_item(b"Number of files: 7") is None
    assert parse_item(b"       32,768 100%   31.25MB/s    0:00:00") is None


CONFIG = Config(
    Path("main.toml"),
    "main",
    PoolSettings(Path("/srv/backup"), Path("/var/lib/btrkeep/main"), ZoneInfo("UTC")),
    hosts={"web1": HostConfig("web1", address="root@web1.example.org", port=2222, paths=("/etc",))},
)


@pytest.mark.parametrize(
    ("text", "address", "folder", "port", "original"),
    [
        ("", "root@web1.example.org", b"/", 2222, True),
        ("root@new:/mnt", "root@new", b"/mnt", None, False),
        ("admin@web1.example.org:/mnt", "admin@web1.example.org", b"/mnt", 2222, False),
        ("root@[2001:db8::1]:/mnt", "root@[2001:db8::1]", b"/mnt", None, False),
        ("new:/a b:c", "new", b"/a b:c", None, False),
    ],
)
def test_a_target_is_the_host_or_the_machine_that_is_named(
    text: str, address: str, folder: bytes, port: int | None, original: bool
) -> None:
    target = target_of(CONFIG, "web1", text)
    assert (target.host.address, target.folder, target.host.port, target.original) == (address, folder, port, original)


@pytest.mark.parametrize("text", ["root@new", "new:", "new:mnt", "-oProxyCommand=x:/", "a::b", ":/x", "a b:/x", "/mnt", "x\n:/mnt"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected \[USER@\]HOST:DIR"):
        target_of(CONFIG, "web1", text)


def test_the_words_of_a_wish_are_those_of_the_command() -> None:
    wish = RestoreRequest("web1", "2026-11-20T220000Z", (b"/etc/a b", b"/\xff"), "/srv/out", "never", parents=True)
    assert command_words(wish) == (
        *("restore", "--json", "--progress-lines", "--overwrite=never", "--parents", "--to=/srv/out", "--"),
        *("web1@2026-11-20T220000Z", "/etc/a b", "/\udcff"),
    )
    assert command_words(replace(wish, to="", content=False), dry_run=True)[3:7] == (
        "--dry-run",
        "--overwrite=never",
        "--parents",
        "--compare=metadata",
    )
    every = command_words(
        replace(wish, overwrite=None, parents=False, privileged=True, anyway=True, port=22, only_below=("/a", "/b"))
    )
    assert every[3:8] == ("--privileged", "--anyway", "--port=22", "--only-below=/a", "--only-below=/b")


def test_a_comparison_of_contents_waits_for_a_checksum_that_takes_hours() -> None:
    """rsync 3.5 stopped after its --timeout: it sends nothing while it reads one large file. The last --timeout counts."""
    host = HostConfig("web1", address="root@web1", paths=())
    words = restore_command(host, SshSettings(), Path("/b/data"), [b"/vm"], b"/", True, CONTENT)
    assert [word for word in words if word.startswith("--timeout")] == ["--timeout=600", "--timeout=0"]


@pytest.mark.parametrize("name", [b"etc/passwd", b"n" * 100, b"n" * 101, b"caf\xc3\xa9", b"not utf-8 \xff"])
@pytest.mark.parametrize(
    "mtime", [0, 5, -1, 10**18 - 1, 10**18, 1_700_000_000_123_456_789, (8**11 - 1) * 10**9, 8**11 * 10**9, 10**19]
)
def test_a_header_is_read_back_by_python_s_tarfile_whichever_way_it_was_made(name: bytes, mtime: int) -> None:
    """Plain files with a usual name and time have a faster way. Numbers on both sides of a field's size."""
    for number in (0, 1000, 0o7777777, 0o7777777 + 1):
        entry = replace(FILE, mtime=mtime, uid=number, gid=number, mode=0o6755)
        for xattrs in ({}, {"user.x": b"1"}):
            data = member(entry, name, xattrs) + bytes(1024) + bytes(1024)
            with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8", errors="surrogateescape") as tar:
                (read,) = tar.getmembers()
            assert os.fsencode(read.name) == name
            assert (read.size, read.mode, read.uid, read.gid) == (1000, 0o6755, number, number)
            assert read.pax_headers["mtime"] == (f"{mtime // 10**9}.{mtime % 10**9:09}" if mtime >= 0 else "-0.000000001")
            assert read.isreg()


@pytest.mark.parametrize(
    ("size", "seconds", "words"),
    [
        (90 << 20, 1.5, "7 names restored, 90.0 MiB in 1.5s, 60.0 MiB/s"),
        (90 << 20, 0.0, "7 names restored, 90.0 MiB in 0.0s"),
        (612, 1.5, "7 names restored, 612 B in 1.5s"),
    ],
)
def test_the_result_has_the_rate_unless_it_says_nothing_of_the_disk(size: int, seconds: float, words: str) -> None:
    done = RestoreResult(seconds=seconds)
    done.counts[NEW].number, done.counts[NEW].size = 7, size
    assert result_line(done) == words
