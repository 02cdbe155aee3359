"""Whether rsync can be confined is a trial, and the machine may be at its limits at that moment."""

import os
import resource
from pathlib import Path

import pytest

from backupd.rsync.confined import confinement
from btrkeep.config import Config, load

LIMIT = "Resource temporarily unavailable"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "main.toml"
    file.write_text(
        f'[pool]\npath = "{tmp_path}/pool"\n[backup]\nconfine = "auto"\n[host.web]\naddress = "web"\npaths = ["/etc"]\n'
    )
    return load(file=file)


def stub(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A bwrap that does that."""
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.root
@pytest.mark.parametrize(
    "script",
    [
        f"echo 'bwrap: Creating new namespace failed: {LIMIT}' >&2; exit 1",
        "echo 'bwrap: Creating new namespace failed: Cannot allocate memory' >&2; exit 1",
        "kill -9 $$",
        "exit 137",
    ],
)
def test_a_limit_that_is_reached_for_a_moment_lets_nothing_run_unconfined(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    stub(tmp_path, monkeypatch, script)
    assert confinement(config, pause=0).missing == ""


@pytest.mark.root
def test_one_that_is_over_a_moment_later_is_nothing(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(
        tmp_path,
        monkeypatch,
        f"[ -e {tmp_path}/tried ] && echo 'bwrap: never' >&2 || echo '{LIMIT}' >&2; touch {tmp_path}/tried; exit 1",
    )
    assert confinement(config, pause=0).missing == "bwrap: never"


@pytest.mark.root
def test_what_is_never_possible_is_said(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "bwrap: Creating new namespace failed: Operation not permitted"
    stub(tmp_path, monkeypatch, f"echo '{why}' >&2; exit 1")
    assert confinement(config, pause=0).missing == why


@pytest.mark.root
def test_no_descriptor_left_is_such_a_limit(config: Config) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())), before[1]))
    try:
        assert confinement(config, pause=0).missing == ""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
