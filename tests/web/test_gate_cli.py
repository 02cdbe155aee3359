"""The command btrkeep-web: users, tokens, and a real server with requests over sockets."""

import io
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path

import click
import pytest

from btrkeep.cli import run_command_line
from tests.beds import session, work
from tests.beds.anyone import readable
from tests.beds.leftout import needs_program, needs_root
from tests.web.gate import CHEAP, PASSWORD, made
from web.auth import passwords
from web.auth.store import Store
from web.cli import group
from web.dashboard_settings import Settings

ROOT = Path(__file__).parents[2]
WEB = (sys.executable, "-m", "web")
STRANGER = 61234


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def cli(settings: Settings, *words: str, given: str = "", check: bool = True) -> Done:
    """The command in this process: another would begin with a second of imports."""
    before = ("--pool", settings.pool, "--state", str(settings.state), "--data", str(settings.data))
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["btrkeep-web", *before, *words])
        patch.setattr(sys, "stdin", io.StringIO(given))
        patch.setattr(passwords, "_HASHER", CHEAP)
        status = run_command_line(group, "btrkeep-web")
    assert not check or status == 0, err.getvalue()
    return Done(status, out.getvalue(), err.getvalue())


def test_users_come_are_listed_changed_and_go(tmp_path: Path) -> None:
    settings = made(tmp_path)
    done = cli(settings, "user", "add", "alice", "--role", "operator", given=f"{PASSWORD}\n")
    assert done.stdout == ""
    assert "alice may log in: operator, all hosts" in done.stderr
    cli(settings, "user", "add", "carol", "--hosts", "web*, db1", given=f"{PASSWORD}\n")
    cli(settings, "user", "change", "carol", "--role", "operator")
    listed = json.loads(cli(settings, "user", "list", "--json").stdout)
    assert [(row["name"], row["role"], row["hosts"]) for row in listed] == [
        ("alice", "operator", None),
        ("carol", "operator", ["web*", "db1"]),
    ]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["created"]) for row in listed)
    assert "web*, db1" in cli(settings, "user", "list").stdout
    before = Store(settings.data).user("alice")
    cli(settings, "user", "passwd", "alice", given="another good password\n")
    after = Store(settings.data).user("alice")
    assert before is not None
    assert after is not None
    assert before.hash != after.hash
    cli(settings, "user", "remove", "alice")
    assert [user.name for user in Store(settings.data).users()] == ["carol"]
    assert {path.stat().st_mode & 0o777 for path in settings.data.iterdir()} == {0o600}
    assert settings.data.stat().st_mode & 0o777 == 0o700


def test_what_is_wrong_is_said_in_a_line_and_with_a_hint(tmp_path: Path) -> None:
    settings = made(tmp_path)
    cli(settings, "user", "add", "alice", given=f"{PASSWORD}\n")
    for words, given, name in (
        (("user", "add", "alice"), PASSWORD, "there is a user alice already"),
        (("user", "add", "bob"), "short", "at least 10 characters"),
        (("user", "add", "bob"), "", "at least 10 characters"),
        (("user", "add", "../x"), PASSWORD, "not a valid user name"),
        (("user", "add", "bob", "--hosts", "a/b"), PASSWORD, "not a pattern of hosts"),
        (("user", "passwd", "alise"), PASSWORD, "did you mean alice?"),
        (("user", "remove", "zoe"), "", "there is no user zoe"),
        (("user", "change", "alice"), "", "nothing to change"),
        (("token", "remove", "x"), "", "there is no token x"),
        (("usr",), "", "did you mean user?"),
        (("serve", "--listen", "nowhere"), "", "not an address and port"),
    ):
        done = cli(settings, *words, given=given, check=False)
        assert (done.returncode, name in done.stderr) == (2, True), (words, done.stderr)
        assert "Traceback" not in done.stderr
    assert len(Store(settings.data).users()) == 1


def test_users_are_imported_whole_or_not_at_all(tmp_path: Path) -> None:
    """An attempt that failed midway would leave some of the users, and a second attempt would be refused."""
    first = made(tmp_path)
    second = replace(first, data=tmp_path / "second")
    cli(first, "user", "add", "alice", "--hosts", "web*,db1", given=PASSWORD)
    cli(first, "token", "add", "script")
    whole = json.loads(cli(first, "user", "export").stdout)
    [alice], [script] = whole["users"], whole["tokens"]
    times = {"created": alice["created"], "seen": alice["created"]}
    answer = {"key": "00" * 32, "user": "alice", "address": "192.0.2.1", "browser": "", **times}
    wrong = (
        {"sessions": [answer, {**answer, "key": "11" * 32, "user": "bob"}]},
        {"sessions": [answer, answer]},
        {"sessions": [{**answer, "user": []}]},
        {"users": [alice, {**alice, "role": "admin"}]},
        {"users": [{**alice, "created": "0001-01-01T00:00:00"}]},
        {"users": [{**alice, "hosts": "web*"}]},  # as a list of letters, that would be all hosts
        {"users": [{**alice, "hosts": ["web1,*"]}]},
        {"tokens": [script, {**script, "name": "other", "key": "zz"}]},
        {"tokens": [script, script]},
    )
    for change in wrong:
        done = cli(second, "user", "import", given=json.dumps({**whole, **change}), check=False)
        assert (done.returncode, "the input is not a list of users" in done.stderr) == (2, True), change
        assert (Store(second.data).users(), Store(second.data).tokens()) == ([], [])
    cli(second, "user", "import", given=json.dumps({**whole, "sessions": [answer]}))
    assert json.loads(cli(second, "user", "export").stdout) == {**whole, "sessions": [answer]}


def test_nothing_that_was_written_into_the_folder_of_users_moves_a_terminal(tmp_path: Path) -> None:
    """An attacker on the dashboard can write anything there, and root lists it."""
    settings, evil = made(tmp_path), "joe\x1b]0;owned\x07\x1b[2J\nroot\u202e"
    cli(settings, "user", "add", "joe", given=f"{PASSWORD}\n")
    cli(settings, "token", "add", "joe")
    with closing(sqlite3.connect(next(settings.data.glob("*.sqlite")))) as connection, connection:
        for table in ("user", "token"):
            connection.execute(f"UPDATE {table} SET name = ?, role = ?, hosts = ?", (evil, evil, json.dumps([evil])))
    for words in (("user", "list"), ("token", "list"), ("user", "list", "--json"), ("user", "remove", "joe")):
        done = cli(settings, *words, check=False)
        output = done.stdout + done.stderr
        assert "owned" in output or "joe" in output
        assert all(char.isprintable() or char == "\n" for char in output), (words, output)
        assert not any(line.startswith("root") for line in output.splitlines())


def test_what_is_wrong_with_the_database_of_users_is_told_in_our_own_words(tmp_path: Path) -> None:
    settings = made(tmp_path)
    cli(settings, "user", "add", "joe", given=f"{PASSWORD}\n")
    file = settings.data / "users.sqlite"
    content = file.read_bytes()
    of_no_format = content[:47] + b"\xff" + content[48:]
    for damaged in (b"no database at all, but long enough to be read as one" * 40, content[: len(content) // 2], of_no_format):
        file.write_bytes(damaged)
        done = cli(settings, "user", "list", check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
        assert f"error: {file} is damaged\nhint: restore it from a backup" in done.stderr
    file.write_bytes(content)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DROP TABLE user")
    with pytest.raises(sqlite3.OperationalError, match="no such table"):  # a bug, not a mistake of the user
        Store(settings.data).users()


def test_a_token_is_printed_once_and_only_its_digest_is_kept(tmp_path: Path) -> None:
    settings = made(tmp_path)
    word = cli(settings, "token", "add", "prometheus", "--hosts", "web*").stdout.strip()
    assert re.fullmatch(r"btrkeep_[\w-]{43}", word)
    assert word.encode() not in b"".join(path.read_bytes() for path in settings.data.iterdir())
    [answer] = json.loads(cli(settings, "token", "list", "--json").stdout)
    assert (answer["name"], answer["role"], answer["hosts"], answer["used"]) == ("prometheus", "viewer", ["web*"], None)
    cli(settings, "token", "remove", "prometheus")
    assert json.loads(cli(settings, "token", "list", "--json").stdout) == []


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of root's that all users may enter."""
    top = Path(tempfile.mkdtemp(prefix="web-", dir=session.folder()))
    top.chmod(0o755)
    yield top
    shutil.rmtree(top)


def of_stranger(path: Path) -> Path:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    return path


def as_root(data: Path, *words: str) -> str:
    """Returns the output of the command, with any exit status."""
    return work(*WEB, "--data", data, *words, input=f"{PASSWORD}\n", cwd=ROOT, check=False).stderr


@pytest.mark.slow
@needs_root
def test_root_writes_nothing_of_its_own_into_the_dashboards_folder(place: Path) -> None:
    (data := place / "data").mkdir(mode=0o700)
    of_stranger(data)
    assert "alice may log in" in as_root(data, "user", "add", "alice")
    assert {(path.stat().st_uid, path.stat().st_mode & 0o777) for path in data.iterdir()} == {(STRANGER, 0o600)}


def _link(data: Path, secret: Path) -> None:
    data.mkdir()
    (data / "users.sqlite").symlink_to(secret / "users.sqlite")


def _hard_link(data: Path, secret: Path) -> None:
    data.mkdir()
    os.link(secret / "users.sqlite", data / "users.sqlite")


def _link_as_folder(data: Path, secret: Path) -> None:
    data.symlink_to(secret)


def _pipe(data: Path, _: Path) -> None:
    data.mkdir()
    os.mkfifo(data / "users.sqlite")


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("plant", [_link, _hard_link, _link_as_folder, _pipe])
def test_root_follows_nothing_that_the_dashboards_user_has_planted(place: Path, plant: Callable[[Path, Path], None]) -> None:
    (own := place / "own").mkdir(mode=0o700)
    (secret := place / "secret").mkdir(mode=0o700)
    (secret / "users.sqlite").touch(mode=0o600)
    plant(own / "main", secret)
    for path in (own, own / "main"):
        of_stranger(path)
    for words in (("user", "add", "alice"), ("token", "add", "script"), ("user", "list")):
        output = as_root(own / "main", *words)
        assert "error: " in output
        assert "Traceback" not in output
    assert {path.name: path.read_bytes() for path in secret.iterdir()} == {"users.sqlite": b""}


@pytest.mark.slow
@needs_root
def test_root_makes_no_folder_where_others_may_put_a_link_in_its_place(place: Path) -> None:
    for mode in (0o777, 0o1777, 0o775):
        (folder := place / f"{mode:o}").mkdir()
        folder.chmod(mode)
        assert "users other than root may write" in as_root(folder / "new", "user", "add", "alice")
        assert not list(folder.iterdir())
    (place / "new").mkdir()
    (link := place / "link").symlink_to(place / "new")  # root's own, where only root may put one
    as_root(link / "below", "user", "add", "alice")
    assert (place / "new/below/users.sqlite").stat().st_uid == 0


@pytest.mark.slow
@needs_root
def test_a_dashboard_that_root_starts_is_the_user_whose_folder_it_has(place: Path, tmp_path: Path) -> None:
    settings = made(tmp_path)
    (data := place / "data").mkdir(mode=0o700)
    of_stranger(data)
    server = Server(replace(settings, data=data), readable().python, *WEB[1:])  # it reads libraries after it has become that user
    try:
        ids = re.search(
            r"^Uid:\t(.*)\nGid:\t(.*)\n(?:.*\n)*?Groups:\t(.*)$",
            Path(f"/proc/{server.process.pid}/status").read_text(),
            re.MULTILINE,
        )
        assert ids
        assert ids[1].split() == ids[2].split() == [str(STRANGER)] * 4
        assert not ids[3].split()
    finally:
        server.stop()


def test_completion_and_help_are_there() -> None:
    assert "_BTRKEEP_WEB_COMPLETE" in work(*WEB, "completion", "bash", cwd=ROOT).stdout
    assert "token" in work(*WEB, "--help", cwd=ROOT).stdout
    assert work(*WEB, "--version", cwd=ROOT).stdout.startswith("btrkeep-web, version")


# --- a real server


class Server:
    def __init__(self, settings: Settings, *program: str | Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        places = {"--state": settings.state, "--data": settings.data, "--socket": settings.socket, "--login": settings.logins}
        words = ("--pool", "demo", *(word for pair in places.items() for word in pair))
        self.error_output = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the server
        self.logins = subprocess.Popen(
            [*program, *map(str, words), "logins"], stderr=self.error_output, env={**os.environ, **readable().environment}, cwd="/"
        )
        self.process = subprocess.Popen(
            [*program, *map(str, words), "--listen", f"127.0.0.1:{self.port}"],
            stderr=self.error_output,
            env={**os.environ, **readable().environment},
            cwd="/",
        )
        end = time.monotonic() + 60
        while not settings.logins.exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self.process.poll() is None, self.log()
                assert time.monotonic() < end, self.log()
                time.sleep(0.05)

    def ask(self, method: str, address: str, body: str | None = None, **headers: str) -> tuple[int, dict[str, str], str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, address, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), text

    def raw(self, sent: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), 60) as connection:
            data = b""
            with suppress(OSError):  # it need not read all of what it refuses
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(65536):
                    data += piece
        return data

    def log(self) -> str:
        self.error_output.flush()
        self.error_output.seek(0)
        return self.error_output.read()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self.logins.terminate()
        self.logins.wait(60)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Runs as a user without rights if the test is root, so that it reads the catalogue as the dashboard does."""
    top = Path(tempfile.mkdtemp(prefix="web-", dir=session.folder()))
    top.chmod(0o755)
    place = Path(tempfile.mkdtemp(prefix="login-", dir="/tmp"))  # a socket's path has at most 107 bytes
    settings = replace(made(top), login=place / "sock")
    cli(settings, "user", "add", "alice", "--role", "operator", given=f"{PASSWORD}\n")
    words: tuple[str | Path, ...] = WEB
    if os.geteuid() == 0:
        for path in (place, settings.data, *settings.data.iterdir()):
            os.chown(path, STRANGER, STRANGER)
        os.chown(settings.state, 0, STRANGER)
        settings.state.chmod(0o2750)
        os.chown(settings.state / "dashboard.sqlite", 0, STRANGER)
        (settings.state / "dashboard.sqlite").chmod(0o640)
        words = readable().run_as(STRANGER, *WEB[1:])
    server = Server(settings, *words)
    try:
        yield server
    finally:
        for process in (server.process, server.logins):
            process.kill()
            process.wait()
        shutil.rmtree(top)
        shutil.rmtree(place)


def log_in(server: Server, password: str = PASSWORD, **headers: str) -> tuple[int, dict[str, str]]:
    _, by_name, page = server.ask("GET", "/login", **headers)
    cookie = by_name["Set-Cookie"].partition(";")[0]
    match = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert match
    form = f"csrf_token={match[1]}&name=alice&password={password.replace(' ', '+')}&next=/account"
    kind = "application/x-www-form-urlencoded"
    status, answer, _ = server.ask("POST", "/login", form, Cookie=cookie, Content_Type=kind, **headers)
    return status, answer


def test_a_user_logs_in_over_a_socket_and_sees_a_page(server: Server) -> None:
    status, by_name = log_in(server)
    assert (status, by_name["Location"]) == (303, "/account")
    cookie = by_name["Set-Cookie"].partition(";")[0]
    for address in ("/account", "/", "/hosts", "/hosts/web1"):
        status, headers, page = server.ask("GET", address, Cookie=cookie)
        assert (status, "alice" in page) == (200, True), address
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "Server" not in headers
    status, headers, page = server.ask("HEAD", "/account", Cookie=cookie)
    assert (status, page) == (200, "")


def test_a_path_that_is_no_utf_8_arrives_as_it_was_sent(server: Server) -> None:
    status, by_name, _ = server.ask("GET", "/files/web1?path=/caf%e9%0a")
    assert status == 303
    assert by_name["Location"] == "/login?next=/files/web1?path%3D/caf%25e9%250a"


def test_names_that_are_not_its_own_are_refused_over_a_socket_too(server: Server) -> None:
    assert server.raw(b"GET /login HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert server.raw(b"GET /login HTTP/1.1\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 400")
    sent = b"GET /login HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Host: evil.example\r\nConnection: close\r\n\r\n"
    assert server.raw(sent).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /login HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET http://evil.example/login HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n",
        (
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5"
            b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n"
        ),
        b"GET /login\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n\r\n\r\n",
    ],
    ids=["long", "tls", "absolute", "huge", "smuggled", "nul", "version", "nothing"],
)
def test_whatever_is_sent_the_server_goes_on(server: Server, sent: bytes) -> None:
    answer = server.raw(sent)
    assert not answer or answer.startswith(b"HTTP/1.")
    assert b"200 OK" not in answer[:20]
    assert b"Traceback" not in answer
    assert server.ask("GET", "/login")[0] == 200


@pytest.mark.slow
def test_a_server_that_is_told_to_end_does_so_at_once_and_has_logged_no_secret(server: Server) -> None:
    log_in(server)
    log_in(server, "a wrong password")
    begun = time.monotonic()
    waiting = socket.create_connection(("127.0.0.1", server.port))  # a client that never sends a request
    status = server.stop()
    assert (status, time.monotonic() - begun < 60) == (0, True)
    waiting.close()
    output = server.log()
    assert "login: alice from 127.0.0.1" in output
    assert "login failed: alice from 127.0.0.1" in output
    assert "password" not in output
    assert PASSWORD not in output
    assert "Traceback" not in output


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    settings = made(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = cli(settings, "serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", check=False)
    assert (done.returncode, "could not listen on" in done.stderr) == (1, True)


@needs_program("groff")
def test_the_manual_names_every_command_and_every_option() -> None:
    shown = work("groff", "-man", "-Tutf8", "-P-cbou", "-rLL=200n", ROOT / "man" / "btrkeep-web.8")
    assert shown.stderr == ""
    page = re.sub(r"\s+", " ", shown.stdout).replace("\u2010", "-")
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        below = command.commands if isinstance(command, click.Group) else {"": command}
        for inner, status in below.items():
            assert f"{name} {inner}".strip() in page
            for parameter in status.params if status else ():
                for option in parameter.opts if isinstance(parameter, click.Option) else ():
                    assert option in page, (name, inner, option)
    assert all(option in page for parameter in group.params for option in parameter.opts)
