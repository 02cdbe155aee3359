"""Random histories of several servers that back up, fetch, promote, demote, rename, delete, hold and expire, with clocks that jump.

The expected content of a backup is stored when it is made, under the UUID that btrfs gives it; rsync, which is independent of
btrkeep, compares every copy with that.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.beds import work
from tests.beds.nights import Nights
from tests.btrfs.test_import_random import Source

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
_LINKS = {"middle": ("first", "third"), "first": ("middle",), "last": ("middle",), "third": ()}
"""The servers from which each server fetches: a chain, and two servers that fetch from each other."""
_NONE = "-"


@dataclass(slots=True)
class Machine:
    """A machine that is backed up. `truth`: a folder with its content when a backup of it was made, by the backup's UUID."""

    source: Path
    chance: random.Random
    tree: Source = field(init=False)

    def __post_init__(self) -> None:
        self.tree = Source(self.source, self.chance)


@dataclass(frozen=True, slots=True)
class FoundBackup:
    """A backup in a pool, as btrfs lists it."""

    path: Path
    id: int
    content: str
    """The UUID of the backup, or of the backup of which it is a copy."""
    host: str

    @property
    def name(self) -> str:
        return self.path.name


class History:
    """A random sequence of backups, fetches, renames and deletions on four servers, which back up two machines."""

    def __init__(self, make: Callable[..., Path], seed: int) -> None:
        self.chance = random.Random(seed)
        self.top = make(size="2G")
        self.servers = {name: self._server(make()) for name in _LINKS}
        for name, sources in _LINKS.items():
            for source in sources:
                self.servers[name].tables[f"replica.{source}"] = {"from": str(self.servers[source].pool)}
            self.servers[name].write()
        self.machines = {name: Machine(self.top / name, self.chance) for name in ("web1", "db1")}
        self.truth = dict[str, tuple[str, Path]]()
        """By UUID: the machine, and what it had."""
        self.compared = set[tuple[str, int]]()
        self.held = set[tuple[str, str]]()
        """The servers and contents that nothing may take away."""
        self.deleted = set[tuple[str, str]]()
        """The servers and contents deleted there on request: they do not return."""
        self.now = datetime(2026, 3, 1, 22, tzinfo=UTC)
        self.ahead = dict.fromkeys(_LINKS, timedelta())
        """How far each server's clock is wrong."""
        self.history = list[str]()
        self.own = {("first", "web1"): "web1", ("third", "db1"): "db1"}
        """By server and host: the machine that it backs up."""
        for (server, host), machine in self.own.items():
            self.servers[server].host(host, self.machines[machine].source)

    def _server(self, top: Path) -> Nights:
        made = Nights(top, "--rehearsal")
        made.tables["retention"] = {"daily": 4, "weekly": 2, "min_keep": 1, "grace": "1s"}
        made.write()
        return made

    # --- what happens

    def command(self, server: str, *words: str, status: tuple[int, ...] = (0,)) -> Any:
        """Runs it with the server's clock, and checks all pools afterwards."""
        now = self.now + self.ahead[server]
        done = self.servers[server].backupd(*words, "--now", now.strftime("%Y-%m-%dT%H:%M:%SZ"), check=False)
        self.history.append(f"{now:%m-%dT%H:%M} {server}: {' '.join(words)}: {done.returncode}")
        assert done.returncode in status, f"{self}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"{self}\n{done.stderr}"
        self.check_pools()
        return json.loads(done.stdout) if "--json" in words and done.stdout else None

    def __str__(self) -> str:
        return "\n".join(self.history)

    def step(self) -> None:
        deeds = (self.night, self.night, self.fetch, self.fetch, self.fetch, self.promote, self.demote, self.rename, self.delete)
        self.chance.choice((*deeds, self.hold, self.expire, self.clock))()

    def night(self) -> None:
        self.now += timedelta(hours=self.chance.choice((1, 12, 24)))
        if not self.own:
            return
        (server, host), machine = self.chance.choice(sorted(self.own.items()))
        self.machines[machine].tree.day()
        before = {backup.content for backup in self.backups_of(server)}
        (done,) = self.command(server, "run", "--json", host, status=(0, 1))
        if done["outcome"] in ("complete", "suspect"):
            new = [backup for backup in self.backups_of(server) if backup.content not in before]
            assert [backup.host for backup in new] == [host], f"{self}\n{new}\n{done}"
            assert self.truth[new[0].content][0] == machine

    def fetch(self) -> None:
        self.now += timedelta(minutes=self.chance.choice((5, 90)))
        server = self.chance.choice([name for name in _LINKS if _LINKS[name]])
        source = self.chance.choice(_LINKS[server])
        here, by_name = ({backup.content: backup for backup in self.backups_of(each)} for each in (server, source))
        common = {by_name[content].host for content in here.keys() & by_name.keys()}
        for row in self.command(server, "replicate", source, "--json", status=(0, 1, 3, 4)) or ():
            whole = {fetch["host"] for fetch in row.get("fetched", ()) if fetch["parent"] is None}
            assert not whole & common, f"{self}\nfetched as a whole again: {whole & common}"

    def promote(self) -> None:
        server, host = self._host()
        if host == _NONE or (server, host) in self.own:
            return
        if self.command(server, "promote", host, "--yes", "--json", status=(0, 2)):
            machine = self.machine(server, host)
            self.own[server, host] = machine
            self.servers[server].host(host, self.machines[machine].source)

    def demote(self) -> None:
        server, host = self._host()
        links = _LINKS[server]
        if host == _NONE or not links or (server, host) not in self.own:
            return
        if self.command(server, "demote", self.chance.choice(links), host, "--yes", "--json", status=(0, 1, 2)):
            del self.own[server, host]
            if self.chance.random() < 0.5:
                self.servers[server].tables["host"].pop(host)
                self.servers[server].write()

    def rename(self) -> None:
        server, host = self._host()
        new = self.chance.choice(("web1", "db1", "new1", "new2"))
        if host in (_NONE, new):
            return
        if self.command(server, "rename", host, new, "--yes", "--json", status=(0, 1, 2)):
            config = self.servers[server].tables.setdefault("host", {})
            if host in config:
                config[new] = config.pop(host)
                self.servers[server].write()
            if (server, host) in self.own:
                self.own[server, new] = self.own.pop((server, host))

    def delete(self) -> None:
        server, host = self._host()
        names = [backup for backup in self.backups_of(server) if backup.host == host]
        if names and self.chance.random() < 0.5:
            single = self.chance.choice(names)
            words = ("delete", f"{host}@{single.name}", "--now-without-grace", "--json", *self.chance.choice(((), ("--force",))))
            self.command(server, *words, status=(0, 1, 2))
            self.deleted.add((server, single.content))

    def hold(self) -> None:
        server, host = self._host()
        names = [backup for backup in self.backups_of(server) if backup.host == host]
        if names:
            single = self.chance.choice(names)
            verb = self.chance.choice(("hold", "hold", "release"))
            self.held.discard((server, single.content))
            self.command(server, verb, host, single.name, status=(0, 1, 2))
            if verb == "hold" and self.history[-1].endswith(": 0"):
                self.held.add((server, single.content))

    def expire(self) -> None:
        self.command(self.chance.choice(list(_LINKS)), "expire", "--json", status=(0, 1))

    def clock(self) -> None:
        """Lets days pass; or makes one server's clock wrong, or right again."""
        if self.chance.random() < 0.5:
            self.now += timedelta(days=self.chance.choice((1, 3, 8)))
        else:
            self.ahead[self.chance.choice(list(_LINKS))] = timedelta(hours=self.chance.choice((-30, -2, 0, 0, 50)))

    def _host(self) -> tuple[str, str]:
        server = self.chance.choice(list(_LINKS))
        return server, self.chance.choice(sorted({backup.host for backup in self.backups_of(server)}) or [_NONE])

    # --- what is there

    def backups_of(self, server: str) -> list[FoundBackup]:
        pool = self.servers[server].pool
        lines = work("btrfs", "subvolume", "list", "-u", "-R", pool).stdout.splitlines()
        return [backup for line in lines if (backup := _backup_of_line(pool, line))]

    def machine(self, server: str, host: str) -> str:
        """Returns the only machine whose backups are in that host's folder."""
        (output,) = {self.truth[backup.content][0] for backup in self.backups_of(server) if backup.host == host}
        return output

    def check_pools(self) -> None:
        """Requires that every backup in every pool has its machine's content, no folder has backups of two machines, and nothing is
        incomplete.
        """
        for server, nights in self.servers.items():
            backups = self.backups_of(server)
            for found_backup in backups:
                if found_backup.content not in self.truth:
                    self._keep(server, found_backup)
                machine, truth = self.truth[found_backup.content]
                if (server, found_backup.id) not in self.compared:
                    self.compared.add((server, found_backup.id))
                    data = found_backup.path / "data" / str(self.machines[machine].source).strip("/")
                    output = work("rsync", "-n", "-aHAXci", "--delete", f"{truth}/", f"{data}/").stdout
                    assert output == "", f"{self}\n{server}: {found_backup.path}\n{output}"
            for host in {backup.host for backup in backups}:
                owners = {self.truth[backup.content][0] for backup in backups if backup.host == host}
                assert len(owners) == 1, f"{self}\n{server}: {host} is of {owners}"
            assert not list(nights.pool.glob("hosts/*/.receiving")), self
            lost = {content for name, content in self.held if name == server} - {backup.content for backup in backups}
            assert not lost, f"{self}\n{server}: a held backup is gone: {lost}"

    def _keep(self, server: str, backup: FoundBackup) -> None:
        """Records the present content of the machine for a backup that was just made."""
        machine = self.own.get((server, backup.host))
        assert machine, f"{self}\n{server}: {backup.path} is of nobody"
        truth = self.top / f"truth-{len(self.truth)}"
        work("rsync", "-aHAX", f"{self.machines[machine].source}/", f"{truth}/")
        self.truth[backup.content] = machine, truth

    def settle(self) -> None:
        """Lets every pool fetch; each missing backup has a reported reason."""
        for _ in range(2):
            for server in _LINKS:
                for source in _LINKS[server]:
                    self.now += timedelta(minutes=5)
                    for row in self.command(server, "replicate", source, "--json", status=(0, 1, 4)) or ():
                        if "error" not in row:  # that reason applies to all of them
                            self._require_reasons(server, source, {failure["host"] for failure in row["failed"]})

    def _require_reasons(self, server: str, source: str, failed: set[str]) -> None:
        """Requires that the newest backup of each copy is here, except with a reported reason, a time in the future, or if not
        wanted.
        """
        latest = (self.now + self.ahead[server]).strftime("%Y-%m-%dT%H%M%SZ")
        for path in (self.servers[server].pool / "hosts").glob("*/notes.json"):
            mark, host = json.loads(path.read_text()).get("replica"), path.parent.name
            if not mark or mark["name"] != source or host in failed:
                continue
            backups = [backup for backup in self.backups_of(source) if backup.host == host and backup.name < latest]
            wanted = max(
                (backup for backup in backups if (server, backup.content) not in self.deleted),
                key=lambda backup: backup.name,
                default=None,
            )
            here = max((backup.name for backup in self.backups_of(server) if backup.host == host), default="")
            why = f"{self}\n{server}: {wanted} did not come from {source}, and no reason was told"
            assert wanted is None or wanted.name <= here, why


def _by_name(backup: FoundBackup) -> str:
    return backup.name


def _backup_of_line(pool: Path, line: str) -> FoundBackup | None:
    words = line.split()
    path = pool / words[-1]
    if path.parent.parent != pool / "hosts" or not path.name[0].isdigit():
        return None
    received, uuid = words[words.index("received_uuid") + 1], words[words.index("uuid") + 1]
    return FoundBackup(path, int(words[1]), uuid if received == _NONE else received, path.parent.name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_a_random_history_of_several_servers(make_btrfs: Callable[..., Path], seed: int) -> None:
    """Some steps; `long` has hundreds."""
    _live(make_btrfs, seed, 14)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(2, 10))
def test_long_random_histories_of_several_servers(make_btrfs: Callable[..., Path], seed: int) -> None:
    """Cases that need many steps: hosts that were promoted, demoted and renamed in several pools, and expired in between."""
    _live(make_btrfs, seed, 80)


def _live(make_btrfs: Callable[..., Path], seed: int, steps: int) -> None:
    history = History(make_btrfs, seed)
    for _ in range(steps):
        history.step()
    history.settle()
