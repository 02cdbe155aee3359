"""Holds, releases and accepts backups, by the functions of the commands, with the caller's name in the reason."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from backupd.actions.hold import HoldResult, hold_fields, state_after
from backupd.actions.hold import accept as accept_it
from backupd.actions.hold import hold as hold_it
from backupd.actions.hold import release as release_it
from backupd.repo.pool_context import PoolContext, writing
from backupd.repo.pool_files import hosts_of
from backupd.serve.service_context import Call
from btrkeep.decisions.retention import Hold
from btrkeep.errors import UsageError
from btrkeep.pool.locks import take_lock
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import format_time, local_time


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
