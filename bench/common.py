"""Shared by the benchmarks: a filesystem of their own, hosts to back up, runs side by side, and the results in words.

Everything is in one session folder of the test beds (images, mounts, an sshd), which is removed at the end, also after an error,
Ctrl-C or SIGTERM. The next bench or test session removes the remains of a kill -9.
"""

import argparse
import json
import os
import platform
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench.slow_disk import slow_btrfs
from btrkeep.units import parse_size
from tests.beds import TOP, btrfs, session, ssh, work

FAKESSH = TOP / "tests" / "fakessh"
TRANSPORTS = ("fakessh", "ssh", "local")
_MOUNT = "noatime"  # as `backupd check` advises
_TICKS = os.sysconf("SC_CLK_TCK")
_T = TypeVar("_T")


def parser(text: str, *, nights: int = 7) -> argparse.ArgumentParser:
    """Returns a parser with the options of each bench that runs nights."""
    made = plain_parser(text)
    made.add_argument("--nights", type=int, default=nights, help="measured nights of each side, after an unmeasured one")
    made.add_argument("--transport", choices=TRANSPORTS, default="fakessh", help="how rsync reaches the host, on both sides")
    made.add_argument("--write-delay", metavar="TIME", help="delay of each write to the pool's disk, such as 5ms")
    return made


def plain_parser(text: str) -> argparse.ArgumentParser:
    """Returns a parser with the options of each bench."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--image-dir", type=Path, default=Path("/dev/shm"), help="folder for the sparse images of the filesystems")
    made.add_argument("--quiet", type=float, default=0.3, help="begin a run when fewer CPUs than this are busy; 0: do not wait")
    made.add_argument("--patience", type=float, default=60.0, help="maximum seconds to wait for a quiet moment")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def size(text: str) -> int:
    """Parses the size in bytes of an option."""
    return parse_size(text)


@dataclass(slots=True)
class Bed:
    """A btrfs for the pool, another one for the hosts' disks, and the way in which the hosts are reached."""

    disk: Path
    hosts: Path
    folder: Path
    transport: str
    sshd: ssh.Sshd | None

    @property
    def pool(self) -> Path:
        """Our pool."""
        return self.disk / "pool"

    @property
    def config(self) -> Path:
        """Our configuration file."""
        return self.folder / "bench.toml"

    def configure(self, hosts: Mapping[str, Path], concurrency: int = 4) -> None:
        """Writes the configuration and makes the pool; each host has one source path."""
        head: dict[str, dict[str, Any]] = {
            "pool": {"path": str(self.pool), "state": str(self.folder / "state")},
            "backup": {"concurrency": concurrency},
            "ssh": self._ssh_settings(),
        }
        sections = [*head.items(), *((f"host.{name}", self._host(path)) for name, path in hosts.items())]
        self.config.write_text("\n".join(_toml(name, keys) for name, keys in sections), encoding="utf-8")
        work(*ours(self, "init", str(self.pool)), cwd=TOP)

    def _ssh_settings(self) -> dict[str, str]:
        if self.sshd:
            return {"command": "ssh -F none", "key": str(self.sshd.key), "known_hosts": str(self.sshd.known_hosts)}
        return {"command": shlex.quote(str(FAKESSH))}

    def _host(self, path: Path) -> dict[str, Any]:
        if self.sshd:
            return {"address": self.sshd.address, "port": self.sshd.port, "paths": [str(path)]}
        return {"address": "root@elsewhere", "paths": [str(path)]} if self.transport == "fakessh" else {"paths": [str(path)]}

    def settle(self) -> None:
        """Syncs everything, so that earlier writes do not slow down the next run."""
        for mount in (self.disk, self.hosts):
            work("btrfs", "filesystem", "sync", mount)

    def newest(self, host: str) -> Path:
        """Returns the newest backup that btrkeep made."""
        return max(path for path in (self.pool / "hosts" / host).iterdir() if path.name[:2] == "20")


def _toml(section: str, keys: Mapping[str, Any]) -> str:
    return f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


@contextmanager
def bed(options: argparse.Namespace, pool_size: str, hosts_size: str) -> Iterator[Bed]:
    """Yields a new bed; removes it at the end."""
    with own_folder(options) as folder, ExitStack() as stack:
        server = ssh.start(folder) if options.transport == "ssh" else None
        if server:
            stack.callback(server.stop)
        hosts = btrfs.make(hosts_size, options=_MOUNT)
        if delay := getattr(options, "write_delay", None):
            pool = stack.enter_context(slow_btrfs(folder, pool_size, delay, _MOUNT))
        else:
            pool = btrfs.make(pool_size, options=_MOUNT)
        yield Bed(pool, hosts, folder, options.transport, server)


@contextmanager
def own_folder(options: argparse.Namespace) -> Iterator[Path]:
    """Yields a folder for the files of the bench. At its end, all files in it are removed, with the mounts and loop devices of
    images.
    """
    if why := btrfs.why_not():
        sys.exit(f"no benchmark: {why}")
    os.environ[session.PLACE] = str(options.image_dir)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    session.clear_dead_sessions()
    with ExitStack() as stack:
        stack.callback(session.end_session, session.own_name())
        folder = Path(tempfile.mkdtemp(prefix="bench-", dir=session.folder()))
        _keep_bytecode(folder / "bytecode")
        yield folder


@contextmanager
def ext4(folder: Path, mib: int) -> Iterator[Path]:
    """Yields the mount point of a new ext4, whose image is in `folder`."""
    image, point = folder / "ext4", folder / "old"
    with image.open("wb") as file:
        file.truncate(mib << 20)
    work("mkfs.ext4", "-q", "-N", "12000000" if mib > 8000 else "2000000", image)
    point.mkdir()
    work("mount", "-o", "loop,noatime", image, point)
    try:
        yield point
    finally:
        work("umount", point)


def _keep_bytecode(folder: Path) -> None:
    """Makes Python keep compiled modules, as for an installed program: the unmeasured first run compiles them."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)


def ours(place: Bed, *words: str) -> tuple[str, ...]:
    """Returns the command line of backupd, for a process like that of an operator."""
    return (sys.executable, "-m", "backupd", "--config", str(place.config), *words)


def rsync_lines(place: Bed, hosts: Sequence[str] = ()) -> dict[str, list[str]]:
    """Returns, by host, the rsync command that `backupd run` would use now, from its own --dry-run."""
    chosen = hosts or ("--all",)
    planned = json.loads(work(*ours(place, "run", *chosen, "--dry-run", "--json"), cwd=TOP).stdout)
    commands = {entry["host"]: entry["commands"] for entry in planned}
    assert all(len(lines) == 1 for lines in commands.values())
    return {host: lines[0] for host, lines in commands.items()}


def bare_night(rsync: Sequence[str], base: Path, new: Path) -> str:
    """Returns the shell commands of one host: snapshot, the same rsync with another destination, sync -f, read-only."""
    steps = (
        ("btrfs", "-q", "subvolume", "snapshot", str(base), str(new)),
        (*rsync[:-1], f"{new}/data/"),
        ("sync", "-f", str(new)),
        ("btrfs", "property", "set", "-ts", str(new), "ro", "true"),
    )
    return " && ".join(shlex.join(step) for step in steps)


@dataclass(frozen=True, slots=True)
class Timed:
    """A finished command: wall clock seconds, its output, its CPU seconds, and those of the rest of the machine in that time.

    The rest is the work of other processes and of the kernel's threads.
    """

    seconds: float
    stdout: str
    cpu: float
    others: float


def timed(command: Sequence[str]) -> Timed:
    """Runs a command to its end. If it fails, the bench fails."""
    busy, used, begun = busy_seconds(), _children(), time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=TOP, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)[:2000]}\nended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    cpu = _children() - used
    return Timed(seconds, done.stdout, cpu, max(0.0, busy_seconds() - busy - cpu))


def busy_seconds() -> float:
    """Returns the CPU seconds that all CPUs of this machine have worked since its start."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / _TICKS


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_for_quiet(options: argparse.Namespace) -> bool:
    """Waits until other processes need little CPU; returns whether that happened within the patience."""
    end = time.monotonic() + options.patience
    while options.quiet:
        before = busy_seconds()
        time.sleep(1)
        if busy_seconds() - before < options.quiet:
            return True
        if time.monotonic() > end:
            return False
    return True


@dataclass(slots=True)
class Sides:
    """Pairs of runs on the same changes, one of each side."""

    first: str
    second: str
    pairs: list[tuple[float, float]] = field(default_factory=list)

    def summary(self, limit: float | None) -> dict[str, Any]:
        """Returns medians in seconds, and the ratios of the pairs; `limit` is the agreed maximum of the ratio."""
        ratios = [first / second for first, second in self.pairs]
        return {
            self.first: spread([first for first, _ in self.pairs]),
            self.second: spread([second for _, second in self.pairs]),
            "ratio": {**spread(ratios), "limit": limit, "of_medians": self._of_medians(), "pairs": ratios},
        }

    def _of_medians(self) -> float:
        return statistics.median(first for first, _ in self.pairs) / statistics.median(second for _, second in self.pairs)


def spread(numbers: Sequence[float]) -> dict[str, float]:
    """Returns median and range."""
    return {"median": statistics.median(numbers), "min": min(numbers), "max": max(numbers)}


def alternate(number: int, first: Callable[[], _T], second: Callable[[], _T]) -> tuple[_T, _T]:
    """Runs both sides, each first in turn, so that no side always benefits from the other's caches."""
    if number % 2:
        result = first()
        return result, second()
    two = second()
    return first(), two


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """Describes the machine on which the figures were measured."""
    place = work("stat", "-f", "-c", "%T", options.image_dir).stdout.strip()
    transport = {name: getattr(options, name) for name in ("transport", "write_delay") if getattr(options, name, None)}
    return {
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "images": place,
        **transport,
        "rsync": work("rsync", "--version").stdout.split()[2],
        "btrfs_progs": work("btrfs", "--version").stdout.split()[-1],
        "python": platform.python_version(),
    }


def say(text: str) -> None:
    """Prints a progress line on standard error."""
    print(text, file=sys.stderr, flush=True)


def noise(quiet: bool, first: Timed, second: Timed) -> str:
    """Returns the share of the machine that other processes used during a pair, for its line."""
    return f"others' CPU {first.others:.1f} and {second.others:.1f} s{'' if quiet else '; not quiet'}"


def report(options: argparse.Namespace, title: str, measured: Mapping[str, Any]) -> None:
    """Prints the result: JSON, or a table of medians and ranges."""
    facts = machine(options)
    if options.json:
        print(json.dumps({"bench": title, "machine": facts, "command": shlex.join(sys.orig_argv[1:]), **measured}, indent=2))
        return
    print(f"{title}\n  " + ", ".join(f"{key} {value}" for key, value in facts.items()))
    for name, values in measured.items():
        _print_measure(name, values)


def _print_measure(name: str, values: Any) -> None:
    if not isinstance(values, Mapping):
        print(f"  {name}: {values}")
        return
    print(f"  {name}")
    for side, numbers in values.items():
        limit = f"   (at most {numbers['limit']})" if numbers.get("limit") else ""
        print(f"    {side:32} {numbers['median']:9.3f}   [{numbers['min']:.3f} - {numbers['max']:.3f}]{limit}")
