"""Reads, compares and restores the contents of backups, from plain read-only subvolumes, without a catalogue.

- A backup: `backup_selector` finds the requested backup, `tree` opens it and never leaves it, `walking` and `listing` go through
  its names; `suggestions` shows why a path is not in it.
- Several backups: `versions` shows one path in all of them, `backup_differences` the differences between two, `sameness` whether
  one name is the same in both.
- A restore (its data are in `restore_types`): `restore_request` prepares it `to_folder`, `to_host` (by `host_rsync`) or `to_tar`.
  Into a folder, `placing` decides where names go, `conflict_policy` what is overwritten, `privileged_attributes` what is omitted;
  `destination` is the folder, `writing` makes one name, `place_comparer` compares it. `group_writer` and `result_comparer` do the
  same with many plain files (`plain_files`) and folders at a time, by processes (`group_workers`).
- A stream: `archive` makes a tar or a zip (`tar_headers`, `zip_headers`).
"""
