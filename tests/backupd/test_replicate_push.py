"""The end of a sending as the other server reports it: a real process at the other end of two pipes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from backupd.replicate.push import Push, PushSummary
from backupd.replicate.sender import BackupSender
from btrkeep.process.programs import piped
from btrkeep.process.progress import Cancellation

# Sends a request, and prints the error in the answer.
OTHER = """
import json, struct, sys
sys.stdout.write(open(sys.argv[1]).read() + "\\n")
sys.stdout.flush()
_, length = struct.unpack(">cI", sys.stdin.buffer.read(5))
print(json.loads(sys.stdin.buffer.read(length)).get("error", ""), file=sys.stderr)
"""


def ended(folder: Path, failed: object) -> tuple[PushSummary, str]:
    """Returns the result after the other server has ended with these failed hosts; and the error that it was sent."""
    no_pool: Any = None  # the announcement of an end needs none
    file = folder / "request.json"
    file.write_text(json.dumps({"verb": "ended", "error": "", "failed": failed}))
    with piped([sys.executable, "-c", OTHER, str(file)]) as program:
        sender = BackupSender(no_pool, None, program.input)
        summary = Push(sender, program, [], Cancellation(), lambda _: None).run()
        program.end()
        return summary, "\n".join(program.error_lines())


def test_failed_hosts_are_reported_with_the_other_servers_reasons(tmp_path: Path) -> None:
    summary, error = ended(tmp_path, {"web1": "no space\x1b[2J", "web2": "x" * 2000})
    assert (summary.is_ended, error) == (True, "")
    assert summary.failed == {"web1": r"no space\x1b[2J", "web2": "x" * 1000}


@pytest.mark.parametrize(
    "failed", [["web1"], "web1", None, {str(number): "" for number in range(100_001)}], ids=lambda failed: type(failed).__name__
)
def test_an_end_that_names_no_hosts_or_too_many_is_none(tmp_path: Path, failed: object) -> None:
    """Each host becomes a line, and a part of the recorded session."""
    summary, error = ended(tmp_path, failed)
    assert (summary.is_ended, summary.failed) == (False, {})
    assert "not an object of at most 100,000 hosts" in error
