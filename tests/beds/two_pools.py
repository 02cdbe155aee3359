"""A first pool with a host, and a second one that fetches from it."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

from tests.beds import TOP, work
from tests.beds.cli import BACKUPD
from tests.beds.nights import Nights
from tests.beds.walls import with_own_mounts
from tests.beds.watch import wait_for

NOW = "2026-03-20T12:00:00Z"
RELAY = """
import os, sys, time
def put(data):
    while data:
        data = data[os.write(1, data):]
left = int(sys.argv[2])
while data := bytearray(os.read(0, 65536)):
    if 0 <= left < len(data):
        if sys.argv[1] == "flip":
            data[left] ^= 1
        else:
            put(data[:left])
            time.sleep(200 if sys.argv[1] == "stop" else 0)
            sys.exit()
    left -= len(data)
    put(data)
"""


class TwoPools:
    """A first pool with a host that changes, and a second one that fetches from it."""

    def __init__(self, first: Path, second: Path, **keys: Any) -> None:
        self.first, self.second = Nights(first, "--rehearsal"), Nights(second, "--rehearsal")
        self.source = self.first.source / "web1"
        self.source.mkdir()
        self.first.host("web1", self.source)
        self.second.tables["replica.office"] = {"from": str(self.first.pool), **keys}
        self.second.write()

    def onward(self, third: Path) -> "TwoPools":
        """Returns the second pool, and a third one that fetches from it."""
        made = copy(self)
        made.first, made.second = self.second, Nights(third, "--rehearsal")
        made.second.tables["replica.office"] = {"from": str(made.first.pool)}
        made.second.write()
        return made

    def night(self, now: str, content: str) -> str:
        """Runs a night of the first pool, after a file has changed and one was added; returns the backup's name."""
        (self.source / "changed").write_text(content * 5000)
        (self.source / f"new-{now[:10]}").write_text(content)
        self.first.backupd("run", "web1", "--now", now)
        return self.names(self.first.pool)[-1]  # a second later on a crowded machine

    def fetch(self, *words: str, status: int = 0, env: Mapping[str, str] | None = None, now: str = NOW) -> Any:
        done = self.second.backupd("replicate", "--json", *words, "--now", now, check=False, env=env)
        assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    def over_ssh(self, script: str) -> None:
        """Makes the second pool fetch by ssh, which shell lines replace: "$@" is the command that answers on the other server."""
        answers = shlex.join([sys.executable, "-m", "backupd", "--config", str(self.first.config), "send-only"])
        file = self.second.top / "ssh"
        file.write_text(f"#!/bin/bash\ncd {shlex.quote(str(TOP))}\nRELAY='{RELAY}'\nset -- {answers}\n{script}\n")
        file.chmod(0o755)
        self.second.settings("ssh", command=str(file))
        self.second.tables["replica.office"]["from"] = "ssh://root@first"
        self.second.write()

    @contextmanager
    def replicating(self, real: Path, receive: str, backupd: Sequence[str | Path] = BACKUPD) -> Iterator["subprocess.Popen[str]"]:
        """`backupd replicate` by ssh, in which these lines of the shell replace `btrfs receive`. The real program is copied to
        `real`; `streams` has the received data. `backupd`: the words that start it.
        """
        program, btrfs = self.second.top / "btrfs", Path(shutil.which("btrfs") or "").resolve()
        shutil.copy(btrfs, real)
        program.write_text(f'#!/bin/bash\n[ "$1" = receive ] || exec {shlex.quote(str(real))} "$@"\n{receive}\n')
        program.chmod(0o755)
        self.over_ssh(f'"$@" | tee -a {shlex.quote(str(self.streams))}')
        mounted = 'mount --bind "$0" "$1" && shift && exec "$@"'
        words = ["sh", "-c", mounted, str(program), str(btrfs), *backupd]
        words += ["--config", str(self.second.config), "replicate", "--now", NOW]
        with subprocess.Popen(with_own_mounts(*words), cwd=TOP, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    @property
    def streams(self) -> Path:
        """Returns the streams that the first pool has sent to `replicating`."""
        return self.second.top / "streams"

    def wait_for_streams(self, count: int) -> None:
        """Waits until that many have started."""
        path = self.streams
        wait_for(lambda: path.exists() and path.read_bytes().count(b"btrfs-stream") >= count, 60, "nothing came")

    def names(self, pool: Path, host: str = "web1") -> list[str]:
        folder = pool / "hosts" / host
        return sorted(path.name for path in folder.glob("20*"))

    def differences(self, name: str) -> str:
        """Returns the differences between the two copies of a backup found by rsync, by checksums."""
        path, other = (pool / "hosts/web1" / name for pool in (self.first.pool, self.second.pool))
        return work("rsync", "-n", "-aHAXc", "--delete", "-i", f"{path}/", f"{other}/").stdout


def shown(path: Path) -> dict[str, str]:
    """Returns the output of `btrfs subvolume show`."""
    lines = work("btrfs", "subvolume", "show", path).stdout.splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
