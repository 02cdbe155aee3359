"""btrfs-balancer: scores how fragmented the free space of block groups is, to balance what is worth it."""
