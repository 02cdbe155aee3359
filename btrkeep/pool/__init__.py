"""A btrfs that holds a pool: its marker, its subvolumes, its locks, its room. With treescan, the only user of python-btrfs."""

from btrkeep.pool.balance import (
    BalanceNow,
    balance_block_group,
    balance_now,
    balance_state,
    cancel_balance,
    exclusive_operation,
    missing_devices,
)
from btrkeep.pool.locks import Holder, Lock, read_holder, take_lock
from btrkeep.pool.marker import HOSTS, MARKER, WORKING, Pool, create_pool, filesystem_uuid, is_on, open_pool
from btrkeep.pool.mounts import ALLOCATORS, Mount, allocator, mount_of, set_allocator
from btrkeep.pool.orphans import (
    DeadRoot,
    Drop,
    Key,
    dead_roots,
    dropping,
    has_sync_wait,
    key_text,
    orphan_items,
    orphans,
    queued,
    wait_for,
)
from btrkeep.pool.room import Room, mount_options, read_room
from btrkeep.pool.rootnode import branches, passed
from btrkeep.pool.subvolume import Subvolume, commit, create, delete, describe, is_read_only, set_read_only, snapshot
from btrkeep.pool.written import written_bytes

__all__ = [
    "ALLOCATORS",
    "HOSTS",
    "MARKER",
    "WORKING",
    "BalanceNow",
    "DeadRoot",
    "Drop",
    "Holder",
    "Key",
    "Lock",
    "Mount",
    "Pool",
    "Room",
    "Subvolume",
    "allocator",
    "balance_block_group",
    "balance_now",
    "balance_state",
    "branches",
    "cancel_balance",
    "commit",
    "create",
    "create_pool",
    "dead_roots",
    "delete",
    "describe",
    "dropping",
    "exclusive_operation",
    "filesystem_uuid",
    "has_sync_wait",
    "is_on",
    "is_read_only",
    "key_text",
    "missing_devices",
    "mount_of",
    "mount_options",
    "open_pool",
    "orphan_items",
    "orphans",
    "passed",
    "queued",
    "read_holder",
    "read_room",
    "set_allocator",
    "set_read_only",
    "snapshot",
    "take_lock",
    "wait_for",
    "written_bytes",
]
