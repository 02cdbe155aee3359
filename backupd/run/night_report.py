"""The night as the dead man's switch hears of it: when it begins, and whether it met its goal."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from backupd.alarms.night import NightVerdict, judge_night
from backupd.run.context import RunContext
from btrkeep.config import Config
from btrkeep.decisions.copies import COPIES, copies_of
from btrkeep.decisions.due import latest
from btrkeep.decisions.host_state import host_statuses
from btrkeep.errors import OperatorError

if TYPE_CHECKING:
    from backupd.alarms.ping import Ping


class Reporting:
    """Around a night, outside of its lock: `begin` and `end` are told in the background, and leaving waits for what is on its way.

    A night that began and is left without `end` is reported as one that missed its goal. Nothing is reported of runs of single
    hosts, without a ping in the configuration, and when a rehearsal acts as if it were another time.
    """

    def __init__(self) -> None:
        self._ping: Ping | None = None
        self._ended = False

    def begin(self, context: RunContext) -> None:
        """Reports that the night begins; its lock is held."""
        url = context.config.notify.ping
        if url is None or not context.night or context.clock.start is not None:
            return
        from backupd.alarms.ping import Ping  # only who pings pays for it

        self._ping = Ping(url)
        self._ping.start()

    def end(self, context: RunContext, early: str | None) -> None:
        """Reports that the night is over; `early`: why it ended before all had their turn. The result is judged by the present
        catalogue.
        """
        if self._ping is None:
            return
        verdict = _judge(context, early)
        self._ping.end(met=verdict.met, text=verdict.text)
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ping is None:
            return
        if not self._ended:
            text = error.message if isinstance(error, OperatorError) else "its log says more"
            self._ping.end(met=False, text=f"the night ended with an error: {text}")
        self._ping.wait()


def report_unstarted(config: Config, text: str) -> None:
    """Tells the dead man's switch that a night could not even begin."""
    if config.notify.ping is None:
        return
    from backupd.alarms.ping import Ping

    ping = Ping(config.notify.ping)
    ping.start()
    ping.end(met=False, text=f"the night could not begin: {text}")
    ping.wait()


def _judge(context: RunContext, early: str | None) -> NightVerdict:
    try:
        now = context.clock.now()
        facts = context.catalogue.host_facts(latest(now))
        fetched = copies_of(context.catalogue.get_fact(COPIES)).fetched
    except OperatorError as error:
        return NightVerdict(False, error.message)
    return judge_night(context.config, host_statuses(context.config, facts, fetched, now), early)
