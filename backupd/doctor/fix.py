"""What --fix NAME does: the steps of a finding that still holds, and a look afterwards whether it is gone."""

import logging
from collections.abc import Callable
from difflib import get_close_matches

from backupd.doctor.facts import DoctorFacts
from backupd.doctor.finding import DoctorFinding, FixCommand, Step, Write
from backupd.doctor.rules import BY_NAME, examine
from btrkeep.errors import OperatorError, UsageError
from btrkeep.process.programs import run

_log = logging.getLogger(__name__)
_LONGEST = 3600.0  # to switch quotas off waits for a running commit, which can take long


def rule_named(name: str) -> str:
    """The name, once it is known to be one. Raises UsageError."""
    if name in BY_NAME:
        return name
    near = get_close_matches(name, BY_NAME, 1)
    raise UsageError(f"there is no check {name}", f"did you mean {near[0]}?" if near else "`backupd doctor` names what it finds")


def findings_of(name: str, facts: DoctorFacts) -> tuple[DoctorFinding, ...]:
    """What that rule finds now. Raises OperatorError when it cannot look."""
    found = examine(facts, [BY_NAME[name]])
    for one in found.unlooked:
        raise OperatorError(f"{name}: not looked at: {one.why}", "run `backupd doctor` as root, in no service's sandbox")
    return found.findings


def refusal(finding: DoctorFinding) -> OperatorError | None:
    """Why nothing is done about it, None when something is."""
    if finding.fixable:
        return None
    if finding.unmounted:
        return OperatorError(
            f"{finding.name}: this needs the filesystem unmounted, so it is not done here", "the commands are above"
        )
    return OperatorError(f"{finding.name}: this is not done here: it is to be decided, or takes long", "the commands are above")


def fix(finding: DoctorFinding, look_again: Callable[[], DoctorFacts]) -> None:
    """Does the steps. Raises OperatorError when one fails, or when the rule still finds the same afterwards."""
    for step in finding.steps:
        _log.info("%s", step.line)
        _do(step)
    if any(after.what == finding.what for after in findings_of(finding.name, look_again())):
        raise OperatorError(f"{finding.name}: all was done, and it is as before", "look at dmesg, and try the commands by hand")


def _do(step: Step) -> None:
    match step:
        case FixCommand(command):
            run(command, timeout=_LONGEST)
        case Write(file, value):
            try:
                file.write_text(value)
            except OSError as error:
                raise OperatorError(f"{file}: {error.strerror}", "does this kernel still have it?") from error
