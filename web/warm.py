"""Prepares slow parts before the first visitor needs them: compiles templates, and computes the overview's data of months."""

import logging

from flask import Flask

from btrkeep.errors import OperatorError
from btrkeep.serving.viewer import Viewer
from web.data.overview import overview
from web.pages.overview import space_chart
from web.source import context_of

log = logging.getLogger(__name__)


def warm(app: Flask) -> None:
    """Makes the templates and the first page's data, which takes about a second, while the first requests are answered.

    Without a catalogue it makes the templates alone.
    """
    for name in app.jinja_env.list_templates():
        app.jinja_env.get_template(name)
    source = context_of(app)
    try:
        overview(source, Viewer("btrkeep-web", "viewer"))
        space_chart(source)
    except OperatorError as error:
        log.debug("nothing is known before the first request: %s", error.message)
    finally:
        source.close()
