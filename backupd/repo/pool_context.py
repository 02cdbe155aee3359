"""The context of a command or of a request to the root service: configuration, pool, catalogue and clock, opened."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from btrkeep.clock import Clock
from btrkeep.config import Config
from btrkeep.errors import READ_ONLY_HINT, OperatorError, PoolUnusable
from btrkeep.pool.marker import Pool, PoolMissing, open_pool
from btrkeep.pool.mounts import mount_options, mount_pool_words
from btrkeep.procfs import SYS_ADMIN, read_capabilities

if TYPE_CHECKING:  # importing it takes half of a command's start, and some commands read only the pool
    from btrkeep.catalogue import Catalogue
    from btrkeep.pool.space_by_profile import Room


@dataclass(frozen=True, slots=True)
class PoolContext:
    """Everything a command needs."""

    config: Config
    """The configuration."""
    pool: Pool
    """The pool."""
    catalogue: "Catalogue"
    """The catalogue."""
    clock: Clock
    """The clock."""
    problem: OperatorError | None = None
    """Why the catalogue exists only in memory, for this command; None: it is a file."""
    lost: bool = False
    """True if the catalogue lists no backup of the pool."""
    clock_doubt: str | None = None
    """Why the clock is doubted; None: it is trusted."""


def open_configured(config: Config) -> Pool:
    """Opens the pool. Raises PoolUnusable; for a pool that the catalogue in `state` knows, the hint is to mount it, not to create
    one.
    """
    try:
        return open_pool(config.pool.path, config.pool.zone)
    except PoolMissing as error:
        from btrkeep.catalogue import Catalogue

        try:
            with Catalogue.open_readonly(config.pool.state) as catalogue:
                recorded_id = catalogue.pool_id()
        except OperatorError:
            recorded_id = None
        if recorded_id is None:
            raise
        hint = (
            f"{mount_pool_words(config.pool.path)}; the catalogue in {config.pool.state} belongs to the pool that was mounted here"
        )
        raise PoolUnusable(error.message, hint) from None


def require_writable(pool: Pool) -> None:
    """Raises PoolUnusable if the pool is or has become read-only."""
    if "ro" in mount_options(pool.path):
        raise PoolUnusable(f"{pool.path} is read-only", READ_ONLY_HINT)


def require_catalogue_of(config: Config, pool: Pool, recorded_id: str | None) -> None:
    """Raises OperatorError if `recorded_id`, the pool that the catalogue names, is not this one; None: a new catalogue."""
    if recorded_id not in (None, pool.id):
        raise OperatorError(
            f"the catalogue in {config.pool.state} belongs to another pool ({recorded_id})",
            "set another `state`, or run `backupd rebuild`",
        )


@contextmanager
def writing(pool: Pool) -> Iterator[None]:
    """Turns an OSError of the block into PoolUnusable if the pool is full or has become read-only."""
    try:
        yield
    except OSError as error:
        raise PoolUnusable(
            f"{pool.path} cannot be written: {error}", "check the pool's free space and the kernel's messages (dmesg)"
        ) from error


def require_room(pool: Pool, config: Config) -> "Room":
    """Returns the free space of the pool. Raises PoolUnusable if it is less than `min_free`; OSError."""
    from btrkeep.decisions.pool_health import lacks_room, room_advice  # without these, commands that read start a tenth faster
    from btrkeep.pool.allocation import read_room

    room = read_room(pool.path)
    if why := lacks_room(room, config.pool.min_free):
        raise PoolUnusable(why, room_advice(config))
    return room


def require_privileges(names: Collection[str] | None = (SYS_ADMIN,)) -> None:
    """Raises PoolUnusable if this process does not have all of these capabilities; None: all that a proper backup needs. Without a
    readable /proc nothing is checked.
    """
    from btrkeep.decisions.findings import NEEDS, missing_privileges, privilege_advice, privilege_words  # as above

    capabilities, root = read_capabilities(), os.geteuid() == 0
    if capabilities is None:
        return
    asked = [need for need in NEEDS if (need.required if names is None else need.capability in names)]
    for need in missing_privileges(capabilities, asked):
        raise PoolUnusable(privilege_words(need, root=root), privilege_advice(capabilities, need, root=root))
