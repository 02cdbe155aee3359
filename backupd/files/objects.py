"""Backups, histories and differences as JSON has them: for the commands, and for the service that the dashboard asks. Pure."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backupd.files.backup_selector import Restorable
from backupd.files.words import entry_object, named_entry_object
from backupd.repo.backup_json import Record
from btrkeep.units import format_time

if TYPE_CHECKING:
    from backupd.files.comparing import PathDifference
    from backupd.files.history import Absence, PathHistory, Version


def backup_object(backup: Restorable) -> dict[str, Any]:
    """Returns what names a backup."""
    skipped = skipped_deletions_object(backup.record)
    named = {"name": backup.name, "state": backup.state, "started": format_time(backup.started)}
    return named | ({"deletions_skipped": skipped} if skipped else {}) | left_out_object(backup.record)


def skipped_deletions_object(record: Record) -> list[dict[str, str]]:
    """Returns the source paths of a backup in which files that the host has deleted may still be, and since when."""
    return [{"path": one.key.path, "since": format_time(one.since)} for one in record.skipped_deletions]


def left_out_object(record: Record) -> dict[str, Any]:
    """Returns the folders whose content `one_file_system` has left out, and since when; {} if there are none."""
    left_out = [{"path": condition.key.name, "since": format_time(condition.since)} for condition in record.left_out]
    return {"left_out": left_out} if left_out else {}


def history_object(host: str, history: "PathHistory") -> dict[str, Any]:
    """The history of a path."""
    return {
        "host": host,
        "path": os.fsdecode(history.path),
        "by_content": history.by_content,
        "versions": [{**_version(version), "entry": entry_object(version.entry)} for version in history.versions],
        "gone": [_gone(one) for one in history.gone],
        "backups": [
            {"name": one.name, "started": format_time(one.started), "state": one.state, "found": one.found, "version": one.version}
            for one in history.backups
        ],
    }


def history_answer(host: str, history: "PathHistory") -> dict[str, Any]:
    """The history for an answer of the root service: the path is there once, not in each version."""
    versions = [{**_version(version), "entry": named_entry_object(version.entry)} for version in history.versions]
    return {**history_object(host, replace(history, versions=())), "versions": versions}


def _version(one: "Version") -> dict[str, Any]:
    return {
        "first": one.first,
        "last": one.last,
        "first_seen": format_time(one.first_seen),
        "last_seen": format_time(one.last_seen),
        "backups": one.backups,
        "names": list(one.names),
        "states": list(one.states),
        "best": one.best,
        "changed": list(one.changed),
        "certain": one.certain,
        "vanished": format_time(one.vanished) if one.vanished else None,
        "same_content_as": one.same_content_as,
        "sha256": one.sha256,
    }


def _gone(one: "Absence") -> dict[str, Any]:
    return {
        "first": one.first,
        "last": one.last,
        "since": format_time(one.since),
        "until": format_time(one.until) if one.until else None,
        "backups": one.backups,
        "came_back": one.came_back,
        "doubtful": one.doubtful,
    }


def difference_object(one: "PathDifference") -> dict[str, Any]:
    """Returns one difference."""
    return {
        "path": os.fsdecode(one.path),
        "what": one.what,
        "fields": list(one.fields),
        "before": entry_object(one.before) if one.before else None,
        "after": entry_object(one.after) if one.after else None,
    }


def difference_answer(one: "PathDifference") -> dict[str, Any]:
    """One difference for an answer of the root service: its path is there once, not in both entries too."""
    sides = {side: named_entry_object(entry) if entry else None for side, entry in (("before", one.before), ("after", one.after))}
    return {"path": os.fsdecode(one.path), "what": one.what, "fields": list(one.fields), **sides}
