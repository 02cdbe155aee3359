"""Shared by all requests: which pool is served and how it is opened. Nothing is kept open between requests."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from backupd.repo.context import PoolContext, open_configured, require_catalogue_of, require_writable
from backupd.repo.publish import tell_dashboard
from backupd.serve.answer_cache import AnswerCache
from backupd.serve.jobs import JobStore
from backupd.serve.limits import RateLimit, VerbLimits
from btrkeep.catalogue import Catalogue
from btrkeep.clock import Clock
from btrkeep.config import Config, load_usable
from btrkeep.config.reading import main_and_name
from btrkeep.errors import OperatorError
from btrkeep.hung_storage import HINT, answers
from btrkeep.pool.marker import Pool, open_pool
from btrkeep.serving.places import UnreadBytes
from btrkeep.units import printable, show_times_in

log = logging.getLogger("backupd.serve")

Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(slots=True)
class JobQueue:
    """The waiting jobs: whether there are any, and whose end lets the next begin. `changed`: check again."""

    waits: bool = False
    before: tuple[str, ...] = ()
    changed: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class ServiceContext:
    """How the pool is named on command lines: by `pool` or, unless it is None, by the file `config_file`."""

    pool_name: str
    config_file: Path | None
    clock: Clock
    systemd: bool
    """True if long work is started as units."""
    restore_to: Path | None = None
    """The folder of this machine below which may be restored."""
    elsewhere: bool = False
    """True if a restore may go to another folder of its host than where the files were."""
    in_place: tuple[Path, ...] = ()
    """Folders of this machine below which its own files may be put back."""
    login: Path | None = None
    """Where the login service listens, if not where systemd has it do so."""
    limits: VerbLimits = field(default_factory=VerbLimits)
    rates: RateLimit = field(default_factory=RateLimit)
    answers: AnswerCache = field(default_factory=AnswerCache)
    unread: UnreadBytes = field(default_factory=UnreadBytes)
    queue: JobQueue = field(default_factory=JobQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _loaded: tuple[Signature, Config] | None = None
    _untold: bool = False
    _pool: Pool | None = None

    def config(self) -> Config:
        """Returns the present configuration; read again if one of its files has changed. Raises ConfigError, also if a mistake
        leaves open who may do what.
        """
        with self._lock:
            # Taken before the files are read: a change that comes meanwhile is read at the next request.
            signature = _signature(main_and_name(self.pool_name, self.config_file)[0])
            if not self._loaded or self._loaded[0] != signature:
                config = load_usable(self.pool_name, self.config_file)
                show_times_in(config.pool.zone)
                self._loaded, self._untold = (signature, config), True
            self._loaded[1].require_rights()
            return self._loaded[1]

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
        """All of it. Raises OperatorError of every kind; with `writes`, PoolUnusable when the pool is read-only."""
        config = self.config()
        pool = self._pool = open_configured(config)
        if writes:
            require_writable(pool)
        with Catalogue.open(config.pool.state) as catalogue:
            require_catalogue_of(config, pool, catalogue.pool_id())
            yield PoolContext(config, pool, catalogue, self.clock)

    def tell(self) -> None:
        """Writes down for the dashboard what it may know of a configuration that was read anew. Nobody waits for that, so it must
        not keep the pool busy: it knows the pool from the last request that opened it, and without one waits for the next.
        """
        with self._lock:
            pool, config = self._pool, self._loaded[1] if self._loaded else None
            if not self._untold or not config or not pool or pool.path != config.pool.path:
                return
            self._untold = False
        try:
            with Catalogue.open(config.pool.state) as catalogue:
                require_catalogue_of(config, pool, catalogue.pool_id())
                tell_dashboard(config, pool, catalogue, self.clock)
        except OperatorError as error:  # who asks next hears of it
            log.info("the configuration is not published: %s", printable(error.message))

    def chosen(self) -> tuple[str, ...]:
        """The options of our commands that say which pool it is."""
        return ("--config", str(self.config_file)) if self.config_file else ("--pool", self.pool_name)

    def words(self, program: Sequence[str]) -> tuple[str, ...]:
        """Returns the beginning of a backupd command line for this pool."""
        return (*program, *self.chosen())


def _signature(main: Path) -> Signature:
    """Returns when the files of a configuration were last changed."""
    folder = main.with_suffix(".d")
    files = (main, folder, *(sorted(folder.glob("*.toml")) if folder.is_dir() else ()))
    found = ((str(file), file.stat()) for file in files if file.exists())
    return tuple((path, status.st_mtime_ns, status.st_size, status.st_ino) for path, status in found)
