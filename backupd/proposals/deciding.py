"""Proposes, checks, applies and rejects: what commands and root service do with proposals, each step with its record."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from backupd.hosts.config_files import Files
from backupd.proposals.effect import read_effect
from backupd.proposals.planned_change import PlannedChange, key_diff, plan_change, require_allowed, require_change, write_change
from backupd.proposals.proposal_store import ChangePreview, ConfigProposal, ProposalStore, require_size, require_slot
from backupd.repo.actions_log import LONGEST, UserAction, record_action
from backupd.repo.pool_context import PoolContext
from btrkeep.errors import StateConflict
from btrkeep.units import format_time


class ChangedSince(StateConflict):
    """The configuration was changed since the proposal was checked. The stored proposal has the fresh diff now."""


def propose(
    context: PoolContext, files: Files, who: str, host: str, keys: Mapping[str, Any], why: str, *, is_new: bool
) -> ConfigProposal:
    """Checks a change and stores it. Raises UsageError, ConfigError, StateConflict, RequestRefused of kind busy, and OSError."""
    require_allowed(context.config, host, keys, is_new=is_new)
    planned = plan_change(files, host, keys, is_new=is_new)
    require_change(planned)
    now, store = context.clock.now(), ProposalStore(context.config.pool.state)
    preview = preview_of(context, planned, now)
    with store.alone():
        require_slot(store.all(), who)
        proposal = ConfigProposal(store.new_id(), who, format_time(now), host, is_new, dict(keys), why, preview)
        require_size(proposal)
        store.put(proposal)
    _record(context, "propose", proposal, who)
    return proposal


def preview_of(context: PoolContext, planned: PlannedChange, now: datetime) -> ChangePreview:
    """Returns the diff and the effect of a change now."""
    effect = read_effect(context, planned)
    return ChangePreview(format_time(now), str(planned.path), key_diff(planned), effect, planned.notices, planned.digest)


def plan_of(context: PoolContext, files: Files, proposal: ConfigProposal) -> PlannedChange:
    """Returns the change that a proposal would make now. Raises as `propose` does: the stored file is not trusted either."""
    require_allowed(context.config, proposal.host, proposal.keys, is_new=proposal.is_new)
    return plan_change(files, proposal.host, proposal.keys, is_new=proposal.is_new)


def apply(context: PoolContext, files: Files, proposal_id: str, digest: str | None, who: str) -> tuple[ConfigProposal, str]:
    """Writes the change into its file and removes the proposal. Returns it, and why the action could not be recorded, or "".

    `digest`: of the preview that the user has seen; None: the stored one. Raises ChangedSince if the change would be another one
    now, and as `propose` does; then the configuration is unchanged.
    """
    store = ProposalStore(context.config.pool.state)
    with store.alone(), files.alone():
        proposal = store.get(proposal_id)
        planned = plan_of(context, files, proposal)
        if planned.keys and planned.digest != (digest or proposal.preview.digest):
            proposal = replace(proposal, preview=preview_of(context, planned, context.clock.now()))
            require_size(proposal)  # a larger one could not be read again, and so neither be applied nor rejected
            store.put(proposal)
            raise ChangedSince(
                f"the configuration of {proposal.host} was changed since this was checked, so the change would be another one now",
                "check the new difference and effect, then apply it again",
            )
        if planned.keys:  # otherwise a killed command, or an administrator by hand, has already done it
            write_change(files, planned)
        store.remove(proposal.id)
    return proposal, _record(context, "apply", proposal, who)


def reject(context: PoolContext, proposal: ConfigProposal, who: str, why: str = "") -> str:
    """Removes a proposal. Returns why the action could not be recorded, or ""."""
    store = ProposalStore(context.config.pool.state)
    with store.alone():
        store.get(proposal.id)
        store.remove(proposal.id)
    return _record(context, "reject", proposal, who, why)


def _record(context: PoolContext, action: str, proposal: ConfigProposal, who: str, why: str = "") -> str:
    by = "" if who == proposal.who else f", proposed by {proposal.who}"
    change = "; ".join(line for line in proposal.preview.diff[1:] if line[:1] in "+-")
    text = f"{proposal.id}{by}: {why or proposal.why or proposal.title} ({change})"[:LONGEST]
    at = context.clock.now().replace(microsecond=0)
    return record_action(context.pool, UserAction(at, action, who, proposal.host, None, text))
