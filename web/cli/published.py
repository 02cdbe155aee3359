"""The [web] section of the configuration, as programs of root have published it for the dashboard."""

import logging

from btrkeep.catalogue import Catalogue
from btrkeep.config import Published, published, state_of
from btrkeep.errors import OperatorError
from web.settings import GlobalOptions

log = logging.getLogger("btrkeep.web")


def published_of(chosen: GlobalOptions) -> Published:
    """Returns the published configuration. The dashboard also starts without it, and each page then shows the reason."""
    try:
        with Catalogue.open_copy(chosen.state or state_of(chosen.pool)) as catalogue:
            return published(catalogue, chosen.pool)
    except OperatorError as error:
        log.warning("%s: could not read [web]; using the defaults", error.message)
        return Published(chosen.pool)
