"""The command for a request. Pure, except that it uses the configuration that it is given."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backupd.files.restore_request import command_words
from backupd.files.restore_types import ORIGINAL, RestoreRequest
from backupd.files.tree import components
from backupd.serve.jobs import CHECKS, REACH, RESTORE, RUN, ServeRequest
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
_FOLDERS = (*_STATE, Path("/opt/btrkeep"), Path(sys.prefix))  # the last two contain the program


def command_of(asked: ServeRequest, config: Config, program: Sequence[str]) -> tuple[str, ...]:
    """`program`: the start of a command line of backupd for the pool. Raises RequestRefused if the request is not allowed."""
    arguments = checked(asked.arguments, VERBS[asked.verb].arguments)
    if asked.verb == RUN:
        words: tuple[str, ...] = ("run", "--wait", "--", arguments["host"])
    else:
        allowed = RestorePermissions(asked.folder, asked.elsewhere, asked.in_place)
        request = restore_request(arguments, config, allowed)
        words = command_words(request, dry_run=asked.verb in CHECKS, reach=asked.verb == REACH)
    who = (f"--asked-by={asked.who}",) if asked.verb == RESTORE else ()
    return (*program, words[0], *(("--now", asked.now) if asked.now else ()), *who, *words[1:])


@dataclass(frozen=True, slots=True)
class RestorePermissions:
    """Restores that the administrator allows the service, in addition to restores to the original place on the same host.

    `folder`: for restores to a folder of this machine. `elsewhere`: restores to other folders of the host. `in_place`: absolute
    paths of folders of this machine, below which files of a host that is this machine may be restored to their original place.
    """

    folder: str | None = None
    elsewhere: bool = False
    in_place: tuple[str, ...] = ()


def restore_request(arguments: Mapping[str, Any], config: Config, allowed: RestorePermissions) -> RestoreRequest:
    """Returns the command of a restore, from checked arguments.

    A restore goes to the same host and to the original place of its files: otherwise a file that an attacker has put anywhere on a
    host could be written by root to a place that he chooses, such as /etc/cron.d or /root/.ssh. An attacker who has taken over the
    dashboard must not be able to do that either, nor to write one host's files to another host, or to a folder of this machine that
    he chooses.

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
    """Refuses to restore on this machine what btrkeep itself depends on: the pool, its records, the users, and folders that contain
    one of these. An old copy of them could allow what has been forbidden since. Raises RequestRefused, and OperatorError if one of
    these folders does not answer, because then its symlinks cannot be checked.
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
    """Returns the folder for restores of a backup to this machine: one for each backup, so that a stopped restore
    continues there.
    """
    return os.fspath(restore_to / f"{host}-{backup}") if restore_to else None
