"""All rules, in the order in which findings of one severity are shown, each a pure function of facts; and `--fix NAME`: runs the
steps of a finding that still exists, then checks the rule again.
"""

import logging
from collections.abc import Callable, Iterable

from backupd.doctor.doctor_facts import SEVERITIES, DoctorFacts, DoctorReport, DoctorRule, UncheckedRule
from backupd.doctor.rules import mount, site, state, storage
from btrkeep.decisions.findings import Finding, FixCommand, Step, WriteSysfs
from btrkeep.errors import OperatorError, UsageError, did_you_mean
from btrkeep.process.programs import run
from btrkeep.procfs import privilege_hint

RULES: tuple[DoctorRule, ...] = (*storage.RULES, *state.RULES, *mount.RULES, *mount.SSD_RULES, *storage.SHAPE_RULES, *site.RULES)
BY_NAME = {rule.name: rule for rule in RULES}


def examine(facts: DoctorFacts, rules: Iterable[DoctorRule] = RULES) -> DoctorReport:
    """Applies these rules. A blind rule that finds something counts as having checked."""
    findings: list[Finding] = []
    passed: list[str] = []
    unchecked: list[UncheckedRule] = []
    for rule in rules:
        if rule_findings := list(rule.check(facts)):
            findings += rule_findings
        elif why := rule.blind(facts):
            unchecked.append(UncheckedRule(rule.name, why))
        else:
            passed.append(rule.name)
    findings.sort(key=lambda finding: -SEVERITIES.index(finding.level))
    return DoctorReport(tuple(findings), tuple(passed), tuple(unchecked))


_log = logging.getLogger(__name__)
_LONGEST = 3600.0  # switching quotas off waits for a running commit, which can take long


def rule_named(name: str) -> str:
    """Returns the name if there is such a rule. Raises UsageError."""
    if name in BY_NAME:
        return name
    raise UsageError(f"there is no check {name}", did_you_mean(name, BY_NAME, "`backupd doctor` lists the problems that it finds"))


def findings_of(name: str, facts: DoctorFacts) -> tuple[Finding, ...]:
    """Returns the present findings of that rule. Raises OperatorError if it cannot check."""
    report = examine(facts, [BY_NAME[name]])
    for unchecked in report.unchecked:
        raise OperatorError(f"{name}: not checked: {unchecked.why}", f"{privilege_hint()}; not in a service's sandbox")
    return report.findings


def refusal(finding: Finding) -> OperatorError | None:
    """Returns the reason why nothing can be done about it, None if something can."""
    if finding.remedy.fixable:
        return None
    needs = "needs the filesystem unmounted" if finding.remedy.unmounted else "takes long, or needs your decision"
    return OperatorError(f"{finding.check}: the repair {needs}, so --fix does not run it", "run the commands above yourself")


def fix(finding: Finding, gather_again: Callable[[], DoctorFacts]) -> None:
    """Runs the steps. Raises OperatorError if one fails, or if the rule still finds the problem afterwards, even a smaller one."""
    for step in finding.remedy.steps:
        _log.info("%s", step.line)
        _do(step)
    if any(finding.is_about_the_same(after) for after in findings_of(finding.check, gather_again())):
        raise OperatorError(
            f"{finding.check}: all commands ran, but the problem remains", "check dmesg, and run the commands manually"
        )


def _do(step: Step) -> None:
    match step:
        case FixCommand(command):
            run(command, timeout=_LONGEST)
        case WriteSysfs(file, value):
            try:
                file.write_text(value)
            except OSError as error:
                raise OperatorError(
                    f"{file}: {error.strerror}", "check whether the file exists: other kernels may not have this setting"
                ) from error
