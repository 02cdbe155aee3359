"""The settings of the dashboard: options of the command line, and the [web] section of the configuration."""

from dataclasses import dataclass, field
from pathlib import Path

DATA = Path("/var/lib/btrkeep-web")
USERS = Path("/var/lib/btrkeep-login")
LOGIN_USER = "btrkeep-login"
"""The owner of the folders in USERS."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one dashboard, of one pool. Times are seconds.

    `state` has the catalogue and the pictures and is only read; `data` has the key of its cookies and belongs to the dashboard;
    `socket` is the socket of `backupd serve`, `login` that of the login service. `hosts` are accepted names in the Host header
    besides those of this machine, `proxies` the addresses of reverse proxies whose X-Forwarded headers are used.
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
        """Returns the socket of the login service: in `data` by default."""
        return self.login or self.data / "login.sock"


def data_of(pool: str) -> Path:
    """Returns the folder of the dashboard's own data for a pool."""
    return DATA / pool


def users_of(pool: str) -> Path:
    """Returns the folder of the users and sessions of a pool's dashboard, which the dashboard itself cannot read."""
    return USERS / pool
