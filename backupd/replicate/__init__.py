"""A second copy: backups of another pool fetched by btrfs send and receive, over ssh or from a disk of this machine."""
