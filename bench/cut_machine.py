"""Power cuts of a virtual machine: qemu is killed while a command of a scenario runs there, or its writes are recorded.

A scenario runs here first, without cuts, to record the state before and after each step. Then machines boot (tests/beds/vm.py)
with the disks of the beginning of a step, with the sources and the configuration at the same paths as here, and run its command. A
machine that is *killed* loses the data that its kernel has not yet written. The disks of one that is *logged* are on one device of
dm-log-writes, and the cuts are the disks at its flushes: exactly the safe data.
"""

import shlex
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from bench.cut_disks import OPTIONS, Cut
from bench.cut_log import Replay, clone, flushes_of, of_kernel
from bench.cut_round import AT_RANDOM, IT_ENDED, KILLED, Round
from bench.cut_site import Step
from tests.beds import TOP, session, vm, work
from tests.beds.watch import KILL_AT

_LONGEST = 900.0  # seconds of a command in a machine
_SECTOR = 512
_LOG = 4 << 30  # bytes at most; writes are visible at once
_MAIN = """\
mkdir -p {points}
{mounts}
tar -xpf files.tar -C /
export NO_COLOR=1 LC_ALL=C.UTF-8 HOME=/root
echo begins
{command} </dev/null >said 2>&1 || status=$?
echo "ends ${{status:-0}}"
cat said
{last}
"""
_ENDED = "ends "
# One device for both disks, so that all writes have one order. No udev makes names in /dev/mapper here.
_ALL_LOGGED = """\
modprobe dm-log-writes
printf '0 {pool} linear /dev/vdc 0\\n{pool} {state} linear /dev/vdd 0\\n' | dmsetup create both
dmsetup create logged --table "0 {both} log-writes /dev/dm-0 /dev/vde"
dmsetup create pool --table "0 {pool} linear /dev/dm-1 0"
dmsetup create state --table "0 {state} linear /dev/dm-1 {pool}"
"""
_NO_MORE_LOG = "umount {points} && dmsetup remove pool state && dmsetup remove logged"


class MachineRound(Round):
    """The common part of rounds with machines. The scenario has ended, and its disks are unmounted, when the first
    machine boots.
    """

    unknown_names = True  # those that a machine gives are of its own clock

    def _cut(self, moment: str) -> None:  # noqa: ARG002 - each moment is a step's beginning
        """Does nothing: no power is cut while the scenario runs here. The state before each step is kept for the machines."""
        step = len(self.before) - 1
        self.disks.keep(step)
        for number, (point, image) in enumerate(self._others()):
            work("sync", "-f", point)
            work("cp", "--sparse=always", image, self._other(step, number))
        self._points = [point for point, _ in self._others()]

    def _cut_during(self, step: Step) -> None:
        self._carry_out(step, "list:/dev/null")

    def _others(self) -> list[tuple[Path, Path]]:
        """Returns the mount points and the images of the pools from which backups are fetched."""
        pools = [table["from"] for name, table in self.site.tables.items() if name.startswith("replica.")]
        mounts = (work("findmnt", "-n", "-o", "TARGET,SOURCE", "--target", pool).stdout.split() for pool in pools)
        return [(Path(point), Path(work("losetup", "-n", "-O", "BACK-FILE", loop).stdout.strip())) for point, loop in mounts]

    def _other(self, step: int, number: int) -> Path:
        return self.disks.images / f"other-{step}-{number}"

    def _scripts(self, step: int, mounts: str, others: str, last: str) -> Path:
        """Returns the folder of a machine that executes a step. `others`: the letter of the first disk with another pool."""
        self._put_back(self.before[step])
        folder = Path(tempfile.mkdtemp(prefix="scripts-", dir=session.folder()))
        files = [self.site.top, TOP / "tests" / "fakessh", KILL_AT, *filter(None, [self.program])]
        packed = ["tar", "--format=posix", "--sparse", "-C", "/", f"--exclude={self.site.top.name}/version-*"]
        work(*packed, "-cf", folder / "files.tar", *(str(path).lstrip("/") for path in files))
        letters = [chr(ord(others) + number) for number in range(len(self._points))]
        mounts += "".join(f"\nmount /dev/vd{letter} {point}" for letter, point in zip(letters, self._points, strict=True))
        points = shlex.join(map(str, (self.disks.pool, self.disks.state, *self._points)))
        main = _MAIN.format(points=points, mounts=mounts, command=self._command(step), last=last)
        (folder / "main.sh").write_text(main)
        return folder

    def _command(self, step: int) -> str:
        """Returns a shell line with the step's command, which announces each of its checkpoints on the channel of the script."""
        given = self.steps[step]
        program = [] if given.program == "backupd" else ["-m", given.program]
        words = [str(self.program or KILL_AT), "list:/dev/ttyS1", "any", "any", "0", *program, *self._words(given)]
        return f"/opt/btrkeep/versions/*/bin/python -P {shlex.join(words)}"

    def _mounts(self, pool: str, state: str) -> str:
        return f"mount -t ext4 -o noatime {state} {self.disks.state}\nmount -t btrfs -o {OPTIONS} {pool} {self.disks.pool}"

    def _copies(self, step: int) -> list[Path]:
        """Makes copies of the other pools' disks; a machine may write to them."""
        copies = []
        for number in range(len(self._points)):
            copy = self._other(step, number).with_suffix(".copy")
            work("cp", "--reflink=always", self._other(step, number), copy)
            copies.append(copy)
        return copies

    def _see_how_it_ended(self, step: int, lines: list[str]) -> None:
        """A command that fails in a machine is a defect like those of the cuts."""
        ended = next((number for number, line in enumerate(lines) if line.startswith(_ENDED)), None)
        assert ended is not None, "\n".join(lines)
        if int(lines[ended].split()[1]) not in self.steps[step].status:
            self.findings.defects.append(f"{self._where()}: step {step} in a machine: {' '.join(lines[ended:])[-1500:]}")


class KilledRound(MachineRound):
    """Two machines for each step. One is killed when its command has ended; before that it is frozen while its disks are copied, at
    checkpoints and at random moments, which shows the result of a kill. The other machine is killed at a random moment.
    """

    def _chosen(self) -> Iterable[Cut]:
        self._number = 0
        steps = self.random.sample(range(len(self.steps)), len(self.steps))
        kills = list(islice(chain.from_iterable(map(self._kills, steps)), self.wanted))
        self.wanted -= len(kills)
        return [*kills, *super()._chosen()]

    def _kills(self, step: int) -> Iterator[Cut]:
        with self._machine(step) as (machine, cut):
            moments = self._freeze_often(machine, cut, time.monotonic())
            self._see_how_it_ended(step, machine.lines())
        yield replace(cut, moment=IT_ENDED)
        with self._machine(step) as (machine, cut):
            first, last = (moments[0], moments[-1]) if len(moments) > 2 else (0.0, moments[-1])
            moment = time.monotonic() + self.random.uniform(first, last)
            lines = machine.wait(_LONGEST, lambda lines: time.monotonic() > moment or _has_ended(lines))
        yield replace(cut, moment=IT_ENDED if _has_ended(lines) else KILLED)

    @contextmanager
    def _machine(self, step: int) -> Iterator[tuple[vm.Vm, Cut]]:
        """Boots a machine that starts the step now. It is killed at the end of the block; the content of its disks is the cut."""
        cut = self._again(step)
        scripts = self._scripts(step, self._mounts("/dev/vdc", "/dev/vdd"), "e", "sleep infinity")
        with vm.running(scripts, [cut.pool, cut.state, *self._copies(step)], systemd=False) as machine:
            machine.wait(_LONGEST, lambda lines: "begins" in lines)
            yield machine, cut

    def _again(self, step: int) -> Cut:
        self._number += 1
        return self.disks.again(self._number, step, "")

    def _freeze_often(self, machine: vm.Vm, cut: Cut, begun: float) -> list[float]:
        """Freezes the machine repeatedly until its command has ended. Returns when it printed messages, in seconds
        since the start.
        """
        moments: list[float] = []
        pause = time.monotonic()

        def is_time(lines: list[str]) -> bool:
            return time.monotonic() > pause or len(lines) - lines.index("begins") - 1 > len(moments)

        while True:
            lines = machine.wait(_LONGEST, is_time)
            new = lines[lines.index("begins") + 1 + len(moments) :]
            moments += [time.monotonic() - begun] * len(new)
            if _has_ended(new):
                return moments
            with machine.frozen():
                self.cuts.append(self._copy(cut, new[-1] if new else AT_RANDOM[1]))
            pause = time.monotonic() + self.random.uniform(0.1, 1.5)

    def _copy(self, cut: Cut, moment: str) -> Cut:
        copy = self._again(cut.ended)
        for source, target in ((cut.pool, copy.pool), (cut.state, copy.state)):
            clone(source, target)
        return replace(copy, moment=moment)


class LoggedRound(MachineRound):
    """One machine for each step, and cuts at flushes of its log, which were chosen at random."""

    def _chosen(self) -> Iterator[Cut]:
        for step in range(len(self.steps)):
            yield from self._flushes(step, self.wanted // len(self.steps) + (step < self.wanted % len(self.steps)))

    def _flushes(self, step: int, wanted: int) -> Iterator[Cut]:
        log, bases = self._logged(step)
        sizes = [base.stat().st_size for base in bases]
        all_of_them = flushes_of(of_kernel(log, sizes))
        replay = Replay(of_kernel(log, sizes), bases)
        for number in sorted(self.random.sample(range(1, all_of_them + 1), min(wanted, all_of_them))):
            cut = self.disks.again(number, step, f"flush {number} of {all_of_them}")
            replay.copies(number, (cut.pool, cut.state))
            yield cut
        log.unlink()

    def _logged(self, step: int) -> tuple[Path, list[Path]]:
        """Returns the log of the step's machine, and its disks before the step."""
        disks, log = self.disks.again(0, step, ""), self.disks.images / "kernel-log"
        with log.open("wb") as file:
            file.truncate(_LOG)
        pool, state = (path.stat().st_size // _SECTOR for path in (disks.pool, disks.state))
        points = f"{self.disks.pool} {self.disks.state}"
        mounts = _ALL_LOGGED.format(pool=pool, state=state, both=pool + state) + self._mounts("/dev/dm-2", "/dev/dm-3")
        scripts = self._scripts(step, mounts, "f", _NO_MORE_LOG.format(points=points))
        with vm.running(scripts, [disks.pool, disks.state, log, *self._copies(step)], systemd=False) as machine:
            self._see_how_it_ended(step, machine.to_its_end(_LONGEST).splitlines())
        for path in (disks.pool, disks.state):
            path.unlink()
        return log, self.disks.kept(step)


def _has_ended(lines: list[str]) -> bool:
    return any(line.startswith(_ENDED) for line in lines)
