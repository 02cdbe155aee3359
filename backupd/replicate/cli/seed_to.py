"""`backupd replicate --seed-to`: the newest backup of each host, written to a disk that is carried to the second server."""

import errno
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backupd.replicate.connecting import connected
from backupd.replicate.far_answers import FarHost
from backupd.replicate.far_pool import FarPool
from backupd.replicate.seed import SEED, STREAM, begin_seed, end_host, has_host, write_parts
from backupd.replicate.wire import Refused
from backupd.repo.common_backups import keep_seed
from backupd.repo.context import PoolContext
from btrkeep.backup_states import COMPLETE
from btrkeep.cli import complain, echo_json
from btrkeep.cli.progress import ProgressLine, prose
from btrkeep.config.problems import nearest
from btrkeep.config.sources import name_fault
from btrkeep.decisions.replication import FarBackup, Fetch
from btrkeep.errors import Exit, OperatorError, UsageError
from btrkeep.pool.locks import take_lock
from btrkeep.units import counted, format_size, format_time, parse_size, printable

_LEAST = 1 << 16  # bytes


def parse_part_size(text: str) -> int:
    """The length of a part, bytes. Raises ValueError."""
    size = parse_size(text)
    if size < _LEAST:
        raise ValueError(f"a part has {format_size(_LEAST)} at least")
    return size


def make_seed(
    context: PoolContext, folder: Path, name: str | None, hosts: Sequence[str], part_size: int, *, dry_run: bool, as_json: bool
) -> int:
    """Writes it. `name`: what this server calls the copy; the exit status: 1 when some host could not be sent."""
    if name is None or name_fault(name):
        raise UsageError(
            "say what this server calls the copy", "`replicate --seed-to FOLDER NAME`, as in `send-only --replica NAME`"
        )
    if folder.resolve().is_relative_to(context.pool.path):
        raise UsageError(f"{folder} is in the pool", "name a folder on the disk that is carried")
    said, status = list[dict[str, Any]](), int(Exit.OK)
    command = (sys.executable, "-m", "backupd", "--config", str(context.config.file), "send-only")
    with take_lock(context.pool.locks / "seed", "backupd replicate", format_time(context.clock.now())), connected(command) as far:
        listed = {host.name: host for host in far.hosts() if host.backups}
        if unknown := next((host for host in hosts if host not in listed), None):
            raise UsageError(f"there is no backup of {printable(unknown)} to send{nearest(unknown, listed)}")
        if not dry_run:
            _begin(folder, far.id)
        for host in (listed[one] for one in (hosts or listed)):
            newest = _newest(host)
            is_there = has_host(folder / host.name, newest.uuid)
            if not dry_run:
                keep_seed(context.pool, name, host.name, newest.name)
            one: dict[str, Any] = {"host": host.name, "backup": newest.name, "bytes": 0, "parts": 0, "already": is_there}
            try:
                if dry_run:
                    _say(f"{host.name}@{newest.name}: {'is there' if is_there else 'would be written'}", as_json)
                elif not is_there:
                    one |= _write(far, folder / host.name, host, newest, part_size, as_json)
                else:
                    _say(f"{host.name}@{newest.name}: is there", as_json)
            except Refused as error:
                one["error"], status = error.message, int(Exit.ATTENTION)
                complain(OperatorError(f"{host.name}: {error.message}"))
            except OSError as error:
                hint = "what is whole stays: the same command goes on from there, on a disk with more room if that was it"
                raise OperatorError(f"{error.filename or folder}: {error.strerror}", hint) from None
            said.append(one)
    if as_json:
        echo_json(said)
    elif not dry_run:
        size = sum(one["bytes"] for one in said)
        prose(f"{folder}: {counted(len(said), 'host')}, {format_size(size)} written; it is not encrypted")
    return status


def _begin(folder: Path, pool: str) -> None:
    try:
        begin_seed(folder, pool)
    except OSError as error:
        raise OperatorError(f"{error.filename or folder}: {error.strerror}", "is the disk mounted?") from None


def _newest(host: FarHost) -> FarBackup:
    """The newest complete one; without one the newest."""
    return max(host.backups, key=lambda one: (one.state == COMPLETE, one.name))


def _write(far: FarPool, folder: Path, host: FarHost, newest: FarBackup, part_size: int, as_json: bool) -> dict[str, Any]:
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link", str(folder))
    (folder / SEED).unlink(missing_ok=True)  # of an older backup, whose parts are written over
    announced, pieces = far.fetch(host.name, Fetch(newest, None), STREAM)
    with ProgressLine(is_shown=not as_json) as line:
        parts = write_parts(folder, pieces, part_size, lambda size: line.go_on(lambda: f"{host.name}: {format_size(size)}"))
    hold = [list(host.held[newest.name])] if newest.name in host.held else []
    copy_of = {"copy_of": host.copy_of} if host.copy_of else {}
    listed = {"was": list(host.was), "backups": [[newest.name, newest.uuid, newest.state, *hold]], **copy_of}
    said = {"notes": announced.notes, "bytes": announced.bytes, "stream": announced.stream}
    end_host(folder, listed, said, parts)
    size = sum(part.length for part in parts)
    _say(f"{host.name}@{newest.name}: {format_size(size)} in {counted(len(parts), 'part')}", as_json)
    return {"bytes": size, "parts": len(parts)}


def _say(text: str, as_json: bool) -> None:
    if not as_json:
        prose(text)
