"""The command that does what a request asks for. Pure but for the configuration that it is given."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backupd.files.restore_request import command_words
from backupd.files.restore_types import ORIGINAL, RestoreRequest
from backupd.files.tree import components
from backupd.serve.jobs import PREVIEW, RESTORE, RUN, ServeRequest
from backupd.serve.request_checks import FOLDER, HOST, checked
from backupd.serve.verbs import VERBS
from btrkeep.config import Config, other_pools
from btrkeep.hung_storage import require_answer
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import printable

_STATE = (
    Path("/var/lib/btrkeep"),
    Path("/var/lib/btrkeep-web"),
    Path("/var/lib/btrkeep-login"),
    Path("/etc/btrkeep"),
    Path("/run/btrkeep"),
)
_FOLDERS = (*_STATE, Path("/opt/btrkeep"), Path(sys.prefix))  # the last two are the program


def command_of(asked: ServeRequest, config: Config, program: Sequence[str]) -> tuple[str, ...]:
    """`program` is how a command line of backupd begins that is about the pool. Raises RequestRefused when the request is none."""
    arguments = checked(asked.arguments, VERBS[asked.verb].arguments)
    if asked.verb == RUN:
        words: tuple[str, ...] = ("run", "--wait", "--", arguments["host"])
    else:
        allowed = RestorePermissions(asked.folder, asked.elsewhere, asked.in_place)
        words = command_words(restore_request(arguments, config, allowed), dry_run=asked.verb == PREVIEW)
    who = (f"--asked-by={asked.who}",) if asked.verb == RESTORE else ()
    return (*program, words[0], *(("--now", asked.now) if asked.now else ()), *who, *words[1:])


@dataclass(frozen=True, slots=True)
class RestorePermissions:
    """What the administrator lets the service do besides restoring to a host where its files were.

    `folder`: where a restore into a folder of this machine goes. `elsewhere`: into other folders of its host. `in_place`: folders
    of this machine, as absolute paths, below which the files of a host that is this machine may be put back.
    """

    folder: str | None = None
    elsewhere: bool = False
    in_place: tuple[str, ...] = ()


def restore_request(arguments: Mapping[str, Any], config: Config, allowed: RestorePermissions) -> RestoreRequest:
    """A restore, from checked arguments.

    It goes to the very host and to where its files were: a file that an attacker has put anywhere on a host would otherwise be
    what he likes in a place that he likes, /etc/cron.d or /root/.ssh, written by root. An attacker who has taken over the
    dashboard must not have that either, nor have one host's files written to another, nor into a folder of this machine that he
    may choose.

    Raises RequestRefused.
    """
    host, to = arguments["host"], arguments["to"]
    host_config, only_below = config.hosts.get(host), tuple[str, ...]()
    if to == FOLDER:
        if not allowed.folder:
            raise RequestRefused(
                "this service may not restore into folders of its machine",
                "an administrator can allow a folder: backupd serve --restore-to DIR; or download the files",
                "refused",
                is_public=True,
            )
        where, only_below = allowed.folder, (str(Path(allowed.folder).parent),)
    elif not host_config:
        raise RequestRefused(
            f"{host} is not configured, so it has no address", "download the files instead", "missing", is_public=True
        )
    elif to == HOST:
        if not host_config.address:
            _require_in_place(arguments["paths"], allowed.in_place)
            _require_not_ours(arguments["paths"], config)
            only_below = allowed.in_place
        where = ORIGINAL
    elif not host_config.address:
        raise RequestRefused(
            f"{host} is this server: restoring into a folder is not allowed",
            "restore to the original paths",
            "refused",
            is_public=True,
        )
    elif not allowed.elsewhere:
        raise RequestRefused(
            "this service restores only to the original places on a host",
            "an administrator can allow it: backupd serve --restore-elsewhere; or download the files",
            "refused",
            is_public=True,
        )
    else:
        where = f"{host_config.address}:{to.partition(':')[2]}"
    return RestoreRequest(
        host,
        arguments["backup"],
        arguments["paths"],
        where,
        arguments["overwrite"],
        parents=to == FOLDER,
        only_below=only_below,
    )


def _require_in_place(paths: Sequence[bytes], in_place: Sequence[str]) -> None:
    """Allows restores to this machine only below folders that the administrator has named. Raises RequestRefused."""
    allowed = [components(os.fsencode(folder)) for folder in in_place]
    for path in paths:
        names = components(path)
        if not any(names[: len(allowed_path)] == allowed_path for allowed_path in allowed):
            raise RequestRefused(
                f"{printable(path)} is on this machine, but not below a folder that this service may restore",
                "an administrator can allow one: backupd serve --restore-below DIR; or restore as root: backupd restore",
                "refused",
                is_public=True,
            )


def _require_not_ours(paths: Sequence[bytes], config: Config) -> None:
    """Refuses to restore on this machine what btrkeep itself depends on: the pool, its records, the users, and folders that
    contain one of these. An old copy of them could allow what has been forbidden since. Raises RequestRefused, and OperatorError
    if one of them does not answer: where its symlinks lead cannot be checked then.
    """
    ours = (config.pool.path, config.pool.state, config.file, config.file.with_suffix(".d"), *other_pools(config), *_FOLDERS)
    for folder in ours:
        require_answer(folder)
    kept = [components(os.fsencode(place)) for folder in ours for place in (folder.absolute(), os.path.realpath(folder))]
    for path in paths:
        names = components(path)
        if any(names[: len(kept_path)] == kept_path[: len(names)] for kept_path in kept):
            raise RequestRefused(
                f"{printable(path)} of this machine is a folder of btrkeep, or contains one",
                "choose narrower paths, or restore as root: backupd restore",
                "refused",
                is_public=True,
            )


def folder_of(restore_to: Path | None, host: str, backup: str) -> str | None:
    """The folder for what is restored of a backup to this machine: one for each backup, so that what was stopped goes on."""
    return os.fspath(restore_to / f"{host}-{backup}") if restore_to else None
