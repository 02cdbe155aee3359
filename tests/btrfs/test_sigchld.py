"""A parent that ignores SIGCHLD, which a program inherits: then the kernel keeps no exit status for it."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import TOP
from tests.beds.nights import Nights

pytestmark = pytest.mark.btrfs


def test_a_transfer_that_fails_is_none_that_is_complete(make_btrfs: Callable[..., Path]) -> None:
    nights = Nights(make_btrfs())
    (nights.source / "web1").mkdir()
    (nights.source / "web1" / "file").write_text("a")
    nights.host("web1", nights.source / "web1", nights.source / "none")
    words = [sys.executable, "-m", "backupd", "--config", str(nights.config), "run", "web1", "--json"]
    done = subprocess.run(
        words,
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )
    assert "Traceback" not in done.stderr, done.stderr
    (answer,) = json.loads(done.stdout)
    assert answer["outcome"] == "failed", done
