"""`backupd rehearse`: runs nights on a throwaway pool, with two or more settings side by side."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backupd.cli.command_context import load_config
from backupd.rehearse.variants import CONFIGURED, KEYS, QUESTIONS, judged, variants_of
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.arguments import GivenPath, ParsedType, from_options
from btrkeep.cli.output import notices_on_stderr, print_wrapped
from btrkeep.errors import Exit, UsageError
from btrkeep.process.progress import Cancellation, ProgressSinks
from btrkeep.units import parse_size

if TYPE_CHECKING:
    from backupd.rehearse.cli.rehearsal_words import RehearsalResult
    from backupd.rehearse.pool import Place
    from backupd.rehearse.rehearsal_types import RehearsalPlan
    from backupd.rehearse.server_facts import ServerFacts

_SMALLEST, _LARGEST = 256 << 20, 2 << 30


@dataclass(frozen=True, slots=True)
class RehearseOptions:
    """The options of `rehearse` that are not part of its scope."""

    variants: tuple[str, ...]
    question: str | None
    size: int | None
    on: str | None
    erase: str | None
    html: Path | None
    dry_run: bool
    as_json: bool


def _complete_variant(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes the keys, after the text up to the last comma or colon."""
    if "=" not in incomplete and ":" not in incomplete:
        return [setting for setting in (CONFIGURED, *(f"{key}=" for key in KEYS)) if setting.startswith(incomplete)]
    cut = max(incomplete.rfind(","), incomplete.find(":") if "=" not in incomplete else -1) + 1
    return [f"{incomplete[:cut]}{key}=" for key in KEYS if key.startswith(incomplete[cut:])]


@click.command("rehearse")
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME:KEY=VALUE,...",
    shell_complete=_complete_variant,
    help="Settings to try; all other settings are as configured. May be given several times: each is compared with the first.",
)
@click.option("--question", type=click.Choice(list(QUESTIONS)), help="Try the settings that answer a common question.")
@click.option("--days", type=click.IntRange(1, 3660), default=30, show_default=True, metavar="N", help="The number of nights.")
@click.option(
    "--age",
    type=click.IntRange(0, 3660),
    default=20,
    show_default=True,
    metavar="N",
    help="Nights to run before measuring, the same for all variants, because a new pool is not fragmented yet.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    metavar="N",
    help="How many times each variant runs, each time with other changes.",
)
@click.option(
    "--size", type=ParsedType("size", parse_size), metavar="SIZE", help="The maximum size of the throwaway pool.  [default: 2GiB]"
)
@click.option(
    "--on",
    metavar="FOLDER|DEVICE",
    type=GivenPath(),
    help="Where to make the pool: an image in a folder, or a spare device.  [default: in memory if it fits, else /var/tmp]",
)
@click.option(
    "--erase", metavar="DEVICE", help="Confirm that the contents of the device of --on may be lost, by repeating its exact name."
)
@click.option(
    "--html", type=GivenPath(path_type=Path, dir_okay=False), metavar="FILE", help="Also write the report to FILE, with pictures."
)
@click.option("--dry-run", is_flag=True, help="Show the pools that would be made, and the time and space they need; make nothing.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Try settings on a throwaway pool, and show which are better for this server.

    The pool gets this configuration's hosts, with sizes and changes from the catalogue, scaled to fit. No file of a backup
    is read, and the configured pool is not touched. Every variant has the same nights: changes, then `backupd expire`, a
    balance if it has one, and the score of the free space. Several seeds distinguish a difference from chance; use at least five.

    Keys of a variant: allocator (ssd, nossd, ssd_spread); expiry (the mount option during it); balance (none, or benefit, score or
    usage with a share of the data, such as score:5%); inplace; compression (zstd:3); nodesize; metadata; and those of
    [retention], such as daily. `configured` means the current settings.

    A loop device or memory has no seeks: times show which variant is faster, not the times on this server's disks.

    \b
    Examples:
      backupd rehearse --question balance
      backupd rehearse --variant inplace=never --html report.html
      backupd rehearse --variant configured --variant tight:daily=7 --days 60

    Exit status 0: all nights were run; 1: a pool was full before the last; 2: wrong usage, or a device that is in use.
    """
    from backupd.rehearse.pool import place_at, require_room
    from backupd.rehearse.server_facts import RehearsalScope, make_plan, server_facts

    given, config = from_options(RehearseOptions, options), load_config(ctx)
    if not any(host.enabled for host in config.hosts.values()):
        raise UsageError("no host is configured", "`backupd host add` adds one: a rehearsal needs at least one")
    if given.size is not None and given.size < _SMALLEST:
        raise UsageError("--size is too small", f"{_SMALLEST >> 20}MiB is the smallest useful btrfs")
    facts = server_facts(config)
    scope = RehearsalScope(size=given.size or _LARGEST, heatmaps=given.html is not None, **options)
    chosen = variants_of(given.question, given.variants, facts.settings)
    place = place_at(given.on, given.erase, scope.size, facts.filesystem)
    plan = make_plan(config, facts, chosen, scope)
    require_room(place, plan.size)
    if given.dry_run:
        return _show_plan(plan, place, facts, as_json=given.as_json)
    result, status = _rehearse(plan, place, facts, given.question)
    _report(result, given.html, as_json=given.as_json)
    return status


def _show_plan(plan: "RehearsalPlan", place: "Place", facts: "ServerFacts", *, as_json: bool) -> int:
    from backupd.rehearse.cli.view import plan_fields, plan_lines

    return print_answer(
        plan_fields(plan, place, facts), lambda: click.echo("\n".join(plan_lines(plan, place, facts))), as_json=as_json
    )


def _rehearse(plan: "RehearsalPlan", place: "Place", facts: "ServerFacts", question: str | None) -> "tuple[RehearsalResult, int]":
    from backupd.rehearse.cli.rehearsal_words import RehearsalResult
    from backupd.rehearse.cli.view import RehearsalMeter
    from backupd.rehearse.pool import BASES, remove_leftovers, workspace
    from backupd.rehearse.rehearsal_nights import NightDone, Rehearsal

    for left in remove_leftovers({*BASES, place.folder}):
        print_wrapped(f"removed the remains of a killed rehearsal: {left}", err=True)
    cancellation, meter, began = Cancellation(), RehearsalMeter(), time.monotonic()
    with ExitStack() as held:
        held.enter_context(cancellation.listening())
        held.callback(meter.end)
        sinks: ProgressSinks[NightDone] = ProgressSinks(notices_on_stderr, meter)
        work = held.enter_context(workspace(place.folder, sinks.notice))
        rehearsal = Rehearsal(plan, work, place, cancellation, sinks)
        runs = tuple(rehearsal.run())
    judgements = judged(runs, [variant.name for variant in plan.variants])
    result = RehearsalResult(plan, facts, place, question, runs, judgements, time.monotonic() - began)
    return result, cancellation.exit_status(Exit.ATTENTION if any(run.full is not None for run in runs) else Exit.OK)


def _report(result: "RehearsalResult", html: Path | None, *, as_json: bool) -> None:
    from backupd.rehearse.cli.view import lines, result_fields

    if html:
        from backupd.rehearse.cli.rehearsal_page import page
        from btrkeep.fs.output_file import whole_file

        with whole_file(str(html)) as file:
            file.write(page(result).encode("utf-8"))
    print_answer(lambda: result_fields(result), lambda: click.echo("\n".join(lines(result))), as_json=as_json)
