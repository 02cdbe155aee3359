"""Drills: restores or boots a backup for real, and deletes the result."""
