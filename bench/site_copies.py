"""The copies of an invented site, and the checks of its backups: verifications, damages, comparisons with hosts, restore drills.

A replica fetches hosts of another pool into this one, a third pool fetches from this one, a server is sent to at this moment, and
the offsite repository refused the newest run.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from bench import make_catalogue
from btrkeep.catalogue import Backup, Catalogue, ComparedBackup, Damage, VerifiedBackup
from btrkeep.config.config_model import OffsiteSettings, PushSettings, ReplicaSettings
from btrkeep.decisions.copy_status import (
    COPIED,
    COPIES,
    OFFSITE,
    OFFSITE_THERE,
    HostBehind,
    KnownCopies,
    ReplicaSession,
    RunningFetch,
    copied_backups_text,
    copies_text,
    note_failure,
    note_running,
    note_session,
    note_stored,
)
from btrkeep.decisions.drills import DrillKind, DrillOutcome, DrillResult, note_drill

REPLICAS = {"branch": ReplicaSettings("branch", address="btrkeep@branch.example.org")}
PUSHES = {"away": PushSettings("away", address="btrkeep@away.example.org")}
OFFSITES = {"far": OffsiteSettings("far", repository="s3:https://storage.example.org/copies")}
FETCHED = tuple(f"branch{number:02}.example.org" for number in range(12))
"""Hosts of the other pool."""
_HOUR, _GIB = timedelta(hours=1), 1 << 30


def fetched_backups(pool: Path, evenings: Sequence[datetime]) -> Iterator[Backup]:
    """Yields the copies of each fetched host, oldest first; the last host has been behind for a week."""
    for number, host in enumerate(FETCHED):
        for night, evening in enumerate(evenings if host != FETCHED[-1] else evenings[:-7]):
            plain = make_catalogue.backup_of(number, night, evening)
            yield replace(
                plain, host=host, path=f"{pool}/hosts/{host}/{plain.name}", state="complete", outcome="complete", error=None
            )


def fill(catalogue: Catalogue, newest: dict[str, str], now: datetime, pid: int, pid_started: str | None, words: str = "") -> None:
    """Writes all copies and checks. `newest`: the newest complete backup of each host of this pool; `words`: of the other side."""
    fetched = {host: backup_name for host in FETCHED if (backup_name := newest.get(host))}
    own = {host: backup for host, backup in newest.items() if host not in fetched}
    covered = dict(list(own.items())[: -max(1, len(own) // 20)])  # some lie nowhere else
    common = {"branch": fetched, "second": covered, "away": dict(list(covered.items())[::2])}
    catalogue.set_fact(COPIES, copies_text(KnownCopies(dict.fromkeys(fetched, "branch"), common)))
    behind = HostBehind(FETCHED[-1], max(fetched.values(), default=""), fetched.get(FETCHED[-1]), words or "the stream ended early")
    done = ReplicaSession(now - 5 * _HOUR, now - 6 * _HOUR, "", "other", len(fetched), 11, 7 * _GIB, 700.0, behind=(behind,))
    note_session(catalogue, "branch", replace(done, gone=(FETCHED[0],)))
    note_session(catalogue, "away", replace(done, behind=(), fetched=400, hosts=len(own) // 2), "push")
    updated = now - timedelta(seconds=2)
    began = updated - timedelta(minutes=18)
    note_running(catalogue, "away", RunningFetch(pid, pid_started, began, updated, 400, 113, 21 * _GIB, tuple(own)[:3], 60 * _GIB))
    catalogue.set_fact(OFFSITE_THERE + "far", json.dumps({"newest": dict(list(own.items())[::3]), "incomplete": []}))
    catalogue.set_fact(COPIED + "far", copied_backups_text({host: [backup] for host, backup in list(own.items())[::3]}))
    note_session(catalogue, "far", replace(done, behind=(), at=now - 30 * _HOUR, tried=now - 30 * _HOUR), OFFSITE)
    note_failure(catalogue, "far", now - 6 * _HOUR, words or "the repository refuses the password", OFFSITE)
    note_stored(catalogue, "far", 1900 * _GIB)
    _prove(catalogue, own, now, words)


def _prove(catalogue: Catalogue, own: dict[str, str], now: datetime, words: str) -> None:
    """Reads, compares, restores and boots some of the newest backups; one of 40 hosts has two damaged files."""
    hosts, yesterday = list(own.items()), now - 20 * _HOUR
    catalogue.put_verifications(
        VerifiedBackup(host, name, yesterday - _HOUR, yesterday, 41_000, 40_100, yesterday if number % 3 else None)
        for number, (host, name) in enumerate(hosts)
        if number % 5
    )
    catalogue.put_comparisons(
        ComparedBackup(host, name, yesterday, 400, 392, 8 - number % 2, number % 2)
        for number, (host, name) in enumerate(hosts[::4])
    )
    catalogue.put_damages(
        Damage(host, name, f"/srv/{words or 'photos'}/{file}.jpg", 4096 * file, 4096, "scrub", yesterday)
        for host, name in hosts[5::40]
        for file in (1, 2)
    )
    for number, (host, name) in enumerate(hosts[::7]):
        outcome = DrillOutcome.FAILED if number == 2 else DrillOutcome.PROVEN
        text = (words or "2 files are other ones than in the backup") if outcome == DrillOutcome.FAILED else ""
        at = now - timedelta(days=number % 30, hours=3)
        note_drill(catalogue, DrillResult(host, name, at, outcome, 31.0, "200", 200, _GIB, 24.0, 120_000, 0, 2 * bool(text), text))
        if number % 3 == 0:
            booted = "running in 4.1 s; all 2 checks passed"
            note_drill(catalogue, DrillResult(host, name, at, DrillOutcome.PROVEN, 9.0, text=booted, kind=DrillKind.BOOT))
