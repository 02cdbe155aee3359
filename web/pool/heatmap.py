"""The heatmap: a recorded state in full size, the addresses in it, its block groups, and all states in succession."""

import gzip

from flask import Blueprint, Response, abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as Redirect

from btrkeep.choices import COLOURS, CURVES
from btrkeep.errors import OperatorError
from heatmap.colourings import ColourKey
from web.pool.page import filesystem, painter, picture, revalidated
from web.pool.pictures import ORDERS as SORTS
from web.pool.pictures import DrawingRequest, Gallery, RecordedState, wish_of
from web.pool.scores import BOUNDS, ORDERS, PAGE, groups, nearest, neighbours, one_group
from web.request_values import number
from web.service_client import root_service
from web.source import needs_all_hosts, source

blueprint = Blueprint("heatmap", __name__, url_prefix="/pool")
_LONGEST = 32 << 20
_RAMP = 24


@blueprint.get("/heatmap")
@needs_all_hosts
def index() -> str:
    """Shows the picture of a moment, with options."""
    return _page("pool/heatmap.html", wish_of(request.args))


@blueprint.get("/timelapse")
@needs_all_hosts
def timelapse() -> str:
    """Shows the pictures of all times in succession, all with the same scale."""
    return _page("pool/timelapse.html", wish_of(request.args, steady=True))


def _page(template: str, wish: DrawingRequest) -> str:
    gallery, place = _chosen()
    recorded = gallery.recorded[place] if place is not None else None
    drawable, problem = _problem(recorded, wish)
    return render_template(
        template,
        gallery=gallery,
        place=place,
        recorded=recorded,
        wish=wish,
        sorts=SORTS,
        curves=CURVES,
        colours=COLOURS,
        key=_swatches(painter().key(recorded, wish)) if recorded and drawable else None,
        drawn=painter().grid(gallery, recorded, wish) if recorded and drawable else None,
        problem=problem,
        state=painter().state(recorded) if recorded else None,
    )


def _chosen() -> tuple[Gallery, int | None]:
    """Returns all states, and the index of the requested one; aborts with 404 if there is none of that time."""
    gallery = painter().states.gallery(source().config.filesystem)
    wanted = request.args.get("picture") or None
    place = gallery.at(wanted)
    if wanted and place is None:
        abort(404, "no state was recorded then, or it was deleted")
    return gallery, place


def _problem(recorded: RecordedState | None, wish: DrawingRequest) -> tuple[bool, str]:
    """Returns whether it can be drawn in this way, and the reason if not."""
    if recorded is None:
        return False, ""
    try:
        painter().key(recorded, wish)
    except OperatorError as error:
        return False, error.message
    return True, ""


def _swatches(key: ColourKey) -> dict[str, object]:
    """Returns the colours of the key for a page: some of the ramp, and the others."""
    steps = [tuple(key.ramp[at * (len(key.ramp) - 1) // (_RAMP - 1)].tolist()) for at in range(_RAMP)] if len(key.ramp) else []
    return {
        "title": key.title,
        "ramp": ["#{:02x}{:02x}{:02x}".format(*rgb) for rgb in steps],
        "ticks": [(round(share, 3), words) for share, words in key.ticks],
        "swatches": [("#{:02x}{:02x}{:02x}".format(*rgb), words) for rgb, words in key.swatches],
    }


@blueprint.get("/heatmap/<id>.png")
@needs_all_hosts
def image(id: str) -> Response:  # noqa: A002  it is called so in the address
    """Returns the picture of a time. `steady=1`: with the scale of all."""
    gallery, recorded = _recorded(id)
    return picture(painter(), gallery, recorded, _wish())


@blueprint.get("/heatmap/<id>.json")
@needs_all_hosts
def map(id: str) -> Response:  # noqa: A001, A002  both are called so
    """Returns the addresses in that picture, as `btrfs-heatmap --map` writes them."""
    gallery, recorded = _recorded(id)
    try:
        data = painter().map(gallery, recorded, _wish())
    except OperatorError as error:
        abort(404, error.message)
    packed = request.accept_encodings["gzip"] > 0
    answer = revalidated(data if packed else gzip.decompress(data), "application/json")
    answer.headers["Vary"] = "Accept-Encoding"
    if packed:
        answer.headers["Content-Encoding"] = "gzip"
    return answer


def _wish() -> DrawingRequest:
    return wish_of(request.args, steady=request.args.get("steady") == "1")


def _recorded(id: str) -> tuple[Gallery, RecordedState]:  # noqa: A002
    gallery = painter().states.gallery(source().config.filesystem)
    place = gallery.at(id)
    if place is None:
        abort(404, "no state was recorded then, or it was deleted")
    return gallery, gallery.recorded[place]


@blueprint.get("/blockgroups")
@needs_all_hosts
def table() -> str:
    """Shows all block groups of a moment."""
    gallery, place = _chosen()
    recorded = gallery.recorded[place] if place is not None else None
    groups_page = (
        groups(painter().state(recorded), request.args.get("order", "score"), number("offset", 0) or 0) if recorded else None
    )
    return render_template(
        "pool/groups.html", recorded=recorded, groups_page=groups_page, orders=ORDERS, page=PAGE, gallery=gallery, place=place
    )


@blueprint.get("/blockgroup")
@needs_all_hosts
def find_group() -> Redirect:
    """Redirects to the block group of an address typed into the form."""
    return redirect(url_for(".group", vaddr=request.args.get("vaddr", "").strip()[:40] or "none"))


@blueprint.get("/blockgroup/<vaddr>")
@needs_all_hosts
def group(vaddr: str) -> str | tuple[str, int]:
    """Shows one block group: its figures, the meaning of its score, its extents as a picture."""
    gallery, place = _chosen()
    address = _address(vaddr)
    if place is None or address is None:
        abort(404, "name a block group by its virtual address, in bytes" if place is not None else "no state was recorded yet")
    recorded = gallery.recorded[place]
    state = painter().state(recorded)
    block_group = one_group(state, address)
    if block_group is None:
        return render_template("pool/no_group.html", address=address, near=nearest(state, address), recorded=recorded), 404
    before, after = neighbours(state, address)
    here, of = source(), filesystem()
    return render_template(
        "pool/group.html",
        group=block_group,
        recorded=recorded,
        is_newest=place == len(gallery.recorded) - 1,
        before=before,
        after=after,
        bounds=BOUNDS,
        curve=wish_of(request.args).curve,
        curves=CURVES,
        moves=here.catalogue.moves_of(of, address),
    )


def _address(text: str) -> int | None:
    """Parses a virtual address in bytes, decimal or 0x...; None if it is invalid."""
    try:
        address = int(text, 16) if text[:2] in ("0x", "0X") else int(text) if text.isascii() and text.isdigit() else -1
    except ValueError:
        return None
    return address if 0 <= address < 1 << 64 else None


@blueprint.get("/blockgroup/<vaddr>/extents.png")
@needs_all_hosts
def extents(vaddr: str) -> Response:
    """Returns a picture of the extents of a block group, as they are now: the root service draws it."""
    address = _address(vaddr)
    if address is None:
        abort(404, "name a block group by its virtual address, in bytes")
    try:
        with root_service().stream("extents", vaddr=address, curve=wish_of(request.args).curve, size=9) as stream:
            parts, size = [], 0
            for part in stream:
                size += len(part)
                if size > _LONGEST:
                    abort(502, "the picture is larger than the limit")
                parts.append(part)
    except OperatorError as error:
        abort(502, f"{error.message}; {error.hint}")
    return revalidated(b"".join(parts), "image/png")
