"""The pool: its space, its disks, balance, expiry, and recorded states as pictures."""
