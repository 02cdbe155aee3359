"""Every command with little memory, on a catalogue of many backups and on a host of very many files.

    python -m bench.little_memory [--hosts 625] [--backups 32] [--files 1000000] [--limits 256 128 64] [--only WORD ...]

Each command runs once without a limit, which gives the peak of its largest process, and in a memory cgroup of each limit (MiB).
It prints the commands that the kernel killed, and errors afterwards: a different list of backups, a catalogue that is damaged by
SQLite's check, a host that is not complete after the next run, a process left running. Exit status 1 with any error. Needs root.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from bench import common
from bench.catalogue_commands import NOW, ONE, make_site
from tests.beds import TOP, btrfs, cgroups
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, transferring, writable_finals

MIB = 1 << 20
_KILLED = (-9, 137)
OF_MANY_BACKUPS = (
    ("status",), ("status", "--json"), ("list",), ("list", "--json"), ("list", ONE), ("check",), ("log",), ("metrics",),
    ("retention", "explain", ONE), ("expire", "--dry-run"), ("run", "--dry-run"), ("notify", "--dry-run"), ("usage",),
    ("forecast",), ("trend",), ("day",), ("rebuild",),
)  # fmt: skip
_UNDATED = ("forecast", "trend", "day", "usage", "check", "log", "metrics", "notify", "rebuild")
_FOLDER = 1000  # files


@dataclass(slots=True)
class Found:
    """The result of one command: its peak in MiB without a limit, and by the limit "well", "ended by the kernel" or a status."""

    command: str
    peak: float = 0.0
    within: dict[int, str] = field(default_factory=dict)


class Trials:
    """Commands on one pool. `config` is its configuration, `state` the folder of its catalogue."""

    def __init__(self, config: Path, state: Path, options: Namespace) -> None:
        self.config, self.state, self.options = config, state, options
        self.wrong: list[str] = []

    def tried(self, words: Sequence[str]) -> Found:
        """Runs the command without a limit, then with each limit."""
        trial = Found(" ".join(words))
        status, trial.peak, stderr = self._ran(words)
        if status not in (0, 1) or "Traceback" in stderr:
            self.wrong.append(f"{trial.command}: {status}: {stderr[-300:]}")
        for limit in self.options.limits:
            with cgroups.limited("memory", limit * MIB) as group:
                status, _, stderr = self._ran(words, group)
            trial.within[limit] = "ended by the kernel" if status in _KILLED else "well" if status in (0, 1) else f"status {status}"
            if "Traceback" in stderr:
                self.wrong.append(f"{trial.command} within {limit} MiB: {stderr[-300:]}")
        common.say(f"{trial.command}: {trial.peak:.0f} MiB, {trial.within}")
        return trial

    def _ran(self, words: Sequence[str], group: Path | None = None) -> tuple[int, float, str]:
        """Returns the exit status, the peak in MiB of the largest process, and the output."""
        line = [sys.executable, "-m", "backupd", "--config", str(self.config), *words]
        env = {**os.environ, "PYTHONPATH": str(TOP), "NO_COLOR": "1"}
        counted = [sys.executable, "-I", "-S", "-c", _COUNTING, *(cgroups.words_within(group, *line) if group else line)]
        done = subprocess.run(counted, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, cwd=TOP, check=False)
        stderr, _, numbers = done.stderr.rpartition("\n")
        status, kib = map(int, numbers.split())
        return status, kib / 1024, stderr

    def damaged(self) -> list[str]:
        """Returns the errors that SQLite finds in the catalogue."""
        with closing(sqlite3.connect(self.state / "catalogue.sqlite")) as opened:
            answer = str(opened.execute("PRAGMA integrity_check").fetchone()[0])
        return [] if answer == "ok" else [answer]

    def listed(self) -> str:
        """Returns all backups, from `list --json`."""
        return subprocess.run(
            [sys.executable, "-m", "backupd", "--config", str(self.config), "list", "--json"],
            env={**os.environ, "PYTHONPATH": str(TOP)}, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip


# The kernel's memory peak starts with the peak of the parent, so a small process has to start it.
_COUNTING = """
import os, resource, sys
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
_, status, _ = os.wait4(pid, 0)
used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
os.write(2, f"\\n{os.waitstatus_to_exitcode(status)} {used}".encode())
"""


def of_many_backups(options: Namespace) -> tuple[list[Found], list[str]]:
    """Runs the commands that read the catalogue."""
    with common.own_folder(options) as folder:
        config = make_site(btrfs.make("8G", options="noatime") / "pool", folder, options.hosts, options.backups)
        trials = Trials(config, folder / "state", options)
        before, measured = trials.listed(), []
        for words in OF_MANY_BACKUPS:
            if not options.only or words[0] in options.only:
                dated = () if words[0] in _UNDATED else ("--now", NOW)
                measured.append(trials.tried((*words, *dated)))
                trials.wrong += [f"{words}: {fault}" for fault in trials.damaged()]
                if words[0] != "rebuild" and trials.listed() != before:
                    trials.wrong.append(f"{words}: other backups are listed")
        return measured, trials.wrong


def of_many_files(options: Namespace) -> tuple[list[Found], list[str]]:
    """Runs the commands that read a host's files, and a run of it."""
    with common.own_folder(options) as folder:
        nights = Nights(btrfs.make("24G", options="noatime"))
        tree = nights.source / "srv"
        for number in range(0, options.files, _FOLDER):
            (tree / f"{number // _FOLDER}").mkdir(parents=True)
            for file_number in range(_FOLDER):
                (tree / f"{number // _FOLDER}" / f"file{file_number}").touch()
        nights.host("many", tree, deadline="6h")
        trials = Trials(nights.config, nights.state, options)
        common.say(f"{options.files} files are there")
        first, out = trials.tried(("run", "many")), folder / "out"
        measured = [first]
        for words in (
            ("browse", "many", str(tree / "1")), ("versions", "many", str(tree / "1")), ("usage",),
            ("compare", "many", str(tree), nights.names("many")[0]), ("restore", "many", str(tree), "--to", str(out)),
            ("restore", "many", str(tree), "--tar", "/dev/null"),
        ):  # fmt: skip
            if not options.only or words[0] in options.only:
                measured.append(trials.tried(words))
                shutil.rmtree(out, ignore_errors=True)
        last = nights.run("many")["many"]
        trials.wrong += [] if last["outcome"] == "complete" else [f"the next run: {last}"]
        trials.wrong += [*map(str, transferring(nights)), *writable_finals(nights), *disagreements(nights), *trials.damaged()]
        return measured, trials.wrong


def main() -> None:
    """Tries all, prints the results, and exits with the status."""
    made = common.plain_parser(__doc__.splitlines()[0])
    made.add_argument("--hosts", type=int, default=625, help="hosts in the catalogue")
    made.add_argument("--backups", type=int, default=32, help="backups of each host")
    made.add_argument("--files", type=int, default=1_000_000, help="files of the host in the second part; 0: leave that part out")
    made.add_argument("--limits", type=int, nargs="*", default=[256, 128, 64], help="MiB")
    made.add_argument("--only", nargs="*", help="only commands that begin with these words")
    options = made.parse_args()
    if why := cgroups.why_not("memory"):
        sys.exit(why)
    measured, wrong = of_many_backups(options) if options.hosts else ([], [])
    more, worse = of_many_files(options) if options.files else ([], [])
    print(
        json.dumps(
            {
                "commands": [(trial.command, round(trial.peak), trial.within) for trial in (*measured, *more)],
                "wrong": wrong + worse,
            },
            indent=1,
        )
    )
    sys.exit(1 if wrong or worse else 0)


if __name__ == "__main__":
    main()
