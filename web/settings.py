"""What the dashboard is started with: the command line's words, and what the configuration says in [web]."""

from dataclasses import dataclass, field
from pathlib import Path

DATA = Path("/var/lib/btrkeep-web")


@dataclass(frozen=True, slots=True)
class Settings:
    """One dashboard, of one pool. Times are seconds.

    `state` has the catalogue and the pictures and is only read; `data` has users and sessions and is the dashboard's own; `socket`
    is where `backupd serve` listens. `hosts` are names in the Host header that are answered besides those of this machine,
    `proxies` the addresses of reverse proxies whose X-Forwarded headers are believed. `idle` and `longest` end a session.
    """

    pool: str
    state: Path
    data: Path
    socket: Path
    host: str = "127.0.0.1"
    port: int = 8765
    hosts: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    idle: float = 12 * 3600.0
    longest: float = 7 * 86400.0
    threads: int = 24
    testing: bool = field(default=False, kw_only=True)


def data_of(pool: str) -> Path:
    """Where the users and sessions of a pool's dashboard are."""
    return DATA / pool
