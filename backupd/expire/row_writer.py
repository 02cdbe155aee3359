"""Writes what an expiry did into the catalogue, and goes on without it once that fails.

The catalogue is a copy of the pool's records: the next reconciling corrects the rows that were not written.
"""

import logging
from collections.abc import Callable

from btrkeep.catalogue import Catalogue, CatalogueBusy, CatalogueUnusable
from btrkeep.errors import OperatorError

log = logging.getLogger(__name__)

_PATIENCE = 1.0  # seconds for a last attempt: the program that holds the catalogue may do so all night


class RowWriter:
    """Writes to the catalogue until a write fails. `trouble`: the reason of the first failure; `report` gets it as a sentence."""

    def __init__(self, catalogue: Catalogue, report: Callable[[str], None]) -> None:
        self._catalogue = catalogue
        self._report = report
        self.trouble: OperatorError | None = None

    def write(self, change: Callable[[Catalogue], object], *, is_last: bool = False) -> bool:
        """Does `change`; returns False if the catalogue cannot be written. Later changes are then skipped, except a last one: each
        would wait for the program that holds the catalogue.
        """
        if self.trouble and not is_last:
            return False
        try:
            change(self._catalogue)
        except (CatalogueBusy, CatalogueUnusable) as error:
            self.give_up(error)
            return False
        return True

    def give_up(self, error: OperatorError) -> None:
        """Reports that the catalogue cannot be written; it is not written from now on."""
        log.info("%s", error)
        if self.trouble is None:
            self.trouble = error
            if isinstance(error, CatalogueBusy):
                self._catalogue.wait_at_most(_PATIENCE)
            self._report(f"{error.message}; the pool's own records are complete, and the next run corrects it ({error.hint})")
