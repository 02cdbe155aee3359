"""Hosts that make no snapshots, although the configuration wants them: the program is missing, refuses, answers nonsense, too much
or nothing. With `auto` they are read live, with one warning; with `required` the run fails with the reason.
"""

import json
import shlex
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.beds.anyone import without_rights
from tests.beds.nights import Nights
from tests.beds.source_program import PROGRAM
from tests.beds.ssh import Sshd

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

SESSION = "liar-20261130T092400Z-1a2b3c"
Host = Callable[..., Path]


@pytest.fixture
def host(nights: Nights, sshd: Sshd) -> Host:
    """Configures web1, whose key runs the lines of a shell script for `begin` and `end`, and rrsync for everything else."""

    return partial(configured, nights, sshd)


def configured(nights: Nights, sshd: Sshd, snapshots: str, begin: str, end: str = "exit 1", more: str = "", **keys: Any) -> Path:
    """Configures the host. `more`: further cases of the script."""
    script = nights.top / "key-command"
    cases = f'"btrkeep-source begin"*) {begin} ;;\n"btrkeep-source end"*) {end} ;;\n{more}*) exec rrsync -ro / ;;'
    script.write_text(f'#!/bin/bash\ncase "$SSH_ORIGINAL_COMMAND" in\n{cases}\nesac\n')
    script.chmod(0o755)
    folder = nights.source / "www"
    folder.mkdir(exist_ok=True)
    (folder / "index.html").write_text("welcome")
    key = str(sshd.authorize(f'restrict,command="{script}"'))
    nights.settings("ssh", command="ssh -F none", key=key, known_hosts=str(sshd.known_hosts))
    nights.host("web1", folder, address=sshd.address, port=sshd.port, snapshots=snapshots, **keys)
    return folder


def answer(folder: Path, **changes: Any) -> str:
    fields = {
        "format": 1,
        "session": SESSION,
        "paths": [{"path": str(folder), "consistency": "live", "methods": [], "reason": "ext4 on a plain partition"}],
        "filesystems": [],
        "dumps": [],
    }
    return json.dumps({**fields, **changes})


NO_ANSWER = {
    "not installed": ("exec /bin/sh -c btrkeep-source-that-is-missing", "is not installed on the host"),
    "rrsync": ("exec rrsync -ro /", "the host does not run btrkeep-source"),
    "own error": (
        "echo 'btrkeep-source: /srv is not allowed; add it to [paths] allow' >&2; exit 1",
        "/srv is not allowed; add it to",
    ),
    "garbage": ("head -c 10000 /dev/urandom", "the answer of btrkeep-source to `begin` is invalid"),
    "nothing": ("exit 0", "the answer of btrkeep-source to `begin` is invalid"),
    "another format": ("""echo '{"format": 2}'""", "the answer of btrkeep-source to `begin` is invalid"),
    "too much": ("head -c 10M /dev/zero", "the answer of btrkeep-source is larger than 1 MiB"),
    "endless": ("exec yes", "the answer of btrkeep-source is larger than 1 MiB"),
    "many errors": ("yes '\x1b[2J' | head -c 10M >&2; exit 1", "the host does not run btrkeep-source"),
}


@pytest.mark.parametrize(("begin", "words"), NO_ANSWER.values(), ids=NO_ANSWER)
def test_with_auto_the_host_is_read_live_with_one_warning(nights: Nights, host: Host, begin: str, words: str) -> None:
    folder = host("auto", begin)
    result = nights.run("web1")["web1"]
    assert result["outcome"] == "complete"
    (warning,) = result["warnings"]
    assert warning.startswith("the host made no snapshots, so its files were read live: ")
    assert words in warning
    assert warning.isprintable()
    assert len(warning) < 600
    assert nights.differences("web1", folder) == []
    (path,) = nights.record("web1")["paths"]
    assert path["consistency"]["kind"] == "live"
    assert words in path["consistency"]["reason"]


@pytest.mark.parametrize(("begin", "words"), [NO_ANSWER[kind] for kind in ("not installed", "own error", "garbage")])
def test_with_required_the_run_fails_with_the_reason_and_no_file_is_fetched(
    nights: Nights, host: Host, begin: str, words: str
) -> None:
    host("required", begin)
    result = nights.run("web1", status=1)["web1"]
    assert (result["outcome"], result["name"]) == ("failed", None)
    assert "the host made no snapshots: " in result["error"]
    assert words in result["error"]
    assert not (nights.pool / "hosts" / "web1" / ".working").exists()
    (run,) = nights.json("log", "web1")
    assert (run["outcome"], run["exit_code"]) == ("failed", None)


def test_a_host_that_hangs_in_the_request_is_read_live_within_its_deadline(nights: Nights, host: Host) -> None:
    folder = host("auto", "while kill -0 $PPID; do sleep 1; done", deadline="20s")
    begun = time.monotonic()
    result = nights.run("web1")["web1"]
    assert time.monotonic() - begun < 120
    assert result["outcome"] == "complete"
    assert "did not answer within 10 seconds" in result["warnings"][0]
    assert nights.differences("web1", folder) == []


def test_a_session_that_cannot_be_ended_is_a_warning_and_no_failure(nights: Nights, host: Host) -> None:
    folder = nights.source / "www"
    host("auto", f"echo '{answer(folder)}'", "echo 'btrkeep-source: the snapshot is busy' >&2; exit 1")
    script = (nights.top / "key-command").read_text()
    (nights.top / "key-command").write_text(script.replace("*) exec rrsync", _LIVE_SESSION + "*) exec rrsync"))
    result = nights.run("web1")["web1"]
    assert result["outcome"] == "complete"
    assert result["warnings"] == [
        "the host did not delete the snapshots of this run (the snapshot is busy): btrkeep-source deletes them in its next run"
    ]


# Such as btrkeep-source without root: rsync runs, and sees no snapshot.
_LIVE_SESSION = f""""btrkeep-source rsync {SESSION} "*)
SSH_ORIGINAL_COMMAND="rsync ${{SSH_ORIGINAL_COMMAND#btrkeep-source rsync {SESSION} }}"; export SSH_ORIGINAL_COMMAND
exec rrsync -ro / ;;
"""


@pytest.mark.parametrize(
    "end", [f"echo '{json.dumps({'format': 1, 'removed': 0, 'full': 7})}'", "exec yes", "head -c 99 /dev/urandom"]
)
def test_an_invalid_answer_to_the_end_is_a_warning(nights: Nights, host: Host, end: str) -> None:
    folder = nights.source / "www"
    host("auto", f"echo '{answer(folder)}'", end)
    script = (nights.top / "key-command").read_text()
    (nights.top / "key-command").write_text(script.replace("*) exec rrsync", _LIVE_SESSION + "*) exec rrsync"))
    result = nights.run("web1")["web1"]
    assert result["outcome"] == "complete"
    assert "the host did not delete the snapshots of this run" in result["warnings"][0]
    (path,) = nights.record("web1")["paths"]
    assert path["consistency"] == {"kind": "live", "reason": "ext4 on a plain partition"}


def test_a_session_that_the_host_has_lost_is_begun_again(nights: Nights, host: Host) -> None:
    """As after a restart of the host: the first rsync gets the answer that the session does not exist."""
    folder, mark = nights.source / "www", nights.top / "lost"
    host("auto", f"echo '{answer(folder)}'", f"""echo '{json.dumps({"format": 1, "removed": 1, "full": []})}'""", attempts=3)
    begun = nights.top / "begun"
    gone = f"""if [ ! -e {mark} ]; then touch {mark}; echo 'btrkeep-source: there is no session {SESSION}' >&2; exit 1; fi\n"""
    script = (nights.top / "key-command").read_text()
    script = script.replace(
        "*) exec rrsync", _LIVE_SESSION.replace("SSH_ORIGINAL_COMMAND=", gone + "SSH_ORIGINAL_COMMAND=", 1) + "*) exec rrsync"
    )
    (nights.top / "key-command").write_text(
        script.replace('"btrkeep-source begin"*) ', f'"btrkeep-source begin"*) echo >>{begun}; ')
    )
    (result,) = nights.night("web1")
    assert (result.outcome, result.attempts, result.warnings) == ("complete", 2, ())
    assert begun.read_text() == "\n\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "full"])
def test_the_alarm_of_the_third_night_has_a_command_that_leads_to_the_reason_or_ends_it(
    shared_btrfs: Path, sshd: Sshd, kind: str
) -> None:
    """The command is run in the state for which it is recommended. `check --connect` does not show that a snapshot becomes full."""
    nights = Nights(shared_btrfs, "--rehearsal")
    folder = nights.source / "www"
    taken = [{"mount": str(folder), "method": "lvm", "taken": "2026-11-30T09:24:00.000Z"}]
    paths = [{"path": str(folder), "consistency": "snapshot", "methods": ["lvm"], "reason": None}]
    begin = NO_ANSWER["own error"][0] if kind == "none" else f"echo '{answer(folder, filesystems=taken, paths=paths)}'"

    def night(day: int, full: list[str]) -> list[str]:
        end = f"echo '{json.dumps({'format': 1, 'removed': 1, 'full': full})}'"
        configured(nights, sshd, "auto", begin, end, _LIVE_SESSION)
        nights.backupd("run", "web1", "--now", f"2026-11-{day:02}T22:00:00Z")
        done = nights.backupd("notify", "--json", "--now", f"2026-11-{day:02}T22:30:00Z", check=False)
        return [alarm["text"] for alarm in json.loads(done.stdout)["standing"] if "web1" in alarm["subject"]]

    texts = [night(day, [str(folder)]) for day in (1, 2, 3)]
    assert [len(each) for each in texts] == [0, 0, 1]
    command = texts[2][0].rpartition(f"backupd --config {shlex.quote(str(nights.config))} ")[2]
    now = ("--now", "2026-11-03T23:00:00Z")
    shown = " ".join(nights.backupd(*shlex.split(command if kind == "none" else "status web1"), *now, check=False).stdout.split())
    if kind == "none":
        assert command == "status web1"
        assert NO_ANSWER["own error"][1] in shown
    else:
        assert f"the snapshot of {folder} became full: raise lvm_size on the host" in shown
        assert command == "run web1"
        assert night(4, []) == []


def test_a_key_without_root_reads_what_it_may_and_the_backup_names_the_rest(
    nights: Nights, sshd: Sshd, public_folder: Path
) -> None:
    """The program itself, as the user of the key; another user's file is not read."""
    program, tree = public_folder / "btrkeep-source", public_folder / "srv"
    shutil.copy(PROGRAM, program)
    tree.mkdir()
    for number in range(100):
        (tree / f"file{number}").write_text(f"content of {number}")
    for place in (program, tree, *tree.iterdir()):
        place.chmod(0o755)  # for that user, whatever the umask is
    (tree / "secret").touch(mode=0o600)
    files = ["--config", public_folder / "none", "--state", public_folder / "state"]
    line = shlex.join(map(str, [*without_rights(), program, *files, "--server", "office"]))
    key = str(sshd.authorize(f'restrict,command="{line}"'))
    nights.settings("ssh", command="ssh -F none", key=key, known_hosts=str(sshd.known_hosts))
    nights.host("web1", tree, address=sshd.address, port=sshd.port, snapshots="auto")
    result = nights.run("web1")["web1"]
    assert (result["outcome"], result["warnings"]) == ("complete", [f"{tree}: 1 could not be read (such as {tree}/secret)"])
    (path,) = nights.record("web1")["paths"]
    assert path["unreadable"] == 1
    assert (path["consistency"]["kind"], path["consistency"]["reason"]) == ("live", "btrkeep-source runs without root")
    assert (nights.data("web1", tree) / "file7").read_text() == "content of 7"
    assert not (nights.data("web1", tree) / "secret").exists()
    assert not (public_folder / "state").exists()
