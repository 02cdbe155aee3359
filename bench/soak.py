"""A soak: weeks of nights of a whole site with random faults, and the values that are worse at the end than at the start.

    python -m bench.soak [--nights 60] [--hosts 100] [--seed 1] [--out FOLDER] [--json]

Each night the files of all hosts change; then come run, expire, replicate to a second pool and expire there, verify, and balance.
Faults are drawn from the seed (bench/soak_faults.py). After each night: every complete backup is compared with its source at that
time, by checksums of this bench; all backups that the retention keeps must exist; mount options, mounts, locks, processes,
catalogue against pool. At the end all backups of both pools are compared again, and the figures of the nights are judged: whether
they creep (bench/soak_verdict.py). --out gets soak.json, also when it is interrupted, and soak.svg. Exit status 1 when something
was wrong.
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

from bench import soak_picture
from bench.common import machine, own_folder, plain_parser, say, size
from bench.counted import counted
from bench.growth import CPU, MEMORY, SECONDS
from bench.soak_faults import CALM, CATALOGUE_LOST, FULL, OF_A_HOST, SERVER_OFF, Fault, caused, lose_catalogue, plan
from bench.soak_look import Look
from bench.soak_site import Hosts, Site, command_line, space
from bench.soak_verdict import bounds, judged
from btrkeep.units import format_time
from tests.beds import cli, session
from tests.beds.nights import Nights

FIRST = datetime(2024, 1, 1, 22, 0, tzinfo=UTC)
COMMANDS = ("run", "expire", "replicate", "expire copies", "verify", "balance", "score", "sample", "status")
_PASSED = {"run": 30.0, "expire": 4.0, "replicate": 4.0, "balance": 0.1}
"""About this many checkpoints are passed for each host by a command. It is killed at one of them."""


@dataclass(slots=True)
class Soak:
    """All nights. `nights` has a reading of each, `wrong` a line for each defect. After `seconds` only `calm` nights follow."""

    site: Site
    faults: Sequence[tuple[Fault, ...]]
    seconds: float = inf
    calm: int = 0
    nights: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    look: Look = field(init=False)

    def __post_init__(self) -> None:
        self.look = Look(self.site)

    def run(self) -> Iterator[dict[str, Any]]:
        """Yields the reading of each night."""
        end = time.monotonic() + self.seconds
        for number, planned in enumerate(self.faults):
            late = time.monotonic() > end
            if late and number < len(self.faults) - CALM:
                self.calm += 1
                if self.calm > CALM:
                    break
            faults = () if late else planned
            begun, faults_before = time.monotonic(), len(self.wrong)
            reading = self._night(number, faults)
            reading["seconds"] = time.monotonic() - begun
            where = f"night {number} ({', '.join(reading['faults']) or 'no fault'})"
            self.wrong[faults_before:] = [f"{where}: {line}" for line in self.wrong[faults_before:]]
            reading["wrong"] = len(self.wrong) - faults_before
            self.nights.append(reading)
            yield reading

    # --- a night

    def _night(self, number: int, faults: Sequence[Fault]) -> dict[str, Any]:
        evening, kinds = FIRST + timedelta(days=number), {fault.kind: fault for fault in faults}
        reading: dict[str, Any] = {"night": number, "faults": list(kinds), "commands": {}}
        self.site.hosts.day(evening - timedelta(hours=1))
        if SERVER_OFF in kinds:
            return reading
        with caused(self.site, faults, evening - timedelta(minutes=30)):
            self._command(reading, "run", evening, kinds, "run", "--json")
            if "run killed" in kinds:
                self._command(reading, "run again", evening + timedelta(minutes=30), {}, "run", "--json")
        if not kinds.keys().isdisjoint(FULL):
            self._command(reading, "run again", evening + timedelta(hours=1), {}, "run", "--json")
        hit = {self.site.hosts.names[fault.host] for fault in faults if fault.kind in OF_A_HOST}
        self.wrong += [*self.look.not_complete(hit, evening), *self.look.compared(0)]
        if CATALOGUE_LOST in kinds:
            lose_catalogue(self.site)
            self._command(reading, "rebuild", evening + timedelta(hours=4), {}, "rebuild")
        self._morning(reading, evening + timedelta(hours=5), kinds)
        self.wrong += [*self.look.compared(1), *self.look.left_behind(kinds)]
        return reading | self._figures()

    def _morning(self, reading: dict[str, Any], moment: datetime, kinds: dict[str, Fault]) -> None:
        self._command(reading, "expire", moment, kinds, "expire", "--wait", "--json")
        if "expire killed" in kinds:  # as ExecStopPost= does
            self._command(reading, "restore mount option", None, {}, "expire", "--restore-mount-option")
        self.wrong += [f"right after expire: {line}" for line in self.look.other_options()]
        self._command(reading, "replicate", moment + timedelta(hours=1), kinds, "replicate", "--json", pool=self.site.second)
        self._command(
            reading, "expire copies", moment + timedelta(hours=2), {}, "expire", "--wait", "--json", pool=self.site.second
        )
        self._command(reading, "verify", moment + timedelta(hours=3), {}, "verify", "--sample", "200", "--json")
        words = ("run", "--min-score", "0.2", "--budget", "300MiB", "--time", "1m", "--max-pressure", "none", "--json", "-q")
        self._command(reading, "balance", None, kinds, *words, program="balancer")
        score = self._command(reading, "score", None, {}, "score", "--record", "--json", program="balancer")
        if score:
            groups = json.loads(score)["block_groups"]
            reading |= {measure: sum(group[measure] for group in groups) for measure in ("score", "fragments")}
        for name in ("sample", "status"):
            self._command(reading, name, moment + timedelta(hours=8) if name == "status" else None, {}, name, "--json")

    def _command(
        self,
        reading: dict[str, Any],
        name: str,
        now: datetime | None,
        kinds: dict[str, Fault],
        *words: str,
        program: str = "backupd",
        pool: Nights | None = None,
    ) -> str:
        """Runs a btrkeep program, killed if that is a fault of the night; returns its output, or nothing if its status is not 0."""
        fault = kinds.get(f"{name} killed")
        dies_at = 1 + int(fault.share * _PASSED[name] * len(self.site.hosts.names)) if fault else 0
        dated = ("--now", format_time(now)) if now else ()
        argv, env = command_line(program, pool or self.site.first, *words, *dated, dies_at=dies_at)
        done = counted(argv, env)
        figures = {
            "seconds": done.figures[SECONDS],
            "cpu": done.figures[CPU],
            "memory": done.figures[MEMORY],
            "status": done.status,
        }
        reading["commands"][name] = figures
        if fault and done.status >= 0:  # it had ended before it came to that checkpoint
            reading["faults"].remove(fault.kind)
        wanted = (0, 1) if kinds or name == "run again" else (0,)
        if "Traceback" in done.stderr or (done.status not in wanted and not (fault and done.status == -9)):
            self.wrong.append(f"{name} ended with {done.status}: {_not_complete(done.stdout)} {done.stderr[-1500:]}")
        return done.stdout if done.status == 0 else ""

    def _figures(self) -> dict[str, Any]:
        counts = [sum(map(len, self.site.complete(pool).values())) for pool in self.site.pools]
        first, second = (space(pool.top) for pool in self.site.pools)
        state = sum(path.stat().st_size for path in self.site.first.state.glob("catalogue.sqlite*"))
        return {
            "backups": counts[0],
            "copies": counts[1],
            "catalogue": state,
            "sources": self.site.hosts.total_bytes,
            "held": self.look.held(),
            **first,
            "second": second,
        }

    def settle(self) -> None:
        """Lets the last grace periods end; then exactly the backups that the retention keeps exist, and each equals its source."""
        faults_before, moment = len(self.wrong), FIRST + timedelta(days=len(self.nights) - 1, hours=12)
        for pool in (*self.site.pools, *self.site.pools):
            moment += timedelta(days=1)
            self._command({"faults": [], "commands": {}}, "expire", moment, {}, "expire", "--wait", "--json", pool=pool)
        self.wrong += self.look.in_the_end()
        self.wrong[faults_before:] = [f"in the end: {line}" for line in self.wrong[faults_before:]]


def _not_complete(output: str) -> str:
    """What the output of a run says of hosts that are not complete; the end of any other output."""
    try:
        results = json.loads(output)
    except ValueError:
        return output[-600:]
    failures = [result for result in results if result.get("outcome") != "complete"] if isinstance(results, list) else results
    return json.dumps(failures)[-1500:]


def soak_results(soak: Soak, options: argparse.Namespace) -> dict[str, Any]:
    """Returns all results, for soak.json."""
    return {
        "bench": "soak",
        "command": shlex.join(["python", "-m", "bench.soak", *sys.argv[1:]]),
        "seed": options.seed,
        "machine": machine(options),
        "verdicts": judged(soak.nights, COMMANDS, options.hosts),
        "bounds": bounds(soak.nights),
        "wrong": soak.wrong,
        "nights": soak.nights,
    }


def soaked(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs all nights; writes to --out after each."""
    os.environ[session.MARK] = session.own_name()
    hosts = Hosts(options.hosts, options.files, options.seed)
    site = Site(hosts, options.copied, f"{options.size}", folder)
    soak = Soak(site, plan(options.seed, options.nights, options.hosts, options.faults), options.minutes * 60)
    try:
        for reading in soak.run():
            spent = ", ".join(f"{name} {command['seconds']:.1f}" for name, command in reading["commands"].items())
            say(f"night {reading['night']}: {', '.join(reading['faults']) or '-'}: {reading['seconds']:.0f} s: {spent}")
            for line in soak.wrong[len(soak.wrong) - reading["wrong"] :]:
                say(f"  {line}")
        soak.settle()
    finally:
        cli.close()
        if options.out:
            options.out.mkdir(exist_ok=True)
            (options.out / "soak.json").write_text(json.dumps(soak_results(soak, options), indent=1) + "\n")
    return soak_results(soak, options)


def main() -> None:
    """Runs the command line."""
    made = plain_parser(__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--nights", type=int, default=60)
    made.add_argument("--hosts", type=int, default=100)
    made.add_argument("--copied", type=int, default=20, help="number of hosts that the second pool fetches")
    made.add_argument("--files", type=int, default=40, help="files of each host")
    made.add_argument("--size", type=size, default="3GiB", help="size of each of the two pools")
    made.add_argument("--seed", type=int, default=1, help="seed of the changes and of the faults")
    made.add_argument("--faults", type=int, default=2, help="maximum number of faults in one night")
    made.add_argument("--minutes", type=float, default=inf, help="after this time, only a few nights without faults follow")
    made.add_argument("--out", type=Path, help="a folder for soak.json and soak.svg")
    options = made.parse_args()
    say(f"seed {options.seed}")
    with own_folder(options) as folder:
        result = soaked(options, folder)
    if options.out:
        soak_picture.draw(result["nights"], options.out / "soak.svg")
    print(json.dumps({key: value for key, value in result.items() if key != "nights"}, indent=2))
    creeping = [name for name, trend in result["verdicts"].items() if trend["verdict"] == "creeps"]
    sys.exit(1 if result["wrong"] or creeping else 0)


if __name__ == "__main__":
    main()
