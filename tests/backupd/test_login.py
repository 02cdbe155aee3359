"""Who is recorded as the user of a command: the kernel's login id, SUDO_USER, or the process's user."""

import os
import pwd

import pytest

from btrkeep.process.proc import choose_login

DAEMON = pwd.getpwnam("daemon").pw_uid
NOBODY = 4_000_000_000


@pytest.mark.parametrize(
    ("login_id", "sudo_user", "user_id", "name"),
    [
        (None, None, 0, "root"),
        (None, "alice", 0, "alice"),
        (0, "alice", 0, "root (sudo: alice)"),  # without a login, a user may set the id to any user's
        (DAEMON, "alice", 0, "daemon (sudo: alice)"),
        (DAEMON, "daemon", 0, "daemon"),
        (DAEMON, "root", 0, "daemon"),  # `su`, and then `sudo`
        (DAEMON, "alice\nroot", 0, "daemon"),
        (DAEMON, None, 0, "daemon"),
        (NOBODY, None, 0, f"user {NOBODY}"),
        (None, "EXAMPLE\\alice", 0, "EXAMPLE\\alice"),
        (None, "alice@example.org", 0, "alice@example.org"),
        (None, "", 0, "root"),
        (None, "alice\nroot: hold", 0, "root"),
        (None, "a" * 70, 0, "root"),
        (None, "-x", 0, "root"),
    ],
)
def test_the_login_id_counts_first_then_sudo_then_the_user(
    login_id: int | None, sudo_user: str | None, user_id: int, name: str
) -> None:
    assert choose_login(login_id, sudo_user, user_id) == name


def test_the_user_of_the_process_has_a_name() -> None:
    assert choose_login(None, None, os.getuid()) == pwd.getpwuid(os.getuid()).pw_name
