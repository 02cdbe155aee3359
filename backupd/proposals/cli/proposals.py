"""`backupd proposals`, `apply` and `reject`: root lists and decides the changes that users of the dashboard have proposed."""

from collections.abc import Iterator
from dataclasses import replace

import click

from backupd.cli.command_context import completing_config, dry_run_option, load_config, opened, pass_context
from backupd.hosts.config_files import Files
from backupd.proposals import deciding
from backupd.proposals.proposal_store import ConfigProposal, ProposalStore
from backupd.proposals.proposal_store import as_json as proposal_object
from btrkeep.cli import json_option, print_answer, print_listing
from btrkeep.cli.listings import Column
from btrkeep.cli.output import print_wrapped
from btrkeep.process.proc import login_name
from btrkeep.units import local_time, parse_time, printable


def complete_proposal(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes the ids of waiting proposals."""
    config = completing_config(ctx)
    proposals = ProposalStore(config.pool.state).all() if config else []
    return [proposal.id for proposal in proposals if proposal.id.startswith(incomplete)]


id_argument = click.argument("proposal_id", metavar="ID", shell_complete=complete_proposal)


@click.command("proposals")
@json_option
@pass_context
def proposals_command(ctx: click.Context, as_json: bool) -> int:
    """List the changes of the configuration that users of the dashboard have proposed and that wait for a decision.

    `backupd apply ID --dry-run` shows the difference and the effect of one.
    """
    columns: tuple[Column[ConfigProposal], ...] = (
        Column("", lambda proposal: proposal.id, "ID"),
        Column("", lambda proposal: proposal.title, "CHANGE", printable),
        Column("", lambda proposal: proposal.who, "BY", printable),
        Column("", lambda proposal: proposal.at, "PROPOSED", lambda at: local_time(parse_time(at)), spare=True),
        Column("", lambda proposal: proposal.why, "REASON", printable, spare=True),
    )
    waiting = ProposalStore(load_config(ctx).pool.state).all()

    def show() -> None:
        print_listing(columns, waiting, empty="no proposed change waits")

    return print_answer([proposal_object(proposal) for proposal in waiting], show, as_json=as_json)


@click.command("apply")
@id_argument
@dry_run_option("the difference and the effect as they are now")
@json_option
@pass_context
def apply_command(ctx: click.Context, proposal_id: str, dry_run: bool, as_json: bool) -> int:
    """Apply the proposed change ID: check it again, and replace the file of its host.

    Comments and order stay; the previous file is kept as .NAME.toml.old beside it. If the configuration was changed since the
    proposal was checked, nothing is applied: the difference as it is now is shown, and a second `backupd apply ID` applies that.
    """
    chosen = ctx.find_root().obj
    files = Files.of(chosen["pool"], chosen["config"])
    with opened(ctx) as context:
        store = ProposalStore(context.config.pool.state)
        if dry_run:
            proposal = store.get(proposal_id)
            planned = deciding.plan_of(context, files, proposal)
            proposal = replace(proposal, preview=deciding.preview_of(context, planned, context.clock.now()))
            return _print(proposal, [], applied=False, as_json=as_json)
        try:
            proposal, unrecorded = deciding.apply(context, files, proposal_id, None, login_name())
        except deciding.ChangedSince:
            _print(store.get(proposal_id), [], applied=False, as_json=as_json)
            raise
    return _print(proposal, [f"applied: {proposal.preview.file}", *_unrecorded(unrecorded)], applied=True, as_json=as_json)


@click.command("reject")
@id_argument
@click.option("--why", default="", metavar="TEXT", help="The reason, for the record of actions.")
@json_option
@pass_context
def reject_command(ctx: click.Context, proposal_id: str, why: str, as_json: bool) -> int:
    """Reject the proposed change ID, so that it no longer waits."""
    with opened(ctx) as context:
        proposal = ProposalStore(context.config.pool.state).get(proposal_id)
        unrecorded = deciding.reject(context, proposal, login_name(), why)
    lines = (f"rejected: {printable(proposal.title)}", *_unrecorded(unrecorded))
    return print_answer({"id": proposal.id, "rejected": True}, lines, as_json=as_json)


def _unrecorded(reason: str) -> Iterator[str]:
    if reason:
        yield f"note: this could not be recorded: {reason}"


def _print(proposal: ConfigProposal, end: list[str], *, applied: bool, as_json: bool) -> int:
    def show() -> None:
        for line in proposal_lines(proposal):
            print_wrapped(line)
        for line in end:
            print_wrapped(line)

    return print_answer({**proposal_object(proposal), "applied": applied}, show, as_json=as_json)


def proposal_lines(proposal: ConfigProposal) -> Iterator[str]:
    """Yields a proposal with its difference and its effect."""
    who, when = printable(proposal.who), local_time(parse_time(proposal.at))
    why = f": {printable(proposal.why)}" if proposal.why else ""
    yield f"{proposal.id}: {printable(proposal.title)}, proposed by {who} {when}{why}"
    yield printable(proposal.preview.file)
    yield from proposal.preview.diff
    for sentence in proposal.preview.effect.sentences:
        yield f"effect: {sentence}"
    for notice in proposal.preview.notices:
        yield f"note: {printable(notice)}"
