"""The page about btrkeep-source is followed exactly, on a separate machine with a btrfs at /srv: from its copy to a restored file.

What a host's administrator types there as root has to work the first time.
"""

import re
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.beds import TOP, session
from tests.docs.apart import APART, run_apart
from tests.docs.pages import Page

pytestmark = APART

Read = Callable[[str], Page]
SETUP = (
    "backupd setup --pool-path /srv/backup --retention daily=7 --host web1 --address root@web1.example.org --path /srv/www "
    "--accept-host-key --no-run"
)
PROGRAM = shlex.quote(str(TOP / "backupd" / "source" / "btrkeep_source.py"))


def prepared() -> dict[str, str]:
    """A pool, a host with the line that `setup` prints for it, and the files that install.sh puts on the backup server."""
    return {
        "own folders": "mount -t tmpfs tmpfs /run; mkdir -m 755 /run/sshd; cd $PLACE; mkdir -p local/up local/work; "
        "mount -t overlay overlay -o lowerdir=/usr/local,upperdir=$PLACE/local/up,workdir=$PLACE/local/work /usr/local; "
        "rm -f /etc/btrkeep-source.conf; mkdir -p /srv/www; echo first >/srv/www/page",
        "installed": f"install -D -m 755 {PROGRAM} /usr/local/share/btrkeep/btrkeep-source",
        "setup": f"{SETUP} | tee $PLACE/printed; grep -F 'rrsync -ro' $PLACE/printed >$PLACE/authorized_keys",
        "first run": "backupd run web1",
    }


def followed(sources: Page, keys: Page) -> dict[str, str]:
    install = sources.section("Install it on a host")
    copy, check = install.blocks("sh")
    line = install.block("none").partition(" ssh-ed25519 ")[0]
    line = re.sub(r',from="[^"]*"', "", line)
    example = sources.section("Configure it").block("ini")
    restore = keys.section("The restore key").block("ini")
    return {
        "copy": re.sub(r"^scp (\S+) root@web1.example.org:", r"cp \1 ", copy),
        "check": f"script --quiet --return --command {shlex.quote(check)} /dev/null",
        "line": f'(printf "%s " {shlex.quote(line)}; cat /etc/btrkeep/id_ed25519.pub) >$PLACE/authorized_keys',
        "snapshots": "backupd host set web1 snapshots=required",
        "connect": "backupd check --connect || true",
        "second run": "echo second >/srv/www/page; sleep 1; backupd run web1",
        "browse": "backupd browse web1 /srv/www",
        "example": f"printf '%s\\n' {shlex.quote(example)} >/etc/btrkeep-source.conf; btrkeep-source check",
        "third run": "sleep 1; backupd run web1 || true",
        "restore conf": f"printf '%s\\n' {shlex.quote(restore)} >/etc/btrkeep-source.conf",
        "refused": "rm /srv/www/page; backupd restore web1 /srv/www/page --to-host",
        "print the line": "backupd setup --host web1 --no-run | grep 'btrkeep-source restore' >>$PLACE/authorized_keys",
        "restored": "backupd restore web1 /srv/www/page --to-host; cat /srv/www/page",
        "left": "btrfs subvolume list /srv; ls -A /run/btrkeep-source",
    }


def test_who_follows_the_page_has_snapshots_and_gets_a_file_back(page: Read, make_btrfs: Callable[..., Path]) -> None:
    place = Path(tempfile.mkdtemp(prefix="apart-", dir=session.folder()))
    steps = {**prepared(), **followed(page("sources"), page("restricted-keys"))}
    done = dict(zip(steps, run_apart(list(steps.values()), make_btrfs(size="1G"), place), strict=True))
    assert [str(step) for name, step in done.items() if step.status and name not in ("setup", "check", "refused")] == []
    assert re.search(r"^/srv +snapshot \(btrfs\)", done["check"].out, re.MULTILINE), done["check"].out
    assert "/srv/www: read from a snapshot (btrfs)" in " ".join(done["browse"].out.split())
    assert "web1: suspect; " in done["third run"].out  # complete but for the dump, of which the backup has no path
    assert "no path of this backup contains /var/lib/btrkeep-source/dumps/postgresql" in done["third run"].out
    assert "the host does not have the restore key" in " ".join(done["refused"].err.split())
    assert done["restored"].out.endswith("second\n")
    assert ".btrkeep-source" not in done["left"].out
