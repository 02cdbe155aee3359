"""A host that only a jump host reaches: its sshd listens on the loopback address of a network namespace of its own.

The jump host's sshd runs in that namespace too, for connections that arrive outside of it (a listening socket stays where it was
made).
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.beds import ssh
from tests.beds.watch import wait_for

_INSIDE = """\
import os, signal, socket, subprocess, sys
listening, ready, sshd, inside, gate = socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:]
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.Popen([sshd, "-D", "-f", inside + "/sshd_config", "-E", inside + "/log"], stdin=subprocess.DEVNULL)
open(ready, "w").close()
while True:
    connection, _ = listening.accept()
    with connection:
        words = [sshd, "-i", "-f", gate + "/sshd_config", "-E", gate + "/log"]
        subprocess.Popen(words, stdin=connection, stdout=connection, stderr=subprocess.DEVNULL)
"""


@contextmanager
def behind_jump(top: Path) -> Iterator[tuple[ssh.Sshd, ssh.Sshd]]:
    """Yields the host and the jump host. Both accept only their own keys."""
    servers = []
    for name in ("inside", "gate"):
        (top / name).mkdir()
        server = ssh.start(top / name)
        server.stop()
        servers.append(server)
    inside, gate = servers
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        words = (str(listening.fileno()), top / "ready", ssh.SSHD, inside.folder, gate.folder)
        command = ("unshare", "--net", "--pid", "--fork", "--kill-child", sys.executable, "-c", _INSIDE, *words)
        process = subprocess.Popen(command, pass_fds=[listening.fileno()], start_new_session=True)
    host_keys = gate.known_hosts.read_text().replace(f":{gate.port} ", f":{port} ")
    gate.known_hosts.write_text(host_keys)
    try:
        wait_for((top / "ready").exists)
        wait_for(lambda: _answers(replace(gate, port=port), inside))
        yield inside, replace(gate, port=port)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(gate: ssh.Sshd, inside: ssh.Sshd) -> bool:
    words = (*gate.ssh(), "-W", f"127.0.0.1:{inside.port}", gate.address)
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False).stdout.startswith(b"SSH-")


def ssh_config(top: Path, inside: ssh.Sshd, gate: ssh.Sshd) -> Path:
    """Writes an administrator's configuration of ssh: `inside` is reached through `gate`."""
    file = top / "ssh_config"
    permitted = f'permitopen="127.0.0.1:{inside.port}"'
    key = gate.authorize(f'restrict,port-forwarding,{permitted},command="/bin/false"')
    file.write_text(f"""\
Host gate
    HostName 127.0.0.1
    Port {gate.port}
    User {gate.user}
    IdentityFile {key}
    IdentitiesOnly yes
    UserKnownHostsFile {gate.known_hosts}
Host inside
    HostName 127.0.0.1
    Port {inside.port}
    User {inside.user}
    ProxyJump gate
""")
    return file
