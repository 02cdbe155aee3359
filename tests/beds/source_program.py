"""A host with btrkeep-source: the program as the forced command of keys of a real ssh server, and a real rsync that requests it."""

import json
import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.beds import session
from tests.beds.ssh import Sshd
from tests.beds.work import work

PROGRAM = Path(__file__).resolve().parents[2] / "backupd" / "source" / "btrkeep_source.py"
HIDDEN = ".btrkeep-source"
# What `backupd run` gives rsync (backupd/rsync/command.py), as far as it concerns a host.
OPTIONS = shlex.split(
    "--archive --hard-links --acls --xattrs --xattrs --numeric-ids --relative --delete-delay --delete-excluded "
    "--modify-window=-1 --no-human-readable --outbuf=L --info=progress2,stats2 --debug=proto --timeout=60"
)


class SourceHost:
    """The program with a configuration and a state folder of its own, and a key for each server."""

    def __init__(self, sshd: Sshd, config: str = "") -> None:
        self.sshd = sshd
        self.folder = Path(tempfile.mkdtemp(prefix="source-", dir=session.folder()))
        self.config, self.state = self.folder / "source.conf", self.folder / "state"
        self.config.write_text(config)
        self.keys: dict[str, Path] = {}

    def words(self, server: str = "office") -> list[str]:
        """Returns the command of a key's line. BTRKEEP_SOURCE_PYTHON names another Python for the program, such as 3.6."""
        python = os.environ.get("BTRKEEP_SOURCE_PYTHON")
        return [
            *((python, "-I") if python else ()),
            str(PROGRAM),
            "--config",
            str(self.config),
            "--state",
            str(self.state),
            "--server",
            server,
        ]

    def ssh(self, server: str = "office", mode: str = "") -> tuple[str, ...]:
        if server + mode not in self.keys:
            command = shlex.join([*self.words(server), *filter(None, [mode])])
            self.keys[server + mode] = self.sshd.authorize(f'restrict,command="{command}"')
        return (*self.sshd.ssh(self.keys[server + mode]), "-T")

    def request(
        self, command: str, server: str = "office", check: bool = True, mode: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Returns the answer to the server for this line."""
        return work(*self.ssh(server, mode), self.sshd.address, command, check=check)

    def refusal(self, command: str, server: str = "office", mode: str = "") -> str:
        """Returns the line with which that is refused."""
        done = self.request(command, server, check=False, mode=mode)
        assert (done.returncode, done.stdout) == (1, ""), done
        assert done.stderr.startswith("btrkeep-source: "), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr.strip().removeprefix("btrkeep-source: ")

    def begin(self, *paths: Path | str, server: str = "office") -> dict[str, Any]:
        line = self.request(shlex.join(["btrkeep-source", "begin", "--", *map(str, paths)]), server).stdout
        assert line.count("\n") == 1
        return dict(json.loads(line))

    def end(self, name: str, server: str = "office") -> dict[str, Any]:
        return dict(json.loads(self.request(f"btrkeep-source end {name}", server).stdout))

    def fetch_streams(self, dump: dict[str, Any], target: Path, server: str = "office") -> list[str]:
        """Fetches the files of a dump that is a stream, from the answer to `begin`; returns their names."""
        target.mkdir()
        for path in dump["streams"]:
            text = self.request(shlex.join(["btrkeep-source", "dump", dump["name"], path]), server).stdout
            (target / Path(path).name).write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        return sorted(Path(path).name for path in dump["streams"])

    def rsync_words(self, name: str, path: Path | str, target: Path, *options: str, server: str = "office") -> list[str]:
        """Returns the words of an rsync of a run; without a session (`name`) it requests the live files."""
        program = ["--rsync-path", f"btrkeep-source rsync {name}"] if name else []
        source = f"{self.sshd.address}:/./{str(path).strip('/')}/"
        return ["rsync", *OPTIONS, *options, *program, "-e", shlex.join(self.ssh(server)), source, f"{target}/"]

    def fetch(self, name: str, path: Path | str, target: Path, *options: str, server: str = "office") -> Path:
        """Transfers a path, and returns the folder with its files."""
        target.mkdir(exist_ok=True)
        work(*self.rsync_words(name, path, target, *options, server=server))
        return target / str(path).strip("/")

    def left(self, *tops: Path) -> list[str]:
        """Returns the remains of sessions: records, locks, and folders of snapshots at the top of these mounts."""
        records = (
            [path.name for path in self.state.glob("*") if not re.fullmatch(r"all.lock|view|dump-.*|kept-.*", path.name)]
            if self.state.exists()
            else []
        )
        return records + [str(top / HIDDEN) for top in tops if (top / HIDDEN).exists()]
