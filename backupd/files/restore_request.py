"""A restore that is ready for its destination, as a command line, and as JSON.

A preview changes nothing. A preview of a restore to a host needs the network and the key, and takes as long as rsync does; if these
are not available, as in the root service, `command_words` is the command to start.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backupd.files.backup_selector import Restorable
from backupd.files.conflict_policy import KEPT, NEW, OVERWRITTEN, SAME
from backupd.files.destination import existing_folder, require_destination
from backupd.files.entry_words import shown
from backupd.files.placing import place_path
from backupd.files.restore_types import (
    ORIGINAL,
    RestoreCount,
    RestorePreview,
    RestoreRequest,
    RestoreResult,
    Tell,
    Withheld,
    target_of,
)
from backupd.files.suggestions import entry_at
from backupd.files.to_folder import LocalRestore
from backupd.files.tree import Tree, require_nothing_mounted
from backupd.repo.pool_files import damaged_paths
from btrkeep.config import Config, other_pools
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import Pool, is_on
from btrkeep.units import counted, format_size, percent_encoded

if TYPE_CHECKING:  # only a restore to a host needs asyncio and ssh: a quarter of a restore's start
    from backupd.files.to_host import HostRestore


_NO_OPTIONS = ("host", "backup", "paths", "to", "content")


def command_words(request: RestoreRequest, *, dry_run: bool = False, reach: bool = False) -> tuple[str, ...]:
    """Returns the words after `backupd` that start the restore, with JSON at the end and lines of progress. An option has the name
    of its field.
    """
    words = ["restore", "--json", "--progress-lines", *(["--dry-run"] if dry_run else []), *(["--reach"] if reach else [])]
    for name, attribute in RestoreRequest.__dataclass_fields__.items():
        value = getattr(request, name)
        if name not in _NO_OPTIONS and value != attribute.default:
            option, values = f"--{name.replace('_', '-')}", value if isinstance(value, tuple) else (value,)
            words += [option if item is True else f"{option}={item}" for item in values]
    words += ["--compare=metadata"] if not request.content else []
    # Without a value it means the host itself; a following -- is not its value.
    to_host = "--to-host" if request.to == ORIGINAL else f"--to-host={request.to}"
    words += [f"--to={request.to}" if request.to.startswith("/") else to_host]
    return (*words, "--", f"{request.host}@{request.backup}", *map(os.fsdecode, request.paths))


def prepared(
    config: Config, pool: Pool, backup: Restorable, tree: Tree, request: RestoreRequest, tell: Tell
) -> "LocalRestore | HostRestore":
    """Returns the requested restore from an open backup; nothing is done yet. Raises any OperatorError."""
    for path in request.paths:
        entry_at(tree, path, f"{backup.host}@{backup.name}")
        require_nothing_mounted(backup.path, path)
    if not request.to.startswith("/"):
        target = target_of(config, request.host, request.to, request.port)
        if target.host.address:
            from backupd.files.to_host import HostRestore

            return HostRestore(backup.path, request, target, config, tell)
        request = replace(request, to="/", parents=True, privileged=True)
    to, others = Path(request.to), other_pools(config)
    require_destination(pool, config.pool.state, to, others, anyway=request.anyway)
    reflinks = is_on(existing_folder(to), pool.filesystem)
    excluded = (pool.path, config.pool.state, *others)
    return LocalRestore(
        tree,
        request,
        reflinks=reflinks,
        excluded=excluded,
        damaged=damaged_paths(pool.host(backup.host), backup.name),
        trusted=not request.anyway,
        tell=tell,
    )


def places(restore: "LocalRestore | HostRestore") -> list[tuple[bytes, bytes]]:
    """Returns each requested path with its place."""
    return [(root.path, place_path(restore.to, root.names)) for root in restore.roots]


def preview_object(backup: Restorable, restore: "LocalRestore | HostRestore", preview: RestorePreview) -> dict[str, Any]:
    """Returns a preview for programs. `possible` is false if `restore` would refuse it because of existing files or free space."""
    why = ""
    try:
        preview.require_possible()
    except OperatorError as error:
        why = error.message.splitlines()[0]
    return {
        **_backup(backup),
        "to": preview.to,
        "places": [{"path": os.fsdecode(path), **_place_object(place)} for path, place in places(restore)],
        "files": preview.files,
        "folders": preview.folders,
        "others": preview.others,
        "bytes": preview.size,
        **{step: count_object(count) for step, count in preview.counts.items()},
        "needed_bytes": preview.needed,
        "free_bytes": preview.free,
        "reflinks": preview.reflinks,
        "left_out": _left_out(preview.withheld),
        "possible": not why,
        "why_not": why,
    }


def result_object(backup: Restorable, preview: RestorePreview, done: RestoreResult) -> dict[str, Any]:
    """Returns the result of a restore, for programs."""
    return {
        **_backup(backup),
        "to": preview.to,
        **{step: count_object(count) for step, count in done.counts.items()},
        "problems": count_object(done.problems),
        "differences": count_object(done.differences),
        "reflinked_bytes": done.reflinked,
        "copied_bytes": done.copied,
        "compared_bytes": done.compared,
        "left_out": _left_out(done.withheld),
        "seconds": round(done.seconds, 3),
        "good": done.good,
    }


def result_words(result: Mapping[str, Any]) -> str:
    """Returns the result of `result_object` in one sentence: what was written, what was compared, what failed. Raises KeyError and
    TypeError for an object of another version.
    """
    written = [
        (result[step]["count"], words)
        for step, words in ((NEW, "restored"), (OVERWRITTEN, "replaced"), (SAME, "already the same"), (KEPT, "kept"))
        if result[step]["count"]
    ]
    first = [f"{counted(count, 'file')} {words}" for count, words in written[:1]] or ["no file restored"]
    parts = [", ".join([*first, *(f"{count:,} {words}" for count, words in written[1:])])]
    shared = f"{format_size(result['reflinked_bytes'])} shared with the backup, " if result["reflinked_bytes"] else ""
    differences = result["differences"]["count"]
    words = counted(differences, "difference") if differences else "no difference"
    parts.append(f"{format_size(result['compared_bytes'])} read again and compared, {shared}{words}")
    if problems := result["problems"]["count"]:
        parts.append(f"{counted(problems, 'file')} could not be restored")
    if withheld := sum(count["count"] for count in result["left_out"].values()):
        parts.append(f"{counted(withheld, 'file')} without privileges or left out")
    return "; ".join(parts)


def count_object(count: RestoreCount) -> dict[str, Any]:
    """Returns the number, the bytes and some samples."""
    return {
        "count": count.number,
        "bytes": count.size,
        "samples": [{**_place_object(place), "why": why} for place, why in count.samples],
    }


def _place_object(place: bytes) -> dict[str, str]:
    """Returns a place that is safe to show, and, if that differs from the name, all its bytes."""
    text = shown(place)
    return {"place": text} if text.encode() == place else {"place": text, "place_encoded": percent_encoded(place)}


def _left_out(withheld: Withheld) -> dict[str, Any]:
    counts = {"devices": withheld.devices, "setuid": withheld.setuid, "capabilities": withheld.capabilities}
    return {name: count_object(count) for name, count in counts.items()}


def _backup(backup: Restorable) -> dict[str, Any]:
    return {"host": backup.host, "name": backup.name, "state": backup.state}
