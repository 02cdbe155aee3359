"""Proposed changes of the configuration: a form for a host, the list of those that wait, and each with difference and effect.

The root service checks, stores, applies and rejects them; this only shows and asks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from flask import Blueprint, abort, flash, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from btrkeep.config import HostConfig, Retention
from btrkeep.config.config_model import PERIOD_NAMES
from btrkeep.serving.protocol import LONGEST_REASON, RequestRefused
from btrkeep.units import format_duration, parse_time
from web.auth import sessions
from web.service_client import root_service
from web.source import needs_all_hosts, operator_only, require_visible_host, source

blueprint = Blueprint("changes", __name__)
_RULES = tuple(rule.name for rule in fields(Retention))
_PERIODS = {
    **dict(zip(PERIOD_NAMES, ("Days", "Weeks", "Months", "Years"), strict=True)),
    "min_keep": "Newest backups",
    "grace": "Grace",
}
"""The label of each rule."""


@dataclass(frozen=True, slots=True)
class ChangeForm:
    """The texts of the form's fields."""

    host: str
    """The host's name; "": a new one."""
    address: str | None
    """Its address; None: it is this server."""
    group: str
    """The group of a new host."""
    paths: str
    """The source paths, one in each line."""
    exclude: str
    """The exclude patterns, one in each line, inherited ones included."""
    window: str
    """When backups may start; "": at any time."""
    rules: Mapping[str, str]
    """The rules of the retention by name."""
    why: str = ""
    """The reason."""

    @classmethod
    def of(cls, host: HostConfig) -> "ChangeForm":
        """Returns the form with the present settings of a host."""
        rules = {name: str(getattr(host.retention, name)) for name in _RULES if name != "grace"}
        rules["grace"] = format_duration(host.retention.grace)
        window = str(host.window) if host.window else ""
        return cls(host.name, host.address, host.group or "", "\n".join(host.paths), "\n".join(host.exclude), window, rules)

    @classmethod
    def sent(cls, host: str, address: str | None) -> "ChangeForm":
        """Returns the form as a user sent it."""
        text = {name: request.form.get(name, "").strip() for name in ("group", "paths", "exclude", "window", "why")}
        rules = {name: request.form.get(name, "").strip() for name in _RULES}
        return cls(host, address, **text, rules=rules)


_EMPTY = ChangeForm("", "", "", "", "", "", dict.fromkeys(_RULES, ""))


def changed_keys(present: ChangeForm, sent: ChangeForm) -> dict[str, Any]:
    """Returns the keys of the proposal: the fields that differ. Pure."""
    keys: dict[str, Any] = {}
    if sent.paths and lines_of(sent.paths) != lines_of(present.paths):
        keys["paths"] = lines_of(sent.paths)
    before, after = lines_of(present.exclude), lines_of(sent.exclude)
    if added := [pattern for pattern in after if pattern not in before]:
        keys["exclude+" if present.host else "exclude"] = added
    if removed := [pattern for pattern in before if pattern not in after]:
        keys["exclude-"] = removed
    if sent.window != present.window:
        keys["window"] = sent.window or "none"
    for name in _RULES:
        text = sent.rules[name]
        if text != present.rules[name]:
            keys[f"retention.{name}"] = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text or None
    return keys


def lines_of(text: str) -> list[str]:
    """Returns the lines of a field that are not blank."""
    return [line.strip() for line in text.splitlines() if line.strip()]


@blueprint.get("/changes")
@needs_all_hosts
def index() -> str:
    """Lists the proposals that wait."""
    return render_template("changes/list.html", proposals=list(map(_shown, root_service().ask("proposals"))))


@blueprint.get("/changes/new")
@needs_all_hosts
@operator_only
def new_host() -> str:
    """Shows the form for a new host."""
    return _form(_EMPTY)


@blueprint.post("/changes/new")
@needs_all_hosts
@operator_only
def propose_new() -> Response | tuple[str, int]:
    """Proposes a new host."""
    name, address = (request.form.get(field, "").strip() for field in ("host", "address"))
    form = ChangeForm.sent(name, address)
    keys: dict[str, Any] = {"address": address, "group": form.group} if form.group else {"address": address}
    return _propose(form, {**keys, **changed_keys(_EMPTY, form)}, is_new=True)


@blueprint.get("/hosts/<host>/change")
@needs_all_hosts
@operator_only
def change(host: str) -> str:
    """Shows the form with the host's present settings."""
    return _form(ChangeForm.of(_configured(host)))


@blueprint.post("/hosts/<host>/change")
@needs_all_hosts
@operator_only
def propose(host: str) -> Response | tuple[str, int]:
    """Proposes the fields that differ from the present settings."""
    present = ChangeForm.of(_configured(host))
    form = ChangeForm.sent(host, present.address)
    return _propose(form, changed_keys(present, form), is_new=False)


def _configured(host: str) -> HostConfig:
    require_visible_host(host)
    config = source().config.hosts.get(host)
    return config or abort(404, "this host is not configured")


def _form(form: ChangeForm, wrong: str = "", *, is_new: bool | None = None) -> str:
    groups = sorted({host.group for host in source().config.hosts.values() if host.group})
    is_new = not form.host if is_new is None else is_new
    return render_template(
        "changes/form.html", form=form, is_new=is_new, wrong=wrong, labels=_PERIODS, groups=groups, most=LONGEST_REASON
    )


def _propose(form: ChangeForm, keys: dict[str, Any], *, is_new: bool) -> Response | tuple[str, int]:
    """Sends the proposal. What is wrong with it is shown above the form."""
    try:
        proposal = root_service().ask("propose", host=form.host, new=is_new, keys=keys, why=" ".join(form.why.split()))
    except RequestRefused as error:
        if error.kind != "usage":
            raise
        return _form(form, f"{error.message}: {error.hint}" if error.hint else error.message, is_new=is_new), 400
    flash("The change is proposed. It is not applied yet.")
    return redirect(url_for(".proposal", proposal_id=proposal["id"]), 303)


@blueprint.get("/changes/<proposal_id>")
@needs_all_hosts
def proposal(proposal_id: str) -> str:
    """Shows a proposal with its difference and its effect."""
    return _page(proposal_id)


def _page(proposal_id: str, wrong: str = "") -> str:
    return render_template("changes/change.html", proposal=_shown(root_service().ask("proposal", id=proposal_id)), wrong=wrong)


def _shown(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {**answer, "at": parse_time(answer["at"]), "checked": parse_time(answer["checked"])}


@blueprint.post("/changes/<proposal_id>/apply")
@needs_all_hosts
@operator_only
def apply(proposal_id: str) -> Response | tuple[str, int]:
    """Applies it, if the root service may and the password is right."""
    password, digest = request.form.get("password", ""), request.form.get("digest", "")
    answer = root_service().ask("apply", id=proposal_id, digest=digest, password=password[:1025], address=sessions.address())
    if answer["outcome"] == "wait":
        abort(429, f"Too many attempts. Try again in {format_duration(max(answer['seconds'], 10))}.")
    if answer["outcome"] == "wrong":
        return _page(proposal_id, "The password is wrong. Nothing was changed."), 400
    if answer["outcome"] == "changed":
        words = "The configuration was changed after this page was opened. Check the new difference, then apply it."
        return _page(proposal_id, words), 409
    flash("The change is applied." + _unrecorded(answer))
    return redirect(url_for("hosts.host", host=answer["host"]), 303)


@blueprint.post("/changes/<proposal_id>/reject")
@needs_all_hosts
@operator_only
def reject(proposal_id: str) -> Response:
    """Removes it."""
    answer = root_service().ask("reject", id=proposal_id)
    flash("The proposed change is rejected." + _unrecorded(answer))
    return redirect(url_for(".index"), 303)


def _unrecorded(answer: Mapping[str, Any]) -> str:
    return f" It could not be recorded: {answer['unrecorded']}" if answer.get("unrecorded") else ""
