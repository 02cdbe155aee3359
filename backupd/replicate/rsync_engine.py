"""One backup fetched by rsync (`engine = "rsync"`): for pools where `btrfs send` is slow. docs/decisions/0053 says why it is so.

A writable snapshot of the newest copy that both pools have, or an empty subvolume, lies in `.receiving`; rsync makes it the same
as the other pool's backup. Then it is marked as the copy of that one's UUID, in the subvolume itself, as `btrfs receive` does. So
everything that knows a received copy knows this one: what becomes of a copy that was changed, a chain of pools, the way back, and
`btrfs send`, which can go on from it.

Sparse files get their length first, so that their zeros need not come. A hard link that the other pool's backup does not have any
more is split before rsync runs; afterwards zeros become holes.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from backupd.actions.drop_damaged import drop_damaged
from backupd.replicate.connecting import own_modules, replica_buckets
from backupd.replicate.far_answers import CopyAnnouncement
from backupd.replicate.far_pool import FarPool
from backupd.replicate.inherited_damage import recorded_damages
from backupd.replicate.marked import take_notes
from backupd.replicate.naming import Expected, NotReceived, publish_copy
from backupd.replicate.outcome import ReplicationContext
from backupd.replicate.sparse_files import lengthen
from backupd.replicate.wire import ConnectionBroken, UnreadableThere
from backupd.repo.hardlinks import split_hard_links
from backupd.repo.holes import punch, punch_written
from backupd.repo.received import RECEIVING, discard_received
from backupd.repo.room import require_room
from backupd.rsync.command import METADATA, remote_shell, shell_command
from backupd.rsync.confined import ConfinedTransfer
from backupd.rsync.messages import tells_of_damage
from backupd.rsync.output import Output
from backupd.rsync.process import RsyncEnd, RunCancellation, transfer
from backupd.rsync.remote_end import RemoteEnd, expected_words
from btrkeep.causes import Cause, CauseCode
from btrkeep.checkpoints import Checkpoint
from btrkeep.config import HostConfig, SshSettings
from btrkeep.decisions.pool_room import MAKE_ROOM
from btrkeep.decisions.replication import Fetch
from btrkeep.decisions.rsync_meaning import meaning
from btrkeep.decisions.stream_limit import longest_stream
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool.locks import Lock
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import create, inodes_made, set_received, snapshot
from btrkeep.pool.syncfs import syncing
from btrkeep.process.proc import become_reaper, members, physical_memory
from btrkeep.units import format_duration, format_size

_SUBVOLUME = "backup"
_LOOK = 0.5  # seconds between two looks
_PARTIAL = 23  # rsync's exit status
_STALL_OF_CHECKSUMS = 6 * 3600.0  # seconds: while a large file is read for its checksum nothing comes
_SPAN, _LEAST = 7200.0, 4 << 20  # seconds, bytes: as for streams
_CHECKSUMS_TAKE = 12  # times as long
_OWN_READS = 3  # times the longest stream that rsync may read in all: it also reads files of its own, with checksums some twice
_MAY_SAY, _FOR_EACH_FILE = 1 << 20, 512  # bytes that rsync may print


@dataclass(frozen=True, slots=True)
class _FarEnd:
    """Where rsync finds the other side: the host as rsync knows it, its remote shell, and the words that rsync adds to that."""

    host: HostConfig
    shell: tuple[str, ...]
    expected: tuple[str, ...]


def copying_command(
    far: HostConfig, backup: str, shell: tuple[str, ...], folder: str, *, based: bool, checksums: bool
) -> tuple[str, ...]:
    """The rsync that makes `folder` the same as the other side's `backup` (HOST/NAME/UUID). `based`: it is a snapshot of a copy."""
    return (
        "rsync",
        *METADATA,
        "--delete-delay",
        "--modify-window=-1",
        *(("--checksum",) if checksums else ()),
        *(("--inplace", "--no-whole-file") if based else ("--sparse",)),
        "--no-human-readable",
        "--outbuf=L",
        "--info=progress2,stats2",
        *remote_shell(far, SshSettings(), (), shell),
        f"{far.address or 'localhost'}:{backup}/",
        f"{folder}/",
    )


def fetch_by_rsync(
    context: ReplicationContext, far: FarPool, lock: Lock, host: str, fetch: Fetch, follow: Callable[[int], None]
) -> int:
    """Fetches one backup and gives it its name; returns the bytes that came. `follow` takes how many there are so far.

    `lock` is the host's; rsync has it as long as it lives. Raises OperatorError, OSError; then nothing of the backup is left.
    """
    told = far.announce_copy(host, fetch)
    require_room(context.pool, context.config)
    take_notes(context.pool, host, fetch.backup.name, told, context.replica, context.now)  # first: it comes but once
    expected = Expected.of(host, fetch)
    folder = context.pool.host(host) / RECEIVING
    path = folder / _SUBVOLUME
    folder.mkdir(mode=0o700)
    with syncing(context.pool.path) as disk:
        try:
            if fetch.parent:
                parent = context.pool.host(host) / fetch.parent.name
                snapshot(parent, path)
                split_hard_links(path, cancelled=context.cancellation)
                drop_damaged(path, parent, _damaged_paths(context.pool, host, fetch.parent.name))
            else:
                create(path)
            lengthened = lengthen(path, told.sparse, context.cancellation)
            copying = _Copying(context, far, lock, expected, told, follow)
            with asyncio.Runner() as runner:
                size = runner.run(copying.run(str(path)))
            if fetch.parent:
                punch(path, lengthened, cancelled=context.cancellation, shortest=1)
                punch_written(path, context.cancellation)
            copying.require_going()
            disk.sync()
            set_received(path, expected.uuid, told.transid)
            publish_copy(context.pool, expected, path, disk)
        finally:
            with contextlib.suppress(OSError):
                discard_received(context.pool, host)
    return size


class _Copying:
    """One rsync, watched."""

    def __init__(
        self,
        context: ReplicationContext,
        far: FarPool,
        lock: Lock,
        expected: Expected,
        told: CopyAnnouncement,
        follow: Callable[[int], None],
    ) -> None:
        self.context, self.far, self.lock, self.expected, self.told, self.follow = context, far, lock, expected, told, follow
        self.checksums = expected.again or not told.size_and_time
        self._error: OperatorError | OSError | None = None
        self._said, self._may_say = 0, _MAY_SAY
        self._bytes = 0

    def require_going(self) -> None:
        """Raises OperatorError when the replication is to end."""
        self.far.look()

    async def run(self, path: str) -> int:
        """Returns the bytes that came. Raises OperatorError, OSError."""
        become_reaper()  # the cell's first process outlives the one that we started
        self._path = path
        self._stopper = RunCancellation()
        watching = asyncio.create_task(self._watch())
        with ExitStack() as held:
            try:
                command, cell = self._command(held)
                stall = max(self.context.replica.stall, _STALL_OF_CHECKSUMS if self.checksums else 0)
                with Checkpoint("copied by rsync"):
                    ended = await transfer(command, self.lock, self._stopper, stall, self._take, self._hear, cell)
            finally:
                watching.cancel()
        if self._error:
            raise self._error
        self._require_well(ended)
        return ended.output.numbers.get("received", self._bytes)

    def _command(self, held: ExitStack) -> tuple[tuple[str, ...], ConfinedTransfer | None]:
        end = far_end(self.context)
        one = self.expected
        based = one.parent is not None

        def command(shell: tuple[str, ...]) -> tuple[str, ...]:
            backup = f"{one.host}/{one.name}/{one.uuid}"
            return copying_command(end.host, backup, shell, self._path, based=based, checksums=self.checksums)

        if not self.context.confined:
            return command(end.shell), None
        memory = end.host.max_memory.bytes_of(physical_memory())
        cell = held.enter_context(ConfinedTransfer(RemoteEnd(end.shell, end.expected, memory)))
        return cell.command(command(cell.remote.words), self._path), cell

    def _take(self, output: Output) -> None:
        self._bytes = output.progress.bytes
        self.follow(self._bytes)

    def _hear(self, data: bytes) -> bool:
        """True if the line is to be read: the other side can print anything, without end."""
        self._said += len(data)
        if self._said > self._may_say:
            with contextlib.suppress(OSError):
                self._may_say = _MAY_SAY + _FOR_EACH_FILE * inodes_made(
                    self.context.pool.host(self.expected.host) / RECEIVING / _SUBVOLUME
                )
        if self._said > self._may_say:
            self._stop(ConnectionBroken("the other side prints without end"))
        return self._said <= self._may_say

    def _stop(self, error: OperatorError | OSError) -> None:
        self._error = self._error or error
        self._stopper.cancel_for(Cause(CauseCode.STOPPED))

    async def _watch(self) -> None:
        """Ends the transfer when the replication ends, when there is no room, and when nearly nothing or far too much comes."""
        span = _SPAN * (_CHECKSUMS_TAKE if self.checksums else 1)
        since, had = time.monotonic(), 0
        while True:
            await asyncio.sleep(_LOOK)
            try:
                self.require_going()
                longest = _OWN_READS * longest_stream(self.told.total, require_room(self.context.pool, self.context.config).total)
            except (OperatorError, OSError) as error:
                self._stop(error)
                return
            has = self._read()
            if has > longest:  # zeros need no room, so `min_free` does not end them
                one = self.expected
                why = f"{one.host}@{one.name}: more than {format_size(longest)} came or was compared, so it has no end"
                self._stop(NotReceived(why, "look at the other server: no backup is that long"))
                return
            if has - had >= _LEAST:
                since, had = time.monotonic(), has
            elif time.monotonic() - since > span:
                self._stop(ConnectionBroken(f"less than {format_size(_LEAST)} came in {format_duration(span)}"))
                return

    def _read(self) -> int:
        """Bytes that rsync's processes have read so far."""
        group = self._stopper.group
        return sum(one.read_bytes for one in members(group.pid) if one.name == "rsync") if group else 0

    def _require_well(self, ended: RsyncEnd) -> None:
        """Raises NotReceived unless all came."""
        if not ended.exit_code and not ended.stopped:
            return
        said = list(ended.messages.last)
        if ended.exit_code == _PARTIAL and any(map(_is_unreadable_there, said)):
            raise UnreadableThere(f"{self.expected.host}@{self.expected.name} cannot be sent: Input/output error")
        means = meaning(ended.exit_code, said)
        why = next((line.removeprefix("error: ") for line in said if line.startswith("error: ")), means.line)
        words = f"rsync: {why or means.words}" if ended.exit_code else "rsync was stopped"
        if any("No space left on device" in line and "receiver" in line.lower() for line in said):
            raise PoolUnusable(f"{self.context.pool.path} is full", MAKE_ROOM)
        raise NotReceived(f"{self.expected.host}@{self.expected.name}: {words}")


def _is_unreadable_there(line: str) -> bool:
    return "[sender]" in line and tells_of_damage(line)


def _damaged_paths(pool: Pool, host: str, name: str) -> list[bytes]:
    """Returns the files that are known to be damaged in a backup: rsync, which goes by size and time, would keep them."""
    return sorted({os.fsencode(row.path) for row in recorded_damages(pool, host, name)})


def far_end(context: ReplicationContext) -> _FarEnd:
    """Returns where rsync finds the other pool of this replica."""
    replica, config = context.replica, context.config
    if replica.folder:
        host = HostConfig(replica.name)
        modules = [f"{name}={value}" for name, value in own_modules().items()]
        shell = ("env", *modules, sys.executable, "-m", "backupd", "send-only", "--path", str(replica.folder), "--")
        return _FarEnd(host, shell, ("localhost", "rsync", "--server", "--sender"))
    host = HostConfig(
        replica.name,
        address=replica.address,
        port=replica.port,
        ssh_options=replica.ssh_options,
        rsync_path=f"backupd --pool {replica.pool_name} send-only --",
    )
    buckets = replica_buckets(config, context.pool, replica)
    return _FarEnd(host, shell_command(host, config.ssh, buckets), expected_words(host))
