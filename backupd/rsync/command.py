"""The rsync command of one source path, as a tuple, and the version of this server's rsync.

The reasons for these options (docs/how-a-backup-becomes-complete.rst has the details):

``--relative`` with ``HOST:/./srv/www/``
    the source path arrives under its absolute name with its parents' owners and modes; a source that is itself a
    symlink is followed; and a pattern that starts with / means the host's absolute path, whatever the source path is.
``--inplace --no-whole-file``
    only changed blocks are written, so the snapshot shares the rest; a local source would otherwise be copied completely.
``--sparse``
    only into an empty subvolume: together with a snapshot it loses the sharing.
``--modify-window=-1``
    compares nanoseconds: the default misses a file rewritten within the same second at the same size.
``--delete-delay --delete-excluded``
    deletes after the transfer; newly excluded files are missing in the next backup.
Never: ``--out-format``, a line for each file (a hostile host could falsify it; holes.py asks the filesystem what was written),
``--ignore-errors`` (deletes files that could not be read), ``--max-delete`` (leaves deleted files in the backup; the shrink limit
is checked afterwards instead), ``-s`` (rrsync refuses it), ``-z``, ``--trust-sender``, per-directory filters (they disable rsync's
check of the sender's file list).
"""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backupd.rsync.bandwidth import Bucket, relay_command, shell_words
from btrkeep.config import HostConfig, SshSettings
from btrkeep.process.programs import ProgramFailed, run

LARGE = 1 << 20  # inplace = "large": above this size, a rewrite costs more than the dead space of in-place writes
SNAPSHOTS = ".btrkeep-source/*-????????T??????Z-??????.[0-9]*/"
"""The btrfs snapshots of btrkeep-source, which are in its folder at the top of a subvolume. A folder of that name that a user made
is backed up like any other.
"""
KEPT_SNAPSHOTS = ".btrkeep-source/*=????????T??????Z-??????/"
"""Those that are kept for streams (`engine = "send"`), also after the engine was changed."""

METADATA = ("--archive", "--hard-links", "--acls", "--xattrs", "--xattrs", "--numeric-ids")
"""All metadata of a file, in both directions. Without a second --xattrs rsync leaves out the attributes user.rsync.% of a file,
in which `rsync --fake-super` keeps owners and devices on a host that is a target of backups itself.
"""
_ALWAYS = (
    *METADATA,
    "--relative",
    "--delete-delay",
    "--delete-excluded",
    "--modify-window=-1",
    "--no-human-readable",
    "--outbuf=L",
    "--info=progress2,stats2",
    "--debug=proto",  # prints the negotiated protocol
)
_IN_PLACE = ("--inplace", "--no-whole-file")
_SSH_OPTIONS = (
    "BatchMode=yes",
    "IdentitiesOnly=yes",
    "StrictHostKeyChecking=yes",
    "ConnectTimeout=20",
    "ServerAliveInterval=30",
    "ServerAliveCountMax=6",
    "ControlMaster=no",
    "ControlPath=none",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "Tunnel=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "KnownHostsCommand=none",
    "VerifyHostKeyDNS=no",
    "NoHostAuthenticationForLocalhost=no",
    "UpdateHostKeys=no",
    "AddKeysToAgent=no",
    "GSSAPIDelegateCredentials=no",
    "Compression=no",
)
"""Options that a configuration of ssh cannot change: each connection carries only rsync, the key of the host must be in the
known_hosts files, and nothing of this machine is forwarded to the host. OpenSSH has all of them since 8.5.
"""


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of rsync for a source path; only ``inplace = "large"`` needs two."""

    options: tuple[str, ...]
    """Its additional options."""


def passes(inplace: str, *, based: bool) -> tuple[Pass, ...]:
    """Returns the runs that a source path needs. `based`: the working subvolume is a snapshot, so data may be shared."""
    if not based:
        return (Pass(("--sparse", "--partial")),)
    if inplace == "always":
        return (Pass(_IN_PLACE),)
    if inplace == "never":
        return (Pass(("--partial",)),)
    # The last run has no limit: a file that crosses it between two runs would be in neither. Files that the first run rewrote
    # are equal by then. HostTransfer splits the hard links of the first run before the last one writes in place.
    return (Pass(("--partial", f"--max-size={LARGE - 1}")), Pass(_IN_PLACE))


def rsync_command(
    host: HostConfig,
    ssh: SshSettings,
    path: str,
    destination: str,
    one_pass: Pass,
    buckets: Sequence[Bucket] = (),
    shell: Sequence[str] = (),
    control: Path | None = None,
) -> tuple[str, ...]:
    """Returns the command that copies `path` of the host into the folder `destination` (under its absolute name).

    `shell` replaces the remote shell. `control`: the socket of a connection that ssh uses if possible.
    """
    return (
        "rsync",
        *_ALWAYS,
        *one_pass.options,
        *(("--one-file-system",) if host.one_file_system else ()),
        f"--timeout={max(60, round(host.stall))}",  # for the remote rsync: it ends when this one is gone
        *filters(host, path),
        *remote_shell(host, ssh, buckets, shell or shell_command(host, ssh, buckets, control)),
        source(host, path, through_shell=bool(host.address or buckets)),
        destination + "/",
    )


def probe_command(host: HostConfig, ssh: SshSettings, path: str, shell: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns a harmless test of a source path for `check --connect`, which restricted keys permit. `shell`: as in rsync_command.

    The path has the form of a transfer, because rsync accepts a file with a slash at its end only in that form.
    """
    return (
        "rsync",
        "--list-only",
        "--dirs",
        "--relative",
        "--timeout=60",
        *remote_shell(host, ssh, (), shell),
        source(host, path, through_shell=bool(host.address)),
    )


def size_command(host: HostConfig, ssh: SshSettings, file: str, shell: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns a harmless command that prints the length of one file, an absolute path. `shell`: as in rsync_command."""
    program, *words = probe_command(host, ssh, file, shell)
    *options, wanted = words
    return (program, *options, "--no-human-readable", wanted.rstrip("/"))


LISTED_FILE = re.compile(rb"-\S{9,10}\s+(\d{1,18}) .*")
"""A line of rsync's list for a regular file: its mode, length, time and name."""


def mounts_command(
    host: HostConfig, ssh: SshSettings, path: str, chosen: Sequence[str], shell: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns an rsync command that transfers nothing and prints each folder of the source path that `one_file_system` leaves
    empty. rsync prints them only if -x is given twice, which also removes these folders from the list.

    With `chosen`, absolute paths of folders, it reads only the folders above them instead of making a whole list.
    """
    rules = _rules_down_to(chosen) if chosen else filters(host, path)
    return (
        "rsync",
        "--dry-run",
        "--recursive",
        "--relative",
        "--one-file-system",
        "--one-file-system",
        "--info=mount",
        f"--timeout={max(60, round(host.stall))}",
        *rules,
        *remote_shell(host, ssh, (), shell),
        source(host, path, through_shell=bool(host.address)),
        "/nowhere/",  # not created in a dry run
    )


def _rules_down_to(folders: Sequence[str]) -> tuple[str, ...]:
    names = dict[str, None]()
    for folder in folders:
        parts = folder.strip("/").split("/")
        names |= dict.fromkeys("/" + "/".join(parts[: depth + 1]) for depth in range(len(parts)))
    return (*(f"--filter=+ {as_pattern(name)}" for name in names), "--filter=- *")


MOUNT_LINE = re.compile(rb"\[[Ss]ender\] skipping mount-point dir (.+)")
"""The line that the sender prints for each folder that `one_file_system` leaves empty; the path is relative to the root of the
transfer.
"""


def filters(host: HostConfig, path: str) -> tuple[str, ...]:
    """Returns the filter rules, of which the first match counts: the source path itself is always included, then the exclusions
    follow.
    """
    parts = path.strip("/").split("/") if path != "/" else []
    wanted = ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return (
        *(f"--filter=+ {as_pattern(name)}" for name in wanted),
        *(f"--filter=- {pattern}" for pattern in host.self_excluded),
        *(f"--filter=- {pattern}" for pattern in host.exclude),
        *((f"--filter=- {SNAPSHOTS}",) if host.snapshots != "off" else ()),
        f"--filter=- {KEPT_SNAPSHOTS}",
    )


def as_pattern(name: str) -> str:
    """Returns a name as a pattern that matches only it: rsync reads backslashes only in a pattern that has wildcards."""
    return re.sub(r"([\\*?\[])", r"\\\1", name) if re.search(r"[*?\[]", name) else name


def remote_shell(host: HostConfig, ssh: SshSettings, buckets: Sequence[Bucket], shell: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns rsync's -e and --rsync-path; nothing for a local source without a bandwidth budget. `shell` replaces ssh."""
    shell = shell or shell_command(host, ssh, buckets)
    path = ("--rsync-path", host.rsync_path) if host.rsync_path else ()
    return (*path, "--rsh", shell_words(shell)) if shell else ()


def shell_command(host: HostConfig, ssh: SshSettings, buckets: Sequence[Bucket], control: Path | None = None) -> tuple[str, ...]:
    """Returns the command of the remote shell, with the relay that keeps to the buckets; () for a local source without buckets.

    rsync appends the host and its own command.
    """
    shell = ssh_command(host, ssh, control) if host.address else ()
    return relay_command(buckets, shell) if buckets else shell


def master_command(host: HostConfig, ssh: SshSettings, control: Path) -> tuple[str, ...]:
    """Returns an ssh command that logs in, runs nothing, and shares its connection through the socket `control`."""
    command = ssh_command(host, ssh, control)
    words = ("ControlMaster=yes" if word == "ControlMaster=no" else word for word in command)
    return (*words, "-o", "ControlPersist=no", "-N", *_destination(host))


def host_command(host: HostConfig, ssh: SshSettings, control: Path | None, words: Sequence[str]) -> tuple[str, ...]:
    """Returns an ssh command that runs `words` on the host, as its login shell parses them; a restricted key permits none."""
    return (*ssh_command(host, ssh, control), *_destination(host), *words)


def _destination(host: HostConfig) -> tuple[str, ...]:
    user, at, machine = (host.address or "").rpartition("@")
    return (*(("-l", user) if at else ()), "--", machine.removeprefix("[").removesuffix("]"))


def ssh_command(host: HostConfig, ssh: SshSettings, control: Path | None = None) -> tuple[str, ...]:
    """Returns ssh and its options: no prompts, a managed key and host key, detection of dead connections; one connection per
    transfer, or that of the socket `control`.
    """
    options = (f"ControlPath={control}" if control and each == "ControlPath=none" else each for each in _SSH_OPTIONS)
    return (
        *shlex.split(ssh.command),
        "-x",
        "-T",
        "-a",
        *(("-p", str(host.port)) if host.port else ()),
        "-o",
        f"IdentityFile={ssh.key}",  # with -i, ssh would try the keys of ~/.ssh if this one is missing
        "-o",
        f"UserKnownHostsFile={ssh.known_hosts}",
        *(word for option in (*host.ssh_options, *options) for word in ("-o", option)),
    )


def source(host: HostConfig, path: str, *, through_shell: bool) -> str:
    """Returns rsync's source argument.

    A remote shell would expand wildcards in the path, so they are escaped. rsync escapes everything else (options.c, safe_arg),
    including a backslash unless a wildcard follows it.
    """
    wanted = "/./" + path.strip("/") + ("/" if path != "/" else "")
    if not through_shell:
        return wanted
    return f"{host.address or 'localhost'}:" + re.sub(r"([*?\[\]])", r"\\\1", wanted)


SAFE = (3, 4, 3)  # older versions have vulnerabilities that a hostile host can exploit (see rsync's NEWS)
OLDEST = (3, 1, 3)  # --modify-window=-1


@dataclass(frozen=True, slots=True)
class Rsync:
    """The rsync of this server."""

    version: str
    """Its version as rsync prints it."""
    protocol: int | None
    """The newest version of the protocol that it supports; None: unknown."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Returns (3, 5, 0) for "3.5.0"."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:3])


def rsync_version() -> Rsync:
    """Returns the version of the rsync of this server. Raises ProgramFailed if there is no rsync."""
    try:
        fields = json.loads(run(["rsync", "-VV"]).stdout)
        return Rsync(str(fields["version"]), int(float(fields["protocol"])))
    except (ValueError, KeyError, ProgramFailed):  # versions before 3.2.4 have no JSON output
        text = run(["rsync", "--version"]).stdout
        match = re.search(r"version v?(\S+)\s+protocol version (\d+)", text)
        return Rsync(match[1], int(match[2])) if match else Rsync("unknown", None)
