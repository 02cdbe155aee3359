"""An archive contains exactly the files that were written to it, according to GNU tar, Python's tarfile and Info-ZIP."""

import errno
import fcntl
import io
import os
import stat
import subprocess
import tarfile
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from backupd.files.archive import ArchiveResult, write_archive
from backupd.files.restore_types import RestoreProgress
from backupd.files.spool import LinkTable
from backupd.files.to_tar import write_stream
from backupd.files.tree import Tree
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.process.progress import Cancelled
from tests.beds import Entry, differences, manifest, work
from tests.beds.everything import everything

pytestmark = [pytest.mark.root, pytest.mark.btrfs]

WARNINGS = "--warning=no-timestamp"  # for times before 1970 and after today
EXTRACT = ("tar", "-x", WARNINGS, "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "--same-owner", "-p", "-f")


@pytest.fixture
def backup(shared_btrfs: Path) -> Path:
    """A folder in the form of a backup: everything that a host can have is below `data`."""
    everything(shared_btrfs / "data" / "srv")
    return shared_btrfs


def written(backup: Path, to: Path, kind: str, *paths: bytes) -> ArchiveResult:
    with Tree(backup) as tree, to.open("wb") as out:
        done = write_archive(tree, paths, kind, out)
    assert done.size == to.stat().st_size
    return done


def extracted(tar: Path, out: Path) -> Path:
    out.mkdir()
    done = work(*EXTRACT, tar, "-C", out)
    assert (done.stdout, done.stderr) == ("", "")
    return out


def without_sockets(by_name: dict[bytes, Entry]) -> dict[bytes, Entry]:
    return {name: entry for name, entry in by_name.items() if entry.kind != "s"}


def test_gnu_tar_extracts_all_that_a_backup_keeps(backup: Path, tmp_path: Path) -> None:
    wanted = manifest(backup / "data" / "srv", blocks=True)
    done = written(backup, tmp_path / "tar", "tar", b"/srv")
    out = extracted(tmp_path / "tar", backup / "out")
    assert differences(without_sockets(wanted), manifest(out / "srv", blocks=True)) == []
    (socket,) = (name for name, entry in wanted.items() if entry.kind == "s")
    assert [path for path, _ in done.skipped] == [b"/srv/" + socket]
    assert done.entries == len(wanted) - 1 > 100


def test_a_tar_of_the_root_holds_the_whole_backup(backup: Path, tmp_path: Path) -> None:
    (backup / "data").chmod(0o711)
    written(backup, tmp_path / "tar", "tar", b"/")
    out = extracted(tmp_path / "tar", backup / "out")
    assert differences(without_sockets(manifest(backup / "data")), manifest(out)) == []


def test_names_in_an_archive_are_whole_paths(backup: Path, tmp_path: Path) -> None:
    for kind, listing in (("tar", ("tar", "-tf")), ("zip", ("unzip", "-Z1"))):
        written(backup, tmp_path / kind, kind, b"/srv/contents/below")
        listed = work(*listing, tmp_path / kind).stdout.splitlines()
        assert listed == ["srv/contents/below/", "srv/contents/below/and-again"], (kind, listed)


def test_a_path_below_another_one_is_in_the_archive_once(backup: Path, tmp_path: Path) -> None:
    written(backup, tmp_path / "tar", "tar", b"/srv/contents/below/and-again", b"/srv/contents", b"/srv/contents/")
    listed = work("tar", "-tf", tmp_path / "tar").stdout.splitlines()
    assert len(listed) == len(set(listed))
    assert "srv/contents/below/and-again" in listed


def test_pythons_tarfile_reads_the_same_names_sizes_and_contents(backup: Path, tmp_path: Path) -> None:
    written(backup, tmp_path / "tar", "tar", b"/srv/contents", b"/srv/names")
    data = os.fsencode(backup / "data")
    with tarfile.open(tmp_path / "tar", errorlevel=2) as tar:
        for tar_info in tar:
            real = data + b"/" + os.fsencode(tar_info.name)
            assert tar_info.size == (os.lstat(real).st_size if tar_info.isfile() else 0)
            if tar_info.isfile() and (content := tar.extractfile(tar_info)):
                with open(real, "rb") as file:  # noqa: PTH123 - a name that is not text
                    assert content.read() == file.read()


def test_a_huge_sparse_file_is_a_small_tar_and_comes_back_whole(shared_btrfs: Path, tmp_path: Path) -> None:
    """Sizes beyond the eleven digits of a header, with data at the far end."""
    (shared_btrfs / "data").mkdir()
    for name, size in (("hole", 9 << 40), ("end", 9 << 40)):
        with (shared_btrfs / "data" / name).open("wb") as file:
            file.truncate(size)
            if name == "end":
                file.seek(size - 3)
                file.write(b"end")
    done = written(shared_btrfs, tmp_path / "tar", "tar", b"/")
    assert done.size < 30_000
    out = extracted(tmp_path / "tar", shared_btrfs / "out")
    assert (out / "hole").stat().st_size == (out / "end").stat().st_size == 9 << 40
    assert (out / "end").stat().st_blocks * 512 <= 65536
    with (out / "end").open("rb") as file:
        file.seek(-3, os.SEEK_END)
        assert file.read() == b"end"


def test_info_zip_extracts_files_folders_and_symlinks_with_modes_times_and_owners(backup: Path, tmp_path: Path) -> None:
    wanted = manifest(backup / "data" / "srv")
    done = written(backup, tmp_path / "zip", "zip", b"/srv/owners_and_modes", b"/srv/contents", b"/srv/special", b"/srv/times")
    work("unzip", "-tq", tmp_path / "zip")
    work("unzip", "-qXK", tmp_path / "zip", "-d", tmp_path / "out")
    by_name = manifest(tmp_path / "out" / "srv")
    parts = (b"owners_and_modes", b"contents", b"special", b"times")
    names = {name for name, entry in wanted.items() if name.split(b"/")[0] in parts and entry.kind in "fdl"}
    assert {name for name in by_name if name} == names
    assert done.skipped_count == len([entry for name, entry in wanted.items() if name.split(b"/")[0] in parts]) - len(names) > 3
    for name in names:
        was, now = wanted[name], by_name[name]
        assert (was.kind, was.sha256, was.target) == (now.kind, now.sha256, now.target)
        if was.kind == "f":
            assert (was.mode, was.uid, was.gid) == (now.mode, now.uid, now.gid), name
            if 0 <= was.mtime < 2**31 * 10**9:
                assert was.mtime // 10**9 == now.mtime // 10**9, name


def test_names_that_are_no_utf8_are_readable_in_a_zip(backup: Path, tmp_path: Path) -> None:
    done = written(backup, tmp_path / "zip", "zip", b"/srv/names")
    work("unzip", "-tq", tmp_path / "zip")
    assert "srv/names/not utf-8 %FF%FE" in work("unzip", "-Z1", tmp_path / "zip").stdout.splitlines()
    assert done.entries == len(manifest(backup / "data" / "srv" / "names"))


def test_what_is_mounted_in_a_backup_is_in_no_archive_and_ends_it(backup: Path, tmp_path: Path) -> None:
    """The mount hides files of the backup."""
    point = backup / "data" / "srv" / "contents" / "empty-folder"
    work("mount", "-t", "tmpfs", "tmpfs", point)
    try:
        (point / "secret").touch()
        for kind in ("tar", "zip"):
            with pytest.raises(OSError, match="a mount there hides"):
                written(backup, tmp_path / kind, kind, b"/srv/contents")
    finally:
        work("umount", point)
    assert not [kind for kind in ("tar", "zip") if b"secret" in (tmp_path / kind).read_bytes()]


def test_a_file_that_is_mounted_on_a_file_of_a_backup_ends_an_archive(shared_btrfs: Path, tmp_path: Path) -> None:
    """Plain files are written in groups, and this is one by its name and type."""
    (shared_btrfs / "data").mkdir()
    for name in ("a", "b", "c"):
        (shared_btrfs / "data" / name).write_bytes(b"ours")
    (tmp_path / "secret").write_bytes(b"secret")
    work("mount", "--bind", tmp_path / "secret", shared_btrfs / "data" / "b")
    try:
        for kind in ("tar", "zip"):
            with pytest.raises(OSError, match="a mount there hides"):
                written(shared_btrfs, tmp_path / kind, kind, b"/")
            assert b"secret" not in (tmp_path / kind).read_bytes()
    finally:
        work("umount", shared_btrfs / "data" / "b")


def test_memory_is_bounded_whatever_the_size(shared_btrfs: Path) -> None:
    (shared_btrfs / "data").mkdir()
    (shared_btrfs / "data" / "big").write_bytes(bytes(range(256)) * 4096 * 64)
    (shared_btrfs / "data" / "hole").touch()
    os.truncate(shared_btrfs / "data" / "hole", 1 << 40)
    for number in range(3000):
        (shared_btrfs / "data" / f"file{number}").write_bytes(b"x")
    with Tree(shared_btrfs) as tree, Path(os.devnull).open("wb") as out:
        tracemalloc.start()
        write_archive(tree, [b"/"], "tar", out)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert used < 8 << 20


def test_a_file_that_cannot_be_read_ends_the_archive(backup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial archive must not look like a complete one."""
    real = os.pread

    def broken(fd: int, length: int, offset: int) -> bytes:
        if stat.S_ISREG(os.fstat(fd).st_mode) and os.fstat(fd).st_size == 300_000:
            raise OSError(5, "Input/output error")
        return real(fd, length, offset)

    monkeypatch.setattr(os, "pread", broken)
    for kind in ("tar", "zip"):
        names: list[bytes] = []
        with Tree(backup) as tree, pytest.raises(OSError, match="Input/output error"):
            write_archive(tree, [b"/srv"], kind, Sink(names))
        assert names


@pytest.mark.parametrize("broken", ["map of a file with holes", "table of links"])
def test_a_tar_that_ends_before_a_member_is_incomplete_for_every_reader(
    shared_btrfs: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    data = shared_btrfs / "data"
    data.mkdir()
    (data / "a").write_bytes(b"whole")
    (data / "b").touch()
    os.truncate(data / "b", 1 << 20)
    (data / "c").write_bytes(b"two names")
    (data / "d").hardlink_to(data / "c")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO if broken.startswith("map") else errno.ENOSPC, broken)

    if broken.startswith("map"):
        monkeypatch.setattr(os, "lseek", fail)
    else:
        monkeypatch.setattr(LinkTable, "seen", fail)
    out: list[bytes] = []
    with Tree(shared_btrfs) as tree, pytest.raises(OSError, match=broken) as error:
        write_archive(tree, [b"/"], "tar", Sink(out))
    assert error.value.filename == ("/b" if broken.startswith("map") else None)
    listed = subprocess.run(("tar", "-t"), input=b"".join(out), capture_output=True, check=False)
    assert b"a\n" in listed.stdout
    assert listed.returncode == 2, listed
    with pytest.raises(tarfile.ReadError), tarfile.open(fileobj=io.BytesIO(b"".join(out))) as archive:
        archive.getmembers()


def test_a_tar_that_a_signal_ends_between_two_members_is_incomplete_for_every_reader(shared_btrfs: Path) -> None:
    (shared_btrfs / "data").mkdir()
    for number in range(3000):
        (shared_btrfs / "data" / f"file{number:04}").touch()
    out: list[bytes] = []

    class Stopped:
        def write(self, data: bytes, /) -> None:
            out.append(data)
            if sum(map(len, out)) > 1 << 20:
                raise Cancelled

    with Tree(shared_btrfs) as tree, pytest.raises(Cancelled):
        write_archive(tree, [b"/"], "tar", Stopped())
    listed = subprocess.run(("tar", "-t"), input=b"".join(out), capture_output=True, check=False)
    assert 100 < len(listed.stdout.splitlines()) < 3000
    assert listed.returncode == 2, listed


def test_a_tar_that_a_signal_ends_with_the_last_bytes_of_a_member_is_incomplete_for_every_reader(shared_btrfs: Path) -> None:
    data = shared_btrfs / "data"
    data.mkdir()
    for number in range(200):
        (data / f"link{number:03}").symlink_to("x" * 900)
    for number, size in enumerate((2 << 20, (2 << 20) + 1000, 200_000)):
        (data / f"large{number}").write_bytes(os.urandom(size))
        (data / f"folder{number}").mkdir()

    def stopped(last: int) -> bytes:
        """Returns the tar of which that many pieces were written."""
        out: list[bytes] = []

        class Stopped:
            def write(self, data: bytes, /) -> None:
                out.append(data)
                if len(out) >= last:
                    raise Cancelled

        with Tree(shared_btrfs) as tree, suppress(Cancelled):
            write_archive(tree, [b"/"], "tar", Stopped())
        return b"".join(out)

    whole, ends = stopped(1 << 20), 0
    while (cut := stopped(ends + 1)) != whole:
        ends += 1
        listed = subprocess.run(("tar", "-t"), input=cut, capture_output=True, check=False)
        assert listed.returncode == 2, (ends, len(cut), listed)
    assert ends > 5


def streamed(backup: Path, pipe_bytes: list[int], last: int = 1 << 30) -> bytes:
    """Reads the tar from a pipe, until the progress was reported that many times. Appends the size of the pipe."""
    reading, writing = os.pipe()
    reports = 0

    def stop_after_reports(_: RestoreProgress) -> None:
        nonlocal reports
        reports += 1
        if reports >= last:
            raise Cancelled

    def write() -> None:
        with Tree(backup) as tree, suppress(Cancelled):
            write_stream(tree, [b"/"], writing, stop_after_reports)
        pipe_bytes.append(fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ))
        os.close(writing)

    with ThreadPoolExecutor() as pool, os.fdopen(reading, "rb") as file:
        ended = pool.submit(write)
        content = file.read()
        ended.result()
    return content


def test_a_tar_into_a_pipe_has_large_files_from_the_kernel_and_is_whole_only_at_its_end(
    shared_btrfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, sent, real = shared_btrfs / "data", list[int](), os.sendfile
    data.mkdir()
    for number, size in enumerate((3 << 20, (2 << 20) + 1000, 200_000)):
        (data / f"large{number}").write_bytes(os.urandom(size))
    with (data / "sparse").open("wb") as file:
        file.seek(4 << 20)
        file.write(os.urandom(2 << 20))
        file.truncate(8 << 20)

    def sendfile(*words: int) -> int:
        sent.append(real(*words))
        return sent[-1]

    monkeypatch.setattr(os, "sendfile", sendfile)
    pipe_bytes, ends = list[int](), 0
    whole = streamed(shared_btrfs, pipe_bytes)
    assert sum(sent) == 7 * (1 << 20) + 1000 - 3 * 512
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        for member in archive.getmembers():
            if content := archive.extractfile(member):
                assert content.read() == (data / member.name).read_bytes()
    while (cut := streamed(shared_btrfs, pipe_bytes, ends + 1)) != whole:
        ends += 1
        listed = subprocess.run(("tar", "-t"), input=cut, capture_output=True, check=False)
        assert listed.returncode == 2, (ends, len(cut), listed)
    assert ends > 8
    assert set(pipe_bytes) == {1 << 20}


@pytest.mark.parametrize("reads", [True, False])
def test_a_large_file_that_ends_early_or_a_reader_that_leaves_is_named(
    shared_btrfs: Path, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """The kernel's error during sendfile does not show which side failed."""
    (shared_btrfs / "data").mkdir()
    large, real = shared_btrfs / "data" / "large", os.sendfile
    large.write_bytes(os.urandom(4 << 20))
    reading, writing = os.pipe()

    def failing(out: int, source: int, offset: int, count: int) -> int:
        if offset:
            if not reads:
                os.close(reading)
            raise OSError(errno.EIO, "Input/output error") if reads else BrokenPipeError(errno.EPIPE, "Broken pipe")
        return real(out, source, offset, 4096)

    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "sendfile", failing)
    if reads:
        monkeypatch.setattr(os, "pread", broken)
    with (
        Tree(shared_btrfs) as tree,
        pytest.raises(OperatorError, match="/large cannot be read in the backup: Input" if reads else "closed the pipe"),
    ):
        write_stream(tree, [b"/"], writing, lambda _: None)
    os.close(writing)
    if reads:
        os.close(reading)


def test_a_tar_waits_for_its_reader_where_writes_to_the_pipe_do_not(shared_btrfs: Path) -> None:
    """As in a pipe that another program has opened without waiting (O_NONBLOCK), and must keep that mode."""
    (shared_btrfs / "data").mkdir()
    for number in range(40):
        (shared_btrfs / "data" / f"small{number}").write_bytes(os.urandom(100_000))
    (shared_btrfs / "data" / "large").write_bytes(os.urandom(5 << 20))
    wanted = streamed(shared_btrfs, [])
    reading, writing = os.pipe2(os.O_NONBLOCK)
    os.set_blocking(reading, True)

    def write() -> None:
        with ClosingFd(writing), Tree(shared_btrfs) as tree:
            write_stream(tree, [b"/"], writing, lambda _: None)
            assert not os.get_blocking(writing)

    with ThreadPoolExecutor() as pool, os.fdopen(reading, "rb") as file:
        ended = pool.submit(write)
        time.sleep(0.1)  # the pipe is full
        content = file.read()
        ended.result()
    assert content == wanted


def test_what_cannot_be_deflated_costs_no_time_and_a_zip_of_both_is_whole(shared_btrfs: Path, tmp_path: Path) -> None:
    """Each mebibyte is deflated or stored separately: here random bytes and text alternate in one file."""
    (shared_btrfs / "data").mkdir()
    text = b"a line of a log that deflates well\n" * (1 << 15)
    (shared_btrfs / "data" / "both").write_bytes(os.urandom(1 << 20) + text + os.urandom((1 << 20) + 7) + text[:-3])
    (shared_btrfs / "data" / "random").write_bytes(os.urandom(16 << 20))
    before = time.process_time()
    done = written(shared_btrfs, tmp_path / "zip", "zip", b"/random")
    used, before = time.process_time() - before, time.process_time()
    zlib.compress((shared_btrfs / "data" / "random").read_bytes(), 6)
    assert used < (time.process_time() - before) / 2
    assert done.size < (16 << 20) * 1.001 + 1000
    assert written(shared_btrfs, tmp_path / "zip", "zip", b"/both", b"/random").size < 19 << 20
    work("unzip", "-q", tmp_path / "zip", "-d", tmp_path / "out")
    work("diff", "-r", shared_btrfs / "data", tmp_path / "out")


def test_the_first_bytes_of_an_archive_are_there_before_the_second_file_is_read(shared_btrfs: Path) -> None:
    """A reader has a byte at once. What follows comes in larger pieces: a write for each name would be half of the time."""
    (shared_btrfs / "data").mkdir()
    for number in range(2000):
        (shared_btrfs / "data" / f"file{number:04}").write_bytes(b"x" * 100)
    for kind in ("tar", "zip"):
        names: list[bytes] = []
        with Tree(shared_btrfs) as tree:
            size = write_archive(tree, [b"/"], kind, Sink(names)).size
        assert len(names[0]) < 2048
        assert sum(map(len, names)) == size
        assert 2 <= len(names) <= 3 + size // (128 << 10)


class Sink:
    def __init__(self, names: list[bytes]) -> None:
        self.write = names.append
