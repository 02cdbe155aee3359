"""btrfs-balancer: scores how fragmented the free space of block groups is, and balances what is worth it."""
