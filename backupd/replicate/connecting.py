"""How the other pool is reached: the command that answers for it, and connections by it."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from backupd.replicate.far_pool import FarPool, FarPoolMissing
from backupd.rsync.bandwidth import Bucket, prepare, relay_command
from backupd.rsync.command import ssh_command
from btrkeep.config import Config, HostConfig
from btrkeep.config.keys import DEFAULTS
from btrkeep.config.model import PushSettings, ReplicaSettings
from btrkeep.pool.marker import Pool
from btrkeep.process.piped import PipedProgram, piped
from btrkeep.process.programs import ProgramFailed


def replica_buckets(config: Config, pool: Pool, replica: ReplicaSettings) -> list[Bucket]:
    """The bandwidth budgets of what the replica fetches: its own, and over a network the one of all transfers."""
    shared = None if replica.folder else config.backup.bandwidth
    rates = (("pool", shared), (f"replica-{replica.name}", replica.bandwidth))
    return [prepare(pool.bandwidth, name, rate) for name, rate in rates if rate]


def replica_command(
    config: Config, pool: Pool, replica: ReplicaSettings, *, seed: Path | None = None, is_limited: bool = True
) -> tuple[str, ...]:
    """The command that answers for what a replica is fetched from: the other pool, within the budgets if it `is_limited`, or a
    seed.
    """
    if seed:
        return seed_command(seed)
    return send_command(config, replica, replica_buckets(config, pool, replica) if is_limited else [])


def send_command(config: Config, replica: ReplicaSettings, buckets: Sequence[Bucket]) -> tuple[str, ...]:
    """The command that answers for the other pool, within a bandwidth budget."""
    if replica.folder:
        return relay_command(buckets, (sys.executable, "-m", "backupd", "send-only", "--path", str(replica.folder)))
    remote = f"backupd --pool {replica.pool_name} send-only"
    return (*relay_command(buckets, remote_shell(config, replica)), replica.address or "", remote)


def seed_command(folder: Path) -> tuple[str, ...]:
    """The command that answers for a seed."""
    return (sys.executable, "-m", "backupd", "send-only", "--seed", str(folder))


def push_command(config: Config, push: PushSettings) -> tuple[str, ...]:
    """The command that has the other server ask for what it wants. A forced command there says by itself which replica it is."""
    remote = f"backupd --pool {push.pool_name} receive-only --replica {push.name}"
    return (*remote_shell(config, push), push.address, remote)


def remote_shell(config: Config, replica: ReplicaSettings | PushSettings) -> Sequence[str]:
    """The words of ssh up to the address."""
    host = HostConfig(replica.name, address=replica.address, port=replica.port, ssh_options=replica.ssh_options)
    return ssh_command(host, config.ssh)


def own_modules() -> dict[str, str]:
    """This program's own modules are found where they are now, also in a checkout."""
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class Connections:
    """Connections to the other pool, each by that command. A context, in which the program for the first one runs from the
    beginning: it gets ready while this side does. Raises FarPoolMissing.
    """

    def __init__(self, command: Sequence[str], patience: float = DEFAULTS["stall"]) -> None:
        self._command, self._patience = command, patience
        self._held = ExitStack()
        self._first: PipedProgram | None = None

    def __enter__(self) -> "Connections":
        self._first = self._begin(self._held)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @contextmanager
    def connect(self, look: Callable[[], None]) -> Iterator[FarPool]:
        """Makes a connection, of what it calls now and then. Raises FarPoolMissing."""
        first, self._first = self._first, None
        with ExitStack() as held:
            yield FarPool(first or self._begin(held), look, patience=self._patience)

    def _begin(self, held: ExitStack) -> PipedProgram:
        try:
            return held.enter_context(piped(self._command, own_modules()))
        except ProgramFailed as error:
            raise FarPoolMissing(error.message) from None


@contextmanager
def connected(
    command: Sequence[str], look: Callable[[], None] = lambda: None, patience: float = DEFAULTS["stall"]
) -> Iterator[FarPool]:
    """A connection by that command. Raises FarPoolMissing."""
    with Connections(command, patience) as made, made.connect(look) as far:
        yield far
