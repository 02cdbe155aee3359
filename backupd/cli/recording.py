"""Records what a user did with a command in the pool's record of actions."""

from datetime import datetime

from backupd.repo.actions_log import UserAction, record_action
from btrkeep.cli.output import print_wrapped
from btrkeep.config import Config
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import Pool, PoolMissing, open_pool
from btrkeep.process.proc import is_automatic, login_name


def record(
    pool: Pool, now: datetime, action: str, host: str | None, backup: str | None = None, why: str = "", who: str = ""
) -> None:
    """Records the action; a failure becomes a note on standard error. `who`: the user of the dashboard for whom a job does it."""
    if failure := record_action(pool, UserAction(now.replace(microsecond=0), action, _by(who), host, backup, why)):
        print_wrapped(f"note: this {action} could not be recorded: {failure}", err=True)


def record_change(config: Config, now: datetime, action: str, host: str | None, why: str = "") -> None:
    """Records a change of the configuration, unless there is no pool yet."""
    try:
        pool = open_pool(config.pool.path)
    except PoolMissing:
        return
    except (OperatorError, OSError) as error:
        print_wrapped(f"note: this {action} could not be recorded: {error}", err=True)
        return
    record(pool, now, action, host, why=why)


def _by(who: str) -> str:
    if not who:
        return login_name()
    login = login_name()
    return f"{who} (dashboard)" if is_automatic() or login == "root" else f"{who} (dashboard), job started by {login}"
