"""An ssh server of the session on the loopback address, with keys that last as long as it does."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.beds import session
from tests.beds.work import work

SSHD = "/usr/sbin/sshd"

_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd.pid
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PubkeyAuthentication yes
StrictModes no
UsePAM {pam}
MaxStartups 100
MaxSessions 100
PrintMotd no
SetEnv {mark}={name} HOME={folder}/home
"""
# HOME: bash reads .bashrc for commands over ssh, too. A developer's may take half a second for each login, or a minute: one that is
# killed in the middle of `pyenv init` leaves a lock for which all others wait.
# Newer servers shut out an address that fails too often; here all clients have the same one. Older ones do not know the word.
_CONFIG_NEWER = "PerSourcePenalties no\n"


def why_not() -> str:
    """Returns why this machine cannot run an ssh server for tests, or ""."""
    if not Path(SSHD).exists() or not shutil.which("ssh"):
        return "openssh-server is not installed"
    try:
        shell = Path(pwd.getpwuid(os.geteuid()).pw_shell or "/bin/sh").name
    except KeyError:
        return "this user has no name"
    return "this user has no login shell" if shell in ("nologin", "false") else ""


@dataclass(frozen=True, slots=True)
class Sshd:
    """A running server. `key` opens it without restriction; `known_hosts` names its host key."""

    folder: Path
    port: int
    user: str
    process: subprocess.Popen[bytes]

    @property
    def key(self) -> Path:
        return self.folder / "key"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def address(self) -> str:
        return f"{self.user}@127.0.0.1"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def ssh(self, key: Path | None = None) -> tuple[str, ...]:
        """Returns the client's words up to the host, for `rsync -e` or for a direct call."""
        files = ("-i", str(key or self.key), "-o", f"UserKnownHostsFile={self.known_hosts}")
        return ("ssh", "-F", "none", "-p", str(self.port), *files, "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes")

    def authorize(self, options: str) -> Path:
        """Makes a further key whose line in authorized_keys starts with `options`, such as `restrict,command="rrsync -ro /"`."""
        key = self.folder / f"key-{time.monotonic_ns()}"
        _authorize(self.folder, key, options)
        return key

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(folder: Path, options: str = "") -> Sshd:
    """Starts a server that keeps all its files in `folder`; returns when it accepts connections. `options`: lines that go before
    the other lines of its configuration.
    """
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # for its privilege separation
    for name in ("host_key", "key"):
        _make_key(folder / name)
    _authorize(folder, folder / "key", "")
    for _ in range(5):  # another process may take the port between our check and the server's bind
        server = _start_on(folder, _free_port(), options)
        if _is_up(server):
            return server
        server.stop()
    raise AssertionError(f"sshd did not start:\n{server.log}")


def _start_on(folder: Path, port: int, options: str) -> Sshd:
    user = pwd.getpwuid(os.geteuid()).pw_name
    names = {"folder": folder, "port": port, "mark": session.MARK, "name": session.own_name(), "pam": _needs_pam(user)}
    config = folder / "sshd_config"
    newer = _CONFIG_NEWER if "PerSourcePenalties" not in options else ""
    own = _CONFIG.replace("MaxStartups 100\n", "") if "MaxStartups" in options else _CONFIG  # the last line of this option counts
    config.write_text(options + own.format(**names) + newer, encoding="utf-8")
    if work(SSHD, "-t", "-f", config, check=False).returncode:
        config.write_text(options + own.format(**names), encoding="utf-8")
        work(SSHD, "-t", "-f", config)
    host_key = (folder / "host_key.pub").read_text(encoding="utf-8")
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}", encoding="utf-8")
    argv = [SSHD, "-D", "-f", str(config), "-E", str(folder / "log")]
    return Sshd(folder, port, user, subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True))


def _needs_pam(user: str) -> str:
    """sshd alone refuses an account whose password is locked with "!", as root's is where only sudo is used; PAM lets a key in."""
    if os.geteuid() != 0:
        return "no"
    return "yes" if work("getent", "shadow", user).stdout.split(":")[1].startswith("!") else "no"


def _make_key(path: Path) -> None:
    if not path.exists():
        work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", session.own_name(), "-f", path)


def _authorize(folder: Path, key: Path, options: str) -> None:
    _make_key(key)
    public = Path(f"{key}.pub").read_text(encoding="utf-8")
    with (folder / "authorized_keys").open("a", encoding="utf-8") as file:
        file.write(f"{options} {public}".lstrip())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_up(server: Sshd) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=1) as connection:
                if connection.recv(4) == b"SSH-":
                    return True
        except OSError:
            time.sleep(0.02)
    return False
