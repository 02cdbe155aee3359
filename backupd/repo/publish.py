"""Publishes the harmless part of the configuration to the catalogue, for the dashboard; called by programs that run as root."""

import json
import logging
from collections.abc import Collection

from backupd.repo.backup_json import UnreadableRecord
from backupd.repo.common_backups import common_of_all, copied_text, last_fetches_by_replica
from backupd.repo.notes_json import read_notes
from backupd.repo.pool_files import NOT_UNDERSTOOD, hosts_of
from btrkeep.catalogue import Catalogue, CatalogueBusy, CatalogueUnusable
from btrkeep.clock import Clock
from btrkeep.config import Config, publish, renew_state_link
from btrkeep.config.published import ALIVE
from btrkeep.decisions.copy_status import COPIED, COPIES, KnownCopies, copies_of, copies_text
from btrkeep.pool import qgroups
from btrkeep.pool.marker import Pool
from btrkeep.units import printable

_log = logging.getLogger(__name__)


def publish_to_dashboard(config: Config, pool: Pool, catalogue: Catalogue, clock: Clock) -> None:
    """Publishes changes of the configuration, and the location of the state folder. Never fails; the next command tries again.

    Hosts that were not published before are recorded as existing from now.
    """
    now = clock.now() if clock.is_pool_time(rehearsal=pool.rehearsal) else None
    try:
        publish(config, catalogue, rehearsal=pool.rehearsal, filesystem=pool.filesystem, now=now)
        renew_state_link(config)
    except (CatalogueBusy, CatalogueUnusable) as error:
        _log.info("%s", printable(error.message))
    except OSError as error:
        _log.info("could not record the location of %s for the dashboard: %s", printable(str(config.pool.state)), error.strerror)


def publish_referenced_bytes(pool: Pool, catalogue: Catalogue) -> None:
    """Publishes the number of bytes that each host wrote and that still exist, because the dashboard cannot read it. Raises
    OSError, CatalogueBusy.
    """
    sizes = qgroups.live_bytes(pool)
    text = json.dumps(sizes, separators=(",", ":"), sort_keys=True) if sizes else None
    if text != catalogue.get_fact(ALIVE):
        catalogue.set_fact(ALIVE, text)


def publish_copies(pool: Pool, catalogue: Catalogue) -> None:
    """Publishes which hosts are copies, and the backups that replicas share with this pool. Raises OSError, CatalogueBusy.

    What cannot be read remains as published before; expiry reports it.
    """
    before = catalogue.get_fact(COPIES)
    try:
        copies = known_copies(pool, copies_of(before))
    except UnreadableRecord as error:
        _log.info("%s", printable(error.message))
        return
    text = copies_text(copies) if copies.common else None
    if text != before:
        catalogue.set_fact(COPIES, text)
    for replica in copies.common:
        _publish_copied(pool, catalogue, replica)


def known_copies(pool: Pool, before: KnownCopies) -> KnownCopies:
    """Returns these facts as the pool has them. `before`: as published, for hosts whose notes cannot be read.

    Raises UnreadableRecord, OSError.
    """
    common = common_of_all(pool)
    replicas = {host: _fetched_by(pool, host, before) for host in hosts_of(pool)} if common else {}
    return KnownCopies({host: replica for host, replica in replicas.items() if replica}, common, last_fetches_by_replica(pool))


def fetched_hosts(pool: Pool, catalogue: Catalogue, hosts: Collection[str]) -> dict[str, str]:
    """Returns the hosts that this pool fetches from another one, with the name of the replica that fetches each.

    A copy that is not published yet is recognised later, when its host is handled.
    """
    before = copies_of(catalogue.get_fact(COPIES))
    replicas = {host: _fetched_by(pool, host, before) for host in before.fetched.keys() & hosts}
    return {host: replica for host, replica in replicas.items() if replica}


def _publish_copied(pool: Pool, catalogue: Catalogue, replica: str) -> None:
    try:
        text = copied_text(pool, replica)
    except (OSError, *NOT_UNDERSTOOD) as error:
        _log.info("%s: %s", replica, printable(str(error)))
        return
    if text != catalogue.get_fact(COPIED + replica):
        catalogue.set_fact(COPIED + replica, text)


def _fetched_by(pool: Pool, host: str, before: KnownCopies) -> str | None:
    """The replica that fetches the host; None for a host that is backed up here. An error in the notes of one host affects no other
    host.
    """
    try:
        mark = read_notes(pool.host(host)).replica
    except UnreadableRecord as error:
        _log.info("%s", printable(error.message))
        return before.fetched.get(host)
    return str(mark.get("name")) if mark else None
