"""Reads the facts from which the pool is judged, in some milliseconds and without any capability."""

from datetime import UTC, datetime
from pathlib import Path

from backupd.expire.trust import has_backups, is_lost
from backupd.health.starters import read_schedule
from backupd.repo.pool_context import open_configured
from btrkeep.catalogue import Catalogue
from btrkeep.catalogue.migrate import FILE
from btrkeep.config import Config
from btrkeep.decisions.copy_status import COPIES, copies_of
from btrkeep.decisions.pool_health import CatalogueFacts, PoolFacts, Redundancy, noted_redundancy, redundancy
from btrkeep.decisions.schedule import CALLERS_FACT, NOTHING_MISSED, ScheduleVerdict
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.hung_storage import answers
from btrkeep.pool.allocation import Allocation, read_allocation, read_room
from btrkeep.pool.balance_ioctl import missing_devices
from btrkeep.pool.marker import Pool
from btrkeep.pool.mounts import machine_mount, mount_of
from btrkeep.pool.space_by_profile import DEVICE_ERRORS, ChunkUse
from btrkeep.pool.temporary_devices import left_devices

_FULL = ("room", "used")  # the alarm that more than [notify] used_limit is used


def read_pool_facts(config: Config, catalogue: Catalogue | None = None) -> PoolFacts:
    """Reads the pool's present facts. Without an opened `catalogue`, the catalogue in `state` is read if it exists."""
    path = config.pool.path
    try:
        pool = open_configured(config)
        catalogue_facts = _of_catalogue(catalogue, pool) if catalogue else read_catalogue(config.pool.state, pool)
        allocation, missing = read_allocation(path), missing_devices(path)
        schedule = NOTHING_MISSED
        if not pool.rehearsal:  # its clock is simulated
            schedule = _schedule(config, catalogue) if catalogue else read_pool_schedule(config)
        copies = read_redundancy(path, allocation, missing)
        if copies is None and catalogue_facts.redundancy and catalogue_facts.redundancy.missing == missing:
            copies = catalogue_facts.redundancy  # as of the last sample
        return PoolFacts(
            **catalogue_facts._replace(redundancy=copies)._asdict(),
            read_only=_is_read_only(path),
            missing=missing,
            errors=device_errors(allocation),
            room=read_room(path),
            schedule=schedule,
            left_devices=left_devices(config.pool.state),
        )
    except PoolUnusable as error:
        left = "`backupd doctor --fix room` attaches the pool's temporary device again; then mount the pool"
        return PoolFacts(fault=error.message, hint=left if left_devices(config.pool.state) else error.hint)
    except OSError as error:
        return PoolFacts(fault=f"{path}: {error.strerror}", hint="check the kernel's messages (dmesg)")


def read_redundancy(path: Path, allocation: Allocation, missing: tuple[int, ...] | None) -> Redundancy | None:
    """Returns the number of good copies of all data; None if unknown.

    If a device is missing, the chunks are read, which needs CAP_SYS_ADMIN.
    """
    if missing is None:
        return None
    if not missing:
        return redundancy((ChunkUse(space.type, space.profile, space.used, ()) for space in allocation.spaces), ())
    from backupd.repo.chunk_uses import chunk_uses  # imports NumPy

    try:
        return redundancy(chunk_uses(path), missing)
    except OSError:
        return None


def read_pool_schedule(config: Config) -> ScheduleVerdict:
    """Returns which hosts will not be backed up in time, using the catalogue in `state` if it can be read."""
    try:
        with Catalogue.open_readonly(config.pool.state) as catalogue:
            return _schedule(config, catalogue)
    except (OperatorError, OSError):
        return _schedule(config, None)


def _schedule(config: Config, catalogue: Catalogue | None) -> ScheduleVerdict:
    if catalogue is None:
        return read_schedule(config, None, frozenset(), datetime.now(UTC))
    copies = frozenset(copies_of(catalogue.get_fact(COPIES)).fetched)
    return read_schedule(config, catalogue.get_fact(CALLERS_FACT), copies, datetime.now(UTC))


def _is_read_only(path: Path) -> bool | None:
    """Returns whether the machine has mounted the pool read-only, whatever the sandbox shows; None if that cannot be seen from
    here.
    """
    mount = machine_mount(path)
    return "ro" in mount_of(path).super_options or (None if mount is None else "ro" in mount.mount_options)


def device_errors(allocation: Allocation) -> dict[int, dict[str, int]]:
    """Returns the error counters that are not zero, by device number. A missing device has none."""
    counters = {device.devid: zip(DEVICE_ERRORS, device.errors or (), strict=False) for device in allocation.devices}
    by_devid = {devid: {name: count for name, count in pairs if count} for devid, pairs in counters.items()}
    return {devid: errors for devid, errors in by_devid.items() if errors}


def read_catalogue(state: Path, pool: Pool) -> CatalogueFacts:
    """Reads the catalogue in a folder. A missing catalogue was lost if the pool has backups."""
    if not (answers(state) and answers(state / FILE)):
        return CatalogueFacts(foreign=None)
    try:
        (state / FILE).stat()
        with Catalogue.open_readonly(state) as catalogue:
            return _of_catalogue(catalogue, pool)
    except FileNotFoundError:
        return CatalogueFacts(lost=has_backups(pool))
    except (OperatorError, OSError):
        return CatalogueFacts(foreign=None)


def _of_catalogue(catalogue: Catalogue, pool: Pool) -> CatalogueFacts:
    recorded_id = catalogue.pool_id() or pool.id
    was_full = any(row.key == _FULL and row.recovered is None for row in catalogue.alarms())
    return CatalogueFacts(
        "" if recorded_id == pool.id else recorded_id, is_lost(pool, catalogue), was_full, noted_redundancy(catalogue)
    )
