"""The verdict about everything that a viewer may see: on every page as its icon, and on the overview as a banner."""

from collections import Counter

from btrkeep.decisions.findings import CATALOGUE, CHECKS, SCHEDULE, UNUSABLE, PoolVerdict
from btrkeep.decisions.overall import Overall, OverallFacts, judge
from btrkeep.decisions.verification import read_in_doubt
from btrkeep.serving.viewer import Viewer
from web.alarms import active_alarms
from web.copies import copies
from web.hosts import data as hosts
from web.pool.data import pool_health
from web.source import RequestContext

EVERYTHING = Viewer("", "viewer")
"""For numbers that have no viewer."""

_PAGES = {
    **{state: f"hosts?state={state}" for state in ("failing", "suspect", "late", "unknown", "damaged", "altered")},
    "copy-failing": "copies",
    "copy-late": "copies",
    **dict.fromkeys(CHECKS, "pool"),
    SCHEDULE: "doctor",
    UNUSABLE: "doctor",
    CATALOGUE: "doctor",
}


def page_of_problem(kind: str) -> str:
    """Returns the address of the page that shows problems of this kind."""
    return f"/{_PAGES.get(kind, '#alarms-title')}"


def overall(source: RequestContext, viewer: Viewer) -> Overall:
    """Returns the verdict; cached between requests, separately for each limit of hosts."""
    return source.cached(("overall", viewer.hosts), lambda: _overall(source, viewer))


def _overall(source: RequestContext, viewer: Viewer) -> Overall:
    rows = hosts.visible_to(viewer, hosts.every_row(source))
    bad = [count for host, count in hosts.bad_backups(source).items() if viewer.may_see(host)]
    facts = OverallFacts(
        Counter(row.state for row in rows if row.enabled),
        damaged=sum(count.damaged for count in bad),
        altered=sum(count.altered for count in bad),
        unchecked=("the catalogue cannot be used",) if source.problem else (),
    )
    if viewer.limited:
        return judge(facts)
    health, in_doubt = pool_health(source), read_in_doubt(source.catalogue)
    return judge(
        OverallFacts(
            facts.states,
            damaged=facts.damaged,
            altered=facts.altered,
            unchecked=facts.unchecked,
            pool=PoolVerdict(health.findings, health.unlooked),
            copies=[replica.state for replica in copies(source, viewer).replicas if replica.state],
            in_doubt=len(in_doubt.backups) if in_doubt else 0,
            alarms=active_alarms(source),
            now=source.now,
            alarms_checked=health.looked,
        )
    )
