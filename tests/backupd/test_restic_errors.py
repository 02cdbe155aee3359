"""The reason in restic's output, as its versions print it, and the hint that fits."""

import time

import pytest

from backupd.offsite.restic import restic_error

STACK = (
    "github.com/restic/restic/internal/backend/rest.(*Backend).Remove",
    "\tgithub.com/restic/restic/internal/backend/rest/rest.go:399",
    "github.com/restic/restic/internal/backend.(*RetryBackend).Remove.func1",
    "\tgithub.com/restic/restic/internal/backend/backend_retry.go:108",
    "github.com/cenkalti/backoff.RetryNotifyWithTimer",
    "\tgithub.com/cenkalti/backoff/retry.go:55",
    "main.deleteFiles.func2",
    "\tgithub.com/restic/restic/cmd/restic/delete.go:47",
    "golang.org/x/sync/errgroup.(*Group).Go.func1",
    "\tgolang.org/x/sync/errgroup/errgroup.go:75",
    "runtime.goexit",
    "\truntime/asm_amd64.s:1594",
)
REFUSED = "blob not removed, server response: 403 Forbidden (403)"
RETRIES = (
    f"Remove(<snapshot/9adf5ce47a>) returned error, retrying after 552.330144ms: {REFUSED}",
    f"Remove(<snapshot/9adf5ce47a>) returned error, retrying after 1.080381816s: {REFUSED}",
)
DOWN = (
    'unable to open config file: client.Head: Head "http://127.0.0.1:9/x/config": dial tcp 127.0.0.1:9: connect: connection refused'
)
AFTER = ("Is there a repository at the following location?", "rest:http://127.0.0.1:9/x/")


def exit_error(code: int, message: str) -> str:
    return f'{{"message_type":"exit_error","code":{code},"message":"Fatal: {message}"}}'


@pytest.mark.parametrize(
    ("lines", "status", "text", "hint"),
    [
        ((*RETRIES, REFUSED, *STACK), 1, REFUSED, "check the permissions of the key"),
        ((*RETRIES, *STACK), 1, REFUSED, "check the permissions of the key"),
        ((f"Fatal: {DOWN}", *AFTER), 1, DOWN, "check that its server is running"),
        (
            ("Fatal: unable to open config file: <config/> does not exist", *AFTER),
            1,
            "unable to open config file: <config/> does not exist",
            "`backupd offsite init",
        ),
        (("Fatal: wrong password or no key found",), 1, "wrong password or no key found", "check that password_file"),
        (("Fatal: unable to open repository at s3:x: it is strange",), 1, "unable to open repository at s3:x: it is strange", ""),
        (
            ("repository x opened", exit_error(10, "repository does not exist: unable to open config file")),
            10,
            "repository does not exist: unable to open config file",
            "`backupd offsite init",
        ),
        ((exit_error(12, "wrong password or no key found"),), 12, "wrong password or no key found", "check that password_file"),
        ((exit_error(11, "cannot lock"),), 11, "cannot lock", "another restic uses the repository"),
        ((exit_error(1, "repository does not answer"),), 1, "repository does not answer", ""),
        (
            ('{"message_type":"error","error":{"message":"open /x: input/output error"},"during":"archival"}', *STACK),
            1,
            "open /x: input/output error",
            "",
        ),
        ((), 2, "exit status 2", ""),
        (STACK, 2, "exit status 2", ""),
    ],
)  # fmt: skip
def test_the_reason_is_restics_own_and_the_hint_goes_by_its_exit_status(
    lines: tuple[str, ...], status: int, text: str, hint: str
) -> None:
    error = restic_error(lines, status)
    assert error.text == text
    assert error.hint.startswith(hint) if hint else error.hint == ""
    assert "init" not in error.hint or status == 10 or "does not exist" in text


@pytest.mark.parametrize("status", [1, 11])
def test_a_locked_repository_is_known_by_its_status_or_its_message(status: int) -> None:
    lines = ("unable to create lock in backend: repository is already locked by PID 7 on host by root",) if status == 1 else ()
    assert restic_error(lines, status).locked
    assert not restic_error((f"Fatal: {DOWN}",), 1).locked


def test_a_long_line_of_a_hostile_server_takes_no_time() -> None:
    begun = time.process_time()
    for line in ("a.(" * 2000 + " ", "(." * 20000 + " x"):
        assert restic_error([line, "Fatal: it is wrong"], 1).text == "it is wrong"
    assert time.process_time() - begun < 2
