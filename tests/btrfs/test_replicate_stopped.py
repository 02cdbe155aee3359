"""A `btrfs receive` that goes on no more, as on a frozen pool: the signal that ends a replication ends it all the same."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.beds import TOP
from tests.beds.two_pools import TwoPools
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.slow]
NOW = ("--now", "2026-03-20T12:00:00Z")


@pytest.mark.parametrize("size", [100, 5_000_000], ids=["between two streams", "within a stream"])
def test_a_receiver_that_reads_nothing_does_not_keep_a_replication_from_its_end(two: TwoPools, size: int) -> None:
    (two.source / "large").write_bytes(os.urandom(size))
    names = [two.night(f"2026-03-0{day}T22:00:00Z", chr(96 + day)) for day in (1, 2)]
    program, streams, host = two.second.top / "btrfs", two.second.top / "streams", two.second.pool / "hosts/web1"
    btrfs = Path(shutil.which("btrfs") or "").resolve()
    copy = two.second.top / "copy"
    shutil.copy(btrfs, copy)
    real = shlex.quote(str(copy))
    program.write_text(f'#!/bin/bash\n[ "$1" = receive ] || exec {real} "$@"\nwhile [ $SECONDS -lt 90 ]; do :; done\n')
    program.chmod(0o755)
    two.over_ssh(f'"$@" | tee -a {shlex.quote(str(streams))}')
    mounted = 'mount --bind "$0" "$1" && shift && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", mounted, str(program), str(btrfs), sys.executable, "-m", "backupd"]
    words += ["--config", str(two.second.config), "replicate", *NOW]
    with subprocess.Popen(words, cwd=TOP, stderr=subprocess.PIPE, text=True) as fetching:
        try:
            wait_for(lambda: streams.exists() and b"btrfs-stream" in streams.read_bytes(), 60, "nothing came")
            time.sleep(2)
            fetching.send_signal(signal.SIGTERM)
            said = fetching.communicate(timeout=40)[1]
        finally:
            fetching.kill()
    assert "Traceback" not in said, said
    assert not (host / ".receiving").exists()
    assert two.fetch()[0]["planned"] == 2
    assert two.names(two.second.pool) == names
