"""Queries that need root: seconds of work at most, cached for a minute if slow."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from backupd.expire.host_backups import policy_of, read_host_from_pool
from backupd.repo.catalogue_row import NO_NOTES
from backupd.serve.service_context import Call
from backupd.serve.verbs.protection import require_host
from btrkeep.decisions.expiry_plan import HostBackups
from btrkeep.decisions.retention_words import explain, objects
from btrkeep.errors import Exit
from btrkeep.process.programs import ProgramEnd, our_command, run_watched
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import format_time, printable

_LONGEST = {"doctor": 120.0, "plan": 300.0, "extents": 60.0}  # seconds
_ATTENTION = 1  # exit status of `doctor` with findings


def doctor(call: Call) -> Any:
    """Returns the result of `backupd doctor --json`."""
    words = (*call.service.words(our_command("backupd")), "doctor", "--json")
    return _kept(call, "doctor", (), words, _json)


def plan(call: Call) -> Any:
    """Returns the result of `btrfs-balancer plan --json` with the configured settings."""
    words = (*our_command("balancer"), "plan", "--json", *call.service.chosen(), str(call.service.config().pool.path))
    return _kept(call, "plan", (), words, _json)


def extents(call: Call) -> None:
    """A picture of the extents of one block group."""
    words = [*our_command("heatmap"), "--quiet", "--blockgroup", str(call["vaddr"]), "--curve", call["curve"], "-o", "-"]
    if call["size"] is not None:
        words += ["--order", str(min(call["size"], 10)), "--size", str(call["size"])]
    words.append(str(call.service.pool().path))
    key = (call["vaddr"], call["curve"], call["size"])
    picture = _kept(call, "extents", key, words, lambda ended: ended.stdout)
    call.stream(f"{call['vaddr']}.png".encode(), "image/png", len(picture)).write(picture)


def retention(call: Call) -> list[dict[str, Any]]:
    """Returns the result of `backupd retention explain HOST --json`."""
    host, now = call["host"], call.service.clock.now()
    with call.service.opened() as context:
        require_host(context, host)
        rows = {row.name: row.state for row in context.catalogue.backups(host) if row.name}
        try:
            facts = read_host_from_pool(context.pool, context.config, host, rows).facts
        except FileNotFoundError:  # configured, but never backed up
            facts = HostBackups(host, (), policy_of(context.config, host, NO_NOTES))
        return list(objects(explain(facts, facts.policy, context.config.pool.zone, now)))


def hello(call: Call) -> dict[str, Any]:
    """Returns which pool the service serves, and which restores it allows in addition to those to the original place."""
    service = call.service
    answer = {"pool": service.config().name, "id": service.pool().id, "now": format_time(service.clock.now())}
    return {**answer, "elsewhere": service.elsewhere, "folder": service.restore_to is not None}


def _kept(call: Call, kind: str, key: tuple[Any, ...], words: Sequence[str], read: Callable[[ProgramEnd], Any]) -> Any:
    """Returns the parsed output of the program, cached for a minute."""

    def compute() -> Any:
        ended = run_watched(words, timeout=_LONGEST[kind], gone=call.gone)
        if ended.returncode not in ((0, _ATTENTION) if kind == "doctor" else (0,)) or not ended.stdout:
            raise _refused(kind, ended)
        return read(ended)

    return call.service.answers.get(kind, key, compute, call.gone)


def _json(ended: ProgramEnd) -> Any:
    return json.loads(ended.stdout)


def _refused(kind: str, ended: ProgramEnd) -> RequestRefused:
    """Raises the error in the program's own words."""
    error = ended.error
    message = error.message.splitlines()[0] if error and error.message else f"exit status {ended.returncode}"
    # We chose the arguments, so wrong usage means an unusable configuration.
    code = "unusable" if ended.returncode in (Exit.USAGE, Exit.UNUSABLE) else "failed"
    return RequestRefused(printable(f"{kind}: {message}"), printable(error.hint) if error else "", code)
