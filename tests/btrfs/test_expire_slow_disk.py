"""A disk that answers late, or not at all for a time, while an expiry reads the metadata of the backups to delete."""

import json
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.beds import btrfs, cgroups, nbd, session, work
from tests.beds.cli import BACKUPD, TOP
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, ended, rows, wait_for

pytestmark = [
    pytest.mark.btrfs,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.takes(30),
    pytest.mark.skipif(bool(nbd.why_not()), reason=f"left out: a slow disk ({nbd.why_not()})"),
]
FILES = 3000


class Late:
    """A pool with backups that are due, on a disk that takes `DELAY` for each read and can be stopped."""

    DELAY = "50ms"

    def __init__(self, stack: ExitStack, folder: Path, tree: Path) -> None:
        image, point, self._control = folder / "late", folder / "mnt", folder / "control"
        with image.open("wb") as file:
            file.truncate(1 << 30)
        point.mkdir()
        loop = btrfs.attach(image)
        work("mkfs.btrfs", "-q", "-m", "single", loop)
        work("mount", "-t", "btrfs", "-o", "noatime,nossd", loop, point)
        self.nights = Nights(point)
        self.nights.tables["expiry"] = {"mount_option": "ssd"}
        self.nights.host("web", tree)
        self.tree = tree
        for night in range(4):
            for number in range(FILES):
                (tree / f"{number:06}").write_bytes(b"%d of %d" % (number, night))
            self.nights.run("web")
        self.names = self.nights.names("web")
        for name in self.names[:-1]:
            self.nights.backupd("delete", f"web@{name}", "--why", "a test")
        btrfs.unmount(point)
        work("losetup", "--detach", loop)
        settings = (f"rdelay={self.DELAY}", f"pause-control={self._control}")
        loop = btrfs.attach(nbd.filtered(stack, image, "pause delay", *settings))
        stack.callback(work, "losetup", "--detach", loop)
        work("mount", "-t", "btrfs", "-o", "noatime,nossd", loop, point)
        stack.callback(btrfs.unmount, point)

    def send_command(self, word: bytes) -> None:
        """`p`: the disk pauses; `r`: it continues."""
        with closing(socket.socket(socket.AF_UNIX)) as control:
            control.connect(str(self._control))
            control.sendall(word)
            assert control.recv(1) == word.upper()

    def looking(self, group: Path | None = None) -> "subprocess.Popen[str]":
        """Starts an expiry, in that cgroup, and returns it while it reads the metadata of backups to delete."""
        words = [*BACKUPD, "--config", str(self.nights.config), "expire", "web", "--skip-grace", "--json"]
        words = cgroups.words_within(group, *words) if group else words
        process = subprocess.Popen(words, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: rows(self.nights, "select * from backup where state = 'deleting'"), 120)
        return process

    def mounted(self) -> str:
        return work("findmnt", "-n", "-o", "OPTIONS", self.nights.top).stdout

    def require_expired(self) -> None:
        """Requires that all due backups are deleted, and nothing else."""
        assert self.nights.names("web") == self.names[-1:]
        assert "nossd" in self.mounted()
        assert self.nights.differences("web", self.tree) == []
        assert disagreements(self.nights) == []


@pytest.fixture
def late(tree: Path) -> Iterator[Late]:
    folder = Path(tempfile.mkdtemp(prefix="late-", dir=session.folder(1 << 30)))
    with ExitStack() as stack:
        stack.callback(session.remove, folder)
        yield Late(stack, folder, tree)


def test_a_signal_ends_it_although_much_is_left_to_read_and_nothing_more_is_deleted(late: Late) -> None:
    """Reading all of a backup takes ten seconds here, and hours on a busy pool: systemd kills after a minute and a half."""
    process = late.looking()
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    status, out, err = ended(process, 120)
    assert status == 143, err
    assert "Traceback" not in err
    assert late.nights.names("web") == late.names, f"after {time.monotonic() - begun:.1f} s"
    assert json.loads(out)["deleted"] == 0
    assert "nossd" in late.mounted()
    assert dict(rows(late.nights, "select state, count(*) from backup group by state")) == {"complete": 1, "expired": 3}
    assert late.nights.differences("web", late.tree) == []
    assert disagreements(late.nights) == []


def test_it_goes_on_when_a_disk_goes_on_that_stood_still_and_others_are_answered_meanwhile(late: Late) -> None:
    process = late.looking()
    late.send_command(b"p")
    try:
        for words in (("status",), ("list",), ("log",)):
            done = late.nights.backupd(*words, check=False)
            assert done.returncode in (0, 1), done.stderr
            assert "Traceback" not in done.stderr
        time.sleep(15)
        assert process.poll() is None
    finally:
        late.send_command(b"r")
    status, out, err = ended(process, 250)
    assert status == 0, err
    assert json.loads(out)["deleted"] == 3
    late.require_expired()


@pytest.mark.skipif(bool(cgroups.why_not("memory")), reason=f"left out: little memory ({cgroups.why_not('memory')})")
def test_one_that_the_kernel_ends_for_want_of_memory_meanwhile_has_deleted_nothing_and_the_next_one_does_it(late: Late) -> None:
    """The disk pauses until the kernel has chosen the process: on a busy machine it would otherwise have finished reading."""
    with cgroups.limited("memory", 300 << 20) as group:
        process = late.looking(group)
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")  # the kernel is to choose it
        late.send_command(b"p")
        filling = threading.Thread(target=cgroups.fill_up, args=(group,))
        try:
            filling.start()
            wait_for(lambda: cgroups.has_killed(group))
        finally:
            late.send_command(b"r")
            filling.join()
        assert process.wait(60) == -signal.SIGKILL
    assert late.nights.names("web") == late.names
    assert json.loads(late.nights.backupd("expire", "web", "--skip-grace", "--json").stdout)["deleted"] == 3
    late.require_expired()


def test_one_with_as_little_memory_as_fits_deletes_all(late: Late) -> None:
    """Metadata that was read is in the kernel's cache, and is dropped when memory is short."""
    with cgroups.limited("memory", 40 << 20) as group:
        status, out, err = ended(late.looking(group), 250)
    assert status == 0, err
    assert json.loads(out)["deleted"] == 3
    late.require_expired()
