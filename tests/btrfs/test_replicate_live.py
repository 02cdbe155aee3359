"""`backupd replicate` on a terminal."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import TOP
from tests.beds.terminal import at_a_terminal
from tests.beds.two_pools import TwoPools

pytestmark = pytest.mark.btrfs
STOP = """
import os, sys, time
left = 2_000_000
while data := os.read(0, 65536):
    if 0 <= left < len(data):
        time.sleep(2)
    left -= len(data)
    os.write(1, data)
"""


def test_a_terminal_shows_the_announced_bytes_the_hosts_and_the_time_left(make_btrfs: Callable[..., Path]) -> None:
    two = TwoPools(make_btrfs(), make_btrfs())
    (two.source / "large").write_bytes(os.urandom(4_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.night("2026-03-02T22:00:00Z", "b")
    two.over_ssh(f'"$@" | {shlex.quote(sys.executable)} -c {shlex.quote(STOP)}')
    words: list[str | Path] = [
        sys.executable,
        "-m",
        "backupd",
        "--config",
        two.second.config,
        "replicate",
        "--now",
        "2026-03-20T12:00:00Z",
    ]
    env = {"PYTHONPATH": str(TOP), "TERM": "xterm"}
    with at_a_terminal(words, env, width=100) as shown:
        shown.wait_for(r"2 backups of 1 host to fetch")
        shown.wait_for(r"backups\s.*\s0 of 2\s+time left unknown")
        shown.wait_for(r"bytes\s.*\s[\d.]+ MiB of 3.8\d? MiB announced")
        shown.wait_for(r"fetching web1")
        shown.wait_for(rf"web1@{first}: .* completely")
        shown.wait_for(r"office: 2 backups fetched")
        assert shown.process.wait(60) == 0
