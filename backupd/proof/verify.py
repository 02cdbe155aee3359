"""Reads the files of backups from the disk, and compares them with their recorded checksums.

A file is damaged if the filesystem cannot read it (its checksum does not match, and there is no good copy), or if it is read with
another content than recorded although the inode was not changed: it was stored without a checksum (nodatasum), or memory flipped a
bit in between. So is a file that differs from the checksum made when it was fetched. The first time a file is read, its checksum is
recorded. A file that several backups share is read once in a pass.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from backupd.files.backup_selector import Restorable
from backupd.files.tree import DataUnreadable, Tree, require_nothing_mounted, tree_of_backup
from backupd.proof.backup_reader import BackupReader
from backupd.proof.damaged_files import FoundDamage, backups_that_share
from backupd.proof.verify_pass import ReadCount, ReadScope, VerifyPass
from backupd.repo.backup_json import RECORD
from backupd.repo.pool_files import names_of
from backupd.repo.read_lock import lock_for_reading
from backupd.repo.verification_files import NAMED, enter_damages, read_verified, verified_row, write_verified
from btrkeep.catalogue import Catalogue, Damage
from btrkeep.decisions.due import latest
from btrkeep.decisions.verification import Verification
from btrkeep.errors import DAMAGED
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.process.progress import Cancellation


class Verifier(VerifyPass):
    """Reads backups until it is cancelled or the time is over, and records the results.

    The caller holds the pool's lock `verify`.
    """

    def __init__(
        self,
        pool: Pool,
        catalogue: Catalogue,
        now: datetime,
        scope: ReadScope,
        cancellation: Cancellation,
        tell: Callable[[ReadCount], None],
    ) -> None:
        """Calls `tell` from time to time, from the thread that calls `verify`."""
        super().__init__(now, scope, cancellation, tell)
        self.pool, self.catalogue = pool, catalogue

    def verify(self, backup: Restorable) -> Verification:
        """Reads one backup. Raises OperatorError if it is deleted or being deleted, DataUnreadable, and OSError for an error that
        is not damage.
        """
        with lock_for_reading(backup.path):
            require_nothing_mounted(backup.path)
            try:
                tree = tree_of_backup(backup.path)
            except DataUnreadable:
                self.note_unreadable(backup.host, backup.name)
                raise
            with tree:
                return self._verify(backup, tree)

    def note_unreadable(self, host: str, name: str) -> None:
        """Records that no file of that backup can be read: it is damaged completely."""
        verification = read_verified(self.pool.host(host)).get(name) or Verification(self.now, self.now)
        enter_damages(self.pool, self.catalogue, [host], [Damage(host, name, "/", 0, 0, "verify", self.now)])
        self._write_down(host, name, _with_damages(verification, verification, [b"/"], are_all=False))

    def _verify(self, backup: Restorable, tree: Tree) -> Verification:
        before = read_verified(self.pool.host(backup.host)).get(backup.name)
        was_ahead = before is not None and before.at > latest(self.now)  # then its times are wrong
        continued = before if before and not before.is_over and not was_ahead else None
        if continued and self.scope.crash and continued.begun < self.scope.crash:
            continued = None
        begun = continued.begun if continued else self.now
        whole = before.whole if before and not was_ahead else None
        if continued is None:  # a kill must lose only the unrecorded files
            since = Verification(begun, begun, whole=whole)
            self._write_down(
                backup.host, backup.name, replace(since, damages=before.damages, damaged=before.damaged) if before else since
            )
        damages = self.catalogue.damages(backup.host, backup.name)
        bad = {os.fsencode(damage.path) for damage in damages if damage.found_by == "verify" and damage.fate is None}
        reader = BackupReader(self, backup, self.pool.host(backup.host), begun, bad, partial(self._enter_found, backup))
        reader.verify(tree)
        self._drop_repaired(backup, reader)
        has_read = reader.read or reader.bad or reader.is_whole
        verification = Verification(
            begun,
            self.now if has_read or not continued else continued.at,  # without progress, nothing was checked now
            reader.read + (continued.read if continued else 0),
            reader.compared + (continued.compared if continued else 0),
            reader.bytes + (continued.bytes if continued else 0),
            self.now if reader.is_whole else whole,
        )
        verification = _with_damages(
            verification, before, [found_damage.path for found_damage in reader.bad], are_all=reader.is_walked
        )
        self._write_down(backup.host, backup.name, verification, reader.shared)
        return verification

    def _enter_found(self, backup: Restorable, damages: Sequence[FoundDamage]) -> dict[str, list[bytes]]:
        """Records damage, also of the host's other backups that share the damaged data, which are read another day: the next night
        only checks its base. Returns the paths by other backup.
        """
        others = dict(backups_that_share(self.pool, backup.host, backup.name, damages))
        every = {backup.name: damages, **others}
        lengths = {
            (damage.name, damage.path, damage.start): damage.length for damage in self.catalogue.damages(backup.host)
        }  # as recorded by a scrub
        rows = [self._damage(backup.host, name, file) for name, files in every.items() for file in files]
        rows = [replace(row, length=lengths.get((row.name, row.path, row.start), 0)) for row in rows]
        enter_damages(self.pool, self.catalogue, [backup.host], rows)
        return {name: [file.path for file in files] for name, files in others.items()}

    def _drop_repaired(self, backup: Restorable, reader: BackupReader) -> None:
        """Removes recorded damage that no longer exists; for files that this pass did not reach, nothing changes.

        Errors of other readers are removed if the file was read here, unless they occurred since.
        """
        bad = {(os.fsdecode(found_damage.path), found_damage.start) for found_damage in reader.bad}

        def is_repaired(damage: Damage) -> bool:
            if damage.name != backup.name:
                return False
            if damage.found_by == "device":
                return reader.is_whole and damage.found_at < reader.since
            return damage.found_by == "verify" and reader.is_walked and (damage.path, damage.start) not in bad

        enter_damages(self.pool, self.catalogue, [backup.host], (), is_repaired)

    def _damage(self, host: str, name: str, file: FoundDamage) -> Damage:
        return Damage(host, name, os.fsdecode(file.path), file.start, 0, "verify", self.now)

    def _write_down(
        self, host: str, backup: str, new_verification: Verification, shared: Mapping[str, Sequence[bytes]] | None = None
    ) -> None:
        """Records the result, and for other backups the damaged files that they share (`shared`: their paths by backup).

        A backup that was never read gets no result, so that it is read first the next time.
        """
        folder, names = self.pool.host(host), names_of(self.pool, host)
        verifications = {name: verification for name, verification in read_verified(folder).items() if name in names}
        for name, paths in (shared or {}).items():
            if other := verifications.get(name):
                verifications[name] = _with_damages(other, other, paths, are_all=False)
        write_verified(folder, verifications | {backup: new_verification})
        self.catalogue.put_verifications([verified_row(host, backup, new_verification)])


def unreadable_backups(pool: Pool, hosts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields host and name of backups whose folder or record is unreadable, so that they cannot be chosen."""
    for host in hosts:
        for name in sorted(names_of(pool, host) - {WORKING}):
            try:
                (pool.host(host) / name / RECORD).read_bytes()
            except OSError as error:
                if error.errno in DAMAGED:
                    yield host, name


def _with_damages(
    new_verification: Verification, before: Verification | None, paths: Sequence[bytes], *, are_all: bool
) -> Verification:
    """Adds these damaged files; unless `are_all`, keeps the earlier ones too, because this pass may not have reached them."""
    names, verification = {os.fsdecode(path) for path in paths}, None if are_all else before
    names |= set(verification.damaged) if verification else set()
    number = max(len(names), verification.damages if verification else 0)
    return replace(new_verification, damages=number, damaged=tuple(sorted(names, key=os.fsencode)[:NAMED]))
