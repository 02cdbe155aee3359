"""Proposed changes of the configuration: users propose, see and withdraw them; an admin applies one with a password, if `apply` of
[web] allows that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from backupd.hosts.config_files import Files
from backupd.proposals import deciding
from backupd.proposals.proposal_store import ConfigProposal, ProposalStore, as_json
from backupd.serve.request_checks import confirmed
from backupd.serve.service_context import Call
from btrkeep.errors import ConfigError, OperatorError
from btrkeep.serving.protocol import RequestRefused


def _files(call: Call) -> Files:
    service = call.service
    return Files.of(service.pool_name, str(service.config_file) if service.config_file else None)


def _store(call: Call) -> ProposalStore:
    return ProposalStore(call.service.config().pool.state)


@contextmanager
def _checked() -> Iterator[None]:
    """Turns the checker's problems with a proposal into a refusal of kind usage: the service's own configuration is valid."""
    try:
        yield
    except ConfigError as error:
        raise RequestRefused("; ".join(error.problems), error.hint, "usage") from None


def propose(call: Call) -> dict[str, Any]:
    """Checks and stores a change of a host, or a new host."""
    with call.service.opened() as context, _checked():
        why = " ".join(call["why"].split())
        proposal = deciding.propose(context, _files(call), call.who, call["host"], call["keys"], why, is_new=call["new"])
    return as_json(proposal)


def proposals(call: Call) -> list[dict[str, Any]]:
    """Returns the waiting proposals, oldest first."""
    return list(map(as_json, _store(call).all()))


def proposal(call: Call) -> dict[str, Any]:
    """Returns one proposal, and whether the configuration allows that users apply it."""
    return {**as_json(_store(call).get(call["id"])), "may_apply": call.service.config().web.apply}


def reject(call: Call) -> dict[str, Any]:
    """Removes a proposal: one's own, or as an admin any."""
    stored = _store(call).get(call["id"])
    if stored.who != call.who and not call.viewer.admin:
        raise RequestRefused("only its author and admins may reject a proposed change", "ask an admin of this pool", "refused")
    with call.service.opened() as context:
        return {"id": stored.id, "unrecorded": deciding.reject(context, stored, call.who)}


def apply(call: Call) -> dict[str, Any]:
    """Applies a proposal if the password of the session's user is right. Returns the outcome: applied; changed: the stored proposal
    has a fresh diff; wrong: the password is; wait: there were too many attempts.
    """
    stored = _store(call).get(call["id"])
    if not call.service.config().web.apply:
        raise RequestRefused("this server applies changes only on its command line", f"as root: {_command(stored)}", "refused")
    answer = confirmed(call.word, call["password"], call["address"], call.service.login_socket)
    if answer["outcome"] != "right":
        return {"id": stored.id, **answer}
    with call.service.opened() as context, _checked():
        try:
            applied, unrecorded = deciding.apply(context, _files(call), stored.id, call["digest"], call.who)
        except deciding.ChangedSince as error:
            return {"id": stored.id, "outcome": "changed", "message": error.message}
        except OperatorError as error:
            if type(error) is not OperatorError:
                raise
            # The unit sees /etc read-only unless the administrator has allowed it with a drop-in.
            edit = f"`systemctl edit btrkeep-serve@{call.service.pool_name}`, with ReadWritePaths={_files(call).main.parent}"
            raise RequestRefused(error.message, f"allow the unit to write it: {edit}; or as root: {_command(stored)}") from None
    return {"id": applied.id, "outcome": "applied", "host": applied.host, "unrecorded": unrecorded}


def _command(stored: ConfigProposal) -> str:
    return f"`backupd apply {stored.id}`"
