"""The catalogue as a run writes it: a copy of the pool's records, so a write error fails no backup.

The next run adds missing rows from the pool.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from backupd.repo.reconcile import clear_dead, stand_in
from btrkeep.catalogue import Backup, Catalogue, CatalogueBusy, CatalogueUnusable, Damage, HostFacts, Progress
from btrkeep.errors import OperatorError

log = logging.getLogger(__name__)

_PATIENCE = 1.0  # seconds
_NONE = 0  # the id of a run that is not in the catalogue


@contextmanager
def open_catalogue_or_memory(state: Path, pool_id: str) -> Iterator[tuple[Catalogue, OperatorError | None]]:
    """Yields the catalogue in `state`; if it cannot be read or written, an empty one in memory, and the reason.

    The reconciling at the beginning of every run fills an empty one. Raises OperatorError for one of a newer version.
    """
    clear_dead()
    try:
        catalogue = Catalogue.open(state)
    except (CatalogueUnusable, CatalogueBusy) as error:
        trouble: OperatorError | None = error
    else:
        with catalogue:
            trouble = _why_not(catalogue, pool_id)
            if trouble is None:
                yield catalogue, None
                return
    with stand_in(pool_id) as catalogue:
        yield catalogue, trouble


def _why_not(catalogue: Catalogue, pool_id: str) -> OperatorError | None:
    """Returns why the catalogue cannot be written, found by rewriting an existing value."""
    try:
        if catalogue.pool_id() in (None, pool_id):
            catalogue.set_pool_id(pool_id)
    except (CatalogueUnusable, CatalogueBusy) as error:
        return error
    return None


class BestEffortCatalogue:
    """Writes to the catalogue and ignores failures: `trouble` is the first reason, `say` is called once with it.

    Methods and their arguments are those of Catalogue.
    """

    def __init__(self, catalogue: Catalogue, say: Callable[[str], None], trouble: OperatorError | None = None) -> None:
        self._catalogue = catalogue
        self._say = say
        self.trouble: OperatorError | None = None
        if trouble:
            self.note(trouble)

    def note(self, error: OperatorError) -> None:
        """Records that the catalogue could not be written."""
        log.info("%s", error.message)
        if isinstance(error, CatalogueBusy):  # whoever holds it may do so all night, and each write would wait anew
            self._catalogue.wait_at_most(_PATIENCE)
        if self.trouble is None:
            self.trouble = error
            self._say(f"{error.message}; backups continue, and the next run records them ({error.hint})")

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OperatorError as error:
            self.note(error)

    def host_facts(self, latest: datetime) -> dict[str, HostFacts]:
        return self._catalogue.host_facts(latest)

    def get_fact(self, name: str) -> str | None:
        return self._catalogue.get_fact(name)

    def damages(self, host: str) -> list[Damage]:
        """Returns the recorded damage; an empty list if it cannot be read."""
        try:
            return self._catalogue.damages(host)
        except OperatorError as error:
            self.note(error)
            return []

    def start_run(self, host: str, started: datetime, pid: int, pid_started: str | None, night: bool) -> int:
        try:
            return self._catalogue.start_run(host, started, pid, pid_started, night)
        except OperatorError as error:
            self.note(error)
            return _NONE

    def update_run(self, run_id: int, **fields: Any) -> None:
        if run_id != _NONE:
            self._try(lambda: self._catalogue.update_run(run_id, **fields))

    def finish_run(self, run_id: int, **fields: Any) -> None:
        if run_id != _NONE:
            self._try(lambda: self._catalogue.finish_run(run_id, **fields))

    def finish_backup(self, backup: Backup, /, run_id: int, **fields: Any) -> None:
        if run_id != _NONE:
            self._try(lambda: self._catalogue.finish_backup(backup, run_id, **fields))
        else:
            self._try(lambda: self._catalogue.drop_backup(backup.host, None))
            self._try(lambda: self._catalogue.put_backup(backup))

    def put_damages(self, damages: Sequence[Damage]) -> None:
        self._try(lambda: self._catalogue.put_damages(damages))

    def put_backup(self, backup: Backup) -> None:
        self._try(lambda: self._catalogue.put_backup(backup))

    def drop_backup(self, host: str, name: str | None) -> None:
        self._try(lambda: self._catalogue.drop_backup(host, name))

    def put_progress(self, progress_now: Progress) -> None:
        if progress_now.run_id != _NONE:
            self._try(lambda: self._catalogue.put_progress(progress_now))
