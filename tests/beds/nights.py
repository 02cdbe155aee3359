"""Whole nights, as at an administrator's site: a pool, a configuration, btrkeep's command, and checks of the pool.

No result comes from btrkeep's code: paths and records are read from the pool as files, states from the programs' output.
"""

import asyncio
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from backupd.rsync.command import rsync_version
from backupd.rsync.confined import confinement
from backupd.run.host_order import plan
from backupd.run.night import NightRunner
from backupd.run.run_context import HostResult, RunContext
from btrkeep.catalogue import Catalogue
from btrkeep.cli.output import notices_on_stderr
from btrkeep.clock import Clock
from btrkeep.config import load
from btrkeep.decisions.due import latest
from btrkeep.pool.marker import open_pool
from btrkeep.process.proc import become_reaper
from btrkeep.process.progress import ProgressSinks
from tests.beds import session
from tests.beds.badssh import FAKESSH
from tests.beds.cli import backupd
from tests.beds.manifest import differences, manifest
from tests.beds.work import work

MIDSSH = Path(__file__).resolve().parent / "midssh.py"
SETTINGS: dict[str, dict[str, Any]] = {"backup": {"attempts": 1}, "ssh": {"command": shlex.quote(str(FAKESSH))}}


class Nights:
    """A pool below `top`, which is on a btrfs, and a folder for sources beside it."""

    def __init__(self, top: Path, *options: str) -> None:
        self.top = top
        self.pool = top / "pool"
        self.source = top / "source"
        self.config = top / "main.toml"
        self.state = Path(tempfile.mkdtemp(prefix="state-", dir=session.folder())) / "state"  # not on the pool's filesystem
        self.tables: dict[str, Any] = {
            "pool": {"path": str(self.pool), "state": str(self.state), "min_free": "0%"},
            **{name: dict(table) for name, table in SETTINGS.items()},
        }
        self.source.mkdir()
        self.write()
        self.backupd("init", self.pool, *options)
        session.remove_at_end(self.memory)

    @property
    def memory(self) -> Path:
        """Returns where commands remember sent alarms while the state folder cannot be used."""
        name = hashlib.sha256(os.fsencode(self.config)).hexdigest()[:16]
        return Path(f"/dev/shm/btrkeep-alarms-{os.geteuid()}-{name}")

    # --- what is asked for

    def host(self, name: str, *paths: Path | str, **keys: Any) -> None:
        """Configures a host, or replaces its configuration. Its address is its name, so that the code for the network runs."""
        given = {"address": name, "paths": [str(path) for path in paths], **keys}
        self.tables.setdefault("host", {})[name] = {key: value for key, value in given.items() if value is not None}
        self.write()

    def settings(self, table: str, **keys: Any) -> None:
        self.tables[table] |= keys
        self.write()

    def write(self) -> None:
        lines = []
        for table, content in self.tables.items():
            named = {f"host.{name}": keys for name, keys in content.items()} if table == "host" else {table: content}
            for title, keys in named.items():
                lines += [f"[{title}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
        text = "\n".join(lines) + "\n"
        tomllib.loads(text)
        self.config.write_text(text)

    def ssh(self, command: str) -> None:
        """The replacement of ssh, as a shell line; tests/fakessh if empty."""
        script = self.top / "ssh"
        script.write_text(f'#!/bin/sh\nexec {command or shlex.quote(str(FAKESSH))} "$@"\n')
        script.chmod(0o755)
        self.settings("ssh", command=str(script))

    def in_the_middle(self, count: int, command: str = ":", end: str = "goes-on") -> None:
        """After `count` bytes from the host `command` is run here; see tests/beds/midssh.py."""
        self.ssh(shlex.join([sys.executable, str(MIDSSH), str(count), end, command, "--"]))

    def rsync(self, script: str) -> Mapping[str, str]:
        """Puts our own rsync in front of the real one, as shell lines; "$REAL" is the real one. Returns its environment.

        A confined one could not do what such lines do.
        """
        self.settings("backup", confine="never")
        folder = self.top / "bin"
        folder.mkdir(exist_ok=True)
        real = work("which", "rsync").stdout.strip()
        (folder / "rsync").write_text(f"#!/bin/bash\nREAL={real}\n{script}\n")
        (folder / "rsync").chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}"}

    # --- what happens

    def backupd(
        self, *words: str | Path, check: bool = True, env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return backupd("--config", self.config, *words, check=check, env=env)

    def run(self, *names: str, status: int = 0, env: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
        """Runs `backupd run --json` of these hosts, or all; returns its results by host, after checking the exit status."""
        self._begin()
        done = self.backupd("run", "--json", *(names or ["--all"]), check=False, env=env)
        assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return {result["host"]: result for result in json.loads(done.stdout or "[]")}

    def night(self, *names: str, now: datetime | None = None) -> list[HostResult]:
        """Does the same within this process, without pauses between attempts. `now`: its clock's time, right or wrong."""
        self._begin()
        become_reaper()  # like the command: it has to reap the processes of a confined rsync's cell
        config = load("main", self.config)
        pool = open_pool(config.pool.path)
        with Catalogue.open(config.pool.state) as catalogue:
            site = RunContext(
                config,
                pool,
                catalogue,
                Clock(now),
                rsync_version(),
                ProgressSinks(notices_on_stderr),
                night=False,
                confinement=confinement(config),
                retry_pause=0.01,
            )
            facts = catalogue.host_facts(latest(site.clock.now()))
            planned = plan(config, facts, site.clock.now(), names=names, everything=not names)
            return asyncio.run(NightRunner(site, planned, wait_for_slot=not names).run())

    def _begin(self) -> None:
        """Makes the catalogue, which commands that only read need, also before the first run."""
        if not self.state.exists():
            Catalogue.open(self.state, copies=False).close()

    def json(self, *words: str) -> Any:
        return json.loads(self.backupd(*words, "--json").stdout)

    def status(self, host: str) -> dict[str, Any]:
        (answer,) = self.json("status", host)["hosts"]
        return dict(answer)

    def listed(self, host: str) -> list[dict[str, Any]]:
        """Returns the host's backups in `list`, the newest first."""
        return sorted(self.json("list", host), key=lambda backup: backup["name"] or "~", reverse=True)

    # --- what is there

    def names(self, host: str) -> list[str]:
        """Returns the names of the host's final backups, oldest first."""
        return sorted(path.name for path in (self.pool / "hosts" / host).iterdir() if path.name[0].isdigit())

    def backup(self, host: str, name: str = "") -> Path:
        """Returns a backup's folder, the newest one's without a name."""
        return self.pool / "hosts" / host / (name or self.names(host)[-1])

    def data(self, host: str, source: Path | str, name: str = "") -> Path:
        """Returns the folder of a backup that corresponds to `source` on the host."""
        return self.backup(host, name) / "data" / str(source).strip("/")

    def working(self, host: str, source: Path | str = "") -> Path:
        return self.backup(host, ".working") / "data" / str(source).strip("/")

    def record(self, host: str, name: str = "") -> dict[str, Any]:
        return dict(json.loads((self.backup(host, name) / "backup.json").read_text("utf-8")))

    def differences(self, host: str, source: Path, name: str = "", blocks: bool = False) -> list[str]:
        """Returns the differences between the present source and a backup."""
        return differences(manifest(source, blocks), manifest(self.data(host, source, name), blocks))

    def subvolume(self, host: str, name: str = "") -> dict[str, str]:
        """Returns the output of `btrfs subvolume show`, by its own titles."""
        lines = work("btrfs", "subvolume", "show", self.backup(host, name)).stdout.splitlines()
        pairs = (line.partition(":") for line in lines[1:])
        return {title.strip(): value.strip() for title, _, value in pairs}

    def grew_from(self, host: str) -> str | None:
        """Returns the name of the backup of which the newest is a snapshot, according to btrfs."""
        parent = self.subvolume(host)["Parent UUID"]
        uuids = {self.subvolume(host, name)["UUID"]: name for name in self.names(host)}
        return uuids.get(parent)
