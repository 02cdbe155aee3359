"""All rules, in the order in which findings of one severity are shown. Each is a pure function of facts."""

from collections.abc import Iterable

from backupd.doctor.facts import DoctorFacts
from backupd.doctor.finding import SEVERITIES, DoctorReport, DoctorRule, Unlooked
from backupd.doctor.rules import mount, site, state, storage
from btrkeep.decisions.findings import Finding

RULES: tuple[DoctorRule, ...] = (*storage.RULES, *state.RULES, *mount.RULES, *mount.SSD_RULES, *storage.SHAPE_RULES, *site.RULES)
BY_NAME = {rule.name: rule for rule in RULES}


def examine(facts: DoctorFacts, rules: Iterable[DoctorRule] = RULES) -> DoctorReport:
    """Applies these rules. A rule that is blind but finds something counts as having looked."""
    findings: list[Finding] = []
    well: list[str] = []
    unlooked: list[Unlooked] = []
    for rule in rules:
        if found := list(rule.check(facts)):
            findings += found
        elif why := rule.blind(facts):
            unlooked.append(Unlooked(rule.name, why))
        else:
            well.append(rule.name)
    findings.sort(key=lambda finding: -SEVERITIES.index(finding.level))
    return DoctorReport(tuple(findings), tuple(well), tuple(unlooked))
