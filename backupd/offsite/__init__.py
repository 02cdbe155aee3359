"""Copies in repositories of restic: on object storage, and on any storage that is not a btrfs."""
