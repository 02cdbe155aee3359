"""The values of the options before the command."""

from dataclasses import dataclass
from pathlib import Path

from btrkeep.serving.protocol import login_socket_of
from web.settings import data_of, users_of


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
        return self.data or data_of(self.pool)

    @property
    def users_folder(self) -> Path:
        """Returns the folder of users and sessions: `data` if that was given, for users who run everything by hand."""
        return self.users or self.data or users_of(self.pool)

    @property
    def login_socket(self) -> Path:
        """Returns the socket of the login service."""
        return self.login or (self.data / "login.sock" if self.data else login_socket_of(self.pool))
