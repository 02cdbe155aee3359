"""What the dashboard is started with: the command line's words, and what the configuration says in [web]."""

from dataclasses import dataclass, field
from pathlib import Path

DATA = Path("/var/lib/btrkeep-web")
USERS = Path("/var/lib/btrkeep-login")
LOGIN_USER = "btrkeep-login"
"""Whose the folders in USERS are."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One dashboard, of one pool. Times are seconds.

    `state` has the catalogue and the pictures and is only read; `data` has the key of its cookies and is the dashboard's own;
    `socket` is where `backupd serve` listens, `login` where the login service does. `hosts` are names in the Host header that are
    answered besides those of this machine, `proxies` the addresses of reverse proxies whose X-Forwarded headers are believed.
    """

    pool: str
    state: Path
    data: Path
    socket: Path
    host: str = "127.0.0.1"
    port: int = 8765
    hosts: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    threads: int = 24
    login: Path | None = field(default=None, kw_only=True)
    testing: bool = field(default=False, kw_only=True)

    @property
    def logins(self) -> Path:
        """Where the login service listens: in `data`, unless it is said."""
        return self.login or self.data / "login.sock"


def data_of(pool: str) -> Path:
    """Where a pool's dashboard keeps what is its own."""
    return DATA / pool


def users_of(pool: str) -> Path:
    """Where the users and sessions of a pool's dashboard are, which it cannot read itself."""
    return USERS / pool
