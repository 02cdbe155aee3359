"""All facts about a pool, at one moment."""

from datetime import datetime

from backupd.doctor.facts import DoctorFacts, Scrub
from backupd.doctor.filesystem import read_filesystem
from backupd.doctor.machine import read_machine
from backupd.doctor.scrub import read_scrub
from backupd.doctor.site import read_site
from btrkeep.config import Config
from btrkeep.errors import PoolUnusable
from btrkeep.pool.activity import read_activity
from btrkeep.pool.allocation import read_allocation
from btrkeep.pool.marker import Pool


def gather(config: Config, pool: Pool, now: datetime) -> DoctorFacts:
    """All facts about a pool. Raises PoolUnusable."""
    try:
        filesystem = read_filesystem(pool.path)
        return DoctorFacts(now, filesystem, _scrub(pool, filesystem.uuid), read_machine(), read_site(config, pool))
    except OSError as error:
        raise PoolUnusable(f"{pool.path}: {error.strerror}", "run this as root; look at the kernel's messages (dmesg)") from error


def _scrub(pool: Pool, uuid: str) -> Scrub:
    devids = [device.devid for device in read_allocation(pool.path).devices]
    return read_scrub(uuid, frozenset(devids), running="scrub" in read_activity(pool.path, devids))
