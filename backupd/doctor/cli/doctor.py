"""`backupd doctor`: finds problems and slow settings of the pool, and how to repair them.

`--fix room` shows the plan, runs it, and prints the result.
"""

import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from backupd.cli import colours
from backupd.cli.command_context import load_config, pass_context, present
from backupd.doctor.cli.check import show
from backupd.doctor.copy_checks import reach_copies
from backupd.doctor.doctor_facts import DoctorFacts, DoctorReport
from backupd.doctor.gather import gather, stacks
from backupd.doctor.room_fix import RoomFix, RoomFixResult, attach_left
from backupd.doctor.room_words import attached_error, plan_lines
from backupd.doctor.rules import BY_NAME, RULES, examine, findings_of, fix, refusal, rule_named
from backupd.repo.pool_context import open_configured
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.arguments import GivenPath
from btrkeep.cli.listings import table
from btrkeep.cli.output import print_wrapped, with_calls
from btrkeep.config import Config
from btrkeep.decisions.findings import NOTE, OK, ROOM, Finding, check_as_json
from btrkeep.errors import Exit, PoolUnusable, UsageError
from btrkeep.pool.temporary_devices import read_record
from btrkeep.units import counted, format_size, printable

_COMMAND = re.compile(r"`[^`]*`")
_KEPT = "\0"
_WIDTH = 110


@click.command("doctor")
@click.option(
    "--fix", "name", metavar="NAME", help="Fix the problem that this check finds, if that is possible while the pool is mounted."
)
@click.option("--dry-run", is_flag=True, help="With --fix: only show the commands.")
@click.option(
    "--device",
    "named",
    metavar="DEVICE",
    multiple=True,
    type=GivenPath(path_type=Path, resolve_path=True),
    help="With --fix room: an empty block device to use temporarily, instead of a file in the state folder. Give it twice for "
    "raid1.",
)
@click.option("-v", "--verbose", "all_checks", is_flag=True, help="Also list the checks that passed.")
@click.option(
    "--connect", is_flag=True, help="Also connect to the other server of every replica and push: version, key, clock, free space."
)
@json_option
@pass_context
def command(
    ctx: click.Context, name: str | None, dry_run: bool, named: tuple[Path, ...], all_checks: bool, connect: bool, as_json: bool
) -> int:
    """Find problems and slow settings of the pool; for each, print the reason, the commands that solve it, and their risk.

    Examines how the filesystem was made and mounted, the storage below it, its state, and the machine. Changes nothing without
    --fix NAME: then the check is repeated, the commands are run, and the check is repeated again to see whether the problem is
    solved. Repairs that need an unmounted filesystem are only described.

    --fix room repairs a pool whose space is all allocated, even if metadata is full: it adds a temporary device, moves data
    together, and removes the device again. If it is stopped, the next --fix room continues.

    With --connect it also asks the other server of every replica and push, as `backupd check --connect` does.

    A check that could not be made is listed as not checked; it counts neither as passed nor as a problem.

    Exit status 0: no problem, or only notes; 1: a problem was found, or a check could not be made.
    """
    if connect and name:
        raise UsageError("--connect and --fix NAME exclude each other", "run one after the other")
    if dry_run and not name:
        raise UsageError("--dry-run needs --fix NAME", "leave --dry-run out: without --fix nothing is changed")
    if named and name != ROOM:
        raise UsageError("--device needs --fix room", "leave --device out")
    config = load_config(ctx)
    if name == ROOM:
        return fix_room(config, partial(present, ctx, config), named, dry_run=dry_run, as_json=as_json)
    pool = open_configured(config)
    gather_facts = partial(gather, config, pool, present(ctx, config))
    if name:
        return _fix(rule_named(name), gather_facts(), dry_run, as_json, gather_facts)
    facts = gather_facts()
    report = examine(facts)
    reached = list(reach_copies(config)) if connect else []

    def show_all() -> None:
        _show(facts, report, all_checks)
        if connect:
            click.echo()
            show(reached) if reached else click.echo("no replica and no push is configured")

    answer = {**_fields(facts, report), "copies": [check_as_json(finding) for finding in reached]}
    print_answer(answer, show_all, as_json=as_json)
    return exit_status(report, reached)


def exit_status(doctor_report: DoctorReport, reached: Sequence[Finding]) -> Exit:
    """Returns OK if every check was made and found at most notes; `reached`: the findings of --connect."""
    is_well = all(finding.level in (OK, NOTE) for finding in (*doctor_report.findings, *reached))
    return Exit.OK if is_well and not doctor_report.unchecked else Exit.ATTENTION


def _fields(facts: DoctorFacts, doctor_report: DoctorReport) -> dict[str, Any]:
    return {
        "filesystem": facts.filesystem.uuid,
        "devices": [
            {"name": device.name, "layers": [asdict(layer) for layer in device.layers]} for device in facts.filesystem.devices
        ],
        "checks": [rule.name for rule in RULES],
        "not_looked_at": [{"name": unchecked.name, "why": unchecked.why} for unchecked in doctor_report.unchecked],
        "findings": [_finding_fields(finding) for finding in doctor_report.findings],
    }


def _finding_fields(finding: Finding) -> dict[str, Any]:
    """Returns one finding; `commands` are shell lines, beginning with those that --fix runs."""
    return {
        "name": finding.check,
        "severity": finding.level,
        "what": with_calls(finding.text),
        "why": with_calls(finding.remedy.why),
        "commands": list(finding.remedy.lines),
        "risk": finding.remedy.risk,
        "fixable": finding.remedy.fixable,
        "unmounted": finding.remedy.unmounted,
    }


def _show(facts: DoctorFacts, doctor_report: DoctorReport, all_checks: bool) -> None:
    fs = facts.filesystem
    print_wrapped(f"{printable(str(facts.site.pool))}: filesystem {fs.uuid} on {printable('; '.join(stacks(fs.devices)))}", "  ")
    if all_checks:
        options = sorted({*(fs.mount_options or ()), *fs.options})
        print_wrapped(f"mounted at {printable(str(fs.target))} with {', '.join(options)}", "  ")
    for finding in doctor_report.findings:
        click.echo()
        show_finding(finding)
    click.echo()
    if all_checks:
        passed = [(name, BY_NAME[name].problem) for name in doctor_report.passed]
        click.echo(table(passed, ["PASSED", "NOT FOUND"]) + "\n")
    for unchecked in doctor_report.unchecked:
        print_wrapped(f"{click.style(f'not checked {unchecked.name}', fg='yellow')}: {printable(unchecked.why)}", "  ")
    counts = ", ".join(
        counted(number, severity)
        for severity in ("error", "warning", "note")
        if (number := sum(finding.level == severity for finding in doctor_report.findings))
    )
    blind = f"; {len(doctor_report.unchecked)} not checked" if doctor_report.unchecked else ""
    click.echo(f"{counted(len(RULES), 'check')}: {counts or 'nothing to report'}{blind}")
    if blind:
        print_wrapped("there may be more problems: run `backupd doctor` as root on this machine, outside a service", "  ")
    if fixable := [finding.check for finding in doctor_report.findings if finding.remedy.fixable]:
        print_wrapped(f"`backupd doctor --fix NAME` can repair: {', '.join(dict.fromkeys(fixable))}", "  ")


def show_finding(finding: Finding) -> None:
    """A headline, the reason, the commands, the risk."""
    label = click.style(f"{finding.level} {finding.check}", fg=colours.LEVEL[finding.level], bold=True)
    print_wrapped(f"{label}: {printable(finding.text)}", "  ")
    click.echo(_wrapped("why:  ", finding.remedy.why))
    for number, line in enumerate(finding.remedy.lines):
        click.echo(f"  {'do:   ' if not number else '      '}{printable(line)}")
    click.echo(_wrapped("risk: ", finding.remedy.risk))


def _wrapped(label: str, text: str) -> str:
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 25)).columns)
    text = _COMMAND.sub(lambda command: command[0].replace(" ", _KEPT), printable(with_calls(text)))  # never wrapped
    wrapper = textwrap.TextWrapper(width, f"  {label}", break_long_words=False, break_on_hyphens=False)
    wrapper.subsequent_indent = " " * (2 + len(label))
    lines = wrapper.wrap(text)
    return "\n".join(lines).replace(_KEPT, " ")


def _fix(name: str, facts: DoctorFacts, dry_run: bool, as_json: bool, gather_again: "partial[DoctorFacts]") -> int:
    findings = findings_of(name, facts)
    done, refused = [], None
    for finding in findings:
        if not as_json:
            show_finding(finding)
        refused = refusal(finding) or refused
        if finding.remedy.fixable and not dry_run:
            fix(finding, gather_again)
            done.append(finding)
    text = ""
    if not findings:
        text = f"{name}: no problem found, so there is nothing to do"
    elif done:
        text = f"{name}: fixed" + _remaining_words(done)
    elif dry_run and not refused:
        text = f"{name}: --dry-run: nothing was done"
    answer = {"dry_run": dry_run, "findings": [_finding_fields(finding) for finding in findings], "fixed": bool(done)}
    print_answer(answer, partial(_print_if_any, text), as_json=as_json)
    if refused:
        raise refused
    return Exit.OK


def _print_if_any(text: str) -> None:
    if text:
        click.echo(text)


def _remaining_words(done: list[Finding]) -> str:
    return "; the remaining steps, to be done manually, are above" if any(finding.remedy.commands for finding in done) else ""


def fix_room(config: Config, now: Callable[[], datetime], named: Sequence[Path], *, dry_run: bool, as_json: bool) -> int:
    """Runs the repair, or with `dry_run` shows it. Raises OperatorError."""
    is_left = read_record(config.pool.state) is not None
    try:
        pool = open_configured(config)
    except PoolUnusable:
        if is_left and not dry_run and (loops := attach_left(config.pool.state)):
            raise attached_error(loops, config.pool.path) from None
        raise
    work = RoomFix(config, pool, now(), named, (lambda _: None) if as_json else lambda line: click.echo(printable(line)))
    planned = work.planned()
    if not as_json:
        for line in plan_lines(planned.plan, planned.devices, is_left=is_left):
            click.echo(printable(line))
    fixed = planned if dry_run else work.run()
    text = "room: --dry-run: nothing was done" if dry_run else ""
    if fixed.devices and not dry_run:
        text = f"room: done: {format_size(fixed.unallocated)} are unallocated, and the temporary device is removed"
    return print_answer(_room_fields(fixed, dry_run=dry_run), partial(_print_if_any, text), as_json=as_json)


def _room_fields(fixed: RoomFixResult, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "needed": fixed.plan.is_needed,
        "goal": fixed.goal,
        "gain": fixed.plan.gain,
        "before": fixed.plan.unallocated,
        "unallocated": fixed.unallocated,
        "devices": [str(device.path) for device in fixed.devices],
        "steps": fixed.steps,
        "reason": fixed.reason,
    }
