"""The first page: the result of the night, the state of the hosts, running jobs, space in the pool, and faults."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from flask import Blueprint, abort, flash, redirect, render_template, request, url_for
from markupsafe import Markup
from werkzeug.wrappers import Response

from btrkeep.catalogue.model_alarm import CONFIGURATION
from btrkeep.charts.trend import small_chart
from btrkeep.decisions.alarm_advice import command_for
from btrkeep.decisions.drills import drill_status, proven_words, read_drills
from btrkeep.decisions.schedule import SCHEDULE_FACT, StoredSchedule, stored_schedule
from btrkeep.decisions.silences import PROBLEM_KINDS
from btrkeep.decisions.verification import last_reads, verification_sentence
from btrkeep.serving.protocol import LONGEST_REASON
from btrkeep.serving.viewer import Viewer
from btrkeep.units import format_duration, format_time
from web.alarms import OpenAlarm, open_alarms, silence_remark, silences
from web.api import STATE, ApiRequest, Endpoint
from web.copies import copies, in_a_sentence
from web.hosts import data as hosts
from web.hosts import night_sum
from web.hosts.data import HostRow
from web.hosts.night_sum import NightSum
from web.mapping import from_row
from web.page_verdict import ProblemLine, notified_by, overall, page_of_problem, problems
from web.pool.data import Outlook, PoolHealth, both_forecasts, outlooks, pool_health, trend, trend_context
from web.pool.page import painter
from web.request_values import day_of_form
from web.running import RunningNow, alive_runs, running
from web.service_client import root_service
from web.source import RequestContext, needs_all_hosts, operator_only, source, stale_after, viewer


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """The pool in its newest sample, in bytes of its devices."""

    taken: datetime
    """When it was measured."""
    size: int
    """Size of all devices."""
    allocated: int
    """Bytes in block groups."""
    used: int
    """Bytes with data or metadata."""
    unused: int
    """Allocated and not used: a balance can free this space."""
    unallocated: int
    """Not in block groups."""
    orphans: int | None
    """Number of deleted subvolumes that wait for the cleaner; null: unknown."""
    score: float | None
    """The score of the free space; null: it was not scored."""
    allocated_full: Outlook
    """When all space is allocated, by the growth of the last half year."""
    used_full: Outlook
    """When all space is used, by the growth of the last half year."""


@dataclass(frozen=True, slots=True)
class Urgent:
    """A line above everything else: a mistake of the configuration, or something that is unknown now."""

    head: str
    """Its title."""
    text: str
    """The problem; it may contain text from files and programs."""
    since: datetime | None
    """When it was last known; null: never, or it does not apply."""
    command: str
    """What to type; "": nothing."""


@dataclass(frozen=True, slots=True)
class ShownProblem:
    """A kind of problem of the verdict."""

    kind: str
    """A word for programs: a state of hosts, a check of the pool, a kind of alarm, ..."""
    level: str
    """error, warning or unknown."""
    count: int
    """Number of hosts, backups, copies or alarms."""
    words: str
    """A few words: `10 hosts failing`."""
    page: str
    """The page that shows them."""


@dataclass(frozen=True, slots=True)
class ShownVerdict:
    """The verdict about everything that the user may see, as in `backupd status`."""

    level: str
    """ok, unknown, warning or error."""
    sentence: str
    """The verdict in words."""
    problems: tuple[ShownProblem, ...]
    """The worst first; empty: all is well."""
    checked: datetime | None
    """When alarms and the pool were last checked; null: never, or the user is limited to some hosts."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The overview, as the user may see it."""

    name: str
    """The pool's name."""
    now: datetime
    """The moment."""
    configured: int
    """Number of hosts in the configuration."""
    total: int
    """The same with hosts that only have backups."""
    states: tuple[tuple[str, int], ...]
    """Number of hosts by state."""
    nights: tuple[NightSum, ...]
    """The newest first, at most two; empty: no host was tried yet."""
    schedule: StoredSchedule | None
    """What starts runs, and when the next one takes a host, as `backupd notify` found in the last hour; null: unknown."""
    last_try: datetime | None
    """When a host was last tried; null: never."""
    running: RunningNow
    """The running jobs."""
    urgent: tuple[Urgent, ...]
    """Lines above everything else."""
    pool: PoolSummary | None
    """The pool in its newest sample; null: there is none, or the user is limited to some hosts."""
    health: PoolHealth | None
    """The pool's problems; null as `pool`."""
    alarms_looked: datetime | None
    """When alarms were last checked; null: not recently, so `alarms` may be incomplete."""
    alarms: tuple[OpenAlarm, ...]
    """The open alarms."""
    limited: bool
    """Whether the user is limited to some hosts."""
    verdict: ShownVerdict
    """The verdict about all of this."""
    problems: tuple[ProblemLine, ...]
    """The problems of the verdict, a line for each cause: the worst first."""
    proven: str
    """The last proven restore, in one sentence; "": there is none."""
    verified: str
    """When data of the hosts was last verified, in one sentence; "": never. Damaged backups are in `problems`."""
    copies: str
    """The copies in other pools and from them, in one sentence; "": there are none."""


def overview(source: RequestContext, viewer: Viewer) -> Overview:
    """Returns the content of the first page."""
    config = source.config
    rows, health = hosts.visible_to(viewer, hosts.every_row(source)), pool_health(source)
    last_try, alarms = _last_try(source, viewer), open_alarms(source, viewer)
    return Overview(
        name=config.name,
        now=source.now,
        configured=sum(row.state not in hosts.NOT_OURS for row in rows),
        total=len(rows),
        states=hosts.state_counts(rows),
        nights=nights(source, viewer),
        schedule=_schedule(source, viewer),
        last_try=last_try,
        running=running(source, viewer),
        urgent=tuple(_urgent(source, viewer, health, alarms, last_try)),
        pool=None if viewer.limited else pool_summary(source),
        health=None if viewer.limited else health,
        alarms_looked=health.looked if health.is_known else None,
        alarms=alarms,
        limited=viewer.limited,
        verdict=_verdict(source, viewer),
        problems=problems(source, viewer),
        proven=_proven(source, viewer),
        verified=_verified(source, viewer),
        copies=in_a_sentence(copies(source, viewer)),
    )


def _verdict(source: RequestContext, viewer: Viewer) -> ShownVerdict:
    verdict = overall(source, viewer)
    problems = tuple(from_row(ShownProblem, problem, page=page_of_problem(problem.kind)) for problem in verdict.problems)
    checked = None if viewer.limited else pool_health(source).looked
    return ShownVerdict(verdict.level, verdict.sentence, problems, checked)


def _schedule(source: RequestContext, viewer: Viewer) -> StoredSchedule | None:
    """Returns None for a viewer who is limited to hosts, who must not see units, files of cron and the times of other hosts."""
    stored = None if viewer.limited else stored_schedule(source.catalogue.get_fact(SCHEDULE_FACT))
    return stored if stored and abs(source.now - stored.looked) <= stale_after(source) else None


def _urgent(
    source: RequestContext, viewer: Viewer, health: PoolHealth, alarms: Iterable[OpenAlarm], last_try: datetime | None
) -> Iterator[Urgent]:
    """Yields the mistakes of the configuration first. A viewer who is limited to hosts sees no names of files or of the pool."""
    for alarm in alarms:
        if alarm.subject == CONFIGURATION:
            yield Urgent(
                "Configuration",
                alarm.text,
                None,
                command_for("backupd check", source.config.name, "" if viewer.limited else source.config.call),
            )
    if source.problem:
        since, reason = source.problem
        text = "the catalogue cannot be used, so this page is not up to date" + ("" if viewer.limited else f": {reason}")
        command = "" if viewer.limited else command_for("backupd doctor", source.config.name, source.config.call)
        yield Urgent("Unknown", text, since, command)
    if health.fault:
        text = "the pool cannot be read" if viewer.limited else f"the pool cannot be read: {health.fault}"
        command = "" if viewer.limited else command_for("backupd doctor", source.config.name, source.config.call)
        yield Urgent("Unknown", text, health.pool_looked, command)
    is_late = health.looked is None and last_try is not None and source.now - last_try > stale_after(source)
    if health.is_old or is_late:
        text = "the state of the pool and of its alarms was not checked in the last hour"
        command = "" if viewer.limited else f"systemctl status btrkeep-news@{source.config.name}.timer"
        yield Urgent("Unknown", text, health.looked, command)


def nights(source: RequestContext, viewer: Viewer) -> tuple[NightSum, ...]:
    """Returns the night in progress, and the one before; cached between requests, separately for each limit of hosts."""
    return source.cached(("nights", viewer.hosts), lambda: _nights(source, viewer))


def _nights(source: RequestContext, viewer: Viewer) -> tuple[NightSum, ...]:
    config, now = source.config, source.now
    pauses = silences(source)
    mine = {name: host for name, host in config.hosts.items() if viewer.may_see(name) and not pauses.pause_of(name)}
    runs = source.catalogue.runs_since(night_sum.since(mine.values(), config.zone, now))
    pasts = hosts.past_of(source, mine)
    began = {name: past.since for name, past in pasts.items() if past.since}
    facts, alive = hosts.every_facts(source), alive_runs(source.catalogue, now)
    unknown = source.catalogue.unknown_spans()
    runs += night_sum.runs_of_backups(facts, runs, unknown)
    if not runs and _last_try(source, viewer) is None:  # no night can be missed before the first one
        return ()
    return night_sum.nights_of(night_sum.NightFacts(mine, facts, runs, alive, config.zone, now, began, unknown, config.red_share))


def _last_try(source: RequestContext, viewer: Viewer) -> datetime | None:
    """Returns when the last run of a host that the viewer may see started; without a known run, the time of the newest complete
    backup.
    """
    mine = [host_facts for name, host_facts in hosts.every_facts(source).items() if viewer.may_see(name)]
    newest = max(
        (host_facts for host_facts in mine if host_facts.last_run is not None),
        key=lambda host_facts: host_facts.last_run or 0,
        default=None,
    )
    return (
        newest.last_run_started
        if newest
        else max((host_facts.last_complete for host_facts in mine if host_facts.last_complete), default=None)
    )


def pool_summary(source: RequestContext) -> PoolSummary | None:
    """Returns the pool from its newest sample; None without one."""
    filesystem = source.config.filesystem
    sample = source.catalogue.newest_sample(filesystem) if filesystem else None
    if filesystem is None or sample is None:
        return None
    allocated, used = source.cached_for_the_hour(
        ("outlooks", filesystem), lambda: outlooks(source.catalogue, filesystem, source.now)
    )
    return from_row(
        PoolSummary,
        sample,
        unused=max(sample.allocated - sample.used, 0),
        unallocated=max(sample.size - sample.allocated, 0),
        allocated_full=allocated,
        used_full=used,
    )


def _verified(source: RequestContext, viewer: Viewer) -> str:
    catalogue, now = source.catalogue, source.now
    looks = source.cached(("looks",), lambda: last_reads(catalogue, catalogue.oldest_backups(), now))
    mine = {host: last for host, last in looks.items() if viewer.may_see(host)}
    return verification_sentence(mine, 0, source.now)  # the damaged backups are among the problems


def _proven(source: RequestContext, viewer: Viewer) -> str:
    """Returns the last proven restore of a host that the viewer may see, in one sentence; "" if there is none."""
    drills = {host: drill_results for host, drill_results in read_drills(source.catalogue).items() if viewer.may_see(host)}
    status = drill_status(drills, drills, 0.0, source.now)
    return f"{proven_words(status.last)}, {format_duration(status.age)} ago" if status.last else ""


blueprint = Blueprint("overview", __name__)

_DAYS = 90


@dataclass(frozen=True, slots=True)
class Picture:
    """A heatmap."""

    address: str
    """The address of the picture."""
    taken: datetime
    """The time of the data that it shows."""


@blueprint.get("/")
def index() -> str:
    """Shows the overview."""
    here, who = source(), viewer()
    current = overview(here, who)
    return render_template(
        "overview/overview.html",
        page=current,
        now=_present(here, who),
        nights=current.nights,
        running=current.running,
        **_drawn(here, current),
    )


@blueprint.get("/overview/rest")
def rest() -> str:
    """Returns the proofs, the copies and the pool, for the page to refresh."""
    here = source()
    current = overview(here, viewer())
    return render_template("overview/rest.html", page=current, **_drawn(here, current))


def _drawn(here: RequestContext, current: Overview) -> dict[str, Markup | Picture | None]:
    """Returns the drawings of the pool; None without a pool that the viewer may see."""
    return {"chart": space_chart(here) if current.pool else None, "picture": _picture(here) if current.pool else None}


@dataclass(frozen=True, slots=True)
class SilencedProblem:
    """A host, a group or a kind of problem that is silenced until a date."""

    kind: str
    """host, group or problem."""
    name: str
    """Its name."""
    words: str
    """Until when, by whom and why."""
    problem: str
    """The present state and error of the host; "": there is none, or it is not one host."""


def _silenced(here: RequestContext, who: Viewer, rows: Sequence[HostRow]) -> tuple[SilencedProblem, ...]:
    states = {
        row.host: f"{row.state}{f': {row.words}' if row.words and not who.limited else ''}" for row in rows if row.state != "ok"
    }
    visible = silences(here).visible_to(who.may_see, limited=who.limited)
    widest_first = sorted(visible, key=lambda row: row.kind == "host")  # the page cuts a long list
    return tuple(
        SilencedProblem(row.kind, row.name, silence_remark(row, who), states.get(row.name, "") if row.kind == "host" else "")
        for row in widest_first
    )


@dataclass(frozen=True, slots=True)
class Present:
    """The top of the page: the verdict, the tiles, and the list of problems."""

    verdict: ShownVerdict
    """The verdict."""
    problems: tuple[ProblemLine, ...]
    """The problems."""
    tiles: tuple[tuple[str, bool, int], ...]
    """Of each tile the state or flag of its filter, whether it is a flag, and the number of hosts."""
    total: int
    """Number of hosts."""
    by: str
    """The kinds of services that get alarms; "": none, or unknown."""
    has_no_service: bool
    """Whether no service gets alarms."""
    silenced: tuple[SilencedProblem, ...]
    """The silences, each with the present problem."""

    @property
    def kinds_to_silence(self) -> tuple[str, ...]:
        """Returns the kinds of problems that can be silenced."""
        return PROBLEM_KINDS


def _present(here: RequestContext, who: Viewer) -> Present:
    rows = hosts.visible_to(who, hosts.every_row(here))
    states = [(state, False, count) for state, count in hosts.state_counts(rows)]
    flags = [(flag, True, count) for flag, count in hosts.flag_counts(rows)]
    no_service = not who.limited and here.config.services == ()
    silenced = _silenced(here, who, rows)
    return Present(_verdict(here, who), problems(here, who), (*states, *flags), len(rows), notified_by(here), no_service, silenced)


@blueprint.get("/overview/verdict")
def verdict() -> str:
    """Returns the verdict with the tiles and the problems, for the page to refresh."""
    return render_template("overview/present.html", now=_present(source(), viewer()))


@blueprint.get("/overview/silence")
@operator_only
@needs_all_hosts
def silence() -> str:
    """Shows the form that silences a kind of problem or a group, or ends that."""
    kind, name = _subject(request.args)
    active = next((row for row in silences(source()).active if row.key == (kind, name)), None)
    words = silence_remark(active, viewer()) if active else ""
    return render_template("overview/silence.html", kind=kind, name=name, words=words, most=LONGEST_REASON)


@blueprint.post("/overview/silence")
@operator_only
@needs_all_hosts
def put_silence() -> Response:
    """Requests the silence, or its end, from the root service."""
    kind, name = _subject(request.form)
    arguments: dict[str, str] = {}
    if "end" not in request.form:
        until = day_of_form("until", source().config.zone) or abort(400, "give the day on which it ends")
        arguments = {"until": format_time(until), "why": " ".join(request.form.get("why", "").split())}
    root_service().ask("silence", **{kind: name}, **arguments)
    flash(f"{name} is silenced." if arguments else f"{name} is no longer silenced.")
    return redirect(url_for("overview.index"), 303)


def _subject(given: Mapping[str, str]) -> tuple[str, str]:
    """Returns the kind and the name of the request; aborts if it names nothing that can be silenced here."""
    kind = "problem" if "problem" in given else "group"
    name = given.get(kind, "")
    groups = {host.group for host in source().config.hosts.values()}
    if name not in (PROBLEM_KINDS if kind == "problem" else groups) or not name:
        abort(404, "there is no such group or kind of problem")
    return kind, name


@blueprint.get("/overview/night")
def night() -> str:
    """Returns the state of the night, for the page to refresh."""
    here = source()
    return render_template("overview/night.html", nights=nights(here, viewer()))


@blueprint.get("/overview/running")
def now() -> str:
    """Returns the running jobs, for the page to refresh."""
    return render_template("overview/running.html", running=running(source(), viewer()))


def space_chart(here: RequestContext) -> Markup | None:
    """Draws allocated and used space over three months; None if the filesystem is unknown."""
    filesystem = here.config.filesystem
    if filesystem is None:
        return None
    return here.cached_for_the_hour(("space-chart", filesystem), lambda: _space_chart(here, filesystem))


def _space_chart(here: RequestContext, filesystem: str) -> Markup | None:
    months = trend(here.catalogue, filesystem, here.now, _DAYS)
    _, used = both_forecasts(here.catalogue, filesystem, here.now)
    context = trend_context(here.catalogue, filesystem, months, here.config.used_limit, used)
    return small_chart(months, here.config.zone, context)


def _picture(here: RequestContext) -> Picture | None:
    """Returns the newest heatmap; None without one."""
    recorded = painter().states.gallery(here.config.filesystem).recorded
    return Picture(url_for("pool.picture_latest"), recorded[-1].taken) if recorded else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewAnswer(Overview):
    """The content of the overview."""

    sentence: str | None
    """The result of the newest night; null: there was none yet."""


def _answer(asked: ApiRequest) -> OverviewAnswer:
    current = overview(asked.source, asked.viewer)
    sentence = current.nights[0].sentence if current.nights else None
    return from_row(OverviewAnswer, current, sentence=sentence)


ENDPOINTS = (
    Endpoint("GET", "/overview", "overview", STATE, "Summary of the newest night and of all hosts", OverviewAnswer, _answer),
)
