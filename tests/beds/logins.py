"""The login service in a thread of the test's own, for the dashboard's users in a folder."""

import os
import socket
import threading
from functools import cache, partial
from pathlib import Path

from btrkeep.serving.server import Server, allowed_users
from web.auth.service import LoginService
from web.auth.store import Store


@cache
def logins_at(path: Path, users: Path, asks: int | None = None) -> LoginService:
    """Answers at the socket `path` until the session of tests ends, to this process's user and the user `asks`; one service for
    each path.
    """
    asks = os.geteuid() if asks is None else asks
    users.mkdir(mode=0o700, parents=True, exist_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    if asks != os.geteuid():
        os.chown(path, asks, -1)
    listening.listen(64)
    service = LoginService(Store(users))
    server = Server(partial(service.answer, allowed=allowed_users((str(asks), str(os.geteuid())))), listening, at_once=40)
    threading.Thread(target=server.run, daemon=True).start()
    return service
