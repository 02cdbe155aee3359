"""`backupd check`: finds problems and how to solve them."""

import asyncio
from collections.abc import Hashable, Sequence
from typing import TypeVar

import click

from backupd.cli import colours
from backupd.cli.command_context import load_config, pass_context, present
from backupd.doctor.checks import check_all
from backupd.doctor.copy_checks import reach_copies
from backupd.doctor.host_checks import check_hosts
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.listings import table
from btrkeep.cli.output import print_wrapped
from btrkeep.decisions.findings import NOTE, OK, UNKNOWN, Finding, check_as_json
from btrkeep.errors import Exit
from btrkeep.units import counted, names_in_words

T = TypeVar("T", bound=Hashable)
_MANY = _SHOWN = 3


@click.command("check")
@click.option(
    "--connect",
    is_flag=True,
    help="Also connect to every host, with a harmless `rsync --list-only` of its paths, and to every replica's pool.",
)
@json_option
@pass_context
def command(ctx: click.Context, connect: bool, as_json: bool) -> int:
    """Check the configuration, the pool and the programs, and show how to solve problems.

    Exit status 1 if there is a warning or an error, or a check could not be made; 4 if the pool is unusable.
    """
    config = load_config(ctx)
    present(ctx, config)  # --now is for rehearsals only
    findings = list(check_all(config))
    if connect:
        findings += [*asyncio.run(check_hosts(config)), *reach_copies(config)]
    status = report(findings, as_json)
    return Exit.UNUSABLE if any(finding.unusable for finding in findings) else status


def report(findings: Sequence[Finding], as_json: bool) -> Exit:
    """Prints them; returns the exit status."""
    print_answer([check_as_json(finding) for finding in findings], lambda: show(findings), as_json=as_json)
    return Exit.OK if all(finding.level in (OK, NOTE) for finding in findings) else Exit.ATTENTION


def show(findings: Sequence[Finding]) -> None:
    """Prints the table, and the remedies below it, each once. Three or more hosts with the same finding share a line."""
    rows = [
        (click.style(level, fg=colours.LEVEL[level]), about, text)
        for about, (level, text) in merged([(finding.about, (finding.level, finding.text)) for finding in findings])
    ]
    click.echo(table(rows, ["", "SUBJECT", "RESULT"]))
    if unknown := sum(finding.level == UNKNOWN for finding in findings):
        click.echo(f"\n{counted(unknown, 'check')} could not be made: there may be more problems")
    hints = merged([(finding.about, finding.hint) for finding in findings if finding.hint], 1)
    if hints:
        click.echo("\nWhat to do:")
    for about, hint in hints:
        print_wrapped(f"  {about}: {hint}", "    ")


def merged(items: Sequence[tuple[str, T]], many: int = _MANY) -> list[tuple[str, T]]:
    """Returns the items; those of `many` subjects or more with the same content become one item, at the position of the first.
    Pure.
    """
    subjects: dict[T, list[str]] = {}
    for about, content in items:
        subjects.setdefault(content, []).append(about)
    done, lines = set[T](), list[tuple[str, T]]()
    for about, content in items:
        names = list(dict.fromkeys(subjects[content]))
        if len(names) < many:
            lines.append((about, content))
        elif content not in done:
            lines.append((names_in_words(names, _SHOWN), content))
            done.add(content)
    return lines
