"""The settings of the dashboard: options of the command line, and the [web] section of the configuration."""

from dataclasses import dataclass, field
from pathlib import Path

from btrkeep.serving.protocol import login_socket_of

DATA = Path("/var/lib/btrkeep-web")
"""The parent of the folders with the dashboard's own data, one for each pool."""
USERS = Path("/var/lib/btrkeep-login")
LOGIN_USER = "btrkeep-login"
"""The owner of the folders in USERS: one for each pool, with users and sessions, which the dashboard itself cannot read."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one dashboard, of one pool."""

    pool: str
    """The pool's name."""
    state: Path
    """The folder of the catalogue and the pictures, which is only read."""
    data: Path
    """The dashboard's own folder, with the key of its cookies."""
    socket: Path
    """The socket of `backupd serve`."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 8765
    """The port to listen on."""
    hosts: tuple[str, ...] = ()
    """Accepted names in the Host header, besides those of this machine."""
    proxies: tuple[str, ...] = ()
    """Addresses of reverse proxies whose X-Forwarded headers are trusted."""
    threads: int = 24
    """Number of threads that answer."""
    login: Path | None = field(default=None, kw_only=True)
    """The socket of the login service; None: `login.sock` in `data`."""
    testing: bool = field(default=False, kw_only=True)
    """True in tests."""

    @property
    def logins(self) -> Path:
        """Returns the socket of the login service: in `data` by default."""
        return self.login or self.data / "login.sock"


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The options before the command; None: not given."""

    pool: str
    """The pool's name."""
    state: Path | None
    """The folder of the catalogue (`--state`)."""
    data: Path | None
    """The dashboard's own folder."""
    socket: Path | None
    """The socket of `backupd serve`."""
    users: Path | None = None
    """The folder of users and sessions."""
    login: Path | None = None
    """The socket of the login service."""

    @property
    def data_folder(self) -> Path:
        """Returns the folder of the dashboard's own data."""
        return self.data or DATA / self.pool

    @property
    def users_folder(self) -> Path:
        """Returns the folder of users and sessions: `data` if that was given, for installations with a single user."""
        return self.users or self.data or USERS / self.pool

    @property
    def login_socket(self) -> Path:
        """Returns the socket of the login service."""
        return self.login or (self.data / "login.sock" if self.data else login_socket_of(self.pool))
