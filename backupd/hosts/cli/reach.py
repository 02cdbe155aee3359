"""Makes a host reachable, step by step: our key, its key, the line for its authorized_keys, and a test."""

import asyncio
from dataclasses import dataclass, replace

from backupd.doctor.host_checks import check_hosts
from backupd.hosts.cli.questions import Prompter
from backupd.hosts.ssh_keys import ask_host_key, authorized_line, is_known, learn, make_key, name_of
from btrkeep.cli.output import call_of
from btrkeep.config import Config, HostConfig
from btrkeep.decisions.findings import Finding
from btrkeep.decisions.rsync_meaning import ExitCause
from btrkeep.errors import OperatorError
from btrkeep.units import printable


@dataclass(frozen=True, slots=True)
class ReachResult:
    """The result."""

    line: str | None
    """The line for the host's authorized_keys; None if the host needs none, because it has no address."""
    host_key_known: bool
    """True if known_hosts has the host's key."""
    findings: tuple[Finding, ...]
    """The problems."""

    @property
    def good(self) -> bool:
        return self.host_key_known and not any(finding.level == "error" for finding in self.findings)


def reach(prompter: Prompter, config: Config, host: HostConfig, *, accept: bool) -> ReachResult:
    """Creates missing keys and tests whether the host accepts them. On a terminal it waits until it does."""
    if not host.address:
        return ReachResult(None, True, ())
    key = config.ssh.key
    prompter.say(f"{key} {'is the new key for all hosts' if make_key(key) else 'is the key; it existed already'}")
    line = authorized_line(key, host.address)
    if not _host_key(prompter, config, host, accept):
        _say_line(prompter, host, line)
        return ReachResult(line, False, ())
    findings = probe(config, host)
    if _refused(findings):
        _say_line(prompter, host, line)
    while _refused(findings) and prompter.asks and prompter.ask("Press Enter when the line is there, or q to skip this", "") != "q":
        findings = probe(config, host)
        if _refused(findings):
            prompter.say(f"{host.name} still does not accept the key")
    return ReachResult(line, True, findings)


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
    prompter.say("On the host, `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` shows the correct one.")
    if not accept:
        if not prompter.asks:
            prompter.say(f"it is not written into {known_hosts}, because it was not confirmed. When you have compared it:")
            prompter.say(f"    {call_of('backupd')} setup --host {host.name} --accept-host-key --no-run")
            return False
        if not prompter.agrees("Is it the same?", default=False):
            raise OperatorError(f"{host.name}: its host key was not accepted", "find out which machine answers there first")
    learn(host_key, known_hosts)
    prompter.say(f"written into {known_hosts}")
    return True


def _say_line(prompter: Prompter, host: HostConfig, line: str) -> None:
    user = (host.address or "").rpartition("@")[0] or "root"
    home = "/root" if user == "root" else f"~{user}"
    prompter.say(f"\nOn the host, add this line to {home}/.ssh/authorized_keys. It lets the key read with rsync, and nothing else.")
    prompter.say(f"\n{line}\n")
