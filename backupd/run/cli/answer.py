"""`backupd answer`: the backup of a host that calls; a forced command of ssh."""

import logging
import os
import syslog
import traceback
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime, timedelta

import click

from backupd.cli.command_context import clock_for, load_config, opened, pass_context
from backupd.repo.pool_context import open_configured, require_privileges
from backupd.repo.publish import fetched_hosts
from backupd.rsync.shared_connection import can_share
from backupd.run.call_transport import CallTransport
from backupd.run.cli.called import reply
from backupd.run.cli.night_view import result_line
from backupd.run.cli.run import exit_status
from backupd.run.host_order import AnsweredCall, answer_call
from backupd.run.run_context import NightEvent
from backupd.run.run_hosts import RunEnd, run_hosts
from backupd.run.slots import HeldSlots, slots_of
from btrkeep.catalogue import Catalogue, CatalogueUnready
from btrkeep.config import Config, HostConfig
from btrkeep.decisions.due import latest
from btrkeep.decisions.silences import read_silences, silence_words
from btrkeep.errors import Exit, LockHeld, OperatorError
from btrkeep.pool.locks import read_holder, take_lock
from btrkeep.pool.marker import Pool
from btrkeep.process.progress import Notice, ProgressSinks
from btrkeep.units import format_time, printable, recorded_time

_OCCUPIED = timedelta(minutes=10)
_UNUSABLE = timedelta(hours=1)


class _Later(Exception):
    """The host is told to call again."""

    def __init__(self, text: str, again: timedelta) -> None:
        super().__init__(text)
        self.text, self.again = text, again


@click.command("answer")
@click.argument("name")
@click.argument("turns", type=int, nargs=-1)
@pass_context
def command(ctx: click.Context, name: str, turns: tuple[int, ...]) -> int:
    """Answer a call of a host. `called` starts it.

    `turns`: descriptors that are closed when the backup starts, which has slots instead.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # what is printed may be about the server and other hosts
        os.dup2(nothing, number)
    os.close(nothing)
    logging.basicConfig(handlers=[_SystemLog()], level=logging.WARNING, force=True)
    try:
        return _answer(ctx, name, incoming, outgoing, turns)
    except _Later as later:
        reply(outgoing, later.again, text=later.text)
        return Exit.OK
    except OperatorError as error:
        _log(syslog.LOG_ERR, f"{name}: {error.message}")
        reply(outgoing, _UNUSABLE, text="the backup server cannot back up now; its log has the reason")
        return Exit.ATTENTION
    except BaseException:
        _log(syslog.LOG_ERR, f"{name}: {traceback.format_exc()}")
        raise


def _answer(ctx: click.Context, name: str, incoming: int, outgoing: int, turns: tuple[int, ...]) -> int:
    config = load_config(ctx)
    host = config.hosts.get(name)
    if host is None or not host.calls or not host.enabled or not can_share(host, config.ssh):
        raise OperatorError(f"a call of {name}, which is not an enabled host with `calls`, reached with OpenSSH")
    require_privileges(None)
    pool = open_configured(config)
    with ExitStack() as held:
        now = clock_for(ctx, pool).now()
        try:
            held.enter_context(take_lock(pool.locks / f"call-{name}", "backupd answer", format_time(now)))
        except LockHeld:
            raise _Later("another call of this host is being answered", _OCCUPIED) from None
        slots = held.enter_context(HeldSlots(pool.locks, f"backup of {name}", format_time(now)))
        answered = _decide(config, pool, host, now, slots)
        context = held.enter_context(opened(ctx, writes=True, stand_in=True))
        transport = CallTransport(incoming, outgoing)
        held.callback(transport.close)
        calling = transport.host(context.config.hosts[name])
        context = replace(context, config=replace(context.config, hosts={**context.config.hosts, name: calling}))
        entry = replace(answered.entry, host=calling)
        reply(outgoing, answered.again, retry=answered.retry, connect=True, text=entry.reason)
        for turn in turns:
            os.close(turn)
        end = run_hosts(context, lambda: [entry], (name,), ProgressSinks[NightEvent](_log_notice), waits=True, slots=slots)
    return _log_end(name, end)


def _log_notice(event: NightEvent) -> None:
    if isinstance(event, Notice):
        _log(syslog.LOG_NOTICE, event.text)


def _log_end(name: str, end: RunEnd) -> int:
    """Logs how a run ended. Returns the exit status, which the host also gets."""
    for result in end.results:
        _log(syslog.LOG_INFO if result.good else syslog.LOG_WARNING, result_line(result))
    if end.unusable:
        _log(syslog.LOG_ERR, f"{name}: {end.unusable.message}")
        return Exit.UNUSABLE
    status = exit_status(end.results, end.signalled) if end.results else Exit.ATTENTION
    if end.problem:
        _log(syslog.LOG_ERR, f"{name}: {end.problem.message}; the next run records the backup")
        return status or Exit.ATTENTION
    return status


def _decide(config: Config, pool: Pool, host: HostConfig, now: datetime, slots: HeldSlots) -> AnsweredCall:
    """Takes the slots for the backup, so that it starts at once. Raises _Later if it does not start now."""
    facts = None
    with suppress(CatalogueUnready), Catalogue.open_readonly(config.pool.state) as catalogue:  # the first run makes one
        if fetched_hosts(pool, catalogue, config.hosts).get(host.name):
            raise _Later("this server fetches the host's backups from another server", timedelta(days=1))
        facts = catalogue.host_facts(latest(now)).get(host.name)
        if pause := read_silences(catalogue, config.hosts, now).pause_of(host.name):
            raise _Later(silence_words(pause), min(timedelta(days=1), pause.until - now))
    answered = answer_call(host, facts, config.pool.zone, now)
    if not answered.entry.runs:
        raise _Later(answered.entry.reason, answered.again)
    if (holder := read_holder(pool.host_lock(host.name))) and holder.is_alive:
        raise _Later(f"its backups are in use since {recorded_time(holder.since)}", _OCCUPIED)
    if slots.take_after_others(slots_of(config, host)):  # a host that calls without a pause would be faster than those that wait
        raise _Later("the server is busy with other hosts", _OCCUPIED)
    return answered


def _log(level: int, text: str) -> None:
    syslog.openlog("backupd", syslog.LOG_PID, syslog.LOG_DAEMON)
    for line in text.splitlines():
        syslog.syslog(level, printable(line))


class _SystemLog(logging.Handler):
    """For what would be printed on stderr, such as the traceback of an internal error."""

    def emit(self, record: logging.LogRecord) -> None:
        _log(syslog.LOG_ERR if record.levelno >= logging.ERROR else syslog.LOG_WARNING, self.format(record))
