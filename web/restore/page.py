"""Restore to a host: choose paths and a destination, see what would happen, confirm. The restore is a job of the root service.

Every form contains all values, so nothing is stored between the steps and several restores may be prepared at the same time.
"""

from collections.abc import Callable

from flask import Blueprint, abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from btrkeep.errors import OperatorError
from btrkeep.serving.client import Absent
from web.files.data import Which, browse, choices
from web.files.page import MOST_PATHS, PageLinks, add_handlers
from web.filters import backupd
from web.request_values import paths_of_form, paths_of_request, which_of_request
from web.restore import data
from web.restore.data import OVERWRITE, RestoreForm
from web.service_client import root_service
from web.source import operator_only, require_folder_right, require_visible_host, source, viewer

blueprint = Blueprint("restore", __name__)
add_handlers(blueprint)

_LONGEST_FOLDER = 900
Page = str | Response | tuple[str, int]


@blueprint.get("/restore/<host>")
@operator_only
def form(host: str) -> Page:
    """Shows the form for the paths in the query."""
    return _form(_wish(require_visible_host(host), paths_of_request()))


@blueprint.post("/restore/<host>")
@operator_only
def choose(host: str) -> Page:
    """Shows the form for the paths chosen in a folder; for the folder if none was chosen. Also used for the way back from a
    preview.
    """
    return _form(_wish(require_visible_host(host), paths_of_form() or paths_of_form("folder")))


@blueprint.post("/restore/<host>/preview")
@operator_only
def preview(host: str) -> Page:
    """Shows the effect of the restore; redirects to a page that waits for it if that takes long."""

    def previewed(wish: RestoreForm) -> Page:
        result = data.preview(root_service(), wish)
        if isinstance(result, str):
            return redirect(url_for("restore.look", host=host, job=result), 303)
        return _shown(data.PreviewState(wish, True, preview=result))

    return _answer_form(host, previewed)


@blueprint.get("/restore/<host>/preview/<job>")
@operator_only
def look(host: str, job: str) -> Page:
    """Shows the effect of the restore when it is known."""
    preview_state = data.read_preview(root_service(), job) if require_visible_host(host) else None
    if preview_state is None or preview_state.wish.host != host:
        abort(404, "there is no such preview")
    if "X-Wait" in request.headers:  # sent by the page's script, which checks whether to reload the page
        return "", 204 if preview_state.over else 202
    return _shown(preview_state)


@blueprint.get("/restore/<host>/key/<job>")
@operator_only
def key(host: str, job: str) -> Page:
    """Shows whether the host allows the restore, when it is known."""
    check = data.read_check(root_service(), job) if require_visible_host(host) else None
    if check is None or check.host != host:
        abort(404, "there is no such check")
    template = "restore/key.html" if "X-Live" in request.headers else "restore/key_page.html"
    return render_template(template, at=PageLinks(host), check=check, hand=_by_hand(host))


@blueprint.post("/restore/<host>/start")
@operator_only
def start(host: str) -> Page:
    """Starts the restore, and redirects to its job."""
    return _answer_form(host, lambda wish: redirect(url_for("jobs.job", job=data.start(root_service(), wish)), 303))


def _answer_form(host: str, answer: Callable[[RestoreForm], Page]) -> Page:
    """Answers the submitted form; shows it again if it is invalid or was refused."""
    form = _wish(require_visible_host(host), paths_of_form())
    if problem := _problem(form.folder):
        return _form(form, problem), 400
    try:
        return answer(form)
    except Absent:
        raise
    except OperatorError as error:
        return _form(form, error.message, error.hint), 409


def _wish(host: str, paths: list[bytes]) -> RestoreForm:
    """Parses the fields of the request. Resolves the backup to a name, so that a newer "latest" does not change it."""
    if not paths:
        abort(400, "choose a path")
    if len(paths) > MOST_PATHS:
        abort(400, f"more than {MOST_PATHS:,} paths are chosen: choose their folder instead")
    overwrite = request.values.get("overwrite")
    if overwrite not in (None, *OVERWRITE):
        abort(400, f"overwrite must be one of: {', '.join(OVERWRITE)}")
    place = request.values.get("place", "original")
    if place not in ("original", "folder", "server"):
        abort(400, "place must be original, folder or server")
    if place == "server" and viewer().limited:
        abort(403, "only users who may see all hosts may restore to the backup server")
    folder = request.values.get("into", "").strip() if place == "folder" else None
    require_folder_right(folder)
    backup = browse(root_service(), host, which_of_request("backup") or "latest", b"/", limit=1).backup.name
    overwrite = overwrite or _usual_overwrite(host, backup)
    return RestoreForm(host, backup, tuple(dict.fromkeys(paths)), folder, overwrite, place == "server")


def _usual_overwrite(host: str, backup: str) -> str:
    """Returns what is preselected: from the newest backup missing files are restored, from an older one its versions."""
    newest = next((choice.name for choice in _choices(host) if choice.state == "complete"), backup)
    return "never" if backup >= newest else "all"


def _problem(folder: str | None) -> str:
    """Returns why a folder is invalid, in words; "" if it is valid."""
    if folder is None:
        return ""
    if not folder.startswith("/"):
        return "The folder must begin with /, such as /root/restored"
    if not folder.isprintable() or ".." in folder.split("/") or len(folder) > _LONGEST_FOLDER:
        return "The folder must not contain .. or invisible characters, and may have at most 900 characters"
    return ""


def _form(wish: RestoreForm, problem: str = "", hint: str = "") -> str:
    allowed, who, given = data.destinations(root_service()), viewer(), _given(wish)
    return render_template(
        "restore/form.html",
        **given,
        problem=problem,
        hint=hint,
        check=data.start_check(root_service(), wish) if given["hand"] else None,
        may_choose=who.admin and allowed.elsewhere,
        to_server=allowed.server and not who.limited,
    )


def _shown(state: data.PreviewState) -> str:
    return render_template("restore/preview.html", **_given(state.wish), look=state, preview=state.preview)


def _given(wish: RestoreForm) -> dict[str, object]:
    backup = next((choice for choice in _choices(wish.host) if choice.name == wish.backup), None)
    words = {"overwrite_words": OVERWRITE, "zone": source().config.zone}
    return {"at": PageLinks(wish.host, wish.backup), "wish": wish, "backup": backup, "hand": _by_hand(wish.host, wish), **words}


def _choices(host: str) -> tuple[Which, ...]:
    return choices(source().catalogue.backups(host), source().now)


def _by_hand(host: str, wish: RestoreForm | None = None) -> data.ByHand | None:
    """Returns what an administrator types; None for a host without an address."""
    configured = source().config.hosts.get(host)
    if not configured or not configured.address:
        return None
    return data.by_hand(wish or RestoreForm(host, "latest", ()), configured.address, backupd())
