"""Every example of JSON on the page has the keys and kinds of values that the real output has.

Scripts are written by these examples: a key that the output does not have breaks them, or makes them see nothing.
"""

import json
import os
import re
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backupd.cli import COMMANDS
from tests.beds import TOP, work
from tests.beds.badssh import FAKESSH
from tests.beds.cli import BACKUPD
from tests.beds.history import write_down
from tests.beds.leftout import needs_program
from tests.beds.nights import Nights
from tests.docs.pages import Page

Read = Callable[[str], Page]

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z")


def shape(value: Any) -> Any:
    """Returns the keys and kinds of a JSON value. A list's items are merged, null matches everything, and a backup's name as a key
    matches any name.
    """
    if isinstance(value, dict):
        return {("NAME" if _NAME.fullmatch(key) else key): shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [merged for merged in [_merged([shape(element) for element in value])] if merged is not None]
    return None if value is None else "number" if type(value) in (int, float) else type(value).__name__


def _merged(shapes: list[Any]) -> Any:
    recorded = [merged_shape for merged_shape in shapes if merged_shape is not None]
    assert all(agree(recorded[0], merged_shape) for merged_shape in recorded), recorded
    return recorded[0] if recorded else None


def agree(answer: Any, other: Any) -> bool:
    if answer in (None, [], {}) or other in (None, [], {}):  # nothing that could differ
        return True
    if isinstance(answer, dict) and isinstance(other, dict):
        return list(answer) == list(other) and all(agree(answer[key], other[key]) for key in answer)
    if isinstance(answer, list) and isinstance(other, list):
        return agree(answer[0], other[0])
    return answer == other


def test_shapes_that_differ_are_told_apart() -> None:
    def same(answer: Any, other: Any) -> bool:
        return agree(shape(answer), shape(other))

    assert same([{"a": 1, "b": None}], [{"a": 2.5, "b": "x"}, {"a": 3, "b": None}])
    assert same({"2026-11-20T150629Z": 1}, {"2027-11-20T150629Z": 1})
    assert not same({"a": 1}, {"a": "1"})
    assert not same({"a": 1}, {"a": True})
    assert not same({"a": 1}, {"a": 1, "b": 1})
    assert not same([{"a": [1]}], [{"a": ["x"]}])


@pytest.fixture
def answers(shared_btrfs: Path, backupd_running: Callable[..., Any]) -> dict[str, Any]:
    """Returns the output of each command about a host that lost many files, and then is slow."""
    nights = Nights(shared_btrfs)
    www = nights.source / "www"
    www.mkdir()
    for number in range(8):
        (www / f"{number}.jpg").write_bytes(bytes([number]) * 40_000)
    nights.host("web1", www)
    other = nights.top / "other.toml"
    answer: dict[str, Any] = {"init": json.loads(nights.backupd("--config", other, "init", nights.top / "other", "--json").stdout)}
    answer["check"] = json.loads(nights.backupd("check", "--json", check=False).stdout)
    answer |= about_coming(nights)
    answer["doctor"] = json.loads(nights.backupd("doctor", "--json", check=False).stdout)
    answer["doctor --fix"] = nights.json("doctor", "--fix", "atime", "--dry-run")
    answer["doctor --fix room"] = nights.json("doctor", "--fix", "room")
    answer["run --dry-run"] = nights.json("run", "--dry-run")
    nights.run("web1")
    for number in range(5):
        (www / f"{number}.jpg").unlink()
    answer["run"] = [nights.run("web1", status=1)["web1"]]
    answer["usage"] = nights.json("usage", "web1", "--method", "sampled", "--time", "1s")
    answer["dedupe --dry-run"] = nights.json("dedupe", "--dry-run")
    answer["dedupe"] = nights.json("dedupe")
    answer["quota"] = nights.json("quota", "show")
    answer["drill --dry-run"], answer["drill"] = nights.json("drill", "--dry-run"), nights.json("drill")
    answer["notify"] = nights.json("notify", "--dry-run")
    answer["silence"] = nights.json("silence", "web1", "--until", "2099-01-01", "--why", "new disk")
    answer["metrics"] = [
        family for family in nights.json("metrics") if family["name"] == "btrkeep_hosts"
    ]  # each has its own labels
    answer["list"], answer["log"] = nights.json("list", "web1"), nights.json("log", "web1", "-n", "1")
    answer["backup.json"] = nights.record("web1")
    answer |= about_offsite(nights)
    answer["accept"], answer["rebuild"] = nights.json("accept", "web1", "latest", "--why", "moved to web2"), nights.json("rebuild")
    answer["browse"], answer["versions"] = nights.json("browse", "web1", str(www)), nights.json("versions", "web1", f"{www}/0.jpg")
    answer["compare"] = nights.json("compare", "web1", str(www), nights.names("web1")[0])
    answer["restore --dry-run"] = nights.json("restore", "web1", str(www), "--to", str(nights.top / "out"), "--dry-run")
    answer["restore"] = nights.json("restore", "web1", str(www), "--to", str(nights.top / "out"))
    answer["restore --tar"] = nights.json("restore", "web1", str(www), "--tar", str(nights.top / "out.tar"))
    answer["notes.json"] = json.loads((nights.backup("web1", "notes.json")).read_text())
    answer["seals.json"] = json.loads((nights.backup("web1", "seals.json")).read_text())
    answer["pool.json"] = json.loads((nights.pool / ".btrkeep" / "pool.json").read_text())
    answer["status"] = status_while_running(nights, www, backupd_running)
    answer["rehearse --dry-run"] = nights.json("rehearse", "--question", "balance", "--dry-run", "--on", str(nights.state.parent))
    return answer | about_keeping(nights)


def about_coming(nights: Nights) -> dict[str, Any]:
    """Returns the output of the commands with which a pool and its hosts begin. The added host is removed again."""
    words = ("--address", "root@127.0.0.1", "--port", "9", "--path", "/etc")
    key, known_hosts = nights.top / "key", nights.top / "known_hosts"
    work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    known_hosts.write_text(f"[127.0.0.1]:9 {key.with_suffix('.pub').read_text()}")
    nights.settings("ssh", key=str(key), known_hosts=str(known_hosts), command="ssh")
    answer = {"host add": json.loads(nights.backupd("host", "add", "shop", *words, "--json", check=False).stdout)}
    answer["host"] = nights.json("host", "list")
    answer["setup"] = json.loads(nights.backupd("setup", "--host", "shop", "--no-run", "--json", check=False).stdout)
    answer["host set"] = nights.json("host", "set", "shop", "port=2222")
    answer["host remove"] = nights.json("host", "remove", "shop")
    nights.settings("ssh", command=shlex.quote(str(FAKESSH)))
    return answer


def about_offsite(nights: Nights) -> dict[str, Any]:
    """Returns the output about a repository in a folder, to which nothing is sent: the one backup is suspect."""
    password = nights.state.parent / "password"
    password.write_text("secret")
    password.chmod(0o600)
    nights.tables["offsite.far"] = {"repository": str(nights.state.parent / "far"), "password_file": str(password)}
    nights.write()
    nights.backupd("offsite", "init", "far")
    answer = {f"offsite {words}": nights.json("offsite", *words.split()) for words in ("run --dry-run", "run")}
    return answer | {"offsite": nights.json("offsite", "list")}


def about_keeping(nights: Nights) -> dict[str, Any]:
    """Returns the output of the commands that hold backups or remove holds; web1 is renamed and is no longer configured."""
    first, second = nights.names("web1")
    answer = {"hold": nights.json("hold", "web1", first, "--until", "2099-01-01", "--why", "before the migration")}
    answer["release"] = nights.json("release", "web1", first)
    answer |= {command: nights.json(command) for command in ("verify", "damaged")}
    at = "2026-11-20T15:06:31Z"
    write_down(nights, "web1", backups={second: {"expired": {"at": at, "why": "no rule keeps it"}}})
    answer["retention"] = nights.json("retention", "explain", "web1", "--policy", "daily=1,min_keep=1")
    answer["unexpire"] = nights.json("unexpire", "web1", second)
    nights.backupd("release", "web1", second)
    answer["discard"] = nights.json("discard", "web1", "--yes")  # the backup that was stopped for `status`
    answer["delete"] = nights.json("delete", f"web1@{first}", "--reason", "has private files in it", "--force")
    answer["rename"] = nights.json("rename", "web1", "web2", "--yes")
    answer["forget"] = nights.json("forget", "web2", "--yes")
    answer["expire --dry-run"], answer["expire"] = nights.json("expire", "--dry-run"), nights.json("expire")
    answer["progress"] = nights.json("progress", "--once")
    nights.json("sample")
    answer |= {command: nights.json(command) for command in ("sample", "trend", "day", "forecast", "scrub")}
    return answer


def status_while_running(nights: Nights, www: Path, backupd_running: Callable[..., Any]) -> Any:
    (www / "film").write_bytes(bytes(range(256)) * 40_000)
    nights.host("web1", www, bandwidth="100KiB")
    running = backupd_running("--config", nights.config, "run", "web1")
    for _ in range(100):
        status = nights.json("status")
        if status["running"]:
            running.send_signal(signal.SIGTERM)
            assert running.wait(timeout=60) == 143
            return status
        time.sleep(0.1)
    raise AssertionError(running.communicate())


def test_every_example_is_of_the_shape_of_real_output(page: Read, answers: dict[str, Any]) -> None:
    assert answers["run"][0]["outcome"] == "suspect"
    for row, real in answers.items():
        title = row if row.endswith(".json") else f"backupd {row}"
        section = page("json").section(title)
        example = json.loads(section.blocks("json")[0])
        assert agree(shape(example), shape(real)), (row, shape(example), shape(real))


@needs_program("jq")
def test_the_script_hands_back_names_whatever_is_in_them(page: Read, shared_btrfs: Path) -> None:
    nights = Nights(shared_btrfs)
    for name in (b"caf\xe9 \\x41", b"100%25\n", "\u4e2d'".encode()):
        Path(os.fsdecode(os.fsencode(nights.source) + b"/" + name)).write_bytes(name)
    nights.host("web1", nights.source)
    nights.run("web1")
    (script,) = page("json").blocks("bash")
    here = f'backupd() {{ {shlex.join(BACKUPD)} --config {nights.config} "$@"; }}\n{script}'
    out = nights.top / "restored"
    work("bash", "-e", "-c", here.replace("/srv", str(nights.source)).replace("/root/restored", str(out)), cwd=TOP)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == {
        file.name: file.read_bytes() for file in nights.source.iterdir()
    }


def test_every_command_that_speaks_json_has_its_section(page: Read) -> None:
    titles = {"".join(section[0].itertext()) for section in page("json").root.iter("section")}
    assert {f"backupd {command}" for command in COMMANDS} - {"backupd completion", "backupd serve"} <= titles
