"""One action for many hosts in one request: run, hold or accept. Each host has its own result; one refusal stops no other host."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from backupd.serve.jobs import ServeJob
from backupd.serve.service_context import Call
from backupd.serve.verbs import protection
from backupd.serve.verbs.tasks import run_all
from btrkeep.errors import LockHeld, OperatorError, StateConflict
from btrkeep.serving.protocol import RequestRefused

_OF_BACKUPS: dict[str, Callable[[Call], dict[str, Any]]] = {"hold": protection.hold, "accept": protection.accept}


def bulk(call: Call) -> list[dict[str, Any]]:
    """Carries out the action for each target, a host or HOST@BACKUP. Returns for each host the job that was started, or why nothing
    was done.
    """
    if call["action"] == "run":
        begun = run_all(call, [host for host, _ in call["targets"]])
        return [_result(call, host, begun[host]) for host, _ in call["targets"]]
    return [_of_backup(call, host, backup) for host, backup in call["targets"]]


def _of_backup(call: Call, host: str, backup: str) -> dict[str, Any]:
    action, until = call["action"], {"until": call["until"]} if call["action"] == "hold" else {}
    of_host = replace(call, arguments={"host": host, "backup": backup, "why": call["why"], **until})
    try:
        if not backup:
            raise RequestRefused(f"name the backup of {host}: HOST@BACKUP", kind="usage", is_public=True)
        _OF_BACKUPS[action](of_host)
    except OperatorError as error:
        return _result(call, host, error)
    return _result(call, host)


def _result(call: Call, host: str, done: ServeJob | OperatorError | None = None) -> dict[str, Any]:
    job = done.id if isinstance(done, ServeJob) else None
    error = _words(call, done) if isinstance(done, OperatorError) else None
    return {"host": host, "job": job, "error": error}


def _words(call: Call, error: OperatorError) -> str:
    """Returns the reason as the user may read it: texts about this machine are only for users who see all hosts."""
    if not call.viewer.limited or isinstance(error, StateConflict) or (isinstance(error, RequestRefused) and error.is_public):
        return error.message
    return "the host is locked by another job" if isinstance(error, LockHeld) else "not possible now: the administrator can see why"
