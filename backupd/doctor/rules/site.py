"""Rules about the machine and the configuration."""

import shlex
from collections.abc import Iterator
from dataclasses import replace

from backupd.doctor.doctor_facts import DoctorFacts, DoctorRule, KeyFile, backupd, diagnosis, unless
from backupd.rsync.command import OLDEST, SAFE
from btrkeep.config.reading import FOLDER
from btrkeep.decisions import findings as health
from btrkeep.decisions.findings import Finding, FixCommand, Remedy, privilege_findings
from btrkeep.decisions.pool_health import clock_findings
from btrkeep.decisions.schedule import ScheduleVerdict, cron_line, schedule_hint
from btrkeep.trusted_path import MOVE_STATE
from btrkeep.trusted_path import remedy as trusted_again
from btrkeep.units import counted, printable


def _rsync(facts: DoctorFacts) -> Iterator[Finding]:
    numbers = facts.machine.rsync
    if numbers is None or numbers >= SAFE:
        return
    version, wanted = ".".join(map(str, numbers)), ".".join(map(str, SAFE))
    yield diagnosis(
        "rsync",
        "error" if numbers < OLDEST else "warning",
        f"rsync {version} is too old" if numbers else "there is no rsync",
        f"a hostile host can attack this server through known vulnerabilities before {wanted}"
        if numbers
        else "btrkeep makes backups with it",
        "none known",
        (
            "apt update && apt install rsync",
            "# Debian's security updates may fix the vulnerabilities in an older version: see its changelog",
        ),
    )


def _privileges(facts: DoctorFacts) -> Iterator[Finding]:
    for privilege_finding in privilege_findings(facts.machine.capabilities, root=facts.machine.is_root):
        why = "the jobs that need it fail every night, and backups are incomplete"
        yield replace(privilege_finding, subject="", remedy=Remedy(why, "none known", (f"# {privilege_finding.hint}",)))


def _confinement(facts: DoctorFacts) -> Iterator[Finding]:
    site = facts.site
    if not site.unconfined:
        return
    yield diagnosis(
        "confinement",
        "note" if site.confine == "never" else "warning",
        f"rsync was not confined when it backed up {site.unconfined}",
        "a host that takes over rsync is root on this server, and can change all other backups",
        "none. A container must allow namespaces and pidfd_getfd(2)",
        (
            *(
                (f'# in {site.file}, [backup]: confine = "auto"',)
                if site.confine == "never"
                else ("command -v bwrap || apt install bubblewrap",)
            ),
            f"{backupd(site, 'check')}   # shows whether it can be confined, or why not",
        ),
    )


def _key(facts: DoctorFacts) -> Iterator[Finding]:
    for key in filter(None, (facts.site.key, facts.site.restore_key)):
        yield from ssh_key(key)


def ssh_key(key: KeyFile) -> Iterator[Finding]:
    """Yields the problems of the private key; nothing if it cannot be read."""
    if key.hidden or (key.mode is not None and not key.mode & 0o077):
        return
    if key.mode is None:
        command = f"ssh-keygen -t ed25519 -N '' -f {shlex.quote(str(key.path))}"
        yield diagnosis(
            "ssh-key",
            "error",
            f"{printable(str(key.path))} is missing",
            "ssh needs it to connect to hosts",
            "none; add its public key to every host",
            (command,),
            hint=f"`{command}`",
        )
        return
    step = FixCommand(("chmod", "600", str(key.path)))
    yield diagnosis(
        "ssh-key",
        "error",
        f"{printable(str(key.path))} has mode {key.mode:04o}: others can read it, so ssh refuses it",
        "a user who has the key can run every command that the hosts' authorized_keys allow for it",
        "none. Users who could read it may have copied it: consider a new key",
        steps=(step,),
        hint=f"`{step.line}`",
    )


def _known_hosts(facts: DoctorFacts) -> Iterator[Finding]:
    yield from known_hosts(facts.site.known_hosts) if facts.site.known_hosts else ()


def known_hosts(key_file: KeyFile) -> Iterator[Finding]:
    """Yields the problems of the known_hosts file; nothing if it cannot be read."""
    if key_file.hidden:
        return
    if key_file.mode is None or key_file.empty:
        command = f"ssh-keyscan HOST >> {shlex.quote(str(key_file.path))}"
        yield diagnosis(
            "known-hosts",
            "error",
            f"{printable(str(key_file.path))} {'is missing' if key_file.mode is None else 'contains no host key'}",
            "ssh does not connect to a host whose key is not in this file",
            "ssh-keyscan accepts any machine that answers: compare the keys with those on the hosts",
            (command,),
            hint=f"`{command}`, and compare the keys with the hosts' own",
        )
    elif key_file.mode & 0o022:
        step = FixCommand(("chmod", "go-w", str(key_file.path)))
        yield diagnosis(
            "known-hosts",
            "error",
            f"{printable(str(key_file.path))} has mode {key_file.mode:04o}: others can write to it",
            "users who can write to it can make ssh accept another machine instead of a host",
            "none. Afterwards compare the keys in it with those on the hosts",
            steps=(step,),
            hint=f"`{step.line}`",
        )


def _retention(facts: DoctorFacts) -> Iterator[Finding]:
    unruled = facts.site.unruled
    if not unruled:
        return
    hosts = ", ".join(unruled[:3]) + (" and others" if len(unruled) > 3 else "")
    yield diagnosis(
        "retention",
        "note",
        f"no retention is configured for {counted(len(unruled), 'host')}: {hosts}",
        "all their backups are kept for ever, until the pool is full",
        "backups that no rule keeps expire. `backupd retention explain --policy daily=14` shows which, before you configure it",
        (f"# in {facts.site.file}:", "#   [retention]", "#   daily = 14", "#   weekly = 13", "#   monthly = 12"),
    )


def _schedule(facts: DoctorFacts) -> Iterator[Finding]:
    verdict = facts.site.schedule
    why = "a run backs up hosts that are due and whose window is open; without a run at that time there is no backup"
    for finding in facts.verdict.of(health.SCHEDULE):
        lines = (finding.hint, f"systemctl list-timers 'btrkeep-*@{facts.site.name}.timer'   # when they start")
        yield replace(
            finding, remedy=Remedy(why, "none: a run in which nothing is due ends at once", lines[: 1 + verdict.by_units])
        )
    if verdict.by_hand:
        yield by_hand(verdict, why)


def by_hand(verdict: ScheduleVerdict, why: str = "") -> Finding:
    """Returns the note about a configuration whose runs are started manually."""
    text = f"nothing starts the backups; btrkeep's systemd units only read configurations named {FOLDER}/NAME.toml"
    line = cron_line(verdict)
    commands = (f"# in /etc/cron.d/btrkeep-{verdict.pool}:", f"#   {line}")
    return diagnosis("schedule", "note", text, why, "none", commands, hint=schedule_hint(verdict))


def _clock(facts: DoctorFacts) -> Iterator[Finding]:
    for clock_finding in clock_findings(facts.site.clock_doubt, facts.machine.clock):
        if clock_finding.level in _CLOCK:
            yield replace(clock_finding, remedy=_CLOCK[clock_finding.level])


_CLOCK = {
    health.WARNING: Remedy(
        "backups are named, and expire, by this clock: while it may be wrong, expiry deletes nothing, or less",
        "none; when the clock is right, expiry continues after the next night",
        ("timedatectl   # the time, and its source",),
    ),
    health.NOTE: Remedy(
        "backups are named, and expire, by this clock. A clock that jumps forward stops expiry, and a clock that drifts is not "
        "noticed. A container, or a virtual machine whose host sets the clock, needs nothing",
        "none; a clock that is far off jumps once",
        ("apt install chrony", "timedatectl   # shows when it is synchronised"),
    ),
}


def _replica(facts: DoctorFacts) -> Iterator[Finding]:
    for finding in facts.site.copies:
        if finding.level != health.OK:
            remedy = Remedy(
                "a fire, a thief or a stolen root password can destroy all backups of one server at once",
                "none: fetched backups replace nothing",
                (f"# {finding.hint}", f"{backupd(facts.site, 'status')}   # each replica, and the hosts that are behind"),
            )
            text = f"{finding.subject}: {finding.text}" if finding.subject else finding.text
            yield replace(finding, text=text, remedy=remedy)


def _steps(facts: DoctorFacts) -> Iterator[Finding]:
    for finding in facts.site.steps:
        remedy = Remedy(
            "a drill, a scrub or a check that never completes proves nothing",
            "none, except the load",
            (f"# {finding.hint}",),
        )
        text = finding.text if finding.subject in finding.text else f"{finding.subject}: {finding.text}"
        yield replace(finding, text=text, remedy=remedy)


def _catalogue(facts: DoctorFacts) -> Iterator[Finding]:
    for finding in facts.verdict.of(health.CATALOGUE):
        remedy = Remedy(
            "the displayed history is not that of this pool, and with another pool's catalogue no backup starts",
            "rebuild creates a catalogue from this pool's backups; change `state` first, so that the other pool keeps its "
            "catalogue",
            (f"# check that `state` in {facts.site.file} is this pool's own folder, and mounted", backupd(facts.site, "rebuild")),
        )
        yield replace(finding, remedy=remedy)
    if step := facts.site.untrusted_state:
        yield diagnosis(
            "catalogue",
            "error",
            f"{printable(str(step.place))} {step.reason}, who could replace the catalogue: root does not use it",
            "backups and expiry continue without a catalogue, but nothing is recorded, and pages show old data",
            "programs of that user or group can no longer write there; they can still read",
            (trusted_again(step, f"# {MOVE_STATE}"),),
        )


_BLIND_TO_CATALOGUE = unless(
    lambda facts: facts.site.catalogue.foreign is not None, "the catalogue cannot be read: `backupd check` shows why"
)
_BLIND_TO_COPIES = unless(
    lambda facts: facts.site.catalogue.foreign == "",
    "the catalogue cannot be read, or is another pool's: `backupd check` shows why",
)
_BLIND_TO_RSYNC = unless(lambda facts: facts.machine.rsync is not None, "rsync does not report its version")
_BLIND_TO_CLOCK = unless(
    lambda facts: facts.machine.clock is not None,
    "the kernel does not let a service read the state of its clock",
)


def _unseen_starts(facts: DoctorFacts) -> str:
    return facts.site.schedule.unknown


def _hidden(file: KeyFile | None) -> str:
    return file.hidden if file else ""


RULES = (
    DoctorRule("catalogue", ("error",), "the catalogue belongs to another pool, was lost, or could be replaced", _catalogue,
         blind=_BLIND_TO_CATALOGUE),
    DoctorRule("rsync", ("warning", "error"), f"an rsync before {'.'.join(map(str, SAFE))}", _rsync, blind=_BLIND_TO_RSYNC),
    DoctorRule("privileges", ("warning", "error"), "a capability that backups need is missing, as in a container", _privileges),
    DoctorRule("confinement", ("note", "warning"), "the rsync that talks to hosts is not confined", _confinement),
    DoctorRule("ssh-key", ("error",), "the private key is missing, or others can read it", _key, fixable=True,
         blind=lambda facts: _hidden(facts.site.key)),
    DoctorRule("known-hosts", ("error",), "known_hosts is missing or empty, or others can write to it", _known_hosts, fixable=True,
         blind=lambda facts: _hidden(facts.site.known_hosts)),
    DoctorRule("replica", ("note", "warning", "error"), "a copy that fails, is late, or does not have all hosts", _replica,
         blind=_BLIND_TO_COPIES),
    DoctorRule("repeated", ("warning",), "an optional step, such as a drill, that repeatedly does not complete", _steps,
         blind=_BLIND_TO_COPIES),
    DoctorRule("retention", ("note",), "hosts without a retention rule", _retention),
    DoctorRule("schedule", ("note", "warning"), "hosts that no timer, cron or other program backs up in time", _schedule,
         blind=_unseen_starts),
    DoctorRule("clock", ("note", "warning"), "the clock is not synchronised, or is wrong", _clock, blind=_BLIND_TO_CLOCK),
)  # fmt: skip
