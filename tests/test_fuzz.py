"""Bytes from outside, made by a fuzzer that follows the coverage: two seconds for each target; bench.fuzz takes an hour.

And thirty inputs: a slow machine has not even started after two seconds. The long form has ten. Inputs that once found an error are
among the first ones, and in separate tests.

Without them, bytes of a hostile host could end a program with a traceback, and the night with it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.fuzz_targets import TARGETS
from tests.beds import TOP

pytest.importorskip("atheris", reason="left out: the fuzzer (atheris has no wheel for this Python or processor)")

FEW = {"catalogue": 8}  # each opens every page of the dashboard


def fuzz(*words: str, keep: Path, seconds: int) -> tuple[int, dict[str, dict]]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.fuzz", "--json", "--jobs", "1", "--seconds", str(seconds), "--keep", str(keep), *words],
        cwd=TOP, capture_output=True, text=True, timeout=290, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_whatever_the_bytes_are_nothing_unforeseen_happens(name: str, seconds: int, tmp_path: Path) -> None:
    inputs = FEW.get(name, 30)
    status, result = fuzz("--only", name, "--inputs", str(inputs), keep=tmp_path, seconds=seconds)
    assert status == 0, result[name]["error"]
    assert result[name]["inputs"] >= inputs
    assert result[name]["covered"] > 20


@pytest.mark.slow
def test_what_a_target_does_not_stand_is_found_kept_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is a reader that fails at one version of the protocol."""
    (tmp_path / "sitecustomize.py").write_text(
        "import backupd.rsync.messages as output\n"
        "feed = output.Output.feed\n"
        "def falling(self, data):\n"
        "    feed(self, data)\n"
        "    if self.protocol == 32:\n"
        "        raise ZeroDivisionError('planted')\n"
        "output.Output.feed = falling\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "rsync-output").mkdir()
    (tmp_path / "rsync-output" / "near").write_bytes(b"(Client) Protocol versions: remote=31, negotiated=32\n")
    status, result = fuzz("--only", "rsync-output", keep=tmp_path, seconds=20)
    assert status == 1
    assert "planted" in result["rsync-output"]["error"]
    assert b"negotiated=32" in Path(result["rsync-output"]["failing_input"]).read_bytes()
    again = [
        sys.executable,
        "-m",
        "bench.fuzz_targets",
        "rsync-output",
        str(tmp_path / "rsync-output"),
        result["rsync-output"]["failing_input"],
    ]
    assert "planted" in subprocess.run(again, cwd=TOP, capture_output=True, text=True, timeout=60, check=False).stdout
