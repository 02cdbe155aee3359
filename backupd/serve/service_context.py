"""The argument of a verb's function: the pool and how it is opened, the limits of the service, and one call with the connection to
its caller.

Nothing is kept open between requests. Limits prevent the service from doing too much at the same time: on concurrency, on requests
per minute and caller; and a cache keeps answers that took seconds for a minute. Of each kind of work only one is computed at a
time.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backupd.repo.pool_context import PoolContext, open_configured, require_catalogue_of, require_writable
from backupd.repo.publish import publish_to_dashboard
from backupd.serve.jobs import JobStore
from btrkeep.catalogue import Catalogue
from btrkeep.clock import Clock
from btrkeep.config import Config, load_usable
from btrkeep.config.reading import main_and_name
from btrkeep.errors import OperatorError
from btrkeep.hung_storage import HINT, answers
from btrkeep.pool.marker import Pool, open_pool
from btrkeep.serving.protocol import HEAD, LONGEST_FRAME, Request, RequestRefused, StreamHeader, login_socket_of, stream_line
from btrkeep.serving.server import Peer, Wire
from btrkeep.serving.viewer import NoSlot, RequestSlots, UnreadBytes, Viewer
from btrkeep.units import printable, show_times_in

_MINUTE = 60.0
_NO_LIMIT = 1 << 20
_MOST = 10_000
"""Maximum number of pairs of caller and verb that are remembered. A caller without a request for a minute counts as new."""


class ConcurrencyLimit(RequestSlots):
    """A limit on concurrency."""

    @contextmanager
    def taken(self, viewer: Viewer) -> Iterator[None]:
        """Takes a slot. Raises RequestRefused, of kind busy."""
        try:
            self.take(viewer)
        except NoSlot as error:
            of = "such requests of yours are running" if error.own else "such requests are running"
            raise RequestRefused(f"too many {of}", "try again in a moment", "busy", is_public=True) from None
        try:
            yield
        finally:
            self.leave(viewer)


class VerbLimits:
    """The limits that the configuration sets for single verbs, in addition to the shared ones."""

    def __init__(self) -> None:
        self._lock, self._limits = threading.Lock(), dict[str, ConcurrencyLimit]()

    def of(self, verb: str, at_once: int | None) -> ConcurrencyLimit:
        """Returns the limit of the verb, half of which one caller may use; None: no separate limit."""
        most = at_once or _NO_LIMIT
        with self._lock:
            limit = self._limits.setdefault(verb, ConcurrencyLimit(most, most))
        limit.at_once, limit.of_one = most, (most + 1) // 2
        return limit


class RateLimit:
    """Shared by all threads: a token bucket for each caller and verb, which contains the allowed requests of a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._left: dict[tuple[str, str], tuple[float, float]] = {}

    def take(self, who: str, verb: str, per_minute: int) -> None:
        """Counts a request. Raises RequestRefused, of kind busy, if there are too many; a refused request is not counted."""
        with self._lock:
            now = self._clock()
            left, then = self._left.get((who, verb), (float(per_minute), now))
            left = min(float(per_minute), left + (now - then) * per_minute / _MINUTE)
            if left < 1:
                raise RequestRefused(
                    f"you have requested {verb} too often: {per_minute} times a minute are allowed",
                    f"try again in {max(1, round((1 - left) * _MINUTE / per_minute))} s",
                    "busy",
                    is_public=True,
                )
            self._left[who, verb] = left - 1, now
            if len(self._left) > _MOST:
                self._left = {key: value for key, value in self._left.items() if now - value[1] < _MINUTE}


_KEPT = 60.0
_MOST_ANSWERS = 24
_WAIT = 0.2


class AnswerCache:
    """Shared by all threads. A stored answer is never changed."""

    def __init__(self, kept: float = _KEPT) -> None:
        self._kept = kept
        self._guard = threading.Lock()
        self._kinds: dict[str, threading.Lock] = {}
        self._answers: dict[Hashable, tuple[float, Any]] = {}

    def get(self, kind: str, key: Hashable, compute: Callable[[], Any], gone: Callable[[], bool], patience: float = 60) -> Any:
        """Returns the answer of `compute`, stored or new. Other threads wait for it, at most `patience` seconds.

        Raises RequestRefused, of kind busy, and the errors of `compute`: these are not stored.
        """
        if (cached := self._cached((kind, key))) is not None:
            return cached[1]
        with self._guard:
            lock = self._kinds.setdefault(kind, threading.Lock())
        end = time.monotonic() + patience
        while not lock.acquire(timeout=_WAIT):
            if time.monotonic() > end or gone():
                raise RequestRefused(f"{kind} is being computed for another request", "try again in a moment", "busy")
        try:
            if (cached := self._cached((kind, key))) is not None:
                return cached[1]
            answer = compute()
            self._keep((kind, key), answer)
            return answer
        finally:
            lock.release()

    def _cached(self, key: Hashable) -> tuple[float, Any] | None:
        with self._guard:
            cached = self._answers.get(key)
        return cached if cached and time.monotonic() - cached[0] < self._kept else None

    def _keep(self, key: Hashable, answer: Any) -> None:
        with self._guard:
            self._answers.pop(key, None)
            self._answers[key] = (time.monotonic(), answer)
            while len(self._answers) > _MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]


log = logging.getLogger("backupd.serve")

Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(slots=True)
class JobQueue:
    """The waiting jobs."""

    waits: bool = False
    """True if there are any."""
    before: tuple[str, ...] = ()
    """The jobs after whose end the next one can start."""
    changed: threading.Event = field(default_factory=threading.Event)
    """Set if they must be checked again."""


@dataclass(slots=True)
class ServiceContext:
    """Everything that the root service needs."""

    pool_name: str
    """The pool's name on command lines, unless `config_file` is given."""
    config_file: Path | None
    """The configuration file for command lines; None: the pool's name is used."""
    clock: Clock
    """The clock."""
    systemd: bool
    """True if long work is started in units."""
    restore_to: Path | None = None
    """The folder of this machine below which files may be restored; None: none."""
    elsewhere: bool = False
    """True if a restore may go to another folder of its host than the original one."""
    in_place: tuple[Path, ...] = ()
    """Folders of this machine below which its own files may be restored to their original places."""
    login: Path | None = None
    """The socket of the login service; None: the one of its unit."""
    limits: VerbLimits = field(default_factory=VerbLimits)
    """How many requests of each verb are answered at the same time."""
    rates: RateLimit = field(default_factory=RateLimit)
    """How many requests each user may send."""
    answers: AnswerCache = field(default_factory=AnswerCache)
    """Recent answers."""
    unread: UnreadBytes = field(default_factory=UnreadBytes)
    """Bytes that clients have not read yet."""
    queue: JobQueue = field(default_factory=JobQueue)
    """The waiting jobs."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _loaded: tuple[Signature, Config] | None = None
    _is_unpublished: bool = False
    _pool: Pool | None = None

    def config(self) -> Config:
        """Returns the present configuration; read again if one of its files has changed. Raises ConfigError, also if a mistake
        makes it unclear who may do what.
        """
        with self._lock:
            # Taken before the files are read: the next request sees a change made while they are read.
            signature = _signature(main_and_name(self.pool_name, self.config_file)[0])
            if not self._loaded or self._loaded[0] != signature:
                config = load_usable(self.pool_name, self.config_file)
                show_times_in(config.pool.zone)
                self._loaded, self._is_unpublished = (signature, config), True
            self._loaded[1].require_rights()
            return self._loaded[1]

    @property
    def login_socket(self) -> Path:
        """Returns where the login service listens."""
        return self.login or login_socket_of(self.pool_name)

    def jobs(self) -> JobStore:
        """Returns the jobs, in the state folder. Raises OperatorError if that does not answer, and ConfigError."""
        state = self.config().pool.state
        if not answers(state):
            raise OperatorError(f"the jobs in {state} cannot be read: the folder does not answer", HINT)
        return JobStore(state)

    def pool(self) -> Pool:
        """Returns the pool, checked again, because it may have been unmounted. Raises PoolUnusable and ConfigError."""
        config = self.config()
        self._pool = open_pool(config.pool.path, config.pool.zone)
        return self._pool

    @contextmanager
    def opened(self, *, writes: bool = False) -> Iterator[PoolContext]:
        """Returns the complete context. Raises OperatorError of every kind; with `writes`, PoolUnusable if the pool is
        read-only.
        """
        config = self.config()
        pool = self._pool = open_configured(config)
        if writes:
            require_writable(pool)
        with Catalogue.open(config.pool.state) as catalogue:
            require_catalogue_of(config, pool, catalogue.pool_id())
            yield PoolContext(config, pool, catalogue, self.clock)

    def publish_config(self) -> None:
        """Publishes a newly read configuration for the dashboard. No caller waits for that, so it must not open the pool: it uses
        the pool of the last request that opened it, and without one waits for the next.
        """
        with self._lock:
            pool, config = self._pool, self._loaded[1] if self._loaded else None
            if not self._is_unpublished or not config or not pool or pool.path != config.pool.path:
                return
            self._is_unpublished = False
        try:
            with Catalogue.open(config.pool.state) as catalogue:
                require_catalogue_of(config, pool, catalogue.pool_id())
                publish_to_dashboard(config, pool, catalogue, self.clock)
        except OperatorError as error:  # the next request reports it
            log.info("could not publish the configuration: %s", printable(error.message))

    def chosen(self) -> tuple[str, ...]:
        """The options of our commands that select the pool."""
        return ("--config", str(self.config_file)) if self.config_file else ("--pool", self.pool_name)

    def words(self, program: Sequence[str]) -> tuple[str, ...]:
        """Returns the start of a backupd command line for this pool."""
        return (*program, *self.chosen())


def _signature(main: Path) -> Signature:
    """Returns when the files of a configuration were last changed."""
    folder = main.with_suffix(".d")
    files = (main, folder, *(sorted(folder.glob("*.toml")) if folder.is_dir() else ()))
    statuses = ((str(file), file.stat()) for file in files if file.exists())
    return tuple((path, status.st_mtime_ns, status.st_size, status.st_ino) for path, status in statuses)


_PIECE = 256 << 10
_CHECK_EVERY = 1.0
"""Seconds after which the caller's rights are checked again: on a slow connection a stream lasts for days."""


class Frames:
    """A file-like writer: what is written is sent in frames. Only one piece is in memory.

    `require` raises RequestRefused if the caller has lost the right to it.
    """

    def __init__(self, wire: Wire, require: Callable[[], None] = lambda: None) -> None:
        self._wire, self._require = wire, require
        self._checked_at = time.monotonic()
        self._held = bytearray()
        self._written = 0

    def write(self, data: bytes) -> int:
        """Raises ClientGone."""
        self._written += len(data)
        if len(data) + len(self._held) < _PIECE:
            self._held += data
            return len(data)
        self.flush()
        with memoryview(data) as view:
            for place in range(0, len(data), LONGEST_FRAME):
                self._send(view[place : place + LONGEST_FRAME])
        return len(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self._written

    def flush(self) -> None:
        """Sends buffered data. Raises ClientGone."""
        if self._held:
            self._send(self._held)
            self._held = bytearray()

    def writable(self) -> bool:
        """Returns True."""
        return True

    def end(self) -> None:
        """Sends the end of the stream. Raises ClientGone."""
        self.flush()
        self._wire.streaming = False
        self._wire.send(HEAD.pack(0))

    def _send(self, piece: bytes | bytearray | memoryview) -> None:
        if time.monotonic() - self._checked_at > _CHECK_EVERY:
            self._require()
            self._checked_at = time.monotonic()
        self._wire.send_while(HEAD.pack(len(piece)), self._require)
        self._wire.send_while(piece, self._require)


@dataclass(slots=True)
class Call:
    """The argument of a verb's function."""

    service: ServiceContext
    """The root service."""
    wire: Wire
    """The connection."""
    peer: Peer
    """The connected process."""
    viewer: Viewer
    """The user."""
    arguments: Mapping[str, Any]
    """Validated and complete."""
    require: Callable[[], None]
    """Checks again whether the user may make this request. Raises OperatorError."""
    frames: Frames | None = None
    """Sends an answer in parts; None: the verb has a single answer."""
    word: str | None = field(default=None, repr=False)
    """The random word of the user's session or token; None: root named the user."""

    @property
    def who(self) -> str:
        """Returns the name of the caller."""
        return self.viewer.name

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def stream(self, name: bytes, kind: str, length: int | None) -> Frames:
        """Answers with a stream, into which the function writes; when it returns, the stream ends. Raises ClientGone."""
        self.wire.answer(stream_line(StreamHeader(os.fsdecode(name), kind, length)))
        self.wire.streaming = True
        self.frames = Frames(self.wire, self.require)
        return self.frames

    def gone(self) -> bool:
        """Returns True if the caller no longer waits for the answer."""
        return self.wire.gone()


def in_words(request: Request, longest: int = 300) -> str:
    """Returns a request for the log: one line, whatever it contains, without a password."""
    arguments = json.dumps({name: value for name, value in request.arguments.items() if name != "password"})  # ASCII only
    return f"{printable(request.verb[:40])} {arguments if len(arguments) <= longest else arguments[:longest] + '...'}"
