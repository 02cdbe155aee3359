"""A restore that somebody wants, in the words of the command line, the dashboard and its root service; and what it would do.

A preview changes nothing. One to a host needs the network and the key, and takes as long as rsync does; where there is neither, as
in the root service, `command_words` is what to start.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backupd.files.backup_selector import Restorable
from backupd.files.destination import require_destination
from backupd.files.placing import place_path, placed
from backupd.files.restoration import RestoreCount, Restored, RestorePreview, RestoreRequest, Tell, Withheld
from backupd.files.restoring import Restore, preview, require_possible
from backupd.files.suggestions import entry_at
from backupd.files.target import Target, target_of
from backupd.files.to_host import Giving
from backupd.files.tree import Tree
from backupd.files.words import shown
from backupd.repo.backup_json import DATA
from btrkeep.config import Config, other_pools
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import Pool, is_on
from btrkeep.units import percent_encoded

ORIGINAL = ""
"""As `to`: the host itself, each path where it was."""


@dataclass(frozen=True, slots=True)
class RestoreArguments:
    """`to`: ORIGINAL, an absolute folder of this machine, or [USER@]HOST:DIR. Paths as the host has them."""

    host: str
    which: str
    paths: tuple[bytes, ...]
    to: str
    overwrite: str | None = None
    parents: bool = False
    content: bool = True
    port: int | None = None
    privileged: bool = False
    """For a folder of this machine: setuid bits, capabilities and device nodes too. Elsewhere they always come back."""
    only_below: tuple[str, ...] = ()
    """Folders of this machine outside of which nothing is written; () for root, who may write everywhere."""


def command_words(wanted: RestoreArguments, *, dry_run: bool = False) -> tuple[str, ...]:
    """The words after `backupd` that do it, with JSON at the end and lines of progress."""
    words = ["restore", "--json", "--progress-lines"]
    words += ["--dry-run"] if dry_run else []
    words += [f"--overwrite={wanted.overwrite}"] if wanted.overwrite else []
    words += ["--parents"] if wanted.parents else []
    words += ["--compare=metadata"] if not wanted.content else []
    words += [f"--port={wanted.port}"] if wanted.port else []
    words += ["--privileged"] if wanted.privileged else []
    words += [f"--only-below={folder}" for folder in wanted.only_below]
    # Without a value for the host itself; the -- behind it is no value.
    to_host = "--to-host" if wanted.to == ORIGINAL else f"--to-host={wanted.to}"
    words += [f"--to={wanted.to}" if wanted.to.startswith("/") else to_host]
    return (*words, "--", f"{wanted.host}@{wanted.which}", *map(os.fsdecode, wanted.paths))


class Doing:
    """A restore that is wanted from an open backup, ready to be looked at and done. Raises OperatorError of every kind."""

    def __init__(self, config: Config, pool: Pool, backup: Restorable, tree: Tree, wanted: RestoreArguments, tell: Tell) -> None:
        self.wanted = wanted
        self.backup = backup
        self._tree = tree
        self._tell = tell
        self.giving: Giving | None = None
        self._reflinks = False
        for path in wanted.paths:
            entry_at(tree, path, f"{backup.host}@{backup.name}")
        self.request = self._request(config, pool)
        if self.request:
            self._reflinks = _is_on(self.request.to, pool.filesystem)

    def _request(self, config: Config, pool: Pool) -> RestoreRequest | None:
        """What is to be done on this machine; None when another one is meant."""
        wanted = self.wanted
        if not wanted.to.startswith("/"):
            target = target_of(config, wanted.host, wanted.to, wanted.port)
            if target.host.address:
                self.giving = self._giving(config, target)
                return None
            wanted = replace(wanted, to="/", parents=True, privileged=True)
        to = Path(wanted.to)
        others = other_pools(config)
        require_destination(pool, config.pool.state, to, others)
        spared, only_below = (pool.path, config.pool.state, *others), tuple(map(Path, wanted.only_below))
        return RestoreRequest(
            wanted.paths, to, wanted.overwrite, wanted.parents, wanted.content, spared, wanted.privileged, only_below
        )

    def _giving(self, config: Config, target: Target) -> Giving:
        return Giving(
            self.backup.path / DATA,
            self.wanted.paths,
            target,
            config.ssh,
            self.wanted.overwrite,
            parents=self.wanted.parents,
            content=self.wanted.content,
            tell=self._tell,
        )

    def preview(self, *, content: bool = True) -> RestorePreview:
        """What would happen. Without `content`, for `run`, which compares it anyhow: contents of files are not read."""
        if self.giving:
            return self.giving.preview(content=content)
        assert self.request
        return preview(self._tree, self.request, self._reflinks, self._tell, content=content)

    def run(self, found: RestorePreview) -> Restored:
        """Does it, unless the preview forbids it."""
        require_possible(found)
        if self.giving:
            return self.giving.run(found)
        assert self.request
        return Restore(self._tree, self.request, found, self._tell).run()

    def places(self) -> list[tuple[bytes, bytes]]:
        """Each path that was asked for, with the place that it goes to."""
        if self.giving:
            to, whole = os.fsdecode(self.giving.target.folder), self.giving.whole
        else:
            assert self.request
            to, whole = str(self.request.to), self.request.parents
        return [(root.path, place_path(to, root.names)) for root in placed(self.wanted.paths, whole)]


def _is_on(to: Path, filesystem: str) -> bool:
    """Whether the folder, or where it is not there yet the one that it will be in, is on the pool's own btrfs."""
    while not to.exists() and to != to.parent:
        to = to.parent
    return is_on(to, filesystem)


def preview_object(doing: Doing, found: RestorePreview) -> dict[str, Any]:
    """A preview for programs. `possible` is false when `restore` would refuse it: something in the way, or no room."""
    why = ""
    try:
        require_possible(found)
    except OperatorError as error:
        why = error.message.splitlines()[0]
    return {
        **_backup(doing.backup),
        "to": found.to,
        "places": [{"path": os.fsdecode(path), **_place_object(place)} for path, place in doing.places()],
        "files": found.files,
        "folders": found.folders,
        "others": found.others,
        "bytes": found.size,
        **{what: count_object(count) for what, count in found.counts.items()},
        "needed_bytes": found.needed,
        "free_bytes": found.free,
        "reflinks": found.reflinks,
        "left_out": _left_out(found.withheld),
        "possible": not why,
        "why_not": why,
    }


def result_object(doing: Doing, found: RestorePreview, done: Restored) -> dict[str, Any]:
    """What came of a restore, for programs."""
    return {
        **_backup(doing.backup),
        "to": found.to,
        **{what: count_object(count) for what, count in done.counts.items()},
        "problems": count_object(done.problems),
        "differences": count_object(done.differences),
        "reflinked_bytes": done.reflinked,
        "copied_bytes": done.copied,
        "compared_bytes": done.compared,
        "left_out": _left_out(done.withheld),
        "seconds": round(done.seconds, 3),
        "good": done.good,
    }


def count_object(count: RestoreCount) -> dict[str, Any]:
    """How many, their bytes, and some of them."""
    return {
        "count": count.number,
        "bytes": count.size,
        "samples": [{**_place_object(place), "why": why} for place, why in count.samples],
    }


def _place_object(place: bytes) -> dict[str, str]:
    """A place that is safe to show; where that is not the name itself, it is there once more with all its bytes."""
    text = shown(place)
    return {"place": text} if text.encode() == place else {"place": text, "place_encoded": percent_encoded(place)}


def _left_out(withheld: Withheld) -> dict[str, Any]:
    found = {"devices": withheld.devices, "setuid": withheld.setuid, "capabilities": withheld.capabilities}
    return {name: count_object(count) for name, count in found.items()}


def _backup(backup: Restorable) -> dict[str, Any]:
    return {"host": backup.host, "name": backup.name, "state": backup.state}
