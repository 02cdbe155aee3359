"""One round: runs a scenario once, with a power cut at many moments, and checks each of the cuts.

The copies are made while the commands continue, at checkpoints that they announce (btrkeep/checkpoints.py) and at random moments;
half of these come right after a commit of another host. Then the disks are replaced by one copy after the other.
"""

import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import cut_truth
from bench.cut_disks import Cut, CutDisks
from bench.cut_scenarios import SCENARIOS
from bench.cut_site import LONGEST, Site, Step
from btrkeep.pool.subvolume import delete, snapshot
from tests.beds import work
from tests.beds.cli import command
from tests.beds.watch import ENVIRONMENT, disagreements, is_locked
from tests.beds.work import explain

AT_RANDOM = ("another's commit", "any moment")
IT_ENDED, KILLED = "the end of the command", "a kill at any moment"
_DONE = {"complete", "suspect"}
_OF_EACH = 50  # checkpoints of one name in a step
_NAMED = re.compile(r"/\d{4}-\d\d-\d\dT\d{6}Z")


@dataclass(slots=True)
class Before:
    """The state before and after a step, the sources with their content, and the configuration."""

    facts: set[str]
    after: set[str]
    source: Path
    tree: cut_truth.Tree
    config: str


@dataclass(slots=True)
class Look:
    """One of the two checks of the state after a cut: the backups that `may` exist, and the state of the `source`.

    `names`: the backups that the cut had left, once commands have made others. A name is a second of the clock, so a new backup may
    have a name that the round gave after the cut. `read`: backups that were read and are right; they are not read again while they
    are the same subvolumes, unchanged.
    """

    may: set[str]
    source: cut_truth.Tree
    names: set[str] | None = None
    read: dict[str, cut_truth.Subvolume] = field(default_factory=dict)


@dataclass(slots=True)
class Found:
    """The result: the number of `cuts` that were checked, and a line for each defect."""

    cuts: int = 0
    moments: dict[str, int] = field(default_factory=dict)
    defects: list[str] = field(default_factory=list)


class Round:
    """`wanted` cuts of one scenario, at random moments of that seed. `program`: stands for tests/beds/kill_at.py."""

    unknown_names = False  # whether a backup that is complete may have a name that this round has not seen

    def __init__(self, disks: CutDisks, name: str, seed: int, wanted: int, program: Path | None = None) -> None:
        self.disks, self.name, self.seed, self.wanted, self.program = disks, name, seed, wanted, program
        self.random = random.Random(seed)
        self.cuts: list[Cut] = []
        self.steps: list[Step] = []
        self.before: list[Before] = []
        self.trees: dict[str, cut_truth.Tree] = {}  # of every complete backup, by host/name
        self.findings = Found()
        self._lock = threading.Lock()
        self._passed = 0
        self._heard: Counter[tuple[int, str]] = Counter()

    def run(self) -> Found:
        """Runs the whole round. The disks are mounted and unmounted here."""
        with ExitStack() as stack:
            self.disks.mount(stack)
            self.site = Site(self.disks, self.seed)
            self._cut_all()
        self.cuts += self.disks.recorded()
        for cut in self._chosen():
            self._look_at(cut)
        return self.findings

    def _chosen(self) -> Iterable[Cut]:
        """Half of them at random moments; the others at checkpoints, each kind of these once before any comes again."""
        self.random.shuffle(self.cuts)
        seen: Counter[tuple[int, str]] = Counter()
        ranked: list[tuple[int, Cut]] = []
        for cut in self.cuts:
            ranked.append((seen[cut.ended, cut.moment], cut))
            seen[cut.ended, cut.moment] += 1
        at_random = [cut for cut in self.cuts if cut.moment in AT_RANDOM]
        named = [cut for _, cut in sorted(ranked, key=lambda ranked_cut: ranked_cut[0]) if cut.moment not in AT_RANDOM]
        half = max(self.wanted // 2, self.wanted - len(at_random))
        cuts = named[:half]
        return sorted([*cuts, *at_random[: self.wanted - len(cuts)]], key=lambda cut: cut.number)

    # --- cutting

    def _cut_all(self) -> None:
        steps = SCENARIOS[self.name](self.site)
        step = next(steps, None)
        self.disks.prepare_commits()
        while step:
            self._note()
            self._cut("the first step of it")
            self.steps.append(step)
            self._cut_during(step)
            self._remember(by_run=step.words[0] == "run" and step.program == "backupd")
            self.before[-1].after = self._facts()
            step = next(steps, None)
        self._note()
        self._cut("after all of it")

    def _cut_during(self, step: Step) -> None:
        with self._step_socket() as path, self._at_random():
            self._carry_out(step, f"asks:{path}")

    def _note(self) -> None:
        """Records the state before each step, and after the last one."""
        site, number = self.site, len(self.steps)
        source = site.top / f"version-{number}"
        snapshot(site.source, source)
        self._remember(by_run=False)
        facts = self._facts()
        self.before.append(
            Before(facts, facts, source, cut_truth.tree(source), site.config.read_text().replace("bandwidth", "#bandwidth"))
        )

    def _facts(self) -> set[str]:
        return cut_truth.facts(self.site.pool) | self.site.extra()

    def _remember(self, by_run: bool) -> None:
        """Remembers backups by their checksums. What a run has made has to be like its source already."""
        for host, name, record in cut_truth.backups(self.site.pool):
            data = self.site.pool / "hosts" / host / name / "data"
            key = f"{host}/{name}"
            if key not in self.trees and record["state"] in _DONE:
                self.trees[key] = cut_truth.tree(data)
                if by_run and (wrong := self._unlike_source(self.trees[key], self.before[-1].tree)):
                    self.findings.defects.append(f"{self._where()}: {key} differs from its source without any cut: {wrong[:3]}")

    def _unlike_source(self, tree: cut_truth.Tree, source: cut_truth.Tree) -> list[str]:
        return cut_truth.unlike(source, cut_truth.below(tree, str(self.site.source).strip("/")))

    def _carry_out(self, step: Step, action: str) -> None:
        """Runs the command. `action`: the action at all of its checkpoints, in the form of kill_at.py."""
        at, words = (action, "any", "any", 0), self._words(step)
        if self.program:
            argv = [sys.executable, "-P", str(self.program), *map(str, at), *words]
            env = {**os.environ, **ENVIRONMENT}
            done = subprocess.run(argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env)
        else:
            done = command(step.program, *words, check=False, timeout=LONGEST, at=at)
        assert done.returncode in step.status, explain(done)

    def _words(self, step: Step) -> list[str]:
        return ["--config", str(self.site.config), *step.words] if step.program == "backupd" else [*step.words]

    @contextmanager
    def _step_socket(self) -> Iterator[Path]:
        """Yields a socket at which the command announces its next action and waits while the power is cut."""
        path = self.site.top / "asked"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen(16)
            thread = threading.Thread(target=self._answer, args=(server,))
            thread.start()
            try:
                yield path
            finally:
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
                thread.join()

    def _answer(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with ExitStack() as stack, connection:
                stack.callback(server.close)  # if a cut fails: then the command does, which waits for ever otherwise
                if (line := connection.makefile().readline().strip()) and self._is_worth_it(line):
                    self._cut(line)
                stack.pop_all()

    def _is_worth_it(self, moment: str) -> bool:
        """Returns False for most checkpoints that occur for every thousand files: their copies would take longer than the run."""
        at = len(self.before), moment
        self._heard[at] += 1
        return self._heard[at] <= _OF_EACH or self.random.random() < _OF_EACH / self._heard[at]

    @contextmanager
    def _at_random(self) -> Iterator[None]:
        ended = threading.Event()

        def go_on() -> None:
            while not ended.wait(self.random.uniform(0.01, 0.08) * self.disks.scale):
                commit = self.random.random() < 0.5
                if commit:
                    with self._lock:
                        self.disks.commit()
                self._cut(AT_RANDOM[0] if commit else AT_RANDOM[1])

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _cut(self, moment: str) -> None:
        with self._lock:
            self._passed += 1
            if cut := self.disks.cut(self._passed, len(self.before) - 1, moment):
                self.cuts.append(cut)

    # --- looking

    def _where(self, cut: Cut | None = None) -> str:
        at = f" cut {cut.number} in step {cut.ended} ({cut.moment})" if cut else ""
        return f"--only {self.name} --seed {self.seed} --disks {self.disks.kind}{at}"

    def _look_at(self, cut: Cut) -> None:
        self.findings.cuts += 1
        shown_moment = cut.moment if cut.moment in (*AT_RANDOM, IT_ENDED, KILLED) else ""
        kind = shown_moment or ("a flush" if self.disks.kind in ("recorded", "logged") else "a checkpoint")
        self.findings.moments[kind] = self.findings.moments.get(kind, 0) + 1
        self.disks.bring(cut)
        try:
            for line in self._defects(cut):
                self.findings.defects.append(f"{self._where(cut)}: {line}")
        except Exception as error:  # any error is a finding, and the other cuts are still checked
            self.findings.defects.append(f"{self._where(cut)}: {type(error).__name__}: {str(error)[-3000:]}")
            if self.disks.pool.is_mount() or self.disks.state.is_mount():
                raise  # nothing that this round saw from here on would be true
        cut.pool.unlink()
        cut.state.unlink()

    def _defects(self, cut: Cut) -> Iterator[str]:
        here = self.before[cut.ended]
        self._put_back(here)
        checked = work("btrfs", "check", "--readonly", cut.pool, check=False, timeout=LONGEST)
        if checked.returncode:
            yield f"btrfs check: {checked.stderr[-500:]}"
        with ExitStack() as stack:
            self.disks.mount(stack, cut.pool, cut.state)
            option = cut_truth.allocator(self.disks.pool)
            self.site.another_boot()
            must, may = here.facts & here.after, here.facts | here.after
            present = {f"{host}/{name}" for host, name, _ in cut_truth.backups(self.site.pool)}
            first = Look(may, here.tree)
            yield from self._contents(first)
            if cut.moment == IT_ENDED:
                yield from (f"was done, and is lost: {fact}" for fact in self._forgotten(here))
            yield from (f"writable: {path}" for path in cut_truth.writable(self.site.pool))
            if cut.ended < len(self.steps) and (step := self.steps[cut.ended]).again:
                yield from self._done(*step.words, status=(0, *step.status, *step.was_done))
                must = may = here.after
            outcomes = yield from self._run_all("next")
            outcomes |= yield from self._run_all("second")
            seen = self._facts()
            new = {fact for fact in seen - may if _is_new_backup(fact, outcomes)}
            yield from (f"lost: {fact}" for fact in sorted(must - seen))
            yield from (f"invented: {fact}" for fact in sorted(seen - may - new))
            cut_truth.commit(self.disks.pool)
            yield from self._contents(Look(may, here.tree, present, first.read))
            yield from self._tidy()
            if cut_truth.allocator(self.disks.pool) != option:
                yield f"mounted with {option} and left with {cut_truth.allocator(self.disks.pool)}"

    def _forgotten(self, here: Before) -> list[str]:
        """Returns the lost results of a command that had ended. A backup's name is the time of its run, so it is unique.

        Files restored to a host are on its disk only when the host has written them there.
        """
        after = {fact for fact in here.after if not (self.site.is_host and fact.endswith("is restored"))}
        wanted, seen = (Counter(_NAMED.sub("", fact) for fact in facts) for facts in (after, self._facts()))
        return sorted((wanted - seen).elements())

    def _put_back(self, here: Before) -> None:
        delete(self.site.top, cut_truth.subvolume(self.site.source).number)
        snapshot(here.source, self.site.source)
        self.site.config.write_text(here.config)

    def _contents(self, look: Look) -> Iterator[str]:
        """Yields the backups that count as complete and differ from their source."""
        for host, name, record in cut_truth.backups(self.site.pool):
            key, backup = f"{host}/{name}", self.site.pool / "hosts" / host / name
            if record["state"] not in _DONE or look.read.get(key) == cut_truth.subvolume(backup):
                continue
            if wrong := self._wrong(look, host, key, record["state"]):
                yield wrong
            else:
                look.read[key] = cut_truth.subvolume(backup)

    def _wrong(self, look: Look, host: str, key: str, state: str) -> str:
        """Returns the first error in the content of that backup, or ""."""
        tree = cut_truth.tree(self.site.pool / "hosts" / key / "data")
        differences = key in self.trees and cut_truth.unlike(self.trees[key], tree)
        if differences == []:  # also one that the cut had left with all of its content, and a run has given its name
            return ""
        if differences and (look.names is None or key in look.names or host in self.site.elsewhere):
            return f"{key} is not what it was: {differences[:3]}"
        if look.names is None and f"{key} is there, {state}" not in look.may and not self.unknown_names:
            return f"{key} is called {state} before it was finished"
        wrong = self._unlike_source(tree, look.source)
        return f"{key} differs from its source: {wrong[:3]}" if wrong else ""

    def _done(self, *words: str, status: tuple[int, ...]) -> Iterator[str]:
        done = command("backupd", "--config", self.site.config, *words, check=False, timeout=LONGEST)
        if done.returncode not in status or "Traceback" in done.stderr:
            yield f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-1500:]}"

    def _list(self) -> list[dict[str, Any]]:
        """Returns the output of `list` without durations: that of a row includes the time after its file was written."""
        return [{key: value for key, value in backup.items() if key != "duration"} for backup in self._backupd("list")]

    def _backupd(self, *words: str) -> Any:
        done = command("backupd", "--config", self.site.config, *words, "--json", timeout=LONGEST)
        return json.loads(done.stdout)

    def _run_all(self, which: str) -> Generator[str, None, set[tuple[str, str]]]:
        """Runs again; yields the errors, and returns the outcome of each host."""
        words = ("run", "--all", "--json")
        done = command("backupd", "--config", self.site.config, *words, check=False, timeout=LONGEST)
        if "Traceback" in done.stderr or not done.stdout:
            yield f"the {which} run ended with {done.returncode}: {done.stderr[-1500:]}"
            return set()
        results = {result["host"]: result for result in json.loads(done.stdout)}
        for host, entry in results.items():
            if entry["outcome"] not in _DONE or (entry["outcome"] == "suspect" and self.name != "suspect"):
                yield f"the {which} run of {host} was {entry['outcome']}: {entry.get('error')} {entry.get('warnings')}"
        return {(host, result["outcome"]) for host, result in results.items()}

    def _tidy(self) -> Iterator[str]:
        """Yields the remains of interrupted commands, and the differences between catalogue and pool."""
        site = self.site
        yield from disagreements(site)
        yield from (f"left: {path}" for path in site.pool.glob("hosts/*/.working"))
        yield from (f"left: {path}" for path in site.pool.glob(".btrkeep/new/*/.working"))
        yield from (f"locked: {path.name}" for path in (site.pool / ".btrkeep" / "locks").iterdir() if is_locked(path))
        listed = self._list()
        self._backupd("rebuild")
        again = self._list()
        if len(listed) != len(again):
            yield f"{len(listed)} backups are listed, and {len(again)} after rebuild"
        for before, after in zip(listed, again, strict=False):
            if changed := {key: (value, after.get(key)) for key, value in before.items() if after.get(key) != value}:
                yield f"list before and after rebuild differ: {before['host']}/{before['name']} {changed}"
        if cut_truth.stale_notes(site.pool):
            yield from self._done("expire", "--force", "hosts", "--force", "pool", status=(0,))
        yield from (f"noted of a backup that is gone, after an expiry too: {name}" for name in cut_truth.stale_notes(site.pool))


def _is_new_backup(fact: str, outcomes: set[tuple[str, str]]) -> bool:
    host, _, rest = fact.partition("/")
    return any(host == name and rest.endswith(f"is there, {outcome}") for name, outcome in outcomes)
