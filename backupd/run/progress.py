"""Keeps in the catalogue how far the running transfers are, for `status` and the dashboard."""

import asyncio
import logging

from backupd.run.context import RunContext, RunningTransfer
from btrkeep.catalogue import Progress
from btrkeep.errors import OperatorError
from btrkeep.process.proc import start_time

log = logging.getLogger(__name__)

_PAUSE = 2.0


async def keep_progress(context: RunContext) -> None:
    """Writes it again and again, until it is cancelled."""
    while True:
        await asyncio.sleep(_PAUSE)
        try:
            for running in context.running.values():
                context.catalogue.put_progress(_row(context, running))
        except OperatorError as error:  # it is for looking at only; what matters says so itself
            log.warning("progress is not written: %s", error.message)


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
        updated=context.clock.now(),
    )
