"""Two backup servers and a host, three booted machines on one network: the second server fetches, and takes over from the first.

The contents of the machines are read by find, sha256sum and getfattr in them, the network's traffic from the kernel's counters.
"""

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.beds import btrfs, session, work
from tests.beds.machine import booted, machine, why_not

INSIDE = Path(__file__).resolve().parent / "inside"
MIB = 1 << 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.takes(40),
    pytest.mark.btrfs,
    pytest.mark.root,
    pytest.mark.ssh,
    pytest.mark.skipif(bool(why_not()), reason=f"left out: under real systemd ({why_not()})"),
    pytest.mark.timeout(600),  # the machine may have to be made first
]


@contextmanager
def network() -> Iterator[Path]:
    """A network namespace with nothing in it but a loopback interface."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 1000"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        yield Path(f"/proc/{holder.pid}/ns/net")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()


@pytest.fixture(scope="module")
def shared(no_leftovers: None) -> Iterator[Path]:
    """The folder in which the three machines left their results, after all have ended."""
    machine()  # made once, not by three at a time
    folder = Path(tempfile.mkdtemp(prefix="shared-", dir=session.folder()))
    work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key")
    files = {path.name: path.read_text(encoding="utf-8") for path in INSIDE.iterdir()}
    pools = {"first.sh": btrfs.make(size="3G"), "second.sh": btrfs.make(size="3G")}
    try:
        with network() as namespace, ThreadPoolExecutor(3) as threads:

            def live(script: str) -> None:
                binds = [(folder, "/shared"), *((pools[script], "/srv") for _ in pools if _ == script)]
                try:
                    with booted({**files, "main.sh": files[script]}, binds, network=namespace):
                        pass
                except BaseException:
                    (folder / "failed").touch()  # the others wait for nothing
                    raise
                if script == "first.sh":
                    destroy(pools[script])
                    (folder / "first-is-gone").touch()

            for done in as_completed([threads.submit(live, script) for script in ("host.sh", "first.sh", "second.sh")]):
                done.result()
        yield folder
    finally:
        problems = [problem for point in pools.values() for problem in session.remove(point.parent)]
        shutil.rmtree(folder, ignore_errors=True)
    assert not problems, "\n".join(problems)


def destroy(point: Path) -> None:
    """Destroys the first server's pool, so that nothing readable is left."""
    for path in point.iterdir():
        for nested in reversed(work("find", path, "-inum", "256", "-type", "d").stdout.split("\n")[:-1]):
            work("btrfs", "property", "set", "-f", nested, "ro", "false", check=False)
            work("btrfs", "subvolume", "delete", nested, check=False)
        shutil.rmtree(path, ignore_errors=True)
    assert list(point.iterdir()) == []


Read = Callable[[str], str]


@pytest.fixture
def read(shared: Path) -> Read:
    return lambda name: (shared / name).read_text(encoding="utf-8", errors="surrogateescape")


def backups(text: str) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = json.loads(text)
    return answer


def test_what_was_fetched_is_what_the_host_had(read: Read) -> None:
    assert read("copy-1") == read("source-1")
    assert read("copy-2") == read("source-2")
    assert read("source-1") != read("source-2")
    assert "Received UUID" in read("copy-shown")
    assert [backup["state"] for backup in backups(read("copies"))] == ["complete", "complete"]


def test_the_units_verify_what_is_there_and_prove_a_restore(read: Read) -> None:
    assert {backup["verified"]["state"] for backup in backups(read("verified"))} == {"whole"}
    drill = json.loads(read("drilled"))["drill"]
    assert (drill["state"], drill["last"]["outcome"], drill["last"]["differences"]) == ("ok", "proven", 0)


def test_plain_restic_gets_back_what_the_unit_has_sent_offsite(read: Read) -> None:
    assert read("offsite-2") == read("source-2")


def test_the_hold_of_the_first_server_came_with_its_backup(read: Read) -> None:
    assert "the day we began" in read("copies")


def test_nothing_vanishes_with_the_first_server(read: Read) -> None:
    assert [backup["name"] for backup in backups(read("copies-later"))] == [backup["name"] for backup in backups(read("copies"))]


def test_the_second_server_continues_and_transfers_only_what_changed(read: Read) -> None:
    assert read("copy-3") == read("source-3")
    assert read("source-3") != read("source-2")
    sizes = [int(line) for line in read("bytes-of-the-night").split()]  # received from the host
    assert 1000 < sum(sizes) < 2 * MIB  # out of 24 MiB
    assert len(backups(read("backups"))) == 3


def test_a_backup_of_the_lost_server_is_restored_from_the_second(read: Read) -> None:
    assert read("restored-1") == read("source-1")
