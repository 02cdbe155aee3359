"""A restore reports only restored files as restored: an immutable file counts as failed, in the first line too."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from btrkeep.errors import ERRORS_VARIABLE, first_reported
from tests.beds import TOP, ssh, work
from tests.beds.cli import BACKUPD
from tests.beds.everything import write
from tests.beds.nights import Nights

pytestmark = [pytest.mark.root, pytest.mark.btrfs, pytest.mark.ssh]


@pytest.fixture
def immutable(nights: Nights) -> Iterator[Path]:
    """A source with three files, one of which is immutable."""
    srv = nights.source / "srv"
    for name in ("a", "b", "c"):
        write(srv / name, name)
    yield srv / "b"
    work("chattr", "-i", srv / "b")


def change(file: Path) -> None:
    """Changes the files, and makes one of them immutable."""
    for name in ("a", "b"):
        write(file.parent / name, "changed since")
    (file.parent / "c").unlink()
    work("chattr", "+i", file)


def test_a_restore_to_a_folder_counts_what_it_did(nights: Nights, immutable: Path) -> None:
    nights.host("web1", immutable.parent)
    nights.night("web1")
    change(immutable)
    to = ("--overwrite=all", "--to", immutable.parent)
    done = nights.backupd("restore", "web1", immutable, *to, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].startswith("not all was restored: 0 names restored, 0 B in ")
    assert f"{immutable}: Operation not permitted" in done.stdout
    done = nights.backupd(
        "restore", "web1", immutable.parent, "--json", "--overwrite=all", "--to", immutable.parents[1], check=False
    )
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert (result["overwritten"]["count"], result["new"]["count"], result["problems"]["count"]) == (1, 1, 1)


def test_a_restore_over_ssh_counts_what_it_did(nights: Nights, sshd: ssh.Sshd, immutable: Path) -> None:
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", immutable.parent, address=sshd.address, port=sshd.port)
    nights.night("web1")
    change(immutable)
    done = nights.backupd("restore", "web1", immutable, "--overwrite=all", "--to-host", check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].startswith("not all was restored: 0 names restored, 0 B in ")
    done = nights.backupd("restore", "web1", immutable.parent, "--overwrite=all", "--json", "--to-host", check=False)
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert (result["overwritten"]["count"], result["new"]["count"], result["differences"]["count"]) == (1, 1, 1)
    assert result["differences"]["samples"][0]["place"] == str(immutable)


def test_the_job_that_started_it_gets_the_reason(nights: Nights, immutable: Path, tmp_path: Path) -> None:
    nights.host("web1", immutable.parent)
    nights.night("web1")
    change(immutable)
    words = ("restore", "web1", immutable, "--json", "--progress-lines", "--overwrite=all", "--to", immutable.parent)
    with (tmp_path / "errors").open("w+b") as errors:
        line = (*BACKUPD, "--config", nights.config, *words)
        done = subprocess.run(
            line,
            pass_fds=(errors.fileno(),),
            env={**os.environ, ERRORS_VARIABLE: str(errors.fileno()), "PYTHONPATH": str(TOP)},
            capture_output=True,
            text=True,
            check=False,
        )
        reported = first_reported(errors)
    assert done.returncode == 1
    assert reported is not None
    assert reported.message.startswith("not all was restored: 1 name could not be restored")
    assert reported.message.endswith(f"{immutable}: Operation not permitted")
    assert done.stderr.splitlines()[-1].startswith("not all was restored: 0 names restored")
