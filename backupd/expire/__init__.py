"""Expiry: backups that the retention no longer keeps are marked, and deleted when their grace ends.

btrkeep.decisions.expiry_plan decides. `host_backups` reads pool and catalogue; `mark` and `delete_backups` act under a host's lock,
after they have read the host again. `queue` keeps the number of deleted subvolumes that wait for the cleaner below the limit;
`expiry_runner` has the order of all steps.
"""
