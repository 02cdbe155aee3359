"""What the configuration says in [web], as programs of root have written it down for the dashboard."""

import logging

from btrkeep.catalogue import Catalogue
from btrkeep.config import Published, published, state_of
from btrkeep.errors import OperatorError
from web.cli.chosen import GlobalOptions

log = logging.getLogger("btrkeep.web")


def published_of(chosen: GlobalOptions) -> Published:
    """The dashboard starts without it too, and says on each page what is missing."""
    try:
        with Catalogue.open_readonly(chosen.state or state_of(chosen.pool)) as catalogue:
            return published(catalogue, chosen.pool)
    except OperatorError as error:
        log.warning("%s: what [web] says is not known, so it is as by default", error.message)
        return Published(chosen.pool)
