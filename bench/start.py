"""The cost of starting a command: whole processes, compared with those of another checkout, one after the other.

    python -m bench.start [--against FOLDER] [--times 9] [--json]

The other checkout has its own environment in .venv. CPU time, user and system, because the elapsed time of such a short
process depends mostly on other work of the machine.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.beds import TOP

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "backupd --version": ("backupd.cli", "--version"),
    "backupd status --help": ("backupd.cli", "status", "--help"),
    "backupd run --help": ("backupd.cli", "run", "--help"),
    "backupd list --help": ("backupd.cli", "list", "--help"),
    "backupd log --help": ("backupd.cli", "log", "--help"),
    "btrfs-balancer score --help": ("balancer.cli", "score", "--help"),
    "btrfs-heatmap --version": ("heatmap.cli", "--version"),
    "a catalogue opened": (),
}
OPENED = "from pathlib import Path; from btrkeep.catalogue import Catalogue; Catalogue.open(Path('state')).close()"


def line(checkout: Path, words: Sequence[str]) -> list[str]:
    """Returns the command line of a program of that checkout; without words, one that opens a catalogue."""
    does = f"from {words[0]} import main; main()" if words else OPENED
    begin = f"import sys; sys.path.insert(0, {str(checkout)!r}); {does}"
    return [str(checkout / ".venv" / "bin" / "python"), "-P", "-c", begin, *words[1:]]


def cpu(words: Sequence[str], folder: str) -> float:
    """Returns the CPU seconds, user and system, of a process that succeeds."""
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{words} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Prints a line for each command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout, with its .venv")
    parser.add_argument("--times", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    sides = [TOP, *([wanted.against.resolve()] if wanted.against else [])]
    times_by_command: dict[str, list[float]] = {}
    with TemporaryDirectory() as folder:
        for name, words in PROGRAMS.items():
            lines = [line(side, words) for side in sides]
            for command_line in lines:
                cpu(command_line, folder)  # once before: bytecode is compiled, the catalogue is made
            times = [[cpu(command_line, folder) for command_line in lines] for _ in range(wanted.times)]
            times_by_command[name] = [median(side) * 1000 for side in zip(*times, strict=True)]
            if not wanted.json:
                ours, *others = times_by_command[name]
                print(f"{name:30} {ours:7.1f} ms" + "".join(f"   other {other:7.1f} ms   {ours / other:.2f}" for other in others))
    if wanted.json:
        print(json.dumps(times_by_command))


if __name__ == "__main__":
    main()
