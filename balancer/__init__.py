"""btrfs-balancer: scores free space and balances what is worth it. Nothing is here yet; see CHANGES.rst."""
