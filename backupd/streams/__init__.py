"""Backups of hosts by `btrfs send` (`engine = "send"`): the host sends what changed in a subvolume since the previous backup.

- `host_stream` asks the host's btrkeep-source for read-only snapshots, and parses its answer.
- `applier` is a program of its own, in a cell (backupd/rsync/cell.py): it applies a stream to the folder of the source path.
  `file_writer` writes the data, `stream_format` has the commands of a stream, and `open_folders` walks its paths.
- `applying` starts both, and has the result.

docs/decisions/0094-streams-of-hosts.rst has the reasons.
"""
