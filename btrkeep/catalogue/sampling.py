"""The part of the catalogue that samples are kept in, and what else tells how the pool went."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from btrkeep.catalogue import jobs, samples, scores
from btrkeep.catalogue.model_balance import FreeSpaceScore
from btrkeep.catalogue.model_sample import Job, Sample
from btrkeep.catalogue.opened import OpenCatalogue


class SamplingCatalogue(OpenCatalogue):
    """Each method that changes rows does so in one transaction. Filesystems are named by their UUID."""

    def add_sample(self, filesystem: str, make: Callable[[Sample | None], Sample]) -> Sample:
        """Keep what `make` makes of the newest sample so far, and give it back.

        Within one transaction: of two that sample at the same time one sees the sample of the other, and no write counts twice.
        """
        with self._writing() as session:
            one = make(samples.newest(session, filesystem))
            samples.add(session, one)
        return one

    def newest_sample(self, filesystem: str) -> Sample | None:
        """The one that was kept last; None when there is none."""
        return samples.newest(self._reader, filesystem)

    def oldest_sample(self, filesystem: str, span: str) -> datetime | None:
        """When the oldest of that span was taken; None when there is none."""
        return samples.oldest(self._reader, filesystem, span)

    def samples(
        self, filesystem: str, since: datetime | None = None, until: datetime | None = None, span: str | None = None
    ) -> list[Sample]:
        """Those taken from `since` on and before `until`, oldest first; with `span` only those of it."""
        return samples.of(self._reader, filesystem, since, until, span)

    def replace_samples(self, ids: Sequence[int], by: Iterable[Sample]) -> int:
        """Put these in the place of those, by id; how many of those there were."""
        with self._writing() as session:
            return samples.replace(session, ids, by)

    def newest_score(self, filesystem: str) -> FreeSpaceScore | None:
        """The look at free space that was kept last; None when there is none."""
        return scores.newest(self._reader, filesystem)

    def jobs(self, filesystem: str, start: datetime, end: datetime) -> list[Job]:
        """Backups, expiries and balances that ran at any time from `start` to `end`, oldest first."""
        return jobs.between(self._reader, filesystem, start, end)
