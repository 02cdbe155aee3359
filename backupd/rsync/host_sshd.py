"""Reads how many connections the sshd of a host accepts, and whether it shuts out addresses, where the key permits `sshd -T`."""

import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path

from backupd.rsync.host_output import output_of
from btrkeep.config import HostConfig, SshSettings
from btrkeep.errors import OperatorError

_COMMAND = ("/usr/sbin/sshd", "-T")
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_ADDRESSES = re.compile(r"[A-Za-z0-9.:/,*?! _-]{1,1000}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SshdLimits:
    """Of an sshd_config. `startups`: connections that have not logged in yet, from which on MaxStartups refuses some.

    `per_source`: PerSourceMaxStartups; None if there is no such limit. `has_penalties`: PerSourcePenalties are on, as they are by
    default since OpenSSH 9.8. `exempt`: the addresses and networks of PerSourcePenaltyExemptList.
    """

    startups: int
    per_source: int | None = None
    has_penalties: bool = False
    exempt: tuple[str, ...] = ()


async def read_sshd_limits(host: HostConfig, ssh: SshSettings, control: Path | None) -> SshdLimits:
    """Asks the host. Raises OperatorError: its key permits rsync only, or its user may not read the configuration of sshd."""
    return parse_sshd_limits(await output_of(host, ssh, control, _COMMAND))


def parse_sshd_limits(answer: bytes) -> SshdLimits:
    """Parses what `sshd -T` prints; a login shell may print lines before that. Raises OperatorError.

    They are the host's words, and a part of the advice repeats them: other characters, or very long ones, are refused.
    """
    settings = dict(line.partition(" ")[::2] for line in answer.decode("utf-8", "replace").splitlines())
    try:
        start, _, rest = settings["maxstartups"].partition(":")
        rate, _, full = rest.partition(":")
        startups = _number(full) if rate and _number(rate) == 0 else _number(start)
        per_source = settings.get("persourcemaxstartups", "none")
        exempt = settings.get("persourcepenaltyexemptlist", "none")
        if not _ADDRESSES.fullmatch(exempt):
            raise ValueError(exempt)
        return SshdLimits(
            startups,
            None if per_source == "none" else _number(per_source),
            settings.get("persourcepenalties", "no") != "no",
            () if exempt == "none" else tuple(word.strip() for word in exempt.split(",")),
        )
    except (KeyError, ValueError):
        raise OperatorError("the host does not print the settings of its sshd") from None


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def sshd_advice(limits: SshdLimits, at_once: int, own_address: str) -> list[tuple[str, str]]:
    """Returns what such an sshd does to the connections of a run, and the line for its sshd_config that ends it. Pure.

    `at_once`: so many connections a run may begin at once. `own_address`: that of this server, as the host sees it.
    """
    advice = []
    if at_once > limits.startups:
        text = f"{at_once} hosts have this address and can connect at once, and sshd refuses some of more than {limits.startups}"
        advice.append((text, f"MaxStartups {2 * at_once}"))
    if limits.per_source is not None and at_once > limits.per_source:
        text = f"{at_once} hosts have this address and can connect at once, and sshd accepts {limits.per_source} from one address"
        advice.append((text, f"PerSourceMaxStartups {2 * at_once}"))
    if limits.has_penalties and not _is_exempt(own_address, limits.exempt):
        text = f"sshd shuts out an address after failed logins: one wrong key stops all {at_once} hosts at this address"
        advice.append((text, "PerSourcePenaltyExemptList " + ",".join((*limits.exempt, own_address or "ADDRESS-OF-THIS-SERVER"))))
    return advice


def _is_exempt(address: str, exempt: Sequence[str]) -> bool:
    with suppress(ValueError):
        own = ip_address(address)
        for network in exempt:
            with suppress(ValueError):
                if own in ip_network(network, strict=False):
                    return True
    return False


def own_address(host: HostConfig) -> str:
    """Returns the address from which this machine reaches a host; "" if it has no route. Asks the name service, sends nothing."""
    name = (host.address or "").rpartition("@")[2].removeprefix("[").removesuffix("]")
    with suppress(OSError, UnicodeError):
        for family, kind, protocol, _, place in socket.getaddrinfo(name, host.port or 22, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as trial:
                trial.connect(place)
                return str(trial.getsockname()[0]).partition("%")[0]
    return ""
