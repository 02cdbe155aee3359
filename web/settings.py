"""The settings of the dashboard: options of the command line, and the [web] section of the configuration."""

from dataclasses import dataclass, field
from pathlib import Path

from btrkeep.serving.protocol import login_socket_of

DATA = Path("/var/lib/btrkeep-web")
"""Has a folder for each pool, of the dashboard's own data."""
USERS = Path("/var/lib/btrkeep-login")
LOGIN_USER = "btrkeep-login"
"""The owner of the folders in USERS: one for each pool, of users and sessions, which the dashboard itself cannot read."""


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


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The options before the command; None: not given."""

    pool: str
    state: Path | None
    data: Path | None
    socket: Path | None
    users: Path | None = None
    login: Path | None = None

    @property
    def data_folder(self) -> Path:
        """Returns the folder of the dashboard's own data."""
        return self.data or DATA / self.pool

    @property
    def users_folder(self) -> Path:
        """Returns the folder of users and sessions: `data` if that was given, for users who run everything by hand."""
        return self.users or self.data or USERS / self.pool

    @property
    def login_socket(self) -> Path:
        """Returns the socket of the login service."""
        return self.login or (self.data / "login.sock" if self.data else login_socket_of(self.pool))
