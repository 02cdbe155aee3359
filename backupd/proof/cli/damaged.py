"""`backupd damaged`: lists the damaged files, the backups that have them, and whether there is another copy."""

from collections.abc import Iterable, Sequence
from itertools import groupby

import click

from backupd.cli.command_context import opened, pass_context
from backupd.cli.names import backups_argument, require_host_or_folder
from backupd.files.backup_selector import find, parse_which
from backupd.proof.damaged_files import DamagedFile, damaged_files
from backupd.proof.read_errors import check_read_errors
from backupd.repo.pool_context import PoolContext
from btrkeep.catalogue import Damage
from btrkeep.cli import json_option, print_error, print_listing
from btrkeep.cli.listings import Column, listing
from btrkeep.cli.output import print_wrapped
from btrkeep.errors import Exit, OperatorError
from btrkeep.units import counted, format_size, local_time, printable


@click.command("damaged")
@backups_argument
@json_option
@pass_context
def command(ctx: click.Context, which: tuple[str, ...], as_json: bool) -> int:
    """List the damaged files of all backups, or of each HOST, or HOST@BACKUP.

    Shows what `backupd scrub` and `backupd verify` found: a line for each file, with all backups that have it. BYTES is the
    number of bytes known to be damaged. ANOTHER COPY is a backup of the host that stores the file separately. It has the same
    recorded checksum (by checksum), or only the same path, size and time, which proves nothing. It can also be a replica that has
    one of the backups, or the next night, which fetches a damaged file of the newest complete backup again.

    New read errors of the devices are first taken from the kernel's log.

    Exit status 0: nothing is damaged; 1: there is damage, or the catalogue, which records it, was lost.
    """
    with opened(ctx) as context:
        unnamed = _unexplained_errors(context)
        rows: list[Damage] = []
        for text in which or ("",):
            host, name = parse_which(text)
            if which:
                require_host_or_folder(context, host)
            rows += context.catalogue.damages(host or None, find(context.pool, host, name).name if name else None)
        damaged = damaged_files(context, (row for row in dict.fromkeys(rows) if row.fate is None))
    print_listing(COLUMNS, damaged, as_json=as_json, empty="" if context.lost else "no damaged files are recorded")
    if unnamed and not as_json:
        print_wrapped(unnamed)
    return int(Exit.ATTENTION if damaged or context.lost else Exit.OK)


def _unexplained_errors(context: PoolContext) -> str:
    """Formats the number of errors that no message of the kernel explains."""
    try:
        read_errors = check_read_errors(context, context.clock.now())
    except OperatorError as error:  # of the catalogue: the readable part is shown
        print_error(error)
        return ""
    except OSError as error:
        print_error(OperatorError(f"errors of the devices could not be read: {error}", "`backupd verify` finds the damaged files"))
        return ""
    if not read_errors.seen.unnamed or not read_errors.seen.since:
        return ""
    why = f" ({read_errors.why})" if read_errors.why else ""
    errors = counted(read_errors.seen.unnamed, "read error")
    return (
        f"the devices have counted {errors} since {local_time(read_errors.seen.since)}, but the kernel's log does "
        f"not name the files{why}: `backupd scrub` finds them"
    )


def show(damaged: Sequence[DamagedFile], most: int) -> None:
    """Prints the first rows of the table, and the number of further ones."""
    click.echo(listing(COLUMNS, damaged[:most]))
    if len(damaged) > most:
        print_wrapped(f"and {counted(len(damaged) - most, 'file')} more: `backupd damaged`")


def _copy(damaged_file: DamagedFile) -> str:
    here = [f"{damaged_file.proven[-1]} (by checksum)"] if damaged_file.proven else list(damaged_file.similar[-1:])
    replicas = [f"the replica {printable(name)}" for name in damaged_file.replicas]
    copies = [*here, *replicas, *(["the next night"] if damaged_file.next_night else [])]
    return ", ".join(copies) or "none known"


def ranges(chosen: Iterable[str], all_names: Sequence[str]) -> str:
    """Formats names of backups; those that follow one another in `all_names` as first..last (number)."""
    place = {name: number for number, name in enumerate(all_names)}
    numbered = sorted((place.get(name, -1), name) for name in chosen)
    words = []
    for _, group in groupby(enumerate(numbered), key=lambda pair: pair[1][0] - pair[0] if pair[1][0] >= 0 else -1 - len(numbered)):
        names = [name for _, (_, name) in group]
        words.append(names[0] if len(names) == 1 else f"{names[0]}..{names[-1]} ({len(names)})")
    return ", ".join(words)


COLUMNS: tuple[Column[DamagedFile], ...] = (
    Column("host", lambda file: file.host, "HOST"),
    Column("path", lambda file: file.path, "PATH"),
    Column("backups", header="BACKUPS", cell=lambda file: ranges(file.backups, file.known), json=lambda file: file.backups),
    Column("places", lambda file: [{"start": start, "length": length or None} for start, length in file.places]),
    Column(header="BYTES", cell=lambda file: format_size(file.bytes) if file.bytes else "?", right=True),
    Column("found_by", lambda file: file.found_by, "FOUND BY", ", ".join, spare=True),
    Column("found_at", lambda file: file.found_at),
    Column("similar", lambda file: file.similar),
    Column("proven", lambda file: file.proven),
    Column("replicas", lambda file: file.replicas),
    Column("next_night", lambda file: file.next_night),
    Column(header="ANOTHER COPY", cell=_copy),
)
