"""The dashboard as at a site: a btrkeep-web process on waitress, without rights, for a catalogue that root wrote.

`serving` starts one; `made_site` does so with the made-up catalogue, `real_shop` with a real pool and its root service.
"""

import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

from backupd.serve.verbs import VERBS
from bench.make_site import Made
from tests.beds import session
from tests.beds.anyone import NOBODY
from tests.beds.anyone import readable as readable_code
from tests.beds.logins import logins_at
from tests.beds.nights import Nights
from tests.beds.serving import Service
from tests.beds.serving import serving as root_service
from web.auth import Token, User, digest
from web.auth.passwords import hashed
from web.auth.store import Store

PASSWORD = "correct horse battery"
OPERATOR, VIEWER, CUSTOMER, ADMIN = "olga", "victor", "carol", "ada"
"""An operator, a viewer, a viewer who sees the hosts of some patterns alone, and an admin."""
LOGIN = "login.sock"
"""Where the login service listens, in the folder of a dashboard."""
_CSRF = re.compile(r'name="csrf_token"[^>]*value="([^"]+)"')


@dataclass
class Dashboard:
    """A running dashboard. `cookie`: that of the operator; `tokens`: by the name of the user whose rights they have."""

    port: int
    pid: int
    state: Path
    data: Path
    users: Path
    log: Path
    cookie: str = ""
    tokens: dict[str, str] = field(default_factory=dict)
    made: Made | None = None
    nights: Nights | None = None
    service: Service | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def ask(self, method: str, path: str, body: bytes | str | None = None, **headers: str) -> "Answer":
        """Sends one request on a separate connection, without additions: no cookie, no token, no redirect. Underscores of headers
        become dashes.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, who: str = OPERATOR, **headers: str) -> "Answer":
        """Sends a request of a program with that user's token; only /api and /metrics accept tokens."""
        return self.ask("GET", path, Authorization=f"Bearer {self.tokens[who]}", **headers)

    def log_in(self, name: str = OPERATOR, password: str = PASSWORD) -> str:
        """Returns the session's cookie, for a Cookie header."""
        form = self.ask("GET", "/login")
        words = {"name": name, "password": password, "csrf_token": csrf_of(form.text)}
        kind = "application/x-www-form-urlencoded"
        done = self.ask("POST", "/login", urlencode(words), Content_Type=kind, Cookie=form.cookie)
        assert done.status == 303, (done.status, done.text)
        return self.ask("GET", "/account", Cookie=done.cookie).cookie or done.cookie  # it holds a CSRF token now


@dataclass(frozen=True)
class Answer:
    """An answer to a request."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def cookie(self) -> str:
        """Returns the cookies that were set, for a Cookie header."""
        return "; ".join(name.partition(";")[0] for name in self.headers.get_all("Set-Cookie", []))


def csrf_of(page: str) -> str:
    """Returns the token in a page's form."""
    match = _CSRF.search(page)
    assert match, page
    return match[1]


QUICK = {"rates": [f"{verb} 100000" for verb in VERBS]}
"""[serve] of a dashboard whose visitors never rest."""


@contextmanager
def serving(folder: Path, state: Path, service: Path | None = None, customer: tuple[str, ...] = ("web*",)) -> Iterator[Dashboard]:
    """Yields a btrkeep-web for the catalogue in `state`, with its own files in `folder`; it must end without an error."""
    folder.chmod(0o755)
    uid, code = user_id(), readable_code()
    data, log, users, login = folder / "data", folder / "web.log", folder / "users", folder / LOGIN
    tokens = _people(users, customer)
    data.mkdir(mode=0o700)
    os.chown(data, uid, uid)
    readable(state, uid)
    logins_at(login, users, uid)
    port = _free_port()
    words = ["--state", state, "--data", data, "--login", login, "--listen", f"127.0.0.1:{port}"]
    words += ["--socket", service] if service else ["--socket", folder / "nobody.sock"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [code.python, "-m", "web", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=code.top,
            env={**os.environ, **code.environment, "HOME": "/nonexistent"},
            user=uid if os.geteuid() == 0 else None,
            group=uid if os.geteuid() == 0 else None,
            extra_groups=[] if os.geteuid() == 0 else None,
        )
    try:
        web = Dashboard(port, process.pid, state, data, users, log, tokens=tokens)
        _wait(web, process)
        web.cookie = web.log_in()
        yield web
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, 143), web.log_text
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def user_id() -> int:
    """Returns the user of the process: `nobody` if possible."""
    return os.geteuid() or NOBODY


def readable(state: Path, uid: int) -> None:
    """Sets the modes as install.sh does: the dashboard's group may only read the state folder, and no live file of the
    catalogue.
    """
    if os.geteuid() != 0:
        return
    for path in (state, *state.rglob("*")):
        os.chown(path, 0, uid, follow_symlinks=False)
        path.chmod(0o2750 if path.is_dir() else 0o600 if path.name.startswith("catalogue.") else 0o640)


def _people(users: Path, customer: tuple[str, ...]) -> dict[str, str]:
    """Adds the users, all with the same password, and a token with the rights of each."""
    store, now, password, tokens = Store(users), datetime.now(UTC), hashed(PASSWORD), {}
    for name, role, hosts in (
        (OPERATOR, "operator", None),
        (VIEWER, "viewer", None),
        (CUSTOMER, "viewer", customer),
        (ADMIN, "admin", None),
    ):
        store.add_user(User(name, role, hosts, password, now, now))
        tokens[name] = f"btrkeep_{name}{'x' * 40}"
        store.add_token(Token(name, role, hosts, now, None), digest(tokens[name]))
    return tokens


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(web: Dashboard, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while True:
        assert process.poll() is None, web.log_text
        assert time.monotonic() < end, web.log_text
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", web.port), 1):
            return
        time.sleep(0.02)


@contextmanager
def made_site(make: Callable[[Path], Made]) -> Iterator[Dashboard]:
    """The dashboard of the invented site, with hostile text, that `make` makes. There is no pool and no root service."""
    with own_folder() as folder:
        made = make(folder / "state")
        with serving(folder, made.state) as web:
            web.made = made
            yield web


@contextmanager
def own_folder() -> Iterator[Path]:
    """Yields a folder of this session that other users may enter, and deletes it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="dashboard-", dir=session.folder()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _wait_for_tasks(service: Service) -> None:
    """Ends all started processes, so that the pool can be removed."""
    end = time.monotonic() + 60
    while any(row["state"] in ("queued", "running") for row in service.agent().ask("jobs")):
        assert time.monotonic() < end
        time.sleep(0.1)


MARKUP = b"<img src=x onerror=window.pwned=1>.txt"
LATIN1 = b"caf\xe9.txt"
NEWLINE = b"two\nlines.txt"
ODD = (b"'quotes\".txt", b"a & b #1 %41 ?x=1.txt", b" leading and trailing ", b"-rf", "\u202egnp.txt".encode())
NAMES = (MARKUP, LATIN1, NEWLINE, *ODD)


@contextmanager
def real_shop(top: Path) -> Iterator[Dashboard]:
    """The dashboard of a real pool: the hosts `shop`, with names that are hard to show and a file of three versions, and `lab`."""
    nights = Nights(top)
    nights.state.parent.chmod(0o755)
    fill(nights.source)
    nights.tables["serve"] = QUICK
    nights.host("shop", nights.source)
    nights.host("lab", nights.source / "folder")
    for night in range(3):
        (nights.source / "prices.txt").write_text(f"black tea {2 + night}.80\ngreen tea 3.20\n")
        nights.run()
        nights.backupd("sample")
        time.sleep(1.0 if night < 2 else 0)  # names of backups are whole seconds
    with (
        own_folder() as folder,
        root_service(nights.config, "--allow", str(user_id()), "--restore-elsewhere", "--login", folder / LOGIN) as service,
        serving(folder, nights.state, service.socket, ("lab",)) as web,
    ):
        web.nights, web.service = nights, service
        yield web
        _wait_for_tasks(service)


def fill(source: Path) -> None:
    """Makes files with all kinds of names, one of some MiB, a folder, symlinks out of the tree."""
    folder = os.fsencode(source) + b"/names"
    os.mkdir(folder)  # noqa: PTH102 - names that are not text
    for name in NAMES:
        with open(folder + b"/" + name, "wb") as file:  # noqa: PTH123
            file.write(b"content of " + name)
    (source / "large.bin").write_bytes(os.urandom(5 << 20))
    (source / "folder").mkdir()
    for number in range(30):
        (source / "folder" / f"file {number:02}.txt").write_text(f"line {number}\n" * number)
    (source / "shadow").symlink_to("/etc/shadow")
    (source / "out").symlink_to("../../../../../../../../etc")
