"""Runs many hosts, a few at the same time, in one asyncio loop: who is next, when no new host may start, and how everything is
stopped.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cached_property, partial

from backupd.repo import backup_json as records
from backupd.run.host_order import PlannedHost
from backupd.run.host_run import HostRun
from backupd.run.room import NoRoom, OthersFirst, RoomMaker, Scarcity
from backupd.run.run_context import BestEffortCatalogue, HostResult, NightEnded, NightStarted, RunContext, RunningTransfer
from backupd.run.slots import CONFINED, OPEN, HeldSlots, has_files_for, possible_at_once, slots_of
from btrkeep.backup_states import Cause, CauseCode
from btrkeep.catalogue import Progress
from btrkeep.clock import elapsed
from btrkeep.config import HostConfig, Window
from btrkeep.decisions.cause_words import cause_words
from btrkeep.decisions.due import latest, window_end
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.process.proc import start_time
from btrkeep.process.threads import NoThread, running_threads
from btrkeep.units import counted, format_time, local_time, names_in_words

log = logging.getLogger(__name__)

_LOOK = 0.5
_AWAKE = 5.0  # seconds between checks whether the machine was suspended
_LONGEST_WAIT = 3600.0
_TOO_MUCH = (
    "exclude some of its files (`exclude`), keep fewer backups, or add a device. If "
    "other hosts need space, a later run discards this unfinished backup"
)


def _run(transfers: int, whose: str = "") -> str:
    """Formats the number of transfers: "1 transfer runs", "2 transfers of the group dmz run"."""
    return f"{counted(transfers, 'transfer')}{whose} {'runs' if transfers == 1 else 'run'}"


def _outside(opens: Sequence[datetime]) -> str:
    """Formats when the windows of the waiting due hosts open."""
    if len(opens) == 1:
        return f"1 host is due, but outside its window, which opens {local_time(opens[0])}"
    return f"{len(opens)} hosts are due, but outside their windows; the first one opens {local_time(min(opens))}"


async def _close(run: HostRun, window: Window, seconds: float) -> None:
    """Stops a host when its window closes, even if the machine was asleep then: the clock of the loop does not count sleep."""
    end = elapsed() + seconds
    while (left := end - elapsed()) > 0:
        await asyncio.sleep(min(left, _AWAKE))
    run.cancellation.cancel_for(_closed(window))


def _closed(window: Window) -> Cause:
    return Cause(CauseCode.WINDOW_CLOSED, facts={"window": str(window)})


def _of_pool(text: str) -> Cause:
    """Describes a fault of the pool."""
    return Cause(CauseCode.POOL, facts={"text": text})


def _stop_words(run: HostRun) -> str | None:
    """Formats the reason why the host was stopped; None if it was not stopped."""
    return cause_words(run.cancellation.reason) if run.cancellation.reason else None


class NightRunner:
    """Runs the planned hosts. `stop` and `kill` may be called at any time (from a signal handler of the loop). `wait_for_slot`: no
    host starts while other runs use all slots of the pool or of its group. A host that was stopped in an earlier run because of too
    little free space leaves its space to the others when they need it, and comes last. `slots`: those that its only host has.
    """

    def __init__(
        self,
        context: RunContext,
        planned: Sequence[PlannedHost],
        *,
        wait_for_slot: bool = False,
        slots: HeldSlots | None = None,
    ) -> None:
        self.context = context
        self.wait_for_slot, self.slots = wait_for_slot, slots
        self.waiting = [entry for entry in planned if entry.runs]
        self.outside_window = [entry.opens for entry in planned if entry.opens]
        self.replicated = [entry.host.name for entry in planned if entry.is_copy]
        self.runs: dict[str, HostRun] = {}
        self.results: list[HostResult] = []
        self.reason: str | None = None
        self.unusable: PoolUnusable | None = None
        self._changed = asyncio.Condition()
        self._room = RoomMaker(context)
        self._most = 1  # running hosts, without the paused ones
        self._each = CONFINED if any(context.confines(entry.host) for entry in self.waiting) else OPEN
        self._pausing: set[str] = set()  # hosts that have given their slots, also in their group, to others
        self._beside: list[asyncio.Task[None]] = []  # workers with the slots of hosts that wait for their next attempt
        self._scarcity = Scarcity(context.pool.path, context.config, self._transfers, self._stop_for_room, self._seen)

    def stop(self, reason: Cause) -> None:
        """Starts no more hosts and stops running ones cleanly, keeping partial data."""
        self.reason = self.reason or cause_words(reason)
        for run in self.runs.values():
            run.cancellation.cancel_for(reason)

    def kill(self) -> None:
        """Stops all transfers at once."""
        for run in self.runs.values():
            run.kill()

    async def run(self) -> list[HostResult]:
        """Returns the results, in the order in which hosts ended. `unusable` then shows whether the pool ended the run."""
        self.context.sinks(NightStarted(tuple(entry.host.name for entry in self.waiting)))
        if self.outside_window and not self.waiting:
            self.context.sinks.notice(_outside(self.outside_window))
        if self.replicated:
            shown = names_in_words(self.replicated)
            self.context.sinks.notice(f"copies of another pool, so not backed up here: {shown} (`backupd promote` takes them over)")
        at_a_time = self._most = self._at_a_time()
        # A thread for each: punching holes, or a commit that takes minutes, must not delay other hosts.
        executor = running_threads(at_a_time, "host")
        asyncio.get_running_loop().set_default_executor(executor)
        beside = [asyncio.create_task(keep_progress(self.context)), asyncio.create_task(self._scarcity.run())]
        try:
            await asyncio.gather(*(self._worker() for _ in range(at_a_time)))
            while self._beside:
                await self._beside.pop()
        finally:
            for task in (*beside, *self._beside):
                task.cancel()
            self.context.sinks(NightEnded(problem=self._has_problem() or bool(self.outside_window or self.context.config.excluded)))
            executor.shutdown()  # the loop's own shutdown would need another thread
        return self.results

    def _at_a_time(self) -> int:
        """Returns how many hosts can run at the same time. Raises NoThread if no thread can be started."""
        wanted = max(1, min(self.context.config.backup.concurrency, len(self.waiting)))
        possible = possible_at_once(wanted, self._each)
        if not possible:
            raise NoThread
        if possible < wanted:
            self.context.sinks.notice(
                f"only {possible} of {wanted} hosts at a time: the limits of open files or processes allow no more (ulimit -n, -u; "
                "LimitNOFILE= and TasksMax= of the unit)"
            )
        return possible

    def _has_problem(self) -> bool:
        """Returns True if an error of the pool or the catalogue will be reported."""
        catalogue = self.context.catalogue
        return self.unusable is not None or (isinstance(catalogue, BestEffortCatalogue) and catalogue.problem is not None)

    async def _worker(self, over: asyncio.Event | None = None) -> None:
        """Backs up one host after the other, until none waits, or until `over`: another worker needs the slot."""
        while not (over and over.is_set()) and (entry := await self._next(over)):
            try:
                await self._back_up_and_tell(entry)
            except NoRoom as error:
                self._refuse_new_hosts(error)
            except PoolUnusable as error:
                self.unusable = self.unusable or error
                self.stop(_of_pool(error.message))
            async with self._changed:
                self._changed.notify_all()

    def _refuse_new_hosts(self, error: NoRoom) -> None:
        self.unusable = self.unusable or error
        self.reason = self.reason or error.message

    def _transfers(self) -> dict[int, str]:
        """Returns the hosts that are being transferred, by process group."""
        runs = {host: run.cancellation.group for host, run in self.runs.items() if run.transfer}
        return {group.pid: host for host, group in runs.items() if group}

    def _seen(self, host: str, written: int, memory: int) -> None:
        if (run := self.runs.get(host)) and run.transfer:
            run.transfer.limits.check(written, memory)

    def _stop_for_room(self, host: str, why: str) -> None:
        """Stops the host's transfer, keeping partial data; no more hosts are started."""
        self._refuse_new_hosts(NoRoom(f"{host} was stopped: {why}", f"{_TOO_MUCH}; `backupd discard {host}` does it now"))
        run = self.runs[host]
        if not run.cancellation.reason:  # a run that is already being stopped for another reason must not be discarded
            run.stopped_for = records.ROOM
        run.cancellation.cancel_for(_of_pool(why))

    async def _next(self, over: asyncio.Event | None = None) -> PlannedHost | None:
        """Returns the first waiting host whose group has a slot; waits for one while others run, unless the night is over."""
        async with self._changed:
            while self.waiting and not self.reason and not (over and over.is_set()):
                if entry := self._first_with_place():
                    self.waiting.remove(entry)
                    self.runs[entry.host.name] = HostRun(self.context, entry.host)
                    return entry
                await self._changed.wait()
        return None

    def _first_with_place(self) -> PlannedHost | None:
        """Returns the next host with a free slot; a host that has to come last only if no other host waits. Usually it is the first
        of the list.
        """
        full: set[str | None] = set()  # full groups; each is checked once
        others_wait = False
        for entry in self.waiting:
            if entry.host.name in self._room.last or entry.host.group in full:
                others_wait |= entry.host.name not in self._room.last
            elif self._group_has_place(entry.host):
                return entry
            else:
                others_wait = True
                full.add(entry.host.group)
        if others_wait:
            return None
        return next((entry for entry in self.waiting if self._group_has_place(entry.host)), None)

    def _group_has_place(self, host: HostConfig) -> bool:
        group = self.context.config.groups.get(host.group or "")
        if group is None or group.concurrency is None:
            return True
        under_way = (run.host for name, run in self.runs.items() if name not in self._pausing)
        return sum(other.group == host.group for other in under_way) < group.concurrency

    async def _back_up(self, entry: PlannedHost) -> None:
        host = entry.host
        run = self.runs[host.name]
        window_timer = None
        try:
            if entry.bound and host.window:
                now = self.context.clock.now()
                end = window_end(host.window, self.context.config.pool.zone, now)
                if end is None:
                    self._record_skip(run, _closed(host.window))
                    self._tell(HostResult(host.name, "skipped", f"its window {host.window} closed before a slot was free"))
                    return
                window_timer = asyncio.create_task(_close(run, host.window, (end - now).total_seconds()))
            with self.slots or HeldSlots(self.context.pool.locks, f"backup of {host.name}", format_time(run.started)) as slots:
                run.pause = partial(self._pause, run, slots)
                if await self._has_slot(run, slots) and await self._has_room(entry, run):
                    self._tell(await run.run())
        finally:
            if window_timer:
                window_timer.cancel()
            self._scarcity.growth.forget(host.name)
            del self.runs[host.name]

    async def _pause(self, run: HostRun, slots: HeldSlots, seconds: float, silent: bool) -> None:
        """Gives up the slot between two attempts of a host. A host that was silent or cannot be reached waits until all others have
        started, or for an hour. Each waiting host has some open files, so it keeps its slot if hundreds of them would use the files
        of the others.
        """
        if not self.wait_for_slot or not has_files_for(
            self._most + 1, self._each
        ):  # without a slot: there may be one host more than slots
            await run.cancellation.wait(seconds)
            return
        slots.release()
        over = asyncio.Event()
        with run.waiting():
            self._pausing.add(run.host.name)
            self._beside.append(asyncio.create_task(self._worker(over)))
            await run.cancellation.wait(seconds)
            latest = time.monotonic() + _LONGEST_WAIT
            while silent and self.waiting and not self.reason and not run.cancellation.reason and time.monotonic() < latest:
                await run.cancellation.wait(_LOOK)
            over.set()
            self._pausing.discard(run.host.name)
            if not run.cancellation.reason:
                await slots.wait(slots_of(self.context.config, run.host), run.cancellation, lambda: False, lambda _: None)

    async def _has_slot(self, run: HostRun, slots: HeldSlots) -> bool:
        """Returns True if the host may start now. In a run with `wait_for_slot` it waits; in any other run it starts although too
        many are running, with a notice.
        """
        if slots is self.slots:
            return True
        wanted, name, notice = slots_of(self.context.config, run.host), run.host.name, self.context.sinks.notice
        if not self.wait_for_slot:
            if missing := slots.take(wanted):
                notice(f"{name} would exceed `concurrency`{missing.whose}: {_run(missing.count)} (use --wait to wait for a slot)")
            return True
        if await slots.wait(
            wanted,
            run.cancellation,
            lambda: self.reason is not None,
            lambda missing: notice(f"{name} waits for a slot: {_run(missing.count, missing.whose)} already"),
        ):
            run.begin()
            return True
        self._skip(run)
        return False

    async def _has_room(self, entry: PlannedHost, run: HostRun) -> bool:
        """Returns True if the host may start; otherwise it was put last or stopped. Raises NoRoom if there is too little free space
        for any host.
        """
        try:
            if await self._room.make(run.host.name, run.cancellation, lambda: bool(self.reason or run.cancellation.reason)):
                return True
        except OthersFirst:
            if all(other.host.name in self._room.last for other in self.waiting):
                raise
            self.waiting.append(entry)
        else:
            self._skip(run)
        return False

    def _skip(self, run: HostRun) -> None:
        """Reports a host that has not started when its window closed; reports nothing if the night's end is the reason."""
        if not self.reason:
            cause = run.cancellation.reason
            if cause and cause.code is CauseCode.WINDOW_CLOSED:
                self._record_skip(run, cause)
            self._tell(HostResult(run.host.name, "skipped", _stop_words(run)))

    def _record_skip(self, run: HostRun, cause: Cause) -> None:
        """Records it as the reason why the host has no newer backup. If its last run failed, that reason is kept."""
        if run.host.name not in self._failing:
            run.skip(cause)

    @cached_property
    def _failing(self) -> frozenset[str]:
        facts = self.context.catalogue.host_facts(latest(self.context.clock.now()))
        return frozenset(name for name, of_host in facts.items() if of_host.last_run_outcome in ("failed", "partial"))

    async def _back_up_and_tell(self, entry: PlannedHost) -> None:
        """Catches a bug met by one host, so that the others are still backed up: logs its traceback and counts the host
        as failed.
        """
        name = entry.host.name
        try:
            await self._back_up(entry)
        except (PoolUnusable, asyncio.CancelledError):
            raise
        except OperatorError as error:  # such as a catalogue that cannot be written
            self._tell(HostResult(name, "failed", error.message))
        except Exception as error:
            log.exception("internal error while %s was backed up", name)
            self._tell(HostResult(name, "failed", f"internal error: {error!r}"))

    def _tell(self, result: HostResult) -> None:
        if not result.good:
            self._room.check_again()
        self.results.append(result)
        self.context.sinks(result)


_PAUSE = 2.0


async def keep_progress(context: RunContext) -> None:
    """Records the progress in the catalogue regularly, until it is cancelled."""
    while True:
        await asyncio.sleep(_PAUSE)
        try:
            for running in context.running.values():
                context.catalogue.put_progress(_row(context, running))
        except OperatorError as error:  # only a display; real errors are reported elsewhere
            log.warning("could not record progress: %s", error.message)


def _row(context: RunContext, running: RunningTransfer) -> Progress:
    return Progress(
        host=running.host,
        run_id=running.run_id,
        pid=running.pid,
        pid_started=start_time(running.pid),
        path=running.path,
        files_done=running.files,
        files_total=running.expected_files,
        bytes=running.bytes,
        rate=running.rate,
        share=running.share,
        updated=(now := context.clock.now()),
        advanced=now - timedelta(seconds=time.monotonic() - running.advanced) if running.output else None,
    )
