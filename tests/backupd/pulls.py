"""Transfers one source path with a real rsync, the engine's own command, and our parsers of its messages."""

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backupd.rsync.command import passes, rsync_command
from backupd.rsync.messages import MessageClass, Messages, Output
from btrkeep.config import HostConfig, SshSettings
from btrkeep.process.programs import environment

FAKESSH = Path(__file__).parents[1] / "fakessh"

# A sender that may not read everything, as one that is not root: root itself may read a file of mode 000.
UNPRIVILEGED = "setpriv --bounding-set=-dac_override,-dac_read_search rsync" if os.geteuid() == 0 else "rsync"


@dataclass(frozen=True, slots=True)
class Pulled:
    """An rsync that has ended: its status, its bytes, and the results of our parsers."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    output: Output
    messages: Messages

    def counts(self) -> dict[MessageClass, int]:
        """Returns the relevant classes of messages with their numbers."""
        return {
            kind: count for kind, count in self.messages.counts.items() if kind not in (MessageClass.OTHER, MessageClass.UNKNOWN)
        }


def pull(
    path: str | Path,
    destination: Path,
    *,
    based: bool = False,
    shell: Path = FAKESSH,
    extra: Sequence[str] = (),
    host: HostConfig | None = None,
    **settings: str | bool | tuple[str, ...],
) -> Pulled:
    """Transfers `path` from another host (this one, through `shell`) into `destination`; `settings` are those of the host.

    With `inplace="large"` both passes run, and the second one is returned.
    """
    host = replace(host or HostConfig("web1", address="peer"), paths=(str(path),), **settings)  # type: ignore[arg-type]
    destination.mkdir(exist_ok=True)
    for one_pass in passes(host.inplace, based=based):
        command = rsync_command(host, SshSettings(command=shlex.quote(str(shell))), str(path), str(destination), one_pass)
        pulled = run([command[0], *extra, *command[1:]])
    return pulled


def run(command: Sequence[str]) -> Pulled:
    """Runs an rsync as the engine does: in the same built environment."""
    done = subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60, start_new_session=True
    )
    output, messages = Output(), Messages()
    output.feed(done.stdout)
    messages.answered = output.protocol is not None
    messages.feed(done.stderr)
    messages.close(output.complaints)
    return Pulled(done.returncode, done.stdout, done.stderr, output, messages)


def arrived(folder: Path) -> set[bytes]:
    """Returns the regular files below `folder`, found by find: relative names in bytes."""
    done = subprocess.run(["find", folder, "-type", "f", "-printf", r"%P\0"], capture_output=True, check=True)
    return set(done.stdout.split(b"\0")[:-1])


def script(path: Path, text: str) -> Path:
    """Writes an executable file, for a remote shell with special behaviour."""
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def meanwhile(path: Path, after: int, command: str) -> Path:
    """Returns a remote shell that runs `command` after `after` bytes of the sender: the source changes during the transfer."""
    program = path.with_suffix(".py")
    program.write_text(
        f"""\
import os, subprocess, sys
os.set_blocking(1, True)
remote = subprocess.Popen([{str(FAKESSH)!r}, *sys.argv[1:]], stdout=subprocess.PIPE)
passed, done = 0, False
while piece := os.read(remote.stdout.fileno(), 65536):
    if passed >= {after} and not done:
        subprocess.run(["sh", "-ec", {command!r}], check=True)
        done = True
    passed += len(piece)
    while piece:
        piece = piece[os.write(1, piece):]
sys.exit(max(remote.wait(), -1) % 256)  # as ssh reports it
"""
    )
    return script(path, f'#!/bin/sh\nexec {shlex.join([sys.executable, str(program)])} "$@"\n')


def restricted(path: Path, folder: str = "/") -> Path:
    """Returns a remote shell for a key whose line has command="rrsync -ro FOLDER"."""
    options = ":B:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"
    return script(
        path,
        f"""\
#!/bin/sh
while getopts "{options}" option; do :; done
shift "$OPTIND"
export SSH_ORIGINAL_COMMAND="$*"
exec rrsync -ro {shlex.quote(folder)}
""",
    )
