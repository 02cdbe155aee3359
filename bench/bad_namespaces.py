"""Hosts in network namespaces, whose packets the kernel loses or holds back: `bench.bad_network --namespaces`.

The backup server has a namespace too, with a pair of veth devices to each host, so nothing of this machine's own network is
touched. A namespace lives as long as the process in it: sshd, or `sleep` for the server's. Faults are a token bucket (tc tbf),
rules of nftables in the host's namespace, and links that go down. netem, which delays and reorders, is not in every kernel.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench import common
from bench.bad_network import Kind, Site
from tests.beds import TOP, btrfs, ssh, work
from tests.beds.nights import Nights

_PORT = 2222
_SLOW = "tc qdisc add dev eth0 root tbf rate 8mbit burst 32kb latency 200ms"
_IN_THE_MIDDLE = 250_000  # bytes that the host has sent
_FLAP = 3.0  # seconds
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Fault(Kind):
    """`shell`: lines that set up the host's network; `rules`: of nftables for incoming packets; `down`: when its link goes down."""

    shell: str = ""
    rules: str = ""
    down: str = ""


KINDS: Mapping[str, Fault] = {
    "slow": Fault(shell=_SLOW, outcomes=("complete",)),
    "lossy": Fault(rules="numgen random mod 100 < 3 drop", outcomes=("complete",)),
    "flap": Fault(shell=_SLOW, down="for a while", outcomes=("complete",)),
    "down": Fault(shell=_SLOW, down="for good", says=("no progress", "no way", "connection")),
    "unreachable": Fault(down="before", says=("no way", "connect")),
    "silent": Fault(rules="tcp dport 2222 drop", says=("connect", "no progress")),
    "large-lost": Fault(shell="ip link set lo up", rules="meta length > 500 drop", says=("no progress", "connect", "ssh")),
    "half-open": Fault(shell=_SLOW, down="hears nothing", says=("no progress", "connection", "ssh")),
}


def why_not() -> str:
    """Returns why this machine cannot run the bench, or ""."""
    if missing := [name for name in ("ip", "tc", "nft", "nsenter", "unshare") if not shutil.which(name)]:
        return f"not installed: {', '.join(missing)}"
    if subprocess.run(["unshare", "--net", "nft", "add", "table", "inet", "t"], check=False, capture_output=True).returncode:
        return "no network namespaces, or no nftables in them"
    return ""


class NamespaceSite(Site):
    """Hosts in namespaces, and nights in which a server in another namespace backs them up."""

    def __init__(self, nights: Nights, server: ssh.Sshd, options: Namespace, stack: ExitStack) -> None:
        super().__init__(nights, server, None, options)
        self._stack, self._pids = stack, dict[str, int]()
        self._faults: dict[str, Fault] = {}
        config = (server.folder / "sshd_config").read_text()
        config = config.replace("ListenAddress 127.0.0.1", "ListenAddress 0.0.0.0").replace(f"Port {server.port}", f"Port {_PORT}")
        self._config = server.folder / "namespace_config"
        self._config.write_text(
            "\n".join(line for line in config.splitlines() if not line.startswith("PidFile")) + "\nPidFile none\n"
        )
        self._here = self._started("sleep", "infinity")

    def _started(self, *words: str | Path) -> int:
        """Starts a process in a new namespace, until the stack ends."""
        process = subprocess.Popen(
            ["unshare", "--net", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        deadline = time.monotonic() + _PATIENCE
        while _namespace(process.pid) == _namespace():
            assert time.monotonic() < deadline, "the namespace was not made"
            time.sleep(0.005)
        self._stack.callback(_end_all_in, _namespace(process.pid))
        return process.pid

    def host(self, name: str, kind: Kind) -> None:
        """Makes the host's namespace and its link."""
        number = len(self._pids) + 1
        pid = self._started(ssh.SSHD, "-D", "-f", self._config, "-E", self.server.folder / "namespaces.log")
        self._pids[name] = pid
        link, net = f"host{number}", f"10.77.{number}"
        here = [f"link add {link} type veth peer name eth0 netns {pid}", f"addr add {net}.1/24 dev {link}", f"link set {link} up"]
        self._in(self._here, "ip", "-batch", "-", text="\n".join(here))
        self._in(pid, "ip", "-batch", "-", text=f"addr add {net}.2/24 dev eth0\nlink set eth0 up")
        fault = kind if isinstance(kind, Fault) else Fault()
        if fault.shell:
            self._in(pid, "sh", "-ec", fault.shell)
        if fault.rules:
            self._lose(pid, fault.rules)
        if fault.down == "before":
            self._in(self._here, "ip", "link", "set", link, "down")
        self._faults[name] = fault
        with self.known_hosts.open("a") as file:
            file.write(f"[{net}.2]:{_PORT} {' '.join((self.server.folder / 'host_key.pub').read_text().split()[:2])}\n")
        self.nights.host(name, self.tree, address=f"{self.server.user}@{net}.2", port=_PORT)

    def _lose(self, pid: int, rule: str) -> None:
        text = f"table inet loss {{ chain incoming {{ type filter hook input priority 0; {rule}; }}; }}\n"
        self._in(pid, "nft", "-f", "-", text=text)

    def _in(self, pid: int, *words: str, text: str = "") -> None:
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{pid}/ns/net", *words],
            input=text,
            text=True,
            capture_output=True,
            check=False,
            timeout=_PATIENCE,
        )
        assert done.returncode == 0, f"{words} {text}: {done.stderr}"

    def run_all(self) -> "subprocess.CompletedProcess[str]":
        """Runs the night from the server's namespace, while links go down."""
        enabled = {name for name, keys in self.nights.tables["host"].items() if keys["enabled"]}
        over = threading.Event()
        threads = [
            threading.Thread(target=self._breaks, args=(name, number, over))
            for number, name in enumerate(self._pids, 1)
            if name in enabled and self._faults[name].down not in ("", "before")
        ]
        for thread in threads:
            thread.start()
        words: list[str | Path] = [
            "nsenter",
            f"--net=/proc/{self._here}/ns/net",
            sys.executable,
            "-m",
            "backupd",
            "--config",
            self.nights.config,
        ]
        try:
            return work(*words, "run", "--all", "--json", check=False, timeout=600, cwd=TOP)
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _breaks(self, name: str, number: int, over: threading.Event) -> None:
        """Waits for the middle of the transfer; then the link goes down, for a time or for good, or drops incoming packets."""
        pid, link, begun = self._pids[name], f"host{number}", self._sent(name)
        while self._sent(name) - begun < _IN_THE_MIDDLE:
            if over.wait(0.05):
                return
        if self._faults[name].down == "hears nothing":
            self._lose(pid, "drop")
            return
        self._in(self._here, "ip", "link", "set", link, "down")
        if self._faults[name].down == "for a while":
            over.wait(_FLAP)
            self._in(self._here, "ip", "link", "set", link, "up")

    def _sent(self, name: str) -> int:
        """Returns the bytes that the host has sent over its link."""
        lines = Path(f"/proc/{self._pids[name]}/net/dev").read_text().splitlines()
        return next((int(line.split()[9]) for line in lines if line.strip().startswith("eth0:")), 0)


def _namespace(process: int | str = "self") -> Path:
    return Path(f"/proc/{process}/ns/net").readlink()


def _end_all_in(namespace: Path) -> None:
    """Kills all processes in a host's namespace: when its link is down, a remote rsync would wait there for long."""
    assert namespace != _namespace()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if _namespace(entry.name) == namespace:
                    os.kill(int(entry.name), signal.SIGKILL)


@contextmanager
def namespaces(options: Namespace) -> Iterator[NamespaceSite]:
    """Yields a pool and a server without hosts; both are removed at the end."""
    if why := why_not():
        sys.exit(f"no benchmark: {why}")
    with common.own_folder(options) as folder, ExitStack() as stack:
        server = ssh.start(folder)
        stack.callback(server.stop)
        yield NamespaceSite(Nights(btrfs.make("4G", options="noatime")), server, options, stack)
