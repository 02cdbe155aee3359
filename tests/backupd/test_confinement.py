"""Whether rsync can be confined is found out by a trial, and the machine may be at its limits at that moment."""

import os
import resource
from functools import partial
from pathlib import Path

import pytest

from backupd.replicate.cli import fetching
from backupd.rsync.cell import seccomp_filter
from backupd.rsync.confined import confinement
from btrkeep.config import Config, load
from btrkeep.errors import OperatorError

LIMIT = "Resource temporarily unavailable"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "main.toml"
    file.write_text(
        f'[pool]\npath = "{tmp_path}/pool"\n[backup]\nconfine = "auto"\n[host.web]\naddress = "web"\npaths = ["/etc"]\n'
    )
    return load(file=file)


def stub(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Writes a bwrap that does that."""
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


@pytest.mark.parametrize(
    ("machine", "has_bubblewrap", "why", "hint"),
    [
        ("x86_64", False, "bubblewrap is not installed", "apt install bubblewrap"),
        ("m68k", True, "the system calls of .* are not known here", "another processor type"),
    ],
)
def test_a_stream_from_another_server_is_received_in_a_cell_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, has_bubblewrap: bool, why: str, hint: str
) -> None:
    monkeypatch.setattr(fetching, "seccomp_filter", partial(seccomp_filter, machine))
    monkeypatch.setenv("PATH", str(tmp_path))
    if has_bubblewrap:
        stub(tmp_path, monkeypatch, "exit 0")
    with pytest.raises(OperatorError, match=why) as refused:
        fetching._is_confined(may_do_without=False)
    assert hint in refused.value.hint
    assert not fetching._is_confined(may_do_without=True)


def test_where_there_is_a_cell_it_is_used_also_if_it_is_not_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "seccomp_filter", partial(seccomp_filter, "x86_64"))
    stub(tmp_path, monkeypatch, "exit 0")
    assert fetching._is_confined(may_do_without=True)
