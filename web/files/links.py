"""Addresses of files in backups, for templates: paths are texts there, as in web.files.data."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from flask import Blueprint, url_for

from btrkeep.units import parse_backup_name, printable
from web.files.data import bytes_of
from web.filters import comes_twice
from web.request_values import path_query, path_text


@dataclass(frozen=True, slots=True)
class PageLinks:
    """The addresses around one backup of a host. `backup` is its name, or the requested one if it does not exist."""

    host: str
    backup: str | None = None

    def browse(self, path: str, backup: str | None = None, **more: str | int | None) -> str:
        """Returns the address of the folder or file at a path, in this backup or another."""
        return self._to("files.browse", path, backup=backup or self.backup, **more)

    def versions(self, path: str, **more: str | int | None) -> str:
        """Returns the address of its versions over all backups."""
        return self._to("files.versions", path, backup=self.backup, **more)

    def compare(self, path: str, before: str, after: str, **more: str | int | None) -> str:
        """Returns the address of the differences at a path between two backups."""
        return self._to("files.compare", path, before=before, after=after, **more)

    def download(self, path: str, kind: str, backup: str | None = None) -> str:
        """Returns the address of a file ("file"), or of a file or folder as "tar" or "zip"."""
        return self._to("files.download", path, backup=backup or self.backup, **{"as": kind})

    def restore(self, path: str, backup: str | None = None) -> str:
        """Returns the address of the form to restore."""
        return self._to("restore.form", path, backup=backup or self.backup)

    def _to(self, endpoint: str, path: str, **more: str | int | None) -> str:
        return f"{url_for(endpoint, host=self.host)}?{path_query(bytes_of(path), **more)}"


def steps(path: str) -> Iterator[str]:
    """Yields the folders above a path, the root first, and the path itself."""
    names = [name for name in path.split("/") if name]
    return ("/" + "/".join(names[:count]) for count in range(len(names) + 1))


def last_name(path: str) -> str:
    """Returns the last component; "/" for the root."""
    return path.rsplit("/", 1)[-1] or "/"


def folder_of(path: str) -> str:
    """Returns the folder that contains it; the root contains itself."""
    return path.rsplit("/", 1)[0] or "/"


def below(path: str, folder: str) -> str:
    """Returns a path relative to a folder; "." for the folder itself, or for a file that is shown alone."""
    return path.removeprefix(folder.rstrip("/")).lstrip("/") or "."


def quoted(path: str) -> str:
    """Returns a path for a hidden field."""
    return path_text(bytes_of(path))


def is_escaped(text: str) -> bool:
    """Returns True if `printable` changes the name."""
    return printable(text) != text


def backup_day(name: str, zone: ZoneInfo) -> str:
    """Returns when a backup began, from its name: 2026-11-20 22:00:03 in the pool's zone."""
    started = parse_backup_name(name)
    return local_time(started, zone) if started else printable(name)


def local_time(moment: datetime, zone: ZoneInfo) -> str:
    """Returns a moment in the pool's zone. Backups of the same minute, or of the hour that occurs twice, look different."""
    local = moment.astimezone(zone)
    return f"{local:%Y-%m-%d %H:%M:%S}{f' {local:%Z}' if comes_twice(moment, zone) else ''}"


_FIELDS = {"mtime": "time", "xattrs": "attributes", "mount": "a mount (not compared below)"}
_WHATS = {"kind": "of another kind"}


def field_word(field: str) -> str:
    """Returns in a word the field in which two versions differ."""
    return _FIELDS.get(field, field)


def what_word(what: str) -> str:
    """Returns in a word how two backups differ at a path."""
    return _WHATS.get(what, what)


def add_filters(blueprint: Blueprint) -> None:
    """Adds the filters for the templates of files and restore."""
    for function in (steps, last_name, folder_of, quoted, is_escaped, backup_day, local_time, field_word, what_word, below):
        blueprint.add_app_template_filter(function)
