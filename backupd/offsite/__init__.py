"""Copies in repositories of restic: on object storage, and on whatever is no btrfs."""
