"""What another server's rsync may ask for: the words of a remote command, of which few are passed on."""

from pathlib import Path

import pytest

from backupd.replicate.rsync_sender import CopyRequest, parse_copy_request, sending_command, words_of_remote_command
from btrkeep.errors import OperatorError

UUID = "11111111-2222-3333-4444-555555555555"
BACKUP = f"web1/2026-03-01T220000Z/{UUID}/"
LETTERS = "-lHogDtpAXre.iLsfxCIvu"


def test_the_options_of_a_copy_are_passed_on_and_the_path_is_the_pools() -> None:
    command = f"backupd --pool main send-only -- --server --sender {LETTERS} --numeric-ids --info=STATS2 --inplace . {BACKUP}"
    asked = parse_copy_request(words_of_remote_command(command))
    assert asked == CopyRequest((LETTERS, "--numeric-ids", "--info=STATS2", "--inplace"), "web1", "2026-03-01T220000Z", UUID)
    assert sending_command(asked, Path("/pool/backup"))[-4:] == (
        "--inplace", "--timeout=21600", ".", "/pool/backup/"
    )  # fmt: skip


def test_a_remote_command_without_rsync_is_none() -> None:
    assert words_of_remote_command("backupd --pool main send-only") == ()
    assert words_of_remote_command("") == ()


@pytest.mark.parametrize(
    "words",
    [
        f"--server {LETTERS} . {BACKUP}",  # it would receive
        f"--server --sender {LETTERS} {BACKUP}",
        f"--server --sender . {BACKUP}",
        f"--server --sender {LETTERS} . /etc/",
        f"--server --sender {LETTERS} . ../2026-03-01T220000Z/{UUID}",
        f"--server --sender {LETTERS} . {BACKUP} {BACKUP}",
        f"--server --sender {LETTERS} . {BACKUP}../../",
        f"--server --sender {LETTERS} --files-from=/etc/passwd . {BACKUP}",
        f"--server --sender {LETTERS} --remove-source-files . {BACKUP}",
        f"--server --sender {LETTERS} --log-file=/etc/x . {BACKUP}",
        f"--server --sender -se.LsfxCIvu . {BACKUP}",  # words that come later, unseen
        f"--server --sender -LrKe.LsfxCIvu . {BACKUP}",
        f"--server --daemon . {BACKUP}",
        "--server",
        "--server --sender",
    ],
)
def test_anything_else_is_refused(words: str) -> None:
    with pytest.raises(OperatorError):
        parse_copy_request(words_of_remote_command(words))


def test_what_cannot_be_taken_apart_is_refused() -> None:
    with pytest.raises(OperatorError):
        words_of_remote_command("rsync --server 'x")
