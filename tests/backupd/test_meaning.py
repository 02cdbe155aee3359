"""The meaning of exit statuses: of real rsyncs and real sshs that fail in ways that occur at night."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backupd.doctor.host_checks import check_hosts
from backupd.rsync.command import passes, rsync_command
from btrkeep.config import HostConfig, SshSettings, load
from btrkeep.decisions import rsync_meaning
from btrkeep.decisions.rsync_meaning import MEANING, ExitCause, ExitKind, Meaning, meaning
from tests.backupd.pulls import UNPRIVILEGED, Pulled, meanwhile, pull, run, script
from tests.beds import work
from tests.beds.leftout import needs_program
from tests.beds.ssh import Sshd


def of(pulled: Pulled) -> Meaning:
    return meaning(pulled.exit_code, pulled.messages.last)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "big").write_bytes(os.urandom(3_000_000))
    return tmp_path / "source"


@pytest.fixture
def over_ssh(sshd: Sshd, source: Path, tmp_path: Path) -> Callable[..., Pulled]:
    """`over_ssh(address=..., key=...)` pulls the source from the real server, except for the given changes."""

    def pull_from(key: Path | None = None, known_hosts: Path | None = None, **changes: object) -> Pulled:
        host = replace(HostConfig("web1", address=sshd.address, port=sshd.port, paths=(str(source),)), **changes)  # type: ignore[arg-type]
        ssh = SshSettings(key=key or sshd.key, known_hosts=known_hosts or sshd.known_hosts, command="ssh -F none")
        (tmp_path / "backup").mkdir(exist_ok=True)
        [one_pass] = passes("always", based=False)
        return run(rsync_command(host, ssh, str(source), str(tmp_path / "backup"), one_pass))

    return pull_from


def test_a_transfer_that_works_is_finished(over_ssh: Callable[..., Pulled]) -> None:
    assert of(over_ssh()) == Meaning(ExitKind.FINISHED, ExitCause.COMPLETE)


def test_a_key_that_is_not_accepted_is_the_hosts_configuration(over_ssh: Callable[..., Pulled], tmp_path: Path) -> None:
    work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other")
    assert of(over_ssh(key=tmp_path / "other")) == Meaning(ExitKind.HOST, ExitCause.KEY_REFUSED, unreachable=True)
    assert of(over_ssh(key=tmp_path / "missing")) == Meaning(ExitKind.HOST, ExitCause.KEY_REFUSED, unreachable=True)


def test_a_host_key_that_is_unknown_or_another_is_the_hosts_configuration(
    over_ssh: Callable[..., Pulled], tmp_path: Path, sshd: Sshd
) -> None:
    (tmp_path / "none").touch()
    expected = Meaning(ExitKind.HOST, ExitCause.HOST_KEY, unreachable=True)
    assert of(over_ssh(known_hosts=tmp_path / "none")) == expected
    work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other")
    public = (tmp_path / "other.pub").read_text(encoding="utf-8")
    (tmp_path / "changed").write_text(f"[127.0.0.1]:{sshd.port} {public}", encoding="utf-8")
    assert of(over_ssh(known_hosts=tmp_path / "changed")) == expected


def test_a_host_that_is_not_there_may_be_there_later(over_ssh: Callable[..., Pulled]) -> None:
    with socket.socket() as taken:  # bound but not listening: refused, and no other process can take the port
        taken.bind(("127.0.0.1", 0))
        refused = over_ssh(port=taken.getsockname()[1])
    assert of(refused) == Meaning(ExitKind.RETRY, ExitCause.REFUSED, unreachable=True)
    unknown = over_ssh(address="root@no-such-host.invalid")
    assert of(unknown) == Meaning(ExitKind.RETRY, ExitCause.NO_SUCH_NAME, unreachable=True)


def test_a_server_that_accepts_and_is_silent_does_not_answer(over_ssh: Callable[..., Pulled]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pulled = over_ssh(port=silent.getsockname()[1], ssh_options=("ConnectTimeout=1",))
    assert of(pulled) == Meaning(ExitKind.RETRY, ExitCause.SILENT, unreachable=True)


def test_a_server_that_hangs_up_at_once_was_not_reached(over_ssh: Callable[..., Pulled]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: server.accept()[0].close())
        thread.start()
        pulled = over_ssh(port=server.getsockname()[1])
        thread.join(60)
    assert of(pulled) == Meaning(ExitKind.RETRY, ExitCause.CLOSED, unreachable=True)


def test_a_host_without_rsync_or_with_one_that_cannot_run_needs_a_person(over_ssh: Callable[..., Pulled]) -> None:
    """rsync ends with 127, 126 or its own 12, depending on the moment at which the server's session ends."""
    missing = of(over_ssh(rsync_path="no-such-rsync"))
    assert (missing.kind, missing.unreachable) == (ExitKind.HOST, False)
    assert "not found" in missing.words
    assert of(over_ssh(rsync_path="/no/such/rsync")) == missing
    assert of(over_ssh(rsync_path="/etc/passwd")) == Meaning(ExitKind.HOST, ExitCause.NOT_RUNNABLE)


def test_an_rsync_that_does_not_know_our_options_needs_a_person(over_ssh: Callable[..., Pulled], tmp_path: Path) -> None:
    """Twice: a real rsync that behaves like an old version; and openrsync, with the messages of July 2026, the last of 60 lines."""
    old = script(tmp_path / "old", '#!/bin/sh\nexec rsync --option-of-tomorrow "$@"\n')
    other = script(tmp_path / "open", "#!/bin/sh\nprintf '\\t[--whole-file, -W]\\n\\tsource ... directory\\n' >&2\nexit 1\n")
    for program in (old, other):
        assert of(over_ssh(rsync_path=str(program))) == Meaning(ExitKind.HOST, ExitCause.WRONG_USAGE)


def test_a_sudo_that_wants_a_password_is_named(source: Path, tmp_path: Path) -> None:
    """The messages are those of sudo 1.9: a test machine has no user who needs a password."""
    shell = script(tmp_path / "ssh", "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    assert of(pull(source, tmp_path / "backup", shell=shell)) == Meaning(ExitKind.HOST, ExitCause.SUDO_PASSWORD)


CARGO = "/root/.bashrc: line 9: /root/.cargo/env: No such file or directory"
LOCALE = "bash: warning: setlocale: LC_ALL: cannot change locale (de_DE.UTF-8): No such file or directory"
BANNER = ("Authorized uses only.", "Idle sessions are timed out after 10 minutes. Connection refused otherwise.", "-----")
NOTHING_CAME = (
    "rsync: connection unexpectedly closed (0 bytes received so far) [Receiver]",
    "rsync error: error in rsync protocol data stream (code 12) at io.c(232) [Receiver=3.5.0]",
)
SUDO_GERMAN = "sudo: Zum Lesen des Passworts ist ein Terminal erforderlich; verwenden Sie entweder die Option -S"
NOT_ALLOWED = "Sorry, user backup is not allowed to execute '/usr/bin/rsync --server' as root on web1."


@pytest.mark.parametrize("noise", [(), (CARGO,), (LOCALE,), BANNER, (*BANNER, CARGO)])
@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("sudo: a password is required", ExitCause.SUDO_PASSWORD),
        ("sudo: sorry, you must have a tty to run sudo", ExitCause.SUDO_REFUSED),
        (SUDO_GERMAN, ExitCause.SUDO_REFUSED),
        (NOT_ALLOWED, ExitCause.SUDO_REFUSED),
        ("/usr/bin/rrsync error: option -X has been disabled on this server.", ExitCause.RRSYNC_REFUSED),
        ("bash: line 1: rsync: command not found", ExitCause.NO_RSYNC),
        ("zsh:1: command not found: rsync", ExitCause.NO_RSYNC),
        ("Leider darf der Benutzer backup dies nicht.", ExitCause.NO_START),
    ],
)
def test_the_last_message_in_a_programs_own_form_is_the_reason_whatever_the_host_printed_before(
    noise: tuple[str, ...], line: str, cause: ExitCause
) -> None:
    means = meaning(12, [*noise, line, *NOTHING_CAME])
    assert (means.cause, means.unreachable, means.line) == (cause, False, line)


@pytest.mark.parametrize("noise", [(CARGO,), (LOCALE,), BANNER])
def test_the_hosts_noise_is_no_reason(noise: tuple[str, ...]) -> None:
    came = "rsync: connection unexpectedly closed (5000 bytes received so far) [receiver]"
    assert meaning(12, [*noise, *NOTHING_CAME]) == Meaning(ExitKind.RETRY, ExitCause.NO_START)
    broke = meaning(12, [*noise, came, NOTHING_CAME[1]])
    assert (broke.cause, broke.line) == (ExitCause.CONNECTION_BROKE, NOTHING_CAME[1])  # rsync's own last line, with its status
    refused = "ssh: connect to host web1 port 22: Connection refused"
    assert meaning(255, [*noise, refused]) == Meaning(ExitKind.RETRY, ExitCause.REFUSED, unreachable=True)
    assert meaning(255, [*noise, "root@web1: Permission denied (publickey)."]).cause is ExitCause.KEY_REFUSED
    assert meaning(127, [*noise, "bash: rsync: Kommando nicht gefunden."]).line == "bash: rsync: Kommando nicht gefunden."


def test_through_a_jump_host_the_reason_is_what_the_jump_host_met() -> None:
    end = ("stdio forwarding failed", "kex_exchange_identification: Connection closed by remote host")
    last = "Connection closed by UNKNOWN port 65535"
    for line, cause in (
        ("channel 0: open failed: connect failed: Connection refused", ExitCause.REFUSED),
        ("channel 0: open failed: connect failed: No route to host", ExitCause.NO_ROUTE),
        ("jump@gate: Permission denied (publickey).", ExitCause.KEY_REFUSED),
    ):
        assert meaning(255, [*BANNER, line, *end, last]).cause is cause
    assert meaning(255, [*BANNER, *end[1:], last]).cause is ExitCause.CLOSED


def test_a_message_of_the_protocol_is_quoted_and_is_not_taken_for_a_shell_that_talks() -> None:
    line = "modtime_nsec out of range: 1000000000 [Receiver]"
    error = "rsync error: protocol incompatibility (code 2) at flist.c(900) [Receiver=3.5.0]"
    means = meaning(2, [CARGO, line, error])
    assert (means.cause, means.line) == (ExitCause.PROTOCOL_ERROR, line)
    assert meaning(2, ["protocol version mismatch -- is your shell clean?", error]).cause is ExitCause.NO_PROTOCOL


def test_a_login_shell_that_talks_is_named(source: Path, tmp_path: Path, badssh: Callable[..., Path]) -> None:
    result = of(pull(source, tmp_path / "backup", shell=badssh("babbles", "Welcome to this fine host!\n")))
    assert result.kind is ExitKind.BROKEN
    assert "login shell" in result.words


@pytest.mark.parametrize("status", [12, 137, 255])
def test_an_rsync_over_there_that_is_killed_may_live_longer_next_time(source: Path, tmp_path: Path, status: int) -> None:
    """ssh reports 255 for it, a shell in between 137, and rsync its own 12 if it is faster."""
    remote = script(tmp_path / "rsync", f'#!/bin/sh\necho $$ >{tmp_path}/pid\nexec rsync "$@"\n')
    killing = meanwhile(tmp_path / "ssh", 500_000, f"kill -9 $(cat {tmp_path}/pid)")
    shell = script(tmp_path / "shell", f'#!/bin/sh\n{killing} "$@"\nexit {status}\n')
    result = of(pull(source, tmp_path / "backup", shell=shell, rsync_path=str(remote)))
    assert (result.kind, result.unreachable) == (ExitKind.RETRY, False)


@pytest.mark.parametrize("sent", [100, 500_000])
def test_a_line_that_breaks_in_mid_transfer_had_been_there(
    source: Path, tmp_path: Path, badssh: Callable[..., Path], sent: int
) -> None:
    result = of(pull(source, tmp_path / "backup", shell=badssh("dies", sent)))
    assert result == Meaning(ExitKind.RETRY, ExitCause.CONNECTION_BROKE)


def test_a_line_that_breaks_after_unreadable_files_is_not_taken_for_a_refused_key(
    source: Path, tmp_path: Path, badssh: Callable[..., Path]
) -> None:
    """rsync prints "Permission denied (13)" about a file, ssh "Permission denied (publickey)" about a key."""
    (source / "aaa").touch(0)
    pulled = pull(source, tmp_path / "backup", shell=badssh("dies", 1_500_000), rsync_path=UNPRIVILEGED)
    assert any("Permission denied (13)" in line for line in pulled.messages.last)
    assert of(pulled) == Meaning(ExitKind.RETRY, ExitCause.CONNECTION_BROKE)
    for exit_code in (12, 255):  # which of the two it is depends on who is quicker
        assert meaning(exit_code, pulled.messages.last) == Meaning(ExitKind.RETRY, ExitCause.CONNECTION_BROKE)


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("Timeout, server 127.0.0.1 not responding.", ExitCause.SILENT),
        ("Connection to 127.0.0.1 closed by remote host.", ExitCause.CLOSED),
    ],
)
def test_what_ssh_says_of_a_line_that_broke_is_kept_and_the_host_was_reached(
    source: Path, tmp_path: Path, badssh: Callable[..., Path], output: str, cause: ExitCause
) -> None:
    dying = badssh("dies", 500_000)
    shell = script(tmp_path / "ssh", f'#!/bin/sh\n"{dying}" "$@"\nstatus=$?\necho "{output}" >&2\nexit $status\n')
    assert of(pull(source, tmp_path / "backup", shell=shell)) == Meaning(ExitKind.RETRY, cause)


@pytest.mark.parametrize("exit_code", [12, 255])
def test_an_ssh_that_never_connected_is_told_by_its_words_whatever_status_rsync_made_of_it(exit_code: int) -> None:
    closed = "rsync: connection unexpectedly closed (0 bytes received so far) [Receiver]"
    refused = "ssh: connect to host web1 port 22: Connection refused"
    assert meaning(exit_code, [refused, closed]) == Meaning(ExitKind.RETRY, ExitCause.REFUSED, unreachable=True)
    assert meaning(exit_code, [closed]).unreachable is (exit_code == 255)


def test_what_rsync_says_of_a_file_is_no_word_about_the_connection() -> None:
    """For example about a source on a network filesystem."""
    lines = [
        'rsync: [sender] read errors mapping "/srv/nfs/x": Connection timed out (110)',
        'rsync: [sender] send_files failed to open "/srv/nfs/y": Connection refused (111)',
        "rsync: connection unexpectedly closed (5000 bytes received so far) [receiver]",
    ]
    assert meaning(12, lines) == Meaning(ExitKind.RETRY, ExitCause.CONNECTION_BROKE)


def test_a_transfer_that_we_stopped_was_stopped(source: Path, tmp_path: Path) -> None:
    shell = script(tmp_path / "ssh", "#!/bin/sh\nkill -TERM $PPID\nexec sleep 5\n")
    assert of(pull(source, tmp_path / "backup", shell=shell)).kind is ExitKind.STOPPED


def test_a_signal_is_named_and_an_unknown_status_needs_a_person() -> None:
    assert meaning(-9) == Meaning(ExitKind.RETRY, ExitCause.RSYNC_SIGNALLED, number=9)
    assert meaning(137) == Meaning(ExitKind.RETRY, ExitCause.REMOTE_SIGNALLED, number=9)
    assert meaning(77) == Meaning(ExitKind.BROKEN, ExitCause.UNKNOWN, number=77)


@needs_program("man")
def test_every_status_that_rsync_has_a_name_for_is_in_the_table() -> None:
    """rsync prints the name of its status at its end: statuses without a name are "unexplained error"."""
    manual = work("man", "--encoding=ascii", "-P", "cat", "rsync", check=False)
    listed = [int(line.split()[0].rstrip(":")) for line in manual_section(manual.stdout) if line.split()[0].rstrip(":").isdigit()]
    if not listed:
        pytest.skip("left out: with rsync's manual page (it is not installed)")
    assert set(listed) <= set(MEANING)


def manual_section(text: str) -> list[str]:
    """Returns the lines of the manual's EXIT VALUES that are not empty."""
    _, _, rest = text.partition("EXIT VALUES")
    section, _, _ = rest.partition("ENVIRONMENT VARIABLES")
    return [line.replace("o ", " ", 1) if line.strip().startswith("o ") else line for line in section.splitlines() if line.strip()]


def test_a_refused_key_is_told_once_with_its_hint_whatever_its_words_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = script(tmp_path / "ssh", "#!/bin/sh\necho 'root@a: Permission denied (publickey).' >&2\nexit 255\n")
    (tmp_path / "main.toml").write_text(
        f'[pool]\npath = "/srv"\n[ssh]\ncommand = "{refusing}"\n[host.a]\naddress = "root@a"\npaths = ["/srv", "/etc"]\n'
    )
    monkeypatch.setitem(rsync_meaning._WORDS, ExitCause.KEY_REFUSED, "something else")
    (finding,) = asyncio.run(check_hosts(load(folder=tmp_path)))  # once, however many paths
    assert finding.text.startswith("something else: ")
    assert "authorized_keys" in finding.hint
    assert finding.cause is ExitCause.KEY_REFUSED
