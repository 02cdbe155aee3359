"""A boot drill: boots a whole backed up system in a container, checks it, and deletes it.

Nothing is copied: systemd-nspawn boots a writable snapshot of the backup, without a network, with separate cgroups, and, if the
kernel permits it, with separate users. Device nodes of the backup open nothing. A unit of btrkeep waits until the system has
booted, runs the checks, and reports the result on the console. The system's owner can print any result there, but only about that
system.
"""

import asyncio
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from backupd.drill.drill_context import DrillContext, NotFinished
from backupd.files.backup_selector import Restorable
from backupd.files.tree import Tree, read_entry
from backupd.repo.backup_json import DATA
from backupd.repo.read_lock import lock_for_reading
from btrkeep.checkpoints import Checkpoint
from btrkeep.decisions.drills import DrillKind, DrillOutcome, DrillResult
from btrkeep.errors import OperatorError
from btrkeep.pool.subvolume import snapshot
from btrkeep.process.group import ENDS_WITH_US
from btrkeep.process.programs import environment, run
from btrkeep.procfs import mounts
from btrkeep.units import format_duration, printable

PROGRAM = "systemd-nspawn"
_INITS = (b"/usr/lib/systemd/systemd", b"/lib/systemd/systemd")
_LONGEST_HOSTNAME = 64
_LONGEST, _MOST = 1000, 50  # bytes of a line that are parsed; units and checks that are listed
_OWN_USERS = ("--private-users=pick", "--private-users-ownership=map")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NOISE = "Attempted to remove disk file system"  # printed by systemd-nspawn at every shutdown
_UNIT = """\
[Unit]
Description=Boot rehearsal of btrkeep
[Service]
Type=simple
StandardOutput=tty
TTYPath=/dev/console
ExecStart=/bin/sh {script}
"""
_SCRIPT = """\
while state=$(systemctl is-system-running); [ "$state" = initializing ] || [ "$state" = starting ]; do sleep 0.1; done
echo "{mark} state $state"
systemctl list-units --failed --plain --no-legend --full | while read -r unit rest; do echo "{mark} failed $unit"; done
{checks}
echo "{mark} end"
systemctl poweroff --force --force
"""
_CHECK = """\
said=$(sh -c {command} 2>&1 </dev/null); echo "{mark} check {number} $? $(printf %s "$said" | tr '\\n' ' ' | head -c 200)"
"""
_INSIDE, _SYSTEM = "/run/btrkeep-drill", "system"


@dataclass(frozen=True, slots=True)
class BootDrill:
    """A backup of a whole system to be booted."""

    backup: Restorable
    """The backup."""
    checks: tuple[str, ...]
    """Shell commands that must exit with 0 in the booted system."""
    timeout: float
    """The time limit for the boot and all checks, in seconds."""
    as_root: bool = False
    """True if it is also booted when it cannot have separate users, so that its root is root of this machine."""


@dataclass(slots=True)
class Console:
    """The output of the booted system."""

    mark: str
    """The prefix of the lines that are meant for this program."""
    asked: int = 0
    """Number of checks."""
    state: str = ""
    """As systemctl is-system-running prints it ("running", "degraded"); "": still booting."""
    failed: list[str] = field(default_factory=list)
    """Names of failed units."""
    checks: dict[int, tuple[int, str]] = field(default_factory=dict)
    """The exit status and the output of each check, by number."""
    is_ended: bool = False
    """True if the system has ended."""
    last: str = ""
    """The last line that the system itself printed."""
    _rest: bytes = b""

    def take(self, data: bytes) -> None:
        """Parses some output."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:_LONGEST]
        for line in lines:
            self._line(_ESCAPES.sub("", line[:_LONGEST].decode("utf-8", "replace")).strip())

    def _line(self, line: str) -> None:
        mark, _, message = line.partition(" ")
        if mark != self.mark:
            self.last = line if line and not line.startswith(_NOISE) else self.last
            return
        match message.split(" ", 3):
            case ["state", state]:
                self.state = state
            case ["failed", unit] if len(self.failed) < _MOST:
                self.failed.append(unit)
            case ["check", number, status, *text] if number.isdecimal() and status.isdecimal() and int(number) < self.asked:
                self.checks[int(number)] = int(status), "".join(text)
            case ["end"]:
                self.is_ended = True


def is_system(backup: Restorable) -> bool:
    """Returns True if the backup contains a bootable system: one with systemd."""
    with Tree(backup.path) as tree:
        for init in _INITS:
            with suppress(OSError):
                if tree.stat(init).kind == "file":
                    return True
    return False


def require_bootable(backup: Restorable) -> None:
    """Raises OperatorError."""
    if not shutil.which(PROGRAM, path=environment()["PATH"]):
        raise OperatorError(f"{PROGRAM} is not installed", "`apt install systemd-container`")
    if not is_system(backup):
        where = f"{backup.host}@{backup.name}"
        raise OperatorError(
            f"{where} is not a system with systemd, so it cannot be booted", "choose a host whose path / is backed up"
        )


def run_boot_drill(context: DrillContext, drill: BootDrill) -> DrillResult:
    """Runs the drill and returns its result. Raises Cancelled, LockHeld, and OperatorError if the pool cannot be used."""
    begun, backup = time.monotonic(), drill.backup
    done = DrillResult(backup.host, backup.name, context.now, DrillOutcome.FAILED, kind=DrillKind.BOOT)
    with context.scratch() as folder, lock_for_reading(backup.path):
        try:
            context.go_on()  # wait for others now: once it boots, it only takes seconds
            done = _booted(context, drill, folder, done)
        except NotFinished as error:
            done = replace(done, outcome=DrillOutcome.UNFINISHED, text=f"{error.message}; {error.hint}")
    return replace(done, seconds=round(time.monotonic() - begun, 3))


def _booted(context: DrillContext, drill: BootDrill, folder: Path, done: DrillResult) -> DrillResult:
    system, console = folder / _SYSTEM, Console(f"btrkeep-{secrets.token_hex(8)}", len(drill.checks))
    with Checkpoint("system to be booted made"):
        snapshot(drill.backup.path, system)
    _prepare(system)
    (folder / "drill.service").write_text(_UNIT.format(script=f"{_INSIDE}/drill.sh"))
    checks = "".join(
        _CHECK.format(command=shlex.quote(line), mark=console.mark, number=number) for number, line in enumerate(drill.checks)
    )
    (folder / "inside").mkdir(mode=0o755)
    (folder / "inside/drill.sh").write_text(_SCRIPT.format(mark=console.mark, checks=checks))
    own_users = _gives_own_users(context, folder)
    if not own_users and not drill.as_root:
        raise NotFinished(
            "a container gets no separate users here, so the system's root would be root of this machine",
            "boot it in a virtual machine, or with --as-root if you are sure that the backup was not tampered with",
        )
    with boot_cgroups(context.pool.id) as groups, Checkpoint("system booted"):
        words = _in_groups(groups, folder / _SYSTEM / DATA, _command(drill.backup.host, context.pool.id, folder, own_users))
        asyncio.run(context.follow_program((*ENDS_WITH_US, *words), console.take, drill.timeout, is_done=lambda: console.is_ended))
    context.require_room_left()  # a full pool makes units fail, which proves nothing about them
    return _judged(done, drill, console, own_users)


def _gives_own_users(context: DrillContext, folder: Path) -> bool:
    """Tests separate users with a folder of this program. The test does not boot the system itself: its owner could make that boot
    fail, and the second boot, without separate users, would have root on this machine.
    """
    trial = folder / "trial"
    (trial / "usr").mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (trial / name).symlink_to(f"usr/{name}")
    with boot_cgroups(context.pool.id) as groups:
        words = (*_container(trial, context.pool.id), *_OWN_USERS, "--bind-ro=/usr", "/usr/bin/true")
        return run(_in_groups(groups, trial, words), check=False).returncode == 0


def _prepare(system: Path) -> None:
    """Creates folders that are rarely in a backup but that every system needs."""
    with Tree(system) as tree:
        for path in (b"/", b"/var"):
            with suppress(OSError), tree.folder(path) as folder:
                try:
                    read_entry(folder, b"tmp", path)
                except FileNotFoundError:
                    os.mkdir(b"tmp", dir_fd=folder)
                    os.chmod(b"tmp", 0o1777, dir_fd=folder)  # noqa: S103  as every system has it


def _command(host: str, pool: str, folder: Path, own_users: bool) -> tuple[str, ...]:
    """Returns the command. systemd reads the words after --boot like the kernel's command line."""
    hostname = host if len(host) < _LONGEST_HOSTNAME and re.fullmatch(r"[a-z0-9][a-z0-9.-]*[a-z0-9]", host) else "rehearsal"
    return (
        *_container(folder / _SYSTEM / DATA, pool),
        *(f"--hostname={hostname}", "--resolv-conf=off", "--timezone=off", "--drop-capability=CAP_SYS_TIME"),
        *(_OWN_USERS if own_users else ()),
        f"--bind-ro={folder / 'inside'}:{_INSIDE}",
        f"--bind-ro={folder / 'drill.service'}:/etc/systemd/system/btrkeep-drill.service",
        *("--boot", "systemd.unit=multi-user.target", "systemd.wants=btrkeep-drill.service"),
        *("fstab=no", "systemd.show_status=no"),
    )


def _container(root: Path, pool: str) -> tuple[str, ...]:
    """Returns the common beginning of the commands.

    A received backup may have a .nspawn file beside its data, which can bind and permit anything: such settings are not read.
    """
    return (
        PROGRAM,
        *("--quiet", "--settings=no", f"--directory={root}", f"--machine=btrkeep-drill-{pool[:8]}"),
        *("--register=no", "--keep-unit", "--link-journal=no", "--private-network", "--console=read-only"),
    )


def _in_groups(groups: Sequence[Path], root: Path, words: Sequence[str]) -> tuple[str, ...]:
    """Makes the program enter the cgroups before it starts. Two systems in one group would mistake each other's processes for their
    own.

    `root` is mounted `nodev`: a device node of a backup with mode 666 would be a disk of this machine, even for a system with
    separate users. Mounts follow those of the machine: with `private`, a filesystem that is unmounted during the drill would stay
    in use.
    """
    script = """\
mount --bind --options nodev -- "$1" "$1"; shift
while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done; shift; exec "$@"
"""
    return ("unshare", "--mount", "--propagation", "slave", "sh", "-ec", script, "-", str(root), *map(str, groups), "--", *words)


def _judged(done: DrillResult, drill: BootDrill, console: Console, own_users: bool) -> DrillResult:
    wrong = []
    if not console.is_ended:
        state = "it booted, but did not complete all checks" if console.state else "it did not finish booting"
        wrong.append(f"{state} within {format_duration(drill.timeout)}" if not console.last else f"{state}: {console.last}")
    elif console.state != "running":
        failed = f": {', '.join(console.failed)}" if console.failed else ""
        wrong.append(f"systemd reports {console.state!r}{failed}")
    for number, line in enumerate(drill.checks if console.is_ended else ()):
        status, output = console.checks.get(number, (-1, "no answer"))
        if status:
            wrong.append(f"{line!r} ended with {status}" + (f": {output}" if output else ""))
    apart = "" if own_users else "; without separate users"
    text = "; ".join(wrong) or f"all units started, {len(drill.checks)} of {len(drill.checks)} checks passed{apart}"
    return replace(done, outcome=DrillOutcome.FAILED if wrong else DrillOutcome.PROVEN, text=printable(text)[:2000])


_NAME = "btrkeep-drill-"
_MOST_PROCESSES = 4096
_PATIENCE = 10.0  # seconds


@contextmanager
def boot_cgroups(pool: str) -> Iterator[list[Path]]:
    """Creates the cgroups below the tops of the hierarchies that systemd uses; processes in them are killed at the end. Raises
    OSError.

    `pool`: its id, which is part of their name, because another pool may run a drill at the same time. Processes left by a killed
    drill are killed first. The limits are 4,096 processes and half of the memory, if the kernel supports them.
    """
    groups = [top / f"{_NAME}{pool}" for top in _tops()]
    for group in groups:
        _remove(group)
    try:
        for group in groups:
            group.mkdir()
        for group in groups:
            _limit(group, "pids.max", _MOST_PROCESSES)
            _limit(group, "memory.max", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
        yield groups
    finally:
        for group in groups:
            _remove(group)


def _tops() -> list[Path]:
    """Returns the mount points of systemd's hierarchies: cgroup2, or the named one of version 1, or both."""
    return [
        mount.target
        for mount in mounts()
        if mount.filesystem == "cgroup2" or (mount.filesystem == "cgroup" and "name=systemd" in mount.super_options)
    ]


def _limit(group: Path, name: str, value: int) -> None:
    if (group / name).exists():
        (group / name).write_text(str(value))


def _remove(top: Path) -> None:
    """Kills the processes in a group and in those below it, and removes the groups. A group that cannot be removed is left to the
    next drill.
    """
    end = time.monotonic() + _PATIENCE
    while top.is_dir():
        for folder, _, files in os.walk(top, topdown=False):
            if "cgroup.procs" in files:
                _kill(Path(folder))
            with suppress(OSError):
                Path(folder).rmdir()
        if time.monotonic() > end:
            return
        time.sleep(0.02)


def _kill(group: Path) -> None:
    with suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            if int(pid) > 0:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
