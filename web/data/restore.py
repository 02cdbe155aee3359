"""A restore to a host, as it is asked for, and what it would do.

What it would do takes the network and the host's key, which the root service has not: it has a job find that out, and waits for a
while. When that takes longer, the job goes on, and its result can be asked for later.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from btrkeep.errors import OperatorError
from btrkeep.serving.protocol import RequestRefused
from web.data.files import Asks, bytes_of, text_of
from web.data.same_names import of_answer

OVERWRITE = {
    "never": "Keep everything that is there, and add what is missing",
    "older": "Overwrite what is older than in the backup",
    "all": "Overwrite everything that differs, also in its content alone: all of it is read",
}
"""What `overwrite` may be, in words."""
WHATS = ("new", "overwritten", "kept", "same", "entered", "refused")
"""What may happen to a name. entered: a folder that is there; refused: something of another kind is in the way."""
OVER = ("done", "failed")
_SHOWN = 10  # paths of a command that a page shows
_JOB = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class RestoreForm:
    """What somebody wants back, and where. `folder`: on the host; None for everything's own place."""

    host: str
    backup: str
    paths: tuple[bytes, ...]
    folder: str | None = None
    overwrite: str = "never"

    @property
    def shown(self) -> tuple[str, ...]:
        """The paths as texts."""
        return tuple(text_of(path) for path in self.paths)

    def arguments(self) -> dict[str, Any]:
        """Those of the verbs preview and restore."""
        to = "host" if self.folder is None else f"host:{self.folder}"
        return {"host": self.host, "backup": self.backup, "paths": list(self.shown), "to": to, "overwrite": self.overwrite}


@dataclass(frozen=True, slots=True)
class ByHand:
    """What may be typed. `file` and `line`: where the host's key is let in, and how that begins while it may write; `server`:
    the command of the backup server that gives the same files back without the host.
    """

    file: str
    line: str
    server: str


def by_hand(wish: RestoreForm, address: str, pool: str) -> ByHand:
    """For a host that ssh reaches at that address."""
    user = address.rpartition("@")[0] or "root"
    rrsync = "rrsync /" if user == "root" else "sudo -n rrsync /"
    paths = [_word(path) for path in wish.paths[:_SHOWN]] + ["PATH..."] * (len(wish.paths) > _SHOWN)
    program = "backupd" if pool == "main" else f"backupd --pool {pool}"
    return ByHand(
        f"{'/root' if user == 'root' else f'~{user}'}/.ssh/authorized_keys",
        f'restrict,command="{rrsync}" ssh-ed25519 ...',
        f"{program} restore {wish.host}@{wish.backup} {' '.join(paths)} --to /var/tmp/restored",
    )


def _word(path: bytes) -> str:
    """For a shell, whatever bytes are in it: $'...' is what bash, zsh and others read."""
    text = path.decode("utf-8", "surrogateescape")
    if text.isprintable():
        return shlex.quote(text)
    plain = (chr(byte) if 0x20 <= byte < 0x7F and chr(byte) not in "'\\" else f"\\x{byte:02x}" for byte in path)
    return f"$'{''.join(plain)}'"


def may_go_elsewhere(agent: Asks) -> bool:
    """Whether the root service restores to another folder of a host than where the files were. False when it does not tell."""
    try:
        return agent.ask("hello").get("elsewhere") is True
    except OperatorError:
        return False


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One name, and why that happens to it."""

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class CountRow:
    """How many names, the bytes of those that are files, and some of them."""

    number: int
    size: int
    samples: tuple[SampleRow, ...]


@dataclass(frozen=True, slots=True)
class PreviewPage:
    """What a restore would do: `counts` by WHATS. `why_not`: why it would do nothing at all; "" when it would."""

    counts: Mapping[str, CountRow]
    names: int
    size: int
    why_not: str


@dataclass(frozen=True, slots=True)
class PreviewState:
    """A look at what a restore would do. `last`: the last line that it said; `error`: why nothing was found."""

    wish: RestoreForm
    over: bool
    last: str = ""
    error: str = ""
    found: PreviewPage | None = None


def preview(asks: Asks, wish: RestoreForm) -> PreviewPage | str:
    """What it would do; the name of the job that finds it out when that takes long. Raises what the agent raises."""
    try:
        return _preview(asks.ask("preview", **wish.arguments()))
    except RequestRefused as error:
        if not error.job or not _JOB.fullmatch(error.job):
            raise
        return error.job


def look(asks: Asks, job: str) -> PreviewState | None:
    """How far such a job is; None when the job is another one. Raises what the agent raises."""
    told = asks.ask("job", job=job, lines=1)
    if told["verb"] != "preview":
        return None
    over, found = told["state"] in OVER, _preview(told["result"]) if told["result"] else None
    last = told["lines"][-1] if told["lines"] else ""
    return PreviewState(_wish_of(told), over, last, told["error"] or "", found)


def start(asks: Asks, wish: RestoreForm) -> str:
    """Has it done; the job's name. Raises what the agent raises."""
    return str(asks.ask("restore", **wish.arguments())["job"])


def _preview(told: Mapping[str, Any]) -> PreviewPage:
    return PreviewPage(
        counts={what: _count(told[what]) for what in WHATS},
        names=told["files"] + told["folders"] + told["others"],
        size=told["bytes"],
        why_not=told["why_not"],
    )


def _count(told: Mapping[str, Any]) -> CountRow:
    return CountRow(told["count"], told["bytes"], tuple(of_answer(SampleRow, one) for one in told["samples"]))


def _wish_of(told: Mapping[str, Any]) -> RestoreForm:
    given = told["arguments"]
    folder = given["to"].partition(":")[2] or None
    return RestoreForm(
        told["host"], given["backup"], tuple(bytes_of(path) for path in given["paths"]), folder, given["overwrite"] or "never"
    )
