"""A run logs in to a host once, however many source paths it has, and that connection does no harm."""

import asyncio
import json
import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from backupd.rsync.shared_connection import NotConnected, SharedConnection
from btrkeep.config import HostConfig, SshSettings
from btrkeep.decisions.rsync_meaning import ExitCause, meaning
from btrkeep.process.progress import Cancellation
from tests.beds import session, ssh, work
from tests.beds.nights import Nights
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


def logins(sshd: ssh.Sshd) -> int:
    return len(re.findall("Accepted publickey", sshd.log))


def folders() -> set[Path]:
    """Returns the folders of connections without a process: other tests make connections at the same time."""
    made = set(Path("/run").glob("btrkeep-ssh-*"))
    words = b""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words += entry.read_bytes()
    return {folder for folder in made if os.fsencode(folder) not in words}


def assert_nothing_left(before: set[Path]) -> None:
    wait_for(lambda: folders() <= before)


def shared(sshd: ssh.Sshd, key: Path | None = None) -> SharedConnection:
    host = HostConfig("web1", address=sshd.address, port=sshd.port, paths=("/a", "/b"))
    settings = SshSettings(key=key or sshd.key, known_hosts=sshd.known_hosts, command="ssh -F none")
    return SharedConnection(host, settings, wanted=True)


@pytest.mark.parametrize("own", [False, True], ids=["ssh", "the administrator's own command"])
def test_a_host_of_several_paths_is_logged_in_to_once(nights: Nights, sshd: ssh.Sshd, own: bool) -> None:
    command, paths = "ssh -F none", [nights.source / f"path{number}" for number in range(4)]
    if own:  # it need not be OpenSSH, nor support a master
        wrapper = nights.top / "own-ssh"
        wrapper.write_text('#!/bin/sh\nexec ssh -F none "$@"\n')
        wrapper.chmod(0o755)
        command = str(wrapper)
    for path in paths:
        path.mkdir(parents=True)
        (path / "file").write_bytes(os.urandom(1000))
    nights.settings("ssh", command=command, key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", *paths, address=sshd.address, port=sshd.port)
    before, rows = logins(sshd), folders()
    assert nights.run("web1")["web1"]["outcome"] == "complete"
    assert logins(sshd) - before == (4 if own else 1)
    assert [nights.differences("web1", path) for path in paths] == [[]] * 4
    assert_nothing_left(rows)


def test_a_connection_that_is_gone_is_made_again_and_ends_with_the_run(sshd: ssh.Sshd) -> None:
    paths, before = folders(), logins(sshd)

    async def use() -> None:
        connection = shared(sshd)
        socket = await connection.socket(Cancellation())
        assert socket is not None
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        assert await connection.socket(Cancellation()) == socket
        master = connection._group
        assert master is not None
        master.signal(signal.SIGKILL)
        assert await connection.after(255) == b""
        assert await connection.socket(Cancellation()) not in (None, socket)
        stopped = connection._group
        assert stopped is not None
        stopped.signal(signal.SIGSTOP)  # one that hangs is ended with the transfer that it broke
        await connection.close()
        assert not stopped.running

    asyncio.run(asyncio.wait_for(use(), 60))
    assert logins(sshd) - before == 2
    assert_nothing_left(paths)


def test_a_host_that_refuses_the_key_is_asked_once_and_the_reason_is_sshs(sshd: ssh.Sshd, tmp_path: Path) -> None:
    work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other")
    paths = folders()
    with pytest.raises(NotConnected) as caught:
        asyncio.run(shared(sshd, tmp_path / "other").socket(Cancellation()))
    assert meaning(255, caught.value.printed.decode().splitlines()).cause is ExitCause.KEY_REFUSED
    assert_nothing_left(paths)


def test_what_one_file_system_leaves_out_is_asked_over_the_same_connection(nights: Nights, sshd: ssh.Sshd) -> None:
    (tree := nights.source / "tree").mkdir()
    (tree / "file").write_text("x")
    work("btrfs", "subvolume", "create", tree / "home")
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", tree, address=sshd.address, port=sshd.port, one_file_system=True, bandwidth="50MB/s")
    before, others = logins(sshd), folders()
    (warning,) = nights.run("web1")["web1"]["warnings"]
    assert str(tree / "home") in warning
    assert logins(sshd) - before == 1
    assert_nothing_left(others)


def test_connect_logs_in_once_to_a_host_of_several_paths(nights: Nights, sshd: ssh.Sshd) -> None:
    paths = [nights.source / f"path{number}" for number in range(4)]
    for path in paths:
        path.mkdir()
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", *paths, address=sshd.address, port=sshd.port, one_file_system=True)
    before, others = logins(sshd), folders()
    assert "reached, 4 paths can be listed" in nights.backupd("check", "--connect", check=False).stdout
    assert logins(sshd) - before == 1
    assert_nothing_left(others)


@pytest.mark.parametrize("words", [(), ("--overwrite=older",), ("--dry-run",)], ids=str)
def test_a_restore_to_a_host_logs_in_once(nights: Nights, sshd: ssh.Sshd, words: tuple[str, ...]) -> None:
    folder = nights.source / "srv"
    folder.mkdir()
    (folder / "file").write_text("as it was")
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", folder, address=sshd.address, port=sshd.port)
    nights.run("web1")
    (folder / "file").unlink()
    before, others = logins(sshd), folders()
    nights.backupd("restore", *words, "web1", str(folder), "--to-host")
    assert logins(sshd) - before == 1
    assert (folder / "file").exists() == ("--dry-run" not in words)
    assert_nothing_left(others)


def masters(port: int) -> list[int]:
    """Returns the processes of shared connections to that port."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = entry.read_bytes().split(b"\0")
            if b"ControlMaster=yes" in words and b"%d" % port in words:
                pids.append(int(entry.parent.name))
    return pids


def once(is_time: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    """Acts as soon as `is_time` returns True, within half a minute."""

    def wait() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if is_time():
                act()
                return
            time.sleep(0.02)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_connection_that_breaks_in_the_middle_of_a_transfer_is_made_again(nights: Nights, sshd: ssh.Sshd) -> None:
    paths, killed = [nights.source / name for name in ("a", "b", "c")], list[int]()
    for path in paths:
        path.mkdir()
        (path / "file").write_bytes(os.urandom(2 << 20))
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.settings("backup", attempts=2)
    nights.host("web1", *paths, address=sshd.address, port=sshd.port, bandwidth="2MB/s")

    def is_in_the_middle() -> bool:
        with suppress(OSError):
            return any(file.stat().st_size > 200_000 for file in nights.working("web1", paths[1]).iterdir())
        return False

    def kill() -> None:
        killed.extend(masters(sshd.port))
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    before, others = logins(sshd), folders()
    thread = once(is_in_the_middle, kill)
    (result,) = nights.night("web1")
    thread.join()
    assert len(killed) == 1
    assert (result.outcome, result.attempts, result.warnings) == ("complete", 2, ())
    assert [nights.differences("web1", path) for path in paths] == [[]] * 3
    assert logins(sshd) - before == 2
    assert_nothing_left(others)


def test_a_connection_that_breaks_in_the_last_attempt_leaves_a_backup_that_the_next_run_finishes(
    nights: Nights, sshd: ssh.Sshd
) -> None:
    path, other = nights.source / "a", nights.source / "b"
    for folder in (path, other):
        folder.mkdir()
        (folder / "file").write_bytes(os.urandom(8 << 20))  # on a busy machine the kill comes seconds late
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", path, other, address=sshd.address, port=sshd.port, bandwidth="2MB/s")
    killed = list[int]()

    def is_in_the_middle() -> bool:
        with suppress(OSError):
            return any(file.stat().st_size > 200_000 for file in nights.working("web1", path).iterdir())
        return False

    def kill() -> None:
        killed.extend(masters(sshd.port))
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    others = folders()
    thread = once(is_in_the_middle, kill)
    (result,) = nights.night("web1")
    thread.join()
    assert len(killed) == 1
    assert (result.outcome, result.attempts) == ("partial", 1)
    assert "the connection broke" in str(result.error) or "the host closed the connection" in str(result.error), result.error
    assert [backup["state"] for backup in nights.listed("web1")] == ["partial"]
    assert masters(sshd.port) == []
    assert_nothing_left(others)

    (second,) = nights.night("web1")
    assert (second.outcome, second.warnings) == ("complete", ())
    assert [nights.differences("web1", folder) for folder in (path, other)] == [[], []]
    assert [backup["state"] for backup in nights.listed("web1")] == ["complete"]
    assert masters(sshd.port) == []
    assert_nothing_left(others)


def test_a_drill_and_a_comparison_of_backups_log_in_to_no_host(nights: Nights, sshd: ssh.Sshd) -> None:
    """They read backups only."""
    path = nights.source / "a"
    path.mkdir()
    (path / "file").write_text("x")
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", path, address=sshd.address, port=sshd.port)
    nights.run("web1")
    (path / "file").write_text("y")
    nights.run("web1")
    before = logins(sshd)
    first, second = nights.names("web1")
    assert "file" in nights.backupd("compare", "web1", path, first, second, check=False).stdout
    nights.backupd("drill", "web1")
    assert logins(sshd) == before


@pytest.fixture
def strict_sshd(no_leftovers: None) -> Iterator[ssh.Sshd]:
    """A server that refuses a third connection while two have not logged in yet."""
    server = ssh.start(Path(tempfile.mkdtemp(prefix="sshd-", dir=session.folder())), "MaxStartups 2\n")
    yield server
    server.stop()


def test_many_paths_and_several_hosts_at_an_sshd_of_few_startups_all_become_complete(nights: Nights, strict_sshd: ssh.Sshd) -> None:
    """If several log in at the same moment, a refused login is tried again."""
    sshd, names = strict_sshd, [f"web{number}" for number in range(4)]
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.settings("backup", attempts=5, concurrency=4)
    for name in names:
        paths = [nights.source / name / str(number) for number in range(5)]
        for path in paths:
            path.mkdir(parents=True)
            (path / "file").write_text(name)
        nights.host(name, *paths, address=sshd.address, port=sshd.port)
    before = logins(sshd)
    results = nights.night(*names)
    assert {result.host: result.outcome for result in results} == dict.fromkeys(names, "complete")
    assert logins(sshd) - before < 4 * 5  # one that was refused connects by itself for that path


@pytest.fixture
def crowded_sshd(no_leftovers: None) -> Iterator[ssh.Sshd]:
    """A server that accepts one connection that has not logged in yet."""
    server = ssh.start(Path(tempfile.mkdtemp(prefix="sshd-", dir=session.folder())), "MaxStartups 1:100:1\n")
    yield server
    server.stop()


def _greets(connection: socket.socket) -> bool:
    with suppress(ConnectionError):
        return connection.recv(4) == b"SSH-"
    return False


@contextmanager
def scanner(sshd: ssh.Sshd) -> Iterator[None]:
    """Occupies the only slot of a crowded sshd for the block, as soon as sshd has noticed that an earlier connection has ended."""
    end = time.monotonic() + 60
    while True:
        with socket.create_connection(("127.0.0.1", sshd.port)) as connection:
            if _greets(connection):
                yield
                return
        assert time.monotonic() < end, "sshd refuses each connection"
        time.sleep(0.02)


def test_a_connection_that_was_refused_for_a_moment_is_tried_again_by_the_next_transfer(crowded_sshd: ssh.Sshd) -> None:
    async def use() -> None:
        connection = shared(crowded_sshd)
        with scanner(crowded_sshd):
            assert await connection.socket(Cancellation()) is None
        for _ in range(50):  # sshd has to notice that the scanner has gone
            if await connection.socket(Cancellation()):
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("no further login was tried")
        await connection.close()

    before = folders()
    asyncio.run(asyncio.wait_for(use(), 60))
    assert logins(crowded_sshd) == 1
    assert_nothing_left(before)


def test_an_sshd_that_refuses_further_logins_is_named_with_the_line_for_its_configuration(
    nights: Nights, crowded_sshd: ssh.Sshd
) -> None:
    """A scanner occupies the only slot. The next run, without the scanner, continues."""
    sshd, path = crowded_sshd, nights.source / "srv"
    path.mkdir()
    (path / "file").write_bytes(os.urandom(1000))
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", path, address=sshd.address, port=sshd.port)
    before = folders()
    with scanner(sshd):
        result = nights.run("web1", status=1)["web1"]
        assert (result["outcome"], result["name"]) == ("failed", None)
        assert "the host closed the connection" in result["error"], result
        assert "connection" in nights.backupd("status", "web1", check=False).stdout
        answer = json.loads(nights.backupd("check", "--connect", "--json", check=False).stdout)
        (hint,) = {each["hint"] for each in answer if each["subject"] == "web1" and each["level"] == "error"}
        assert "MaxStartups" in hint
        assert "`PerSourcePenaltyExemptList ADDRESS-OF-THIS-SERVER`" in hint
    assert nights.run("web1")["web1"]["outcome"] == "complete"
    assert nights.differences("web1", path) == []
    assert_nothing_left(before)


def test_connect_compares_the_sshd_of_several_hosts_with_the_connections_of_a_run(nights: Nights, sshd: ssh.Sshd) -> None:
    """The key's command runs sshd -T with the low MaxStartups, as if that file were the host's sshd_config."""
    path, forced, config = nights.source / "srv", nights.top / "forced", nights.top / "sshd_config"
    path.mkdir()
    config.write_text((sshd.folder / "sshd_config").read_text().replace("MaxStartups 100", "MaxStartups 1:100:1"))
    forced.write_text(f"""#!/bin/sh
case "$SSH_ORIGINAL_COMMAND" in
"/usr/sbin/sshd -T") exec /usr/sbin/sshd -T -f {config} ;;
*) eval "exec $SSH_ORIGINAL_COMMAND" ;;
esac
""")
    forced.chmod(0o755)
    key = sshd.authorize(f'command="{forced}"')
    nights.settings("ssh", command="ssh -F none", key=str(key), known_hosts=str(sshd.known_hosts))
    nights.settings("backup", concurrency=2)

    def notes() -> list[tuple[str, str]]:
        answer = json.loads(nights.backupd("check", "--connect", "--json", check=False).stdout)
        return [(each["level"], each["hint"]) for each in answer if "connections to this address at once" in each["message"]]

    nights.host("web1", path, address=sshd.address, port=sshd.port)
    assert notes() == []
    nights.host("web2", path, address=sshd.address, port=sshd.port)
    ((level, hint),) = notes()
    assert level == "note"
    assert hint.startswith("set MaxStartups 4 in its sshd_config, and reload sshd")
