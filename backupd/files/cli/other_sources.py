"""Names other copies when a backup cannot be read from this pool: the server to ask, or the line of restic that gets it back."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from btrkeep.config import Config
from btrkeep.config.model import OffsiteSettings
from btrkeep.config.secret import without_credentials
from btrkeep.errors import OperatorError
from btrkeep.units import parse_backup_name

if TYPE_CHECKING:  # only after an error
    from btrkeep.decisions.copies import KnownCopies
    from btrkeep.decisions.other_copies import OtherCopy

_TOP = "/btrkeep/data"  # where restic has the host's /: the cell of backupd.offsite.restic shows it there
_TARGET = "/mnt/restored"
_PATTERN = {ord(letter): f"\\{letter}" for letter in "\\*?["}


@contextmanager
def naming_copies(config: Config, host: str, which: str, paths: Sequence[str], to: str) -> Iterator[None]:
    """Adds notes to an OperatorError from within that name other copies of the host. `to`: the folder to restore to, or ""."""
    try:
        yield
    except OperatorError as error:
        for line in _lines(config, host, which, paths, to):
            error.add_note(line)
        raise


def _lines(config: Config, host: str, which: str, paths: Sequence[str], to: str) -> Iterator[str]:
    from btrkeep.decisions.other_copies import other_copies

    known, pool_id, offsite = _known(config)
    copies = other_copies(config.copies, known, offsite, host)
    if copies:
        yield f"other copies of {host}:"
    for one in copies:
        newest = f"the newest there is {one.newest}" if one.newest else "its newest backup there is not known here"
        if one.offsite is None:
            yield f"  {_server(one)}: {newest}; there: {_restore_words(host, which, paths)}"
            continue
        yield f"  offsite {one.name}: {newest}; it comes back below {to or _TARGET}{_TOP}:"
        yield "    " + restic_line(one.offsite, pool_id, host, which, paths, to or _TARGET)
        if which and not parse_backup_name(which):
            yield "    in place of `latest` an id of: " + restic_call(one.offsite, ["snapshots", *_whose(pool_id, host)])


def _server(one: "OtherCopy") -> str:
    from btrkeep.decisions.copies import REPLICA

    if one.kind == REPLICA:
        return f"the pool that replica {one.name} is fetched from ({one.place})"
    return f"the server that has the copy {one.name}" + (f" ({one.place})" if one.place else "")


def _restore_words(host: str, which: str, paths: Sequence[str]) -> str:
    return shlex.join(["backupd", "restore", f"{host}@{which}" if which else host, *paths, "--to", _TARGET])


def restic_line(offsite: OffsiteSettings, pool_id: str | None, host: str, which: str, paths: Sequence[str], target: str) -> str:
    """Returns the shell line that restores paths of a host from a repository. A backup that is named in full is chosen by its tag;
    otherwise the newest there is taken. Secrets are named by their files.
    """
    backup = f"backup:{which}" if which and parse_backup_name(which) else ""
    words = ["restore", "latest", *_whose(pool_id, host, backup)]
    for path in paths:
        words += ["--include", _TOP + path.rstrip("/").translate(_PATTERN)]
    return restic_call(offsite, [*words, "--target", target])


def _whose(pool_id: str | None, host: str, *more: str) -> list[str]:
    tags = ["btrkeep", f"pool:{pool_id}" if pool_id else "", *more]
    return ["--host", host, "--tag", ",".join(filter(None, tags))]


def restic_call(offsite: OffsiteSettings, words: Sequence[str]) -> str:
    """Returns the shell line of a command of restic to this repository."""
    options = ["-r", without_credentials(offsite.repository)] if offsite.repository else []
    options += ["-p", str(offsite.password_file)] if offsite.password_file else []
    line = shlex.join(["restic", *options, *words])
    return f"(set -a; . {shlex.quote(str(offsite.environment_file))}; {line})" if offsite.environment_file else line


def _known(config: Config) -> tuple["KnownCopies | None", str | None, dict[str, dict[str, str]]]:
    """Returns what the catalogue knows: copies, the pool's id, and the newest backups offsite. All is empty if it is gone."""
    from btrkeep.catalogue import Catalogue  # only after an error: it takes half of a command's start
    from btrkeep.decisions.copies import COPIES, copies_of, offsite_newest

    try:
        with Catalogue.open_readonly(config.pool.state) as catalogue:
            offsite = {name: offsite_newest(catalogue, name) for name in config.offsites}
            return copies_of(catalogue.get_fact(COPIES)), catalogue.pool_id(), offsite
    except OperatorError:
        return None, None, {}
