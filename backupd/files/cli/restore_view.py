"""The output of `backupd restore`: the plan, progress, the result, and after an error other copies of the host."""

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backupd.files.backup_selector import Restorable
from backupd.files.cli.opened_backup import remark_lines
from backupd.files.conflict_policy import ALL, ENTERED, KEPT, NEW, OVERWRITTEN, REFUSED, SAME
from backupd.files.entry_words import shown
from backupd.files.restore_types import RestoreCount, RestorePreview, RestoreProgress, RestoreResult, Withheld
from btrkeep.cli.output import ProgressLine, say
from btrkeep.config import Config
from btrkeep.config.config_model import OffsiteSettings
from btrkeep.config.values import without_credentials
from btrkeep.errors import OperatorError
from btrkeep.units import counted, format_duration, format_size, parse_backup_name

if TYPE_CHECKING:  # only a restore to a host needs asyncio and ssh: a quarter of a restore's start
    from backupd.files.to_folder import LocalRestore
    from backupd.files.to_host import HostRestore
    from btrkeep.decisions.copy_status import (
        KnownCopies,  # only after an error
        OtherCopy,
    )

_LEAST_FOR_RATE = 1 << 20
_LINES_EVERY = 5.0
_PLACES = 10
_SHOWN = 20
_STATES = {
    "suspect": "lost or missed too much",
    "failed": "incomplete: a source path was missing or failed",
    "expired": "it will be deleted: `backupd hold` keeps it",
}
_WORDS = {
    NEW: "new",
    OVERWRITTEN: "to be overwritten",
    SAME: "already there, equal",
    KEPT: "already there, kept",
    ENTERED: "existing folders",
    REFUSED: "already there, different",
}
_TOP = "/btrkeep/data"  # where restic has the host's /: the cell of backupd.offsite.restic shows it there
_TARGET = "/mnt/restored"
_PATTERN = {ord(letter): f"\\{letter}" for letter in "\\*?["}


def say_backup(backup: Restorable, paths: Sequence[bytes]) -> None:
    """Prints the name and the state of the backup, and warnings about it and these paths."""
    warning = _STATES.get(backup.state)
    say(f"from {backup.host}@{backup.name}, {backup.state}" + (f" ({warning})" if warning else ""))
    for line in remark_lines(backup.record, paths):
        say(f"note: {line}")


def say_plan(restore: "LocalRestore | HostRestore", preview: RestorePreview) -> None:
    """Prints what would happen."""
    from backupd.files.restore_request import places

    every = places(restore)
    for path, place in every[:_PLACES]:
        say(f"{shown(path)} -> {shown(place)}")
    if len(every) > _PLACES:
        say(f"and {counted(len(every) - _PLACES, 'more path')}")
    kinds = f"{counted(preview.files, 'file')}, {counted(preview.folders, 'folder')}, {counted(preview.others, 'other')}"
    say(f"{kinds}; {format_size(preview.size)}")
    for step, words in _WORDS.items():
        count = preview.counts[step]
        if count.number:
            say(f"{count.number:>9,} {words}" + (f", {format_size(count.size)}" if count.size else ""))
            if step in (OVERWRITTEN, KEPT, REFUSED):
                _samples(count)
    _say_withheld(preview.withheld)
    if preview.reflinks:
        say("the data is shared with the backup (the same btrfs): it needs no space and almost no time")
    elif preview.needed is not None and preview.free is not None:
        say(f"{format_size(preview.needed)} are needed, {format_size(preview.free)} are free at the destination")


def _say_withheld(withheld: Withheld) -> None:
    """Prints the privileges that are not restored, and the option that restores them."""
    for count, before, noun in (
        (withheld.devices, "skipped: ", "device node"),
        (withheld.setuid, "setuid or setgid bits removed from ", "file"),
        (withheld.capabilities, "capabilities removed from ", "file"),
    ):
        if count.number:
            say(f"{before}{counted(count.number, noun)}")
            _samples(count)
    if withheld.number:
        say("they would take effect on this machine at once; to restore them too, add --privileged")


def _samples(count: RestoreCount) -> None:
    for place, why in count.samples[:_SHOWN]:
        say(f"            {shown(place)}: {why}")
    if count.number > _SHOWN:
        say(f"            and {count.number - _SHOWN:,} more")


def result_line(done: RestoreResult) -> str:
    """Returns the first line of the result: the restored files, and whether something failed."""
    written, total = (
        done.counts[NEW].number + done.counts[OVERWRITTEN].number,
        done.counts[NEW].size + done.counts[OVERWRITTEN].size,
    )
    parts = [
        f"{counted(written, 'name')} restored, {format_size(total)} in {format_duration(done.seconds)}{_rate(total, done.seconds)}"
    ]
    for step, words in ((OVERWRITTEN, "overwritten"), (SAME, "already there, equal"), (KEPT, "already there, kept")):
        if done.counts[step].number:
            parts.append(f"{done.counts[step].number:,} {words}")
    if done.good:
        return "; ".join(parts)
    for count, words in ((done.problems, "could not be restored"), (done.differences, "different from the backup")):
        if count.number:
            parts.append(f"{counted(count.number, 'name')} {words}")
    return f"not all was restored: {'; '.join(parts)}"


def _rate(size: int, seconds: float) -> str:
    """Formats the bytes a second; "" for so few bytes that the rate has no meaning."""
    return f", {format_size(round(size / seconds))}/s" if size >= _LEAST_FOR_RATE and seconds > 0 else ""


def say_result(done: RestoreResult, overwrite: str | None) -> None:
    """Prints the result: what was written and compared, and the failures with their remedy."""
    say(result_line(done))
    shared = f", {format_size(done.reflinked)} are shared with the backup" if done.reflinked else ""
    say(f"compared: {format_size(done.compared)} of content read again{shared}; {counted(done.differences.number, 'difference')}")
    for title, count in (("could not be restored", done.problems), ("different from the backup", done.differences)):
        if count.number:
            say(f"{counted(count.number, 'name')} {title}:")
            _samples(count)
    _say_withheld(done.withheld)
    if overwrite != ALL and done.differences.content_only:
        say("size and time equal those of the backup, but the content differs: --overwrite=all compares contents and overwrites")


class RestoreProgressPrinter:
    """Shows the progress of a restore: in one line that changes on a terminal; with `lines`, in a line every few seconds."""

    def __init__(self, lines: bool) -> None:
        self._line, self._lines = ProgressLine(is_shown=not lines), lines
        self._last = time.monotonic()
        self._phase = ""

    def __call__(self, progress: RestoreProgress) -> None:
        is_new, self._phase = progress.phase != self._phase, progress.phase
        now = time.monotonic()
        if self._line.is_shown and is_new:
            self._line.show(progress_line(progress, now))
        else:
            self._line.go_on(lambda: progress_line(progress, now))
        if self._lines and (is_new or now - self._last >= _LINES_EVERY):
            self._last = now
            say(progress_line(progress, now), err=True)

    @property
    def prints_lines(self) -> bool:
        """Returns True if progress is printed in lines."""
        return self._lines

    def clear(self) -> None:
        """Removes the line."""
        self._line.clear()


def progress_line(progress: RestoreProgress, now: float) -> str:
    """Formats files, bytes, rate and time left, as far as they are known."""
    if progress.phase == "looking":
        read = f", {format_size(progress.size)} compared" if progress.size else ""
        return f"scanning: {counted(progress.files, 'name')}{read}"
    if progress.phase == "syncing":
        return "waiting until all data is on the disk"
    spent = max(0.001, now - progress.begun)
    rate = progress.size / spent
    line = f"{progress.phase}: {progress.files:,} of {counted(progress.all_files, 'name')}"
    if progress.all_size:
        line += f", {format_size(progress.size)} of {format_size(progress.all_size)}"
    if progress.all_size and rate:
        line += f", {format_size(round(rate))}/s"
    if rate and spent > 2 and progress.all_size > progress.size:
        line += f", {format_duration((progress.all_size - progress.size) / rate)} left"
    return line


def say_stopped() -> None:
    """Prints hints for an operator who has stopped a restore."""
    say("stopped: the restored files are complete; the same command continues with the rest", err=True)


@contextmanager
def naming_copies(config: Config, host: str, which: str, paths: Sequence[str], to: str) -> Iterator[None]:
    """Adds notes that name other copies of the host to an OperatorError raised within. `to`: the folder to restore to, or ""."""
    try:
        yield
    except OperatorError as error:
        for line in _lines(config, host, which, paths, to):
            error.add_note(line)
        raise


def _lines(config: Config, host: str, which: str, paths: Sequence[str], to: str) -> Iterator[str]:
    from btrkeep.decisions.copy_status import other_copies

    known_copies, pool_id, offsite = _known_copies(config)
    copies = other_copies(config.copies, known_copies, offsite, host)
    if copies:
        yield f"other copies of {host}:"
    for copy in copies:
        newest = f"its newest backup is {copy.newest}" if copy.newest else "its newest backup is not known here"
        if copy.offsite is None:
            yield f"  {_server(copy)}: {newest}; run on that server: {_restore_words(host, which, paths)}"
            continue
        yield f"  offsite {copy.name}: {newest}; to restore it below {to or _TARGET}{_TOP}:"
        yield "    " + restic_line(copy.offsite, pool_id, host, which, paths, to or _TARGET)
        if which and not parse_backup_name(which):
            yield "    for another backup, replace `latest` by an id from: " + restic_call(
                copy.offsite, ["snapshots", *_whose(pool_id, host)]
            )


def _server(copy: "OtherCopy") -> str:
    from btrkeep.decisions.copy_status import REPLICA

    if copy.kind == REPLICA:
        return f"the pool that replica {copy.name} is fetched from ({copy.place})"
    return f"the server that has the copy {copy.name}" + (f" ({copy.place})" if copy.place else "")


def _restore_words(host: str, which: str, paths: Sequence[str]) -> str:
    return shlex.join(["backupd", "restore", f"{host}@{which}" if which else host, *paths, "--to", _TARGET])


def restic_line(offsite: OffsiteSettings, pool_id: str | None, host: str, which: str, paths: Sequence[str], target: str) -> str:
    """Returns the shell line that restores paths of a host from a repository.

    A backup that was named in full is selected by its tag; otherwise the newest backup in the repository. Secrets are given as
    names of files.
    """
    backup = f"backup:{which}" if which and parse_backup_name(which) else ""
    words = ["restore", "latest", *_whose(pool_id, host, backup)]
    for path in paths:
        words += ["--include", _TOP + path.rstrip("/").translate(_PATTERN)]
    return restic_call(offsite, [*words, "--target", target])


def _whose(pool_id: str | None, host: str, *more: str) -> list[str]:
    tags = ["btrkeep", f"pool:{pool_id}" if pool_id else "", *more]
    return ["--host", host, "--tag", ",".join(filter(None, tags))]


def restic_call(offsite: OffsiteSettings, words: Sequence[str]) -> str:
    """Returns the shell line of a command of restic to this repository."""
    options = ["-r", without_credentials(offsite.repository)] if offsite.repository else []
    options += ["-p", str(offsite.password_file)] if offsite.password_file else []
    line = shlex.join(["restic", *options, *words])
    return f"(set -a; . {shlex.quote(str(offsite.environment_file))}; {line})" if offsite.environment_file else line


def _known_copies(config: Config) -> tuple["KnownCopies | None", str | None, dict[str, dict[str, str]]]:
    """Returns the copies, the pool's id, and the newest offsite backups from the catalogue; all are empty if it was lost."""
    from btrkeep.catalogue import Catalogue  # only after an error: it takes half of a command's start
    from btrkeep.decisions.copy_status import COPIES, copies_of, offsite_newest

    try:
        with Catalogue.open_readonly(config.pool.state) as catalogue:
            offsite = {name: offsite_newest(catalogue, name) for name in config.offsites}
            return copies_of(catalogue.get_fact(COPIES)), catalogue.pool_id(), offsite
    except OperatorError:
        return None, None, {}
