"""SHA256SUMS of files that a run has just fetched, compared with `sha256sum -c`."""

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from backupd.repo.checksums import read_sums, write_sums
from backupd.run import fresh_sums
from btrkeep.config.values import FileSample
from tests.beds.hidden_changes import hide_changes
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools
from tests.beds.watch import does_at
from tests.beds.work import work

pytestmark = [pytest.mark.btrfs]
EACH = fresh_sums.SumLimits(FileSample("all"), 60)
ODD = os.fsdecode(b"caf\xe9\n\\x\r [*]")


@pytest.fixture
def nights(make_btrfs: Callable[..., Path], tmp_path: Path) -> Nights:
    bed = Nights(make_btrfs(size="400M"))
    (tmp_path / "srv").mkdir()
    bed.host("web", tmp_path / "srv")
    bed.tables["verify"] = {"new_files": "all"}
    return bed


def summed(backup: Path) -> set[str]:
    """Returns the content of SHA256SUMS, read and compared by sha256sum."""
    if not (backup / "SHA256SUMS").exists():
        return set()
    process = work("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS", cwd=backup)
    assert process.stdout == ""
    return {path.decode("utf-8", "surrogateescape").rsplit("/", 1)[1] for path in read_sums(backup)}


def newest(nights: Nights) -> Path:
    return Path(nights.pool / "hosts/web" / nights.names("web")[-1])


def verify(nights: Nights, *words: str, status: int = 0) -> list[dict[str, Any]]:
    done = nights.backupd("verify", *words, "--json", check=False)
    assert done.returncode == status, done.stderr
    return list(json.loads(done.stdout)["backups"])


@pytest.mark.parametrize("options", [(), ("compress-force=zstd",)], ids=["plain", "compressed"])
def test_the_files_that_a_run_fetched_have_sums_and_no_others(nights: Nights, tmp_path: Path, options: tuple[str, ...]) -> None:
    if options:
        work("mount", "-o", f"remount,{options[0]}", nights.pool.parent)
    source = tmp_path / "srv"
    for name in ("a", "b", ODD):
        (source / name).write_bytes(os.urandom(50_000) + bytes(9_000))
    with (source / "sparse").open("wb") as file:
        file.truncate(1 << 30)
        file.write(os.urandom(10_000))
    (source / "link").symlink_to("a")
    nights.run("web")
    first = newest(nights)
    assert summed(first) == {"a", "b", ODD}
    (source / "b").write_bytes(os.urandom(90_000))
    os.utime(source / "b", (1, 1))
    nights.run("web")
    assert summed(newest(nights)) == {"b"}
    assert summed(first) == {"a", "b", ODD}
    nights.run("web")
    assert not (newest(nights) / "SHA256SUMS").exists()
    assert work("btrfs", "property", "get", "-ts", newest(nights), "ro").stdout == "ro=true\n"


def test_as_many_as_were_asked_for_and_the_large_ones(nights: Nights, tmp_path: Path) -> None:
    nights.tables["verify"] = {"new_files": "3"}
    nights.write()
    source = tmp_path / "srv"
    for number in range(20):
        (source / f"f{number}").write_bytes(os.urandom(20_000))
    nights.run("web")
    assert len(summed(newest(nights))) == 3
    nights.tables["verify"] = {"new_files": "none"}
    nights.write()
    (source / "f1").write_bytes(os.urandom(21_000))
    nights.run("web")
    assert summed(newest(nights)) == set()


def test_files_of_which_much_was_fetched_come_after_those_chosen_by_chance(
    shared_btrfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh_sums, "LARGE", 40_000)
    top = shared_btrfs / "backup"
    work("btrfs", "-q", "subvolume", "create", top)
    for number in range(20):
        (top / str(number)).write_bytes(os.urandom(50_000 if number in (3, 12) else 20_000))
    work("btrfs", "filesystem", "sync", top)
    large, root = {(top / name).stat().st_ino for name in ("3", "12")}, os.open(top, os.O_RDONLY)
    for seed in range(30):
        numbers = list(fresh_sums._chosen(root, 0, FileSample("4", number=4), Random(seed)))
        assert len(numbers) == len(set(numbers)) == 4 + len(large - set(numbers[:4]))
        assert large <= set(numbers)
    half = [len(list(fresh_sums._chosen(root, 0, FileSample("50%", share=0.5), Random(seed)))) for seed in range(30)]
    assert 8 < sum(half) / 30 < 13
    os.close(root)


def test_what_was_written_by_hand_is_altered_and_the_next_night_fetches_it_again(nights: Nights, tmp_path: Path) -> None:
    """A scrub finds no error, because btrfs stored the changed data itself. Verify reports it at once, before the next run."""
    source = tmp_path / "srv"
    content = os.urandom(300_000)
    (source / "ledger").write_bytes(content)
    (source / "other").write_bytes(os.urandom(300_000))
    nights.run("web")
    backup = newest(nights)
    assert work("btrfs", "property", "set", "-ts", "-f", backup, "ro", "false", check=False).returncode == 0
    with next(backup.glob("data/**/ledger")).open("r+b") as file:
        file.seek(200_000)
        file.write(bytes([content[200_000] ^ 4]))
    work("btrfs", "property", "set", "-ts", backup, "ro", "true")
    work("btrfs", "scrub", "start", "-B", nights.pool.parent)
    done = nights.backupd("verify", "web", "--json", check=False)
    assert done.returncode == 1
    assert backup.name in str(json.loads(done.stdout)["altered"])
    nights.run("web")
    fetched = next(newest(nights).glob("data/**/ledger")).read_bytes()
    assert hashlib.sha256(fetched).digest() == hashlib.sha256(content).digest()


@pytest.mark.parametrize("when", ["after its checksum was made", "before its checksum was made"])
def test_a_bit_that_flips_in_memory_before_the_seal_is_no_change_by_hand_and_is_found(
    nights: Nights, tmp_path: Path, when: str
) -> None:
    """A scrub finds no error, because btrfs stored the wrong data itself. Until the checksum is made, only the host has the right
    data.

    Written by another process with the old time, because no test can flip a bit of the page cache.
    """
    source = tmp_path / "srv"
    content = os.urandom(200_000) + b"\0" + os.urandom(99_999)
    (source / "ledger").write_bytes(content)
    (source / "other").write_bytes(os.urandom(300_000))
    file, time = nights.working("web", source) / "ledger", tmp_path / "time"
    write = f"printf '\\4' | dd of={file} bs=1 seek=200000 conv=notrunc,fsync status=none"
    flip = f"touch -r {file} {time} && {write} && touch -r {time} {file}"
    is_summed = when.startswith("after")
    moment = ("before", "subvolume made read-only") if is_summed else ("after", "filesystem synced")
    done = does_at(nights, flip, *moment, "run", "web")
    assert done.returncode == 0, done.stderr
    (path,) = newest(nights).glob("data/**/ledger")
    assert path.read_bytes() == content[:200_000] + b"\4" + content[200_001:]
    work("btrfs", "scrub", "start", "-B", nights.pool.parent)
    (answer,) = verify(nights, status=1 if is_summed else 0)
    assert [Path(name).name for name in answer["damaged"]] == (["ledger"] if is_summed else [])
    done = nights.backupd("verify", "--against-source", "web", "--json", check=False)
    (compared,) = json.loads(done.stdout)["hosts"]
    assert (done.returncode, compared["differs"]) == (1, [f"{source}/ledger"])
    assert [backup["state"] for backup in nights.listed("web")] == ["complete"]
    nights.run("web")
    assert next(newest(nights).glob("data/**/ledger")).read_bytes() == content


def test_sums_travel_to_another_pool_and_are_compared_there(make_btrfs: Callable[..., Path]) -> None:
    two = TwoPools(make_btrfs(), make_btrfs())
    two.first.tables["verify"] = {"new_files": "all"}
    two.first.write()
    (two.source / "ledger").write_bytes(os.urandom(100_000))
    two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    (name,) = two.names(two.second.pool)
    assert "ledger" in summed(two.second.pool / "hosts/web1" / name)
    answer = json.loads(two.second.backupd("verify", "--json").stdout)["backups"]
    assert answer[0]["compared"] >= 1


@pytest.fixture
def fetched(shared_btrfs: Path) -> Path:
    """A subvolume with two files that were just written, and the checksums of its base."""
    top = shared_btrfs / "backup"
    work("btrfs", "-q", "subvolume", "create", top)
    (top / "data").mkdir()
    for name in ("a", "b"):
        (top / "data" / name).write_bytes(os.urandom(50_000))
    write_sums(top, {b"/a": bytes(32)})
    work("btrfs", "filesystem", "sync", top)
    return top


def test_a_file_that_cannot_be_read_costs_its_own_sum_alone(
    fetched: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, bad = os.read, (fetched / "data" / "b").stat().st_ino

    def reads(fd: int, size: int) -> bytes:
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, size)

    monkeypatch.setattr(os, "read", reads)
    fresh_sums.sum_fetched(fetched, EACH)
    monkeypatch.undo()
    assert summed(fetched) == {"a"}
    assert f"inode {bad} was just written and cannot be read: " in caplog.text


def test_sums_for_which_there_is_no_room_are_left_out_and_those_of_the_base_do_not_stay(
    fetched: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The base's checksums are of other content: `verify` would report correct files as damaged."""
    opened = os.open

    def opens(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).endswith("SHA256SUMS") and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", opens)
    fresh_sums.sum_fetched(fetched, EACH)
    monkeypatch.undo()
    assert not (fetched / "SHA256SUMS").exists()
    assert "no checksums were stored: " in caplog.text
    assert "No space left on device" in caplog.text


def test_a_tree_that_cannot_be_searched_costs_the_sums_and_no_backup(
    fetched: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = os.open

    def opens(path: Any, *more: Any, **named: Any) -> int:
        if Path(os.fsdecode(path)) == fetched:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *more, **named)

    monkeypatch.setattr(os, "open", opens)
    fresh_sums.sum_fetched(fetched, EACH)
    monkeypatch.undo()
    assert not (fetched / "SHA256SUMS").exists()
    assert "no checksums were made: " in caplog.text


@pytest.mark.parametrize(
    "text", [b"", b"\0" * 5000, b"zz\n", b"0" * 64 + b"  /etc/passwd\n", b"\\" + b"0" * 64 + b"  data/a\\q\n"], ids=range(5)
)
def test_foreign_sums_prove_nothing_and_do_no_harm(nights: Nights, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "srv/a").write_bytes(b"x" * 9000)
    nights.tables["verify"] = {"new_files": "none"}
    nights.write()
    nights.run("web")
    backup = newest(nights)
    work("btrfs", "property", "set", "-ts", "-f", backup, "ro", "false")
    (backup / "SHA256SUMS").write_bytes(text)
    work("btrfs", "property", "set", "-ts", backup, "ro", "true")
    hide_changes(backup.parent)
    (answer,) = verify(nights)
    assert (answer["read"], answer["compared"], answer["damages"]) == (1, 0, 0)


def test_a_name_of_any_bytes_is_read_as_it_was_written_and_as_sha256sum_reads_it(tmp_path: Path) -> None:
    names = [b"/plain", b"/with\\slash", b"/new\nline", b"/r\r", b"/caf\xe9", b"/ two  blanks "]
    (tmp_path / "data").mkdir()
    for name in names:
        (tmp_path / "data" / os.fsdecode(name[1:])).write_bytes(name)
    write_sums(tmp_path, {name: hashlib.sha256(name).digest() for name in names})
    assert sorted(read_sums(tmp_path)) == sorted(names)
    work("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS", cwd=tmp_path)
