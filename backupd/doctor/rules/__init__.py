"""All rules, in the order in which findings of one severity are shown. Each is a pure function of facts."""

from collections.abc import Iterable

from backupd.doctor.facts import Facts
from backupd.doctor.finding import SEVERITIES, Finding, Rule
from backupd.doctor.rules import mount, shape, site, ssd, state, storage

RULES: tuple[Rule, ...] = (*storage.RULES, *state.RULES, *mount.RULES, *ssd.RULES, *shape.RULES, *site.RULES)
BY_NAME = {rule.name: rule for rule in RULES}


def judge(facts: Facts, rules: Iterable[Rule] = RULES) -> list[Finding]:
    """What these rules find, the worst first."""
    found = [finding for rule in rules for finding in rule.check(facts)]
    return sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity))
