"""The commands of "When a host is gone" are executed on a separate machine: its folder /mnt is the new machine's disk.

Not typed are the partitioning, the boot loader and the restart. All else is, to the letter.

It is read when a host is lost: a line that does not work then costs its data or a night.
"""

import re
import shlex
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.beds import differences, manifest, session
from tests.beds.everything import everything
from tests.docs.apart import APART, run_apart
from tests.docs.pages import Page

pytestmark = APART

Read = Callable[[str], Page]
CONFIGURATION = """\
[pool]
path = "/srv/backup"
min_free = "0%"

[host.web1]
address = "root@web1.example.org"
paths = ["/etc/fstab", "/etc/machine-id", "/srv/site"]
"""
READS, WRITES = 'restrict,command="rrsync -ro /"', 'restrict,command="rrsync /"'
NOT_TYPED = {"parted", "mkfs.ext4", "mount /dev/vda2 /mnt", "chroot", "reboot"}


def prepared() -> dict[str, str]:
    """A server with a backup of web1, whose key only reads; then web1 loses everything."""
    return {
        "init": "backupd init /srv/backup",
        "configure": f"printf '%s' {shlex.quote(CONFIGURATION)} >/etc/btrkeep/main.toml; echo 1234 >/etc/machine-id; "
        "echo '# the old one' >/etc/fstab",
        "key": "ssh-keygen -q -t ed25519 -N '' -f /etc/btrkeep/id_ed25519",
        "allow": authorized(READS),
        "scan": "ssh-keyscan -t ed25519 web1.example.org >/etc/btrkeep/known_hosts",
        "backup": "backupd run web1",
        "gone": "mkdir /srv/lost; mv /srv/site /srv/lost/",
    }


def authorized(options: str) -> str:
    return f'(printf "%s " {shlex.quote(options)}; cat /etc/btrkeep/id_ed25519.pub) >$PLACE/authorized_keys'


def typed(block: str) -> str:
    """Returns the lines of a block, except those that only a real disk can execute."""
    return "\n".join(line for line in block.splitlines() if not any(word in line for word in NOT_TYPED))


def followed(gone: Page) -> dict[str, str]:
    (which,) = gone.section("Which backup").blocks("sh")
    (disk,) = gone.section("The new machine: a disk").blocks("sh")
    key = gone.section("A key that may write")
    look, do = gone.section("Everything comes back").block("sh").splitlines()
    boot, leave = gone.section("The boot loader").blocks("sh")
    assert "mount /dev/vda2 /mnt" in disk
    return {
        "which": which,
        "disk": "mkdir -p /srv/disk; mount --bind /srv/disk /mnt" + typed(disk),
        "refused": f"! {do}",
        "write key": authorized(key.block("none").partition(" ssh-ed25519 ")[0]),
        "host key": key.block("sh"),
        "look": look,
        "do": do,
        "folders": gone.section("Files outside the backup").block("sh"),
        "names": gone.section("Names of the disk").block("sh").replace("blkid", "blkid || true"),
        "boot": typed(boot),
        "leave": typed(leave),
        "first boot": f"rm -r /srv/lost; mv /srv/disk/srv/site /srv/; {authorized(READS)}",
        "backup again": gone.section("The first backup afterwards").block("sh"),
    }


def by_hand(gone: Page) -> dict[str, str]:
    copy, rsync, tar = gone.section("Without btrkeep").blocks("sh")
    newest = copy.splitlines()[0]
    fresh = "mkdir -p /srv/{0}; mount --bind /srv/{0} /mnt; {1}\n"
    return {
        "no catalogue": "rm -r /var/lib/btrkeep; mkdir /srv/plain; backupd restore web1 / --to /srv/plain --privileged",
        "copied": fresh.format("copied", copy) + "\numount /mnt",
        "write key again": authorized(WRITES),
        "rsynced": fresh.format("rsynced", newest)
        + rsync.replace("rsync -a", "rsync -e 'ssh -i /etc/btrkeep/id_ed25519 -o UserKnownHostsFile=/etc/btrkeep/known_hosts' -a")
        + "\numount /mnt",
        "tarred": fresh.format("tarred", newest) + tar + "\numount /mnt",
    }


def test_who_follows_the_page_has_the_host_back(page: Read, make_btrfs: Callable[..., Path]) -> None:
    gone = page("when-a-host-is-gone")
    pool = make_btrfs(size="1G")
    site = everything(pool / "site")
    shutil.rmtree(site / "special")  # a tar has no sockets
    wanted = manifest(site, blocks=True)
    steps = {**prepared(), **followed(gone), **by_hand(gone)}
    place = Path(tempfile.mkdtemp(prefix="apart-", dir=session.folder()))
    done = run_apart([f"cd $PLACE; {step}" for step in steps.values()], pool, place)
    result = dict(zip(steps, done, strict=True))
    assert [str(done) for done in result.values() if done.status] == []

    assert "can only read on the host" in result["refused"].err
    assert " new" in result["look"].out
    assert re.search(r"0 differences", result["do"].out), str(result["do"])
    assert "# the old one" in result["names"].out
    assert "web1: complete" in result["backup again"].out
    assert re.search(r", 0 B new|, \d+(\.\d+)? (B|KiB) new", result["backup again"].out), str(result["backup again"])
    for name in ("tmp", "proc", "var/tmp"):
        assert (pool / "disk" / name).is_dir()
    assert (pool / "disk" / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert differences(wanted, manifest(pool / "site", blocks=True)) == []  # from the new machine's disk
    plain = {name: replace(entry, blocks=None) for name, entry in wanted.items()}
    for way in ("plain", "copied", "rsynced", "tarred"):
        lines = differences(plain, manifest(pool / way / "srv" / "site"))
        # GNU tar makes two fifos of one with two names. Ours (--tar) does not.
        assert [line for line in lines if way != "tarred" or "fifo': links" not in line] == [], way
