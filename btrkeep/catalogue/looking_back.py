"""The part of the catalogue that pages ask: what ran in the past, by whatever one looks for."""

from collections.abc import Sequence
from datetime import datetime

from btrkeep.catalogue import past
from btrkeep.catalogue.model import Expiry, Run
from btrkeep.catalogue.model_balance import Balance, BalanceStep
from btrkeep.catalogue.model_past import Night, PastRuns, SampleMark
from btrkeep.catalogue.model_sample import Sample
from btrkeep.catalogue.opened import OpenCatalogue

_AMONG = 100_000


class PastCatalogue(OpenCatalogue):
    """It only reads."""

    def nights(self, among: int = _AMONG) -> list[Night]:
        """The nights among so many of the last runs of hosts, newest first; without one that may have begun before these."""
        return past.nights(self._reader, among)

    def night(self, first_run: int) -> Night | None:
        """The night that began with this run, None when it began none."""
        return past.night(self._reader, first_run)

    def sample_marks(self, filesystem: str, since: datetime, until: datetime) -> list[SampleMark]:
        """Of all samples from `since` on and before `until`, oldest first: what it takes to choose some of them."""
        return past.sample_marks(self._reader, filesystem, since, until)

    def samples_by_id(self, ids: Sequence[int]) -> list[Sample]:
        """Those of these ids, oldest first."""
        return past.samples_by_id(self._reader, ids)

    def past_runs(self, wanted: PastRuns, limit: int = 50) -> list[Run]:
        """The last runs of hosts that are wanted, newest first."""
        return past.of(self._reader, wanted, limit)

    def one_run(self, run_id: int) -> Run | None:
        """The run of a host of that id, None when there is none."""
        return past.one_run(self._reader, run_id)

    def one_expiry(self, expiry_id: int) -> Expiry | None:
        """The run of `expire` of that id, None when there is none."""
        return past.one_expiry(self._reader, expiry_id)

    def one_balance(self, balance_id: int) -> Balance | None:
        """The run of balance of that id, None when there is none."""
        return past.one_balance(self._reader, balance_id)

    def moves_of(self, filesystem: str, vaddr: int, limit: int = 20) -> list[BalanceStep]:
        """The last steps of balances that were about the block group at this address, newest first."""
        return past.moves_of(self._reader, filesystem, vaddr, limit)
