"""The machine to which a host's files are restored: the host as configured, or another one given by name."""

import re
from dataclasses import dataclass, replace

from btrkeep.config import Config, HostConfig
from btrkeep.errors import UsageError
from btrkeep.units import printable

_TARGET = re.compile(r"((?:[^@:/\s]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^:/@\s\[\]-][^:/@\s\[\]]*)):(/.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Target:
    """A machine and a folder on it. `original`: every path goes to its original place."""

    host: HostConfig
    folder: bytes
    original: bool

    def __str__(self) -> str:
        machine = self.host.address or "this machine"
        return machine if self.original else f"{machine}:{printable(self.folder)}"


def target_of(config: Config, host: str, text: str, port: int | None = None) -> Target:
    """The target: the host as it is configured for "", else [USER@]HOST:DIR. Raises UsageError."""
    known = config.hosts.get(host)
    if not text:
        if host in config.excluded:
            fault = config.excluded[host].fault
            raise UsageError(f"{host} is configured, with a mistake: {fault}", "mend that line, or say --to-host USER@HOST:DIR")
        if known is None:
            raise UsageError(f"{host} is not configured, so it has no address", "say --to-host USER@HOST:DIR")
        return Target(replace(known, port=port or known.port), b"/", original=True)
    match = _TARGET.fullmatch(text)
    if not match or not match[2] or "\0" in text:
        raise UsageError(
            f"--to-host {printable(text)}: that is no [USER@]HOST:DIR with a DIR that begins with /",
            "put --to-host at the end for the host itself, or name a machine, such as --to-host root@192.0.2.7:/mnt",
        )
    address, folder = match[1], match[2].encode("utf-8", "surrogateescape")
    if known and known.address and _machine(known.address) == _machine(address):
        return Target(replace(known, address=address, port=port or known.port), folder, original=False)
    return Target(HostConfig(host, address=address, port=port, paths=()), folder, original=False)


def _machine(address: str) -> str:
    return address.rpartition("@")[2]
