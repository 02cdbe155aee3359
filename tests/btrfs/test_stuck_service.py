"""The disk of the state folder does not answer: the root service answers other requests, its jobs end, both work afterwards."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from btrkeep.serving.protocol import RequestRefused
from tests.beds.cli import TOP
from tests.beds.hangfs import hanging
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from tests.beds.watch import wait_for

IMPATIENT = (sys.executable, "-P", TOP / "tests" / "beds" / "impatient.py")
SOON = 60
"""Seconds within which a command ends that waits half a second for what does not answer. One that hangs never ends."""


@contextmanager
def dead_state(nights: Nights) -> Iterator[None]:
    """During the block, no access to the state folder returns."""
    aside = nights.state.with_name("aside")
    nights.state.rename(aside)
    try:
        with hanging(nights.state, dead=True):
            yield
    finally:
        nights.state.rmdir()
        aside.rename(nights.state)


@pytest.fixture
def backed_up(nights: Nights) -> Nights:
    (nights.source / "file").write_text("content")
    nights.host("web", nights.source)
    nights.run("web")
    return nights


def refusal(service: Service, verb: str, **arguments: object) -> str:
    begun = time.monotonic()
    with pytest.raises(RequestRefused) as refused:
        service.agent().ask(verb, **arguments)
    assert time.monotonic() - begun < SOON, verb
    return refused.value.message


def test_the_root_service_answers_all_else_and_goes_on_when_the_state_folder_answers(backed_up: Nights) -> None:
    with serving(backed_up.config, program=IMPATIENT) as service:
        service.agent().ask("jobs")
        with dead_state(backed_up):
            for _ in range(20):  # more than the maximum of connections: none of them stays open
                assert "does not answer" in refusal(service, "jobs")
            assert "does not answer" in refusal(service, "run", host="web")
            assert "does not answer" in refusal(service, "hold", host="web", backup="latest", why="")
            listed = service.agent().ask("browse", host="web", backup="latest", path=str(backed_up.source))
            assert [entry["name"] for entry in listed["entries"]] == ["file"]
            assert service.agent().ask("hello")["pool"] == backed_up.config.stem
        wait_for(lambda: not _refused(service, "jobs"))
        job = service.agent().ask("run", host="web")["job"]
        wait_for(lambda: service.agent().ask("job", job=job)["state"] == "done")


def _refused(service: Service, verb: str) -> bool:
    try:
        service.agent().ask(verb)
    except RequestRefused:
        return True
    return False


def test_a_folder_for_restores_that_does_not_answer_keeps_the_root_service_from_nothing_else(backed_up: Nights) -> None:
    folder = backed_up.top / "restored"
    with (
        hanging(folder, dead=True),
        serving(backed_up.config, "--restore-to", folder, "--restore-below", folder, program=IMPATIENT) as service,
    ):
        assert f"{folder} does not answer" in service.log_text
        assert not service.agent().ask("hello")["folder"]


def test_a_restore_to_this_machine_is_refused_where_another_pool_does_not_answer(backed_up: Nights, tmp_path: Path) -> None:
    """Where the symlinks of that pool lead cannot be checked, and without a check nothing is written."""
    backed_up.host("here", backed_up.source, address=None)
    backed_up.run("here")
    with (
        hanging(backed_up.top / "opt", dead=True),
        serving(backed_up.config, "--restore-below", backed_up.source, program=IMPATIENT) as service,
    ):
        backed_up.config.with_name("other.toml").write_text(f'[pool]\npath = "{backed_up.top}/opt"\nstate = "{tmp_path}"\n')
        paths = [str(backed_up.source / "file")]
        message = refusal(service, "preview", host="here", backup="latest", paths=paths, to="host")
        assert f"{backed_up.top}/opt does not answer" in message


def test_a_job_of_a_state_folder_that_does_not_answer_ends_and_says_so(backed_up: Nights) -> None:
    with dead_state(backed_up):
        ended = _ended(*IMPATIENT, "--config", backed_up.config, "run-job", "20261129T000000Z-01234567")
    assert ended[0] == 1
    assert f"{backed_up.state} does not answer" in ended[1]


def test_the_picture_of_the_night_waits_for_no_state_folder(backed_up: Nights) -> None:
    code = "from btrkeep import hung_storage; hung_storage.PATIENCE = 0.5; from heatmap.cli import main; main()"
    with dead_state(backed_up):
        ended = _ended(sys.executable, "-P", "-c", code, "nightly", "--config", backed_up.config)
    assert ended[0] == 1
    assert f"{backed_up.state} does not answer" in ended[1]


def _ended(*words: str | Path) -> tuple[int, str]:
    """Runs a command that must end; its exit status and what it printed on standard error. Nothing waits for one that hangs."""
    env = {"PATH": "/usr/sbin:/usr/bin", "PYTHONPATH": str(TOP)}
    with tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=stderr, env=env)
        wait_for(lambda: process.poll() is not None, SOON, "the command hangs")
        stderr.seek(0)
        return process.returncode, " ".join(stderr.read().split())
