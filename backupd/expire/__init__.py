"""Expiry: what retention no longer keeps is marked, and deleted when its grace is over.

btrkeep.decisions.expiry_plan decides, look reads pool and catalogue, mark and delete act under a host's lock and look again before
they do, queue keeps the number of deleted subvolumes that wait for the cleaner below the limit, run is the order of it all.
"""
