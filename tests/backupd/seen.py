"""A status report as from the catalogue and the pool, for tests of code that only uses the report."""

from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from backupd.health.status_report import StatusReport
from btrkeep.catalogue import Balance, Expiry, HostFacts
from btrkeep.config import Config, HostConfig, NotifySettings, PoolSettings
from btrkeep.decisions.host_state import host_status
from btrkeep.decisions.pool_health import PoolFacts
from btrkeep.decisions.trend import PoolNumbers
from btrkeep.pool.space_by_profile import Room
from tests.backupd.facts import NOW

GIB = 1 << 30


def config(*hosts: HostConfig, **notify: Any) -> Config:
    pool = PoolSettings(Path("/srv/backup"), Path("/var/lib/btrkeep/main"), ZoneInfo("Europe/Berlin"))
    return Config(Path("/etc/main.toml"), "main", pool, notify=NotifySettings(**notify), hosts={host.name: host for host in hosts})


def well(**others: Any) -> PoolFacts:
    """A pool without problems, except the given ones."""
    room = Room(100 * GIB, 20 * GIB, 60 * GIB, GIB)
    return PoolFacts(**{"foreign": "", "read_only": False, "missing": (), "errors": {}, "room": room, **others})


def seen(of: Config, facts: dict[str, HostFacts] | None = None, now: datetime = NOW, **others: Any) -> StatusReport:
    by_name = facts or {}
    hosts = tuple(host_status(host, by_name.get(host.name), of.pool.zone, now) for host in of.hosts.values())
    return StatusReport(of, now, hosts, by_name, **{"pool": well(), "numbers": numbers(), "pool_looked": now, **others})


def numbers(**errors: int) -> PoolNumbers:
    """Device 1 is fine, device 2 has these errors."""
    devices = {1: {"write": 0}, 2: {"write": 0, "corruption": 0, **errors}}
    return PoolNumbers(NOW, 100, 80, 60, {"data": (70, 50), "metadata": (10, 5)}, devices, 3)


def expiry(outcome: str | None, error: str | None = None) -> Expiry:
    end = NOW if outcome else None
    return Expiry(1, NOW, end, outcome, 1, None, 9, 0, 0, 7, 0, 0, 9, None, None, None, None, None, error, NOW)


def balance(outcome: str | None, why: str = "") -> Balance:
    end = NOW if outcome else None
    return Balance(1, "u", "/m", NOW, end, outcome, why, "score", None, 1, None, 4, 100, 130, 1.0, 0, None, {}, {}, NOW)
