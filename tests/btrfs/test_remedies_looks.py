"""All printed commands that change nothing, typed on one site: each is understood, and answers."""

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import TOP, btrfs, work
from tests.beds.cli import command
from tests.beds.nights import Nights
from tests.beds.printed import COMMANDS, printed_commands
from tests.beds.remedies import PACKAGES, Done, Typist
from tests.test_remedies import REASONS, Reason, only_reads

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MISUNDERSTOOD = re.compile(
    r"did you mean|no such option|no such command|missing argument|invalid value|Usage:|usage:|unrecognized|invalid option|unknown "
    r"(?:option|command)|[Uu]nknown operation|not found",
)
OURS_FILLED = {"offsite": "far", "replicate": "office", "status --state": "failing"}  # a host for all others
UNITS = {"systemctl", "journalctl", "timedatectl"}  # without systemd only their text is compared


@pytest.fixture
def site(make_btrfs: Callable[..., Path], tmp_path: Path) -> Nights:
    """A host with two backups, a repository and another pool."""
    nights, other = Nights(make_btrfs()), Nights(make_btrfs())
    folder = nights.top / "my pools"
    folder.mkdir()
    nights.config = folder / "main.toml"
    (nights.source / "file").write_text("text")
    password = tmp_path / "password"
    password.write_text("4711\n")
    password.chmod(0o600)
    nights.tables["offsite.far"] = {"repository": str(tmp_path / "repository"), "password_file": str(password)}
    nights.tables["replica.office"] = {"from": str(other.pool)}
    nights.host("web1", nights.source, address=None)
    nights.run("web1")
    nights.run("web1")
    nights.backupd("offsite", "init", "far")
    nights.backupd("sample")
    return nights


def filled(look: str, site: Nights, group: str) -> str:
    """Returns the command as it is printed for this site."""
    program, _, rest = look.partition(" ")
    config = f"--config '{site.config}'"
    if program not in COMMANDS:
        place = "btrkeep-backup@main.service" if program in UNITS else f"'{site.top if program == 'findmnt' else site.pool}'"
        bare = {"stats", "show", "list"} & {rest.split()[-1]} if program == "btrfs" else set()
        return look.replace("{}", place).replace("PID", str(os.getpid())) + (f" '{site.pool}'" if bare else "")
    rest = rest.replace("nightly {}", f"nightly {config}")  # an option for the pool
    rest = rest.replace("--pool {}", config).replace("HOST", "web1").replace("--explain {}", f"--explain {group}")
    name = next((name for words, name in OURS_FILLED.items() if rest.startswith(words)), "web1")
    rest = rest.replace("{}", name, 1).replace("{}", f"'{site.source}/file'", 1).replace("BACKUP", "latest")
    if program == "btrfs-heatmap" and config not in rest:
        rest = f"{rest} {config}"
    return f"backupd {config} {rest}" if program == "backupd" else f"{program} {rest}"


def answered(typist: Typist, line: str) -> Done:
    """Returns its output; btrkeep's programs are started without bash, which is faster."""
    program, *words = shlex.split(line)
    return command(PACKAGES[program], *words, check=False) if program in PACKAGES else typist.type(line, status=None)


@pytest.mark.slow
def test_each_command_that_only_looks_is_understood_on_a_real_site(site: Nights) -> None:
    typist, faults = Typist(), dict[str, str]()
    chunks = work("btrfs", "inspect-internal", "dump-tree", "-t", "chunk", btrfs.devices_of(site.top)[0]).stdout
    (group, *_) = re.findall(r"CHUNK_ITEM (\d+)\)[^(]*?type DATA", chunks)
    left = {*REASONS[Reason.NAMED], "btrfs check --readonly"}  # typed by test_remedies_states.py
    looks = [look for look in printed_commands() if only_reads(look) and look not in left]
    assert len(looks) > 55
    for look in looks:
        line = filled(look, site, group)
        done = answered(typist, line)
        text = done.stdout + done.stderr if done.returncode else done.stderr
        if "--help" not in line and (done.returncode not in (0, 1, 3) or MISUNDERSTOOD.search(text)):
            faults[line] = f"{done.returncode}: {text[:150]}"
        elif not done.stdout + done.stderr and not line.startswith("fuser"):
            faults[line] = "it prints nothing"
    assert faults == {}


def test_each_unit_of_a_printed_command_is_one_that_we_install() -> None:
    units = {unit for look in printed_commands() for unit in re.findall(r"btrkeep-[a-z]+@", look)}
    assert len(units) > 2
    assert {unit for unit in units if not list((TOP / "systemd").rglob(f"{unit}.*"))} == set()
