"""Reads, compares and restores the contents of backups, from plain read-only subvolumes, without a catalogue."""
