"""A backup of this machine leaves out the pool and the state folder, wherever symbolic links lead; tested with rsync."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from btrkeep.config import HostConfig, load
from btrkeep.errors import ConfigError


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A tree with a pool, a state folder, data beside them, and links to all of these."""
    root = tmp_path / "machine"
    for folder in ("srv/pool[1]/hosts", "srv/www", "srv/pool1", "var/state", "var/state-old", "home"):
        (root / folder).mkdir(parents=True)
        (root / folder / "file").touch()
    (root / "data").symlink_to("srv")
    (root / "pool").symlink_to("srv/pool[1]")
    (root / "home" / "backups").symlink_to(root / "srv" / "pool[1]")
    return root


def host(machine: Path, pool: str, *sources: str) -> tuple[HostConfig, tuple[str, ...]]:
    paths = ", ".join(f'"{machine / source}"' for source in sources)
    text = (
        f'[pool]\npath = "{machine / pool}"\nstate = "{machine}/var/state"\n[host.here]\npaths = [{paths}]\nretention.daily = 1\n'
    )
    (machine / "main.toml").write_text(text)
    config = load(folder=machine)
    return config.hosts["here"], config.notices


def fetched(here: HostConfig, machine: Path) -> set[str]:
    """Returns the files that rsync fetches for this host with the engine's arguments, relative to the machine's root."""
    for path in here.paths:
        excludes = [f"--exclude={pattern}" for pattern in here.self_excluded]
        command = ["rsync", "-a", "--relative", *excludes, f"/.{path}/", f"{machine}.copy/"]
        subprocess.run(command, check=True, capture_output=True)
    copy = Path(f"{machine}.copy{machine}")
    return {str(path.relative_to(copy)) for path in copy.rglob("file")}


@pytest.mark.skipif(not shutil.which("rsync"), reason="rsync is not installed")
@pytest.mark.parametrize("pool", ["srv/pool[1]", "pool", "data/pool[1]"])
@pytest.mark.parametrize(
    ("sources", "files"),
    [
        (("srv",), {"srv/www/file", "srv/pool1/file"}),
        (("data",), {"data/www/file", "data/pool1/file"}),
        (("srv", "data"), {"srv/www/file", "srv/pool1/file", "data/www/file", "data/pool1/file"}),
        (("var", "home"), {"var/state-old/file", "home/file"}),
        (("var/state-old",), {"var/state-old/file"}),
        (("",), {"srv/www/file", "srv/pool1/file", "home/file", "var/state-old/file"}),
        (("srv/www",), {"srv/www/file"}),
    ],
)
def test_rsync_fetches_everything_but_the_pool_and_the_state(
    machine: Path, pool: str, sources: tuple[str, ...], files: set[str]
) -> None:
    here, notices = host(machine, pool, *sources)
    assert fetched(here, machine) == files
    assert len(notices) == {"srv": 1, "data": 1, "var": 1, "": 2, "srv/www": 0, "var/state-old": 0}[sources[0]] + (
        sources == ("srv", "data")
    )


def test_the_notice_names_file_host_source_and_what_is_left_out(machine: Path) -> None:
    here, notices = host(machine, "pool", "var")
    assert here.self_excluded == (f"{machine}/var/state",)
    output = f'"{machine}/var" contains the state folder: {machine}/var/state is excluded'
    assert notices == (f"{machine}/main.toml: host.here.paths: {output}",)


def test_the_whole_machine_leaves_the_pool_out(machine: Path) -> None:
    (machine / "main.toml").write_text(
        f'[pool]\npath = "{machine}/home"\nstate = "{machine}/var/state"\n[host.here]\npaths = ["/"]\n'
    )
    assert load(folder=machine).hosts["here"].self_excluded == (f"{machine}/home", f"{machine}/var/state")


@pytest.mark.parametrize(
    "source", ["srv/pool[1]", "data/pool[1]/hosts", "pool", "pool/hosts", "home/backups", "home/backups/hosts", "var/state"]
)
def test_a_source_path_in_the_pool_is_refused(machine: Path, source: str) -> None:
    with pytest.raises(ConfigError, match=f'{re.escape(f"{machine}/{source}")}": is the (pool|state folder) itself, or lies in it'):
        host(machine, "pool", source)


def test_another_machine_may_have_the_same_paths(machine: Path) -> None:
    text = f'[pool]\npath = "{machine}/srv"\n[host.there]\naddress = "there"\npaths = ["{machine}/srv"]\nretention.daily = 1\n'
    (machine / "main.toml").write_text(text)
    config = load(folder=machine)
    assert (config.hosts["there"].self_excluded, config.notices) == ((), ())
