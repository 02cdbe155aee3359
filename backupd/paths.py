"""All source paths of one host, through rsync: passes, attempts, and which paths another attempt is worth."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from backupd.hardlinks import split
from backupd.record import DATA
from backupd.rsync.command import Pass, passes, rsync_command
from backupd.rsync.meaning import Kind, Meaning, meaning
from backupd.rsync.output import Output
from backupd.site import Running, Site
from backupd.transfer import Ended, Stopper, transfer
from backupd.verdict import Limits, Outcome, PathResult, judge
from backupd.working import Prepared, drop_other_paths
from btrkeep.catalogue import RunFields
from btrkeep.config import HostConfig
from btrkeep.pool.locks import Lock
from btrkeep.pool.subvolume import commit

_FLOWS = ("created", "deleted", "transferred", "transferred_bytes", "literal", "matched", "sent", "received")
_LONGEST_PAUSE = 300.0


class HostTransfer:
    """The transfers of one run. Afterwards: `results` by path in the configured order, and what was written."""

    def __init__(self, site: Site, host: HostConfig, prepared: Prepared, lock: Lock, stopper: Stopper, running: Running) -> None:
        self.site = site
        self.host = host
        self.prepared = prepared
        self.lock = lock
        self.stopper = stopper
        self.running = running
        self.results: dict[str, PathResult] = {}
        self.written: list[tuple[bytes, int]] = []
        self.seconds = {"rsync": 0.0}
        self.attempts = 0
        self.protocol: int | None = None
        self.sparse = prepared.base is None
        self._last: Ended | None = None
        self._said: dict[str, tuple[str, ...]] = {}

    async def run(self) -> None:
        """All paths, and again those whose connection broke, up to `attempts` times with growing pauses."""
        pending: Sequence[str] = self.host.paths
        for attempt in range(1, self.host.attempts + 1):
            self.attempts = attempt
            pending = await self._attempt(pending)
            if not pending or attempt == self.host.attempts or not self._worth_another():
                break
            await self.stopper.sleep(min(_LONGEST_PAUSE, self.site.retry_pause * 3 ** (attempt - 1)))
        self.results = {path: self.results[path] for path in self.host.paths}

    async def _attempt(self, paths: Sequence[str]) -> list[str]:
        """One go over `paths`; those that are still unfinished. A path that breaks does not keep the others from their turn."""
        for number, path in enumerate(paths):
            result = self.results[path] = await self._path(path)
            if result.outcome is Outcome.FAULT or self.stopper.reason or self.unreachable:
                for rest in paths[number + 1 :]:
                    self.results.setdefault(rest, PathResult(rest, Outcome.UNFINISHED, result.reason))
                break
        return [path for path in paths if self.results[path].outcome is Outcome.UNFINISHED]

    async def _path(self, path: str) -> PathResult:
        """One source path through all its passes; it ends with the first that is not complete."""
        earlier = self.results.get(path)
        numbers = {key: count for key, count in earlier.numbers.items() if key in _FLOWS} if earlier else {}
        begun, before = time.monotonic(), None
        if earlier is not None:  # an rsync has made hard links here already, and the host may have broken one since
            await asyncio.to_thread(_split_again, self.prepared, path)
        for one_pass in passes(self.host.inplace, based=not self.sparse):
            ended = await self._rsync(path, one_pass)
            if before:
                ended.take_in(before)
            before = ended
            _add(numbers, ended.output)
            result = self._judge(path, ended, numbers, time.monotonic() - begun)
            if result.outcome is not Outcome.COMPLETE:
                break
        self._said[path] = tuple(ended.messages.last)
        self.running.finish_path()
        return result

    async def _rsync(self, path: str, one_pass: Pass) -> Ended:
        if self._last:
            await asyncio.to_thread(drop_other_paths, self.prepared.path / DATA, self.host.paths)
        data = str(self.prepared.path / DATA)
        command = rsync_command(self.host, self.site.config.ssh, path, data, one_pass, self.site.buckets(self.host))
        self.running.path = path
        ended = self._last = await transfer(command, self.lock, self.stopper, self.host.stall, self.running.take)
        self.written += ended.output.written
        self.protocol = ended.output.protocol or self.protocol
        self.seconds["rsync"] = round(self.seconds["rsync"] + ended.seconds, 3)
        return ended

    def _judge(self, path: str, ended: Ended, numbers: Mapping[str, int], seconds: float) -> PathResult:
        based_on = self.prepared.base.path(path) if self.prepared.base else None
        limits = Limits(self.host.shrink_limit, self.host.unreadable_limit)
        complete = numbers if ended.output.numbers else {}
        result = judge(path, ended.exit_code, ended.messages, complete, based_on.numbers if based_on else None, limits, seconds)
        if ended.stopped:
            result = replace(result, outcome=Outcome.UNFINISHED, reason=f"{path}: {ended.stopped}")
        return replace(result, numbers=dict(numbers))

    @property
    def _means(self) -> Meaning | None:
        return meaning(self._last.exit_code, self._last.messages.last) if self._last else None

    @property
    def unreachable(self) -> bool:
        """Whether the last rsync did not even reach the host."""
        return self._means is not None and self._means.unreachable

    @property
    def anything_arrived(self) -> bool:
        """Whether `.working` holds anything that this run brought."""
        return bool(self.written) or any(result.numbers.get("received", 0) > 0 for result in self.results.values())

    def _worth_another(self) -> bool:
        if self.stopper.reason or any(result.outcome is Outcome.FAULT for result in self.results.values()):
            return False
        return self._means is not None and self._means.kind is not Kind.HOST and not (self.host.optional and self.unreachable)

    def run_fields(self) -> RunFields:
        """What the run's row says of rsync: the worst path's exit status, the sums of all."""
        results = list(self.results.values())
        worst = max(results, key=lambda result: result.outcome.rank, default=None)
        return {
            "attempts": self.attempts,
            "exit_code": worst.exit_code if worst else None,
            "meaning": worst.meaning if worst else None,
            "last_lines": self._said.get(worst.path, ()) if worst else (),
            "literal_bytes": sum(result.numbers.get("literal", 0) for result in results),
            "matched_bytes": sum(result.numbers.get("matched", 0) for result in results),
            "received_bytes": sum(result.numbers.get("received", 0) for result in results),
            "protocol": self.protocol,
        }


def _split_again(prepared: Prepared, path: str) -> None:
    commit(prepared.path)  # the tree search sees committed inodes only
    split(prepared.path, under=path)


def _add(numbers: dict[str, int], output: Output) -> None:
    """Flows add up over passes and attempts, the rest is as the last whole list had it. A killed rsync told only its progress."""
    found = output.numbers or {"literal": output.progress.bytes, "received": output.progress.bytes}
    for key, count in found.items():
        numbers[key] = numbers.get(key, 0) + count if key in _FLOWS else max(numbers.get(key, 0), count)
