"""Messages of a real rsync, and how they are classified. Messages are invented only if they cannot be provoked."""

import os
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.rsync.messages import LAST_LINES, MOST_UNLISTED, SAMPLES, MessageClass, Messages, classify
from tests.backupd.pulls import UNPRIVILEGED, Pulled, arrived, meanwhile, pull
from tests.beds import btrfs, session, work

HOSTILE = (b"new\nline", b"no utf-8 \xff\xfe", b"back\\slash", b"\x1b[31mred", b"\\#012", b"tab\tand\rreturn", "Umlaut ä".encode())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(5):
        (folder / f"file{number}").write_text(f"content {number}", encoding="utf-8")
    return folder


def read_all(data: bytes) -> Messages:
    messages = Messages()
    messages.feed(data)
    messages.close()
    return messages


def close_to_others(*paths: Path) -> None:
    for path in paths:
        path.chmod(0)


def test_what_the_sender_may_not_read_is_counted_once_each_and_blamed_on_no_one_else(source: Path, tmp_path: Path) -> None:
    close_to_others(source / "file1", source / "file3")
    pulled = pull(source, tmp_path / "backup", rsync_path=UNPRIVILEGED)
    assert pulled.exit_code == 23
    assert pulled.counts() == {MessageClass.UNREADABLE: 2}
    assert len(arrived(tmp_path / "backup")) == 3


def test_an_unreadable_folder_is_why_deletions_were_skipped(source: Path, tmp_path: Path) -> None:
    """This is rsync's only complaint on standard output."""
    pull(source, tmp_path / "backup")
    (source / "folder").mkdir()
    close_to_others(source / "folder")
    (source / "file0").unlink()
    pulled = pull(source, tmp_path / "backup", based=True, rsync_path=UNPRIVILEGED)
    assert pulled.counts() == {MessageClass.UNREADABLE: 1, MessageClass.DELETIONS_SKIPPED: 1}
    (tmp_path / "backup" / str(source)[1:] / "folder").chmod(0o755)  # as closed as at the source, for find too
    assert len(arrived(tmp_path / "backup")) == 5  # file0 is still there: the message was true


@pytest.mark.parametrize("missing", ["nothing", "nothing/deeper/still"])
def test_a_missing_source_is_said_once_and_nothing_else_is_to_blame(tmp_path: Path, missing: str) -> None:
    pulled = pull(tmp_path / missing, tmp_path / "backup")
    assert pulled.exit_code == 23
    assert pulled.counts() == {MessageClass.PATH_BROKEN: 1}
    assert str(tmp_path / missing) in pulled.messages.first(MessageClass.PATH_BROKEN)


def test_a_file_below_which_the_source_would_lie_is_a_missing_source(source: Path, tmp_path: Path) -> None:
    assert pull(source / "file1" / "inner", tmp_path / "backup").counts() == {MessageClass.PATH_BROKEN: 1}


def vanishing(source: Path, tmp_path: Path, extra: tuple[str, ...] = ()) -> Pulled:
    """A pull during which four files, a folder that was already listed and a folder that was not yet listed disappear."""
    (source / "aaa-first").write_bytes(os.urandom(3_000_000))  # keeps the sender busy until everything else is gone
    (source / "listed").mkdir()
    (source / "listed" / "inner").write_text("x", encoding="utf-8")
    for number in range(1500):  # rsync lists a thousand names ahead
        (source / "many" / f"folder{number:04}").mkdir(parents=True)
    gone = f"cd {source}; rm -r file1 file2 file3 file4 listed many/folder1499"
    return pull(source, tmp_path / "backup", based=True, extra=extra, shell=meanwhile(tmp_path / "ssh", 500_000, gone))


@pytest.mark.slow
def test_what_vanishes_in_mid_transfer_has_vanished_and_the_source_is_not_missing(source: Path, tmp_path: Path) -> None:
    pulled = vanishing(source, tmp_path)
    assert pulled.exit_code == 24
    assert pulled.counts() == {MessageClass.VANISHED: 6}


@pytest.mark.slow
def test_a_stopped_deletion_is_seen_though_vanished_files_hide_its_exit_status(source: Path, tmp_path: Path) -> None:
    for number in range(3):
        (source / f"old{number}").write_text("x", encoding="utf-8")
    pull(source, tmp_path / "backup")
    for number in range(3):
        (source / f"old{number}").unlink()
    stopped = pull(source, tmp_path / "backup", based=True, extra=("--max-delete=1",))
    assert (stopped.exit_code, stopped.counts()) == (25, {MessageClass.DELETE_LIMIT: 1})
    hidden = vanishing(source, tmp_path, ("--max-delete=1",))
    assert hidden.exit_code == 24
    assert hidden.counts()[MessageClass.DELETE_LIMIT] == 1


def test_a_full_pool_and_then_a_read_only_one_are_faults_of_this_server(
    make_btrfs: Callable[..., Path], source: Path, tmp_path: Path
) -> None:
    (source / "big").write_bytes(os.urandom(40 << 20))
    pool = make_btrfs(size="114M")
    work("dd", "if=/dev/zero", f"of={pool}/ballast", "bs=1M", check=False)
    (pool / "backup").mkdir()
    work("btrfs", "filesystem", "sync", pool)
    full = pull(source, pool / "backup")
    assert full.exit_code in (11, 23)
    assert full.messages.count(MessageClass.SERVER_FAULT)
    assert "No space left on device" in full.messages.first(MessageClass.SERVER_FAULT)
    btrfs.remount(pool, "ro")
    read_only = pull(source, pool / "backup")
    assert read_only.exit_code == 23
    assert set(read_only.counts()) == {MessageClass.SERVER_FAULT}
    assert "Read-only file system" in read_only.messages.first(MessageClass.SERVER_FAULT)


def test_an_attribute_too_big_for_btrfs_is_not_kept_and_the_pool_is_not_full(shared_btrfs: Path) -> None:
    """btrfs returns ENOSPC despite free space; as an error of the server, this would prevent complete backups of the
    host for ever.
    """
    source = Path(tempfile.mkdtemp(dir=session.folder(1)))  # in memory, where an attribute may have 64 KiB
    (source / "file").write_text("content", encoding="utf-8")
    (source / "other").write_text("content", encoding="utf-8")
    try:
        os.setxattr(source / "file", "user.big", b"x" * 30_000)
    except OSError as error:
        pytest.skip(f"left out: with big attributes (this kernel has none in {source}: {error.strerror})")
    pulled = pull(source, shared_btrfs / "backup")
    assert b"No space left on device (28)" in pulled.stderr
    assert (pulled.exit_code, pulled.counts()) == (23, {MessageClass.NOT_KEPT: 1})


@pytest.mark.root
def test_a_receiver_that_may_not_give_files_away_has_not_kept_them(source: Path, tmp_path: Path) -> None:
    os.chown(source / "file1", 4711, 4711)
    (tmp_path / "backup").mkdir()
    command = ("setpriv", "--bounding-set=-chown,-fowner", "--", "rsync", "-a", f"{source}/", f"{tmp_path}/backup/")
    messages = read_all(work(*command, check=False).stderr.encode())
    assert messages.count(MessageClass.NOT_KEPT) == 1
    assert "Operation not permitted (1)" in messages.first(MessageClass.NOT_KEPT)
    assert not messages.count(MessageClass.SERVER_FAULT)


def test_whatever_an_unreadable_file_is_called_it_is_one_line_that_cannot_touch_the_terminal(source: Path, tmp_path: Path) -> None:
    for name in HOSTILE:
        (source / os.fsdecode(name)).write_text("secret", encoding="utf-8")
        (source / os.fsdecode(name)).chmod(0)
    pulled = pull(source, tmp_path / "backup", rsync_path=UNPRIVILEGED)
    assert pulled.counts() == {MessageClass.UNREADABLE: len(HOSTILE)}
    assert all(line.isprintable() for line in (*pulled.messages.last, *pulled.messages.samples[MessageClass.UNREADABLE]))


@pytest.mark.parametrize(
    "name",
    [
        'x" failed: No space left on device (28)',
        "rsync: [receiver] y failed: Read-only file system (30)",
        'file has vanished: "z"',
        "IO error encountered -- skipping file deletion",
        "ERROR: a failed verification -- update discarded.",
    ],
)
def test_a_name_that_looks_like_another_message_is_still_just_unreadable(source: Path, tmp_path: Path, name: str) -> None:
    (source / name).write_text("secret", encoding="utf-8")
    (source / name).chmod(0)
    assert pull(source, tmp_path / "backup", rsync_path=UNPRIVILEGED).counts() == {MessageClass.UNREADABLE: 1}


def test_the_longest_path_does_not_hide_the_errno_at_the_end_of_its_line(source: Path, tmp_path: Path) -> None:
    inner = Path(*["d" * 200] * 15)
    (source / inner).mkdir(parents=True)
    (source / inner / "file").write_text("secret", encoding="utf-8")
    (source / inner / "file").chmod(0)
    pulled = pull(source, tmp_path / "backup", rsync_path=UNPRIVILEGED)
    assert pulled.counts() == {MessageClass.UNREADABLE: 1}
    assert len(pulled.messages.first(MessageClass.UNREADABLE)) < 1100


def test_a_connection_that_breaks_is_the_fault_of_no_file(source: Path, tmp_path: Path, badssh: Callable[..., Path]) -> None:
    (source / "big").write_bytes(os.urandom(3_000_000))
    for sent in (0, 100, 500_000):
        pulled = pull(source, tmp_path / "backup", shell=badssh("dies", sent))
        assert (sent, pulled.exit_code in (12, 255), pulled.counts()) == (sent, True, {})


@pytest.mark.parametrize(
    ("errno", "kind"), [*((errno, MessageClass.SERVER_FAULT) for errno in (5, 28, 30, 117)), (122, MessageClass.OVER_QUOTA)]
)
def test_errors_of_the_disk_are_the_servers_fault_only_where_the_server_met_them(errno: int, kind: MessageClass) -> None:
    line = f'write failed on "/srv/backup/x": {os.strerror(errno)} ({errno})'
    assert [classify(f"rsync: [{role}] {line}") for role in ("receiver", "generator", "Receiver")] == [kind] * 3
    assert classify(f"rsync: [sender] {line}") is MessageClass.UNREADABLE


def test_the_words_may_come_in_any_pieces() -> None:
    data = b'rsync: [sender] opendir "/a" failed: Permission denied (13)\nfile has vanished: "/b"\r\nlast words without an end'
    whole = read_all(data)
    assert whole.counts == {MessageClass.UNREADABLE: 1, MessageClass.VANISHED: 1, MessageClass.OTHER: 1}
    for size in (1, 2, 7, 60):
        pieces = Messages()
        for start in range(0, len(data), size):
            pieces.feed(data[start : start + size])
        pieces.close()
        assert (pieces.counts, pieces.samples, list(pieces.last)) == (whole.counts, whole.samples, list(whole.last))


def test_a_host_that_never_stops_complaining_costs_no_memory() -> None:
    messages = Messages()
    for _ in range(300):
        messages.feed(b"x" * 100_000)
    assert len(pickle.dumps(messages)) < 200_000
    for number in range(2000):
        messages.feed(b"\nfile has vanished: %d" % number)
    messages.close()
    assert messages.count(MessageClass.VANISHED) == 2000
    assert len(messages.samples[MessageClass.VANISHED]) == SAMPLES
    assert list(messages.last) == [f"file has vanished: {number}" for number in range(2000 - LAST_LINES, 2000)]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ('opendir "/srv/a" failed: Permission denied (13)', b"/srv/a"),
        ('opendir "/srv/a" failed" b" failed: Permission denied (13)', b'/srv/a" failed" b'),
        ('opendir "/srv/a\\#012b" failed: Permission denied (13)', b"/srv/a\nb"),
        ('readdir("/srv/a b"): Input/output error (5)', b"/srv/a b"),
        ('readlink_stat("/srv/a") failed: Transport endpoint is not connected (107)', b"/srv/a"),
        ('get_xattr_names: llistxattr("/srv/a",1024) failed: Permission denied (13)', b"/srv/a"),
        ('get_xattr_data: lgetxattr("/srv/a","user.x",0) failed: Input/output error (5)', b"/srv/a"),
        ("get_acl: sys_acl_get_file(srv/a, ACL_TYPE_ACCESS): Input/output error (5)", b"srv/a"),
        ('opendir "/srv/' + 1000 * "é" + '" failed: Permission denied (13)', b"/srv/" + 1000 * "é".encode()),
    ],
    ids=lambda value: str(value)[:20],
)
def test_whatever_keeps_a_folder_from_being_listed_is_remembered_by_its_path(words: str, path: bytes) -> None:
    """The formats of flist.c, xattrs.c and acls.c; most of them need a filesystem that fails."""
    messages = read_all(f"rsync: [sender] {words}\n".encode())
    assert (messages.counts, messages.unlisted, messages.unlisted_beyond) == ({MessageClass.UNREADABLE: 1}, {path}, 0)


def test_a_path_that_no_linux_can_have_is_not_looked_for() -> None:
    messages = read_all(b'rsync: [sender] opendir "/' + 1000 * b"srv/" + b'srv" failed: Permission denied (13)\n')
    assert (len(messages.unlisted), messages.unlisted_beyond) == (1, 0)
    messages = read_all(b'rsync: [sender] opendir "/' + 2050 * b"srv/" + b'srv" failed: Permission denied (13)\n')
    assert (messages.counts, messages.unlisted, messages.unlisted_beyond) == ({MessageClass.UNREADABLE: 1}, set(), 1)


def test_a_file_that_cannot_be_read_is_no_folder() -> None:
    messages = read_all(b'rsync: [sender] send_files failed to open "/srv/a": Permission denied (13)\n')
    assert (messages.counts, messages.unlisted) == ({MessageClass.UNREADABLE: 1}, set())


@pytest.mark.slow
def test_as_many_folders_as_a_host_names_cost_no_more_than_those_that_can_be_counted() -> None:
    messages = Messages()
    for number in range(200_000):
        messages.feed(b'rsync: [sender] opendir "/srv/%09d" failed: Permission denied (13)\n' % number)
    messages.feed(b"rsync: [sender] opendir without a name (13)\n")
    assert len(messages.unlisted) == MOST_UNLISTED
    assert messages.unlisted_beyond == 200_000 - MOST_UNLISTED + 1
    assert len(pickle.dumps(messages)) < 1_000_000


@pytest.mark.parametrize(
    ("often", "then"), [(b'getxattr("', b'","'), (b'listxattr("', b'",1'), (b"get_file(", b", ACL_TYPE_"), (b'"', b" ")]
)
def test_no_line_of_a_hosts_takes_long_to_be_understood(often: bytes, then: bytes) -> None:
    line = b"rsync: opendir " + often * (40_000 // len(often)) + then * (20_000 // len(then)) + b" (13)\n"
    messages, begun = Messages(), time.process_time()
    for _ in range(20):
        messages.feed(line)
    assert time.process_time() - begun < 2  # one such line took a second: twenty of them stopped the night of all hosts
    assert messages.count(MessageClass.UNREADABLE) == 20
