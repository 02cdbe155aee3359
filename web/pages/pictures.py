"""Responses with pictures, which browsers cache as long as the pictures are unchanged."""

from collections.abc import Callable
from hashlib import blake2b

from flask import Response, abort, request

from btrkeep.charts.svg import ChartStyle, look_of
from btrkeep.errors import OperatorError
from web.charts.heat import Painter
from web.data.heat import DrawingRequest, Gallery, Recorded


def svg(draw: Callable[[ChartStyle], bytes]) -> Response:
    """Returns a chart for the background and the width that the request gives."""
    return revalidated(draw(look_of(request.args)), "image/svg+xml")


def picture(painter: Painter, gallery: Gallery, one: Recorded, wish: DrawingRequest) -> Response:
    """Returns a picture of a recorded state. Aborts with 404 if it cannot be drawn: it may have no scores, or be gone."""
    try:
        return revalidated(painter.png(gallery, one, wish), "image/png")
    except OperatorError as error:
        abort(404, f"{error.message}; {error.hint}")


def revalidated(data: bytes, kind: str) -> Response:
    """Adds cache headers: the browser revalidates each time, and downloads the picture only if it has changed."""
    answer = Response(data, mimetype=kind)
    answer.headers["Cache-Control"] = "private, no-cache"
    answer.set_etag(blake2b(data, digest_size=12).hexdigest())
    answer.make_conditional(request)  # in place
    return answer
