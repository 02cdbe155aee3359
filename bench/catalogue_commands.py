"""Times the reading commands with 3,000 hosts and 96,000 backups: whole processes, from the shell's prompt to the next prompt.

    python -m bench.catalogue_commands [--hosts 3000] [--backups 32] [--json]

The catalogue is that of bench.make_catalogue. In the pool each host has its folder with as many names as backups; the newest is a
real backup (a read-only subvolume with its record), because --dry-run reads it.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from backupd.repo import backup_json as records
from bench import make_catalogue
from bench.common import Bed, bed, parser, report, say, spread, wait_for_quiet
from btrkeep.backup_states import COMPLETE
from btrkeep.pool.subvolume import create, describe, set_read_only
from btrkeep.units import backup_name
from tests.beds import TOP, work

NOW = "2026-11-20T22:30:00Z"  # all hosts are due, and their window is open
ONE = "host0007.example.org"
COMMANDS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "status": (("status",), 0.5),
    "status --json": (("status", "--json"), 0.5),
    "list HOST": (("list", ONE), 0.5),
    "list --json": (("list", "--json"), 1.5),
    "run --dry-run": (("run", "--dry-run"), 2.0),
    "metrics": (("metrics",), 1.0),
}
MEMORY = 300e6


@dataclass(frozen=True, slots=True)
class Measured:
    """One whole process: wall clock seconds, CPU seconds, peak memory in bytes, bytes that it printed."""

    seconds: float
    cpu: float
    memory: int
    printed: int
    output: bytes = field(default=b"", repr=False)


def make_site(pool: Path, folder: Path, hosts: int = 3000, count: int = 32, state: Path | None = None) -> Path:
    """Makes a rehearsal pool at `pool` and its catalogue in `folder`; returns the configuration's file. `state`: a folder with such
    a catalogue, which is copied instead."""
    config = folder / "large.toml"
    config.write_text(configuration(pool, folder / "state", hosts), encoding="utf-8")
    work(sys.executable, "-m", "backupd", "--config", config, "init", "--rehearsal", pool, cwd=TOP)
    marker = pool / ".btrkeep" / "pool.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "id": make_catalogue.POOL_ID}))
    for host in range(hosts):
        _make_folder(pool, host, count)
    if state:
        shutil.copytree(state, folder / "state", dirs_exist_ok=True)
    else:
        make_catalogue.make(folder / "state", hosts, count)
    return config


def configuration(pool: Path, state: Path, hosts: int) -> str:
    """Returns a configuration like that of a large pool: a group, a window, a budget, and one table for each host."""
    head = (
        f'[pool]\npath = "{pool}"\nstate = "{state}"\n[backup]\nwindow = "22:00-06:00"\nbandwidth = "16MB"\n'
        '[group.debian]\nexclude = ["/var/cache/apt/archives/*"]\npaths = ["/etc", "/home", "/srv", "/var/lib"]\n'
    )
    names = (f"host{host:04}.example.org" for host in range(hosts))
    return head + "".join(f'[host."{name}"]\ngroup = "debian"\naddress = "root@{name}"\n' for name in names)


def _make_folder(pool: Path, host: int, count: int) -> None:
    evenings = make_catalogue.nights(count)
    backups = [make_catalogue.backup_of(host, night, evening) for night, evening in enumerate(evenings)]
    folder = pool / "hosts" / backups[0].host
    folder.mkdir(mode=0o700)
    for backup in backups[:-1]:
        (folder / backup_name(backup.started)).mkdir()
    newest, path = backups[-1], folder / backup_name(backups[-1].started)
    create(path)
    subvolume = describe(path)
    assert subvolume is not None
    records.write(path, records.Record(newest.host, subvolume.uuid, COMPLETE, newest.started, name=path.name))
    set_read_only(path)


# The kernel's memory peak of a process starts with the peak of its parent, so a small process has to start it.
_STARTER = """
import os, sys, time
begun = time.perf_counter()
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, used = os.wait4(pid, 0)
told = time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss, os.waitstatus_to_exitcode(status)
os.write(int(sys.argv[1]), " ".join(map(str, told)).encode())
"""


class Started:
    """A program that reads from one pipe of the filesystem and writes into another; at the end `measured` shows what it took."""

    def __init__(self, argv: Sequence[str], source: Path, sink: Path) -> None:
        reading, tells = os.pipe()
        words = [sys.executable, "-I", "-S", "-c", _STARTER, str(tells), *argv]
        script = f'exec "$@" <{shlex.quote(str(source))} >{shlex.quote(str(sink))}'
        self._process = subprocess.Popen(["sh", "-c", script, "sh", *words], cwd=TOP, pass_fds=[tells])
        os.close(tells)
        self._reading = reading
        self.measured: Measured | None = None

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind:  # it may wait for a reader that never comes
            self._process.kill()
        self._process.wait()
        report = os.read(self._reading, 200)
        os.close(self._reading)
        if not kind:
            self.measured = _measured(report, b"", "the other side")


def measure(config: Path, words: Sequence[str]) -> Measured:
    """Runs `backupd WORDS` once. Its output goes through a pipe, as to a program that reads it."""
    argv = [sys.executable, "-m", "backupd", "--config", str(config), *words, "--now", NOW]
    reading, tells = os.pipe()
    starter = [sys.executable, "-I", "-S", "-c", _STARTER, str(tells), *argv]
    process = subprocess.Popen(starter, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=TOP, pass_fds=[tells])
    os.close(tells)
    output, _ = process.communicate()
    report = os.read(reading, 200)
    os.close(reading)
    return _measured(report, output, f"backupd {' '.join(words)}")


def measure_stream(argv: Sequence[str]) -> tuple[Measured, float]:
    """Runs a command, and reads its output to the end as it arrives. Also returns the seconds until its first byte."""
    reading, tells = os.pipe()
    starter = [sys.executable, "-I", "-S", "-c", _STARTER, str(tells), *argv]
    begun = time.perf_counter()
    process = subprocess.Popen(starter, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=TOP, pass_fds=[tells])
    os.close(tells)
    with os.fdopen(reading, "rb") as end, process:
        assert process.stdout
        size = len(os.read(process.stdout.fileno(), 1))
        first = time.perf_counter() - begun
        while piece := os.read(process.stdout.fileno(), 1 << 20):
            size += len(piece)
        return replace(_measured(end.read(), b"", shlex.join(argv)), printed=size), first


def _measured(report: bytes, output: bytes, label: str) -> Measured:
    seconds, cpu, kib, status = report.decode().split()
    if int(status):
        raise SystemExit(f"{label} ended with {status}: {output.decode(errors='replace')[-2000:]}")
    return Measured(float(seconds), float(cpu), int(kib) * 1024, len(output), output)


def _measure_all(options: argparse.Namespace, place: Bed) -> dict[str, dict[str, dict[str, float]]]:
    say(f"making a pool of {options.hosts} hosts with {options.backups} backups each")
    config = make_site(place.pool, place.folder, options.hosts, options.backups)
    measurements: dict[str, list[Measured]] = {name: [] for name in COMMANDS}
    quiet = [wait_for_quiet(options)]
    for night in range(options.nights + 1):
        for name, (words, _) in COMMANDS.items():
            measured = measure(config, words)
            measurements[name] += [measured] if night else []  # the first one finds cold caches
        quiet.append(wait_for_quiet(options))
    if not all(quiet):
        say("others were working on this machine meanwhile: the figures are too high")
    return {
        "seconds": {
            name: {**spread([each.seconds for each in measureds]), "limit": COMMANDS[name][1]}
            for name, measureds in measurements.items()
        },
        "seconds of CPU time": {name: spread([each.cpu for each in measureds]) for name, measureds in measurements.items()},
        "MB of memory": {
            name: {**spread([each.memory / 1e6 for each in measureds]), "limit": MEMORY / 1e6}
            for name, measureds in measurements.items()
        },
    }


def main() -> None:
    """Runs the command line."""
    made = parser("The commands that read, with a large catalogue: whole processes.", nights=5)
    made.add_argument("--hosts", type=int, default=3000)
    made.add_argument("--backups", type=int, default=32)
    options = made.parse_args()
    with bed(options, "4G", "256M") as place:
        report(options, "The commands that read", _measure_all(options, place))


if __name__ == "__main__":
    main()
