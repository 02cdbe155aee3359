"""Pictures as answers: kept by the browser as long as they are what they were."""

from collections.abc import Callable
from hashlib import blake2b

from flask import Response, abort, request

from btrkeep.errors import OperatorError
from web.charts.heat import Painter
from web.charts.svg import ChartStyle, look_of
from web.data.heat import DrawingRequest, Gallery, Recorded


def svg(draw: Callable[[ChartStyle], bytes]) -> Response:
    """A chart, on the ground and as wide as the request asks for."""
    return revalidated(draw(look_of(request.args)), "image/svg+xml")


def picture(painter: Painter, gallery: Gallery, one: Recorded, wish: DrawingRequest) -> Response:
    """A recorded state, drawn. 404 where it cannot be drawn so: it may have no scores, or be gone."""
    try:
        return revalidated(painter.png(gallery, one, wish), "image/png")
    except OperatorError as error:
        abort(404, f"{error.message}; {error.hint}")


def revalidated(data: bytes, kind: str) -> Response:
    """The browser asks each time whether it is still the same, and gets it only when it is not."""
    answer = Response(data, mimetype=kind)
    answer.headers["Cache-Control"] = "private, no-cache"
    answer.set_etag(blake2b(data, digest_size=12).hexdigest())
    answer.make_conditional(request)  # in place
    return answer
