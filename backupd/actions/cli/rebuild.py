"""`backupd rebuild`: rebuilds the catalogue from the pool."""

from pathlib import Path

import click

from backupd.cli.command_context import clock_for, load_config, pass_context
from backupd.expire.trust import check_trust
from backupd.proof.damaged_files import recorded_damage
from backupd.repo.history_copy import RestoredHistory, restore_history
from backupd.repo.pool_context import open_configured, require_writable
from backupd.repo.pool_files import hosts_of, names_of
from backupd.repo.publish import publish_copies, publish_to_dashboard
from backupd.repo.reconcile import all_rows, check_seals, point_all, reconcile
from backupd.repo.verification_files import enter_damages, recall_verifications
from btrkeep.catalogue import WHOLE, Catalogue, CatalogueDamaged, Damage
from btrkeep.catalogue.history import COLUMNS
from btrkeep.cli import json_option, print_answer
from btrkeep.clock import Clock
from btrkeep.errors import Exit
from btrkeep.pool.locks import NIGHT_LOCK, take_lock
from btrkeep.pool.marker import Pool
from btrkeep.units import counted, format_time, printable


class _ForeignCatalogue(Exception):
    """The catalogue belongs to another pool, whose backups may be on a disk that is not mounted now."""


@click.command("rebuild")
@json_option
@pass_context
def command(ctx: click.Context, as_json: bool) -> int:
    """Rebuild the catalogue from the pool's own records.

    No backup, acceptance or hold is lost with the catalogue. The history (runs, deletions, balances, scores, samples, alarms) is
    restored from the copy in the pool, which is at most a day old. A damaged catalogue, or that of another pool, is renamed
    when the new one is complete.
    """
    config = load_config(ctx)
    pool = open_configured(config)
    require_writable(pool)
    clock = clock_for(ctx, pool)
    since = format_time(clock.now())
    problems: list[str] = []
    with take_lock(pool.locks / NIGHT_LOCK, "backupd rebuild", since):
        aside: list[Path] = []
        try:
            with Catalogue.open(config.pool.state) as catalogue:
                catalogue.require_integrity()
                if catalogue.pool_id() not in (None, pool.id):
                    raise _ForeignCatalogue
                filled = _fill(pool, catalogue, clock, problems)
                publish_to_dashboard(config, pool, catalogue, clock)
        except (CatalogueDamaged, _ForeignCatalogue):
            problems.clear()
            with Catalogue.rebuilt(config.pool.state) as (catalogue, aside):
                filled = _fill(pool, catalogue, clock, problems)
                publish_to_dashboard(config, pool, catalogue, clock)
    count, locked, history = filled
    answer = {
        "backups": count,
        "trouble": problems,
        "locked": locked,
        "set_aside": str(aside[0]) if aside else None,
        "history": {
            "written": history.written,
            "rows": {table: history.counts.get(table, 0) for table in COLUMNS},
            "passed_over": history.passed_over,
            "trouble": history.problem or None,
        },
    }
    text = [
        *(f"the old catalogue could not be used, and was renamed to {path}" for path in aside[:1]),
        *(f"skipped: {printable(line)}" for line in problems),
        *(f"{printable(host)} is in use: the next run or expiry updates its entries" for host in locked),
        *([printable(str(history))] if history else []),
        f"the catalogue now has {counted(count, 'backup')}",
    ]
    print_answer(answer, text, as_json=as_json)
    return Exit.ATTENTION if problems or history.problem else Exit.OK


def _fill(pool: Pool, catalogue: Catalogue, clock: Clock, problems: list[str]) -> tuple[int, list[str], RestoredHistory]:
    """Returns the number of backups, the locked hosts, and the restored parts of the history."""
    if clock.is_pool_time(rehearsal=pool.rehearsal):
        catalogue.know_since(clock.now())
    check_seals(pool, catalogue, format_time(clock.now()))  # its rows have the seals that a damaged seals.json has lost
    unread: list[tuple[str, str]] = []
    count = catalogue.replace_backups(pool.id, all_rows(pool, problems, unread))
    since_then = reconcile(pool, catalogue, format_time(clock.now()))  # a hold may have been set after its host was read
    problems += [text for text in since_then.problems if text not in problems]
    point_all(pool, format_time(clock.now()))
    for host in hosts_of(pool):
        recall_verifications(pool, catalogue, host, names_of(pool, host), recorded_damage)  # a record may name deleted backups
    for host, name in unread:  # it has no row: `backupd damaged` and the other pools list it
        if not catalogue.damages(host, name):
            enter_damages(pool, catalogue, [host], [Damage(host, name, WHOLE, 0, 0, "verify", clock.now())])
    history = restore_history(pool, catalogue)
    publish_copies(pool, catalogue)
    check_trust(pool, catalogue, clock.now())
    return count, since_then.locked, history
