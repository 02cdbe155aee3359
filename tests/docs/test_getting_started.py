"""The commands of "Getting started" are executed exactly, on a separate machine with a btrfs at /srv and a host web1.

A new user types these lines first: one that fails is the end of the trial.
"""

import json
import re
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.beds import session
from tests.docs.apart import APART, run_apart
from tests.docs.pages import Page

pytestmark = APART

Read = Callable[[str], Page]
Steps = dict[str, str]
ATTENTION = {"check", "connect", "key unknown", "key learnt"}  # an rsync older than recommended gives exit status 1


def configure(block: str) -> str:
    return f"printf '%s' {shlex.quote(chr(10) + block + chr(10))} >>/etc/btrkeep/main.toml"


def authorize(line: str) -> str:
    """Returns the command that adds the page's line to the host's authorized_keys, with the page's key in place of its dots."""
    options = line.partition(" ssh-ed25519 ")[0]
    return f'printf "%s " {shlex.quote(options)} >$PLACE/authorized_keys; cat /etc/btrkeep/id_ed25519.pub >>$PLACE/authorized_keys'


def this_machine(start: Page) -> Steps:
    first = start.section("The first backup: this machine")
    init, check_and_run = first.blocks("sh")
    check, run = check_and_run.splitlines()
    look, again = start.section("Look at a backup").blocks("sh")
    return {
        "init": init,
        "configure": configure(first.block("toml")),
        "check": check,
        "run": run,
        "look": look,
        "again": f"sleep 1; {again}",
        "spoil": "cp -a /etc/hosts /etc/hosts.was; chmod 600 /etc/hosts; echo spoilt >>/etc/hosts; touch -d 2001-01-01 /etc/hosts",
        "restore": start.section("Copy a file back").block("sh"),
        "compare": "cmp /etc/hosts /etc/hosts.was; stat -c '%a %U %G %Y' /etc/hosts /etc/hosts.was",
    }


def web1(start: Page) -> Steps:
    real = start.section("The first real host")
    make_key, scan, connect = real.blocks("sh")
    check, *run = connect.splitlines()
    return {
        "make key": make_key,
        "authorize": authorize(real.block("none")),
        "scan": scan,
        "a source": "mkdir -p /srv/www; echo welcome >/srv/www/index.html",
        "configure web1": configure(real.block("toml")),
        "connect": check,
        "run web1": "\n".join(run),
        "compare web1": "cmp /srv/www/index.html /srv/backup/hosts/web1/latest/data/srv/www/index.html",
    }


def afterwards(start: Page) -> Steps:
    delete, rebuild = start.section("Delete an old backup").block("sh"), start.section("When the catalogue is lost").block("sh")
    in_place_of_the_example = re.sub(r"here@\S+", "here@$oldest", delete)
    return {
        "keep": start.section("How long backups are kept").block("sh"),
        "delete": f"oldest=$(ls /srv/backup/hosts/here | head -1); {in_place_of_the_example}; backupd list here",
        "listed": "backupd list --all --json",
        "lose": "rm -r /var/lib/btrkeep/main",
        "rebuild": rebuild,
        "listed again": "backupd list --all --json",
    }


def another_host_key(keys: Page) -> Steps:
    learn, forget = keys.section("Host keys").blocks("sh")
    return {
        "forget": forget,
        "key unknown": "backupd check --connect --json",
        "learn": learn,
        "key learnt": "backupd check --connect --json",
    }


def test_who_follows_the_page_has_backups_and_gets_a_file_back(page: Read, make_btrfs: Callable[..., Path]) -> None:
    start = page("getting-started")
    steps = {**this_machine(start), **web1(start), **afterwards(start), **another_host_key(page("restricted-keys"))}
    place = Path(tempfile.mkdtemp(prefix="apart-", dir=session.folder()))
    done = run_apart([f"cd $PLACE; {step}" for step in steps.values()], make_btrfs(size="1G"), place)
    result = dict(zip(steps, done, strict=True))
    assert [str(done) for name, done in result.items() if done.status and not (name in ATTENTION and done.status == 1)] == []

    assert len(re.findall(r"^ok ", result["check"].out, re.MULTILINE)) >= 4
    assert not re.search(r"^error ", result["check"].out, re.MULTILINE)
    assert "here: complete" in result["run"].out
    assert {"hosts", "passwd", "latest"} <= set(result["look"].out.split())
    assert len(re.findall(r"^here +\S+Z +complete ", result["again"].out, re.MULTILINE)) == 2
    assert len(set(result["compare"].out.splitlines())) == 1
    assert "256 SHA256:" in result["scan"].out
    assert re.search(r"^ok +web1 +reached", result["connect"].out, re.MULTILINE), str(result["connect"])
    assert re.search(r"^web1 +ok ", result["run web1"].out, re.MULTILINE), str(result["run web1"])
    assert re.search(r"daily 1 of 14, weekly 1 of 13, monthly 1 of 12", result["keep"].out), str(result["keep"])
    assert len(re.findall(r"^here +\S+Z +complete ", result["delete"].out, re.MULTILINE)) == 1
    before, after = (json.loads(result[name].out) for name in ("listed", "listed again"))
    # A backup's record is written before its last commit, so a rebuilt catalogue lacks the duration of that commit.
    took = [(row.pop("duration"), same.pop("duration")) for row, same in zip(before, after, strict=True)]
    assert after == before
    assert len(took) == 2
    assert all(0 < rebuilt <= whole for whole, rebuilt in took)
    assert "the host key is unknown or changed" in result["key unknown"].out
    assert '"reached, 2 paths can be listed"' in result["key learnt"].out
