"""A load drill: restores dumps of a backup, loads each with the administrator's command, and deletes all of it.

A host writes its dumps, and the loading program may execute parts of a dump: psql runs shell commands in a script. So the command
runs as the user nobody, without a network, and sees only programs and /etc of this machine, the restored dump, and folders in the
pool that it can write to.
"""

import asyncio
import os
import pwd
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from backupd.drill.drill_context import DrillContext, NotFinished, outcome_of
from backupd.files.backup_selector import Restorable
from backupd.files.restore_types import RestoreRequest
from backupd.files.to_folder import LocalRestore
from backupd.files.tree import Tree
from backupd.repo.backup_json import DATA
from backupd.repo.read_lock import lock_for_reading
from backupd.rsync.cell import PROGRAM, confinement_hint
from btrkeep.checkpoints import Checkpoint
from btrkeep.decisions.drills import DrillKind, DrillOutcome, DrillResult
from btrkeep.errors import OperatorError
from btrkeep.pool.subvolume import create
from btrkeep.process.group import ENDS_WITH_US
from btrkeep.process.programs import environment, run
from btrkeep.units import format_duration, printable

_USER = "nobody"
_INSIDE, _SCRATCH, _WORK = "/drill", "loaded", "work"
_LINKED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_WRITABLE = {"tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108  on the disk: in memory they could fill it
_MOST_PROCESSES = 4096
_LONGEST, _LONGEST_TEXT = 200, 2000  # characters of the last line of a command, and of all
_BUFFER = 1 << 12


@dataclass(frozen=True, slots=True)
class Load:
    """A dump of a backup, and the command that loads it."""

    name: str
    """The dump as in the configuration."""
    path: str
    """The file or folder in the backup."""
    command: str
    """A line for the shell."""


def loads_of(backup: Restorable, configured: Mapping[str, str]) -> list[Load]:
    """Returns what can be loaded of a backup. A dump that the host could not make was reported with the backup. Raises OSError."""
    made = {dump.name: dump.path for dump in backup.record.dumps if not dump.failed}
    loads = [Load(name, made[name], command) for name, command in configured.items() if name in made]
    with Tree(backup.path) as tree:
        for path in (path for path in configured if path.startswith("/")):
            with suppress(OSError):
                tree.stat(os.fsencode(path))
                loads.append(Load(path, path, configured[path]))
    return loads


def run_load_drill(context: DrillContext, backup: Restorable, loads: Sequence[Load]) -> DrillResult:
    """Loads the dumps one after the other, and returns one result. Raises Cancelled, LockHeld, and OperatorError if the pool cannot
    be used.
    """
    begun, texts = time.monotonic(), dict[DrillOutcome, list[str]]()
    if not shutil.which(PROGRAM, path=environment()["PATH"]):
        raise OperatorError(f"{PROGRAM} is not installed, so no dump can be loaded", confinement_hint())
    for load in loads:
        with context.scratch() as folder, lock_for_reading(backup.path):
            try:
                failure, last = _loaded(context, backup, load, folder)
                outcome, text = (DrillOutcome.FAILED, failure) if failure else (DrillOutcome.PROVEN, "")
            except (OperatorError, OSError) as error:
                (outcome, text), last = outcome_of(error), ""
        texts.setdefault(outcome, []).append(printable(": ".join(part for part in (load.name, text, last) if part)))
    worst = next(outcome for outcome in (DrillOutcome.FAILED, DrillOutcome.UNFINISHED, DrillOutcome.PROVEN) if outcome in texts)
    done = DrillResult(backup.host, backup.name, context.now, worst, kind=DrillKind.LOAD)
    return replace(done, text="; ".join(texts[worst])[:_LONGEST_TEXT], seconds=round(time.monotonic() - begun, 3))


def _loaded(context: DrillContext, backup: Restorable, load: Load, folder: Path) -> tuple[str, str]:
    """Restores and loads one dump. Returns what went wrong, or "", and the last line of the command's output. Raises Cancelled,
    OperatorError, OSError.
    """
    context.go_on()  # wait for others now
    scratch = folder / _SCRATCH
    create(scratch)
    _restore(context, backup, load, scratch / DATA)
    user = pwd.getpwnam(_USER)
    _give_files(scratch / DATA, user)
    for name in (_WORK, *_WRITABLE):
        (scratch / name).mkdir()
        os.chown(scratch / name, user.pw_uid, user.pw_gid)
    for place in (scratch, *scratch.iterdir()):  # bubblewrap enters them as root without privileges; the folder above is root's own
        place.chmod(0o755)
    trial = run((*ENDS_WITH_US, *_confined(scratch, "true", user)), check=False)
    if trial.returncode:
        why = (trial.stderr.strip().splitlines() or [f"exit status {trial.returncode}"])[-1]
        raise NotFinished(f"a command cannot be confined here: {printable(why)}", confinement_hint())
    output, timeout = _Output(), context.config.drill.load_timeout
    words = (*ENDS_WITH_US, *_confined(scratch, load.command, user))
    with Checkpoint("dump being loaded"):
        status = asyncio.run(context.follow_program(words, output.take, timeout, env=_variables(load.path)))
    if status is None:
        return f"not loaded within {format_duration(timeout)}", output.last
    return f"exit status {status}" if status else "", output.last


def _restore(context: DrillContext, backup: Restorable, load: Load, to: Path) -> None:
    """Restores the dump without what grants privileges. Its data is shared with the backup. Raises OperatorError."""
    request = RestoreRequest(backup.host, backup.name, (os.fsencode(load.path),), str(to), parents=True, content=False)
    with Tree(backup.path) as tree:
        restore = LocalRestore(tree, request, reflinks=True, tell=lambda _: context.go_on())
        written = restore.run(restore.preview(content=False))
    for place, why in written.problems.samples:
        raise OperatorError(f"it could not be restored: {printable(place)}: {why}", "")


def _give_files(top: Path, user: pwd.struct_passwd) -> None:
    """Makes the user the owner of all folders and files. Nothing runs there yet."""
    for folder, _, names in os.walk(top):
        os.chown(folder, user.pw_uid, user.pw_gid)
        for name in names:
            path = f"{folder}/{name}"
            if stat.S_ISREG(os.lstat(path).st_mode):
                os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


class _Output:
    """The command's output, of which only the last line is kept."""

    def __init__(self) -> None:
        self._end = b""

    def take(self, data: bytes) -> None:
        self._end = (self._end + data)[-_BUFFER:]

    @property
    def last(self) -> str:
        """Returns the last line that is not empty."""
        lines = [line.strip() for line in self._end.decode("utf-8", "replace").splitlines() if line.strip()]
        return printable(lines[-1][:_LONGEST]) if lines else ""


def _variables(path: str) -> dict[str, str]:
    return {
        "PATH": environment()["PATH"],
        "HOME": f"{_INSIDE}/{_WORK}",
        "LC_ALL": "C.UTF-8",
        "DUMP": f"{_INSIDE}/{DATA}/{path.strip('/')}",
    }


def _confined(scratch: Path, command: str, user: pwd.struct_passwd) -> tuple[str, ...]:
    """Returns the command line. bubblewrap's own user namespace would map the user to root outside, so setpriv changes the user.
    unshare makes the network's: bubblewrap would start its loopback, for which the unit of drills allows no socket.

    All processes end with the first one: they have a process namespace of their own.
    """
    folders = [Path(name) for name in _LINKED if os.path.lexists(name)]
    system = [
        ("--symlink", str(folder.readlink()), str(folder)) if folder.is_symlink() else ("--ro-bind", str(folder), str(folder))
        for folder in folders
    ]
    return (
        *("unshare", "--net", "--", PROGRAM, "--unshare-pid", "--unshare-ipc", "--die-with-parent"),
        *("--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"),
        *(word for words in system for word in words),
        *("--proc", "/proc", "--dev", "/dev", "--bind", str(scratch), _INSIDE),
        *(word for name, place in _WRITABLE.items() for word in ("--bind", str(scratch / name), place)),
        *("--remount-ro", "/", "--chdir", f"{_INSIDE}/{_WORK}"),
        *("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"),
        "--",
        *("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--no-new-privs", "--"),
        *("prlimit", f"--nproc={_MOST_PROCESSES}", "--", "sh", "-c", command),
    )
