"""Compares a night with hosts whose network fails in every possible way to the same night with only the good hosts.

    python -m bench.bad_network [--namespaces] [--good 30] [--each 2] [--concurrency 8] [--json]

Each host is an ssh server behind a port of a proxy of this bench, which cuts, drops, delays or babbles; rsync and ssh are the real
ones. With --namespaces each host has a network of its own, and the kernel loses its packets (bench/bad_namespaces.py). It prints
the result of each kind, the delay of the good hosts, and the processes left running. Exit status 1 when a kind has another result
than the documented one, when a good host was not complete, or when something was left.
"""

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import common
from tests.beds import btrfs, ssh
from tests.beds.nights import Nights
from tests.beds.proxy import Faults, faulty_proxy
from tests.beds.watch import disagreements, processes, transferring, writable_finals

STALL = "8s"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of failure: the proxy's fault, the remote rsync. The expected result: an outcome, a word of the error."""

    fault: str = ""
    rsync_path: str = ""
    outcomes: tuple[str, ...] = ("partial", "failed")
    says: tuple[str, ...] = ()
    other_key: bool = False


STOP = "sh -c 'kill -STOP $$; exit 1' #"
KINDS: Mapping[str, Kind] = {
    "cut": Kind("cut", says=("connection", "ssh")),
    "half-open": Kind("half-open", says=("no progress", "connection", "ssh")),
    "silent": Kind("silent", says=("connect", "no progress")),
    "refused": Kind("refused", says=("refuse", "connect")),
    "garbage": Kind("garbage", says=("connect", "ssh", "closed")),
    "other-key": Kind(other_key=True, says=("key",)),
    "login-noise": Kind(rsync_path="echo welcome; rsync", outcomes=("failed", "partial"), says=("speak", "protocol")),
    "stopped": Kind(rsync_path=STOP, says=("no progress",)),
    "slow": Kind("slow", outcomes=("complete",)),
    "lossy": Kind("lossy", outcomes=("complete",)),
    "banner": Kind("banner", outcomes=("complete",)),
}


@dataclass(slots=True)
class Night:
    """The result of one night: outcome and error of each host, when the last good one was complete, and how long it took."""

    results: dict[str, dict[str, Any]]
    good_after: float
    seconds: float


class Site:
    """Hosts behind the proxy, and nights in which they are backed up."""

    def __init__(self, nights: Nights, server: ssh.Sshd, faults: Faults | None, options: Namespace) -> None:
        self.nights, self.server, self.faults = nights, server, faults
        self.known_hosts = nights.top / "known_hosts"
        self.known_hosts.write_text("")
        tree = nights.source / "srv"
        tree.mkdir()
        for number in range(options.files):
            (tree / f"file{number}").write_bytes(os.urandom(20_000))
        self.tree = tree
        nights.settings("backup", concurrency=options.concurrency, attempts=2, stall=STALL, deadline="5m")
        nights.settings("ssh", command="ssh -F none", key=str(server.key), known_hosts=str(self.known_hosts))

    def host(self, name: str, kind: Kind) -> None:
        """Adds a host behind a port of the proxy."""
        assert self.faults
        port = self.faults.port(kind.fault)
        key = "host_key.pub" if not kind.other_key else "key.pub"
        with self.known_hosts.open("a") as file:
            file.write(f"[127.0.0.1]:{port} {' '.join((self.server.folder / key).read_text().split()[:2])}\n")
        words = {"address": self.server.address, "port": port, "rsync_path": kind.rsync_path or None}
        self.nights.host(name, self.tree, **words)

    def night(self, names: list[str]) -> Night:
        """Runs a night of only these hosts, which start together; the name of a good host starts with "good"."""
        for name, keys in self.nights.tables["host"].items():
            keys["enabled"] = name in names
        self.nights.write()
        begun, begun_at = time.time(), time.monotonic()
        done = self.run_all()
        seconds = time.monotonic() - begun_at
        assert "Traceback" not in done.stderr, done.stderr
        results = {result["host"]: result for result in json.loads(done.stdout)}
        good = [self.nights.backup(name) / "backup.json" for name in names if name.startswith("good")]
        return Night(results, max(file.stat().st_mtime for file in good) - begun, seconds)

    def run_all(self) -> "subprocess.CompletedProcess[str]":
        """Runs the night itself."""
        return self.nights.backupd("run", "--all", "--json", check=False)

    def left(self) -> list[str]:
        """Returns what should not be left: our processes, rows of running jobs, writable backups."""
        ssh_clients = [f"ssh {pid}" for pid in processes("ssh", self.known_hosts)]
        leftovers = [*map(str, transferring(self.nights)), *ssh_clients, *writable_finals(self.nights), *disagreements(self.nights)]
        return [remainder for remainder in leftovers if not remainder.isdecimal() or not _is_remote(int(remainder))]


def _is_remote(pid: int) -> bool:
    """Returns True if the process belongs to the host's side, which usually is on another machine."""
    try:
        return b"--server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def wrong(kind: str, result: Mapping[str, Any], kinds: Mapping[str, Kind] = KINDS) -> str:
    """Returns how the result of a bad host differs from the expected one; "" if it does not."""
    wanted, error = kinds[kind], (result["error"] or "").lower()
    if result["outcome"] not in wanted.outcomes:
        return f"{kind}: {result['outcome']}: {error}"
    return "" if not wanted.says or any(word in error for word in wanted.says) else f"{kind}: {error}"


@contextmanager
def site(options: Namespace) -> Iterator[Site]:
    """Yields a pool, an ssh server and the proxy; all are removed at the end."""
    with common.own_folder(options) as folder:
        server = ssh.start(folder)
        try:
            with faulty_proxy(server.port) as faults:
                yield Site(Nights(btrfs.make("4G", options="noatime")), server, faults, options)
        finally:
            _end_stopped()
            server.stop()


def _end_stopped() -> None:
    """Kills the remote commands on the simulated hosts that have stopped themselves."""
    for pid in processes("kill -STOP $$"):
        subprocess.run(["kill", "-KILL", str(pid)], check=False, stderr=subprocess.DEVNULL)


def measured(
    options: Namespace,
    made: Callable[[Namespace], AbstractContextManager[Site]] = site,
    every: Mapping[str, Kind] = KINDS,
) -> dict[str, Any]:
    """Runs four nights: one for the first copies, one with only the good hosts, and two with all hosts; in the last one, the server
    knows the bad hosts.
    """
    kinds = [kind for kind in every if not options.only or kind in options.only]
    with made(options) as place:
        good = [f"good{number:02}" for number in range(options.good)]
        bad = {f"bad-{kind}-{number}": kind for kind in kinds for number in range(options.each)}
        for name in good:
            place.host(name, Kind())
        for name, kind in bad.items():
            place.host(name, every[kind])
        place.night(good)
        alone = place.night(good)
        mixed = place.night(sorted([*good, *bad]))
        again = place.night(sorted([*good, *bad]))
        faults = [*filter(None, (wrong(kind, mixed.results[name], every) for name, kind in bad.items()))]
        for night in (mixed, again):
            faults += [f"{name}: {night.results[name]}" for name in good if night.results[name]["outcome"] != "complete"]
        faults += [f"left: {remainder}" for remainder in place.left()]
        outcomes = Counter(f"{kind}: {mixed.results[name]['outcome']}: {_short(mixed.results[name])}" for name, kind in bad.items())
        return {
            "hosts": {"good": len(good), "bad": len(bad), "at a time": options.concurrency},
            "seconds until all good ones were complete": {
                "alone": round(alone.good_after, 1),
                "mixed": round(mixed.good_after, 1),
                "again": round(again.good_after, 1),
            },
            "seconds in all": {
                "alone": round(alone.seconds, 1),
                "mixed": round(mixed.seconds, 1),
                "again": round(again.seconds, 1),
            },
            "bad ones": dict(sorted(outcomes.items())),
            "wrong": faults,
        }


def _short(result: Mapping[str, Any]) -> str:
    return str(result["error"] or "").rpartition("/srv: ")[2][:90]


def main() -> None:
    """Measures, prints the results, and exits with the status."""
    made = common.plain_parser(__doc__.splitlines()[0])
    made.add_argument("--good", type=int, default=28, help="hosts with a good network")
    made.add_argument("--each", type=int, default=2, help="hosts of each kind of fault")
    made.add_argument("--only", nargs="*", metavar="KIND", help="only these kinds of fault")
    made.add_argument("--namespaces", action="store_true", help="a network namespace for each host; the kernel makes the faults")
    made.add_argument("--concurrency", type=int, default=8, help="hosts at a time")
    made.add_argument("--files", type=int, default=100, help="files of 20 kB that each host has")
    options = made.parse_args()
    if options.namespaces:
        from bench import bad_namespaces  # which has our Site

        results = measured(options, bad_namespaces.namespaces, bad_namespaces.KINDS)
    else:
        results = measured(options)
    print(json.dumps(results, indent=2))
    sys.exit(1 if results["wrong"] else 0)


if __name__ == "__main__":
    main()
