"""The doctor: faults and slow parts of the pool, and how to repair them. Asked on request, and cached."""

from flask import Blueprint, redirect, render_template, url_for
from werkzeug.wrappers import Response

from web.access import needs_all_hosts
from web.data.doctor import GRADES, examination
from web.service_client import answers

blueprint = Blueprint("doctor", __name__, url_prefix="/doctor")
_VERB = "doctor"


@blueprint.get("")
@needs_all_hosts
def index() -> str:
    """Shows the findings of the last examination."""
    last = answers().last(_VERB)
    found = examination(last.said, last.at) if last and last.said is not None else None
    return render_template("doctor/doctor.html", found=found, last=last, grades=GRADES)


@blueprint.post("")
@needs_all_hosts
def look() -> Response:
    """Starts an examination, which takes a second or two."""
    answers().ask(_VERB)
    return redirect(url_for(".index"), 303)
