"""The request of a restore to a host, and its preview.

A preview needs the network and the host's key, which the root service does not have: it starts a job that computes the preview, and
waits for a while. If that takes longer, the job continues, and its result can be read later.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from btrkeep.errors import OperatorError
from btrkeep.serving.protocol import JOB_ID, RequestRefused
from web.files.data import Asks, bytes_of, text_of
from web.jobs.file_counts import CountRow, count_row

OVERWRITE = {
    "never": "Keep existing files, and restore missing ones",
    "older": "Overwrite files that are older than in the backup",
    "all": "Overwrite all files that differ. Contents are compared too, so everything is read",
}
"""The values of `overwrite`, in words."""
WHATS = ("new", "overwritten", "kept", "same", "entered", "refused")
"""The possible effects on a name. entered: an existing folder; refused: another file type is in the way."""
OVER = ("done", "failed")
_SHOWN = 10  # paths of the command shown on a page


@dataclass(frozen=True, slots=True)
class RestoreForm:
    """A request to restore."""

    host: str
    """The host's name."""
    backup: str
    """The backup's name."""
    paths: tuple[bytes, ...]
    """On the host."""
    folder: str | None = None
    """The destination on the host; None: the original place."""
    overwrite: str = "never"
    """What may be overwritten."""
    to_server: bool = False
    """True: to the folder of the backup server that the root service has for restores."""

    @property
    def shown(self) -> tuple[str, ...]:
        """Returns the paths as texts."""
        return tuple(text_of(path) for path in self.paths)

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of the verbs preview and restore."""
        to = "folder" if self.to_server else "host" if self.folder is None else f"host:{self.folder}"
        return {"host": self.host, "backup": self.backup, "paths": list(self.shown), "to": to, "overwrite": self.overwrite}


@dataclass(frozen=True, slots=True)
class ByHand:
    """What an administrator types without the dashboard."""

    file: str
    """The file with the host's authorized keys."""
    restore_line: str
    """The start of the restore key's line in it."""
    line: str
    """The start of the line of the key for backups while that key may write."""
    server: str
    """The command that restores the same files to the backup server, without the host's help."""


def by_hand(wish: RestoreForm, address: str, program: str) -> ByHand:
    """Returns the commands for a host with that address for ssh. `program`: the command line of `backupd`."""
    user = address.rpartition("@")[0] or "root"
    sudo = "" if user == "root" else "sudo -n "
    paths = [_word(path) for path in wish.paths[:_SHOWN]] + ["PATH..."] * (len(wish.paths) > _SHOWN)
    return ByHand(
        f"{'/root' if user == 'root' else f'~{user}'}/.ssh/authorized_keys",
        f'restrict,command="{sudo}/usr/local/bin/btrkeep-source restore" ssh-ed25519 ...',
        f'restrict,command="{sudo}rrsync /" ssh-ed25519 ...',
        f"{program} restore {wish.host}@{wish.backup} {' '.join(paths)} --to /root/restored",
    )


def _word(path: bytes) -> str:
    """Quotes a path of any bytes for a shell: bash, zsh and others read $'...'."""
    text = path.decode("utf-8", "surrogateescape")
    if text.isprintable():
        return shlex.quote(text)
    plain = (chr(byte) if 0x20 <= byte < 0x7F and chr(byte) not in "'\\" else f"\\x{byte:02x}" for byte in path)
    return f"$'{''.join(plain)}'"


@dataclass(frozen=True, slots=True)
class Destinations:
    """What the root service allows besides the original place."""

    elsewhere: bool = False
    """Another folder of the host."""
    server: bool = False
    """Its folder of the backup server."""


def destinations(agent: Asks) -> Destinations:
    """Returns the destinations that the root service allows; none if it does not answer."""
    try:
        answer = agent.ask("hello")
    except OperatorError:
        return Destinations()
    return Destinations(answer.get("elsewhere") is True, answer.get("folder") is True)


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """A check whether the host can be reached and allows the restore."""

    job: str
    """The job."""
    host: str
    """The host's name."""
    over: bool
    """True if it is finished."""
    reason: str = ""
    """Why not: `key` or `other`; empty: it allows it."""
    error: str = ""
    """The reason in words; empty for users who may not read it."""


_CHECKED = 10  # paths: the answer for more would hardly be another


def start_check(asks: Asks, wish: RestoreForm) -> KeyCheck | None:
    """Starts the check, or uses the last one, and returns it at once; None if that is not possible now."""
    try:
        arguments = replace(wish, paths=wish.paths[:_CHECKED], folder=None, overwrite="all", to_server=False).arguments()
        return read_check(asks, str(asks.ask("reach", **arguments)["job"]))
    except OperatorError:
        return None


def read_check(asks: Asks, job: str) -> KeyCheck | None:
    """Returns the check; None if the job is of another kind. Raises the exceptions of the root service."""
    fields = asks.ask("job", job=job, lines=0)
    if fields["verb"] != "reach":
        return None
    result = fields["result"] or {"reason": "other", "error": fields["error"]}
    if fields["state"] not in OVER:
        return KeyCheck(job, fields["host"], False)
    return KeyCheck(job, fields["host"], True, result["reason"], result.get("error") or "")


@dataclass(frozen=True, slots=True)
class PreviewPage:
    """What a restore would do."""

    counts: Mapping[str, CountRow]
    """Numbers of names by the words of WHATS."""
    names: int
    """Number of names."""
    size: int
    """Bytes."""
    to: str
    """The destination."""
    why_not: str
    """Why it would restore nothing; "": it would restore something."""


@dataclass(frozen=True, slots=True)
class PreviewState:
    """A preview that is being made."""

    wish: RestoreForm
    """The request."""
    over: bool
    """True if it is finished."""
    last: str = ""
    """The last line of its output."""
    error: str = ""
    """Why it failed; "": it did not."""
    preview: PreviewPage | None = None
    """The result; None: there is none yet."""


def preview(asks: Asks, wish: RestoreForm) -> PreviewPage | str:
    """Returns the effect of a restore; or the name of the job that computes it if that takes long. Raises the exceptions of the
    root service.
    """
    try:
        return _preview(asks.ask("preview", **wish.arguments()))
    except RequestRefused as error:
        if not error.job or not JOB_ID.fullmatch(error.job):
            raise
        return error.job


def read_preview(asks: Asks, job: str) -> PreviewState | None:
    """Returns the progress of such a job; None if the job is of another kind. Raises the exceptions of the root service."""
    fields = asks.ask("job", job=job, lines=1)
    if fields["verb"] != "preview":
        return None
    over, preview_page = fields["state"] in OVER, _preview(fields["result"]) if fields["result"] else None
    last = fields["lines"][-1] if fields["lines"] else ""
    return PreviewState(_wish_of(fields), over, last, fields["error"] or "", preview_page)


def start(asks: Asks, wish: RestoreForm) -> str:
    """Starts the restore; returns the name of the job. Raises the exceptions of the root service."""
    return str(asks.ask("restore", **wish.arguments())["job"])


def _preview(fields: Mapping[str, Any]) -> PreviewPage:
    return PreviewPage(
        counts={kind: count_row(fields[kind]) for kind in WHATS},
        names=fields["files"] + fields["folders"] + fields["others"],
        size=fields["bytes"],
        to=fields["to"],
        why_not=fields["why_not"],
    )


def _wish_of(fields: Mapping[str, Any]) -> RestoreForm:
    given = fields["arguments"]
    folder = given["to"].partition(":")[2] or None
    return RestoreForm(
        fields["host"],
        given["backup"],
        tuple(bytes_of(path) for path in given["paths"]),
        folder,
        given["overwrite"] or "never",
        given["to"] == "folder",
    )
