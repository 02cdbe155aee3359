"""What "Getting started" tells to type is typed, to the letter, on a machine apart with a btrfs at /srv and a host web1."""

import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.beds import session
from tests.docs.apart import Done, run_apart, why_not
from tests.docs.pages import Page

pytestmark = [
    pytest.mark.btrfs,
    pytest.mark.ssh,
    pytest.mark.root,
    pytest.mark.skipif(bool(why_not()), reason=f"left out: a machine apart ({why_not()})"),
]

Read = Callable[[str], Page]
SPOIL, LOSE = "echo spoiled >/etc/hosts.before; cp -a /etc/hosts /etc/hosts.was", "rm -r /var/lib/btrkeep/main"


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="apart-", dir=session.folder())) / "place"
    path.mkdir()
    yield path


def configure(block: str) -> str:
    return f"printf '%s' {shlex.quote(chr(10) + block + chr(10))} >>/etc/btrkeep/main.toml"


def authorize(line: str) -> str:
    """The page's line in the host's authorized_keys, with the key that the page made in place of its dots."""
    options = line.partition(" ssh-ed25519 ")[0]
    return f'printf "%s " {shlex.quote(options)} >$PLACE/authorized_keys; cat /etc/btrkeep/id_ed25519.pub >>$PLACE/authorized_keys'


def test_who_follows_the_page_has_backups_and_gets_a_file_back(page: Read, make_btrfs: Callable[..., Path], place: Path) -> None:
    start, keys = page("getting-started"), page("restricted-keys")
    first, look = start.section("The first backup: this machine"), start.section("Look at a backup")
    real, delete = start.section("The first real host"), start.section("Delete an old backup")
    init, backup = first.blocks("sh")
    look_once, run_again = look.blocks("sh")
    make_key, scan, connect = real.blocks("sh")
    doomed = re.search(r"hosts/here/(\S+)", delete.block("sh"))
    assert doomed
    steps = [
        init,
        configure(first.block("toml")),
        backup,
        look_once,
        f"sleep 1; {run_again}",
        "cp -a /etc/hosts /etc/hosts.was; chmod 600 /etc/hosts; echo spoiled >>/etc/hosts; touch -d 2001-01-01 /etc/hosts",
        start.section("Copy a file back").block("sh"),
        "cmp /etc/hosts /etc/hosts.was; stat -c '%a %U %G %Y' /etc/hosts /etc/hosts.was",
        make_key,
        authorize(real.block("none")),
        scan,
        "mkdir -p /srv/www; echo welcome >/srv/www/index.html",
        configure(real.block("toml")),
        connect,
        "cmp /srv/www/index.html /srv/backup/hosts/web1/latest/data/srv/www/index.html",
        f"cd /srv/backup/hosts/here; oldest=$(ls -d 2* | head -1); {delete.block('sh').replace(doomed[1], '$oldest')}; ls -d 2*",
        f"backupd list --all >/tmp/listed; {LOSE}; {start.section('When the catalogue is lost').block('sh')}; backupd list --all | cmp - /tmp/listed",
        "btrfs subvolume delete /srv/backup/hosts/*/2* >/dev/null",
        keys.section("Host keys").blocks("sh")[1],
        "backupd check --connect --json",
        keys.section("Host keys").blocks("sh")[0],
        "backupd check --connect --json",
    ]
    done = run_apart([f"cd $PLACE; {step}".replace("/tmp/listed", "$PLACE/listed") for step in steps], make_btrfs(size="1G"), place)
    told = dict(zip(steps, done, strict=True))
    forgotten, learnt = done[-3], done[-1]
    for one in done:
        assert one.status == 0 or one in (told[connect], told[backup], forgotten, learnt), str(one)
    assert_first_backup(told[backup], told[look_once], told[run_again])
    was, now = told[steps[7]].out.splitlines()
    assert was == now
    assert " web1 " in told[connect].out
    assert re.search(r"^web1 +ok ", told[connect].out, re.MULTILINE), str(told[connect])
    assert told[scan].out.startswith("256 SHA256:")
    assert told[steps[15]].out.splitlines()[-1] != doomed[1]
    assert "the host key is unknown or changed" in forgotten.out
    assert '"reached, 2 paths can be listed"' in learnt.out


def assert_first_backup(backup: Done, look: Done, again: Done) -> None:
    levels = re.findall(r"^(ok|note|warning|error) ", backup.out, re.MULTILINE)
    assert levels.count("ok") >= 4
    assert "error" not in levels
    assert "here: complete" in backup.out
    assert {"hosts", "btrkeep"} <= set(look.out.split())
    assert len(re.findall(r"^here +\S+Z +complete ", again.out, re.MULTILINE)) == 2
