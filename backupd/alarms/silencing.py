"""Silences hosts, groups and kinds of problems until a date, and ends that. The command and the root service use it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from backupd.repo.actions_log import UserAction, record_action
from btrkeep.catalogue import Catalogue, Silence
from btrkeep.config import Config
from btrkeep.decisions.silences import PROBLEM_KINDS
from btrkeep.errors import UsageError, did_you_mean
from btrkeep.pool.marker import Pool
from btrkeep.units import local_time

Subject = tuple[str, str]
"""The kind, one of SILENCE_KINDS, and the name."""


@dataclass(frozen=True, slots=True)
class NewSilence:
    """What a user requests."""

    until: datetime | None
    """When it ends; None: it ends now."""
    why: str
    """The reason."""
    by: str
    """The user."""
    paused: bool = False
    """True if nightly runs skip the hosts, too."""


def require_subjects(config: Config, catalogue: Catalogue, subjects: Iterable[Subject]) -> None:
    """Raises UsageError if one of them does not exist."""
    hosts, groups = {*config.every_host, *catalogue.hosts()}, {*config.groups}
    choices = {"host": hosts, "group": groups, "problem": {*PROBLEM_KINDS}}
    for kind, name in subjects:
        if name not in choices[kind]:
            word = "kind of problem that can be silenced" if kind == "problem" else kind
            raise UsageError(f"there is no {word} {name}", did_you_mean(name, choices[kind], "`backupd silence --help`"))


def silence(pool: Pool | None, catalogue: Catalogue, subjects: Sequence[Subject], new: NewSilence, now: datetime) -> str:
    """Silences the subjects, or ends their silences; other silences that have ended are removed. Returns the reason if the action
    could not be recorded in the pool, else "".
    """
    over = [row.key for row in catalogue.silences() if row.until <= now]
    rows = [Silence(kind, name, new.until, new.by, new.why, now, new.paused) for kind, name in subjects] if new.until else []
    catalogue.put_silences(rows, [*over, *subjects])
    if pool is None:
        return "the pool cannot be used"
    action = "disable" if new.paused else "silence"
    words = f"until {local_time(new.until)}: {new.why}" if new.until else "ended"
    reasons = [
        record_action(pool, UserAction(now, action, new.by, name if kind == "host" else None, None, _about(kind, name, words)))
        for kind, name in subjects
    ]
    return next(filter(None, reasons), "")


def _about(kind: str, name: str, words: str) -> str:
    return words if kind == "host" else f"{kind} {name} {words}"
