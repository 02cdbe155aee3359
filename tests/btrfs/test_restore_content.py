"""`backupd restore` with a file that has the size and the time of the backup's, but other content."""

import fcntl
import hashlib
import os
import re
import struct
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from backupd.files import place_comparer
from backupd.files.destination import Destination
from backupd.files.place_comparer import FileComparer
from backupd.files.placing import Visit
from backupd.files.tree import Tree
from backupd.files.walking import walk
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.file_data import have_same_items, share_all
from tests.beds import differences, manifest, ssh, work
from tests.beds.everything import write
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.within import Within, restore

pytestmark = [pytest.mark.root, pytest.mark.btrfs]

SIZE = 300_000


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    return Within(shared_btrfs)


def backed_up(nights: Nights, **more: object) -> Path:
    """The source of a host: a large file with two names, a small one, and one with holes."""
    srv = nights.source / "srv"
    write(srv / "large").write_bytes(os.urandom(SIZE))
    (srv / "other-name").hardlink_to(srv / "large")
    write(srv / "small", "of the backup")
    write(srv / "sparse", "")
    os.truncate(srv / "sparse", SIZE)
    nights.host("web1", srv, **more)
    assert nights.run("web1")["web1"]["outcome"] == "complete"
    return srv


def spoil(path: Path) -> None:
    """Changes content in the middle; size and time do not change, as after a disk fault, a torn write, or a hidden attack."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(before.st_size // 2)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def sums(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture(params=["the pool's btrfs", "another filesystem"])
def out(request: pytest.FixtureRequest, nights: Nights, tmp_path: Path) -> Path:
    return (nights.top if "pool" in request.param else tmp_path) / "out"


def test_all_mends_what_has_the_same_size_and_time_and_other_content(nights: Nights, out: Path) -> None:
    srv = backed_up(nights)
    restore(nights, "web1", srv, "--to", out)
    for name in ("large", "small", "sparse"):
        spoil(out / "srv" / name)
    seen = restore(nights, "web1", srv, "--to", out, "--overwrite=all", "--dry-run")
    assert seen["overwritten"]["count"] == 4  # two of them are names of one file
    assert {sample["why"] for sample in seen["overwritten"]["samples"]} == {"differs: content", "differs: hard link"}
    done = restore(nights, "web1", srv, "--to", out, "--overwrite=all")
    assert sums(out / "srv") == sums(srv)
    assert differences(manifest(srv), manifest(out / "srv")) == []
    assert (done["good"], done["overwritten"]["count"]) == (True, 4)


def test_all_leaves_alone_what_holds_the_same_and_reads_it_once(nights: Nights, tmp_path: Path) -> None:
    srv, out = backed_up(nights), tmp_path / "out"
    restore(nights, "web1", srv, "--to", out)
    before = {path.name: (path.stat().st_ino, path.stat().st_ctime_ns) for path in (out / "srv").iterdir()}
    done = restore(nights, "web1", srv, "--to", out, "--overwrite=all")
    assert {path.name: (path.stat().st_ino, path.stat().st_ctime_ns) for path in (out / "srv").iterdir()} == before
    assert (done["overwritten"]["count"], done["copied_bytes"]) == (0, 0)
    assert done["compared_bytes"] == SIZE + len("of the backup")


def test_more_files_than_are_remembered_are_read_again(nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    srv, out = backed_up(nights), tmp_path / "out"
    restore(nights, "web1", srv, "--to", out)
    monkeypatch.setattr(place_comparer, "_MOST_PROVEN", 0)
    done = restore(nights, "web1", srv, "--to", out, "--overwrite=all")
    assert (done["good"], done["compared_bytes"]) == (True, 2 * (SIZE + len("of the backup")))


def test_without_all_it_is_named_afterwards_and_stays(nights: Nights, out: Path) -> None:
    srv = backed_up(nights)
    restore(nights, "web1", srv, "--to", out)
    spoil(out / "srv" / "small")
    before = manifest(out)
    for words in ((), ("--overwrite=older",), ("--overwrite=never",)):
        done = restore(nights, "web1", srv, "--to", out, *words, status=1)
        assert done["differences"]["samples"] == [{"place": f"{out}/srv/small", "why": "differs: content"}]
    assert differences(before, manifest(out)) == []
    output = nights.backupd("restore", "web1", srv, "--to", out, check=False).stdout
    assert "--overwrite=all" in output


@pytest.fixture
def over_ssh(nights: Nights, sshd: ssh.Sshd) -> Path:
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    return backed_up(nights, address=sshd.address, port=sshd.port)


@pytest.mark.ssh
def test_all_mends_it_on_a_host_too(nights: Nights, over_ssh: Path) -> None:
    wanted, before = sums(over_ssh), manifest(over_ssh)
    for name in ("large", "small"):
        spoil(over_ssh / name)
    seen = restore(nights, "web1", over_ssh, "--overwrite=all", "--dry-run", "--to-host")
    assert {(sample["place"], sample["why"]) for sample in seen["overwritten"]["samples"]} == {
        (str(over_ssh / name), "differs: content") for name in ("large", "small")
    }
    done = restore(nights, "web1", over_ssh, "--overwrite=all", "--to-host")
    assert sums(over_ssh) == wanted
    assert differences(before, manifest(over_ssh)) == []
    assert (done["good"], done["overwritten"]["count"], seen["overwritten"]["count"]) == (True, 2, 2)


@pytest.mark.ssh
def test_on_a_host_it_is_named_afterwards_without_all(nights: Nights, over_ssh: Path) -> None:
    spoil(over_ssh / "small")
    before = manifest(over_ssh)
    done = restore(nights, "web1", over_ssh, "--to-host", status=1)
    assert done["differences"]["samples"] == [{"place": f"{over_ssh}/small", "why": "differs: content"}]
    assert differences(before, manifest(over_ssh)) == []


def clone_range(source: Path, start: int, size: int, to: Path) -> None:
    """FICLONERANGE of linux/fs.h, to the beginning of a file."""
    with source.open("rb") as ours, to.open("wb") as theirs:
        fcntl.ioctl(theirs, 0x4020940D, struct.pack("=qQQQ", ours.fileno(), start, size, 0))


def shared(path: Path, other: Path) -> bool:
    with path.open("rb") as ours, other.open("rb") as theirs:
        return share_all(ours.fileno(), theirs.fileno())


def same_items(path: Path, other: Path) -> bool:
    with ClosingFd(os.open(path.parent, os.O_RDONLY)) as ours, ClosingFd(os.open(other.parent, os.O_RDONLY)) as theirs:
        return have_same_items(ours, path.stat().st_ino, theirs, other.stat().st_ino)


def test_two_parts_of_one_compressed_extent_are_not_taken_for_the_same_data(shared_btrfs: Path) -> None:
    """FIEMAP has the start of a compressed extent, but not which part of it belongs to a file."""
    whole = shared_btrfs / "whole"
    whole.touch()
    work("btrfs", "property", "set", whole, "compression", "zstd")
    whole.write_bytes(b"".join(bytes([65 + number]) * 4096 for number in range(16)))
    work("sync", whole)
    for name, start in (("first", 0), ("again", 0), ("second", 8192)):
        clone_range(whole, start, 8192, shared_btrfs / name)
    by_name = sums(shared_btrfs)
    assert by_name["first"] == by_name["again"] != by_name["second"]
    assert "encoded" in work("filefrag", "-v", shared_btrfs / "first").stdout
    assert shared(shared_btrfs / "first", shared_btrfs / "again")
    assert not shared(shared_btrfs / "first", shared_btrfs / "second")
    assert same_items(shared_btrfs / "first", shared_btrfs / "again")
    assert not same_items(shared_btrfs / "first", shared_btrfs / "second")


def test_files_with_the_same_items_have_the_same_content(shared_btrfs: Path) -> None:
    """Also inline data, and data of another subvolume. A changed copy has other items, of whatever kind."""
    work("btrfs", "subvolume", "create", shared_btrfs / "source")
    for name, content in {
        "inline": os.urandom(500), "small": os.urandom(5000), "large": os.urandom(900_000), "zeros": bytes(9000), "empty": b""
    }.items():  # fmt: skip
        (shared_btrfs / "source" / name).write_bytes(content)
    with (shared_btrfs / "source/holes").open("wb") as file:
        for position in range(3):
            os.pwrite(file.fileno(), b"x" * 4096, position << 16)
    with (shared_btrfs / "source/many").open("wb") as file:
        for position in range(30):
            os.pwrite(file.fileno(), b"x" * 4096, position << 16)
    work("sync", "-f", shared_btrfs)
    work("cp", "-a", "--reflink=always", shared_btrfs / "source", shared_btrfs / "copy")
    work("sync", "-f", shared_btrfs)
    names = {path.name for path in (shared_btrfs / "source").iterdir()}
    same = {name for name in names if same_items(shared_btrfs / "source" / name, shared_btrfs / "copy" / name)}
    assert same == names - {"empty", "many"}  # one has no items, the other too many: they are compared in another way
    for name in same:
        with (shared_btrfs / "copy" / name).open("r+b") as file:
            os.pwrite(file.fileno(), b"!", 100)
    work("sync", "-f", shared_btrfs)
    assert not any(same_items(shared_btrfs / "source" / name, shared_btrfs / "copy" / name) for name in same)


def begins(file: Path) -> int:
    """Returns the block of the file's only extent."""
    work("sync", file)
    (answer,) = re.findall(r"^ +0: +0\.\. *\d+: +(\d+)\.\.", work("filefrag", "-v", file).stdout, re.MULTILINE)
    return int(answer)


def test_equal_places_on_two_disks_are_not_taken_for_the_same_data(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    """The destination is on the pool's btrfs, and another btrfs is mounted below it."""
    top, other = make_btrfs(size="600M"), make_btrfs(size="600M")
    nights, srv = Within(top), tmp_path / "srv"
    write(srv / "db").write_bytes(b"G" * 1_000_000)
    nights.host("web1", srv)
    nights.run("web1")
    good, probe, path = nights.data("web1", srv) / "db", other / "probe", other / "srv" / "db"
    probe.write_bytes(b"P" * 4096 * 256)
    (other / "filler").write_bytes(b"F" * 4096 * (begins(good) - begins(probe) - 256))
    work("sync", other / "filler")
    write(path).write_bytes(b"B" * 1_000_000)
    os.utime(path, ns=(0, (srv / "db").stat().st_mtime_ns))
    assert begins(path) == begins(good)
    out = top / "out"
    (out / "srv").mkdir(parents=True)
    work("mount", "--bind", path.parent, out / "srv")
    try:
        seen = restore(nights, "web1", srv, "--to", out, "--dry-run", "--overwrite=all")
        assert [sample["why"] for sample in seen["overwritten"]["samples"]] == ["differs: content"]
        restore(nights, "web1", srv, "--to", out, status=1)
        restore(nights, "web1", srv, "--to", out, "--overwrite=all")
        assert sums(out / "srv") == sums(srv)
    finally:
        work("umount", out / "srv")


def test_a_file_whose_content_a_broken_disk_does_not_give_back_is_overwritten(
    nights: Nights, make_btrfs: Callable[..., Path]
) -> None:
    srv, disk = backed_up(nights), make_btrfs(size="300M")
    out, content = disk / "out", (srv / "large").read_bytes()
    restore(nights, "web1", srv, "--to", out)
    damage(disk, content[:4096])
    with pytest.raises(OSError, match="Input/output"):
        (out / "srv/large").read_bytes()
    samples = restore(nights, "web1", srv, "--to", out, "--overwrite=older", status=1)["differences"]["samples"]
    assert {sample["why"] for sample in samples} == {"it cannot be read at the destination: Input/output error"}
    assert {Path(sample["place"]).name for sample in samples} == {"large", "other-name"}
    done = restore(nights, "web1", srv, "--to", out, "--overwrite=all")
    assert sums(out / "srv") == sums(srv), done


def test_a_file_that_is_known_to_be_damaged_is_not_called_equal_for_it_shares_its_data(
    make_btrfs: Callable[..., Path], tmp_path: Path
) -> None:
    nights, srv, content = Within(make_btrfs(size="300M")), tmp_path / "srv", os.urandom(SIZE)
    write(srv / "large").write_bytes(content)
    write(srv / "small", "of the backup")
    nights.host("web1", srv)
    nights.run("web1")
    damage(nights.top, content[4096:8192])
    assert nights.backupd("verify", check=False).returncode == 1
    done = restore(nights, "web1", srv, "--to", nights.top / "out", status=1)
    assert [(sample["place"], sample["why"]) for sample in done["differences"]["samples"]] == [
        (f"{nights.top}/out/srv/large", "it cannot be read in the backup: Input/output error")
    ]
    assert restore(nights, "web1", srv / "small", "--to", nights.top / "out2")["good"]


def test_the_holes_of_a_file_take_no_memory_while_it_is_compared(shared_btrfs: Path, tmp_path: Path) -> None:
    holes = 10_000
    for file in (shared_btrfs / "data" / "sponge", tmp_path / "sponge"):
        file.parent.mkdir(exist_ok=True)
        with file.open("wb") as out:
            for number in range(holes):
                out.seek(number << 13)
                out.write(b"%4096d" % number)
    for folder in (shared_btrfs, tmp_path):
        work("sync", "-f", folder)
    with Tree(shared_btrfs) as tree, Destination(tmp_path, make=True) as to:
        names = walk(tree, b"/sponge")  # its end closes the folder of what it gives
        entry = next(names)
        comparer = FileComparer(to, False, lambda _: None)
        tracemalloc.start()
        assert comparer.same(Visit(entry.entry, entry.folder, entry.name, (b"sponge",), False))
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert used < 100 << 10
    assert comparer.read == holes << 12


def _holey(path: Path) -> Path:
    """Makes a long run of data, 200 short ones, and a hole at the end."""
    with write(path, "").open("r+b") as file:
        file.write(os.urandom(3 << 20))
        for number in range(200):
            file.seek((8 << 20) + (number << 16))
            file.write(b"%8192d" % number)
        file.truncate(24 << 20)
    return path


@pytest.mark.parametrize(
    "at", [None, 0, (3 << 20) - 1, 5 << 20, 8 << 20, (8 << 20) + (63 << 16) + 8191, (8 << 20) + (199 << 16), -1]
)
@pytest.mark.parametrize("large", [1 << 20, 1 << 30])
def test_a_byte_that_differs_is_found_in_data_and_in_holes(
    shared_btrfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int | None, large: int
) -> None:
    monkeypatch.setattr(place_comparer, "_LARGE", large)  # from there on both sides are read at a time
    file = _holey(shared_btrfs / "data" / "holey")
    work("cp", "--sparse=always", file, tmp_path / "holey")
    if at is not None:
        with (tmp_path / "holey").open("r+b") as copy:
            copy.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
            byte = copy.read(1)
            copy.seek(-1, os.SEEK_CUR)
            copy.write(bytes([byte[0] ^ 1]))
    work("sync", "-f", tmp_path)
    threads = threading.active_count()
    with Tree(shared_btrfs) as tree, Destination(tmp_path, make=True) as to:
        names = walk(tree, b"/holey")  # its end closes the folder of what it gives
        entry = next(names)
        comparer = FileComparer(to, False, lambda _: None)
        assert comparer.same(Visit(entry.entry, entry.folder, entry.name, (b"holey",), False)) == (at is None)
    assert at is not None or comparer.read == (3 << 20) + (200 << 13)  # holes are not read
    assert threading.active_count() == threads  # otherwise processes are no longer forked


def test_a_large_file_is_compared_without_a_thread_where_none_can_be_started(
    shared_btrfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_comparer, "_LARGE", 1 << 20)
    monkeypatch.setattr("threading.Thread.start", Mock(side_effect=RuntimeError))
    work("cp", _holey(shared_btrfs / "data" / "holey"), tmp_path / "holey")
    work("sync", "-f", tmp_path)
    with Tree(shared_btrfs) as tree, Destination(tmp_path, make=True) as to:
        names = walk(tree, b"/holey")
        entry = next(names)
        visit = Visit(entry.entry, entry.folder, entry.name, (b"holey",), False)
        assert FileComparer(to, False, lambda _: None).same(visit)
        with (tmp_path / "holey").open("r+b") as copy:
            copy.write(b"changed")
        assert not FileComparer(to, False, lambda _: None).same(visit)
