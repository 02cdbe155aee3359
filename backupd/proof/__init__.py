"""The proof that the data in the pool can be read and equals the hosts' files: verify, scrub, comparison with the hosts, damage.

`verify` reads backups, using `verify_pass` and `backup_reader`; `after_crash` reads the backups that were written just before a
crash. `read_errors` finds damage from the errors of a scrub and of all other readers, and the files at an address; `damaged_files`
finds every backup that has them, and undamaged copies.
"""
