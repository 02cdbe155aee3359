"""Finds what starts a program by itself: enabled timers and lines of cron. Read from files: systemd need not run."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_UNITS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
_CRON = ("etc/crontab", "etc/cron.d", "var/spool/cron/crontabs", "etc/cron.hourly", "etc/cron.daily")


def scheduled_by(program: str, verb: str, root: Path = Path("/")) -> Iterator[str]:
    """Names of enabled timers and of files of cron that run `program ... verb`, which may be any pool's."""
    said = re.compile(rf"\b{re.escape(program)}\b[^\n]*\b{re.escape(verb)}\b")
    for timer in sorted(_enabled(root)):
        if any(said.search(line) for line in _lines(_service_of(timer, root))):
            yield timer
    for folder in _CRON:
        for file in sorted(_files(root / folder)):
            if any(said.search(line) for line in _lines(file)):
                yield str(file)


def _enabled(root: Path) -> set[str]:
    """Timers that a target wants: what `systemctl enable` makes of [Install]."""
    return {timer.name for folder in _UNITS for timer in (root / folder).glob("*.wants/*.timer")}


def _service_of(timer: str, root: Path) -> Path | None:
    """The file of the service that a timer of the same name starts; that of the template for an instance (a@b.timer)."""
    name = timer.removesuffix(".timer")
    template = name.partition("@")[0] + "@" if "@" in name else name
    candidates = (root / folder / f"{one}.service" for one in dict.fromkeys((name, template)) for folder in _UNITS)
    return next((file for file in candidates if file.exists()), None)


def _files(place: Path) -> list[Path]:
    with suppress(OSError):
        if place.is_dir():
            return [file for file in place.iterdir() if not file.name.startswith(".")]
    return [place]


def _lines(file: Path | None) -> list[str]:
    """Returns the lines of a file that are no comments."""
    try:
        text = file.read_text(errors="replace") if file else ""
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";"))]
