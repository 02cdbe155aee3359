"""Nights and commands without usual resources: open files, processes, a catalogue, disks that answer.

    python -m bench.starved [--hosts 30] [--pages N] [--only NAME ...] [--json]

Each trial prints its result and its errors: a traceback, a host that is not complete afterwards, a process left running, a command
that takes longer than its limit. Exit status 1 with any error. The cgroups need root.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import common
from btrkeep.errors import OperatorError
from btrkeep.serving.client import RootServiceClient
from btrkeep.serving.protocol import kind_of
from tests.beds import TOP, btrfs, cgroups
from tests.beds.hangfs import hanging
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, transferring, writable_finals

BOUND = 30.0
"""Seconds in which a command has to answer when a disk does not: 10 for the look, and what a loaded machine takes to start it."""
PAGE = 4096
LOOKS = (("status",), ("list",), ("check",), ("doctor",), ("log",), ("metrics",), ("notify", "--dry-run"), ("host", "list"))


class Trials:
    """The trials, each a method that returns the errors; `told` has the results."""

    def __init__(self, nights: Nights, options: Namespace) -> None:
        self.nights, self.options = nights, options
        self.results: dict[str, object] = {}
        tree = nights.source / "srv"
        tree.mkdir()
        for number in range(20):
            (tree / f"file{number}").write_bytes(os.urandom(3000))
        self.tree = tree
        nights.settings("backup", concurrency=options.hosts)
        for number in range(options.hosts):
            nights.host(f"web{number:03}", tree)
        nights.run()

    def started(self, *words: str, before: Sequence[str] = ()) -> "subprocess.Popen[str]":
        env = {**os.environ, "PYTHONPATH": str(TOP), "NO_COLOR": "1"}
        line = [*before, sys.executable, "-m", "backupd", "--config", str(self.nights.config), *words]
        return subprocess.Popen(
            line,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def night(self, name: str, *before: str) -> list[str]:
        """Runs a night with this command in front of it; every host has to be complete."""
        begun = time.monotonic()
        process = self.started("run", "--all", "--json", before=before)
        stdout, stderr = process.communicate(timeout=300)
        outcomes = Counter(result["outcome"] for result in json.loads(stdout or "[]"))
        at_once = re.search(r"(\d+) of \d+ hosts at a time", stderr)
        self.results[name] = {
            **outcomes,
            "at a time": int(at_once[1]) if at_once else self.options.hosts,
            "seconds": round(time.monotonic() - begun, 1),
        }
        wrong = [f"{name}: {outcomes}"] if outcomes["complete"] != self.options.hosts else []
        wrong += [f"{name}: a traceback"] if "Traceback" in stderr else []
        left = [*map(str, transferring(self.nights)), *writable_finals(self.nights), *disagreements(self.nights)]
        return [*wrong, *(f"{name}: left: {remainder}" for remainder in left)]

    def files(self) -> list[str]:
        """Limits open files."""
        limits = (256, 128, 64, 32)
        return [fault for limit in limits for fault in self.night(f"{limit} open files", "prlimit", f"--nofile={limit}")]

    def processes(self) -> list[str]:
        """Limits processes."""
        faults = []
        for limit in (100, 40, 20, 10, 6):
            with cgroups.limited("pids", limit) as group:
                faults += self.night(f"{limit} processes", *cgroups.words_within(group))
        return faults

    def silence(self) -> list[str]:
        """Uses a pool, a catalogue and a source that never answer, with every command that reads them."""
        faults: list[str] = []
        source = self.nights.top / "silent"
        for name, place in (("pool", self.nights.pool), ("state", self.nights.state), ("source", source)):
            if name == "source":
                self.nights.host("silent", source, address=None)
            slowest, running = 0.0, list[subprocess.Popen[str]]()
            with hanging(place, dead=True):
                for words in LOOKS:
                    begun = time.monotonic()
                    running.append(self.started(*words))
                    try:
                        if "Traceback" in running[-1].communicate(timeout=BOUND)[1]:
                            faults.append(f"{name} silent, {words[0]}: a traceback")
                    except subprocess.TimeoutExpired:
                        running[-1].kill()
                        faults.append(f"{name} silent, {words[0]}: no answer in {BOUND:.0f} s")
                    slowest = max(slowest, time.monotonic() - begun)
            for process in running:
                process.wait()
            self.results[f"{name} silent"] = {"commands": len(LOOKS), "seconds of the slowest": round(slowest, 1)}
        del self.nights.tables["host"]["silent"]
        self.nights.write()
        return faults

    def catalogue(self) -> list[str]:
        """Overwrites each page of the catalogue with zeros, flipped bits, and noise; each with every command and a night of one
        host.
        """
        good, noise, faults, tried = self.nights.state / "catalogue.sqlite", random.Random(7), list[str](), 0
        shutil.copytree(self.nights.state, self.nights.top / "intact")
        data = good.read_bytes()
        pages = range(len(data) // PAGE)[: self.options.pages]
        for page in pages:
            for how in (self._zero, self._flipped, self._noise):
                shutil.rmtree(self.nights.state)
                self.nights.state.mkdir()
                good.write_bytes(how(data, page * PAGE, noise))
                for words in (("status",), ("list", "--all"), ("log",), ("check",), ("run", "web000")):
                    done, tried = self.nights.backupd(*words, check=False), tried + 1
                    if "Traceback" in done.stderr or "internal error" in done.stdout or done.returncode not in range(5):
                        faults.append(f"page {page} {how.__name__[1:]}, {words[0]}: {done.stderr.strip().splitlines()[-1:]}")
        if self.nights.backupd("rebuild", check=False).returncode:
            faults.append("rebuild failed afterwards")
        self.results["catalogue"] = {"pages": len(pages), "commands": tried, "wrong": len(faults)}
        return faults

    @staticmethod
    def _zero(data: bytes, at: int, _: random.Random) -> bytes:
        return data[:at] + bytes(PAGE) + data[at + PAGE :]

    @staticmethod
    def _flipped(data: bytes, at: int, noise: random.Random) -> bytes:
        content = bytearray(data)
        for _ in range(20):
            content[at + noise.randrange(PAGE)] ^= 1 << noise.randrange(8)
        return bytes(content)

    @staticmethod
    def _noise(data: bytes, at: int, noise: random.Random) -> bytes:
        return data[:at] + noise.randbytes(PAGE) + data[at + PAGE :]

    def requests(self) -> list[str]:
        """Sends 10,000 requests to the root service, a hundred at a time: each is answered, or refused as busy."""
        place = self.nights.state.parent / "serve.sock"
        service, answers = self.started("serve", "--socket", str(place)), Counter[str]()
        agent = RootServiceClient(place, "bench", 30)

        def ask() -> None:
            for _ in range(100):
                try:
                    agent.ask("jobs")
                    answers["answered"] += 1
                except OperatorError as error:
                    answers[kind_of(error)] += 1

        try:
            end = time.monotonic() + 20
            while not place.exists() and time.monotonic() < end:
                time.sleep(0.05)
            drain = threading.Thread(target=service.communicate, daemon=True)
            drain.start()
            askers = [threading.Thread(target=ask) for _ in range(100)]
            for asker in askers:
                asker.start()
            for asker in askers:
                asker.join()
            files = sum(1 for _ in Path(f"/proc/{service.pid}/fd").iterdir())
        finally:
            service.send_signal(signal.SIGTERM)
            drain.join(20)
        self.results["10,000 requests"] = {**answers, "files open afterwards": files}
        return [f"requests: {answers}"] if set(answers) - {"answered", "busy"} or files > 30 else []


def main() -> None:
    """Runs the trials, prints the results, and exits with the status."""
    trials = ("files", "processes", "silence", "catalogue", "requests")
    made = common.plain_parser(__doc__.splitlines()[0])
    made.add_argument("--hosts", type=int, default=30, help="hosts of a night, all at the same time")
    made.add_argument("--pages", type=int, help="number of pages of the catalogue; default: all")
    made.add_argument("--only", nargs="*", choices=trials, default=trials, help="only these trials")
    options = made.parse_args()
    with common.own_folder(options):
        bench = Trials(Nights(btrfs.make("2G", options="noatime")), options)
        each: list[Callable[[], list[str]]] = [getattr(bench, name) for name in trials if name in options.only]
        wrong = [fault for trial in each for fault in trial()]
        print(json.dumps({**bench.results, "wrong": wrong}, indent=2))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
