"""The checks of `backupd check`. Each yields findings."""

import os
import shlex
import stat
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from shutil import which

from backupd.actions.discard import UnfinishedBackup, all_unfinished, room_hint
from backupd.alarms.send import service_of
from backupd.doctor.copy_checks import check_copies, check_steps
from backupd.doctor.host_checks import crowded, made_by_hook, mount_findings
from backupd.doctor.rules.site import by_hand, known_hosts, ssh_key
from backupd.doctor.rules.state import idle_quotas
from backupd.doctor.site_facts import read_key_file
from backupd.expire.trust import TrustCheck, check_trust, clock_synchronised
from backupd.health.pool_facts import read_pool_facts
from backupd.repo.pool_context import open_configured
from backupd.repo.publish import publish_to_dashboard
from backupd.rsync.cell import confinement_hint
from backupd.rsync.command import OLDEST, SAFE, rsync_version
from backupd.rsync.confined import confinement, require_harmless
from btrkeep.catalogue import Catalogue
from btrkeep.clock import Clock
from btrkeep.config import Config, HostConfig, page
from btrkeep.config.config_key import NOTIFY
from btrkeep.config.keys import SECRET
from btrkeep.config.reading import backupd_command
from btrkeep.decisions import findings as health
from btrkeep.decisions.cause_words import altered_hint, altered_words
from btrkeep.decisions.findings import Finding, privilege_findings
from btrkeep.decisions.pool_health import HealthLimits, PoolFacts, clock_findings, judge_pool, redundancy_words
from btrkeep.decisions.schedule import ScheduleVerdict
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.hung_storage import HINT, answers
from btrkeep.pool import qgroups
from btrkeep.pool.marker import Pool, is_on
from btrkeep.pool.mounts import machine_mount, mount_of
from btrkeep.process.programs import ProgramFailed, run
from btrkeep.procfs import mounts, read_capabilities
from btrkeep.trusted_path import remedy, untrusted_config
from btrkeep.units import counted, local_time, names_in_words, printable

OUR_NAMES = ("backupd", "balancer", "heatmap", "web")


def check_all(config: Config, host: HostConfig | None = None) -> Iterator[Finding]:
    """Runs every check that needs no connection, in the order of the table; with `host`, for that host alone. Then publishes the
    configuration for the dashboard.
    """
    selected = replace(config, hosts={host.name: host}) if host else config
    for check in _CHECKS:
        yield from check(selected)
    _publish(config)


def _publish(config: Config) -> None:
    """Publishes all hosts, including those that were not checked. The findings have the reason if that fails."""
    with suppress(OperatorError):
        pool = open_configured(config)  # first, so that no catalogue is created where there is no pool
        with Catalogue.open(config.pool.state) as catalogue:
            if catalogue.pool_id() in (None, pool.id):
                publish_to_dashboard(config, pool, catalogue, Clock())


def _configuration(config: Config) -> Iterator[Finding]:
    enabled = sum(host.enabled for host in config.hosts.values())
    if not config.hosts and config.replicas:
        yield Finding("configuration", "ok", f"{config.file}: {counted(len(config.replicas), 'replica')}, no host configured")
    elif not config.every_host:
        yield Finding(
            "configuration", "warning", f"{config.file}: no host is configured", "add a [host.NAME] table; the README shows one"
        )
    else:
        yield Finding("configuration", "ok", f"{config.file}: {counted(len(config.hosts), 'host')}, {enabled:,} enabled")
    for fault in config.faults:
        hint = "correct that line: until then its section is skipped"
        yield Finding("configuration", "error", printable(fault), hint)
    for notice in config.notices:
        yield Finding("configuration", "note", printable(notice))
    for file in _files(config.file):
        try:
            status = file.stat()
        except OSError:  # a dangling symlink, which is among the faults
            continue
        if (
            status.st_gid and status.st_mode & stat.S_IWGRP
        ):  # files writable by all users are refused anyway; the group may be that of the administrators
            text = f"{file} can be written by its group, {status.st_gid}, whose members could make root run any command"
            yield Finding("configuration", "note", text, f"`chmod g-w {shlex.quote(str(file))}`")
    yield from _hook_trust(config)


def _hook_trust(config: Config) -> Iterator[Finding]:
    """Yields the reasons why hooks would not be run."""
    if not any(host.before or host.after for host in config.hosts.values()):
        return
    try:
        step = untrusted_config(config.file)
    except OSError as error:
        yield Finding("hooks", "error", f"{printable(str(config.file))} cannot be checked: {error.strerror}", "run this as root")
        return
    if step:
        text = f"{printable(str(step.place))} {step.reason}, who could run any command as root: no hook is run"
        yield Finding("hooks", "error", text, remedy(step))


def _names(_: Config) -> Iterator[Finding]:
    owners = metadata.packages_distributions()
    for name in OUR_NAMES:
        others = sorted(set(owners.get(name, ())) - {"btrkeep"})
        if others:
            hint = f"install btrkeep into its own virtual environment (without {', '.join(others)})"
            yield Finding("import names", "error", f"the Python package {name} also belongs to {', '.join(others)}", hint)


def _rsync(_: Config) -> Iterator[Finding]:
    try:
        rsync = rsync_version()
    except ProgramFailed as error:
        yield Finding("rsync", "error", error.message, "`apt install rsync`")
        return
    if rsync.numbers < OLDEST:
        yield Finding("rsync", "error", f"{rsync.version} cannot compare nanoseconds", "use 3.4.3 or later")
    elif rsync.numbers < SAFE:
        hint = "update it: a hostile host could attack this server through its known vulnerabilities"
        yield Finding("rsync", "warning", f"{rsync.version} is older than 3.4.3", hint)
    else:
        yield Finding("rsync", "ok", rsync.version)


_CONFINE = 'confine = "auto" in [backup] lets a host that takes over rsync write only to its own new backup'


def _confined(config: Config) -> Iterator[Finding]:
    """Yields whether the rsync that talks to hosts can be confined, by a trial in this process."""
    if not any(host.address for host in config.hosts.values()):
        return
    try:
        support = confinement(config)
        missing = support.missing
        require_harmless(rsync_version(), support, config)
    except ProgramFailed:  # another finding reports rsync
        return
    except OperatorError as error:
        yield Finding("confinement", "error", error.message, error.hint)
        return
    if config.backup.confine == "never":
        yield Finding("confinement", "note", "rsync is not confined while it talks to hosts", _CONFINE)
    elif missing:
        yield Finding("confinement", "warning", f"rsync is not confined while it talks to hosts: {missing}", confinement_hint())
    else:
        yield Finding("confinement", "ok", "the rsync of a host can write only to that host's new backup")


def _other_programs(config: Config) -> Iterator[Finding]:
    needed = shlex.split(config.ssh.command)[:1] if any(host.address for host in config.hosts.values()) else []
    for program in needed:
        if which(program):
            version = run([program, "-V"], check=False).stderr.strip() if program == "ssh" else ""
            yield Finding(program, "ok", version or str(which(program)))
        else:
            yield Finding(program, "error", "is not installed", "`apt install openssh-client`")


def _pool(config: Config) -> Iterator[Finding]:
    path = config.pool.path
    try:
        pool = open_configured(config)
    except PoolUnusable as error:
        yield Finding("pool", "error", error.message, error.hint, unusable=True)
        return
    yield Finding("pool", "ok", f"{path}{', a rehearsal' if pool.rehearsal else ''}")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        yield Finding(
            "pool",
            "error",
            f"{path} has mode {mode:04o}: other users can read the backups",
            f"`chmod 700 {shlex.quote(str(path))}`",
        )
    yield from _health(config, pool)
    yield from _mount(path)


def _health(config: Config, pool: Pool) -> Iterator[Finding]:
    """Yields the pool's findings, without those of the catalogue, which has its own check."""
    facts = read_pool_facts(config)
    verdict = judge_pool(facts, HealthLimits.of(config))
    is_tight = any(verdict.of(check) for check in _OF_ROOM)
    unfinished = all_unfinished(pool) if is_tight else []
    findings = [replace(finding, hint=_hint(finding, unfinished)) for finding in verdict.findings]
    findings += [Finding(check, "unknown", "could not be checked", "`backupd doctor` shows why") for check in verdict.unlooked]
    for checked in findings:
        if checked.check != health.CATALOGUE:
            yield replace(checked, subject=_SUBJECTS.get(checked.check, ""))
    yield from _starts(facts.schedule)
    if facts.redundancy:
        level = "error" if facts.redundancy.lost or facts.missing else "warning" if facts.redundancy.reduced else "ok"
        hint = "`backupd doctor` has the commands" if level != "ok" else ""
        yield Finding("redundancy", level, redundancy_words(facts.redundancy), hint)
    elif not facts.fault:
        yield Finding(
            "redundancy", "unknown", "the number of remaining good copies could not be read", "`backupd doctor` shows why"
        )
    if facts.room and not is_tight:
        yield Finding("room", "ok", str(facts.room))


def _starts(schedule: ScheduleVerdict) -> Iterator[Finding]:
    """Yields the programs that start the runs, if these are sufficient; otherwise the shared verdict has the finding."""
    if schedule.by_hand:
        yield by_hand(schedule)
    elif schedule.starters and not schedule.missed and not schedule.unknown:
        start = f", the next at {local_time(schedule.first)}" if schedule.first else ""
        yield Finding(health.SCHEDULE, "ok", f"{', '.join(schedule.starters)}{start}")


def _hint(finding: Finding, unfinished: list[UnfinishedBackup]) -> str:
    return room_hint(unfinished, finding.hint) if finding.check in _OF_ROOM else finding.hint


_OF_ROOM = (health.ROOM, health.UNALLOCATED, health.USED)
_SUBJECTS = {health.UNUSABLE: "pool", health.READ_ONLY: "mount"}


def _mount(path: Path) -> Iterator[Finding]:
    mount, machine = mount_of(path), machine_mount(path)
    options = mount.super_options
    if "nodatacow" in options or "nodatasum" in options:
        yield Finding(
            "mount",
            "warning",
            "mounted with nodatacow or nodatasum: damaged data is not detected",
            "remove the option in /etc/fstab, then unmount and mount the pool",
        )
    if machine and "noatime" not in machine.mount_options:
        hint = "`backupd doctor --fix atime` stops that: otherwise reading a writable backup writes metadata"
        yield Finding("mount", "note", "access times are kept", hint)


def _quotas(config: Config) -> Iterator[Finding]:
    quotas = sum(host.enabled and host.quota is not None for host in config.hosts.values())
    with suppress(PoolUnusable):  # _pool reports it
        if idle := idle_quotas(quotas, qgroups.mode(open_configured(config).filesystem), qgroups.is_known_to_kernel()):
            yield Finding("quotas", "warning", idle, "`backupd doctor` shows how to make them apply, and the cost")


def _privileges(_: Config) -> Iterator[Finding]:
    """Checks only root: other users cannot open the pool, and get that error."""
    if os.geteuid():
        return
    capabilities = read_capabilities()
    if capabilities is None:
        yield Finding("privileges", "unknown", "the capabilities of this process could not be read", "check that /proc is mounted")
        return
    findings = tuple(privilege_findings(capabilities, root=True))
    yield from findings
    if not findings:
        yield Finding("privileges", "ok", "root has every capability that backups need")


def _clock(_: Config) -> Iterator[Finding]:
    yield from clock_findings(None, clock_synchronised())


def _catalogue(config: Config) -> Iterator[Finding]:
    try:
        with Catalogue.open(config.pool.state) as catalogue:
            pool = open_configured(config)
            recorded_id, pool_id = catalogue.pool_id(), pool.id
            is_ours = recorded_id in (None, pool_id)  # another pool's catalogue has no rows of this one
            altered = catalogue.altered_backups() if is_ours else []
            damaged = Counter(host for host, _ in catalogue.unrepaired_files()) if is_ours else Counter[str]()
            trust = check_trust(pool, catalogue, datetime.now(UTC)) if is_ours else TrustCheck(lost=False, clock=None)
    except PoolUnusable:
        return
    except OperatorError as error:
        yield Finding("catalogue", "error", error.message, error.hint)
        return
    if damaged:
        hosts = names_in_words([f"{printable(host)} ({counted(count, 'backup')})" for host, count in damaged.items()])
        yield Finding("backups", "error", f"damaged files in backups of {hosts}", "`backupd damaged` lists them, with other copies")
    if altered:
        command = backupd_command(config.name, config.file)
        yield Finding("backups", "warning", altered_words(altered), altered_hint(altered, command))
    facts = PoolFacts(foreign="" if is_ours else recorded_id, lost=trust.lost)
    wrong = judge_pool(facts, HealthLimits.of(config)).of(health.CATALOGUE)
    yield from wrong
    if not wrong:
        yield Finding("catalogue", "ok", str(config.pool.state))
    yield from clock_findings(trust.clock, synchronised=True)  # _clock reports it
    if config.pool.state.exists() and is_on(config.pool.state, pool.filesystem):
        yield Finding(
            "catalogue",
            "warning",
            f"{config.pool.state} is on the pool's own filesystem: when that is full, backupd cannot record anything",
            "set `state` to a folder on another filesystem, such as /var/lib/btrkeep, and run `backupd rebuild`",
        )


def _ssh_files(config: Config) -> Iterator[Finding]:
    if not any(host.address for host in config.hosts.values()):
        return
    restore_key = read_key_file(config.ssh.key_for_restores)
    for file, subject, judge_file in (
        (read_key_file(config.ssh.key), "ssh key", ssh_key),
        *([(restore_key, "restore key", ssh_key)] if restore_key.mode is not None else []),
        (read_key_file(config.ssh.known_hosts), "known_hosts", known_hosts),
    ):
        if not (findings := tuple(judge_file(file))):
            unseen = "run this as root on this machine, outside a service; then check the path in [ssh]"
            findings = (
                Finding("ssh-file", "unknown", printable(file.hidden), unseen)
                if file.hidden
                else Finding("ssh-file", "ok", str(file.path)),
            )
        yield from (replace(finding, subject=subject) for finding in findings)


def _hooks(config: Config) -> Iterator[Finding]:
    for host in config.hosts.values():
        for hook, words in (("before", host.before), ("after", host.after)):
            if words and (why := why_not_runnable(host.hook_words(words)[0])):
                yield Finding("hook", "error", f"{hook}: {why}", "install it, or correct its path and mode", subject=host.name)


def why_not_runnable(program: str) -> str:
    """Returns the reason why a program of the configuration cannot be run, which the kernel reports only when it is started; "" if
    it can.
    """
    place = which(program)
    if place is None:
        return f"{printable(program)} cannot be run: it is missing, or not executable"
    with suppress(OSError), Path(place).open("rb") as file:
        first = file.readline(_LONGEST_SHEBANG)
        if first.startswith(b"#!") and (words := os.fsdecode(first[2:]).split()):
            needed = words[1] if Path(words[0]).name == "env" and len(words) == 2 else words[0]
            if not which(needed):
                return f"{printable(program)} cannot be run: its interpreter {printable(needed)} is missing, or not executable"
    return ""


_LONGEST_SHEBANG = 256  # BINPRM_BUF_SIZE of the kernel


def _notify(config: Config) -> Iterator[Finding]:
    notify = config.notify
    if not notify.urls and notify.ping is None:
        yield Finding("notify", "note", "no notifications are configured", f"set `urls` in [notify]; {page('monitoring')} explains")
        return
    for file in files_with_secrets(config.file):
        yield Finding(
            "notify", "warning", f"{file} holds passwords and can be read by others", f"`chmod 600 {shlex.quote(str(file))}`"
        )
    wrong = [number for number, url in enumerate(notify.urls, 1) if service_of(url) is None]
    for number in wrong:
        message = f"apprise does not support URL number {number} in `urls`"
        yield Finding("notify", "error", message, "correct it: apprise's documentation shows the URL of each service")
    if not wrong:
        switch = " and a dead man's switch" if notify.ping else ""
        yield Finding("notify", "ok", f"{counted(len(notify.urls), 'URL')}{switch}; `backupd notify --test` tries them")


def _steps(config: Config) -> Iterator[Finding]:
    """Yields optional steps that did not complete several times in a row, and hosts that verification does not reach."""
    yield from check_steps(config, datetime.now(UTC))


def files_with_secrets(main: Path) -> Iterator[Path]:
    """Files of the configuration that set a secret key of [notify] and that other users may read. Raises OSError."""
    for file in _files(main):
        if stat.S_IMODE(file.stat().st_mode) & 0o044 and SECRET & tomllib.loads(file.read_text("utf-8-sig")).get(NOTIFY, {}).keys():
            yield file


def _files(main: Path) -> tuple[Path, ...]:
    return (main, *sorted(main.with_suffix(".d").glob("[!.]*.toml")))


def _sources(config: Config) -> Iterator[Finding]:
    for host in config.hosts.values():
        if not host.address:
            yield from mount_findings(config, host, mounts())
        for path in host.paths if not host.address else ():
            if not answers(Path(path)):
                yield Finding("source", "error", f"{printable(path)} does not answer", HINT, subject=host.name)
            elif not (Path(path).is_dir() or Path(path).is_file()):
                yield (
                    made_by_hook(host, path)
                    if host.before
                    else Finding(
                        "source",
                        "error",
                        f"{printable(path)} does not exist on this machine",
                        "correct `paths`",
                        subject=host.name,
                    )
                )


_CHECKS: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    _configuration, _names, _rsync, _confined, _other_programs, _privileges, _clock, _pool, _quotas, _catalogue, check_copies,
    _steps, _ssh_files, _hooks, _sources, crowded, _notify,
)  # fmt: skip
