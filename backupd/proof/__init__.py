"""The proof that what is in the pool can be read and is what the hosts have: verify, scrub, comparison with the hosts, damage.

`verify` reads backups, by `verify_pass` and `backup_reader`; `after_crash` those that were written last. `read_errors` finds damage
from a scrub's and from all readers' errors, and the files at an address; `damaged_files` finds every backup that has them, and
copies that have not.
"""
