"""backupd: pulls hosts with rsync into btrfs snapshots, and manages the backups."""
