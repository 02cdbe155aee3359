"""The command that does what a request asks for. Pure but for the configuration that it is given."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backupd.files.tree import components
from backupd.files.wanted import ORIGINAL, Wanted, command_words
from backupd.serve.arguments import FOLDER, HOST, checked
from backupd.serve.requests import Asked
from backupd.serve.verbs import VERBS
from btrkeep.config import Config
from btrkeep.serving.protocol import Refused
from btrkeep.units import printable

_FOLDERS = (Path("/var/lib/btrkeep"), Path("/var/lib/btrkeep-web"), Path("/etc/btrkeep"), Path("/run/btrkeep"))


def command_of(asked: Asked, config: Config, program: Sequence[str]) -> tuple[str, ...]:
    """`program` is how a command line of backupd begins that is about the pool. Raises Refused when the request is none."""
    arguments = checked(asked.arguments, VERBS[asked.verb].arguments)
    if asked.verb == "run":
        words: tuple[str, ...] = ("run", "--", arguments["host"])
    else:
        words = command_words(wanted(arguments, config, asked.folder), dry_run=asked.verb == "preview")
    return (*program, words[0], *(("--now", asked.now) if asked.now else ()), *words[1:])


def wanted(arguments: Mapping[str, Any], config: Config, folder: str | None) -> Wanted:
    """A restore, from checked arguments. `folder` is where it goes on this machine.

    It goes to the very host, and nowhere else: whoever has taken over the dashboard must not have root write one host's files to
    another, or into a folder of this machine that he may choose. Raises Refused.
    """
    host, to = arguments["host"], arguments["to"]
    known = config.hosts.get(host)
    if to == FOLDER:
        if not folder:
            raise Refused(
                "this service restores into no folder of its machine",
                "its administrator may name one: backupd serve --restore-to DIR; or download the files",
                "refused",
            )
        where = folder
    elif not known:
        raise Refused(f"{host} is not configured, so it has no address", "download the files instead", "missing")
    elif to == HOST:
        if not known.address:
            _see_not_ours(arguments["paths"], config)
        where = ORIGINAL
    elif not known.address:
        raise Refused(f"{host} is this machine, of which no folder is written", "choose the paths where they were", "refused")
    else:
        where = f"{known.address}:{to.partition(':')[2]}"
    return Wanted(host, arguments["backup"], arguments["paths"], where, arguments["overwrite"], parents=to == FOLDER)


def _see_not_ours(paths: Sequence[bytes], config: Config) -> None:
    """Of this machine nothing is put back that btrkeep lives on: not the pool, not its records, not who may log in, and no folder
    that one of these is in. An old copy of them would take back what was forbidden since. Raises Refused.
    """
    ours = (config.pool.path, config.pool.state, config.file, config.file.with_suffix(".d"), *_FOLDERS)
    kept = [components(os.fsencode(one)) for path in ours for one in (path.absolute(), os.path.realpath(path))]
    for path in paths:
        names = components(path)
        if any(names[: len(one)] == one[: len(names)] for one in kept):
            raise Refused(
                f"{printable(path)} of this machine is one of btrkeep's own folders, or one of those is in it",
                "choose narrower paths, or do it as root: backupd restore",
                "refused",
            )


def folder_of(restore_to: Path | None, host: str, backup: str) -> str | None:
    """The folder for what is restored of a backup to this machine: one for each backup, so that what was stopped goes on."""
    return os.fspath(restore_to / f"{host}-{backup}") if restore_to else None
