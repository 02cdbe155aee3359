"""The part of the catalogue that btrfs-balancer uses: how free space went, what was balanced and what that took."""

from datetime import datetime
from typing import Unpack

from btrkeep.catalogue import balances, scores
from btrkeep.catalogue.model_balance import Balance, BalanceFields, BalanceStep, FreeSpaceScore
from btrkeep.catalogue.opened import OpenCatalogue


class BalancingCatalogue(OpenCatalogue):
    """Each method that changes rows does so in one transaction. Filesystems are named by their UUID."""

    def add_score(self, score: FreeSpaceScore) -> int:
        """Keep one look at free space; its id."""
        with self._writing() as session:
            return scores.add(session, score)

    def scores(self, filesystem: str, since: datetime | None = None) -> list[FreeSpaceScore]:
        """The looks at a filesystem, all or those taken at `since` or later, oldest first."""
        return scores.of(self._reader, filesystem, since)

    def start_balance(
        self,
        filesystem: str,
        mountpoint: str,
        started: datetime,
        pid: int,
        pid_started: str | None,
        *,
        policy: str,
        budget: int | None,
        **fields: Unpack[BalanceFields],
    ) -> int:
        """A run of balances begins; its id. All counts are 0 and all else unknown unless given."""
        given = {"filesystem": filesystem, "mountpoint": mountpoint, "policy": policy, "budget": budget}
        with self._writing() as session:
            return balances.start(session, {**given, "started": started, "pid": pid, "pid_started": pid_started}, fields)

    def update_balance(self, balance_id: int, /, **fields: Unpack[BalanceFields]) -> None:
        """Change fields of a run. Raises KeyError when there is none of that id."""
        with self._writing() as session:
            balances.update_fields(session, balance_id, fields)

    def finish_balance(self, balance_id: int, /, **fields: Unpack[BalanceFields]) -> None:
        """The run ends: `finished` and `outcome` are needed, and nothing is `current` any more. Raises KeyError."""
        with self._writing() as session:
            balances.finish(session, balance_id, fields)

    def add_step(self, step: BalanceStep, /, **fields: Unpack[BalanceFields]) -> None:
        """Keep one block group of a run, and change the run's fields (its sums, say) together with it."""
        with self._writing() as session:
            balances.add_step(session, step)
            balances.update_fields(session, step.balance, fields)

    def balances(self, filesystem: str, limit: int | None = 20, since: datetime | None = None) -> list[Balance]:
        """The last `limit` runs on a filesystem, newest first; None: all. With `since` those that started then or later."""
        return balances.newest(self._reader, filesystem, limit, since)

    def unfinished_balances(self) -> list[Balance]:
        """Runs on any filesystem without an end, oldest first: running now, or killed; their `pid` and `pid_started` tell."""
        return balances.unfinished(self._reader)

    def steps(self, balance_id: int) -> list[BalanceStep]:
        """The block groups of a run, in their order."""
        return balances.steps(self._reader, balance_id)

    def measured(self, filesystem: str, limit: int = 200) -> list[BalanceStep]:
        """The last block groups that were relocated on a filesystem, newest first: what an estimate can learn from."""
        return balances.measured(self._reader, filesystem, limit)
