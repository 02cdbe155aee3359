"""Copies in repositories of restic: on object storage, and on whatever is not a btrfs."""
