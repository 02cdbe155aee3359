"""``python -m balancer``: the same as the command ``btrfs-balancer``."""

from balancer.cli import main

main()
