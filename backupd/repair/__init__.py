"""Repair of damaged backups: a copy is made beside each, in which the damaged files are good ones again."""
