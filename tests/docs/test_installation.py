"""The commands of "Installation": those of btrkeep are executed on a separate machine, the others compared with install.sh.

A line that does not work stops a new user before the first backup.
"""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import TOP, session, work
from tests.docs.apart import run_apart, why_not
from tests.docs.pages import Page
from tests.docs.test_names import faults

BACKUPDS = ("--accept-host-key", "--address", "--from", "--this-machine", "--unset", "--now", "--zone", "--window")
Read = Callable[[str], Page]


def test_every_option_and_place_that_the_page_names_is_one_of_install_sh(page: Read) -> None:
    result = page("installation")
    output = work(TOP / "install.sh", "--help").stdout
    options = {
        word for block in result.blocks("sh") for line in block.splitlines() if "install.sh" in line for word in line.split()
    }
    assert {word for word in options if word.startswith("--")} == {
        "--enable",
        "--fetch-wheels",
        "--offline",
        "--uninstall",
        "--web",
        "--wheels",
    }
    for option in re.findall(r"--[a-z-]+", " ".join(result.literals())):
        assert option in output or option in BACKUPDS, option
    script = (TOP / "install.sh").read_text(encoding="utf-8")
    lines = dict(re.findall(r"^([A-Z_]+)=(\S+)$", script, re.MULTILINE))
    assert (lines["BIN"], lines["LIB"], lines["SHARE"]) == ("/usr/local/sbin", "/usr/local/lib", "/usr/local/share")
    packages = re.search(r"^RUN_PACKAGES=\((.*)\)$", (TOP / "scripts" / "ground.sh").read_text(encoding="utf-8"), re.MULTILINE)
    assert packages
    assert result.section("What is installed").table()[0][1].startswith(", ".join(packages[1].split()))


def test_every_call_of_our_command_on_the_page_can_be_made(page: Read) -> None:
    calls = [call for call in page("installation").commands() if call]
    assert len(calls) > 5
    assert {call: wrong for call in calls if (wrong := faults(call))} == {}


def test_the_timers_that_the_page_names_are_there(page: Read) -> None:
    named = re.findall(r"(btrkeep-\w+@)main\.timer", " ".join(page("installation").literals()))
    assert named
    assert [name for name in named if not (TOP / "systemd" / f"{name}.timer").exists()] == []


@pytest.mark.btrfs
@pytest.mark.ssh
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=f"left out: a machine apart ({why_not()})")
def test_who_types_setup_and_host_as_the_page_has_them_has_a_pool_and_two_hosts(
    page: Read, make_btrfs: Callable[..., Path]
) -> None:
    section = page("installation").section("The first backup")
    _, setup, hosts = section.blocks("sh")
    add, test, change, listing, remove = hosts.splitlines()
    let_in = "grep -h ^restrict, said >$PLACE/authorized_keys"
    steps = [
        setup,
        "mkdir -p /srv/www",
        f"{add} >said",
        let_in,
        f"{add} --accept-host-key",
        remove,
        f"{add} --accept-host-key",
        test,
        change,
        listing,
        remove,
    ]
    place = Path(tempfile.mkdtemp(prefix="apart-", dir=session.folder()))
    done = run_apart([f"cd $PLACE; {step}" for step in steps], make_btrfs(size="1G"), place)
    # web1 is added by the first call, which cannot reach it yet; the second one reports that it exists
    assert [command.status for command in done] == [0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0], "\n".join(map(str, done))
    assert "here: complete" in done[0].out
    assert re.search(r"^ok +web1 +reached, 2 paths", done[7].out, re.MULTILINE)
    assert [line.split()[0] for line in done[9].out.splitlines()] == ["HOST", "here", "web1"]
