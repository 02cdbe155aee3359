"""A run logs in once to a host, however many source paths it has, and comes to no harm by that connection."""

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from backupd.rsync.shared_connection import NotConnected, SharedConnection
from btrkeep.config import HostConfig, SshSettings
from btrkeep.decisions.rsync_meaning import ExitCause, meaning
from btrkeep.process.cancellation import Cancellation
from tests.beds import ssh, work
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


def logins(sshd: ssh.Sshd) -> int:
    return len(re.findall("Accepted publickey", sshd.log))


def folders() -> set[Path]:
    return set(Path("/run").glob("btrkeep-ssh-*"))


def shared(sshd: ssh.Sshd, key: Path | None = None) -> SharedConnection:
    host = HostConfig("web1", address=sshd.address, port=sshd.port, paths=("/a", "/b"))
    settings = SshSettings(key=key or sshd.key, known_hosts=sshd.known_hosts, command="ssh -F none")
    return SharedConnection(host, settings, wanted=True)


@pytest.mark.parametrize("own", [False, True], ids=["ssh", "the administrator's own command"])
def test_a_host_of_several_paths_is_logged_in_to_once(nights: Nights, sshd: ssh.Sshd, own: bool) -> None:
    command, paths = "ssh -F none", [nights.source / f"path{number}" for number in range(4)]
    if own:  # which need not be OpenSSH, nor know of a master
        wrapper = nights.top / "own-ssh"
        wrapper.write_text('#!/bin/sh\nexec ssh -F none "$@"\n')
        wrapper.chmod(0o755)
        command = str(wrapper)
    for path in paths:
        path.mkdir(parents=True)
        (path / "file").write_bytes(os.urandom(1000))
    nights.settings("ssh", command=command, key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", *paths, address=sshd.address, port=sshd.port)
    before, there = logins(sshd), folders()
    assert nights.run("web1")["web1"]["outcome"] == "complete"
    assert logins(sshd) - before == (4 if own else 1)
    assert [nights.differences("web1", path) for path in paths] == [[]] * 4
    assert folders() == there


def test_a_connection_that_is_gone_is_made_again_and_ends_with_the_run(sshd: ssh.Sshd) -> None:
    there, before = folders(), logins(sshd)

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

    asyncio.run(asyncio.wait_for(use(), 30))
    assert (folders(), logins(sshd) - before) == (there, 2)


def test_a_host_that_refuses_the_key_is_asked_once_and_the_reason_is_sshs(sshd: ssh.Sshd, tmp_path: Path) -> None:
    work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other")
    there = folders()
    with pytest.raises(NotConnected) as caught:
        asyncio.run(shared(sshd, tmp_path / "other").socket(Cancellation()))
    assert meaning(255, caught.value.printed.decode().splitlines()).cause is ExitCause.KEY_REFUSED
    assert folders() == there
