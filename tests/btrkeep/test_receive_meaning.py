"""The meaning of the messages that the versions of `btrfs receive` print."""

import pytest

from btrkeep.decisions.replication import HINTS, ReceiveCause, receive_cause


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["At subvol x", "ERROR: writing to data/a failed: No space left on device"], "full"),
        (["ERROR: mkfile data/a failed: Disk quota exceeded"], "quota"),
        (["ERROR: chown data/a failed: Read-only file system"], "read-only"),
        (["ERROR: writing to data/a failed: Input/output error"], "disk"),
        (["ERROR: crc32 mismatch in command"], "garbled"),
        (["ERROR: unexpected EOF in stream"], "garbled"),
        (["ERROR: cannot find parent subvolume"], "parent"),
        (["ERROR: parent subvol is not reachable from inside the root subvol"], "parent"),
        (["ERROR: clone: did not find source subvol"], "parent"),
        (["It seems that you have changed your default subvolume or you specify other subvolume to"], "parent"),
        (["ERROR: ZSTD compression for stream not compiled in"], "too-old"),
        (["bwrap: No permissions to create new namespace"], "cell"),
        (["ERROR: mknod data/a failed: Operation not permitted"], "unknown"),
        (["ERROR: mkfile data/No space left on device failed: File exists"], "unknown"),
        ([], "unknown"),
    ],
)
def test_a_message_says_what_to_do_next(lines: list[str], cause: str) -> None:
    assert receive_cause(lines, is_read_only=True) == cause
    if cause != "read-only":
        assert receive_cause(lines, is_read_only=False) == cause


def test_a_file_that_cannot_be_written_in_a_pool_that_can_lies_outside_of_the_backup() -> None:
    assert receive_cause(["ERROR: chown ../../notes.json failed: Read-only file system"], is_read_only=False) == "outside"


def test_each_cause_has_a_hint() -> None:
    assert {cause for cause in ReceiveCause if not HINTS[cause]} == {ReceiveCause.UNKNOWN}
