"""backupd: pulls hosts with rsync into btrfs snapshots, and looks after the backups."""
