"""Repair of damaged backups: a copy of each is made beside it, in which the damaged files are replaced by good ones."""
