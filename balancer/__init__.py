"""btrfs-balancer: scores the fragmentation of free space per block group, and balances the block groups that are worth it.

`survey` reads a filesystem, `score` scores it, `choose` ranks block groups by policy and floors, `cost_model` estimates what moving
one takes. `balance_plan` does all of that for the next one, `relocation` balances it, `balancing` repeats this until `stop_rules`
end it.
"""
