"""btrfs-balancer: scores the fragmentation of free space per block group, and balances the block groups that are worth it."""
