"""Streams of a compromised first server, with content that no `btrfs send` makes: each fails, writes nowhere, and ends in time."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.beds import btrfs, session, work
from tests.beds.strange_streams import ODD, STRANGE
from tests.beds.two_pools import NOW, TwoPools, shown

pytestmark = pytest.mark.btrfs
STALL = 10.0
ABOVE = ("../../notes.json", "../../../other/kept/secret", "/pool/hosts/web1/notes.json")
AIMED = {name for name in STRANGE if name.endswith(("-above", "-a-symlink"))}


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> TwoPools:
    return TwoPools(make_btrfs(size="300M"), make_btrfs(size="400M"), stall=f"{STALL:.0f}s")


def everything(top: Path) -> dict[str, tuple[int, ...]]:
    """Returns each name with its mode and owner, files with size and time; without the records of a replication about itself."""
    answer = {}
    for path in top.rglob("*"):
        name, status = str(path.relative_to(top)), path.lstat()
        if not name.startswith(".btrkeep") and path.name not in ("notes.json", "seals.json"):
            answer[name] = (status.st_mode, status.st_uid, *((status.st_size, status.st_mtime_ns) if path.is_file() else ()))
    return answer


def send(two: TwoPools, kind: str, target: str = "x") -> None:
    """Makes the first server send that stream from now on."""
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool {kind} {shlex.quote(target)}")


def failure(two: TwoPools, kind: str, target: str) -> str:
    """Returns why that stream failed, after requiring that it took not much longer than `stall`, and that nothing of it is left."""
    send(two, kind, target)
    begun = time.monotonic()
    answer = two.fetch(status=1)[0]
    assert time.monotonic() - begun < STALL + 60, kind
    assert answer["fetched"] == [], kind
    assert [row["host"] for row in answer["failed"]] == ["web1"], kind
    assert not (two.second.pool / "hosts/web1/.receiving").exists(), kind
    return str(answer["failed"][0]["error"])


@pytest.fixture
def kept(two: TwoPools) -> Path:
    """A copy of another host, whose UUID the first server has."""
    other, sent = two.second.pool / "hosts/other", two.first.pool / "kept"
    other.mkdir()
    work("btrfs", "-q", "subvolume", "create", sent)
    (sent / "secret").write_bytes(b"of another host" * 1000)
    work("btrfs", "property", "set", sent, "ro", "true")
    work("sh", "-c", f"btrfs -q send {shlex.quote(str(sent))} | btrfs -q receive {shlex.quote(str(other))}")
    return other / "kept"


@pytest.fixture
def disk() -> Iterator[tuple[Path, int]]:
    """A disk of this machine, as its file and the number of its device."""
    image = session.folder() / "strange-victim"
    image.write_bytes(b"mine" * (1 << 18))
    loop = btrfs.attach(image)
    yield image, Path(loop).stat().st_rdev
    work("losetup", "--detach", loop)
    image.unlink()


@pytest.mark.slow
@pytest.mark.takes(60)
@pytest.mark.timeout(900)
def test_streams_that_no_btrfs_send_makes_fail_and_change_nothing_else(two: TwoPools, kept: Path, disk: tuple[Path, int]) -> None:
    """One waits for a pipe, and is ended by `stall`. None makes this server report that its own pool is read-only."""
    image, device = disk
    targets = {"clone-of-another-host": (shown(kept)["Received UUID"],), "device-written": (str(device),)}
    before, notes = everything(two.second.pool), two.second.pool / "hosts/web1/notes.json"
    for kind in STRANGE:
        for target in targets.get(kind, ABOVE if kind in AIMED else ("/etc",)):
            why = failure(two, kind, target)
            assert len(why) < 2000, kind
            assert "dmesg" not in why or kind == "clone-of-a-pipe", (kind, target, why)
            changed = {name for name, content in everything(two.second.pool).items() if before.get(name) != content}
            assert changed <= {"hosts/web1"}, (kind, target)
            assert not notes.exists() or json.loads(notes.read_text())["backups"] == {}, (kind, target)
    work("sync")
    assert image.read_bytes() == b"mine" * (1 << 18)
    assert (kept / "secret").read_bytes() == b"of another host" * 1000


@pytest.mark.slow
@pytest.mark.takes(30)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ODD)
def test_what_a_strange_stream_may_bring_is_read_only_and_hangs_nothing_that_reads_it(two: TwoPools, kept: Path, kind: str) -> None:
    before = everything(two.second.pool)
    send(two, kind)
    done = two.second.backupd("replicate", "--json", "--now", NOW, check=False)
    assert done.returncode in (0, 1), done.stderr
    came = json.loads(done.stdout)[0]["fetched"]
    new = {name for name, content in everything(two.second.pool).items() if before.get(name) != content}
    assert all(name.startswith("hosts/web1") for name in new)
    for row in came:
        place = two.second.pool / "hosts/web1" / row["backup"]
        assert "readonly" in shown(place)["Flags"]
    for words in (("verify", "--now", NOW), ("list",), ("status",), ("browse", "web1"), ("rebuild",)):
        done = two.second.backupd(*words, check=False)
        assert "Traceback" not in done.stderr, (words, done.stderr)
        assert done.returncode in (0, 1), (words, done.stderr)
    assert (kept / "secret").read_bytes() == b"of another host" * 1000


def test_a_stream_that_reserves_the_pools_room_and_then_trickles_is_stopped_by_min_free(two: TwoPools) -> None:
    """Commands of 60 bytes reserve the space; other backups into this pool would have none as long as the stream lasts."""
    send(two, "device")
    two.fetch()
    before = everything(two.second.pool)
    two.second.settings("pool", min_free="50%")
    send(two, "fills-and-trickles", "60")
    done = two.second.backupd("replicate", "--now", NOW, check=False)
    assert done.returncode in (1, 4), done.stderr
    assert "too little free space" in done.stdout + done.stderr
    assert everything(two.second.pool) == before
