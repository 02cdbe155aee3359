"""Finds addresses at which a run begins more connections than the sshd there accepts, and how to change its sshd_config."""

import asyncio
from collections import Counter
from collections.abc import Iterator

from backupd.rsync.host_sshd import own_address, read_sshd_limits, sshd_advice
from backupd.rsync.shared_connection import NotConnected, SharedConnection
from btrkeep.config import Config, HostConfig
from btrkeep.decisions.findings import Finding
from btrkeep.errors import OperatorError
from btrkeep.process.cancellation import Cancellation

SSHD_STARTUPS = 10
"""Of MaxStartups in sshd_config: with so many connections that have not logged in yet, sshd refuses further ones at random."""


def connections_at_once(config: Config) -> dict[str, int]:
    """Returns each address, with its port, and how many connections a run may begin there at once.

    The paths of one host are fetched one after the other, so it is the hosts that count.
    """
    by_group = Counter((address_of(host), host.group) for host in config.hosts.values() if host.enabled and host.address)
    at_once = Counter[str]()
    for (address, group), count in by_group.items():
        limit = config.groups[group].concurrency if group else None
        at_once[address] += min(count, limit or count)
    return {address: min(count, config.backup.concurrency) for address, count in at_once.items()}


def address_of(host: HostConfig) -> str:
    """Returns the address of a host, without its user, and its port."""
    return f"{(host.address or '').rpartition('@')[2]}:{host.port or 22}"


def crowded(config: Config) -> Iterator[Finding]:
    """Yields a note for each address at which sshd refuses some connections, if it has OpenSSH's defaults."""
    for address, count in connections_at_once(config).items():
        if count > SSHD_STARTUPS:
            text = f"{count} hosts have this address and can connect at once; sshd refuses some of more than {SSHD_STARTUPS}"
            yield Finding("ssh", "note", f"{address}: {text}", _hint(f"MaxStartups {2 * count}"))


async def sshd_findings(config: Config, host: HostConfig, connection: SharedConnection) -> list[Finding]:
    """Returns what the sshd at an address of several hosts does to a run, by its own settings; asked of the first of them.

    Nothing if that is not permitted: `crowded` judges by the defaults.
    """
    address = address_of(host)
    at_once = connections_at_once(config).get(address, 0)
    first = next(other for other in config.hosts.values() if other.enabled and other.address and address_of(other) == address)
    if at_once < 2 or first.name != host.name:
        return []
    try:
        limits = await read_sshd_limits(host, config.ssh, await connection.socket(Cancellation()))
    except (OperatorError, NotConnected):
        return []
    own = await asyncio.to_thread(own_address, host)
    return [
        Finding("ssh", "note", f"{address}: {text}", _hint(line), subject=host.name)
        for text, line in sshd_advice(limits, at_once, own)
    ]


def _hint(line: str) -> str:
    option = line.partition(" ")[0]
    other = "" if option == "PerSourcePenaltyExemptList" else ", or give these hosts a group with a lower `concurrency`"
    return f"set {line} in its sshd_config, and reload sshd{other}"
