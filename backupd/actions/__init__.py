"""What an administrator does to backups by hand: accept, delete, discard, hold, forget, rename, scrub, verify.

Damage has several modules: `damaged` and `read_errors` find it (from a scrub's and from all readers' errors), `damage_resolver`
leads from an address to files, `damaged_places` and `shared_damage` to every place that has it, and
`copies_of_damaged` to copies that have not. `verify` reads backups, by `verify_pass` and `backup_reader`.
"""
