"""The answers of a host to one harmless command: its mounts and boot, or the limits of its sshd. A key that permits only rsync
refuses it.

Also the folders in which every system has mounts that need no backup, and the text about what `one_file_system` leaves out.
"""

import asyncio
import re
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import MappingProxyType

from backupd.rsync.command import host_command
from btrkeep.config import HostConfig, SshSettings
from btrkeep.errors import OperatorError
from btrkeep.process.group import ENDS_WITH_US, Group
from btrkeep.procfs import Mount, parse_mounts
from btrkeep.units import format_size, names_in_words, printable

_SECONDS = 30.0
_LARGEST = 4 << 20  # bytes of the host's answer
_SSH_FAILED = 255  # exit status of ssh for its own errors


class NotAvailable(OperatorError):
    """The host never gives this answer: its key permits only rsync, it does not have the program, or it has too many mounts. Asking
    again does not help.
    """


async def output_of(host: HostConfig, ssh: SshSettings, control: Path | None, words: Sequence[str]) -> bytes:
    """Returns what the command prints on the host. Raises NotAvailable, and OperatorError if there was no complete answer."""
    heard = bytearray()
    command = (*ENDS_WITH_US, *host_command(host, ssh, control, words))
    group = Group.start(command, on_stdout=lambda data: heard.extend(data[: _LARGEST - len(heard)]), on_stderr=lambda _: None)
    try:
        async with asyncio.timeout(_SECONDS):
            status = await group.wait()
    except TimeoutError:
        group.signal(signal.SIGKILL)
        await group.wait()
        raise OperatorError("the host did not answer") from None
    except asyncio.CancelledError:
        group.signal(signal.SIGKILL)
        raise
    if status == _SSH_FAILED:
        raise OperatorError("the host could not be reached again")
    if len(heard) >= _LARGEST:
        raise OperatorError(f"the host's answer to `{words[0]}` is too long")
    if status:
        raise NotAvailable(f"the host does not run `{words[0]}`: perhaps its key permits only rsync")
    return bytes(heard)


_SSHD_COMMAND = ("/usr/sbin/sshd", "-T")
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_ADDRESSES = re.compile(r"[A-Za-z0-9.:/,*?! _-]{1,1000}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SshdLimits:
    """Limits of an sshd_config. `startups`: the number of connections that have not logged in yet from which MaxStartups refuses
    some.

    `per_source`: PerSourceMaxStartups; None if there is no such limit. `has_penalties`: PerSourcePenalties are on, the default
    since OpenSSH 9.8. `exempt`: the addresses and networks of PerSourcePenaltyExemptList.
    """

    startups: int
    per_source: int | None = None
    has_penalties: bool = False
    exempt: tuple[str, ...] = ()


async def read_sshd_limits(host: HostConfig, ssh: SshSettings, control: Path | None) -> SshdLimits:
    """Asks the host for the limits of its sshd. Raises OperatorError: its key permits only rsync, or its user may not read the
    configuration of sshd.
    """
    return parse_sshd_limits(await output_of(host, ssh, control, _SSHD_COMMAND))


def parse_sshd_limits(answer: bytes) -> SshdLimits:
    """Parses the output of `sshd -T`; a login shell may print lines before it. Raises OperatorError.

    A hostile host may print anything, and the advice quotes a part: unusual characters and very long values are refused.
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
    """Returns how an sshd with these limits affects the connections of a run, and the line for its sshd_config that prevents it.
    Pure.

    `at_once`: number of connections that a run may start at the same time. `own_address`: that of this server, as seen by the host.
    """
    advice = []
    if at_once > limits.startups:
        text = f"a run can open {at_once} connections to this address at once, but sshd may refuse some above {limits.startups}"
        advice.append((text, f"MaxStartups {2 * at_once}"))
    if limits.per_source is not None and at_once > limits.per_source:
        text = f"a run can open {at_once} connections to this address at once, but sshd accepts only {limits.per_source}"
        advice.append((text, f"PerSourceMaxStartups {2 * at_once}"))
    if limits.has_penalties and not _is_exempt(own_address, limits.exempt):
        text = f"sshd blocks an address after failed logins: one wrong key stops all {at_once} hosts at this address"
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
    """Returns the address from which this machine reaches a host; "" if there is no route. Resolves the name, sends nothing to the
    host.
    """
    name = (host.address or "").rpartition("@")[2].removeprefix("[").removesuffix("]")
    with suppress(OSError, UnicodeError):
        for family, kind, protocol, _, place in socket.getaddrinfo(name, host.port or 22, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as trial:
                trial.connect(place)
                return str(trial.getsockname()[0]).partition("%")[0]
    return ""


_RSYNC_VERSION = re.compile(rb"rsync\s+version v?((\d{1,3})(?:\.\d{1,3}){1,2})", re.ASCII)


async def unfit_rsync(host: HostConfig, ssh: SshSettings, control: Path | None) -> str:
    """Asks the host for the version of its rsync. Returns the version in words if it is not rsync 3, else "". Raises OperatorError:
    the key permits only transfers.
    """
    return unfit_rsync_words(await output_of(host, ssh, control, (host.rsync_path or "rsync", "--version")))


def unfit_rsync_words(answer: bytes) -> str:
    """Parses the output of `rsync --version`; a login shell may print lines before it."""
    lines = answer.splitlines()
    if any(line.startswith(b"openrsync:") for line in lines):  # its second line is "rsync version 2.6.9 compatible"
        return "openrsync"
    match = next((match for line in lines if (match := _RSYNC_VERSION.match(line))), None)
    return f"version {match[1].decode()}" if match and int(match[2]) < 3 else ""


_KERNEL = ("/proc", "/sys", "/dev", "/run", "/snap")
_TRANSIENT = (
    "/tmp",  # noqa: S108  a path of the host
    "/var/lib/lxcfs",
    "/var/lib/docker/overlay2/*/merged",
    "/var/lib/docker/containers/*/mounts/shm",
    "/var/lib/containers/storage/overlay/*/merged",
    "/var/lib/containers/storage/overlay-containers/*/userdata/shm",
)


def is_expected(folder: str, path: str) -> bool:
    """Returns True for a folder in which every system has mounts that need no backup: devices, processes, containers.

    `path`: the source path; if it is in such a folder, its files are wanted.
    """
    return _is_of_the_system(folder) and not _is_of_the_system(path)


def _is_of_the_system(folder: str) -> bool:
    return folder.startswith(tuple(f"{top}/" for top in _KERNEL)) or any(
        fnmatchcase(folder, pattern) for pattern in (*_KERNEL, *_TRANSIENT)
    )


NO_SIZES: Mapping[str, int | None] = MappingProxyType({})


def left_out_words(path: str, folders: Sequence[str], old: int, sizes: Mapping[str, int | None] = NO_SIZES) -> str:
    """Formats the warning. `old`: number of these folders with files of an earlier backup. `sizes`: their bytes, if known."""
    names = names_in_words([_with_size(folder, sizes.get(folder)) for folder in folders], 3, "folder")
    stale = "; the backup still contains the old files there" if old else ""
    return (
        f"{path}: `one_file_system` excludes the files in {names}: another filesystem or subvolume{stale} "
        "(add it to `exclude`, or back it up as a separate host)"
    )


def _with_size(folder: str, size: int | None) -> str:
    return printable(folder) if size is None else f"{printable(folder)} ({format_size(size)})"


_MOUNTS_COMMAND = ("cat", "/proc/sys/kernel/random/boot_id", "/proc/self/mountinfo")
_BOOT_ID = 36
_MOST, _LONGEST = 1000, 1000  # mounts to compare, and bytes of a line


@dataclass(frozen=True, slots=True)
class HostMounts:
    """The mounts of the host."""

    boot_id: str
    """The id of the boot of its kernel, which a container shares with its machine."""
    mounts: tuple[Mount, ...]
    """Oldest first."""


async def read_host_mounts(host: HostConfig, ssh: SshSettings, control: Path | None) -> HostMounts:
    """Asks the host for its mounts. Raises NotAvailable, and OperatorError if there was no complete answer."""
    return parse_answer(await output_of(host, ssh, control, _MOUNTS_COMMAND), host.paths)


def parse_answer(answer: bytes, paths: Sequence[str]) -> HostMounts:
    """Parses the output of the command; a login shell may print lines before it. Leaves out mounts that no backup of `paths` needs.

    Raises OperatorError.
    """
    lines = answer.splitlines()
    for number, line in enumerate(lines):
        if len(line) == _BOOT_ID and line.count(b"-") == 4:
            try:
                mounts = parse_mounts(b"\n".join(line for line in lines[number + 1 :] if len(line) <= _LONGEST))
            except ValueError:
                break
            mounts = [mount for mount in mounts if not all(is_expected(str(mount.target), path) for path in paths)]
            if len(mounts) > _MOST:  # comparing every pair would take long
                raise NotAvailable(f"the host has more than {_MOST:,} mounts")
            return HostMounts(line.decode("ascii", "replace"), tuple(mounts))
    raise NotAvailable("the host has no /proc, or its answer cannot be read")
