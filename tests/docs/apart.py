"""A separate machine for the documentation's commands, with its own /etc, /srv and /var/lib, its own processes, and one host.

Its processes see this machine's programs and the checkout. Files below /etc and /var/lib are deleted with it; /srv is the
btrfs that it is given. `backupd` is the command of the checkout; web1.example.org is an ssh server, on a loopback address.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.beds.ssh import SSHD
from tests.beds.steps import Done
from tests.beds.walls import walled
from tests.beds.work import work

TOP = Path(__file__).resolve().parents[2]
WEB1 = "web1.example.org"

_SET_UP = """\
set -eu
# Mounts of parallel tests must not stay in this namespace after these tests have ended.
sed -nE 's|^([^ ]+ ){4}([^ ]*/btrkeep-test-[^ ]*) .*|\\2|p' /proc/self/mountinfo | grep -vxF "$POOL" | xargs -r umount -l || true
mount -t tmpfs tmpfs "$PLACE"
cd "$PLACE"
for folder in etc var/lib; do
    mkdir -p "$folder/up" "$folder/work"
    mount -t overlay overlay -o "lowerdir=/$folder,upperdir=$PLACE/$folder/up,workdir=$PLACE/$folder/work" "/$folder"
done
mount --bind "$POOL" /srv
rm -rf /etc/btrkeep /var/lib/btrkeep
printf '127.0.0.1 localhost\\n%s web1.example.org\\n' "$ADDRESS" >/etc/hosts
mkdir bin
printf '#!/bin/sh\\nexec "%s" -m backupd "$@"\\n' "$PYTHON" >bin/backupd
chmod +x bin/backupd
mkdir -p -m 755 /run/sshd
ssh-keygen -q -t ed25519 -N '' -f host_key
printf '%s\\n' "ListenAddress $ADDRESS" "HostKey $PLACE/host_key" "AuthorizedKeysFile $PLACE/authorized_keys" \\
    "PidFile none" "PasswordAuthentication no" "StrictModes no" "UsePAM $PAM" "SetEnv HOME=$PLACE" >sshd_config
"$SSHD" -f sshd_config -E "$PLACE/sshd.log"
PATH="$PLACE/bin:$PATH"
exec "$PYTHON" -I "$RUNNER" <"$STEPS"
"""

_RUNNER = """\
import json, subprocess, sys
told = []
for line in json.load(sys.stdin):
    done = subprocess.run(["bash", "-ec", line], capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    told.append([line, done.returncode, done.stdout, done.stderr])
print(json.dumps(told))
"""


def why_not() -> str:
    """Returns why this checkout cannot be used in such a machine, or ""."""
    hidden = [path for path in (str(TOP), sys.prefix, sys.base_prefix) if Path(path).is_relative_to("/srv")]
    return f"{hidden[0]} would be hidden there" if hidden else ""


APART = [
    pytest.mark.takes(20),
    pytest.mark.btrfs,
    pytest.mark.ssh,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=f"left out: a machine apart ({why_not()})"),
]
"""The marks of a module that types a page on such a machine."""


def run_apart(steps: Sequence[str], pool: Path, place: Path) -> list[Done]:
    """Runs the steps, each with a bash of its own that ends at the first failure; all of them, whatever their exit status.

    `pool` is a folder on a btrfs, /srv for them; `place` an empty folder, PLACE for them, with authorized_keys of the host in it.
    """
    runner, given = place.with_name(f"{place.name}.py"), place.with_name(f"{place.name}.json")
    runner.write_text(_RUNNER, encoding="utf-8")
    given.write_text(json.dumps(list(steps)), encoding="utf-8")
    locked = work("getent", "shadow", "root").stdout.split(":")[1].startswith("!")
    pid = os.getpid()
    environment = {
        "PLACE": str(place),
        "POOL": str(pool),
        "ADDRESS": f"127.{1 + (pid >> 16) % 250}.{pid >> 8 & 255}.{max(2, pid & 255)}",  # no other session's
        "PYTHON": sys.executable,
        "PYTHONPATH": str(TOP),
        "SSHD": SSHD,
        "PAM": "yes" if locked else "no",
        "RUNNER": str(runner),
        "STEPS": str(given),
        "NO_COLOR": "1",
    }
    done = work(*walled("bash", "-c", _SET_UP, proc=True), env=environment, timeout=280)
    return [Done(*row) for row in json.loads(done.stdout)]
