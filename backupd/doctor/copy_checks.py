"""Findings of `backupd check` and `doctor` about copies and optional steps: drills, scrubs, verification, offsite checks.

With a connection they also report whether the other server of each copy answers.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from shutil import which
from typing import Any

from backupd.health.status_report import last_verified
from backupd.replicate.fetch_plan import lacking_room, wants
from backupd.replicate.push import RECEIVES_NOT
from backupd.replicate.remote_pool import connected, own_modules, push_command, remote_shell, send_command, unreached_hint
from backupd.replicate.sender import request_lines
from backupd.replicate.wire import ConnectionBroken, parse_object, size_in, time_in
from backupd.repo.common_backups import common_with
from backupd.repo.pool_context import open_configured
from backupd.repo.publish import known_copies
from backupd.rsync.cell import PROGRAM
from btrkeep import __version__
from btrkeep.catalogue import Catalogue
from btrkeep.config import Config
from btrkeep.config.config_model import CopySettings, PushSettings, ReplicaSettings
from btrkeep.config.reading import backupd_command
from btrkeep.decisions.copy_status import (
    COPIES,
    OFFSITE,
    REPLICA,
    CopyState,
    CopyStatus,
    KnownCopies,
    age_words,
    copies_of,
    copy_statuses,
    done_words,
    offsite_newest,
    remedy,
)
from btrkeep.decisions.findings import UNKNOWN, WARNING, Finding
from btrkeep.decisions.pool_health import room_advice
from btrkeep.decisions.repeated import CHECK, read_steps, repeated_failures, repeated_findings
from btrkeep.errors import OperatorError, last_remote_error
from btrkeep.pool.allocation import read_room
from btrkeep.pool.marker import open_pool
from btrkeep.process.programs import ProgramFailed, piped, run
from btrkeep.units import counted, format_duration, format_size, local_time, names_in_words, printable

_CHECK = "replica"
_MARK = "btrkeep-any-command"
_SECONDS = 60.0
_CLOCKS_AGREE = 300.0  # seconds


def check_copies(config: Config, now: datetime | None = None) -> Iterator[Finding]:
    """Yields findings about copies, about receiving, and about hosts without a copy, from the catalogue and the pool's notes."""
    without = config.backup.confine == "never"
    if any(replica.folder is None or not without for replica in config.replicas.values()) and not which(PROGRAM):
        why = "bubblewrap is not installed: without it this server receives no backups of other pools"
        yield Finding(_CHECK, "error", why, "`apt install bubblewrap`")
    for replica in config.replicas.values():
        if replica.folder and _is_here(config, replica.folder):
            why = f"{replica.folder} is on the same filesystem as this pool: if that is lost, the copy is lost too"
            yield Finding(_CHECK, "warning", why, "put one of them on another disk", subject=f"replica {replica.name}")
    with suppress(OperatorError):  # another finding reports the catalogue
        with Catalogue.open_readonly(config.pool.state) as catalogue:
            statuses = copy_statuses(config.copies, catalogue, now or datetime.now(UTC))
            copies = copies_of(catalogue.get_fact(COPIES))
            with suppress(OperatorError, OSError):  # other findings report the pool
                copies = known_copies(open_configured(config), copies)
            offsite = {host for name in config.offsites for host in offsite_newest(catalogue, name)}
        for copy in statuses:
            yield _of_status(copy)
            yield from _besides(config, copy)
        yield from _fetched(config, copies)
        yield from _without_a_copy(config, copies, offsite)


def _is_here(config: Config, folder: Path) -> bool:
    try:
        return open_pool(folder).filesystem == open_configured(config).filesystem
    except OperatorError:  # it is absent, or this pool is; another check reports that
        return False


def _of_status(copy: CopyStatus[CopySettings]) -> Finding:
    kind, name = copy.replica.kind, copy.replica.name
    subject, done = f"{kind} {name}", done_words(kind)
    hint = remedy(kind, name)
    match copy.state:
        case CopyState.OK if copy.session and copy.session.newest and copy.is_stale:
            text = f"{age_words(kind, copy.age)}, and began {local_time(copy.session.newest)}"
            if kind == OFFSITE:
                text, hint = (
                    f"{text}: there was no newer backup to send",
                    ("`backupd status` shows why this pool makes no newer backup"),
                )
            else:
                text = (
                    f"{done} {format_duration(copy.age)} ago, but the newest copied backup began {local_time(copy.session.newest)}"
                )
                hint = "run `backupd status` on the server that makes these backups"
            return Finding(_CHECK, "warning", text, hint, subject=subject)
        case CopyState.OK:
            text = age_words(kind, copy.age) if kind == OFFSITE else f"{done} {format_duration(copy.age)} ago"
            return Finding(_CHECK, "ok", text, subject=subject)
        case CopyState.NEVER:
            if kind == OFFSITE:
                hint = (
                    f"`backupd offsite init {name}` creates the repository, unless it exists; then run `backupd offsite run {name}`"
                )
            return Finding(_CHECK, "note", f"never {done}", hint, subject=subject)
        case CopyState.LATE:
            text = age_words(kind, copy.age) if kind == OFFSITE else f"not {done} for {format_duration(copy.age)}"
            return Finding(_CHECK, "warning", text, hint, subject=subject)
    why = copy.error or f"{copy.behind[0].host}: {copy.behind[0].error}"
    more = f" (and {counted(len(copy.behind) - 1, 'more host')})" if len(copy.behind) > 1 and not copy.error else ""
    return Finding(_CHECK, "warning", printable(why) + more, hint, subject=subject)


def _besides(config: Config, copy: CopyStatus[CopySettings]) -> Iterator[Finding]:
    """Yields hosts that the other pool no longer lists, and whether there is space for another replication as large as the
    newest.
    """
    if copy.replica.kind != REPLICA:
        return
    subject = f"replica {copy.replica.name}"
    if copy.gone:
        verb = "is" if len(copy.gone) == 1 else "are"
        gone = names_in_words([host_lag.host for host_lag in copy.gone], noun="host")
        text = f"{gone} {verb} no longer listed by the other server; the copies here are kept"
        hint = (
            f"check the other server; `backupd forget {copy.gone[0].host}` if the host was retired, or `backupd promote "
            f"{copy.gone[0].host}` to back it up here"
        )
        yield Finding(_CHECK, "warning", text, hint, subject=subject)
    try:
        room = read_room(config.pool.path)
    except OSError:  # another check reports it
        return
    free = room.available - config.pool.min_free.bytes_of(room.total)
    if copy.session and 0 < free < copy.session.bytes:
        text = (
            f"the newest replication fetched {format_size(copy.session.bytes)}, but only {format_size(free)} are free above "
            "min_free"
        )
        yield Finding(_CHECK, "warning", text, room_advice(config), subject=subject)


def _fetched(config: Config, copies: KnownCopies) -> Iterator[Finding]:
    """Yields hosts that are copies but are configured as if they were backed up here, and copies that no replica fetches any
    longer.
    """
    for name in sorted(set(copies.fetched.values())):
        subject, replica = f"replica {name}", config.replicas.get(name)
        hosts = sorted(host for host, replica in copies.fetched.items() if replica == name)
        if configured := [host for host in hosts if host in config.hosts]:
            text = (
                f"{names_in_words(configured, noun='host')}: configured here, but fetched from the other server: not backed up here"
            )
            hint = f"`backupd promote {configured[0]}` to back the host up here, or remove it from the configuration"
            yield Finding(_CHECK, "note", text, hint, subject=subject)
        if left := [host for host in hosts if not (replica and wants(replica, host))]:
            verb = "is a copy" if len(left) == 1 else "are copies"
            text = f"{names_in_words(left, noun='host')} {verb} from the other server, and no longer fetched or backed up"
            hint = f"add the host to `hosts` in [replica.{name}], or `backupd promote {left[0]}` to back it up here"
            yield Finding(_CHECK, "warning", text, hint, subject=subject)


def _without_a_copy(config: Config, copies: KnownCopies, offsite: set[str]) -> Iterator[Finding]:
    """Yields a note about hosts that are backed up here and have no recorded copy, if other hosts have copies."""
    covered = {host for of in copies.common.values() for host in of} | offsite
    alone = [name for name, host in config.hosts.items() if host.enabled and name not in covered and name not in copies.fetched]
    if (copies.common or config.offsites) and alone:
        text = f"there is no copy of {names_in_words(alone, noun='host')}"
        hint = "check `hosts` of the replica on the other server, --host in authorized_keys here, and `hosts` in [offsite.NAME]"
        yield Finding(_CHECK, "note", text, hint, subject="copies")


def reach_copies(config: Config) -> Iterator[Finding]:
    """Yields a finding for each other pool: whether it answers, and whether the key permits more commands than it should."""
    for push in config.pushes.values():
        yield from _reach_push(config, push)
    for replica in config.replicas.values():
        if replica.is_pushed:
            continue
        try:
            with connected(send_command(config, replica, [])) as far:
                count = sum(1 for _ in far.hosts())
                pool = open_configured(config)
                itself = far.id == pool.id
                clock = far.now
                lacking = "" if common_with(pool, replica.name) else lacking_room(config, far)
        except OperatorError as error:
            level = "note" if replica.comes_and_goes else "error"
            yield Finding(_CHECK, level, printable(error.message), error.hint, subject=f"replica {replica.name}")
            continue
        if itself:
            yield Finding(
                _CHECK,
                "error",
                "the other pool is this pool itself",
                "correct `address` or `folder`",
                subject=f"replica {replica.name}",
            )
            continue
        text = f"reached, btrkeep {far.version}, {counted(count, 'host')} to fetch" + _room_words(far.free, far.used)
        against = [*(_of_key(config, replica, "send-only") if replica.address else ()), *_of_clock(replica, clock)]
        if lacking:
            hint = "enlarge this pool, name fewer `hosts`, or keep fewer backups, before the first replication"
            against.append(Finding(_CHECK, "warning", lacking, hint, subject=f"replica {replica.name}"))
        yield from _of_version(replica, far.version)
        yield from against or [Finding(_CHECK, "ok", text, subject=f"replica {replica.name}")]


def _room_words(free: int | None, used: int | None) -> str:
    words = [f"{format_size(size)} {use} there" for size, use in ((used, "used"), (free, "free")) if size is not None]
    return "".join(f", {word}" for word in words)


def _of_version(copy: ReplicaSettings | PushSettings, version: str) -> Iterator[Finding]:
    if version != __version__:
        text = f"the other server runs btrkeep {version}, and this server {__version__}"
        hint = "install the same version on both servers when you can; until then they work if both have the same protocol"
        yield Finding(_CHECK, "note", text, hint, subject=f"{copy.kind} {copy.name}")


def _reach_push(config: Config, push: PushSettings) -> Iterator[Finding]:
    """Yields whether the other server answers: it lists its hosts, or nothing arrives."""
    subject = f"push {push.name}"
    with piped(push_command(config, push), own_modules()) as program:
        end = time.monotonic() + _SECONDS
        asked = next(request_lines(program.output, lambda: time.monotonic() > end), b"")
        program.end()
        lines = program.error_lines()
    error = last_remote_error(lines)
    if b'"hello"' not in asked:
        why = printable(error)[:1000] if error else "the other server does not answer"
        yield Finding(_CHECK, "error", why, unreached_hint(lines) or RECEIVES_NOT, subject=subject)
        return
    answer = _parse_answer(asked)
    version = printable(str(answer["version"]))[:40] if answer.get("version") else ""
    text = "reached, and ready to receive backups" + (f", btrkeep {version}" if version else "")
    text += _room_words(size_in(answer, "free"), size_in(answer, "used"))
    if version:
        yield from _of_version(push, version)
    against = [*_of_key(config, push, "receive-only"), *_of_clock(push, time_in(answer))]
    yield from against or [Finding(_CHECK, "ok", text, subject=subject)]


def _parse_answer(asked: bytes) -> dict[str, Any]:
    """Returns the other server's description of itself; empty if it is invalid."""
    try:
        return parse_object(asked)
    except ConnectionBroken:
        return {}


def _of_key(config: Config, copy: ReplicaSettings | PushSettings, command: str) -> Iterator[Finding]:
    subject = f"{copy.kind} {copy.name}"
    try:
        is_unlimited = _runs_any_command(config, copy)
    except ProgramFailed as error:
        text = f"it is unknown whether the key can run any command on the other server: {printable(error.message)}"
        yield Finding(_CHECK, UNKNOWN, text, "run `backupd check --connect` again when the other server answers", subject=subject)
        return
    if is_unlimited:
        why = "the key can run any command on the other server: an attacker on this server also controls that one"
        hint = f'put restrict,command="backupd {command} --replica NAME" before the key in that server\'s authorized_keys'
        yield Finding(_CHECK, "warning", why, hint, subject=subject)


def _of_clock(copy: ReplicaSettings | PushSettings, remote_time: datetime | None) -> Iterator[Finding]:
    ahead = (remote_time - datetime.now(UTC)).total_seconds() if remote_time else 0.0
    if abs(ahead) > _CLOCKS_AGREE:
        why = f"the other server's clock is {format_duration(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this one"
        hint = "run `timedatectl` on both servers; backups with a time in the future are not fetched"
        yield Finding(_CHECK, "warning", why, hint, subject=f"{copy.kind} {copy.name}")


def _runs_any_command(config: Config, replica: ReplicaSettings | PushSettings) -> bool:
    """Raises ProgramFailed if the other server does not answer."""
    command = [*remote_shell(config, replica), replica.address or "", f"echo {_MARK}"]
    done = run(command, check=False, timeout=_SECONDS)
    if done.returncode == 255:  # ssh itself failed
        raise ProgramFailed(done)
    return _MARK in done.stdout


_VERIFICATION = "verification"


def check_steps(config: Config, now: datetime) -> Iterator[Finding]:
    """Yields a finding for each step that did not complete several times in a row, and one for hosts whose data was not read for
    too long. An unreadable catalogue has a finding of its own.
    """
    command = backupd_command(config.name, config.file)
    try:
        filesystem = None
        with suppress(OperatorError, OSError):  # other findings report the pool
            filesystem = open_configured(config).filesystem
        with Catalogue.open_readonly(config.pool.state) as catalogue:
            failures = repeated_failures(read_steps(catalogue, filesystem), now)
            _, unverified = last_verified(config, catalogue, now)
    except (OperatorError, OSError):
        return
    yield from repeated_findings(failures, command)
    if unverified:
        text = f"no backup of {names_in_words(unverified, 1, 'host')} was read for {format_duration(config.verify.oldest)}"
        hint = (
            f"check that the timer btrkeep-verify@ or btrkeep-scrub@ is enabled; `{command} verify {unverified[0]}` reads "
            "this host now"
        )
        yield Finding(CHECK, WARNING, text, hint, subject=_VERIFICATION)
