"""Makes a host reachable, step by step: our keys, its key, the lines for its authorized_keys, and a test."""

import asyncio
from dataclasses import dataclass, replace

from backupd.doctor.host_checks import check_hosts
from backupd.hosts.cli.questions import Prompter
from backupd.hosts.ssh_keys import (
    answer_line,
    ask_host_key,
    authorized_line,
    is_known,
    known_name,
    make_key,
    name_of,
    record_host_key,
    restore_line,
    user_of,
)
from btrkeep.cli.output import call_of
from btrkeep.config import Config, HostConfig, page
from btrkeep.decisions.findings import Finding
from btrkeep.decisions.rsync_meaning import ExitCause
from btrkeep.errors import OperatorError
from btrkeep.units import printable


@dataclass(frozen=True, slots=True)
class ReachResult:
    """The result."""

    line: str | None
    """The line of the key for backups in the host's authorized_keys; None if the host needs none, because it has no address."""
    restoring: str | None
    """The line of the restore key; None as for `line`."""
    host_key_known: bool
    """True if known_hosts has the host's key."""
    findings: tuple[Finding, ...]
    """The problems."""

    @property
    def good(self) -> bool:
        return self.host_key_known and not any(finding.level == "error" for finding in self.findings)


def reach(prompter: Prompter, config: Config, host: HostConfig, *, accept: bool) -> ReachResult:
    """Creates missing keys and tests whether the host accepts the key for backups. On a terminal it asks until the host does."""
    if not host.address:
        return ReachResult(None, None, True, ())
    key, restore_key = config.ssh.key, config.ssh.key_for_restores
    prompter.say(f"{key} {'is the new key for all hosts' if make_key(key) else 'is the existing key for all hosts'}")
    if make_key(restore_key, "btrkeep-restore"):
        prompter.say(f"{restore_key} is the new key for restores to hosts")
    lines = authorized_line(key, host), restore_line(restore_key, host)
    if host.calls:
        _say_lines(prompter, host, *lines)
        _say_call(prompter, config, host)
        return ReachResult(*lines, is_known(host, config.ssh), ())
    if not _host_key(prompter, config, host, accept):
        _say_lines(prompter, host, *lines)
        return ReachResult(*lines, False, ())
    findings = probe(config, host)
    _say_lines(prompter, host, lines[0] if _refused(findings) else None, lines[1])
    while _refused(findings) and prompter.asks and prompter.ask("Press Enter when the line is added, or q to skip", "") != "q":
        findings = probe(config, host)
        if _refused(findings):
            prompter.say(f"{host.name} still does not accept the key")
    return ReachResult(*lines, True, findings)


def probe(config: Config, host: HostConfig) -> tuple[Finding, ...]:
    """Returns the findings of `check --connect` for this host."""
    return tuple(asyncio.run(check_hosts(replace(config, hosts={host.name: replace(host, enabled=True)}))))


def _refused(findings: tuple[Finding, ...]) -> bool:
    return any(finding.cause is ExitCause.KEY_REFUSED for finding in findings)


def _host_key(prompter: Prompter, config: Config, host: HostConfig, accept: bool) -> bool:
    """Returns True if the host's key is recorded now, which requires that the user confirmed its fingerprint."""
    known_hosts = config.ssh.known_hosts
    if is_known(host, config.ssh):
        return True
    host_key = ask_host_key(host)
    name = printable(name_of(host)[1])
    prompter.say(f"{name} answers with this host key:\n    {printable(host_key.fingerprint)}")
    prompter.say("On the host, `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` shows the correct fingerprint.")
    if not accept:
        if not prompter.asks:
            prompter.say(f"The host key is not in {known_hosts} yet. When you have compared the fingerprints, accept it:")
            prompter.say(f"    {call_of('backupd')} setup --host {host.name} --accept-host-key --no-run")
            return False
        if not prompter.agrees("Is the fingerprint the same?", default=False):
            raise OperatorError(f"{host.name}: the host key was not accepted", "first find out which machine has this address")
    record_host_key(host_key, known_hosts)
    prompter.say(f"the host key is now in {known_hosts}")
    return True


def _say_call(prompter: Prompter, config: Config, host: HostConfig) -> None:
    """Prints what to add on this server for a host that calls, and on the host."""
    prompter.say(f"{host.name} calls this server. `cat /etc/ssh/ssh_host_ed25519_key.pub` on the host prints its key (KEY below).")
    prompter.say("On this server, add to /root/.ssh/authorized_keys:")
    prompter.say(f"\n{answer_line(config, host)}\n")
    if not is_known(host, config.ssh):
        prompter.say(f"and to {config.ssh.known_hosts}:")
        prompter.say(f"\n{known_name(host)} KEY\n")
    prompter.say(f"On the host, start the timer: {page('many-hosts')} has the steps.")


def _say_lines(prompter: Prompter, host: HostConfig, line: str | None, restoring: str) -> None:
    """Prints what to add on the host. `line`: that of the key for backups; None: the host has it."""
    user = user_of(host)
    file = f"{'/root' if user == 'root' else f'~{user}'}/.ssh/authorized_keys"
    if line is not None:
        reads = "takes snapshots and reads with rsync" if host.snapshots != "off" else "reads with rsync"
        prompter.say(f"\nOn the host, add this line to {file}. The backup key {reads}, and does nothing else.")
        prompter.say(f"\n{line}")
    prompter.say(f"\nFor restores to the host (optional), add this line to {file}. The restore key only writes, and only below")
    prompter.say(
        f"the folders in [restore] of the host's /etc/btrkeep-source.conf. It needs btrkeep-source on the host: {page('sources')}"
    )
    prompter.say(f"\n{restoring}\n")
