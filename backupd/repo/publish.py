"""What the dashboard may know of the configuration, written into the catalogue by whoever has read it as root."""

import json
import logging

from backupd.repo.backup_json import UnreadableRecord
from backupd.repo.common import common_of_all
from backupd.repo.listing import hosts_of
from backupd.repo.notes_json import read_notes
from btrkeep.catalogue import Catalogue, CatalogueBusy, CatalogueUnusable
from btrkeep.clock import Clock
from btrkeep.config import Config, point, publish
from btrkeep.config.published import ALIVE
from btrkeep.decisions.copies import COPIES, KnownCopies, copies_text
from btrkeep.pool import quota
from btrkeep.pool.marker import Pool
from btrkeep.units import printable

_log = logging.getLogger(__name__)


def tell_dashboard(config: Config, pool: Pool, catalogue: Catalogue, clock: Clock) -> None:
    """Publish what has changed, and say where it is found. What does not succeed the next command does: nobody fails for that.

    Hosts that were not published before are there since now.
    """
    now = clock.now() if clock.tells_nights(rehearsal=pool.rehearsal) else None
    try:
        publish(config, catalogue, rehearsal=pool.rehearsal, filesystem=pool.filesystem, now=now)
        point(config)
    except (CatalogueBusy, CatalogueUnusable) as error:
        _log.info("%s", printable(error.message))
    except OSError as error:
        _log.info("the dashboard is not told where %s is: %s", printable(str(config.pool.state)), error.strerror)


def tell_alive(pool: Pool, catalogue: Catalogue) -> None:
    """Publish what each host wrote and is still alive, which the dashboard cannot see. Raises OSError, CatalogueBusy."""
    found = quota.alive(pool)
    text = json.dumps(found, separators=(",", ":"), sort_keys=True) if found else None
    if text != catalogue.get_fact(ALIVE):
        catalogue.set_fact(ALIVE, text)


def tell_copies(pool: Pool, catalogue: Catalogue) -> None:
    """Publish which hosts are copies, and what replicas have in common with this pool. Raises OSError, CatalogueBusy.

    What cannot be read stays as it was published: expiry says so.
    """
    try:
        common = common_of_all(pool)
        marks = {host: read_notes(pool.host(host)).replica for host in hosts_of(pool)} if common else {}
    except UnreadableRecord as error:
        _log.info("%s", printable(error.message))
        return
    fetched = {host: str(mark.get("name")) for host, mark in marks.items() if mark}
    text = copies_text(KnownCopies(fetched, common)) if common else None
    if text != catalogue.get_fact(COPIES):
        catalogue.set_fact(COPIES, text)
