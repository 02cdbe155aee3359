"""Fuzzes the readers of foreign bytes with atheris: each target of `bench.fuzz_targets` in a process of its own.

    python -m bench.fuzz [--seconds N] [--inputs N] [--only NAME ...] [--jobs N] [--keep DIR] [--json]

Exit status 1 when an input was found that a target does not stand; it is kept below --keep, and named. `python -m
bench.fuzz_targets NAME DIR FILE` runs one input again.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.fuzz_targets import TARGETS
from tests.beds import TOP, session

_AT_ONCE = 50_000
"""Inputs of one process: the tracing of NumPy's comparisons gives no memory back."""
_DONE = re.compile(r"Done (\d+) runs")
_RAISED = re.compile(r"=== Uncaught Python exception: ===\n(.*)")
_COVERED = re.compile(r"cov: (\d+)")


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """The result of one target. `covered`: edges of btrkeep's code, as libFuzzer counts them."""

    name: str
    inputs: int
    seconds: float
    covered: int
    failing_input: str = ""
    error: str = ""


def fuzz(name: str, seconds: float, least: int, keep: Path) -> Fuzzed:
    """Fuzzes one target for at least this time and this many inputs, or until it fails.

    Inputs that reached new code are in `keep`/NAME afterwards.
    """
    corpus, crashes = keep / name, keep / "found"
    for folder in (corpus, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    began, inputs, covered = time.monotonic(), 0, 0
    while (left := seconds - (time.monotonic() - began)) > 1 or inputs < least:
        words = [sys.executable, "-m", "bench.fuzz_targets", name, str(corpus)]
        words += [f"-artifact_prefix={crashes}/{name}-", "-timeout=20"]
        words += [f"-max_total_time={int(left)}", f"-runs={_AT_ONCE}"] if left > 1 else [f"-runs={least - inputs}"]
        with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:  # short: sockets lie in it
            done = subprocess.run(
                words,
                cwd=TOP,
                env={**os.environ, "TMPDIR": scratch},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
        session.clear_dead_sessions()  # libFuzzer ends the process at once: a target has a folder, and may have mounted something
        tried = sum(map(int, _DONE.findall(done.stdout)))
        inputs += tried
        covered = max([covered, *map(int, _COVERED.findall(done.stdout))])
        if done.returncode or not (tried or left > 1):  # a slow machine's time can be over before the first input
            input_written = re.search(r"Test unit written to (\S+)", done.stdout)
            raised = _RAISED.search(done.stdout)
            error = raised[1] if raised else done.stdout[-500:]
            return Fuzzed(name, inputs, time.monotonic() - began, covered, input_written[1] if input_written else "", error)
    return Fuzzed(name, inputs, time.monotonic() - began, covered)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="seconds for each target [60]")
    parser.add_argument(
        "--inputs", type=int, default=0, metavar="N", help="minimum number of inputs for each target, whatever time that takes [0]"
    )
    parser.add_argument("--only", nargs="+", choices=sorted(TARGETS), default=sorted(TARGETS), metavar="NAME", help="these targets")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at the same time [one for each processor]")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the inputs that were found, to continue from; default: they are deleted"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--list", action="store_true", help="print the targets, and do nothing else")
    words = parser.parse_args()
    if words.list:
        for name, target in TARGETS.items():
            print(f"{name:16} {target.about}")
        return 0
    keep = words.keep or Path(tempfile.mkdtemp(prefix="btrkeep-fuzz-"))
    with ThreadPoolExecutor(words.jobs) as threads:
        results = list(threads.map(lambda name: fuzz(name, words.seconds, words.inputs, keep.resolve()), words.only))
    failed = [result for result in results if result.error]
    if not words.keep and not failed:
        shutil.rmtree(keep)
    if words.json:
        print(json.dumps({result.name: asdict(result) for result in results}, indent=1))
    else:
        for result in results:
            print(f"{result.name:16} {result.inputs:>10} inputs in {result.seconds:6.0f} s, {result.covered:5} edges", end="")
            print(f"  FELL: {result.error}\n{'':16} {result.failing_input}" if result.error else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
