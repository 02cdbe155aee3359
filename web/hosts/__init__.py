"""Hosts: the list of them, the page of one with its backups, calendar and nights, and what operators do there."""
