"""Which commands outlive a state folder that stops answering while they work; see docs/decisions/0077."""

import click

from btrkeep.config import Config
from btrkeep.process.outliving import StorageHung, outlive

REPORTING = frozenset(("status", "check", "notify", "metrics"))
"""They go on without the catalogue, so the fault is reported at once."""
SHOWING = frozenset(("list", "log", "doctor", "day", "trend", "forecast"))
"""They end with an error."""
WORKING = frozenset(("run", "run-job", "expire", "sample"))
"""The same, but later: they may rightly wait for a server that is started again."""
WORK_PATIENCE = 600.0  # seconds
_DONE = "btrkeep.outlives"


def outlive_hung_state(ctx: click.Context, config: Config) -> None:
    """Goes on in a child if this is one of these commands and the state folder is remote. Raises StorageHung, in the parent."""
    name, meta = ctx.info_name, ctx.find_root().meta
    is_working = name in WORKING
    if meta.get(_DONE) or not (is_working or name in REPORTING or (name in SHOWING and not ctx.params.get("name"))):
        return
    meta[_DONE] = True
    try:
        outlive(config.pool.state, WORK_PATIENCE if is_working else 0, keeps_output=not is_working)
    except StorageHung:
        if name not in REPORTING:
            raise
