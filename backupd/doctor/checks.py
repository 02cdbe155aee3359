"""What `backupd check` looks at. Each check gives findings: how bad, about what, what is wrong, and what to do."""

import asyncio
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from shutil import which

from backupd.actions.discard import all_unfinished, more_room
from backupd.alarms.send import service_of
from backupd.health.doubts import Doubts, see
from backupd.health.look import look_at_pool
from backupd.repo.publish import tell_dashboard
from backupd.rsync.command import probe_command
from backupd.rsync.version import OLDEST, SAFE, rsync_version
from btrkeep.catalogue import Catalogue
from btrkeep.clock import Clock
from btrkeep.config import Config, HostConfig, page
from btrkeep.config.keys import NOTIFY, SECRET
from btrkeep.decisions import findings as health
from btrkeep.decisions.pool_health import HealthLimits, PoolFacts, judge
from btrkeep.decisions.rsync_meaning import ExitCause, meaning
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool.marker import Pool, is_on, open_pool
from btrkeep.pool.mounts import machine_mount, mount_of
from btrkeep.process.programs import ProgramFailed, run
from btrkeep.units import counted, printable

LEVELS = ("ok", "unknown", "note", "warning", "error")
"""Unknown: it could not be looked at, so nobody knows whether it is well."""
OUR_NAMES = ("backupd", "balancer", "heatmap", "web")
_PROBE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the table. `level` is one of LEVELS; `unusable` marks what makes the pool unusable.

    `cause`: why rsync could not list a path.
    """

    level: str
    subject: str
    message: str
    hint: str = ""
    unusable: bool = False
    cause: ExitCause | None = None

    def as_json(self) -> dict[str, str]:
        """The line as JSON has it."""
        return {"level": self.level, "subject": self.subject, "message": self.message, "hint": self.hint}


def check_all(config: Config, host: HostConfig | None = None) -> Iterator[CheckResult]:
    """Every check that needs no host, in the order of the table; with `host`, of that host alone. Then the dashboard is told."""
    looked_at = replace(config, hosts={host.name: host}) if host else config
    for check in _CHECKS:
        yield from check(looked_at)
    _tell(config)


def _tell(config: Config) -> None:
    """Of all hosts, whichever was looked at. What keeps it from being told is among the findings."""
    with suppress(OperatorError):
        pool = open_pool(config.pool.path)  # first: where there is no pool, no catalogue is made
        with Catalogue.open(config.pool.state) as catalogue:
            if catalogue.pool_id() in (None, pool.id):
                tell_dashboard(config, pool, catalogue, Clock())


def _configuration(config: Config) -> Iterator[CheckResult]:
    enabled = sum(host.enabled for host in config.hosts.values())
    if not config.hosts:
        yield CheckResult(
            "warning", "configuration", f"{config.file}: no host is configured", "add a [host.NAME] table; the README shows one"
        )
    else:
        yield CheckResult("ok", "configuration", f"{config.file}: {counted(len(config.hosts), 'host')}, {enabled:,} enabled")
    for notice in config.notices:
        yield CheckResult("note", "configuration", printable(notice))


def _names(_: Config) -> Iterator[CheckResult]:
    owners = metadata.packages_distributions()
    for name in OUR_NAMES:
        others = sorted(set(owners.get(name, ())) - {"btrkeep"})
        if others:
            hint = f"install btrkeep into a virtual environment of its own (without {', '.join(others)})"
            yield CheckResult("error", "import names", f"the Python package {name} also belongs to {', '.join(others)}", hint)


def _rsync(_: Config) -> Iterator[CheckResult]:
    try:
        found = rsync_version()
    except ProgramFailed as error:
        yield CheckResult("error", "rsync", error.message, "apt install rsync")
        return
    if found.numbers < OLDEST:
        yield CheckResult("error", "rsync", f"{found.version} cannot compare nanoseconds", "use 3.4.3 or later")
    elif found.numbers < SAFE:
        hint = "update it: a hostile host could use its known holes against this server"
        yield CheckResult("warning", "rsync", f"{found.version} is older than 3.4.3", hint)
    else:
        yield CheckResult("ok", "rsync", found.version)


def _other_programs(config: Config) -> Iterator[CheckResult]:
    needed = shlex.split(config.ssh.command)[:1] if any(host.address for host in config.hosts.values()) else []
    for program in needed:
        if which(program):
            version = run([program, "-V"], check=False).stderr.strip() if program == "ssh" else ""
            yield CheckResult("ok", program, version or str(which(program)))
        else:
            yield CheckResult("error", program, "is not installed", "apt install openssh-client")


def _pool(config: Config) -> Iterator[CheckResult]:
    path = config.pool.path
    try:
        pool = open_pool(path)
    except PoolUnusable as error:
        yield CheckResult("error", "pool", error.message, error.hint, unusable=True)
        return
    yield CheckResult("ok", "pool", f"{path}{', a rehearsal' if pool.rehearsal else ''}")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        yield CheckResult("error", "pool", f"{path} has mode {mode:04o}: others can look into the backups", f"chmod 700 {path}")
    yield from _health(config, pool)
    yield from _mount(path)


def _health(config: Config, pool: Pool) -> Iterator[CheckResult]:
    """What everybody says of the pool. The catalogue has a check of its own."""
    facts = look_at_pool(config)
    verdict = judge(facts, HealthLimits.of(config))
    for one in verdict.findings:
        hint = more_room(all_unfinished(pool)) if one.check == health.ROOM else one.hint
        if one.check != health.CATALOGUE:
            yield CheckResult(one.level, _SUBJECTS.get(one.check, one.check), one.text, hint, one.unusable)
    for check in verdict.unlooked:
        if check != health.CATALOGUE:
            yield CheckResult("unknown", _SUBJECTS.get(check, check), "could not be looked at", "`backupd doctor` says why")
    if facts.room and not any(verdict.of(check) for check in (health.ROOM, health.UNALLOCATED, health.USED)):
        yield CheckResult("ok", "room", str(facts.room))


_SUBJECTS = {health.UNUSABLE: "pool", health.READ_ONLY: "mount"}


def _mount(path: Path) -> Iterator[CheckResult]:
    mount, machine = mount_of(path), machine_mount(path)
    options = mount.super_options
    if "nodatacow" in options or "nodatasum" in options:
        yield CheckResult(
            "warning", "mount", "mounted with nodatacow or nodatasum: nothing notices damaged data", "mount it without"
        )
    if machine and "noatime" not in machine.mount_options:
        hint = "mount with noatime: every look at a backup of a writable subvolume costs metadata"
        yield CheckResult("note", "mount", "access times are kept", hint)


def _catalogue(config: Config) -> Iterator[CheckResult]:
    try:
        with Catalogue.open(config.pool.state) as catalogue:
            pool = open_pool(config.pool.path)
            known, pool_id = catalogue.pool_id(), pool.id
            is_ours = known in (None, pool_id)  # another one's is told nothing
            doubts = see(pool, catalogue, datetime.now(UTC)) if is_ours else Doubts(lost=False, clock=None)
    except PoolUnusable:
        return
    except OperatorError as error:
        yield CheckResult("error", "catalogue", error.message, error.hint)
        return
    facts = PoolFacts(foreign="" if is_ours else known, lost=doubts.lost)
    wrong = judge(facts, HealthLimits.of(config)).of(health.CATALOGUE)
    for one in wrong:
        yield CheckResult(one.level, "catalogue", one.text, one.hint)
    if not wrong:
        yield CheckResult("ok", "catalogue", str(config.pool.state))
    if doubts.clock:
        yield CheckResult("warning", "clock", doubts.clock, "see that the clock is right: timedatectl")
    if config.pool.state.exists() and is_on(config.pool.state, pool.filesystem):
        yield CheckResult(
            "warning",
            "catalogue",
            f"{config.pool.state} is on the pool's own filesystem: when that is full, nothing can be written down any more",
            "set `state` to a folder on another filesystem, such as /var/lib/btrkeep, and run `backupd rebuild`",
        )


def _ssh_files(config: Config) -> Iterator[CheckResult]:
    if not any(host.address for host in config.hosts.values()):
        return
    key, known = config.ssh.key, config.ssh.known_hosts
    if not key.exists():
        yield CheckResult("error", "ssh key", f"{key} is missing", f"ssh-keygen -t ed25519 -N '' -f {key}")
    elif key.stat().st_mode & 0o077:
        yield CheckResult("error", "ssh key", f"{key} can be read by others, so ssh refuses it", f"chmod 600 {key}")
    else:
        yield CheckResult("ok", "ssh key", str(key))
    if not known.exists():
        yield CheckResult(
            "error", "known_hosts", f"{known} is missing", f"ssh-keyscan HOST >> {known}, and compare the keys with the host's own"
        )


def _hooks(config: Config) -> Iterator[CheckResult]:
    for host in config.hosts.values():
        for which_one, words in (("before", host.before), ("after", host.after)):
            if words and not (which(words[0]) or os.access(words[0], os.X_OK)):
                yield CheckResult(
                    "error", host.name, f"{which_one}: {printable(words[0])} cannot be run", "install it, or mend its path and mode"
                )


def _notify(config: Config) -> Iterator[CheckResult]:
    notify = config.notify
    if not notify.urls and notify.ping is None:
        yield CheckResult(
            "note", "notify", "nobody is told when something fails", f"set `urls` in [notify]; {page('monitoring')} explains"
        )
        return
    for file in files_with_secrets(config.file):
        yield CheckResult("warning", "notify", f"{file} holds passwords and can be read by others", f"chmod 600 {file}")
    wrong = [number for number, url in enumerate(notify.urls, 1) if service_of(url) is None]
    for number in wrong:
        message = f"number {number} of `urls` is no URL that apprise understands"
        yield CheckResult("error", "notify", message, "apprise's documentation has the form of each service's")
    if not wrong:
        switch = " and a dead man's switch" if notify.ping else ""
        yield CheckResult("ok", "notify", f"{counted(len(notify.urls), 'URL')}{switch}; `backupd notify --test` tries them")


def files_with_secrets(main: Path) -> Iterator[Path]:
    """Files of the configuration that others may read and that set a key of [notify] that is secret. Raises OSError."""
    for file in (main, *sorted(main.with_suffix(".d").glob("[!.]*.toml"))):
        if stat.S_IMODE(file.stat().st_mode) & 0o044 and SECRET & tomllib.loads(file.read_text("utf-8-sig")).get(NOTIFY, {}).keys():
            yield file


def _sources(config: Config) -> Iterator[CheckResult]:
    for host in config.hosts.values():
        for path in host.paths if not host.address else ():
            if not _is_folder(path):
                yield CheckResult("error", host.name, f"{printable(path)} is no folder of this machine", "mend `paths`")


def _is_folder(path: str) -> bool:
    """Asked by another program, which can be given up: a source may lie on a mount that does not answer."""
    try:
        return run(("test", "-d", path), timeout=_PROBE_SECONDS, check=False).returncode == 0
    except ProgramFailed:
        return False


_CHECKS: tuple[Callable[[Config], Iterator[CheckResult]], ...] = (
    _configuration, _names, _rsync, _other_programs, _pool, _catalogue, _ssh_files, _hooks, _sources, _notify,
)  # fmt: skip


async def check_hosts(config: Config) -> list[CheckResult]:
    """Every enabled host's paths by `rsync --list-only`, a few at a time."""
    gate = asyncio.Semaphore(max(4, config.backup.concurrency))
    hosts = [host for host in config.hosts.values() if host.enabled and host.address]
    return [finding for found in await asyncio.gather(*(_probe(gate, config, host) for host in hosts)) for finding in found]


async def _probe(gate: asyncio.Semaphore, config: Config, host: HostConfig) -> list[CheckResult]:
    async with gate:
        found = [finding for path in host.paths if (finding := await asyncio.to_thread(_probe_path, config, host, path))]
    return found or [CheckResult("ok", host.name, f"reached, {counted(len(host.paths), 'path')} can be listed")]


def _probe_path(config: Config, host: HostConfig, path: str) -> CheckResult | None:
    try:
        done = run(probe_command(host, config.ssh, path), timeout=_PROBE_SECONDS, check=False)
    except ProgramFailed as error:
        return CheckResult("error", host.name, f"{printable(path)}: {error.message}", "is the host up?")
    if done.returncode == 0:
        return None
    lines = [printable(line) for line in done.stderr.splitlines() if line.strip()]
    means = meaning(done.returncode, lines)
    bare = (line.strip("@ ") for line in lines if not line.startswith("rsync error"))  # ssh's largest warning has a frame of @
    said = next(filter(None, bare), "")
    level = "warning" if host.optional and means.unreachable else "error"
    message = f"{printable(path)}: {means.words}" + (f": {said}" if said else "")
    hint = _NO_PYTHON if _RRSYNC_DOES_NOT_START.search(said) else _HINTS.get(means.cause, "")
    return CheckResult(level, host.name, message, hint, cause=means.cause)


# A shell's words when the program is not there, or when its interpreter is not: they do not say which.
_RRSYNC_DOES_NOT_START = re.compile(r"rrsync: .*(?:not found|cannot execute|bad interpreter|No such file)")
_NO_PYTHON = "rrsync does not start there: it comes with rsync, and needs python3; install both on the host"
_HINTS: dict[ExitCause | None, str] = {
    ExitCause.HOST_KEY: "ssh-keyscan the host into known_hosts, and compare the key with the host's own",
    ExitCause.KEY_REFUSED: f"add the public key to the host's authorized_keys; {page('restricted-keys')} has the line",
    ExitCause.NOT_TRANSFERRED: "does the path exist there, and may the user read it?",
    ExitCause.NO_RSYNC: "install rsync there, or set rsync_path",
}
