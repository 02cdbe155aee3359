"""The doctor: faults and slow parts of the pool, from the root service on request, and how to repair them; cached."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flask import Blueprint, redirect, render_template, url_for
from werkzeug.wrappers import Response

from web.api import STATE, ApiRequest, Endpoint
from web.service_client import answers, root_service
from web.source import needs_all_hosts

GRADES = ("error", "warning", "note")
"""The worst first. An error needs action now, a warning soon, a note may remain."""


@dataclass(frozen=True, slots=True)
class FindingView:
    """A problem, or something that makes the pool slow."""

    name: str
    """The check that found it."""
    grade: str
    """error, warning or note."""
    what: str
    """What was found."""
    why: str
    """Its consequences."""
    risk: str
    """What may go wrong with the commands; "": nothing."""
    commands: tuple[str, ...]
    """Lines for a shell that repair it."""
    fixable: bool
    """Whether `backupd doctor --fix NAME` repairs it."""
    unmounted: bool
    """Whether the commands need the filesystem unmounted."""


@dataclass(frozen=True, slots=True)
class UnlookedView:
    """A check that could not be made."""

    name: str
    """Its name."""
    why: str
    """Why not."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of `backupd doctor`."""

    looked: datetime
    """When it was run."""
    filesystem: str
    """The UUID."""
    findings: tuple[FindingView, ...]
    """The worst first."""
    checks: int
    """Number of checks."""
    well: tuple[str, ...]
    """Names of the checks that found nothing."""
    not_looked_at: tuple[UnlookedView, ...] = ()
    """Checks that could not be made."""

    @property
    def grade(self) -> str:
        """Returns the grade of the worst finding; without findings it is well, or unknown if a check could not be made."""
        return self.findings[0].grade if self.findings else "unknown" if self.not_looked_at else "well"

    def count(self, grade: str) -> int:
        """Returns the number of findings with that grade."""
        return sum(finding.grade == grade for finding in self.findings)


def examination(answer: Mapping[str, Any], looked: datetime) -> Examination:
    """Parses the output of `backupd doctor --json`, or the answer to the verb of that name."""
    findings = tuple(sorted(map(_finding, answer.get("findings", ())), key=lambda finding_view: GRADES.index(finding_view.grade)))
    names = {finding.name for finding in findings}
    unlooked = tuple(
        UnlookedView(str(unlooked_check.get("name", "")), str(unlooked_check.get("why", "")))
        for unlooked_check in answer.get("not_looked_at", ())
    )
    blind = {unlooked_view.name for unlooked_view in unlooked}
    checks = [str(name) for name in answer.get("checks", ())]
    well = tuple(name for name in checks if name not in names | blind)
    return Examination(looked, str(answer.get("filesystem", "")), findings, len(checks), well, unlooked)


def _finding(fields: Mapping[str, Any]) -> FindingView:
    name, grade, problem, why, risk = (str(fields.get(key, "")) for key in ("name", "severity", "what", "why", "risk"))
    commands = tuple(map(str, fields.get("commands", ())))
    known_grade = grade if grade in GRADES else GRADES[-1]
    return FindingView(name, known_grade, problem, why, risk, commands, bool(fields.get("fixable")), bool(fields.get("unmounted")))


blueprint = Blueprint("doctor", __name__, url_prefix="/doctor")
_VERB = "doctor"


@blueprint.get("")
@needs_all_hosts
def index() -> str:
    """Shows the findings of the last examination."""
    last = answers().last(_VERB)
    current = examination(last.content, last.at) if last and last.content is not None else None
    return render_template("doctor/doctor.html", report=current, last=last, grades=GRADES)


@blueprint.post("")
@needs_all_hosts
def look() -> Response:
    """Starts an examination, which takes a second or two."""
    answers().ask(_VERB)
    return redirect(url_for(".index"), 303)


def doctor(asked: ApiRequest) -> Examination:
    """Returns the present findings of the root service."""
    return examination(root_service().ask("doctor"), asked.source.now)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/doctor",
        "doctor",
        STATE,
        "Problems of the pool that the doctor finds",
        Examination,
        doctor,
        pool_wide=True,
        needs_root_service=True,
    ),
)
