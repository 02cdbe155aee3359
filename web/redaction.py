"""Redaction: the one rule for every text that a viewer who is limited to some hosts may read.

Such a text concerns one of the viewer's hosts and nothing else, and its author marks it so (`RequestRefused.is_public`, or the host
itself printed it, see below); or it is one of the general sentences here; or it is withheld, under a reference that is in
the journal with the full text. The names in a text decide nothing: otherwise a user who can cause a text could probe which names
exist. Errors of the root service, of the catalogue and of the configuration name other hosts and places of this machine, and the
output of a job is everything that a command of root printed: no list of words could decide which part of it is harmless. A user
who is not logged in sees nothing else. A viewer who may see all hosts sees everything.

The author of a part of a run's output decides whether a viewer who is limited to its host may see it, never the names in it.
If names decided, a host could print guesses, and a viewer of its runs would see which of them are names of other hosts.
"""

import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flask import has_request_context

from btrkeep.backup_states import Cause, CauseCode
from btrkeep.catalogue import StoredAlarm
from btrkeep.catalogue.model_alarm import CONDITION, HOST, HOST_KEY, SILENT, SUSPECT
from btrkeep.decisions.cause_words import cause_words, error_words
from btrkeep.decisions.due import latest
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable, UsageError
from btrkeep.serving.client import Absent
from btrkeep.serving.protocol import RequestRefused
from btrkeep.serving.viewer import Viewer
from web.download import TooManyDownloads
from web.source import logged_in_viewer, source

log = logging.getLogger(__name__)

WITHHELD = "(the administrator can see this)"
_PLACES = ("/etc/btrkeep", "/run/btrkeep", "/var/lib/btrkeep")
"""The default paths, which the documentation publishes; so they confirm no guess."""
_BETWEEN = re.compile(r"([\s\"']+)")


def without_server_paths(line: str, host: str, pool: object = None) -> str:
    """Returns a line that rsync printed for a host's backup: removes the start of paths up to the folder hosts/HOST. ssh may name
    default paths of this machine; such a line is withheld.
    """
    if any(place in line for place in _PLACES):
        return WITHHELD
    below = f"/hosts/{host}/"
    if pool and _BETWEEN.search(str(pool)):
        line = line.replace(f"{pool}{below}", "")
    return "".join(_from(word, below) for word in _BETWEEN.split(line))


def redacted_cause_words(cause: Cause | None, host: str, pool: object = None) -> str:
    """Returns why a run or a backup is not complete: numbers, and a line of rsync's as `without_server_paths` returns it.

    An error without a cause (a hook's output, an error of this machine) may name anything and is withheld.
    """
    if cause is None or cause.code is CauseCode.POOL:
        return WITHHELD
    line = cause.facts.get("line")
    shown_cause = cause if line is None else replace(cause, facts={**cause.facts, "line": without_server_paths(line, host, pool)})
    return cause_words(shown_cause)


def _from(word: str, below: str) -> str:
    before, separator, rest = word.partition(below)
    return before.partition("/")[0] + rest if separator else word


_OF_KIND = {
    "usage": "the root service refused the request as invalid",
    "missing": "there is no such backup, path or job",
    "unusable": "the pool or its configuration cannot be used now",
    "locked": "this host is locked by another job",
    "refused": "that is not allowed, or not possible in the current state",
    "busy": "too many requests at once",
    "failed": "the root service failed",
}
_OF_EXIT = {
    1: "the job failed",
    2: "the request or the configuration is wrong",
    3: "this host was locked by another job",
    4: "the pool could not be used",
}
_GENERAL = {
    CONDITION: "for several nights, files could not be read, deletions could not be applied, or dumps or snapshots failed",
    HOST_KEY: "its host key differs from the recorded one",
}
_CATALOGUE = "the dashboard has no current data"
_OURS = (UsageError, TooManyDownloads)
"""Errors whose messages are made in the dashboard, from the request: no lower layer raises one while the request is read."""


class _WithheldAbsent(Absent):
    """An Absent with the general message."""


def redact_error(error: OperatorError) -> OperatorError:
    """Returns the error as the viewer may see it: unchanged, or one of the same kind with a general sentence."""
    if not _is_limited(logged_in_viewer()) or isinstance(error, _OURS) or (isinstance(error, RequestRefused) and error.is_public):
        return error
    if isinstance(error, _WithheldAbsent):  # it was redacted already
        return error
    reference = secrets.token_hex(4)
    log.warning("withheld as %s: %s (%s)", reference, " ".join(error.message.splitlines()), error.hint)
    hint = f"try again in a moment, or ask the administrator for {reference}"
    if isinstance(error, RequestRefused):
        return RequestRefused(_OF_KIND.get(error.kind, _OF_KIND["failed"]), hint, error.kind, is_public=True)
    if isinstance(error, Absent):
        return _WithheldAbsent("the root service is not available now", hint)
    return LockHeld(_OF_KIND["locked"], hint) if isinstance(error, LockHeld) else PoolUnusable(_CATALOGUE, hint)


def redact_answer(verb: str, result: Any) -> Any:
    """Returns the root service's answer as the viewer may see it: without the output of a job, and without the number of other
    waiting jobs.
    """
    if not _is_limited(logged_in_viewer()):
        return result
    if verb == "job" and isinstance(result, Mapping):
        return _job(result)
    return (
        [_job(job_fields) if isinstance(job_fields, Mapping) else job_fields for job_fields in result] if verb == "jobs" else result
    )


def host_line(line: str, host: str) -> str:
    """Returns a line of the host's own output (rsync's) as the viewer may see it. The viewer may see the host."""
    return without_server_paths(line, host, source().config.path) if _is_of_limited() else line


def host_error(text: str | None, cause: Cause | None, host: str) -> str | None:
    """Returns the error of a run or a backup of a host that the viewer may see."""
    if text is None or not _is_of_limited():
        return error_words(text, cause)
    return redacted_cause_words(cause, host, source().config.path)


def host_alarm(alarm: StoredAlarm, host: str) -> str:
    """Returns the text of an alarm about a host that the viewer may see: made again from the state of the host's newest backup or
    run.
    """
    if not _is_of_limited():
        return alarm.text
    if alarm.what == SILENT:  # the time, without the reason, which has its own alarm
        return f"{host}: {alarm.text.removeprefix(f'{host}: ').partition(': ')[0]}"
    if alarm.about.kind != HOST:
        return f"{host}: {_GENERAL.get(alarm.about.kind, WITHHELD)}"
    request_context = source()
    facts = request_context.cached("facts", lambda: request_context.catalogue.host_facts(latest(request_context.now))).get(host)
    place, cause = request_context.config.path, None
    if alarm.what == SUSPECT:
        if facts and facts.newest_state == "suspect":  # otherwise it is over, and the next notification reports that
            cause = facts.newest_cause
        return f"{host}: the newest backup is suspect: {redacted_cause_words(cause, host, place)}"
    outcome = "failed"
    if facts and facts.last_run_outcome in ("failed", "partial"):
        outcome, cause = facts.last_run_outcome, facts.last_run_cause
    return f"{host}: the backup {'failed' if outcome == 'failed' else f'is {outcome}'}: {redacted_cause_words(cause, host, place)}"


def _is_of_limited() -> bool:
    """Returns True if the viewer may see some hosts only; False outside of a request."""
    who = logged_in_viewer() if has_request_context() else None
    return who is not None and who.limited


def _job(fields: Mapping[str, Any]) -> dict[str, Any]:
    error = fields.get("error")
    if error is not None and fields.get("own") is not True:  # output of a command
        words = _OF_EXIT.get(fields.get("exit") or 0, _OF_EXIT[1])
        error = f"{words}; the administrator can see why, in the job {fields.get('job')}"
    return {**{key: value for key, value in fields.items() if key != "queue"}, "lines": [], "error": error}


def _is_limited(who: Viewer | None) -> bool:
    return who is None or who.limited
