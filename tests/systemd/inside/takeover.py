"""The possible actions of an attacker who controls the dashboard: running as its user, with its files, both sockets and the
sessions' tokens.

Prints a line of JSON for each attempt: its name, and "could", "could not", or how it was refused.
`takeover.py words` first, as root: it logs people in, as the dashboard would, and prints the words of their sessions;
`takeover.py run-as-root` prints the name of a job.
"""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from btrkeep.errors import OperatorError
from btrkeep.serving.client import RootServiceClient
from btrkeep.serving.protocol import RequestRefused

SERVE, LOGIN = Path("/run/btrkeep/serve-main.sock"), Path("/run/btrkeep/login-main.sock")
USERS, OWN = Path("/var/lib/btrkeep-login/main/users.sqlite"), Path("/var/lib/btrkeep-web/main")
PASSWORD = "four words to remember"
FILE = "/srv/source/file"


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def login(name: str, password: str = PASSWORD, address: str = "192.0.2.1") -> Any:
    return RootServiceClient(LOGIN, "").ask("login", name=name, password=password, address=address, browser="")


def words() -> dict[str, str]:
    """Logs in Carol, and makes other sessions that are over, each in another way."""
    word = {name: login(user)["word"] for name, user in WORDS.items()}
    RootServiceClient(LOGIN, "", session=word["logged out"]).ask("logout", address="")
    with closing(sqlite3.connect(USERS)) as store, store:
        store.execute("UPDATE session SET seen = seen - 50000 WHERE user = 'idle'")
        guess = "INSERT INTO attempt (name, address, at) VALUES ('alice', ?, unixepoch())"
        store.executemany(guess, [(f"203.0.113.{number}",) for number in range(45)])
    return word


WORDS = {"carol": "carol", "olga": "olga", "logged out": "alice", "idle": "idle", "before another password": "bob"}


def tried(name: str, attempt: Callable[[], Any]) -> None:
    try:
        answer = attempt()
        outcome = "could" if answer is None or answer is True or answer else "could not"
    except RequestRefused as error:
        outcome = error.kind
    except OperatorError:
        outcome = "absent"
    except OSError as error:
        outcome = os.strerror(error.errno or 0).lower()
    except (sqlite3.Error, subprocess.CalledProcessError):
        outcome = "could not"
    print_line(json.dumps([name, outcome]))


def at(session: str | None, verb: str, **arguments: Any) -> Callable[[], Any]:
    return lambda: RootServiceClient(SERVE, "root", session=session).ask(verb, **arguments)


def sent(request: dict[str, Any]) -> Callable[[], None]:
    """Sends a request unchanged, without the client's checks."""

    def attempt() -> None:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(SERVE))
            line.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(line.makefile().readline())
            if not answer["ok"]:
                raise RequestRefused(answer["error"], "", answer["kind"])

    return attempt


def runs(*command: str) -> Callable[[], Any]:
    return lambda: (
        subprocess.run(command, check=True, capture_output=True, timeout=60, input=b"another good password\n").returncode == 0
    )


def plays_login_service() -> None:
    LOGIN.unlink()


def reads_memory(pid: str) -> Callable[[], None]:
    return lambda: Path(f"/proc/{pid}/mem").open("rb").close()


def has_hashes() -> bool:
    return any(b"argon2" in path.read_bytes() for path in OWN.rglob("*") if path.is_file())


def flood(session: str, others: str) -> None:
    """Sends more requests than the limit, and one of another user at the same time."""
    refused = 0
    for _ in range(100):
        try:
            at(session, "retention", host="web1")()
        except RequestRefused as error:
            refused += error.kind == "busy"
    print_line(json.dumps(["a flood is cut", "busy" if refused > 30 else str(refused)]))
    tried("somebody else is answered meanwhile", at(others, "retention", host="web1"))


def guesses() -> bool:
    outcomes = [login("alice", f"a wrong guess {number}", f"198.51.100.{number}")["outcome"] for number in range(12)]
    return outcomes.count("wrong") > 6


def main() -> None:
    word, pid, job = json.loads(Path("words").read_text()), *sys.argv[1:3]
    web1, here = {"host": "web1", "backup": "latest"}, {"host": "here", "backup": "latest"}
    restore = {"paths": [FILE]}
    carol, olga = word["carol"], word["olga"]
    # --- what carol, a viewer of web1 who is logged in, may do
    tried("carol browses web1", at(carol, "browse", **web1, path="/srv/source"))
    tried("carol sees versions of web1", at(carol, "versions", host="web1", path=FILE))
    tried("carol is told jobs", lambda: at(carol, "jobs")() == [])
    # --- what she may not
    asked: Mapping[str, dict[str, Any]] = {"hold": {}, "accept": {}, "restore": restore, "preview": restore}
    for verb, more in {"browse": {"path": "/"}, **asked}.items():
        tried(f"carol asks {verb} of here", at(carol, verb, **here, **more))
    for verb, more in {"release": dict[str, Any](), **asked}.items():
        tried(f"carol asks {verb} of web1", at(carol, verb, **web1, **more))
    tried("carol downloads of here", lambda: RootServiceClient(SERVE, "", session=carol).stream("download", **here, path=FILE))
    tried("carol compares here", at(carol, "compare", host="here", path=FILE, before="latest"))
    tried("carol runs web1", at(carol, "run", host="web1"))
    tried("carol reads a job of here", at(carol, "job", job=job))
    for verb in ("doctor", "plan"):
        tried(f"carol asks for {verb}", at(carol, verb))
    tried("olga, an operator of web1, runs here", at(olga, "run", host="here"))
    tried("olga holds web1", at(olga, "hold", **web1))
    tried("olga restores elsewhere on web1", at(olga, "restore", **web1, **restore, to="host:/etc"))
    # --- without a session, or with an invalid one
    tried("asks as root, without a session", at(None, "browse", **here, path="/"))
    for name in ("logged out", "idle", "before another password"):
        tried(f"a session that is {name}", at(word[name], "jobs"))
    tried("a session that is made up", at("x" * 43, "jobs"))
    tried("a token that is made up", at("btrkeep_" + "x" * 43, "jobs"))
    tried("no session", at("", "jobs"))
    tried("a role in the request", sent({"verb": "run", "session": carol, "role": "admin", "arguments": {"host": "here"}}))
    tried("who and session", sent({"verb": "jobs", "who": "root", "session": carol, "arguments": {}}))
    tried("a verb that is none", at(carol, "forget", host="web1"))
    # --- the login service
    tried("the password before", lambda: login("bob")["outcome"] == "in")
    tried("another password for carol", lambda: another_password(carol)["outcome"] == "in")
    tried("a user by a verb", lambda: RootServiceClient(LOGIN, "", session=carol).ask("add_user", name="eve", role="admin"))
    tried("guesses without end", guesses)
    # --- files and processes
    tried("reads the users", USERS.read_bytes)
    tried("writes the users", lambda: USERS.open("r+b").close())
    tried("looks into the users' folder", lambda: list(USERS.parent.iterdir()))
    tried("puts a folder in its place", lambda: USERS.parent.rename("/var/lib/btrkeep-login/x"))
    tried("has hashes", has_hashes)
    tried("reads the login service's memory", reads_memory(pid))
    tried("kills the login service", lambda: os.kill(int(pid), signal.SIGKILL))
    tried("removes its socket", plays_login_service)
    tried("adds a user", runs("btrkeep-web", "user", "add", "eve", "--role", "admin"))
    tried("raises a role", runs("btrkeep-web", "user", "change", "carol", "--role", "admin"))
    tried("stops the login service", runs("systemctl", "--no-ask-password", "stop", "btrkeep-login@main.service"))
    tried("writes the catalogue", lambda: Path("/var/lib/btrkeep/main/catalogue.sqlite").open("r+b").close())
    tried("reads the configuration", Path("/etc/btrkeep/main.toml").read_bytes)
    tried("opens the catalogue", lambda: Path("/var/lib/btrkeep/main/catalogue.sqlite").open("rb").close())
    tried("reads the copy of the catalogue", lambda: Path("/var/lib/btrkeep/main/dashboard.sqlite").open("rb").close())
    flood(carol, olga)


def another_password(session: str) -> Any:
    words = {"password": "a guess of hers", "new": "another good password", "address": "", "browser": ""}
    return RootServiceClient(LOGIN, "", session=session).ask("password", **words)


if __name__ == "__main__":
    if sys.argv[1:] == ["words"]:
        print_line(json.dumps(words()))
    elif sys.argv[1:] == ["run-as-root"]:
        print_line(RootServiceClient(SERVE, "root").ask("run", host="here")["job"])
    else:
        main()
