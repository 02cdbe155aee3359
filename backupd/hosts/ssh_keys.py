"""The key with which hosts are reached, and the hosts' own keys. ssh-keygen and ssh-keyscan do the work."""

import os
import re
import shlex
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from btrkeep.config import Config, HostConfig, SshSettings
from btrkeep.config.reading import backupd_command
from btrkeep.errors import OperatorError
from btrkeep.process.programs import ProgramFailed, run
from btrkeep.procfs import privilege_hint

_SYSTEM_WIDE = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))  # ssh reads them too
SOURCE = "/usr/local/bin/btrkeep-source"
"""Where docs/sources.rst installs it on a host."""
_KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "ssh-rsa")  # the first kind that a host has is enough
_SCAN_SECONDS = 15


@dataclass(frozen=True, slots=True)
class HostKey:
    """A host key that a host offered: the line for known_hosts, and the fingerprint for people."""

    line: str
    fingerprint: str


def make_key(path: Path, comment: str = "btrkeep") -> bool:
    """Creates an ed25519 key without a passphrase, mode 0600, unless the file exists. Returns True if one was created. Its comment
    gets the name of this machine.

    Raises OperatorError if it cannot be created, or if the existing file is not a private key.
    """
    if os.path.lexists(path):
        _require_public(path)
        return False
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"{path.parent} cannot be created: {error.strerror}", privilege_hint("CAP_DAC_OVERRIDE")) from None
    comment = f"{comment}@{socket.gethostname()}"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])
    return True


def _require_public(path: Path) -> None:
    """Creates the public key again if an interruption has left only the private key. Raises OperatorError for an unusable key."""
    public = public_path(path)
    if public.exists():
        return
    try:
        text = run(["ssh-keygen", "-y", "-P", "", "-f", str(path)]).stdout
    except ProgramFailed as error:
        hint = "move it away, or name another key in [ssh]; backups are unattended, so the key must not have a passphrase"
        raise OperatorError(f"{path} is not a private key that can be used: {error.message}", hint) from None
    with public.open("x", encoding="utf-8") as file:
        file.write(text)


def public_path(path: Path) -> Path:
    """Returns the path at which ssh-keygen puts the public key."""
    return path.with_name(f"{path.name}.pub")


def authorized_line(key: Path, host: HostConfig) -> str:
    """Returns the line of the backup key for authorized_keys on the host: the key reads with rsync, makes snapshots if they are
    configured, and does nothing else (docs/restricted-keys.rst).
    """
    return _line(f"{SOURCE} --server {server_name()}" if host.snapshots != "off" else "rrsync -ro /", key, host)


def restore_line(key: Path, host: HostConfig) -> str:
    """Returns the line of the restore key: it writes below the folders that the host's configuration allows."""
    return _line(f"{SOURCE} restore", key, host)


def answer_line(config: Config, host: HostConfig) -> str:
    """Returns the line for authorized_keys of this server that lets a host call it. KEY: the host's public key."""
    command = backupd_command(config.name, config.file)
    return f'restrict,command="/usr/local/sbin/{command} answer {host.name}" KEY'


def _line(command: str, key: Path, host: HostConfig) -> str:
    sudo = "" if user_of(host) == "root" else "sudo -n "
    return f'restrict,command="{sudo}{command}" {public_path(key).read_text(encoding="utf-8").strip()}'


def user_of(host: HostConfig) -> str:
    """Returns the user in the host's address; root, like the process that makes backups, if the address has no user."""
    return (host.address or "").rpartition("@")[0] or "root"


def server_name() -> str:
    """Returns the name by which btrkeep-source tells this server from others: that of the machine."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0])[:50]
    return name if name[:1].isalnum() else "backup"


def name_of(host: HostConfig) -> tuple[str, str]:
    """The host's name for ssh-keyscan, and for known_hosts, where another port is part of it."""
    bare = (host.address or "").rpartition("@")[2].strip("[]")
    return bare, bare if host.port in (None, 22) else f"[{bare}]:{host.port}"


def known_name(host: HostConfig) -> str:
    """Returns the name under which known_hosts has the host's key."""
    options = (option.partition("=") for option in host.ssh_options)
    aliases = [value.strip() for name, _, value in options if name.strip().lower() == "hostkeyalias"]
    return aliases[0] if aliases else name_of(host)[1]


def is_known(host: HostConfig, ssh: SshSettings) -> bool:
    """Returns True if known_hosts has a key of the host."""
    return bool(files_with_key(host, ssh))


def files_with_key(host: HostConfig, ssh: SshSettings) -> list[Path]:
    """Returns the known_hosts files that have a key of the host."""
    files = [path for path in (ssh.known_hosts, *_SYSTEM_WIDE) if path.exists()]
    name = known_name(host)
    return [path for path in files if run(["ssh-keygen", "-F", name, "-f", str(path)], check=False).returncode == 0]


def other_key_hint(host: HostConfig, files: Sequence[Path], command: str) -> str:
    """Returns the remedy for a host whose key differs from the recorded key in these files; without files, no key is recorded.

    `command`: the command that calls `backupd` for this pool.
    """
    remove = [f"`ssh-keygen -R {shlex.quote(known_name(host))} -f {shlex.quote(str(path))}`" for path in files]
    accept = f"`{command} setup --host {shlex.quote(host.name)} --accept-host-key --no-run`"
    how = "compare the host's key with its fingerprint on the host (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`)"
    if not remove:
        return f"{how}, then accept it: {accept}"
    return f"{how}; if it is correct, remove the old key: {'; '.join(remove)}; then accept the new one: {accept}"


def ask_host_key(host: HostConfig) -> HostKey:
    """Asks the host for its key, without storing it. Raises OperatorError if it does not answer."""
    name = name_of(host)[0]
    words = [
        "ssh-keyscan",
        "-T",
        str(_SCAN_SECONDS),
        *(("-p", str(host.port)) if host.port else ()),
        "-t",
        "ed25519,ecdsa,rsa",
        name,
    ]
    done = run(words, timeout=4 * _SCAN_SECONDS, check=False)
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
    if not lines:
        error = next((line for line in done.stderr.splitlines() if line and not line.startswith("#")), "no answer")
        hint = (
            "check that the host is running and its ssh reachable from here. Behind a jump host, add its key to known_hosts "
            "yourself; "
            f"`backupd host set {host.name} address=USER@HOST` corrects the address"
        )
        raise OperatorError(f"{name} sent no host key: {error}", hint)
    line = min(lines, key=_rank)
    return HostKey(line, _fingerprint(line))


def _rank(line: str) -> int:
    kind = line.split()[1]
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS)


def _fingerprint(line: str) -> str:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="btrkeep-") as file:
        file.write(line + "\n")
        file.flush()
        size, fingerprint, *_, kind = run(["ssh-keygen", "-lf", file.name]).stdout.split()
    return f"{size} {fingerprint} {kind}"


def record_host_key(host_key: HostKey, known_hosts: Path) -> None:
    """Appends the key to known_hosts, on its own line. Raises OperatorError."""
    try:
        known_hosts.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        before = known_hosts.read_bytes() if known_hosts.exists() else b""
        with known_hosts.open("a", encoding="utf-8") as file:
            file.write(("\n" if before and not before.endswith(b"\n") else "") + host_key.line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OperatorError(f"{known_hosts} cannot be written: {error.strerror}", privilege_hint("CAP_DAC_OVERRIDE")) from None
