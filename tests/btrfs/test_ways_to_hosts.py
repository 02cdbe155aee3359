"""Hosts are reached as ssh's configuration has it: through a jump host, over IPv6, on another port, as another user. Each has a
real sshd; backups are sessions of btrkeep-source.
"""

import json
import pwd
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.beds import session, ssh
from tests.beds.jump import behind_jump, ssh_config
from tests.beds.nights import Nights
from tests.beds.source_program import SourceHost
from tests.beds.within import restore

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.ssh]


@pytest.fixture
def folder() -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(prefix="ways-", dir=session.folder()))
    yield top
    shutil.rmtree(top)


def assert_backed_up_and_restored(nights: Nights, sshd: ssh.Sshd, address: str, port: int | None) -> None:
    """Makes a backup with btrkeep-source, checks the host, and restores to it with the restore key."""
    source = nights.source / "srv"
    source.mkdir()
    (source / "page").write_text("first")
    host = SourceHost(sshd, f"[restore]\nallow = {source}\n")
    host.ssh()
    host.ssh(mode="restore")
    nights.settings("ssh", key=str(host.keys["office"]), restore_key=str(host.keys["officerestore"]))
    nights.host("web1", source, address=address, port=port, snapshots="required")
    checked = json.loads(nights.backupd("check", "--connect", "--json", check=False).stdout)
    assert [finding["message"] for finding in checked if finding["level"] == "ok" and finding["subject"] == "web1"] == [
        "reached, 1 path can be listed"
    ]
    result = nights.run("web1")["web1"]
    assert (result["outcome"], result["warnings"]) == ("complete", [])
    assert nights.differences("web1", source) == []
    assert [path["consistency"]["kind"] for path in nights.record("web1")["paths"]] == ["snapshot"]
    assert host.left(*nights.top.parents) == []
    (source / "page").unlink()
    assert restore(nights, "web1", source / "page", "--to-host")["good"]
    assert (source / "page").read_text() == "first"


def test_a_host_behind_a_jump_host(nights: Nights, folder: Path) -> None:
    with behind_jump(folder) as (inside, gate):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", inside.port))
        nights.settings("ssh", command=f"ssh -F {ssh_config(folder, inside, gate)}", known_hosts=str(inside.known_hosts))
        assert_backed_up_and_restored(nights, inside, "inside", None)
        assert "Accepted publickey" in gate.log


def test_a_jump_host_that_is_missing_is_an_unreachable_host(nights: Nights, folder: Path) -> None:
    with behind_jump(folder) as (inside, gate):
        config = ssh_config(folder, inside, gate)
    nights.settings("ssh", command=f"ssh -F {config}", key=str(inside.key), known_hosts=str(inside.known_hosts))
    nights.host("web1", nights.source, address="inside")
    result = nights.run("web1", status=1)["web1"]
    assert (result["outcome"], "refuses the connection" in result["error"]) == ("failed", True), result


@contextmanager
def listening(folder: Path, options: str) -> Iterator[ssh.Sshd]:
    server = ssh.start(folder, options)
    try:
        yield server
    finally:
        server.stop()


def test_a_host_with_ipv6_and_another_port(nights: Nights, folder: Path) -> None:
    with listening(folder, "ListenAddress ::1\n") as server:
        host_keys = server.known_hosts.read_text().replace("[127.0.0.1]", "[::1]")
        server.known_hosts.write_text(host_keys)
        nights.settings("ssh", command="ssh -F none", known_hosts=str(server.known_hosts))
        assert_backed_up_and_restored(nights, server, f"{server.user}@[::1]", server.port)
        assert "from ::1 port" in server.log


def test_a_host_with_another_user(nights: Nights) -> None:
    """The user is given in ssh's configuration or in the address."""
    shells = ("/bin/bash", "/bin/sh")
    user = next((entry for entry in pwd.getpwall() if entry.pw_uid and entry.pw_shell in shells), None)
    if user is None:
        pytest.skip("no user of this machine has a login shell")
    folder = Path(tempfile.mkdtemp(prefix=session.own_name()))
    folder.chmod(0o755)
    try:
        source = folder / "srv"
        source.mkdir()
        (source / "page").write_text("first")
        with listening(folder, "UsePAM yes\n") as server:
            config = folder / "ssh_config"
            config.write_text(f"Host inside\n    HostName 127.0.0.1\n    Port {server.port}\n    User {user.pw_name}\n")
            nights.settings("ssh", key=str(server.key), known_hosts=str(server.known_hosts))
            for address, port, command in (
                (f"{user.pw_name}@127.0.0.1", server.port, "ssh -F none"),
                ("inside", None, f"ssh -F {config}"),
            ):
                nights.settings("ssh", command=command)
                nights.host("web1", source, address=address, port=port)
                assert nights.run("web1")["web1"]["outcome"] == "complete"
                assert nights.differences("web1", source) == []
            assert server.log.count(f"Accepted publickey for {user.pw_name}") == len(nights.names("web1")) == 2
    finally:
        shutil.rmtree(folder)
