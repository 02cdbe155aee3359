"""Holds, releases and accepts backups, and silences hosts, by the functions of the commands, with the name of the caller."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from backupd.actions.hold import HoldResult, hold_fields, state_after
from backupd.actions.hold import accept as accept_it
from backupd.actions.hold import hold as hold_it
from backupd.actions.hold import release as release_it
from backupd.alarms.silencing import NewSilence, require_subjects
from backupd.alarms.silencing import silence as silence_them
from backupd.repo.pool_context import PoolContext, writing
from backupd.repo.pool_files import hosts_of
from backupd.serve.service_context import Call
from btrkeep.decisions.retention import Hold
from btrkeep.decisions.silences import LONGEST
from btrkeep.errors import UsageError
from btrkeep.pool.locks import take_lock
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import format_time, local_time, printable

log = logging.getLogger("backupd.serve")


def require_host(context: PoolContext, host: str) -> None:
    """Raises RequestRefused, of kind missing, for an unknown host."""
    if host not in context.config.every_host and host not in hosts_of(context.pool) and host not in context.catalogue.hosts():
        raise RequestRefused(f"there is no host {host}", "the list of hosts shows all hosts", "missing", is_public=True)


@contextmanager
def _locked(call: Call, purpose: str) -> Iterator[tuple[PoolContext, datetime]]:
    """Yields the context and the present time in whole seconds, with the host's lock."""
    now = call.service.clock.now().replace(microsecond=0)
    with call.service.opened(writes=True) as context:
        require_host(context, call["host"])
        with take_lock(context.pool.host_lock(call["host"]), f"{purpose} for {call.who}", format_time(now)):
            try:
                with writing(context.pool):
                    yield context, now
            except UsageError as error:  # there is no backup of that name
                raise RequestRefused(error.message, error.hint, "missing", is_public=True) from None


def _reason(call: Call) -> str:
    return f"{call['why'].strip()} ({call.who})".strip()


def _noted(call: Call, done: HoldResult) -> dict[str, Any]:
    return {"host": call["host"], "name": done.name, "state": done.state}


def hold(call: Call) -> dict[str, Any]:
    """Places a hold on a backup. Returns the result of `backupd hold --json`."""
    with _locked(call, "hold") as (context, now):
        if call["until"] and call["until"] <= now:
            raise RequestRefused(
                f"{local_time(call['until'])} is in the past",
                "give a later time, or no time for a hold without an end",
                "usage",
                is_public=True,
            )
        new = Hold(call["until"], _reason(call))
        done = hold_it(context.pool, context.catalogue, call["host"], call["backup"], new, now, by=call.who)
    return {**_noted(call, done), "at": format_time(now), **(hold_fields(new) or {}), "unexpired": done.unexpired}


def release(call: Call) -> dict[str, Any]:
    """Releases the hold of a backup. Returns the result of `backupd release --json`."""
    with _locked(call, "release") as (context, now):
        done = release_it(context.pool, context.catalogue, call["host"], call["backup"], now, by=call.who)
    return {**_noted(call, done), "released": hold_fields(done.hold)}


def accept(call: Call) -> dict[str, Any]:
    """Accepts a suspect or altered backup. Returns the result of `backupd accept --json`."""
    with _locked(call, "accept") as (context, now):
        name = accept_it(context.pool, context.catalogue, call["host"], call["backup"], _reason(call), now, by=call.who)
        state = state_after(context.pool, call["host"], name)
    return {"host": call["host"], "name": name, "state": state, "at": format_time(now), "why": _reason(call)}


def silence(call: Call) -> dict[str, Any]:
    """Silences hosts, a group or a kind of problem until a date; without one, ends that. Returns what was silenced."""
    subjects = [("host", host) for host, _ in call["targets"]]
    subjects += [(kind, call[kind]) for kind in ("group", "problem") if call[kind] is not None]
    if not subjects:
        raise RequestRefused("name hosts, a group or a problem", kind="usage", is_public=True)
    if call.viewer.limited and len(subjects) > len(call["targets"]):
        raise RequestRefused("you may silence only your hosts", "ask an administrator of this pool", "refused", is_public=True)
    now, until = call.service.clock.now().replace(microsecond=0), call["until"]
    if until and not now < until <= now + LONGEST:
        message = (
            f"{local_time(until)} is in the past" if until <= now else f"{local_time(until)} is more than {LONGEST.days} days away"
        )
        raise RequestRefused(message, "give another day; on the server: backupd silence", "usage", is_public=True)
    with call.service.opened() as context:
        try:
            require_subjects(context.config, context.catalogue, subjects)
        except UsageError as error:
            raise RequestRefused(error.message, "", "missing", is_public=True) from None
        new = NewSilence(until, call["why"].strip(), call.who, paused=call["disable"])
        failure = silence_them(context.pool, context.catalogue, subjects, new, now)
    if failure:
        log.warning("a silence by %s could not be recorded in the pool: %s", printable(call.who), printable(failure))
    return {"silenced": [{"kind": kind, "name": name} for kind, name in subjects], "until": until and format_time(until)}
