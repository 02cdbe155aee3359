"""The request that the service leaves for the process that carries it out: a file that only root reads, and that is taken once.

A unit's name holds nothing but the pool's name and the job's. All else stands in here: nothing of what was asked comes near
a command line of systemd.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backupd.serve.jobs import is_id
from btrkeep.errors import OperatorError, UsageError

RUNTIME = Path("/run/btrkeep/jobs")
"""Where they lie for units: with a reboot they are gone, and what was asked before is not done after it."""
FORMAT = 1
VERBS = ("run", "restore", "preview")


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """One request. `arguments` are as JSON has them; the process that carries it out validates them again."""

    id: str
    verb: str
    who: str
    arguments: Mapping[str, Any]
    folder: str | None = None
    """Where a restore to this machine goes: the service's own choice."""
    elsewhere: bool = False
    """True if a restore may go to another folder of its host than where the files were."""
    in_place: tuple[str, ...] = ()
    """Folders of this machine below which files of its own may be put back."""
    now: str | None = None
    """The time that it is, on a rehearsal pool."""


def leave(folder: Path, asked: ServeRequest) -> None:
    """Writes it down for `take`. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder / f"{asked.id}.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        json.dump({"format": FORMAT, **asdict(asked)}, file)


def withdraw(folder: Path, job_id: str) -> None:
    """Removes the request."""
    (folder / f"{job_id}.json").unlink(missing_ok=True)


def is_left(folder: Path, job_id: str) -> bool:
    """Returns True if it is waiting: it was not taken, and the machine was not restarted."""
    return (folder / f"{job_id}.json").exists()


def take(folder: Path, job_id: str) -> ServeRequest:
    """Reads and removes it, so that it is carried out only once.

    Raises UsageError if there is none, OperatorError if it is invalid.
    """
    if not is_id(job_id):
        raise UsageError("that is no name of a job", "the root service gives them: backupd serve")
    path = folder / f"{job_id}.json"
    try:
        text = path.read_text(encoding="ascii")
        path.unlink()
    except FileNotFoundError:
        raise UsageError(f"there is no request {path}", "it has been carried out already, or the machine was restarted") from None
    try:
        found = json.loads(text)
        if found.pop("format") != FORMAT:
            raise ValueError("another format")
        asked = ServeRequest(**{**found, "in_place": tuple(found.get("in_place", ()))})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise OperatorError(f"{path}: {error}", "was it left by another version? ask again") from None
    if asked.id != job_id or asked.verb not in VERBS or not isinstance(asked.arguments, dict):
        raise OperatorError(f"{path}: this is no request of ours", "ask again")
    return asked
