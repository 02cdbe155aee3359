"""Shared by `replicate` and `offsite`: which configured copies are selected, whether one is due, and the words for its end."""

from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

from backupd.repo.pool_context import PoolContext
from btrkeep.cli import print_error
from btrkeep.cli.output import print_wrapped
from btrkeep.config.config_model import OffsiteSettings, PushSettings, ReplicaSettings
from btrkeep.decisions.copy_status import OFFSITE, CopyState, age_words, copy_statuses, note_failure, read_session
from btrkeep.decisions.due import is_due, window_end
from btrkeep.errors import OperatorError, UsageError, did_you_mean
from btrkeep.units import counted, printable

Copy = ReplicaSettings | PushSettings | OffsiteSettings
CopyT = TypeVar("CopyT", bound=Copy)


def chosen_copies(
    context: PoolContext, kind: str, configured: Mapping[str, CopyT], name: str | None, *, is_asked: bool
) -> list[CopyT]:
    """Returns the copy with that name, or all copies. Raises UsageError for an unknown name, and with `is_asked` if none is
    configured.
    """
    kind_words = "offsite repository" if kind == OFFSITE else kind
    if fault := excluded_fault(context, name):
        raise UsageError(f"{kind_words} {printable(str(name))} is skipped: {fault}", "correct that line of the configuration")
    if name is not None and name not in configured:
        hint = did_you_mean(name, configured, f"add [{kind}.{name}] to {context.config.file}")
        raise UsageError(f"no {kind_words} {printable(name)} is configured", hint)
    if not configured and is_asked and context.config.excluded_copies:
        hint = "correct the lines of the configuration named above: sections with mistakes are skipped"
        raise UsageError(f"no {kind_words} can be used", hint)
    if not configured and is_asked:
        raise UsageError(
            f"no {kind_words} is configured", f"add [{kind}.NAME] to {context.config.file}; `man btrkeep.toml` explains it"
        )
    return [configured[name]] if name is not None else list(configured.values())


def excluded_fault(context: PoolContext, name: str | None) -> str:
    """Returns the mistake because of which the copy with that name is skipped; "" for any other name."""
    return context.config.excluded_copies.get(name, "") if name is not None else ""


def is_copy_due(context: PoolContext, copy: Copy) -> bool:
    """Returns True if the copy was not updated in the current period and its window is open."""
    now, zone = context.clock.now(), context.config.pool.zone
    if copy.window and not window_end(copy.window, zone, now):
        return False
    session = read_session(context.catalogue, copy.name, copy.kind)
    whole = session.at if session and not session.behind and not session.error else None
    return is_due(whole, copy.every, copy.window, zone, now).due


def closing_time(context: PoolContext, copy: Copy) -> datetime | None:
    """Returns when the window of the copy closes; None without a window."""
    return window_end(copy.window, context.config.pool.zone, context.clock.now()) if copy.window else None


def report_unreached(context: PoolContext, copy: Copy, error: OperatorError, *, is_away: bool = False, dry_run: bool) -> bool:
    """Records and reports that the other server could not be reached. `is_away`: its pool is not there.

    Returns False if that is not a failure yet: a pool on a removable disk may be away until the copy is late.
    """
    now = context.clock.now()
    if not dry_run:
        note_failure(context.catalogue, copy.name, now, error.message, copy.kind, away=is_away)
    (status,) = copy_statuses({copy.name: copy}, context.catalogue, now)
    if is_away and status.state in (CopyState.OK, CopyState.LATE):
        print_wrapped(f"{copy.name}: {error.message}: not reachable now", err=True)
        return False
    print_error(OperatorError(f"{copy.name}: {error.message.rstrip('.')}; {age_words(copy.kind, status.age)}", error.hint))
    return True


def left_words(left: int, *, out_of_time: bool) -> str:
    """Formats the number of backups that remain for the next run; "" for none."""
    return f"; {counted(left, 'backup')} for the next run{', because the window has ended' if out_of_time else ''}" if left else ""
